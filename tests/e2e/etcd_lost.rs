//! An etcd that is lost and comes back empty stops no pod: it is filled from Git again, and the
//! agent adopts running pods, even if its own disk is lost as well. A slow return of etcd is waited
//! for, also by a reconciler started meanwhile.
//!
//! Fails without the agent's wait for a settled etcd (`Desired::is_settled`): every pod is stopped immediately.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, IMAGE, Node, Result, Where, ensure, eventually, secs};
use schema::keys::{Key, prefix};
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::records::Rollout;

use crate::workloads::cluster_file;

#[test]
fn an_empty_etcd_is_filled_from_git_and_no_container_notices() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let files = [
            Change::write("shop.yaml", web("shop").with_sidecar().to_string()),
            Change::write("blog.yaml", web("blog").to_string()),
        ];
        cluster.push(&files, "Two pods")?;
        cluster.running("shop", &["files", "web"])?;
        cluster.serving("blog", "hello from blog")?;
        let before = cluster.lives()?;

        for agent_disk_too in [false, true] {
            if agent_disk_too {
                cluster.node_mut().agent.kill()?;
                std::fs::remove_dir_all(cluster.node().state_dir().join("agent/desired"))?;
            }
            cluster.lose_etcd()?;
            if agent_disk_too {
                cluster.start_agent()?;
            }
            // The agent follows the empty etcd: it has registered there.
            let node = Key::Node(cluster.node().name.clone());
            eventually("the agent registers anew", secs(60), || {
                ensure!(cluster.etcd.key(&node)?.is_some(), "no {node}");
                Ok(())
            })?;
            ensure!(cluster.lives()? == before, "with no reconciler to fill etcd: {:?}", cluster.lives()?);
            cluster.reconcilers[0].start()?;
            cluster.wait_reconciler(0)?;
            cluster.settled()?;
            ensure!(cluster.lives()? == before, "after etcd was filled: {:?}", cluster.lives()?);
        }

        // From now on a missing object is a removal again.
        cluster.push(&[Change::remove("blog.yaml")], "Drop blog")?;
        cluster.gone("blog")?;
        Ok(())
    })
}

const SHOP: &str = "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: shop}\nspec:\n  replicas: 4\n  \
                    progressDeadlineSeconds: 12\n  selector: {matchLabels: {app: shop}}\n  template:\n    \
                    metadata: {labels: {app: shop}}\n    spec:\n      containers:\n      - name: web\n        \
                    image: IMAGE\n        command: [sleep, infinity]\n";

fn shop(image: &str) -> Change {
    Change::write("shop.yaml", SHOP.replace("IMAGE", image))
}

/// A failed template stays failed, the last good one keeps running from the disk of the reconciler, and the pods of a
/// node that registers late are waited for. Seen red with a `LastKnown` that is always empty.
#[test]
fn a_failed_template_stays_failed_and_pods_of_a_late_node_start_nowhere_else() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        // A node that registers late is waited for as long as a silent node.
        let patience = cluster_file("nodes: {evictAfterSeconds: 120}");
        cluster.push(&[patience, shop(IMAGE)], "Open")?;
        let workload =
            ObjectRef { kind: Kind::ReplicaSet, namespace: "default".to_owned(), name: "shop".to_owned() };
        let rollout = |cluster: &Cluster| cluster.etcd.value::<Rollout>(Key::Rollout(workload.clone()));
        eventually("the first template runs", secs(60), || {
            ensure!(rollout(cluster)?.complete, "not yet");
            Ok(())
        })?;
        cluster.push(&[shop("127.0.0.1:9/absent:1")], "Break")?;
        eventually("the second one fails and is gone", secs(60), || {
            let rollout = rollout(cluster)?;
            ensure!(rollout.failure.is_some() && rollout.status.available_replicas == 4, "{rollout:?}");
            // Each with its pause container.
            ensure!(cluster.lives()?.len() == 8, "{:?}", cluster.lives()?);
            Ok(())
        })?;
        let before = cluster.lives()?;
        let failed = rollout(cluster)?.failure;
        eventually("the reconciler's disk has its pods", secs(10), || {
            let kept = std::fs::read_to_string(cluster.dir("state-r0/reconciler/last-known.json"))?;
            for pod in cluster.etcd.list(prefix::PODS)? {
                let name = pod.key.trim_start_matches(prefix::PODS);
                ensure!(kept.contains(&format!("\"{name}\"")), "{name} is not in {kept}");
            }
            Ok(())
        })?;

        cluster.nodes[2].agent.kill()?;
        cluster.lose_etcd()?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        let bound = |node: &Node| cluster.etcd.list(&prefix::bindings_of(&node.name));
        eventually("the other nodes have their pods", secs(60), || {
            let bound = [bound(&cluster.nodes[0])?.len(), bound(&cluster.nodes[1])?.len()];
            ensure!(bound.iter().all(|pods| *pods > 0), "{bound:?}");
            Ok(())
        })?;
        let etcd = cluster.etcd_for_nodes();
        cluster.nodes[2].start_agent(&etcd)?;
        cluster.settled()?;
        ensure!(cluster.lives()? == before, "{before:?} became {:?}", cluster.lives()?);
        let after = rollout(cluster)?;
        ensure!(after.failure == failed, "{after:?}");
        let templates = cluster.etcd.list(prefix::TEMPLATES)?;
        ensure!(templates.len() == 2, "{templates:?}");

        // The workload is not stuck: the next good commit rolls out.
        cluster.push(&[shop(IMAGE), Change::write("blog.yaml", web("blog").to_string())], "Mend")?;
        cluster.running("blog", &["web"])?;
        eventually("the workload is well", secs(60), || {
            ensure!(rollout(cluster)?.complete, "{:?}", rollout(cluster)?);
            Ok(())
        })
    })
}

// Seen red with an `open_store` of `reconciler/src/daemon/mod.rs` that never lets a reconciler start without etcd.
#[test]
fn a_reconciler_that_is_back_before_etcd_waits_for_it() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        cluster.serving("shop", "hello from shop")?;
        cluster.reconcilers[0].kill()?;
        cluster.etcd.daemon.kill()?;
        cluster.reconcilers[0].start()?;
        // Longer than a first start waits, as its log says.
        eventually("it goes on without etcd", secs(30), || {
            ensure!(cluster.reconcilers[0].is_running(), "it ended");
            let log = cluster.reconcilers[0].log_tail();
            ensure!(log.contains("continues as soon as it answers"), "{log}");
            Ok(())
        })?;
        cluster.etcd.start()?;
        cluster.wait_reconciler(0)?;
        cluster.push(&[Change::write("blog.yaml", web("blog").to_string())], "And more")?;
        cluster.serving("blog", "hello from blog").map(|_| ())
    })
}
