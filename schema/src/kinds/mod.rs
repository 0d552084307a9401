//! The kinds a manifest may have, one file each: spec, defaults, `validate()`, `health()`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod metadata;
pub mod names;
pub mod pod;

/// Every kind of the design. Orders as objects are applied; removals go in reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Kind {
    /// Cluster-wide settings; at most one object.
    Cluster,
    /// Labels, taints and cordon for a node that an agent registered.
    Node,
    /// A Python or container function.
    Function,
    /// A stable address in front of pods.
    Service,
    /// A group of containers on one node.
    Pod,
    /// A number of equal pods.
    ReplicaSet,
    /// Scales a workload by its use.
    HorizontalPodAutoscaler,
    /// Host and paths to services.
    Dns,
    /// A state machine over functions.
    Workflow,
    /// A Slurm job.
    Job,
}

impl Kind {
    /// All kinds, in the order in which they are applied.
    pub const ALL: [Kind; 10] = [
        Kind::Cluster,
        Kind::Node,
        Kind::Function,
        Kind::Service,
        Kind::Pod,
        Kind::ReplicaSet,
        Kind::HorizontalPodAutoscaler,
        Kind::Dns,
        Kind::Workflow,
        Kind::Job,
    ];

    /// The word in manifests and in keys.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Cluster => "Cluster",
            Kind::Node => "Node",
            Kind::Function => "Function",
            Kind::Service => "Service",
            Kind::Pod => "Pod",
            Kind::ReplicaSet => "ReplicaSet",
            Kind::HorizontalPodAutoscaler => "HorizontalPodAutoscaler",
            Kind::Dns => "Dns",
            Kind::Workflow => "Workflow",
            Kind::Job => "Job",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no kind.
#[derive(Debug, thiserror::Error)]
#[error("no kind is called {0}")]
pub struct UnknownKind(pub String);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Kind::ALL.into_iter().find(|k| k.as_str() == text).ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

/// A kind with its spec, written as the two fields `kind` and `spec`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "spec")]
pub enum Resource {
    /// A pod.
    Pod(pod::PodSpec),
}

impl Resource {
    /// The kind.
    pub fn kind(&self) -> Kind {
        match self {
            Resource::Pod(_) => Kind::Pod,
        }
    }
}
