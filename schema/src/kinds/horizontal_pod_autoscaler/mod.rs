//! HorizontalPodAutoscaler: scales a workload by its resource usage. Fields and defaults are those of Kubernetes
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

/// CPU target of an autoscaler without metrics, in percent of the requests, as in Kubernetes.
pub const DEFAULT_CPU_UTILIZATION: u32 = 80;

/// Desired behavior of an autoscaler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct HorizontalPodAutoscalerSpec {
    /// Workload to scale.
    pub scale_target_ref: ScaleTarget,
    /// Minimum number of pods.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10000))]
    pub min_replicas: u32,
    /// Maximum number of pods.
    #[schemars(range(min = 1, max = 10000))]
    pub max_replicas: u32,
    /// Metrics to scale by; defaults to 80% of the requested CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Scaling speed in both directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,
}

/// Workload that an autoscaler scales.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ScaleTarget {
    /// `apiVersion` of the target; optional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Kind of the target: `ReplicaSet`, or `Pod`, which counts as one pod and gets copies.
    pub kind: ScaleTargetKind,
    /// Name of the target in the same namespace.
    pub name: String,
}

/// A kind that can be scaled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScaleTargetKind {
    /// A replica set.
    #[default]
    ReplicaSet,
    /// A pod, which counts as one pod and gets copies.
    Pod,
}

impl HorizontalPodAutoscalerSpec {
    /// Returns the workload to scale.
    pub fn target(&self, metadata: &ObjectMeta) -> ObjectRef {
        metadata.reference(self.scale_target_ref.kind.kind(), &self.scale_target_ref.name)
    }
}

impl ScaleTargetKind {
    /// Returns the kind of such objects.
    pub fn kind(self) -> Kind {
        match self {
            Self::ReplicaSet => Kind::ReplicaSet,
            Self::Pod => Kind::Pod,
        }
    }
}
