//! The plan of a pull request: 1,000 documents read from Git, planned, reviewed and hashed, by the
//! program as CI runs it, so that its start is in the figure, too. And the scheduler's plan, as a function.

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use harness::manifests::sleeper;
use harness::{Change, GitRepo, Result, ensure, minik8s_binary, outcome, secs};
use jiff::Timestamp;
use reconciler::controllers::scheduler::Scheduler;
use reconciler::controllers::{Controller as _, Observed, Settings};
use schema::keys::Key;
use schema::kinds::cluster::{ClusterSpec, SchedulerStrategy, cluster_reference};
use schema::snapshot::Snapshot;
use serde_json::json;

use crate::Scale;
use crate::figures::{Row, Series, Table, ms};

const DOCUMENTS: usize = 1_000;

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("minik8s-plans-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = plans(scale, table, &folder);
    std::fs::remove_dir_all(&folder)?;
    measured?;
    for (what, nodes, strategy) in [
        ("scheduler's plan, 2,000 pods on 100 nodes", 100, SchedulerStrategy::Spread),
        ("scheduler's plan, 20,000 pods on 1,000 nodes", 1_000, SchedulerStrategy::Spread),
        ("the same, strategy random", 1_000, SchedulerStrategy::Random),
        ("scheduler's plan, 30,000 pods on 5,000 nodes", 5_000, SchedulerStrategy::Spread),
    ] {
        let pods = (nodes * 20).min(30_000);
        let seen = unscheduled(nodes, pods, strategy);
        let start = Instant::now();
        let plan = Scheduler::plan(&seen, Timestamp::UNIX_EPOCH);
        let per_second = pods as f64 / start.elapsed().as_secs_f64();
        ensure!(plan.writes.len() == pods, "{} of {pods} pods were placed", plan.writes.len());
        table.add(Row {
            what,
            ours: format!("{per_second:.0} pods/s"),
            budget: "≥ 20,000 pods/s",
            ..Row::default()
        });
    }
    Ok(())
}

/// Nodes that are empty, and pods of ReplicaSets of 100 that have no node.
fn unscheduled(nodes: usize, pods: usize, strategy: SchedulerStrategy) -> Observed {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let at = "2026-01-01T00:00:00Z";
    for number in 0..nodes {
        let name = format!("node-{number:04}");
        let node = json!({
            "name": name, "addresses": ["192.0.2.1"], "cpu": "64", "memory": "256Gi", "maxPods": 110,
            "versions": {"agent": "", "docker": "", "kernel": "", "os": "", "arch": ""},
            "api": "http://192.0.2.1:7071", "registeredAt": at,
        });
        let cidr = format!("10.{}.{}.0/24", number / 256, number % 256);
        let subnet = json!({"cidr": cidr, "clusterCidr": "10.0.0.0/8"});
        snapshot.put(&Key::Node(name.clone()), &node, 1);
        snapshot.put(&Key::Subnet(name.clone()), &subnet, 1);
        snapshot.put(&Key::Heartbeat(name), &json!({"since": at}), 1);
    }
    for number in 0..pods {
        let (set, name) =
            (format!("web-{:03}", number / 100), format!("web-{:03}-0badcafe-{number}", number / 100));
        let requests = json!({"requests": {"cpu": "500m", "memory": "512Mi"}});
        let pod = json!({
            "namespace": "default", "name": name, "uid": format!("{number:032x}"), "hash": set,
            "owner": {"kind": "ReplicaSet", "name": set}, "commit": "0",
            "spec": {"containers": [{"name": "main", "image": "busybox:1", "resources": requests}]},
        });
        snapshot.put(&Key::Pod(schema::meta::NamespacedName::new("default", name)), &pod, 1);
    }
    let spec = ClusterSpec { scheduler_strategy: strategy, ..ClusterSpec::default() };
    let cluster = json!({
        "apiVersion": "minik8s.io/v1", "metadata": {"name": "cluster"}, "kind": "Cluster", "spec": spec,
        "hash": "0", "generation": 1,
        "provenance": {"source": "main", "commit": "0", "author": "", "file": "cluster.yaml", "line": 1},
    });
    snapshot.put(&Key::Object(cluster_reference()), &cluster, 1);
    assert!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed);
    let settings = Settings {
        cluster_cidr: ipnet::Ipv4Net::new_assert([10, 0, 0, 0].into(), 8),
        service_cidr: schema::records::default_service_cidr(),
        sources: ["main".to_owned()].into(),
    };
    let last_known = Arc::default();
    Observed { snapshot: Arc::new(snapshot), last_known, term_began: Timestamp::UNIX_EPOCH, settings }
}

fn plans(scale: Scale, table: &mut Table, folder: &std::path::Path) -> Result<()> {
    let repo = GitRepo::create(folder)?;
    let write = |index, seconds: &str| {
        let text = sleeper(&format!("pod-{index}")).replace("100000", seconds);
        Change::write(format!("apps/pod-{index}.yaml"), text)
    };
    let all = |seconds: &str| (0..DOCUMENTS).map(|index| write(index, seconds)).collect::<Vec<_>>();
    let base = repo.push(&all("100000"), "Many")?;
    let one = repo.push(&[write(7, "200000")], "One")?;
    let every = repo.push(&all("300000"), "All")?;
    for (what, head) in
        [("plan of 1,000 documents, one changed", &one), ("plan of 1,000 documents, all changed", &every)]
    {
        let mut series = Series::default();
        for _ in 0..scale.changes {
            let mut command = Command::new(minik8s_binary());
            command.current_dir(repo.work()).args(["plan", "--base", &base, "--head", head, "-o", "json"]);
            // As on a stock Debian: where the environment names a file of CAs, libgit2 reads it (25 ms).
            command.env("SSL_CERT_FILE", "/dev/null");
            let start = Instant::now();
            let ran = outcome(&mut command, secs(60))?;
            series.add(start.elapsed());
            ensure!(ran.code == 2, "{ran:?}");
        }
        let ours = format!("p50 {}, p95 {}", ms(series.percentile(50)), ms(series.percentile(95)));
        table.add(Row { what, ours, budget: "≤ 100 ms", ..Row::default() });
    }
    Ok(())
}
