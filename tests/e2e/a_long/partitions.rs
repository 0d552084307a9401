//! Nodes are cut off from etcd and from each other, and return: a single node for 5 and 15 s, in a soak
//! (`MINIK8S_ROUNDS` of 100 or more) also for 30 and 120 s; two of three nodes; the node of the leading reconciler.
//! Running pods are adopted without a single restart, and soon after the return no workload exceeds its number of
//! pods.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, Daemon, EtcdKey, PodView, Result, Timeline, Where, ensure,
    eventually, holds, rounds, secs,
};
use schema::condition::ConditionStatus;
use schema::keys::Key;
use schema::records::NodeConditions;

use crate::workloads::{Runs, Workload, cluster_file, started_once};

/// The node that is cut off alone.
const AWAY: usize = 3;
/// Short, to keep the stories short.
const EVICT_AFTER: u64 = 5;
/// For two nodes at once, whose leases may end some seconds apart.
const EVICT_BOTH: u64 = 10;
/// For nodes that are away for less than [`EVICTED_FROM`].
const EVICT_LATE: u64 = 30;
/// Cuts of at least this many seconds end after the heartbeat's lease and [`EVICT_AFTER`].
const EVICTED_FROM: u64 = 30;
/// Lease of a heartbeat in seconds (design, section 10).
const LEASE: u64 = 15;
/// Time after the return within which everything must be right.
const RIGHT_WITHIN: Duration = Duration::from_secs(10);
const REPLICAS: usize = 6;

fn cuts() -> &'static [u64] {
    if rounds(1, 100) >= 100 { &[5, 15, 30, 120] } else { &[5, 15] }
}

fn evict_after(seconds: u64) -> Change {
    cluster_file(&format!("nodes: {{evictAfterSeconds: {seconds}}}"))
}

/// Opens a workload on three nodes, and a pod pinned to the third.
fn open(cluster: &Cluster, shop: &Workload, evict_after_seconds: u64) -> Result<(Vec<Runs>, PodView)> {
    let away = &cluster.numbered(AWAY)?.name;
    let files = [
        evict_after(evict_after_seconds),
        shop.service(),
        shop.file(),
        Change::write("stays.yaml", web("stays").on(away).to_string()),
    ];
    cluster.push(&files, "Open")?;
    Ok((shop.serves(cluster)?, cluster.running("stays", &["web"])?))
}

/// Waits within the bound until all pods are present, and checks that they stay the same.
fn is_right(cluster: &Cluster, shop: &Workload) -> Result<Vec<Runs>> {
    let right = eventually("all is right after the return", RIGHT_WITHIN, || {
        let running = shop.running(cluster)?;
        ensure!(running.len() == shop.replicas, "{running:?}");
        Ok(running)
    })?;
    holds("all stays right", secs(3), || {
        let running = shop.running(cluster)?;
        ensure!(running == right, "{running:?}, not {right:?}");
        Ok(())
    })?;
    Ok(right)
}

fn is_silent(cluster: &Cluster, node: &str) -> Result<NodeConditions> {
    let state: NodeConditions = cluster.etcd.value(Key::NodeConditions(node.to_owned()))?;
    ensure!(state.ready == ConditionStatus::Unknown, "{node}: {state:?}");
    Ok(state)
}

// Seen red with an `OwnedPod::of` that treats the pods of a silent node as lost.
#[test]
fn a_node_that_was_cut_off_is_adopted_without_a_restart_and_nothing_is_there_twice() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let mut shop = Workload::new("shop", REPLICAS);
        let (mut before, stays) = open(cluster, &shop, EVICT_AFTER)?;
        let away = cluster.numbered(AWAY)?;
        let mut patience = EVICT_AFTER;
        for cut in cuts() {
            let is_evicted = *cut >= EVICTED_FROM;
            let wanted = if is_evicted { EVICT_AFTER } else { EVICT_LATE };
            if wanted != patience {
                cluster.push(&[evict_after(wanted)], "More or less patience")?;
                patience = wanted;
            }
            away.cut_off()?;
            holds("what runs goes on", secs(*cut), || {
                let running = shop.running(cluster)?;
                let lost: Vec<_> = before.iter().filter(|runs| !running.contains(runs)).collect();
                ensure!(lost.is_empty(), "{lost:?} are gone");
                ensure!(is_evicted || running == before, "{running:?}, not {before:?}");
                Ok(())
            })?;
            let during = shop.running(cluster)?;
            let elsewhere = during.iter().filter(|runs| runs.node != away.name).count();
            ensure!(!is_evicted || elsewhere == REPLICAS, "{during:?}");
            away.reconnect()?;
            let after = is_right(cluster, &shop)?;
            let new: Vec<_> = after.iter().filter(|runs| !during.contains(runs)).collect();
            ensure!(new.is_empty(), "{new:?} were started after the return");
            ensure!(
                cluster.pod("stays")?.lives() == stays.lives(),
                "the pod that names the node was started again"
            );
            shop.serves(cluster)?;
            println!("cut off for {cut} s: {} pods had been replaced", during.len() - before.len());
            before = after;
            if is_evicted {
                // Nothing moves back by itself: only new pods use all nodes again.
                cluster.push(&[shop.roll()], "Roll")?;
                before = shop.serves(cluster)?;
            }
        }
        started_once(&shop.moments(&timeline.moments()?))?;
        Ok(())
    })
}

// Seen red with `MOST_AWAY_PERCENT` above 100, and, on a busy machine, with a guard that ended with the return of the
// first node: the pods of the second, which returned a second later, were replaced.
#[test]
fn nothing_is_evicted_while_two_of_three_nodes_are_silent() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let shop = Workload::new("shop", REPLICAS);
        let (before, stays) = open(cluster, &shop, EVICT_BOTH)?;
        let since = cluster.etcd.revision()?;
        let cut = [cluster.numbered(2)?, cluster.numbered(AWAY)?];
        cut.iter().try_for_each(|node| node.cut_off())?;
        eventually("both nodes are silent", secs(60), || {
            cut.iter().try_for_each(|node| is_silent(cluster, &node.name).map(drop))
        })?;
        holds("nothing is evicted", secs(EVICT_BOTH + 5), || {
            let running = shop.running(cluster)?;
            ensure!(running == before, "{running:?}, not {before:?}");
            for node in cut {
                let state = is_silent(cluster, &node.name)?;
                ensure!(state.evicted_at.is_none(), "{}: {state:?}", node.name);
            }
            Ok(())
        })?;
        let status = cluster.cli(&["describe", &format!("node/{}", cut[0].name)])?.ok()?;
        ensure!(status.contains("NotReady") && !status.contains("Evicted"), "{status}");
        cut.iter().try_for_each(|node| node.reconnect())?;
        let after = is_right(cluster, &shop)?;
        ensure!(after == before, "{after:?}, not {before:?}");
        shop.serves(cluster)?;
        ensure!(
            cluster.pod("stays")?.lives() == stays.lives(),
            "the pod that names its node was started again"
        );
        ensure!(shop.most_records(cluster, since)? == REPLICAS, "there were more records");
        ensure!(started_once(&shop.moments(&timeline.moments()?))? == REPLICAS, "there were more pods");

        // A single node is still evicted once its time is over.
        cut[0].cut_off()?;
        eventually("its pods run elsewhere", secs(LEASE + EVICT_BOTH + 30), || {
            let running = shop.running(cluster)?;
            let elsewhere = running.iter().filter(|runs| runs.node != cut[0].name).count();
            ensure!(elsewhere == REPLICAS, "{running:?}");
            Ok(())
        })?;
        cut[0].reconnect()?;
        is_right(cluster, &shop)?;
        Ok(())
    })
}

/// Checks that the reconciler of that name leads.
fn leads(cluster: &Cluster, name: &str) -> Result<EtcdKey> {
    eventually(&format!("{name} leads"), secs(45), || {
        let leader = cluster.etcd.key(Key::Leader)?.context("none leads")?;
        ensure!(leader.value.contains(&format!("\"{name}\"")), "{}", leader.value);
        Ok(leader)
    })
}

// Seen red with an `OwnedPod::of` that treats the pods of a silent node as lost.
#[test]
fn the_node_of_the_leader_is_cut_off_and_another_goes_on_without_a_double() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let mut shop = Workload::new("shop", REPLICAS);
        let (before, stays) = open(cluster, &shop, EVICT_AFTER)?;
        // The harness's leader is on no node: a reconciler on a node replaces it.
        let mut command: Vec<String> =
            ["nsenter", &format!("--net={}", cluster.numbered(AWAY)?.namespace()?)].map(str::to_owned).into();
        cluster.admit_reconciler(1)?;
        let (near, far) = (cluster.etcd.endpoint().to_owned(), cluster.etcd_for_nodes());
        command.extend(cluster.serve_command(1).into_iter().map(|word| match word {
            word if word == near => far.clone(),
            // The others' address is not in this namespace.
            word if word == cluster.listen(1) => format!("127.0.0.1:{}", cluster.slot().port(1)),
            word => word,
        }));
        let mut on_node = Daemon::new("serve-on-node", cluster.slot().dir(), command);
        on_node.start()?;
        let leader = leads(cluster, "r0")?;
        cluster.reconcilers[0].kill()?;
        cluster.etcd.end_lease_of(&leader)?;
        leads(cluster, "r1")?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;

        let away = cluster.numbered(AWAY)?.name.clone();
        let since = cluster.etcd.revision()?;
        cluster.numbered(AWAY)?.cut_off()?;
        leads(cluster, "r0")?;
        // A new term waits for a lease before it evicts a node, so this node is adopted below.
        cluster.push(&[shop.scale(REPLICAS + 2)], "Scale while it is away")?;
        let during = eventually("two more pods run", secs(45), || {
            let running = shop.running(cluster)?;
            ensure!(running.len() == shop.replicas, "{running:?}");
            Ok(running)
        })?;
        ensure!(during.iter().all(|runs| before.contains(runs) || runs.node != away), "{during:?}");
        let kept = before.iter().filter(|runs| during.contains(runs)).count();
        ensure!(kept == REPLICAS, "{before:?}, then {during:?}");
        cluster.numbered(AWAY)?.reconnect()?;
        let after = is_right(cluster, &shop)?;
        ensure!(after == during, "{after:?}, not {during:?}");
        shop.serves(cluster)?;
        ensure!(
            cluster.pod("stays")?.lives() == stays.lives(),
            "the pod that names its node was started again"
        );
        leads(cluster, "r0")?;
        ensure!(on_node.is_running(), "the former leader ended: {}", on_node.log_tail());
        ensure!(shop.most_records(cluster, since)? == shop.replicas, "there were more records");
        let moments = timeline.moments()?;
        ensure!(started_once(&shop.moments(&moments))? == shop.replicas, "there were more pods");
        let bound: BTreeSet<String> =
            cluster.etcd.list("/minik8s/bindings/")?.into_iter().map(|k| k.key).collect();
        let of_shop = bound
            .iter()
            .filter(|key| matches!(key.parse(), Ok(Key::Binding(_, pod)) if shop.owns(&pod.name)));
        ensure!(of_shop.count() == shop.replicas, "{bound:?}");
        Ok(())
    })
}
