//! `rollouts/<kind>/<ns>/<name>` and `templates/<kind>/<ns>/<name>/<hash>`.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::content_refs::Files;
use crate::kinds::pod::PodSpec;
use crate::kinds::replica_set::ReplicaSetStatus;
use crate::meta::StringMap;

/// Most steps kept of a rollout.
pub const ROLLOUT_STEPS_MAX: usize = 12;

/// State of a workload's rollout. Written by the workloads controller.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Hash of the object that this record describes.
    pub object_hash: String,
    /// Commit that last changed the object. A new one retries a failed template.
    pub commit: String,
    /// Hash of the template that the object asks for.
    pub wanted: String,
    /// Hash of the last template with which all pods were available.
    pub good: Option<String>,
    /// True once all pods have had the wanted template and were available with it since the object asked for it.
    #[serde(default)]
    pub complete: bool,
    /// Reason why the rollout of the wanted template has stopped.
    pub failure: Option<RolloutFailure>,
    /// Start of the rollout.
    pub started_at: Timestamp,
    /// Time of the last progress.
    pub progressed_at: Timestamp,
    /// Furthest progress so far.
    pub best: RolloutProgress,
    /// Numbers of pods and their conditions.
    pub status: ReplicaSetStatus,
    /// History, the newest last; at most [`ROLLOUT_STEPS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RolloutStep>,
}

impl Rollout {
    /// Returns the first eight digits of a template's hash, as in the names of its pods.
    pub fn short(hash: &str) -> &str {
        hash.get(..8).unwrap_or(hash)
    }
}

/// Failure of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutFailure {
    /// Time at which it was given up.
    pub at: Timestamp,
    /// Reason as one CamelCase word.
    pub reason: String,
    /// Human-readable sentence.
    pub message: String,
}

/// Furthest progress of a rollout: each number only ever improves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutProgress {
    /// Most pods of the wanted template.
    pub updated: u32,
    /// Most of them available.
    pub available: u32,
    /// Fewest remaining pods of other templates.
    pub old: u32,
}

/// A step of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutStep {
    /// Time of the step.
    pub at: Timestamp,
    /// Event and reason.
    pub message: String,
}

/// A pod template in full, kept while it is wanted or the last good one. Written by the workloads controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// Commit that introduced it.
    pub commit: String,
    /// Labels of its pods.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    pub labels: StringMap,
    /// Annotations of its pods.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    pub annotations: StringMap,
    /// Spec of its pods.
    pub spec: Arc<PodSpec>,
    /// Files of the repository that the pods need, by path.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
}
