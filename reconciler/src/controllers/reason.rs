//! Reasons for the writes of controllers: one variant per decision, printed in plans, logs and events.

use std::fmt;

use ipnet::Ipv4Net;
use schema::object::short_commit;
use schema::records::{Drain, EventType};

use schema::violation::plural;

/// Reason for a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// An object asks for this pod, and the pod is missing.
    PodWanted { commit: String },
    /// The object's spec changed: another pod takes the name.
    PodReplaced { commit: String },
    /// Labels, annotations or the commit changed; the pod stays the same.
    PodUpdated { commit: String },
    /// The object that asked for the pod is gone.
    OwnerGone,
    /// The pod ended, or its node is gone, as `why` says; another pod takes its place.
    PodLost { why: String },
    /// The workload has more pods than it should have.
    ScaledDown { to: u32 },
    /// Pods of another template replace the pod; `to` has the first digits of the template's hash.
    RolledOut { to: String },
    /// The pod must leave its node, for a drain or a taint, and another pod takes its place.
    PodMoved { from: String },
    /// The daemon set no longer has a pod on this node; `why` names the node.
    NodeUnfit { why: String },
    /// A rollout began or is complete.
    Rollout(String),
    /// A rollout failed; pods of the last good template serve again, if there is one.
    RolloutFailed(String),
    /// Pods of a workload came, went or became ready.
    PodsCounted,
    /// The template is wanted.
    TemplateKept,
    /// The template is no longer wanted and not the last good one.
    TemplateReplaced,
    /// The object of the record is gone.
    RecordOrphaned,

    /// The pod is bound to a node; `choice` explains the choice.
    Bound { node: String, choice: String },
    /// Another pod of the same name replaces the former one on its node.
    Rebound { node: String },
    /// Another pod of the same name no longer fits on the node of the former one, as `why` says.
    Moved { from: String, to: String, why: String },
    /// Labels, annotations or commit of the bound pod are updated.
    BindingUpdated,
    /// The pod is gone, so its binding goes too.
    PodGone,
    /// The node is neither registered nor alive.
    NodeLeft,
    /// The pod has another binding, which stays, on the node `kept`.
    DuplicateBinding { kept: String },

    /// The node has no range yet.
    SubnetAssigned { cidr: Ipv4Net },
    /// The node's pods already have this range, and it is free.
    SubnetKept { cidr: Ipv4Net },
    /// The node's agent beats, and the node has its range.
    NodeReady,
    /// The node's agent beats, and the node has no range yet.
    NodeWithoutRange,
    /// The node's heartbeat expired.
    NodeSilent,
    /// The node's pods are evicted, this long after its heartbeat expired.
    NodeEvicted { silent_seconds: i64 },
    /// A drain began, went on or is no longer wanted.
    DrainProgress { drain: Option<Drain> },
    /// The node's taints changed, or pods have tolerated one for as long as they may.
    TaintsAge,
    /// Git declares the node gone.
    NodeGone,
    /// This etcd holds all that the node should run.
    Settled,
    /// An autoscaler changed its target's number of pods; `why` has both numbers.
    Rescaled { why: String },
    /// An autoscaler sets the number of pods.
    Scaled { replicas: u32 },
    /// No autoscaler sets the number of pods any more.
    ScaleReturned,
    /// Another node had the same range first; `cidr` is the new range.
    SubnetReassigned { holder: String, cidr: Ipv4Net },
    /// A published record changed: for example the address, ports or endpoints of a service, or the paths of a host.
    Published,
    /// Nodes reported newer rules, came or went.
    RulesReported,
    /// A node must build an image that no node has.
    BuildAssigned { node: String },
    /// The image is built, or nothing needs it any more.
    BuildOver,
    /// A Slurm job is assigned to a node.
    JobAssigned { node: String },
    /// The job is assigned to another node.
    JobMoved { to: String },
    /// The job's object or its dependency changed.
    JobUpdated,
    /// The job is cancelled and cleaned up.
    JobOver,
    /// The Cluster object differs from the settings that nodes read.
    SettingsPublished,
    /// The cluster's range grew around the node's, or the service range changed.
    ClusterCidrChanged { cluster_cidr: Ipv4Net, service_cidr: Ipv4Net },
}

impl Reason {
    /// Returns `Warning` if someone should investigate.
    pub fn event_type(&self) -> EventType {
        match self {
            Reason::NodeSilent | Reason::NodeEvicted { .. } | Reason::RolloutFailed(_) => EventType::Warning,
            _ => EventType::Normal,
        }
    }

    /// Returns the event reason, one word; `None` unless a user waits for the decision.
    pub fn event_reason(&self) -> Option<&'static str> {
        match self {
            Reason::Bound { .. } | Reason::Rebound { .. } | Reason::Moved { .. } => Some("Scheduled"),
            Reason::PodReplaced { .. } => Some("Replaced"),
            Reason::Rescaled { .. } => Some("SuccessfulRescale"),
            Reason::OwnerGone | Reason::NodeUnfit { .. } => Some("Removed"),
            Reason::PodLost { .. } => Some("Lost"),
            Reason::ScaledDown { .. } => Some("ScaledDown"),
            Reason::RolledOut { .. } => Some("RolledOut"),
            Reason::PodMoved { .. } => Some("Moved"),
            Reason::Rollout(_) => Some("Rollout"),
            Reason::RolloutFailed(_) => Some("RolloutFailed"),
            Reason::DuplicateBinding { .. } => Some("DuplicateRemoved"),
            Reason::SubnetAssigned { .. } | Reason::SubnetKept { .. } | Reason::SubnetReassigned { .. } => {
                Some("SubnetAssigned")
            }
            Reason::BuildAssigned { .. } => Some("BuildAssigned"),
            Reason::JobAssigned { .. } => Some("Assigned"),
            Reason::NodeReady => Some("NodeReady"),
            Reason::NodeSilent => Some("NodeNotReady"),
            Reason::NodeEvicted { .. } => Some("NodeEvicted"),
            Reason::DrainProgress { drain: Some(Drain::Drained) } => Some("Drained"),
            Reason::PodWanted { .. }
            | Reason::PodsCounted
            | Reason::TemplateKept
            | Reason::TemplateReplaced
            | Reason::RecordOrphaned
            | Reason::NodeLeft
            | Reason::NodeWithoutRange
            | Reason::NodeGone
            | Reason::DrainProgress { .. }
            | Reason::TaintsAge
            | Reason::PodUpdated { .. }
            | Reason::BindingUpdated
            | Reason::PodGone
            | Reason::Settled
            | Reason::Published
            | Reason::RulesReported
            | Reason::BuildOver
            | Reason::JobMoved { .. }
            | Reason::JobUpdated
            | Reason::JobOver
            | Reason::SettingsPublished
            | Reason::Scaled { .. }
            | Reason::ScaleReturned
            | Reason::ClusterCidrChanged { .. } => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::PodWanted { commit } => write!(f, "wanted by commit {}", short_commit(commit)),
            Reason::PodReplaced { commit } => write!(f, "spec changed by commit {}", short_commit(commit)),
            Reason::PodUpdated { commit } => {
                write!(f, "metadata changed by commit {}, in place", short_commit(commit))
            }
            Reason::OwnerGone => f.write_str("its object is gone"),
            Reason::PodLost { why } => write!(f, "{why}; another pod replaces it"),
            Reason::ScaledDown { to } => write!(f, "scaled down to {to} pods"),
            Reason::RolledOut { to } => write!(f, "replaced by pods of template {to}"),
            Reason::PodMoved { from } => write!(f, "it must leave node {from}; another pod replaces it"),
            Reason::NodeUnfit { why } => f.write_str(why),
            Reason::Rollout(step) | Reason::RolloutFailed(step) => f.write_str(step),
            Reason::PodsCounted => f.write_str("its pods changed"),
            Reason::TemplateKept => f.write_str("the template is needed"),
            Reason::TemplateReplaced => f.write_str("the template is no longer needed"),
            Reason::RecordOrphaned => f.write_str("its object is gone"),
            Reason::Bound { node, choice } => write!(f, "bound to {node}: {choice}"),
            Reason::Rebound { node } => write!(f, "replaces the previous pod on {node}"),
            Reason::Moved { from, to, why } => write!(f, "moved from {from}, where {why}, to {to}"),
            Reason::BindingUpdated => f.write_str("pod metadata changed, in place"),
            Reason::NodeReady => f.write_str("the node is ready"),
            Reason::NodeWithoutRange => f.write_str("the node waits for its range of pod addresses"),
            Reason::NodeSilent => f.write_str("the node's heartbeat expired"),
            Reason::NodeEvicted { silent_seconds } => {
                write!(f, "the node has been silent for {silent_seconds} s: its pods are replaced elsewhere")
            }
            Reason::DrainProgress { drain: Some(Drain::Draining { left, .. }) } => {
                write!(f, "the node is being drained, {} left", plural(left, "pod"))
            }
            Reason::DrainProgress { drain: Some(Drain::Drained) } => f.write_str("the node is drained"),
            Reason::TaintsAge => f.write_str("taints of the node and their age"),
            Reason::DrainProgress { drain: None } => f.write_str("the node takes pods again"),
            Reason::NodeGone => f.write_str("Git marks the node as gone"),
            Reason::NodeLeft => f.write_str("the node is neither registered nor alive"),
            Reason::PodGone => f.write_str("the pod is gone"),
            Reason::DuplicateBinding { kept } => {
                write!(f, "the pod is also bound to {kept}, and stays there")
            }
            Reason::SubnetAssigned { cidr } => write!(f, "{cidr} is the lowest free range"),
            Reason::SubnetKept { cidr } => write!(f, "its pods already have {cidr}"),
            Reason::Settled => f.write_str("etcd matches Git"),
            Reason::Published => f.write_str("recomputed from its object and pods"),
            Reason::RulesReported => f.write_str("nodes reported newer rules, came or went"),
            Reason::BuildAssigned { node } => write!(f, "no node has the image, node {node} builds it"),
            Reason::BuildOver => f.write_str("the image is built, or nothing needs it any more"),
            Reason::JobAssigned { node } => write!(f, "assigned to node {node}"),
            Reason::JobMoved { to } => write!(f, "assigned to node {to}"),
            Reason::JobUpdated => f.write_str("its object or a dependency changed"),
            Reason::JobOver => f.write_str("its node has cancelled it and cleaned up"),
            Reason::SettingsPublished => {
                f.write_str("the settings of the Cluster object, defaults filled in")
            }
            Reason::Rescaled { why } => write!(f, "from {why}"),
            Reason::Scaled { replicas } => write!(f, "{replicas} pods, as its autoscaler decided"),
            Reason::ScaleReturned => {
                f.write_str("no autoscaler scales it any more; the number in Git applies again")
            }
            Reason::SubnetReassigned { holder, cidr } => {
                write!(f, "{holder} had the same range first; {cidr} is the lowest free one")
            }
            Reason::ClusterCidrChanged { cluster_cidr, service_cidr } => {
                write!(f, "the ranges are now {cluster_cidr} for pods and {service_cidr} for services")
            }
        }
    }
}
