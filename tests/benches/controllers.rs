//! The plans of the controllers as functions: the scheduler on unbound pods, and every controller on 30,000 pods
//! with nothing to do, which is the cost of a change of any key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::{Change, Cluster, ClusterOptions, Result, ensure, eventually, secs};
use jiff::Timestamp;
use reconciler::controllers::autoscaler::Autoscaler;
use reconciler::controllers::nodes::Nodes;
use reconciler::controllers::scheduler::Scheduler;
use reconciler::controllers::services::Services;
use reconciler::controllers::workloads::Workloads;
use reconciler::controllers::{Controller, LastKnown, Observed, Settings};
use schema::keys::{Key, prefix};
use schema::kinds::Kind;
use schema::kinds::cluster::{ClusterSpec, SchedulerStrategy, cluster_reference};
use schema::meta::{NamespacedName, ObjectRef};
use schema::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::Scale;
use crate::figures::{Row, Series, Table, ms};
use crate::pods::sync;

pub(crate) const AT: &str = "2026-01-01T00:00:00Z";
/// Nodes, and workloads of 100 pods each with a Service and an autoscaler, with nothing left to do.
const NODES: usize = 1_000;
const WORKLOADS: usize = 300;
/// Nodes, and pods that are bound through etcd.
const THROUGH_ETCD: (usize, usize) = (100, 2_000);
/// Plans per controller.
const PLANS: usize = 20;

pub(crate) fn measure(_: Scale, table: &mut Table) -> Result<()> {
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
        let ours = format!("{per_second:.0} pods/s");
        table.add(Row { what, ours, budget: "≥ 20,000 pods/s", ..Row::default() });
    }
    through_etcd(table)?;
    nothing_to_do(table)
}

/// Binds the pods of one push, with every write through etcd: nodes are records alone.
fn through_etcd(table: &mut Table) -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions { poll: "1h", ..ClusterOptions::default() })?;
    cluster.start_etcd()?;
    let nodes = nodes_of(THROUGH_ETCD.0);
    for (name, node) in &nodes.nodes {
        let put = |key: Key, value: String| cluster.etcd.etcdctl(&["put", &key.to_string(), &value]);
        put(Key::Node(name.clone()), serde_json::to_string(&node.value)?)?;
        put(Key::Heartbeat(name.clone()), json!({"since": AT}).to_string())?;
    }
    cluster.reconcilers[0].start()?;
    cluster.wait_reconciler(0)?;
    eventually("every node has its range", secs(60), || {
        let ranges = cluster.etcd.list(prefix::SUBNETS)?.len();
        ensure!(ranges == THROUGH_ETCD.0, "{ranges} ranges");
        Ok(())
    })?;
    let text = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"},
        "spec": {"replicas": THROUGH_ETCD.1, "selector": {"matchLabels": {"app": "many"}},
            "template": {"metadata": {"labels": {"app": "many"}}, "spec": spec()}},
    });
    cluster.repo.push(&[Change::write("many.yaml", text.to_string())], "Many")?;
    let start = Instant::now();
    sync(&cluster)?;
    eventually("every pod has a node", secs(120), || {
        let bound = cluster.etcd.list(prefix::BINDINGS)?.len();
        ensure!(bound >= THROUGH_ETCD.1, "{bound} pods have a node");
        Ok(())
    })?;
    let per_second = THROUGH_ETCD.1 as f64 / start.elapsed().as_secs_f64();
    let what = format!(
        "push with sync → {} pods made and bound on {} nodes, through etcd",
        THROUGH_ETCD.1, THROUGH_ETCD.0
    );
    table.add(Row { what: &what, ours: format!("{per_second:.0} pods/s"), ..Row::default() });
    Ok(())
}

fn nothing_to_do(table: &mut Table) -> Result<()> {
    let (snapshot, now) = steady()?;
    let seen = observed(snapshot);
    of::<Workloads>(&seen, now, table)?;
    of::<Scheduler>(&seen, now, table)?;
    of::<Services>(&seen, now, table)?;
    of::<Nodes>(&seen, now, table)?;
    of::<Autoscaler>(&seen, now, table)?;
    let start = Instant::now();
    let last = LastKnown::from_snapshot(&seen.snapshot, now).map(|last| last.to_disk());
    let text = serde_json::to_vec(&last)?;
    let ours = format!("{}, {} MB", ms(start.elapsed()), text.len() / 1_000_000);
    table.add(Row { what: "what is kept for a loss of etcd, as text", ours, ..Row::default() });
    Ok(())
}

fn of<C: Controller>(seen: &Observed, now: Timestamp, table: &mut Table) -> Result<()> {
    let mut series = Series::default();
    for _ in 0..PLANS {
        let start = Instant::now();
        let plan = C::plan(seen, now);
        series.add(start.elapsed());
        ensure!(plan.writes.is_empty(), "{} has something to do: {plan}", C::NAME);
    }
    let what = format!("plan of {}, {} pods on {NODES} nodes, nothing to do", C::NAME, WORKLOADS * 100);
    let ours = format!("p50 {}, p95 {}", ms(series.percentile(50)), ms(series.percentile(95)));
    table.add(Row { what: &what, ours, budget: "≤ 100 ms", ..Row::default() });
    Ok(())
}

/// Applies the controllers' own plans until nothing is left to do; every bound pod runs.
fn steady() -> Result<(Snapshot, Timestamp)> {
    let mut snapshot = nodes_of(NODES);
    for number in 0..WORKLOADS {
        let name = format!("web-{number:03}");
        let labels = json!({"app": name});
        let template = json!({"metadata": {"labels": labels}, "spec": spec()});
        let set = json!({"replicas": 100, "selector": {"matchLabels": labels}, "template": template,
            "progressDeadlineSeconds": 120});
        let service = json!({"selector": labels, "ports": [{"port": 80, "targetPort": 80}]});
        let scaler = json!({
            "scaleTargetRef": {"kind": "ReplicaSet", "name": name}, "minReplicas": 100, "maxReplicas": 100,
            "metrics": [{"type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
        });
        for (kind, spec) in
            [(Kind::ReplicaSet, set), (Kind::Service, service), (Kind::HorizontalPodAutoscaler, scaler)]
        {
            put_object(&mut snapshot, kind, &name, &spec);
        }
    }
    let mut now: Timestamp = AT.parse()?;
    let begun = Instant::now();
    loop {
        let seen = observed(snapshot.clone());
        let mut wrote = false;
        for plan in [Workloads::plan, Scheduler::plan, Services::plan, Nodes::plan, Autoscaler::plan] {
            let seen = Observed { snapshot: Arc::new(snapshot.clone()), ..seen.clone() };
            let plan = plan(&seen, now);
            plan.writes.iter().for_each(|write| write.apply_to(&mut snapshot));
            wrote |= !plan.writes.is_empty();
        }
        if !wrote {
            ensure!(snapshot.bindings.len() == WORKLOADS * 100, "{} pods", snapshot.bindings.len());
            return Ok((snapshot, now));
        }
        ensure!(begun.elapsed() < Duration::from_secs(300), "there is always something to do");
        now += jiff::SignedDuration::from_secs(2);
        report(&mut snapshot, now);
    }
}

/// Reports every bound pod as running, with an address and half of its requested resources in use.
fn report(snapshot: &mut Snapshot, now: Timestamp) {
    let (mut usage, revision) =
        (std::collections::BTreeMap::<String, serde_json::Map<_, _>>::new(), snapshot.revision);
    let bound: Vec<(String, NamespacedName, String)> = snapshot
        .bindings
        .iter()
        .map(|((node, pod), binding)| (node.clone(), pod.clone(), binding.value.pod.uid.clone()))
        .collect();
    for (node, pod, uid) in bound {
        let used = json!({"uid": uid, "containers": {"main": {"cpu": 250, "memory": 268_435_456}}});
        let on_node = usage.entry(node.clone()).or_default();
        on_node.insert(pod.to_string(), used);
        let last = on_node.len() + 1;
        if snapshot.pod_status.contains_key(&(node.clone(), pod.clone())) {
            continue;
        }
        let range = snapshot.subnets[&node].value.cidr.network().octets();
        let key = Key::PodStatus(node, pod);
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": AT});
        let ip = format!("{}.{}.{}.{last}", range[0], range[1], range[2]);
        let status = json!({"uid": uid, "phase": "Running", "conditions": [ready], "startTime": AT, "podIP": ip, "hash": ""});
        snapshot.put(&key, &status, revision);
    }
    for (node, pods) in usage {
        let usage = json!({"at": now.to_string(), "windowSeconds": 15, "cpu": 0, "memory": 0, "pods": pods});
        snapshot.put(&Key::Usage(node), &usage, revision);
    }
}

pub(crate) fn spec() -> Value {
    let requests = json!({"requests": {"cpu": "500m", "memory": "512Mi"}});
    json!({"containers": [{"name": "main", "image": "busybox:1", "resources": requests}]})
}

pub(crate) fn put_object(snapshot: &mut Snapshot, kind: Kind, name: &str, spec: &Value) {
    let object = json!({
        "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}, "kind": kind, "spec": spec,
        "hash": format!("{kind}{name}"), "generation": 1,
        "provenance": {"source": "main", "commit": "0", "author": "", "file": "all.yaml", "line": 1},
    });
    let id = ObjectRef { kind, namespace: "default".to_owned(), name: name.to_owned() };
    snapshot.put(&Key::Object(id), &object, 1);
}

/// Empty nodes.
pub(crate) fn nodes_of(nodes: usize) -> Snapshot {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    for number in 0..nodes {
        let name = format!("node-{number:04}");
        let node = json!({
            "name": name, "addresses": ["192.0.2.1"], "cpu": "64", "memory": "256Gi", "maxPods": 110,
            "versions": {"agent": "", "docker": "", "kernel": "", "os": "", "arch": ""},
            "api": "https://192.0.2.1:7071", "registeredAt": AT,
        });
        let cidr = format!("10.{}.{}.0/24", number / 256, number % 256);
        let subnet = json!({"cidr": cidr, "clusterCidr": "10.0.0.0/8"});
        snapshot.put(&Key::Node(name.clone()), &node, 1);
        snapshot.put(&Key::Subnet(name.clone()), &subnet, 1);
        snapshot.put(&Key::Settled(name.clone()), &json!({"commits": {}}), 1);
        snapshot.put(&Key::Heartbeat(name), &json!({"since": AT}), 1);
    }
    snapshot
}

/// Empty nodes, and unbound pods of ReplicaSets of 100.
fn unscheduled(nodes: usize, pods: usize, strategy: SchedulerStrategy) -> Observed {
    let mut snapshot = nodes_of(nodes);
    for number in 0..pods {
        let (set, name) =
            (format!("web-{:03}", number / 100), format!("web-{:03}-0badcafe-{number}", number / 100));
        let pod = json!({
            "namespace": "default", "name": name, "uid": format!("{number:032x}"), "hash": set,
            "owner": {"kind": "ReplicaSet", "name": set}, "commit": "0", "spec": spec(),
        });
        snapshot.put(&Key::Pod(NamespacedName::new("default", name)), &pod, 1);
    }
    let spec = ClusterSpec { scheduler_strategy: strategy, ..ClusterSpec::default() };
    let cluster = json!({
        "apiVersion": "minik8s.io/v1", "metadata": {"name": "cluster"}, "kind": "Cluster", "spec": spec,
        "hash": "0", "generation": 1,
        "provenance": {"source": "main", "commit": "0", "author": "", "file": "cluster.yaml", "line": 1},
    });
    snapshot.put(&Key::Object(cluster_reference()), &cluster, 1);
    observed(snapshot)
}

fn observed(snapshot: Snapshot) -> Observed {
    assert!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed.iter().next());
    let settings = Settings {
        cluster_cidr: ipnet::Ipv4Net::new_assert([10, 0, 0, 0].into(), 8),
        service_cidr: schema::records::default_service_cidr(),
        sources: ["main".to_owned()].into(),
        first_source: "main".to_owned(),
    };
    let last_known = Arc::default();
    Observed {
        snapshot: Arc::new(snapshot),
        last_known,
        term_began: Timestamp::UNIX_EPOCH,
        outdated_usage: Default::default(),
        demand_read_at: Default::default(),
        settings,
    }
}
