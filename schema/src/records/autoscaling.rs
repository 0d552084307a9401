//! `scale/<kind>/<ns>/<name>` and `autoscalers/<ns>/<name>`: replica counts that override Git's, and an
//! autoscaler's memory.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::kinds::autoscaler::HorizontalPodAutoscalerStatus;
use crate::meta::ObjectRef;

/// Replica count of a workload that overrides the number in Git.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScaleRecord {
    /// Number of pods.
    pub replicas: u32,
    /// Object that decided on it: `HorizontalPodAutoscaler/<namespace>/<name>`.
    pub scaler: String,
}

/// Findings, decisions and memory of an autoscaler: a leader that takes over continues with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerRecord {
    /// Generation of the object that this record describes.
    pub observed_generation: u64,
    /// Workload that it scales.
    pub target: ObjectRef,
    /// Time of the decision. Until the next record, every check since then found the same.
    pub decided_at: Timestamp,
    /// Recommendations of the metrics, oldest first, as far back as a window lasts.
    #[serde(default)]
    pub recommendations: Vec<Recommendation>,
    /// Pods added, oldest first, as far back as the longest policy's period.
    #[serde(default)]
    pub scale_ups: Vec<ScaleChange>,
    /// Pods removed, oldest first, as far back as the longest policy's period.
    #[serde(default)]
    pub scale_downs: Vec<ScaleChange>,
    /// Status, for people.
    pub status: HorizontalPodAutoscalerStatus,
}

/// Replica count that the metrics recommend at a time, before windows and policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recommendation {
    /// Time of the recommendation.
    pub at: Timestamp,
    /// Number of pods.
    pub replicas: u32,
}

/// A change of the replica count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleChange {
    /// Time of the change.
    pub at: Timestamp,
    /// Number of pods added or removed.
    pub change: u32,
}
