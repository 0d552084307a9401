//! State machine of a rollout: begins, progresses, completes or fails. Pure.
//!
//! Progress restarts the clock, and only a state closer to the end than ever before is progress: a pod that
//! alternately crashes and recovers misses its deadline.

use jiff::{SignedDuration, Timestamp};
use schema::condition::{Condition, ConditionStatus, set_condition};
use schema::kinds::pod::{ContainerState, ContainerStatus, PodStatus};
use schema::kinds::replica_set::{DEPLOYMENT_PAUSED, ReplicaSetStatus};
use schema::object::short_commit;
use schema::records::{ROLLOUT_STEPS_MAX, Rollout, RolloutFailure, RolloutProgress, RolloutStep};
use schema::snapshot::Snapshot;
use schema::violation::plural;

use super::owned::OwnedPod;
use super::workload::Workload;
use crate::controllers::scheduler::explain;

/// Pods of a workload that are not lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) replicas: u32,
    pub(super) ready: u32,
    pub(super) available: u32,
    /// Pods with the wanted template.
    pub(super) updated: u32,
    pub(super) updated_available: u32,
}

impl Counts {
    fn progress(self) -> RolloutProgress {
        let old = self.replicas - self.updated;
        RolloutProgress { updated: self.updated, available: self.updated_available, old }
    }

    fn is_complete(self, desired: u32) -> bool {
        desired > 0 && self.updated == self.replicas && self.updated_available >= desired
    }
}

/// Cause that keeps pods of a template from becoming available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cause {
    /// A CamelCase word.
    pub(super) reason: String,
    pub(super) message: String,
}

impl Cause {
    /// True if the cause is more than a state that every pod passes through at startup.
    pub(super) fn is_trouble(&self) -> bool {
        const ON_THE_WAY: [&str; 6] = [
            "ContainerCreating",
            "ContainersNotReady",
            "PodInitializing",
            "ProgressDeadlineExceeded",
            "Terminating",
            "WaitingForFormerPod",
        ];
        !ON_THE_WAY.contains(&self.reason.as_str())
    }
}

/// Returns the present record. Calls `cause` at the deadline; if there is none because a node is silent, the
/// deadline starts over.
pub(super) fn advance(
    workload: &Workload<'_>,
    before: Option<&Rollout>,
    counts: Counts,
    cause: impl FnOnce() -> Option<Cause>,
    now: Timestamp,
) -> Rollout {
    let mut rollout = begin(workload, before, counts, now);
    if counts.is_complete(workload.desired) {
        if !rollout.complete || rollout.failure.is_some() {
            let message = format!("complete: {} available", plural(counts.updated_available, "pod"));
            step(&mut rollout, message, now);
        }
        rollout.good = Some(rollout.wanted.clone());
        rollout.complete = true;
        rollout.failure = None;
    }
    if is_under_way(workload, &rollout) {
        let progress = counts.progress();
        let best = rollout.best;
        if progress.updated > best.updated || progress.available > best.available || progress.old < best.old {
            rollout.progressed_at = now;
        }
        rollout.best = RolloutProgress {
            updated: best.updated.max(progress.updated),
            available: best.available.max(progress.available),
            old: best.old.min(progress.old),
        };
        if deadline(workload, &rollout).is_some_and(|deadline| deadline <= now) {
            match cause() {
                Some(cause) => fail(workload, &mut rollout, cause, now),
                None => rollout.progressed_at = now,
            }
        }
    }
    if rollout.complete && counts.available > rollout.status.available_replicas {
        // More pods of the same template, as a commit asked for.
        rollout.progressed_at = now;
    }
    rollout.status = status(workload, &rollout, counts, now);
    rollout
}

/// Returns the time at which the rollout fails without progress.
pub(super) fn deadline(workload: &Workload<'_>, rollout: &Rollout) -> Option<Timestamp> {
    let within = SignedDuration::from_secs(workload.deadline_seconds.into());
    rollout.progressed_at.checked_add(within).ok().filter(|_| is_under_way(workload, rollout))
}

fn is_under_way(workload: &Workload<'_>, rollout: &Rollout) -> bool {
    !rollout.complete && rollout.failure.is_none() && !workload.paused && workload.desired > 0
}

/// Applies what the object asks for. Another template, or another commit after a failure, restarts the rollout.
fn begin(workload: &Workload<'_>, before: Option<&Rollout>, counts: Counts, now: Timestamp) -> Rollout {
    let object = workload.object;
    let commit = &object.provenance.commit;
    if let Some(before) = before.filter(|_| workload.awaits_image) {
        return before.clone();
    }
    let fresh = || Rollout {
        object_hash: object.hash.clone(),
        commit: commit.clone(),
        wanted: workload.wanted.clone(),
        good: None,
        complete: false,
        failure: None,
        started_at: now,
        progressed_at: now,
        best: counts.progress(),
        status: ReplicaSetStatus::default(),
        steps: Vec::new(),
    };
    let mut rollout = before.cloned().unwrap_or_else(fresh);
    let is_new = before.is_none() || rollout.wanted != workload.wanted;
    let is_touched = rollout.commit != *commit || rollout.object_hash != object.hash;
    if is_new || is_touched && !rollout.complete {
        let again = rollout.failure.is_some() && !is_new;
        rollout = Rollout { good: rollout.good, steps: rollout.steps, status: rollout.status, ..fresh() };
        let again = match (workload.paused, again) {
            (true, _) => "waits until `paused` is removed",
            (false, true) => "tried again",
            (false, false) => "began",
        };
        let (hash, commit) = (Rollout::short(&rollout.wanted), short_commit(commit));
        let message = format!("rollout of template {hash} {again}, by commit {commit}");
        step(&mut rollout, message, now);
    }
    rollout.object_hash.clone_from(&object.hash);
    rollout.commit.clone_from(commit);
    rollout
}

fn fail(workload: &Workload<'_>, rollout: &mut Rollout, cause: Cause, now: Timestamp) {
    let Cause { reason, message } = cause;
    let back = match rollout.good.as_ref().filter(|good| **good != rollout.wanted) {
        Some(good) => format!("template {} serves again", Rollout::short(good)),
        None => "there is no previous template to roll back to".to_owned(),
    };
    let message = format!(
        "template {} made no progress for {} s: {message}; {back}",
        Rollout::short(&rollout.wanted),
        workload.deadline_seconds
    );
    step(rollout, format!("failed: {message}"), now);
    rollout.failure = Some(RolloutFailure { at: now, reason, message });
}

fn step(rollout: &mut Rollout, message: String, now: Timestamp) {
    rollout.steps.push(RolloutStep { at: now, message });
    let surplus = rollout.steps.len().saturating_sub(ROLLOUT_STEPS_MAX);
    rollout.steps.drain(..surplus);
}

fn status(workload: &Workload<'_>, rollout: &Rollout, counts: Counts, now: Timestamp) -> ReplicaSetStatus {
    let mut conditions = rollout.status.conditions.clone();
    let mut set = |kind: &str, status: ConditionStatus, reason: &str, message: String| {
        let (kind, reason) = (kind.to_owned(), reason.to_owned());
        let condition = Condition { kind, status, reason, message, last_transition_time: now };
        set_condition(&mut conditions, condition);
    };
    match &rollout.failure {
        Some(failure) => {
            set("Progressing", ConditionStatus::False, &failure.reason, failure.message.clone());
        }
        None if rollout.complete => {
            set("Progressing", ConditionStatus::True, "NewReplicaSetAvailable", String::new());
        }
        None if workload.paused => {
            set("Progressing", ConditionStatus::Unknown, DEPLOYMENT_PAUSED, String::new());
        }
        None => set("Progressing", ConditionStatus::True, "ReplicaSetUpdated", String::new()),
    }
    let is_available = counts.available >= workload.least_available();
    let reason = if is_available { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" };
    set("Available", is_available.into(), reason, String::new());
    ReplicaSetStatus {
        observed_generation: if workload.awaits_image {
            rollout.status.observed_generation
        } else {
            workload.object.generation
        },
        desired_replicas: workload.desired,
        replicas: counts.replicas,
        updated_replicas: counts.updated,
        ready_replicas: counts.ready,
        available_replicas: counts.available,
        conditions,
    }
}

// Finds why pods of a template do not become available, from the first pod that gives a reason. Pure.

/// Returns what keeps the first of `pods`, which are not available, from becoming so.
pub(super) fn cause<'p, 'a: 'p>(snapshot: &Snapshot, pods: impl Iterator<Item = &'p OwnedPod<'a>>) -> Cause {
    // A container's own report is more specific than that a pod waits.
    let rank = |pod: &&OwnedPod<'_>| match (pod.node, pod.status.filter(|_| pod.node_is_ready)) {
        (Some(_), Some(status)) if cause_of_status(status).is_some() => 0,
        (None, _) => 1,
        (Some(_), None) => 2,
        (Some(_), Some(_)) => 3,
    };
    let none = || Cause {
        reason: "ProgressDeadlineExceeded".to_owned(),
        message: "its pods are not created yet".to_owned(),
    };
    pods.min_by_key(rank).map_or_else(none, |pod| cause_of_pod(snapshot, pod))
}

fn cause_of_pod(snapshot: &Snapshot, pod: &OwnedPod<'_>) -> Cause {
    let name = &pod.pod().name;
    let cause = |reason: &str, why: String| Cause {
        reason: reason.to_owned(),
        message: format!("pod {name}: {why}"),
    };
    let Some(node) = pod.node else {
        let why = explain(snapshot, &pod.pod().reference()).unwrap_or_else(|| "it has no node".to_owned());
        return cause("Unschedulable", why);
    };
    let Some(status) = pod.status.filter(|_| pod.node_is_ready) else {
        return cause("ProgressDeadlineExceeded", format!("node {node} does not report it"));
    };
    match cause_of_status(status) {
        Some((reason, why)) => cause(&reason, why),
        None => cause("ProgressDeadlineExceeded", "it is not available yet".to_owned()),
    }
}

/// Returns a reason of one word, and a sentence with the container's own last message.
fn cause_of_status(status: &PodStatus) -> Option<(String, String)> {
    if !status.reason.is_empty() {
        return Some((status.reason.clone(), status.message.clone()));
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    containers.filter_map(cause_of_container).next()
}

fn cause_of_container(container: &ContainerStatus) -> Option<(String, String)> {
    let name = &container.name;
    let end = match &container.state {
        ContainerState::Terminated(end) => Some(end),
        ContainerState::Waiting(_) | ContainerState::Running(_) => container.last_state.as_ref(),
    };
    let end = end.filter(|end| end.exit_code != 0).map(|end| {
        let said = if end.message.is_empty() { String::new() } else { format!(": {}", end.message) };
        format!("ended with code {} ({}){said}", end.exit_code, end.reason)
    });
    match (&container.state, end) {
        (ContainerState::Waiting(waiting), None) => {
            let said = if waiting.message.is_empty() { &waiting.reason } else { &waiting.message };
            Some((waiting.reason.clone(), format!("container {name}: {said}")))
        }
        (ContainerState::Running(_), None) if !container.ready => {
            Some(("ContainersNotReady".to_owned(), format!("container {name} runs, but is not ready")))
        }
        (_, Some(end)) => Some(("CrashLoopBackOff".to_owned(), format!("container {name} {end}"))),
        (_, None) => None,
    }
}
