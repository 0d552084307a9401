//! Order in which pods are ended: Kubernetes' (`ActivePodsWithRanks`), where the first difference decides.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::kinds::pod::PodPhase;

use super::owned::OwnedPod;

/// Annotation with the cost of deleting a pod; the cheapest goes first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Sorts the pod to end first to the front. `all` are the pods of the workload: live ones count as sharing a node.
pub(super) fn order(pods: &mut [&OwnedPod<'_>], all: &[OwnedPod<'_>], now: Timestamp) {
    let mut on_node: BTreeMap<&str, usize> = BTreeMap::new();
    for node in all.iter().filter(|pod| !pod.is_lost).filter_map(|pod| pod.node) {
        *on_node.entry(node).or_default() += 1;
    }
    pods.sort_by_cached_key(|pod| rank(pod, &on_node, now));
}

/// Returns the eight sort keys, and the name, so that the order is total.
fn rank(pod: &OwnedPod<'_>, on_node: &BTreeMap<&str, usize>, now: Timestamp) -> impl Ord + use<> {
    let siblings = pod.node.and_then(|node| on_node.get(node)).copied().unwrap_or(0);
    let started = pod.status.and_then(|status| status.start_time);
    (
        pod.node.is_some(),
        match pod.phase() {
            PodPhase::Pending => 0,
            PodPhase::Unknown => 1,
            PodPhase::Running | PodPhase::Succeeded | PodPhase::Failed => 2,
        },
        pod.is_ready(),
        cost(pod),
        Reverse(siblings),
        age_bucket(pod.ready_since(), now),
        Reverse(restarts(pod)),
        age_bucket(started, now),
        Reverse(pod.pod().name.clone()),
    )
}

fn cost(pod: &OwnedPod<'_>) -> i32 {
    pod.pod().annotations.get(DELETION_COST).and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

fn restarts(pod: &OwnedPod<'_>) -> u32 {
    let containers = pod.status.map_or(&[][..], |status| &status.container_statuses);
    containers.iter().map(|container| container.restart_count).max().unwrap_or(0)
}

/// Returns the power of two of the age in seconds: pods created at almost the same moment rank equal.
fn age_bucket(since: Option<Timestamp>, now: Timestamp) -> u32 {
    let seconds = since.map_or(0, |since| now.duration_since(since).as_secs());
    u64::try_from(seconds).unwrap_or(0).checked_ilog2().map_or(0, |bucket| bucket + 1)
}
