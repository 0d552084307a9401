//! Conditions: named yes/no/unknown facts about an object, with the reason in a word.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Kubernetes' condition: a fact that holds, does not hold, or is not known, with the time of the last change and
/// the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The fact, for example `Ready` or `PodScheduled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Status of the fact.
    pub status: ConditionStatus,
    /// Reason of the status, as one CamelCase word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time of the last change of `status`.
    pub last_transition_time: Timestamp,
}

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The status is not known.
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
