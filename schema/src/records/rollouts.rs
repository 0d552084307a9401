//! `rollouts/<kind>/<ns>/<name>` and `templates/<kind>/<ns>/<name>/<hash>`.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::files::Files;
use crate::kinds::pod::PodSpec;
use crate::kinds::replica_set::ReplicaSetStatus;
use crate::meta::StringMap;

/// Most steps that a rollout keeps.
pub const ROLLOUT_STEPS_MAX: usize = 12;

/// How far a workload is with its template: written by the workloads controller.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Hash of the object that this speaks of.
    pub object_hash: String,
    /// The commit that last changed the object. Another one tries a failed template again.
    pub commit: String,
    /// Hash of the template that the object asks for.
    pub wanted: String,
    /// Hash of the last template that all pods had and were available with.
    pub good: Option<String>,
    /// All pods have had the wanted template and were available with it since the object asked for it.
    #[serde(default)]
    pub complete: bool,
    /// Why the wanted template is not rolled out any further.
    pub failure: Option<RolloutFailure>,
    /// When the rollout began.
    pub started_at: Timestamp,
    /// When it last came closer to its end.
    pub progressed_at: Timestamp,
    /// The closest it came.
    pub best: RolloutProgress,
    /// How many pods there are, and what of them holds.
    pub status: ReplicaSetStatus,
    /// What happened, the newest last; at most [`ROLLOUT_STEPS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RolloutStep>,
}

impl Rollout {
    /// The first eight digits of a template's hash, as in the names of its pods.
    pub fn short(hash: &str) -> &str {
        hash.get(..8).unwrap_or(hash)
    }
}

/// Why a template failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutFailure {
    /// When it was given up.
    pub at: Timestamp,
    /// One CamelCase word.
    pub reason: String,
    /// A sentence for a person.
    pub message: String,
}

/// How close a rollout came to its end: each number only ever improves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutProgress {
    /// Most pods of the wanted template that there were.
    pub updated: u32,
    /// Most of them that were available.
    pub available: u32,
    /// Fewest pods of other templates that were left.
    pub old: u32,
}

/// One step of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutStep {
    /// When.
    pub at: Timestamp,
    /// What happened, and why.
    pub message: String,
}

/// A pod template in full, while it is wanted or the last good one: written by the workloads controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// The commit that brought it.
    pub commit: String,
    /// Labels of its pods.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    pub labels: StringMap,
    /// Annotations of its pods.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    pub annotations: StringMap,
    /// Spec of its pods.
    pub spec: Arc<PodSpec>,
    /// Files of the repository that they need, by path.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
}
