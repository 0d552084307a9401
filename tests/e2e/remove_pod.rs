//! Removing a file removes its pod without a trace, and no other pod.
//!
//! Fails when the plan of the pods loop skips pods that are not desired, and when the termination keeps the phase.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, ensure, eventually, secs};
use schema::keys::{Key, prefix};
use schema::kinds::pod::{ContainerState, ContainerStatus, PodPhase, PodStatus};
use schema::meta::NamespacedName;
use schema::records::PodInstance;

#[test]
fn a_removed_file_takes_pod_veth_address_and_status_away() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let port = cluster.slot().port(7);
        let files = [
            Change::write("goes.yaml", web("goes").host_port(port).to_string()),
            Change::write("stays.yaml", web("stays").to_string()),
        ];
        cluster.push(&files, "Two pods")?;
        let stays = cluster.serving("stays", "hello from stays")?;
        let goes = cluster.serving("goes", "hello from goes")?;
        let ip = goes.address()?.to_owned();
        let veths = |cluster: &Cluster| -> Result<Vec<String>> {
            let prefix = format!("{}v", cluster.slot().instance());
            Ok(cluster.node().net.links()?.into_iter().filter(|l| l.starts_with(&prefix)).collect())
        };
        ensure!(veths(cluster)?.len() == 2, "{:?}", veths(cluster)?);

        let before = cluster.etcd.revision()?;
        cluster.push(&[Change::remove("goes.yaml")], "Close")?;
        cluster.gone("goes")?;
        eventually("veth and rules of the pod are gone", secs(20), || {
            ensure!(veths(cluster)?.len() == 1, "{:?}", veths(cluster)?);
            let rules = cluster.node().net.rules()?;
            let left: Vec<_> = rules.iter().filter(|rule| rule.contains(&ip)).collect();
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })?;
        eventually("etcd holds nothing of it", secs(20), || {
            for below in [prefix::OBJECTS, prefix::PODS, prefix::BINDINGS, prefix::STATUS] {
                let left = cluster.etcd.list(below)?;
                ensure!(left.iter().all(|key| !key.key.ends_with("/goes")), "{left:?}");
            }
            Ok(())
        })?;
        // Not Running for ever: its container handled SIGTERM.
        let key = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", "goes"));
        let last: PodStatus = cluster.etcd.last_value(key, before)?;
        ensure!(last.phase == PodPhase::Succeeded && last.is_terminating() && !last.is_ready(), "{last:?}");
        let ended = |one: &ContainerStatus| matches!(&one.state, ContainerState::Terminated(end) if end.exit_code == 0);
        ensure!(last.container_statuses.iter().all(ended), "{last:?}");
        ensure!(cluster.get_from_node(&ip, 8080, "/").is_err(), "{ip} still answers");
        ensure!(cluster.pod("stays")?.lives() == stays.lives());

        // The address is free again: the next pod may get it.
        let pod: PodInstance = cluster.etcd.value(Key::Pod(NamespacedName::new("default", "stays")))?;
        ensure!(pod.name == "stays");
        cluster.push(&[Change::write("goes.yaml", web("goes").to_string())], "Open again")?;
        cluster.serving("goes", "hello from goes").map(|_| ())
    })
}
