//! A node is drained by a push while clients send requests, and none notices. The pod of a single-pod workload gets
//! its successor before it stops. A cordon moves nothing; removing the Node object undoes everything.

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, Happened, Moment, Result, Timeline, Where, ensure, eventually,
    holds, secs,
};
use schema::keys::prefix;
use schema::records::{Drain, NodeConditions};

use super::{Workload, clients, node_file, node_path, per_node};

/// Answers between two changes, so that requests coincide with each change.
const ANSWERS: u64 = 20;
/// Seconds until the single pod serves.
const SLOW: u32 = 3;
const SERVES_LATE: &str = "trap 'exit 0' TERM; sleep 3 & wait $!; echo open > /tmp/index.html; \
                           httpd -f -p 8080 -h /tmp & wait";

/// Progress of the node's drain, in the order of the values of `nodestate/`.
fn steps(cluster: &Cluster, node: &str, since: i64) -> Result<Vec<Option<Drain>>> {
    let changes = cluster.etcd.changes(&format!("{}{node}", prefix::NODESTATE), since)?;
    let states = changes.iter().filter_map(|change| change.value.as_deref());
    states.map(|state| Ok(serde_json::from_str::<NodeConditions>(state)?.drain)).collect()
}

/// Checks that the successor had time to serve before the former pod got SIGTERM.
fn was_replaced_first(moments: &[&Moment], former: &str) -> Result<()> {
    let signalled = moments.iter().find(|m| m.happened == Happened::Signalled && m.pod == former);
    let began = moments.iter().find(|m| m.happened == Happened::Began && m.pod != former);
    let (signalled, began) =
        (signalled.context("it got no SIGTERM")?, began.context("nothing took its place")?);
    let lead_nanos = signalled.at_nanos - began.at_nanos;
    println!("the successor began {} ms before the former pod got SIGTERM", lead_nanos / 1_000_000);
    ensure!(lead_nanos >= i64::from(SLOW) * 1_000_000_000, "{began:?}, {signalled:?}");
    Ok(())
}

// Seen red with a `moves` that treats new pods as available: the successor started after the former got SIGTERM. And
// with a filter that ignores a cordon: the node got pods.
#[test]
#[expect(clippy::too_many_lines, reason = "a story is read from its beginning to its end")]
fn nobody_notices_that_a_node_is_drained_and_a_single_pod_gets_its_successor_first() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let (mut shop, mut single) = (Workload::new("shop", 6), Workload::new("single", 1));
        single.command = SERVES_LATE;
        let files = [shop.service(), single.service(), shop.file(), single.file()];
        cluster.push(&files, "Open")?;
        let before = shop.serves(cluster)?;
        ensure!(per_node(&before).values().all(|pods| *pods == 2), "{before:?}");
        let alone = single.serves(cluster)?.pop().context("no pod")?;
        let node = alone.node.clone();
        cluster
            .push(&[Change::write("stays.yaml", web("stays").on(&node).to_string())], "One that names it")?;
        let stays = cluster.running("stays", &["web"])?;
        let addresses = [shop.address(cluster)?, single.address(cluster)?];
        let mut clients = clients(cluster, &[&addresses[0], &addresses[1]])?;
        let answered = || clients.iter().try_for_each(|client| client.answered(ANSWERS));
        answered()?;

        cluster.push(&[node_file(&node, "", "unschedulable: true")], "Cordon")?;
        eventually("the node is shown as cordoned", secs(20), || {
            let nodes = cluster.cli(&["get", "nodes"])?.ok()?;
            ensure!(nodes.matches("Ready,SchedulingDisabled").count() == 1, "{nodes}");
            Ok(())
        })?;
        holds("a cordon moves nothing", secs(2), || {
            let now = shop.running(cluster)?;
            ensure!(now == before, "{now:?}");
            Ok(())
        })?;

        let since = cluster.etcd.revision()?;
        let page = || cluster.cli(&["describe", &format!("node/{node}")])?.ok();
        cluster.push(&[node_file(&node, "", "drain: true")], "Drain")?;
        eventually("it is shown that the node is being drained", secs(20), || {
            let page = page()?;
            ensure!(page.contains("draining, "), "{page}");
            Ok(())
        })?;
        eventually("it is shown as drained", secs(60), || {
            let page = page()?;
            ensure!(page.contains("drained") && !page.contains("draining"), "{page}");
            Ok(())
        })?;
        let drained = cluster.nodes.iter().find(|one| one.name == node).context("no such node")?;
        let left = drained.docker.containers(&cluster.slot().instance())?;
        let left: Vec<&str> = left.iter().filter(|c| c.running).map(|c| c.label("pod")).collect();
        ensure!(left == ["stays", "stays"], "{left:?} run on the drained node");
        ensure!(cluster.pod("stays")?.lives() == stays.lives(), "the pod that names the node was touched");
        let moved = shop.serves(cluster)?;
        ensure!(moved.iter().filter(|runs| before.contains(runs)).count() == 4, "{before:?}, then {moved:?}");
        let successor = single.serves(cluster)?;
        ensure!(successor[0].node != node, "{successor:?}");
        answered()?;
        was_replaced_first(&single.moments(&timeline.moments()?), &alone.pod)?;
        let steps = steps(cluster, &node, since)?;
        println!("drain: {steps:?}");
        let left = steps.iter().flatten().map(|step| match step {
            Drain::Draining { left, .. } => *left,
            Drain::Drained => 0,
        });
        let left: Vec<u32> = left.collect();
        ensure!(
            left.first() == Some(&3) && left.last() == Some(&0) && left.is_sorted_by(|a, b| a >= b),
            "{left:?}"
        );

        // Only cordoned: new pods still go elsewhere.
        cluster.push(&[node_file(&node, "", "unschedulable: true"), shop.scale(8)], "Cordon again, scale")?;
        let counts = shop.serves(cluster)?;
        ensure!(!per_node(&counts).contains_key(node.as_str()), "{counts:?}");
        // A commit's removals come after its other changes, so its new pods may be placed before them.
        cluster.push(&[Change::remove(node_path(&node))], "Open it again")?;
        eventually("the node is open", secs(20), || {
            let nodes = cluster.cli(&["get", "nodes"])?.ok()?;
            ensure!(!nodes.contains("SchedulingDisabled"), "{nodes}");
            Ok(())
        })?;
        cluster.push(&[shop.scale(10)], "Scale")?;
        let counts = shop.serves(cluster)?;
        ensure!(per_node(&counts).get(node.as_str()) == Some(&2), "{counts:?}");
        answered()?;
        for client in &mut clients {
            println!("drains: {} requests, none failed", client.end()?);
        }
        Ok(())
    })
}
