//! A node with many services: all rules from nothing, and one change among them, beside `iptables-restore`
//! of the very same rules.

use std::fs;
use std::time::{Duration, Instant};

use harness::{Change, Cluster, ClusterOptions, Context, NetWorld, Result, Where, ensure, eventually, secs};
use schema::keys::Key;
use schema::records::RulesStatus;

use crate::Scale;
use crate::figures::{Row, Series, Table, ms, ratio};
use crate::pods::sync;

/// Endpoints of each service.
const ENDPOINTS: usize = 10;
/// Longest wait for the rules.
const PROGRAMMED_MAX: Duration = Duration::from_secs(180);
/// Between two looks at what the agent says; the rules themselves are looked at once it says so.
const LOOK_EVERY: Duration = Duration::from_millis(2);

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    // The poll never comes: every commit is found by the sync right after its push.
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
        one_change(cluster, scale, table)
    })
}

/// Rules that lead to an endpoint, as the kernel has them.
fn endpoints(net: &NetWorld) -> Result<usize> {
    let rules = net.run("iptables-save", &["-t", "nat"])?;
    Ok(rules.lines().filter(|line| line.contains("--to-destination 198.")).count())
}

/// An agent that starts and finds none of its rules, until all stand; beside the same text given to
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
    // Its start included: nobody tells when it begins to write.
    let begun = Instant::now();
    cluster.node_mut().agent.start()?;
    let ours = loop {
        if endpoints(&net)? == wanted {
            break begun.elapsed();
        }
        ensure!(begun.elapsed() < PROGRAMMED_MAX, "not within {PROGRAMMED_MAX:?}");
        // A look takes a core.
        std::thread::sleep(LOOK_EVERY * 50);
    };
    let what = format!("start of an agent → rules of {} services × {ENDPOINTS} endpoints", scale.services);
    table.add(Row {
        what: &what,
        ours: ms(ours),
        bare: ms(bare),
        ratio: ratio(ours, bare),
        ..Row::default()
    });
    cluster.node().wait_agent()
}

/// One endpoint of one service moves, from the sync until the agent says that its rules follow; beside the
/// same change by `iptables-restore`.
fn one_change(cluster: &Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    let (net, key) = (&cluster.node().net, Key::Rules(cluster.node().name.clone()));
    let (mut ours, mut bare) = (Series::default(), Series::default());
    for version in 1..=scale.changes {
        let number = version % scale.services;
        let before: RulesStatus = cluster.etcd.value(&key)?;
        cluster.repo.push(&[service(number, version)], "Move one")?;
        let begun = Instant::now();
        sync(cluster)?;
        loop {
            let now: RulesStatus = cluster.etcd.value(&key)?;
            if now.revision > before.revision {
                break;
            }
            ensure!(begun.elapsed() < PROGRAMMED_MAX, "not within {PROGRAMMED_MAX:?}");
            std::thread::sleep(LOOK_EVERY);
        }
        ours.add(begun.elapsed());
        let (mark, rules) = (address(number, 0, version), net.run("iptables-save", &["-t", "nat"])?);
        let rule =
            rules.lines().find(|line| line.contains(&mark)).with_context(|| format!("no rule of {mark}"))?;
        let chain = rule.split(' ').nth(1).context("a rule without a chain")?;
        let of_chain: Vec<&str> =
            rules.lines().filter(|line| line.starts_with(&format!("-A {chain} "))).collect();
        let text = format!("*nat\n:{chain} - [0:0]\n{}\nCOMMIT\n", of_chain.join("\n"));
        let file = cluster.dir("one.txt");
        fs::write(&file, text)?;
        let begun = Instant::now();
        net.run("iptables-restore", &["--noflush", "--wait", "5", &file.to_string_lossy()])?;
        bare.add(begun.elapsed());
        // The status is written once a second at most.
        std::thread::sleep(secs(1));
    }
    for percent in [50, 95] {
        let (us, them) = (ours.percentile(percent), bare.percentile(percent));
        let what = format!(
            "push with sync → one of {} services changed, n={}, p{percent}",
            scale.services,
            ours.count()
        );
        table.add(Row {
            what: &what,
            ours: ms(us),
            bare: ms(them),
            ratio: ratio(us, them),
            ..Row::default()
        });
    }
    Ok(())
}

/// Address `index` of a service; those of another `version` are others.
fn address(service: usize, index: usize, version: usize) -> String {
    let number = service * ENDPOINTS + index;
    format!("198.{}.{}.{}", 18 + version, number / 250, number % 250 + 1)
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
