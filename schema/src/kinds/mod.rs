//! The kinds a manifest may have, one file each: spec, defaults, `validate()`, `health()`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::violation::OwnedStep;

pub mod cluster;
pub mod dns;
pub mod function;
pub mod health;
pub mod horizontal_pod_autoscaler;
pub mod job;
pub mod metadata;
pub mod names;
pub mod node;
pub mod pod;
pub mod replica_set;
mod repo_path;
pub mod service;
mod spec;
pub mod workflow;

pub use health::Health;
pub use spec::{KindSpec, field_path};

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

/// `apiVersion` of the kinds that Kubernetes does not have.
pub const OWN_API_VERSION: &str = "minik8s.io/v1";

impl Kind {
    /// The `apiVersion` that an object of this kind carries, as Kubernetes spells it where it has the kind.
    pub fn api_version(self) -> &'static str {
        match self {
            Kind::Pod | Kind::Service | Kind::Node => "v1",
            Kind::ReplicaSet => "apps/v1",
            Kind::HorizontalPodAutoscaler => "autoscaling/v2",
            Kind::Cluster | Kind::Function | Kind::Dns | Kind::Workflow | Kind::Job => OWN_API_VERSION,
        }
    }

    /// Whether this version acts on objects of this kind; the others are checked and stored. The settings of
    /// a Cluster are in force or not one by one, and its manifest is told which are not.
    pub fn is_run(self) -> bool {
        matches!(self, Kind::Pod | Kind::Service | Kind::Dns | Kind::Cluster)
    }

    /// Objects of this kind belong to no namespace; they lie under [`crate::meta::DEFAULT_NAMESPACE`].
    pub fn is_cluster_scoped(self) -> bool {
        matches!(self, Kind::Cluster | Kind::Node)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no kind.
#[derive(Debug, thiserror::Error)]
#[error("unknown kind {0}")]
pub struct UnknownKind(pub String);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Kind::ALL.into_iter().find(|k| k.as_str() == text).ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

macro_rules! resources {
    ($($kind:ident $module:ident $spec:ident $doc:literal)*) => {
        /// A kind with its spec, written as the two fields `kind` and `spec`. Boxed, so that the largest
        /// spec does not make them all large.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(tag = "kind", content = "spec")]
        pub enum Resource {
            $(
                #[doc = $doc]
                $kind(Arc<$module::$spec>),
            )*
        }

        impl PartialEq for Resource {
            /// Of one allocation, which equal pods share, nothing is compared.
            fn eq(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Resource::$kind(one), Resource::$kind(other)) => {
                        Arc::ptr_eq(one, other) || one == other
                    })*
                    _ => false,
                }
            }
        }

        impl Resource {
            /// The kind.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Resource::$kind(_) => Kind::$kind,)*
                }
            }

            /// Paths whose lines the checks across objects need; see [`KindSpec::places`].
            pub fn places(&self) -> Vec<Vec<OwnedStep>> {
                match self {
                    $(Resource::$kind(spec) => spec.places(),)*
                }
            }
        }

        $(
            impl From<$module::$spec> for Resource {
                fn from(spec: $module::$spec) -> Self {
                    Resource::$kind(Arc::new(spec))
                }
            }
        )*
    };
}

resources! {
    Cluster cluster ClusterSpec "Cluster-wide settings."
    Node node NodeSpec "Taints and cordon of a node."
    Function function FunctionSpec "A function."
    Service service ServiceSpec "A service."
    Pod pod PodSpec "A pod."
    ReplicaSet replica_set ReplicaSetSpec "A number of equal pods."
    HorizontalPodAutoscaler horizontal_pod_autoscaler HorizontalPodAutoscalerSpec "Scales a workload."
    Dns dns DnsSpec "Host and paths to services."
    Workflow workflow WorkflowSpec "A state machine."
    Job job JobSpec "A Slurm job."
}
