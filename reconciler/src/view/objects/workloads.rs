//! Status of a workload: its pods and the progress of its rollout.

use jiff::Timestamp;
use schema::kinds::Resource;
use schema::kinds::replica_set::{DEPLOYMENT_PAUSED, ReplicaSetStatus};
use schema::meta::StringMap;
use schema::records::{Rollout, RolloutFailure, RolloutStep};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadView {
    #[serde(flatten)]
    pub status: ReplicaSetStatus,
    /// First digits of the hash of the desired template, as in the names of its pods.
    pub wanted_template: String,
    /// First digits of the hash of the last template with which all pods were available.
    pub good_template: Option<String>,
    pub failure: Option<RolloutFailure>,
    pub progressed_at: Option<Timestamp>,
    /// Rollout steps, newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RolloutStep>,
    /// Node selector of a DaemonSet; empty for all nodes, and for other kinds.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    pub node_selector: StringMap,
}

impl WorkloadView {
    pub fn new(rollout: &Rollout, resource: &Resource) -> Self {
        let short = |hash: &String| Rollout::short(hash).to_owned();
        let node_selector = match resource {
            Resource::DaemonSet(spec) => spec.template.spec.node_selector.clone(),
            _ => StringMap::new(),
        };
        Self {
            node_selector,
            status: rollout.status.clone(),
            wanted_template: short(&rollout.wanted),
            good_template: rollout.good.as_ref().map(short),
            failure: rollout.failure.clone(),
            progressed_at: Some(rollout.progressed_at),
            steps: rollout.steps.clone(),
        }
    }

    /// Parses the status of a workload; default values if none is reported yet.
    pub fn of(status: &serde_json::Value) -> Self {
        serde_json::from_value(status.clone()).unwrap_or_default()
    }

    /// Progress of the rollout, in a few words.
    pub fn rollout(&self) -> String {
        match (&self.failure, &self.good_template) {
            (Some(failure), _) => format!("failed: {}: {}", failure.reason, failure.message),
            (None, Some(good)) if *good == self.wanted_template => "complete".to_owned(),
            (None, _) if self.wanted_template.is_empty() => "not begun".to_owned(),
            (None, _) if self.is_paused() => "waits until `paused` is taken away".to_owned(),
            (None, _) => "under way".to_owned(),
        }
    }

    fn is_paused(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.reason == DEPLOYMENT_PAUSED)
    }
}

#[cfg(test)]
mod tests {
    use schema::condition::{Condition, ConditionStatus};

    use super::*;

    // Seen red without `is_paused`: a paused workload was reported as under way.
    #[test]
    fn a_pause_is_not_said_to_be_under_way() {
        let mut view = WorkloadView { wanted_template: "0123abcd".to_owned(), ..WorkloadView::default() };
        assert_eq!(view.rollout(), "under way");
        view.status.conditions.push(Condition {
            kind: "Progressing".to_owned(),
            status: ConditionStatus::Unknown,
            reason: DEPLOYMENT_PAUSED.to_owned(),
            message: String::new(),
            last_transition_time: Timestamp::UNIX_EPOCH,
        });
        assert_eq!(view.rollout(), "waits until `paused` is taken away");
    }
}
