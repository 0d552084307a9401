//! Decides on this node's record and its heartbeat.
//!
//! Reads the machine's facts and the contents of etcd; writes nothing. The record is written only when something in
//! it changes; only the heartbeat is attached to the lease.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::Ipv4Net;
use jiff::Timestamp;
use schema::keys::Key;
use schema::records::{Heartbeat, NodeRecord, Vtep, socket_of};
use schema::snapshot::VersionedValue;
use schema::store::{Guard, LeaseId};

use crate::worlds::host::MachineFacts;

/// Maximum number of pods on a node, as in Kubernetes.
pub const MAX_PODS: u32 = 110;

/// Observed state of the node loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub node: String,
    pub facts: MachineFacts,
    pub api: String,
    pub calls: String,
    pub age_recipient: Option<String>,
    pub cluster_recipient: Option<String>,
    pub pod_cidr: Option<Ipv4Net>,
    pub vtep: Option<Vtep>,
    /// Digests of the authorities that the node trusts.
    pub authorities: Vec<String>,
    /// The record in etcd; the error's text and the revision if it can't be read.
    pub record: Option<Result<VersionedValue<NodeRecord>, (String, i64)>>,
    pub heartbeat: Option<Heartbeat>,
    pub lease: Option<LeaseId>,
    pub since: Timestamp,
}

/// Action for the heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeartbeatAction {
    KeepAlive(LeaseId),
    NewLease(String),
}

/// Plan of the node loop.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePlan {
    /// The record to write, with its condition; `None` if it is up to date.
    pub record: Option<(NodeRecord, Guard)>,
    pub beat: HeartbeatAction,
    /// Time since when another process sends heartbeats under this node's name.
    pub rival_since: Option<Timestamp>,
}

impl schema::control::Plan for NodePlan {
    fn is_empty(&self) -> bool {
        // A node that is alive always has a heartbeat to send.
        false
    }
}

/// Plans the record and the heartbeat.
pub fn plan(observed: &Observed, now: Timestamp) -> NodePlan {
    let rival = observed.heartbeat.as_ref().filter(|beat| beat.since != observed.since);
    NodePlan {
        record: plan_record(observed, now),
        beat: match (observed.lease, &observed.heartbeat) {
            (None, _) => HeartbeatAction::NewLease("this agent holds no lease".to_owned()),
            (Some(_), None) => HeartbeatAction::NewLease("the heartbeat is gone".to_owned()),
            (Some(_), Some(_)) if rival.is_some() => {
                HeartbeatAction::NewLease("another agent uses this name".to_owned())
            }
            (Some(lease), Some(_)) => HeartbeatAction::KeepAlive(lease),
        },
        // Before the first lease it is this node's former agent, whose lease expires.
        rival_since: rival.filter(|_| observed.lease.is_some()).map(|beat| beat.since),
    }
}

fn plan_record(observed: &Observed, now: Timestamp) -> Option<(NodeRecord, Guard)> {
    let key = Key::Node(observed.node.clone()).to_string();
    let (registered_at, guard) = match &observed.record {
        None => (now, Guard::Absent(key)),
        Some(Ok(there)) => (there.value.registered_at, Guard::ModRevision(key, there.mod_revision)),
        Some(Err((_, mod_revision))) => (now, Guard::ModRevision(key, *mod_revision)),
    };
    let wanted = record(observed, registered_at);
    match &observed.record {
        Some(Ok(there)) if there.value == wanted => None,
        _ => Some((wanted, guard)),
    }
}

fn record(observed: &Observed, registered_at: Timestamp) -> NodeRecord {
    let mut facts = observed.facts.clone();
    let former = match &observed.record {
        Some(Ok(there)) => Some(&there.value),
        _ => None,
    };
    // Docker may be restarting, an address may be gone for a moment: the former values stay.
    if let Some(former) = former {
        if facts.versions.docker.is_empty() {
            facts.versions.docker.clone_from(&former.versions.docker);
        }
        if facts.addresses.is_empty() {
            facts.addresses.clone_from(&former.addresses);
        }
    }
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    NodeRecord {
        name: observed.node.clone(),
        addresses: with_servers(facts.addresses, [&observed.api, &observed.calls]),
        cpu: facts.cpu,
        memory: facts.memory,
        gpus: facts.gpus.or(former.map(|record| record.gpus)).unwrap_or_default(),
        max_pods: MAX_PODS,
        labels: BTreeMap::from([
            label("kubernetes.io/arch", &facts.versions.arch),
            label("kubernetes.io/hostname", &observed.node),
            label("kubernetes.io/os", "linux"),
        ]),
        versions: facts.versions,
        api: observed.api.clone(),
        calls: observed.calls.clone(),
        age_recipient: observed.age_recipient.clone(),
        cluster_recipient: observed.cluster_recipient.clone(),
        registered_at,
        pod_cidr: observed.pod_cidr,
        // A tunnel that is not observed yet, or broken for a moment, is where it was.
        vtep: observed.vtep.clone().or_else(|| former.and_then(|record| record.vtep.clone())),
        authorities: observed.authorities.clone(),
    }
}

/// Adds the addresses at which the node's servers listen, if they are further ones: nobody connects to a server at an
/// address that the node does not name.
fn with_servers(mut addresses: Vec<IpAddr>, urls: [&str; 2]) -> Vec<IpAddr> {
    for server in urls.into_iter().filter_map(socket_of).map(|server| server.ip()) {
        if !server.is_loopback() && !addresses.contains(&server) {
            addresses.push(server);
        }
    }
    addresses
}
