//! The records of a cluster of 5,000 nodes and 150,000 pods, as the daemons would have written them.

use harness::{Result, ensure};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::pod::{ContainerState, PodStatus, RunningState};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{NodeConditions, RulesStatus, SourceState};
use schema::snapshot::Snapshot;
use schema::testing::{at, condition, container, revision, running, source_status};
use serde_json::json;

use crate::controllers::{AT, nodes_of, put_object, spec};

pub(crate) const NODES: usize = 5_000;
const NODE_PODS: usize = 30;
/// ReplicaSets, each with a Service: 750 endpoints of one would not fit into a value of etcd.
const SETS: usize = 500;
const SET_PODS: usize = NODES * NODE_PODS / SETS;
/// Pods of each set that are not ready: 1 %.
const NOT_READY: usize = SET_PODS / 100;
/// Applied commits, as many as are kept.
const COMMITS: u64 = 100;

pub(crate) fn snapshot() -> Result<Snapshot> {
    snapshot_of(NODES)
}

/// Like `snapshot`, with this many nodes: a multiple of 10, so that no set is cut.
pub(crate) fn snapshot_of(nodes: usize) -> Result<Snapshot> {
    let mut snapshot = nodes_of(nodes);
    for node in (0..nodes).map(|node| node_name(node * NODE_PODS)) {
        let rules = RulesStatus { revision: 1, programmed_at: Some(at(60)), ..RulesStatus::default() };
        snapshot.put(&Key::Rules(node.clone()), &rules, 1);
        snapshot.put(&Key::NodeConditions(node), &NodeConditions::new(true.into(), at(0)), 1);
    }
    snapshot.put(&Key::Source("main".to_owned()), &source_status(SourceState::Synced), 1);
    for sequence in 1..=COMMITS {
        let applied = revision(sequence, &format!("{sequence:040x}"));
        snapshot.put(&Key::Revision("main".to_owned(), sequence), &applied, 1);
    }
    for set in 0..nodes * NODE_PODS / SET_PODS {
        put_set(&mut snapshot, set);
        put_rollout(&mut snapshot, set, SET_PODS - NOT_READY);
    }
    for pod in 0..nodes * NODE_PODS {
        put_pod(&mut snapshot, pod);
        put_status(&mut snapshot, pod, is_ready(pod));
    }
    ensure!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed.iter().next());
    ensure!(snapshot.pod_status.len() == nodes * NODE_PODS, "{} pods", snapshot.pod_status.len());
    Ok(snapshot)
}

/// Changes one more pod of node `node-0000`, and the rollout of its set `web-000`. `number`: changes so far.
pub(crate) fn change(snapshot: &mut Snapshot, number: usize) {
    let (round, pod) = (number / NODE_PODS, number % NODE_PODS);
    put_status(snapshot, pod, round % 2 == 1);
    put_rollout(snapshot, 0, SET_PODS - NOT_READY - pod);
}

fn put_set(snapshot: &mut Snapshot, set: usize) {
    let name = set_name(set);
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels}, "spec": spec()});
    let wanted = json!({"replicas": SET_PODS, "selector": {"matchLabels": labels}, "template": template});
    put_object(snapshot, Kind::ReplicaSet, &name, &wanted);
    let service = json!({"selector": labels, "ports": [{"port": 80, "targetPort": 80}]});
    put_object(snapshot, Kind::Service, &name, &service);
    let ready = (set * SET_PODS..(set + 1) * SET_PODS).filter(|pod| is_ready(*pod));
    let endpoints: Vec<_> = ready
        .map(|pod| {
            let (address, node, name) = (pod_address(pod), node_name(pod), pod_name(pod).name);
            json!({"address": address, "ports": [80], "node": node, "pod": name})
        })
        .collect();
    let record = json!({
        "hash": format!("{}{name}", Kind::Service), "clusterIP": format!("10.96.{}.{}", set / 250, set % 250 + 1),
        "ports": [{"protocol": "TCP", "port": 80}], "endpoints": endpoints, "leftOutCount": NOT_READY,
    });
    snapshot.put(&Key::Service(NamespacedName::new("default", name)), &record, 1);
}

/// Puts the record of a complete rollout.
fn put_rollout(snapshot: &mut Snapshot, set: usize, available: usize) {
    let name = set_name(set);
    let rollout = json!({
        "objectHash": format!("{}{name}", Kind::ReplicaSet), "commit": "0", "wanted": name, "good": name,
        "complete": true, "startedAt": AT, "progressedAt": AT,
        "best": {"updated": SET_PODS, "available": SET_PODS, "old": 0},
        "status": {"observedGeneration": 1, "desiredReplicas": SET_PODS, "replicas": SET_PODS,
            "updatedReplicas": SET_PODS, "readyReplicas": available, "availableReplicas": available},
    });
    let id = ObjectRef { kind: Kind::ReplicaSet, namespace: "default".to_owned(), name };
    snapshot.put(&Key::Rollout(id), &rollout, 1);
}

fn put_pod(snapshot: &mut Snapshot, pod: usize) {
    let (set, node, id) = (set_name(pod / SET_PODS), node_name(pod), pod_name(pod));
    let instance = json!({
        "namespace": "default", "name": id.name, "uid": format!("{pod:032x}"), "hash": set, "labels": {"app": set},
        "owner": {"kind": "ReplicaSet", "name": set}, "commit": "0", "spec": spec(),
    });
    snapshot.put(&Key::Pod(id.clone()), &instance, 1);
    let binding = json!({"node": node, "pod": instance, "reason": "fewest pods of its set"});
    snapshot.put(&Key::Binding(node, id), &binding, 1);
}

fn put_status(snapshot: &mut Snapshot, pod: usize, is_ready: bool) {
    let mut main = container("main", ContainerState::Running(RunningState { started_at: at(62) }));
    main.ready = is_ready;
    let status = PodStatus {
        uid: format!("{pod:032x}"),
        hash: set_name(pod / SET_PODS),
        conditions: vec![condition("Ready", is_ready, at(62))],
        pod_ip: Some(pod_address(pod)),
        container_statuses: vec![main],
        ..running()
    };
    snapshot.put(&Key::PodStatus(node_name(pod), pod_name(pod)), &status, 1);
}

fn set_name(set: usize) -> String {
    format!("web-{set:03}")
}

fn node_name(pod: usize) -> String {
    format!("node-{:04}", pod / NODE_PODS)
}

fn pod_name(pod: usize) -> NamespacedName {
    NamespacedName::new("default", format!("{}-0badcafe-{pod}", set_name(pod / SET_PODS)))
}

fn pod_address(pod: usize) -> String {
    let node = pod / NODE_PODS;
    format!("10.{}.{}.{}", node / 256, node % 256, pod % NODE_PODS + 2)
}

fn is_ready(pod: usize) -> bool {
    pod % SET_PODS >= NOT_READY
}
