//! HorizontalPodAutoscaler: scales a workload by its use. Fields and defaults are Kubernetes'
//! (autoscaling/v2).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod behavior;
mod defaults;
mod descriptor;
mod dialect;
mod metric;
mod status;
mod validate;

use super::Kind;
use crate::codec::one;
use crate::meta::{ObjectMeta, ObjectRef};
pub use behavior::{Behavior, PolicyType, ScalingPolicy, ScalingRules, SelectPolicy};
pub use metric::{AverageValue, Metric, MetricTarget, MetricType, ResourceMetric, ResourceName, TargetType};
pub use status::{HorizontalPodAutoscalerStatus, MetricStatus, SCALING_DISABLED};

/// Per cent of the requested CPU that an autoscaler without metrics goes by, as in Kubernetes.
pub const DEFAULT_CPU_UTILIZATION: u32 = 80;

/// What an autoscaler should do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct HorizontalPodAutoscalerSpec {
    /// What it scales.
    pub scale_target_ref: ScaleTarget,
    /// Fewest pods.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10000))]
    pub min_replicas: u32,
    /// Most pods.
    #[schemars(range(min = 1, max = 10000))]
    pub max_replicas: u32,
    /// What it goes by; 80 % of the requested CPU when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// How fast it goes up and down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,
}

/// What an autoscaler scales.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ScaleTarget {
    /// `apiVersion` of the target; may be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `ReplicaSet`, or `Pod`: the pod counts as one, and copies of it come beside it.
    pub kind: ScaleTargetKind,
    /// Name in the same namespace.
    pub name: String,
}

/// A kind that can be scaled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScaleTargetKind {
    /// A replica set.
    #[default]
    ReplicaSet,
    /// A pod: it counts as one, and copies of it come beside it.
    Pod,
}

impl HorizontalPodAutoscalerSpec {
    /// What it scales.
    pub fn target(&self, metadata: &ObjectMeta) -> ObjectRef {
        metadata.reference(self.scale_target_ref.kind.kind(), &self.scale_target_ref.name)
    }
}

impl ScaleTargetKind {
    /// The kind.
    pub fn kind(self) -> Kind {
        match self {
            Self::ReplicaSet => Kind::ReplicaSet,
            Self::Pod => Kind::Pod,
        }
    }
}
