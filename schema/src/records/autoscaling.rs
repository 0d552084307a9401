//! `scale/<kind>/<ns>/<name>` and `autoscalers/<ns>/<name>`: how many pods a workload has instead of Git's number,
//! and what an autoscaler remembers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::kinds::horizontal_pod_autoscaler::HorizontalPodAutoscalerStatus;
use crate::meta::ObjectRef;

/// How many pods a workload should have, in place of the number that Git says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScaleRecord {
    /// Pods.
    pub replicas: u32,
    /// Who decided on it: `HorizontalPodAutoscaler/<namespace>/<name>`.
    pub scaler: String,
}

/// What an autoscaler found, decided and must remember: a leader that takes over goes on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerRecord {
    /// Generation of the object that this speaks of.
    pub observed_generation: u64,
    /// What it scales.
    pub target: ObjectRef,
    /// When this was decided. Until the next record, every look since then found the same.
    pub decided_at: Timestamp,
    /// What the metrics asked for, the oldest first; as long as a window lasts.
    #[serde(default)]
    pub recommendations: Vec<Recommendation>,
    /// Pods that were added, the oldest first; as long as the longest policy's period.
    #[serde(default)]
    pub scale_ups: Vec<ScaleChange>,
    /// Pods that were removed, the oldest first; as long as the longest policy's period.
    #[serde(default)]
    pub scale_downs: Vec<ScaleChange>,
    /// What it is, for people.
    pub status: HorizontalPodAutoscalerStatus,
}

/// What the metrics asked for at a time, before windows and policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recommendation {
    /// When.
    pub at: Timestamp,
    /// Pods.
    pub replicas: u32,
}

/// A change of the number of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleChange {
    /// When.
    pub at: Timestamp,
    /// By how many pods.
    pub change: u32,
}
