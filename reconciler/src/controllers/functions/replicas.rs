//! Replicas of functions that take calls. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddrV4};

use schema::kinds::Kind;
use schema::kinds::function::PORT;
use schema::kinds::pod::{ContainerState, PodStatus};
use schema::meta::NamespacedName;
use schema::records::{PodInstance, Replica, ReplicaStart, Trouble};
use schema::snapshot::{BoundPod, Snapshot};

use schema::snapshot::most_nodes_away;

/// The replicas of one function.
#[derive(Debug, Clone, Default)]
pub(super) struct FunctionReplicas {
    /// Replicas that take calls, sorted by pod.
    pub(super) ready: Vec<Replica>,
    /// Failure of the first other replica whose code does not start.
    pub(super) crashed: Option<Trouble>,
}

/// Maximum number of replicas per function for which start times are published too: a record has 64 KiB.
const STARTS_MAX: usize = 200;

/// Replicas by function.
pub(super) type Replicas = BTreeMap<NamespacedName, FunctionReplicas>;

/// Returns the ready replicas on live nodes. Heartbeats are ignored while most nodes are away.
pub(super) fn replicas(snapshot: &Snapshot) -> Replicas {
    let trust_heartbeats = most_nodes_away(snapshot).is_none();
    let mut found = Replicas::new();
    for bound in snapshot.bound_pods() {
        let owner = &bound.binding.value.pod.owner;
        if owner.kind != Kind::Function {
            continue;
        }
        let Some(pod) = snapshot.pods.get(&bound.key.1).map(|pod| &pod.value) else { continue };
        let is_there = !trust_heartbeats || snapshot.node_is_ready(bound.node());
        let of_function = found.entry(NamespacedName::new(&pod.namespace, &owner.name)).or_default();
        match replica(&bound, pod, snapshot) {
            Some(replica) if is_there => of_function.ready.push(replica),
            Some(_) => {}
            None if of_function.crashed.is_none() => of_function.crashed = crashed(&bound, pod),
            None => {}
        }
    }
    for of_function in found.values_mut() {
        of_function.ready.sort_by(|a, b| a.pod.cmp(&b.pod));
        if of_function.ready.len() > STARTS_MAX {
            of_function.ready.iter_mut().for_each(|replica| replica.start = None);
        }
    }
    found
}

/// Returns the last message of a replica whose program ended by itself before it took a call.
fn crashed(bound: &BoundPod<'_>, pod: &PodInstance) -> Option<Trouble> {
    let status = bound.status_of(&pod.uid).filter(|status| !status.is_terminating())?;
    let container = status.container_statuses.first()?;
    let end = match &container.state {
        ContainerState::Terminated(end) => Some(end),
        ContainerState::Waiting(_) | ContainerState::Running(_) => container.last_state.as_ref(),
    };
    let end = end.filter(|end| end.exit_code != 0)?;
    let message = format!("pod {} ended with code {}: {}", pod.name, end.exit_code, end.message);
    Some(Trouble { reason: "CrashLoopBackOff".to_owned(), message })
}

fn replica(bound: &BoundPod<'_>, pod: &PodInstance, snapshot: &Snapshot) -> Option<Replica> {
    let status = bound.status_of(&pod.uid).filter(|status| status.is_ready() && !status.is_terminating())?;
    let IpAddr::V4(address) = status.pod_ip.as_deref()?.parse().ok()? else { return None };
    // The address is the node's word.
    let (record, range) = (snapshot.nodes.get(bound.node())?, snapshot.subnets.get(bound.node()));
    record.value.check_pod_address(address, range.map(|subnet| &subnet.value), false).ok()?;
    let (pod, node) = (pod.name.clone(), bound.node().to_owned());
    Some(Replica { pod, node, address: SocketAddrV4::new(address, PORT), start: start(status) })
}

/// Returns the start times; `None` after a restart, because the times would be of different starts.
fn start(status: &PodStatus) -> Option<ReplicaStart> {
    let since = |kind: &str| {
        let found = status.conditions.iter().find(|condition| condition.kind == kind);
        found.map(|condition| condition.last_transition_time)
    };
    let container = status.container_statuses.first().filter(|container| container.restart_count == 0)?;
    let ContainerState::Running(running) = &container.state else { return None };
    let (scheduled, imported) = (since("PodScheduled")?, since("Ready")?);
    Some(ReplicaStart { scheduled, created: status.start_time?, started: running.started_at, imported })
}
