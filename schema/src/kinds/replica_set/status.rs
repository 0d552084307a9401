//! Status of a replica set, as the workloads controller reports it.

use serde::{Deserialize, Serialize};

use crate::condition::{Condition, ConditionStatus};
use crate::kinds::Health;

/// Reason of `Progressing` while a changed template waits for the end of a pause, as in Kubernetes.
pub const DEPLOYMENT_PAUSED: &str = "DeploymentPaused";

/// Status of a replica set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaSetStatus {
    /// Generation of the object that the status describes.
    #[serde(default)]
    pub observed_generation: u64,
    /// Desired number of pods, from the spec or the autoscaler.
    #[serde(default)]
    pub desired_replicas: u32,
    /// Number of existing pods.
    #[serde(default)]
    pub replicas: u32,
    /// Number of pods with the current template.
    #[serde(default)]
    pub updated_replicas: u32,
    /// Number of ready pods.
    #[serde(default)]
    pub ready_replicas: u32,
    /// Number of pods that have been ready for `minReadySeconds`.
    #[serde(default)]
    pub available_replicas: u32,
    /// `Progressing`, `Available`, `ReplicaFailure`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl ReplicaSetStatus {
    /// Returns the health of the workload at `generation`, by the rules of `kubectl rollout status`. `paused`: no
    /// template is rolled out for the time being.
    pub fn health(&self, generation: u64, paused: bool) -> Health {
        let status = self;
        let ReplicaSetStatus { desired_replicas: wanted, replicas, updated_replicas: updated, .. } = *status;
        let progressing = |why: String| Health::Progressing { why };
        if status.observed_generation < generation {
            return progressing("its change has not been seen yet".to_owned());
        }
        let rollout = status.conditions.iter().find(|condition| condition.kind == "Progressing");
        let trouble = rollout.map_or("", |condition| &condition.message);
        let trouble = if trouble.is_empty() { String::new() } else { format!("; {trouble}") };
        if let Some(condition) = rollout.filter(|condition| condition.status == ConditionStatus::False) {
            let why = if condition.message.is_empty() { &condition.reason } else { &condition.message };
            return Health::Degraded { why: why.clone() };
        }
        if paused && status.available_replicas >= wanted {
            return Health::Healthy;
        }
        if updated < wanted {
            progressing(format!("{updated} of {wanted} pods are updated{trouble}"))
        } else if replicas > updated {
            progressing(format!("{} old pods are to go{trouble}", replicas - updated))
        } else if status.available_replicas < wanted {
            progressing(format!("{} of {wanted} pods are available{trouble}", status.available_replicas))
        } else {
            Health::Healthy
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn health_follows_the_rollout() {
        let mut status =
            ReplicaSetStatus { observed_generation: 1, desired_replicas: 3, ..Default::default() };
        let why = |health: Health| match health {
            Health::Progressing { why } => why,
            other => other.to_string(),
        };
        assert_eq!(why(status.health(2, false)), "its change has not been seen yet");
        status.observed_generation = 2;
        (status.updated_replicas, status.replicas) = (2, 4);
        assert_eq!(why(status.health(2, false)), "2 of 3 pods are updated");
        status.updated_replicas = 3;
        assert_eq!(why(status.health(2, false)), "1 old pods are to go");
        (status.replicas, status.available_replicas) = (3, 2);
        assert_eq!(why(status.health(2, false)), "2 of 3 pods are available");
        status.available_replicas = 3;
        assert_eq!(status.health(2, false), Health::Healthy);
        status.conditions.push(Condition {
            kind: "Progressing".to_owned(),
            status: ConditionStatus::False,
            reason: "ProgressDeadlineExceeded".to_owned(),
            message: String::new(),
            last_transition_time: Timestamp::UNIX_EPOCH,
        });
        assert_eq!(status.health(2, false), Health::Degraded { why: "ProgressDeadlineExceeded".to_owned() });
    }
}
