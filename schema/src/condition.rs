//! Conditions: named yes/no/unknown facts about an object, with the reason in a word.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Kubernetes' condition: `type` holds, does not hold, or is not known, since when and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The fact, for example `Ready` or `PodScheduled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// One CamelCase word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When `status` last changed.
    pub last_transition_time: Timestamp,
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known.
    Unknown,
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// Puts `condition` into `conditions`, keeping the transition time if the status did not change.
pub fn set_condition(conditions: &mut Vec<Condition>, condition: Condition) {
    match conditions.iter_mut().find(|c| c.kind == condition.kind) {
        Some(old) if old.status == condition.status => {
            let since = old.last_transition_time;
            *old = Condition { last_transition_time: since, ..condition };
        }
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}
