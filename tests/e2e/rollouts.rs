//! A replica set on three nodes behind a service: clients notice no rolling update, scaling or commit with
//! a broken template, and pods removed by people and crashes are replaced.
//!
//! `MINIK8S_ROUNDS` sets the rounds (2 updates and 4 scalings by default; 5 and 20 in a soak).

use harness::{
    Change, Clients, Cluster, ClusterOptions, Context, IMAGE, Result, Where, ensure, eventually, rounds, secs,
};
use schema::keys::{Key, prefix};
use schema::records::{PodInstance, Rollout, RolloutFailure, SourceStatus};

use crate::workloads::{Runs, SERVES, Workload, clients, per_node};

/// Answers between two changes, so that requests coincide with each change.
const ANSWERS: u64 = 20;
/// A connection that was accepted just before SIGTERM would end with the server.
const PRE_STOP: &str = "        lifecycle: {preStop: {exec: {command: [sleep, \"1\"]}}}\n";

fn shop(replicas: usize) -> Workload {
    let more = "  progressDeadlineSeconds: 12\n".to_owned();
    Workload { more, container: PRE_STOP, ..Workload::new("shop", replicas) }
}

/// The same workload with a broken template. `self` still describes what is served.
fn broken(shop: &Workload, image: &'static str, command: &'static str) -> Change {
    Workload { image, command, version: 90, ..shop.clone() }.file()
}

/// Reason why the newest rollout failed; `former` is that of the one before, which remains until the new one starts.
fn failure(
    cluster: &Cluster,
    shop: &Workload,
    what: &str,
    former: Option<&RolloutFailure>,
) -> Result<RolloutFailure> {
    eventually(&format!("{what} fails"), secs(90), || {
        let failure = shop.rollout(cluster)?.failure.context("it has not failed")?;
        ensure!(former.is_none_or(|former| former.at != failure.at), "its rollout has not begun");
        Ok(failure)
    })
}

#[test]
fn nobody_notices_rollouts_scalings_and_commits_that_do_not_work() -> Result<()> {
    let (updates, scalings) = (rounds(2, 5), rounds(4, 20));
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let mut shop = shop(4);
        cluster.push(&[shop.service(), shop.file()], "Open")?;
        let running = shop.serves(cluster)?;
        ensure!(per_node(&running).len() == 3, "{running:?}");
        let address = shop.address(cluster)?;
        let mut clients = clients(cluster, &[&address])?;
        let answered = |clients: &[Clients]| clients.iter().try_for_each(|client| client.answered(ANSWERS));

        for _ in 0..updates {
            cluster.push(&[shop.roll()], "Roll")?;
            shop.serves(cluster)?;
            answered(&clients)?;
        }
        for round in 0..scalings {
            cluster.push(&[shop.scale([7, 2, 5, 4][round % 4])], "Scale")?;
            shop.serves(cluster)?;
            answered(&clients)?;
        }
        let mut former = None;
        for (what, image, command, reason) in [
            ("an image that does not exist", "127.0.0.1:9/absent:1", SERVES, "Image"),
            ("one that ends", IMAGE, "echo no config >&2; exit 3", "CrashLoopBackOff"),
            ("one that is never ready", IMAGE, "sleep 1000", "NotReady"),
        ] {
            let commit = cluster.push(&[broken(&shop, image, command)], what)?;
            let failure = failure(cluster, &shop, what, former.as_ref())?;
            println!("{what}: {}: {}", failure.reason, failure.message);
            ensure!(failure.reason.contains(reason), "{failure:?}");
            shop.serves(cluster)?;
            answered(&clients)?;
            let waited =
                cluster.cli(&["wait", "--for", "healthy", "--commit", &commit, "--timeout", "60s"])?;
            ensure!(waited.code != 0, "{waited:?}");
            former = Some(failure);
        }
        shop.version = 99;
        cluster.push(&[shop.file()], "Mend")?;
        shop.serves(cluster)?;
        for client in &mut clients {
            println!("rollouts: {} requests, none failed", client.end()?);
        }
        Ok(())
    })
}

#[test]
fn what_is_taken_away_during_a_rollout_comes_back_and_nothing_runs_twice() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let mut shop = shop(6);
        cluster.push(&[shop.service(), shop.file()], "Open")?;
        shop.serves(cluster)?;
        cluster.push(&[shop.roll()], "Roll")?;
        for node in &cluster.nodes {
            let all = node.docker.containers(&cluster.slot().instance())?;
            for container in all.iter().step_by(3) {
                // It may be gone by itself by now.
                let _ = node.docker.run(&["rm", "-f", &container.id]);
            }
        }
        for pod in cluster.etcd.list(prefix::PODS)?.iter().step_by(3) {
            cluster.etcd.etcdctl(&["del", &pod.key])?;
        }
        shop.serves(cluster)?;
        // Pods are named after their template, each once.
        let hash = Rollout::short(&shop.rollout(cluster)?.wanted).to_owned();
        for Runs { pod, .. } in shop.running(cluster)? {
            ensure!(PodInstance::workload_in_name(&pod) == Some("shop") && pod.contains(&hash), "{pod}");
        }
        // A commit elsewhere during the rollout of a bad template neither ends nor excuses it.
        cluster.push(&[broken(&shop, "127.0.0.1:9/absent:1", SERVES)], "Break")?;
        let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: b}\n";
        cluster.push(&[Change::write("other.yaml", other)], "Elsewhere")?;
        failure(cluster, &shop, "the template", None)?;
        shop.serves(cluster)?;
        let source: SourceStatus = cluster.etcd.value(Key::Source("main".to_owned()))?;
        ensure!(source.error.is_none(), "{source:?}");
        // Its removal removes everything that it owns.
        cluster.push(&[Change::remove("shop.yaml")], "Close")?;
        eventually("all pods are gone", secs(60), || {
            let running = shop.running(cluster)?;
            ensure!(running.is_empty(), "{running:?}");
            for prefix in [prefix::PODS, prefix::ROLLOUTS, prefix::TEMPLATES] {
                let left = cluster.etcd.list(prefix)?;
                ensure!(left.is_empty(), "{left:?}");
            }
            Ok(())
        })
    })
}
