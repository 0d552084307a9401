//! Three nodes in network namespaces: time until they form a cluster, time until every node knows a new
//! endpoint, and throughput of a tunnel between two pods.

use std::process::Command;
use std::time::{Duration, Instant};

use harness::manifests::sleeper;
use harness::{
    Change, Cluster, ClusterOptions, Context, Daemon, NetWorld, Node, Result, Where, ensure, eventually,
    outcome, secs,
};

use crate::Scale;
use crate::figures::{Row, Series, Table, ms, ratio};
use crate::pods::sync;

const NODES: u8 = 3;
/// Longest wait for an endpoint on all nodes.
const KNOWN_MAX: Duration = Duration::from_secs(30);

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    // There is no poll: every commit is found by the sync right after its push.
    let place = Where::Namespaces(NODES);
    let options = ClusterOptions { place, poll: "1h", ..ClusterOptions::default() };
    let begun = Instant::now();
    let mut cluster = Cluster::prepare(options)?;
    let engines = begun.elapsed();
    cluster.run_story(|cluster| {
        cluster.start_all()?;
        eventually("every node knows the way to every other", secs(60), || {
            cluster.nodes.iter().try_for_each(|node| knows_all(cluster, node))
        })?;
        table.add(Row {
            what: &format!("{NODES} nodes from nothing until each knows the way to each"),
            ours: ms(begun.elapsed()),
            bare: format!("their Docker daemons {}", ms(engines)),
            ratio: ratio(begun.elapsed(), engines),
            budget: "≤ 15 s",
        });
        endpoints(cluster, scale, table)?;
        throughput(cluster, scale, table)
    })
}

fn knows_all(cluster: &Cluster, node: &Node) -> Result<()> {
    let tunnel = format!("{}.1", cluster.slot().instance());
    let routes = node.net.run("ip", &["route", "show", "dev", &tunnel])?;
    ensure!(routes.lines().count() == usize::from(NODES) - 1, "{}: {routes}", node.name);
    Ok(())
}

fn service(address: &str) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: moving}}\nspec:\n  addresses: [{address}]\n  \
         ports: [{{port: 80}}]\n"
    );
    Change::write("moving.yaml", text)
}

/// Measures from a push (with a sync, as by a webhook) until the rules of all nodes lead to the new endpoint,
/// compared with one rule written by hand to one node after another.
fn endpoints(cluster: &Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    let (mut ours, mut bare) = (Series::default(), Series::default());
    for change in 0..=scale.changes {
        let address = format!("198.51.100.{}", change + 1);
        cluster.repo.push(&[service(&address)], "Move the endpoint")?;
        let begun = Instant::now();
        sync(cluster)?;
        let took = on_all_nodes(cluster, &format!("--to-destination {address}:80"), begun)?;
        let by_hand = by_hand(cluster, &address)?;
        // The first one also makes the chains.
        if change > 0 {
            ours.add(took);
            bare.add(by_hand);
        }
    }
    for percent in [50, 95] {
        let (us, them) = (ours.percentile(percent), bare.percentile(percent));
        let what = format!("push with sync → endpoint on {NODES} nodes, n={}, p{percent}", ours.count());
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

/// Time until the last node had the rule. Polls without a pause, in one thread per node.
fn on_all_nodes(cluster: &Cluster, mark: &str, begun: Instant) -> Result<Duration> {
    let look = |net: &NetWorld| -> Result<Duration> {
        while begun.elapsed() < KNOWN_MAX {
            if net.run("iptables-save", &["-t", "nat"])?.contains(mark) {
                return Ok(begun.elapsed());
            }
        }
        harness::bail!("no {mark} within {KNOWN_MAX:?}")
    };
    std::thread::scope(|scope| {
        let looks: Vec<_> = cluster.nodes.iter().map(|node| scope.spawn(|| look(&node.net))).collect();
        let times = looks.into_iter().map(|look| look.join().ok().context("a look panicked")?);
        Ok(times.collect::<Result<Vec<Duration>>>()?.into_iter().max().unwrap_or_default())
    })
}

fn by_hand(cluster: &Cluster, address: &str) -> Result<Duration> {
    let rules =
        format!("*nat\\n:BENCH - [0:0]\\n-A BENCH -p tcp -j DNAT --to-destination {address}:80\\nCOMMIT\\n");
    let command = format!("printf '{rules}' | iptables-restore -w --noflush");
    let begun = Instant::now();
    cluster.nodes.iter().try_for_each(|node| node.net.run("sh", &["-c", &command]).map(|_| ()))?;
    Ok(begun.elapsed())
}

/// TCP from a pod to a pod on another node, compared with the bare link between the two nodes.
fn throughput(cluster: &Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    if !Command::new("sh").args(["-c", "command -v iperf3"]).output()?.status.success() {
        println!("fleet: throughput not measured, there is no iperf3 (apt-get install iperf3)");
        return Ok(());
    }
    let pods = |index: usize| -> Result<Change> {
        let text =
            sleeper(&format!("end-{index}")) + &format!("  nodeName: {}\n", cluster.numbered(index)?.name);
        Ok(Change::write(format!("end-{index}.yaml"), text))
    };
    cluster.repo.push(&[pods(1)?, pods(2)?], "Two ends")?;
    sync(cluster)?;
    let (first, second) = (cluster.running("end-1", &["main"])?, cluster.running("end-2", &["main"])?);
    let tunnel = Link::open(cluster, "tunnel", &Cluster::net_of(&second), second.address()?)?;
    let far = cluster.numbered(2)?;
    let direct = Link::open(cluster, "direct", &far.net, far.address()?)?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..scale.link_rounds {
        bare.push(direct.gigabits(&cluster.numbered(1)?.net)?);
        ours.push(tunnel.gigabits(&Cluster::net_of(&first))?);
    }
    let (us, them) = (median(&mut ours), median(&mut bare));
    table.add(Row {
        what: "TCP from pod to pod across nodes, one stream",
        ours: format!("{us:.1} Gbit/s"),
        bare: format!("the bare link {them:.1} Gbit/s"),
        ratio: format!("{:.2} ×", us / them.max(f64::MIN_POSITIVE)),
        ..Row::default()
    });
    Ok(())
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

/// A listening `iperf3`.
struct Link {
    address: String,
    _server: Daemon,
}

impl Link {
    fn open(cluster: &Cluster, name: &str, at: &NetWorld, address: &str) -> Result<Self> {
        let mut command = at.command("iperf3");
        command.extend(["-s", "-B", address].map(str::to_owned));
        let mut server = Daemon::new(format!("iperf3-{name}"), &cluster.dir(""), command);
        server.start()?;
        Ok(Self { address: address.to_owned(), _server: server })
    }

    /// Throughput from `from` during 4 s.
    fn gigabits(&self, from: &NetWorld) -> Result<f64> {
        let bits = eventually("iperf3 answers", secs(20), || {
            let command = from.command("iperf3");
            let mut iperf = Command::new(&command[0]);
            iperf.args(&command[1..]).args(["-c", &self.address, "-t", "4", "-J"]);
            // It exits with 0 even if it could not connect.
            let said: serde_json::Value = serde_json::from_str(&outcome(&mut iperf, secs(20))?.ok()?)?;
            let bits = said["end"]["sum_received"]["bits_per_second"].as_f64();
            bits.with_context(|| format!("no rate in {said}"))
        })?;
        Ok(bits / 1e9)
    }
}
