//! Notes: findings of a controller that are worth reporting, above all actions not taken and the reason.
//!
//! Every plan repeats a note for as long as it holds. The shell reports each once, as an event.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::cluster::CLUSTER_NAME;
use schema::meta::NamespacedName;
use schema::snapshot::RefusedEviction;

use super::autoscaler::FAILED_GET_METRIC;
use super::scheduler::FitFailures;

/// Time within which agents started together with the reconciler register (1 to 3 s, measured).
const NODE_REGISTRATION_GRACE: Duration = Duration::from_secs(10);

/// Time within which the first usage samples of a new pod arrive: nodes measure every 15 s.
const FIRST_SAMPLE_GRACE: Duration = Duration::from_secs(60);

/// A finding about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Kind of the object: `Pod`, `Node`, ….
    pub object_kind: &'static str,
    /// Namespace; empty if the object has none.
    pub namespace: String,
    pub name: String,
    pub kind: NoteKind,
}

/// Content of a note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoteKind {
    /// The pod fits on no node; the former pod, if there is one, keeps running on `old_stays_on`.
    Unschedulable { unfit: Arc<FitFailures>, old_stays_on: Option<String> },
    /// The pod ran, or may have run, on a node that has not registered again since etcd was lost.
    WaitsForNode { node: Option<String> },
    /// The name belongs to a pod of another owner, `Kind/name`, which is left alone.
    NameTaken { owner: String },
    /// A value in etcd can't be read; everything that depends on it stays as it is.
    Unreadable { key: String },
    /// The value can't be written.
    NotWritten { why: String },
    /// No range is left for the node.
    SubnetsExhausted { cluster_cidr: Ipv4Net, holders: usize },
    /// The node's range is outside the cluster's and stays so.
    SubnetOutside { cidr: Ipv4Net, cluster_cidr: Ipv4Net },
    /// The address in the manifest can't be assigned.
    AddressTaken { address: String, why: String },
    /// No address is left for a service.
    AddressesExhausted,
    /// Another service, `namespace/name`, has this node port.
    NodePortTaken { port: u16, holder: String },
    /// No node port is left for a service.
    NodePortsExhausted,
    /// An autoscaler does not scale; the reason is one CamelCase word, as in Kubernetes.
    NotScaled { reason: String, why: String },
    /// The node is silent for long enough to be evicted, but most nodes are: `away` of `nodes`.
    EvictionHeld { away: usize, nodes: usize },
    /// A disruption budget keeps the pod on the node, which is drained.
    EvictionRefused { refused: RefusedEviction },
    /// Git declares the node gone, but its agent is alive.
    GoneButAlive,
    /// The pod must leave its node and fits on no other.
    Stranded { unfit: Arc<FitFailures>, node: String },
}

impl Note {
    /// Creates a note about a pod.
    pub fn about_pod(namespace: &str, name: &str, kind: NoteKind) -> Self {
        Self { object_kind: Kind::Pod.as_str(), namespace: namespace.to_owned(), name: name.to_owned(), kind }
    }

    /// Creates a note about a node.
    pub fn about_node(name: &str, kind: NoteKind) -> Self {
        Self { object_kind: Kind::Node.as_str(), namespace: String::new(), name: name.to_owned(), kind }
    }

    /// Creates a note about the object that a key belongs to.
    pub fn about_key(key: &Key, kind: NoteKind) -> Self {
        let (object_kind, namespace, name) = subject(key);
        Self { object_kind, namespace, name, kind }
    }

    /// Returns the time that a finding must last before it is reported: conditions that every start brings and that
    /// end by themselves are no news.
    pub fn report_delay(&self) -> Duration {
        match &self.kind {
            NoteKind::Unschedulable { unfit, .. } if unfit.may_be_starting() => NODE_REGISTRATION_GRACE,
            NoteKind::NotScaled { reason, .. } if reason == FAILED_GET_METRIC => FIRST_SAMPLE_GRACE,
            _ => Duration::ZERO,
        }
    }

    /// Returns the event reason, one CamelCase word.
    pub fn event_reason(&self) -> &str {
        match &self.kind {
            NoteKind::Unschedulable { .. } => "Unschedulable",
            NoteKind::WaitsForNode { .. } => "WaitsForNode",
            NoteKind::NameTaken { .. } => "NameTaken",
            NoteKind::Unreadable { .. } => "Unreadable",
            NoteKind::NotWritten { .. } => "NotWritten",
            NoteKind::SubnetsExhausted { .. } => "SubnetsExhausted",
            NoteKind::SubnetOutside { .. } => "SubnetOutside",
            NoteKind::AddressTaken { .. } => "ClusterIPNotAllocated",
            NoteKind::AddressesExhausted => "ClusterIPsExhausted",
            NoteKind::NodePortTaken { .. } => "NodePortNotAllocated",
            NoteKind::NodePortsExhausted => "NodePortsExhausted",
            NoteKind::NotScaled { reason, .. } => reason,
            NoteKind::EvictionHeld { .. } => "EvictionHeld",
            NoteKind::EvictionRefused { .. } => "EvictionRefused",
            NoteKind::GoneButAlive => "GoneButAlive",
            NoteKind::Stranded { .. } => "Unschedulable",
        }
    }

    /// Returns a string that is equal for notes that mean the same to a user: amounts that change with every other
    /// pod don't count.
    pub fn identity(&self) -> String {
        let detail = match &self.kind {
            NoteKind::Unschedulable { unfit, .. } | NoteKind::Stranded { unfit, .. } => unfit.identity(),
            NoteKind::NotScaled { .. } => String::new(),
            NoteKind::EvictionRefused { refused } => format!("{}/{}", refused.pod.namespace, refused.budget),
            other => other.to_string(),
        };
        // Made for up to 10,000 notes at each plan, and `format!` is slower.
        [self.object_kind, "/", &self.namespace, "/", &self.name, " ", self.event_reason(), " ", &detail]
            .concat()
    }
}

/// Returns kind, namespace and name of the object that a key belongs to.
pub(super) fn subject(key: &Key) -> (&'static str, String, String) {
    let of = |kind: Kind, id: &NamespacedName| (kind.as_str(), id.namespace.clone(), id.name.clone());
    match key {
        Key::Object(object)
        | Key::Scale(object)
        | Key::Rollout(object)
        | Key::Template(object, _)
        | Key::Trigger(object, _) => (object.kind.as_str(), object.namespace.clone(), object.name.clone()),
        Key::Pod(id) | Key::Binding(_, id) | Key::PodStatus(_, id) => of(Kind::Pod, id),
        Key::Autoscaler(id) => of(Kind::HorizontalPodAutoscaler, id),
        Key::Function(id) => of(Kind::Function, id),
        Key::Workflow(id)
        | Key::RunRequest(id, _)
        | Key::RunInput(id, ..)
        | Key::RunHead(id, _)
        | Key::RunEntries(id, ..)
        | Key::RunPayload(id, ..)
        | Key::RunDefinition(id, _) => of(Kind::Workflow, id),
        Key::Job(_, id) | Key::JobReport(_, id) => of(Kind::Job, id),
        Key::Service(id) => of(Kind::Service, id),
        Key::Route(id) => of(Kind::Dns, id),
        Key::Node(node)
        | Key::Settled(node)
        | Key::Subnet(node)
        | Key::NodeConditions(node)
        | Key::Heartbeat(node)
        | Key::Usage(node)
        | Key::Demand(node)
        | Key::Build(node, _)
        | Key::NodeImage(node, _)
        | Key::Rules(node) => (Kind::Node.as_str(), String::new(), node.clone()),
        Key::Source(source) | Key::Revision(source, _) => ("Source", String::new(), source.clone()),
        Key::Settings | Key::Programmed => (Kind::Cluster.as_str(), String::new(), CLUSTER_NAME.to_owned()),
        Key::Leader => ("Leader", String::new(), "leader".to_owned()),
        Key::Join(id) => ("Token", String::new(), id.clone()),
        Key::Identity(identity) | Key::RevokedIdentity(identity) => {
            ("Identity", String::new(), identity.clone())
        }
        Key::Authority(digest) => ("Authority", String::new(), digest.clone()),
        Key::Trust => ("Trust", String::new(), "trust".to_owned()),
        Key::Outbox(target, subject) => ("Notification", String::new(), format!("{target}/{subject}")),
        Key::DefragRequest | Key::EtcdUpkeep => ("Etcd", String::new(), "etcd".to_owned()),
        Key::Request(id) | Key::Answer(id) => ("Request", String::new(), id.clone()),
        Key::Event(_, namespace, id) => ("Event", namespace.clone(), id.clone()),
    }
}

impl fmt::Display for NoteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoteKind::Unschedulable { unfit, old_stays_on: None } => write!(f, "{unfit}"),
            NoteKind::Unschedulable { unfit, old_stays_on: Some(node) } => {
                write!(f, "{unfit}; the former pod keeps running on {node}")
            }
            NoteKind::WaitsForNode { node: None } => f.write_str(
                "etcd was lost, and a node that has not registered again may run it; waiting for the nodes",
            ),
            NoteKind::WaitsForNode { node: Some(node) } => {
                write!(
                    f,
                    "node {node} ran it before etcd was lost and has not registered again; waiting for it"
                )
            }
            NoteKind::NameTaken { owner } => {
                write!(f, "a pod of {owner} has this name and is left alone; rename one of the two")
            }
            NoteKind::Unreadable { key } => {
                write!(f, "the value of {key} can't be read; everything that depends on it stays as it is")
            }
            NoteKind::NotWritten { why } | NoteKind::NotScaled { why, .. } => f.write_str(why),
            NoteKind::SubnetsExhausted { cluster_cidr, holders } => write!(
                f,
                "no /24 of {cluster_cidr} is free, {holders} nodes hold them; use a larger --cluster-cidr"
            ),
            NoteKind::SubnetOutside { cidr, cluster_cidr } => write!(
                f,
                "its range {cidr} is outside of the cluster's {cluster_cidr} and stays; \
                 set --cluster-cidr back, or reset the node"
            ),
            NoteKind::AddressTaken { address, why } => {
                write!(f, "cannot assign clusterIP {address}: {why}; choose another one, or leave it out")
            }
            NoteKind::AddressesExhausted => {
                f.write_str("all service addresses are in use; use a larger --service-cidr")
            }
            NoteKind::NodePortTaken { port, holder } => {
                write!(
                    f,
                    "cannot assign nodePort {port}: service {holder} has it; choose another one, or leave it out"
                )
            }
            NoteKind::NodePortsExhausted => {
                f.write_str("all node ports are in use; remove services of type NodePort")
            }
            NoteKind::EvictionHeld { away, nodes } => write!(
                f,
                "{away} of {nodes} nodes do not answer: this reconciler is probably cut off, so no pods are replaced"
            ),
            NoteKind::EvictionRefused { refused } => write!(f, "{refused}"),
            NoteKind::GoneButAlive => f.write_str(
                "Git marks the node as gone, but its agent is alive; stop it, or remove the annotation",
            ),
            NoteKind::Stranded { unfit, node } => write!(f, "{unfit}; until then the pod stays on {node}"),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object_kind, namespace, name, kind } = self;
        let separator = if namespace.is_empty() { "" } else { "/" };
        write!(f, "note {object_kind}/{namespace}{separator}{name} {}: {kind}", self.event_reason())
    }
}
