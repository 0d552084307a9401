//! A node with many services: all rules from scratch, and one change among them, compared with `iptables-restore`
//! of the very same rules.
//!
//! Reading every rule of this many services takes a core half a second, so during a measurement only the
//! chain that is written last is read.

use std::fs;
use std::time::{Duration, Instant};

use harness::{Change, Cluster, ClusterOptions, Context, NetWorld, Result, Where, ensure, eventually};

use schema::keys::Key;
use schema::meta::NamespacedName;

use crate::Scale;
use crate::figures::{Row, Series, Table, ms, ratio};
use crate::pods::sync;
use crate::written::NextWrite;

/// Endpoints of each service.
const ENDPOINTS: usize = 10;
/// Longest wait for the rules.
const PROGRAMMED_MAX: Duration = Duration::from_secs(180);
/// Interval between two reads of a chain; a read takes 10 ms of a core.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    // There is no poll: every commit is found by the sync right after its push.
    let options = ClusterOptions { place: Where::Namespaces(1), poll: "1h", ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let all: Vec<Change> = (0..scale.services).map(|number| service(number, 0)).collect();
        cluster.repo.push(&all, "Services")?;
        sync(cluster)?;
        let net = cluster.node().net.clone();
        eventually("all stand", PROGRAMMED_MAX, || {
            let endpoints = endpoints(&net)?;
            ensure!(endpoints == scale.services * ENDPOINTS, "{endpoints} endpoints");
            Ok(())
        })?;
        full(cluster, scale, table)?;
        one_change(cluster, scale, table)?;
        flushed(cluster, scale, table)
    })
}

/// Number of endpoint rules in the kernel.
fn endpoints(net: &NetWorld) -> Result<usize> {
    let rules = net.run("iptables-save", &["-t", "nat"])?;
    Ok(rules.lines().filter(|line| line.contains("--to-destination 198.")).count())
}

/// Waits until the rules of a chain satisfy `is_there`, and returns the time.
fn wait_chain(net: &NetWorld, chain: &str, is_there: impl Fn(&str) -> bool) -> Result<Instant> {
    let begun = Instant::now();
    while begun.elapsed() < PROGRAMMED_MAX {
        if is_there(&net.run("iptables", &["-w", "-t", "nat", "-S", chain]).unwrap_or_default()) {
            return Ok(Instant::now());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    harness::bail!("{chain} is not as it should be within {PROGRAMMED_MAX:?}")
}

/// An agent that starts without any of its rules, until all are programmed, compared with the same text given to
/// `iptables-restore`.
fn full(cluster: &mut Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    let net = cluster.node().net.clone();
    let file = cluster.dir("rules.txt");
    fs::write(&file, net.run("iptables-save", &["-t", "nat"])?)?;
    cluster.node_mut().agent.kill()?;
    let flush = || {
        net.run("iptables", &["-w", "-t", "nat", "-F"])
            .and_then(|_| net.run("iptables", &["-w", "-t", "nat", "-X"]))
    };
    flush()?;
    let begun = Instant::now();
    net.run("iptables-restore", &["--wait", "5", &file.to_string_lossy()])?;
    let bare = begun.elapsed();
    let wanted = scale.services * ENDPOINTS;
    ensure!(endpoints(&net)? == wanted, "iptables-restore took something else");
    flush()?;
    // Its startup is included, because the time of its first write is unknown. The last transaction writes the jump.
    let begun = Instant::now();
    cluster.node_mut().agent.start()?;
    let chain = format!("{}-SERVICES", cluster.slot().instance().to_uppercase());
    let ours = wait_chain(&net, "PREROUTING", |rules| rules.contains(&chain))?.duration_since(begun);
    ensure!(endpoints(&net)? == wanted, "the jump stands before the rules do");
    let what = format!("start of an agent → rules of {} services × {ENDPOINTS} endpoints", scale.services);
    table.add(Row {
        what: &what,
        ours: ms(ours),
        bare: ms(bare),
        ratio: ratio(ours, bare),
        budget: "≤ 1.3 ×",
    });
    cluster.node().wait_agent()
}

/// Flushes every rule of the table by hand, again and again, and measures until all are back.
fn flushed(cluster: &Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    let net = &cluster.node().net;
    let chain = format!("{}-SERVICES", cluster.slot().instance().to_uppercase());
    for time in ["once", "again at once"] {
        let begun = Instant::now();
        net.run("iptables", &["-w", "-t", "nat", "-F"])?;
        let done = wait_chain(net, "PREROUTING", |rules| rules.contains(&chain))?;
        let endpoints = endpoints(net)?;
        ensure!(endpoints == scale.services * ENDPOINTS, "{endpoints} endpoints after a flush");
        let what = format!("`iptables -t nat -F` {time} → rules of {} services are back", scale.services);
        table.add(Row {
            what: &what,
            ours: ms(done.duration_since(begun)),
            budget: "≤ 5 s",
            ..Row::default()
        });
    }
    Ok(())
}

/// Moves one endpoint of one service, and measures from the push, and from its record in etcd, until the rules
/// follow, compared with the same change by `iptables-restore`.
fn one_change(cluster: &Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    let net = &cluster.node().net;
    let (mut ours, mut of_record, mut bare) = (Series::default(), Series::default(), Series::default());
    let mut chains = Vec::new();
    for version in 1..=scale.changes {
        let number = version % scale.services;
        let chain = chain_of(net, number)?;
        let before = net.run("iptables", &["-w", "-t", "nat", "-S", &chain])?;
        cluster.repo.push(&[service(number, version)], "Move one")?;
        let key = Key::Service(NamespacedName::new("default", format!("s{number}")));
        let write = NextWrite::of(cluster, &key)?;
        let begun = Instant::now();
        sync(cluster)?;
        let done = wait_chain(net, &chain, |rules| !rules.is_empty() && rules != before)?;
        ours.add(done.duration_since(begun));
        let since_record = done.checked_duration_since(write.seen()?);
        of_record.add(since_record.context("the rules moved before etcd sent the record")?);
        let mark = format!("--to-destination {}:80", address(number, 0, version));
        let rules = net.run("iptables-save", &["-t", "nat"])?;
        ensure!(rules.contains(&mark), "no rule of {mark}");
        chains.push(chain);
    }
    // Afterwards, because foreign writes make the agent read every rule.
    for chain in &chains {
        bare.add(by_hand(cluster, net, chain)?);
    }
    for (what, series, budget) in
        [("push with sync", ours, ""), ("its record in etcd", of_record, "≤ 100 ms")]
    {
        for percent in [50, 95] {
            let (us, them) = (series.percentile(percent), bare.percentile(percent));
            let what = format!(
                "{what} → an endpoint of one of {} services moved, n={}, p{percent}",
                scale.services,
                series.count()
            );
            table.add(Row { what: &what, ours: ms(us), bare: ms(them), ratio: ratio(us, them), budget });
        }
    }
    Ok(())
}

/// Chain that chooses an endpoint of a service.
fn chain_of(net: &NetWorld, number: usize) -> Result<String> {
    let rules = net.run("iptables-save", &["-t", "nat"])?;
    let mark = format!("\"default/s{number}:80 cluster IP\"");
    let rule = rules.lines().find(|line| line.contains(&mark)).with_context(|| format!("no rule {mark}"))?;
    Ok(rule.rsplit(' ').next().unwrap_or_default().to_owned())
}

/// Writes as many rules in as many chains: a copy of the service's chain, and one like the chain of the moved
/// endpoint.
fn by_hand(cluster: &Cluster, net: &NetWorld, chain: &str) -> Result<Duration> {
    let now = net.run("iptables", &["-w", "-t", "nat", "-S", chain])?;
    let now: Vec<&str> = now.lines().filter(|line| line.starts_with("-A ")).collect();
    let copy = now.join("\n").replace(&format!("-A {chain} "), "-A BENCH ");
    let file = cluster.dir("one.txt");
    let end =
        "-A BENCH-END -s 198.18.0.1/32 -j RETURN\n-A BENCH-END -p tcp -j DNAT --to-destination 198.18.0.1:80";
    fs::write(&file, format!("*nat\n:BENCH - [0:0]\n:BENCH-END - [0:0]\n{copy}\n{end}\nCOMMIT\n"))?;
    let begun = Instant::now();
    net.run("iptables-restore", &["--noflush", "--wait", "5", &file.to_string_lossy()])?;
    Ok(begun.elapsed())
}

/// Address `index` of a service; the first one differs in each `version`.
fn address(service: usize, index: usize, version: usize) -> String {
    let number = service * ENDPOINTS + index;
    let moved = if index == 0 { version } else { 0 };
    format!("198.{}.{}.{}", 18 + moved, number / 250, number % 250 + 1)
}

fn service(number: usize, version: usize) -> Change {
    let addresses: Vec<String> = (0..ENDPOINTS).map(|index| address(number, index, version)).collect();
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: s{number}}}\nspec:\n  addresses: [{}]\n  \
         ports: [{{port: 80}}]\n",
        addresses.join(", ")
    );
    Change::write(format!("services/s{number}.yaml"), text)
}
