//! Finds why pods of a template do not become available, from the first pod that gives a reason. Pure.

use schema::kinds::pod::{ContainerState, ContainerStatus, PodStatus};
use schema::snapshot::Snapshot;

use super::owned::OwnedPod;
use super::rollout::Cause;
use crate::controllers::scheduler::explain;

/// Returns what keeps the first of `pods`, which are not available, from becoming so.
pub(super) fn cause<'p, 'a: 'p>(snapshot: &Snapshot, pods: impl Iterator<Item = &'p OwnedPod<'a>>) -> Cause {
    // A container's own report is more specific than that a pod waits.
    let rank = |pod: &&OwnedPod<'_>| match (pod.node, pod.status.filter(|_| pod.node_is_ready)) {
        (Some(_), Some(status)) if of_status(status).is_some() => 0,
        (None, _) => 1,
        (Some(_), None) => 2,
        (Some(_), Some(_)) => 3,
    };
    let none = || Cause {
        reason: "ProgressDeadlineExceeded".to_owned(),
        message: "its pods are not made yet".to_owned(),
    };
    pods.min_by_key(rank).map_or_else(none, |pod| of_pod(snapshot, pod))
}

fn of_pod(snapshot: &Snapshot, pod: &OwnedPod<'_>) -> Cause {
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
    match of_status(status) {
        Some((reason, why)) => cause(&reason, why),
        None => cause("ProgressDeadlineExceeded", "it is not available yet".to_owned()),
    }
}

/// Returns a reason of one word, and a sentence with the container's own last message.
fn of_status(status: &PodStatus) -> Option<(String, String)> {
    if !status.reason.is_empty() {
        return Some((status.reason.clone(), status.message.clone()));
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    containers.filter_map(of_container).next()
}

fn of_container(container: &ContainerStatus) -> Option<(String, String)> {
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
