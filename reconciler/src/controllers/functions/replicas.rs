//! The replicas of functions that take calls. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddrV4};

use schema::kinds::Kind;
use schema::kinds::function::PORT;
use schema::meta::NamespacedName;
use schema::records::{PodInstance, Replica};
use schema::snapshot::{BoundPod, Snapshot};

use crate::controllers::away::are_most_away;

/// By function, sorted by pod.
pub(super) type Replicas = BTreeMap<NamespacedName, Vec<Replica>>;

/// All that are ready, on nodes that are there.
pub(super) fn replicas(snapshot: &Snapshot) -> Replicas {
    let trust_heartbeats = are_most_away(snapshot).is_none();
    let mut found = Replicas::new();
    for bound in snapshot.bound_pods() {
        let owner = &bound.binding.value.pod.owner;
        if owner.kind != Kind::Function {
            continue;
        }
        let Some(pod) = snapshot.pods.get(&bound.place.1).map(|pod| &pod.value) else { continue };
        let is_there = !trust_heartbeats || snapshot.node_is_ready(bound.node());
        if let Some(replica) = replica(&bound, pod).filter(|_| is_there) {
            let function = NamespacedName::new(&pod.namespace, &owner.name);
            found.entry(function).or_default().push(replica);
        }
    }
    for replicas in found.values_mut() {
        replicas.sort_by(|a, b| a.pod.cmp(&b.pod));
    }
    found
}

fn replica(bound: &BoundPod<'_>, pod: &PodInstance) -> Option<Replica> {
    let status = bound.status_of(&pod.uid).filter(|status| status.is_ready() && !status.is_terminating())?;
    let IpAddr::V4(address) = status.pod_ip.as_deref()?.parse().ok()? else { return None };
    let (pod, node) = (pod.name.clone(), bound.node().to_owned());
    Some(Replica { pod, node, address: SocketAddrV4::new(address, PORT) })
}
