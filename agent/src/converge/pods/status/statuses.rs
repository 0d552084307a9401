//! Contents of this node's status keys, and the last reports on its pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;
use schema::snapshot::Snapshot;
use schema::store::reflector::SnapshotReader;
use tokio::sync::watch;
use tokio::time::Instant;

use super::finished::is_end;
use crate::converge::pods::facts::LastReported;
use crate::converge::publish;

/// Desired contents of this node's status keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statuses {
    pub pods: BTreeMap<NamespacedName, Arc<PodStatus>>,
    /// True if everything of this node is known, so that the keys of other pods must be removed.
    pub complete: bool,
    /// True once Docker listed the containers here.
    pub looked: bool,
}

/// Returns a callback that publishes whether an etcd without a record of the node has the statuses of all pods that
/// run here.
pub fn publish_reported(
    node: String,
    statuses: watch::Receiver<Statuses>,
    snapshot: SnapshotReader,
    reported: watch::Sender<bool>,
) -> impl FnMut() + Send {
    move || {
        let (statuses, snapshot) = (statuses.borrow(), snapshot.current());
        let is_stored = |(pod, status): (&NamespacedName, &Arc<PodStatus>)| {
            let stored = snapshot.pod_status.get(&(node.clone(), pod.clone()));
            stored.is_some_and(|stored| stored.value.uid == status.uid)
        };
        // A snapshot with the node's record, while etcd has none, is from an etcd that was lost.
        let is_new = snapshot.synced && !snapshot.nodes.contains_key(&node);
        let all = is_new && statuses.looked && statuses.pods.iter().all(is_stored);
        publish(&reported, all);
    }
}

/// Returns the last reports on the pods of this node: by this agent, or else by the former one.
pub fn last_reported(own: &Statuses, snapshot: &Snapshot, node: &str) -> LastReported {
    let mut last_reported = own.pods.clone();
    for ((_, pod), stored) in snapshot.pod_status.iter().filter(|((of, _), _)| of == node) {
        last_reported.entry(pod.clone()).or_insert_with(|| Arc::new(stored.value.clone()));
    }
    last_reported
}

/// Returns the last report on this uid.
pub fn last<'a>(last_reported: &'a LastReported, pod: &NamespacedName, uid: &str) -> Option<&'a PodStatus> {
    last_reported.get(pod).map(|status| &**status).filter(|status| status.uid == uid)
}

/// Time for which the final report on a pod stays: the writer takes a few milliseconds, more with a slow etcd.
pub const LAST_WORDS: Duration = Duration::from_secs(1);

/// Final reports that this agent would withdraw, and since when.
#[derive(Debug, Default)]
pub struct LastWords {
    since: BTreeMap<NamespacedName, Instant>,
}

impl LastWords {
    /// Keeps the final reports of the previous run in the statuses of this one until the snapshot shows them, at
    /// most for [`LAST_WORDS`]: one that was reported while the pod's task was about to end may not be written yet.
    pub fn keep(&mut self, statuses: &mut Statuses, own: &Statuses, shown: &Snapshot, node: &str) {
        let mut since = BTreeMap::new();
        let is_last = |status: &PodStatus| status.is_terminating() && is_end(status);
        for (pod, status) in own.pods.iter().filter(|(_, status)| is_last(status)) {
            let stored = shown.pod_status.get(&(node.to_owned(), pod.clone()));
            if statuses.pods.contains_key(pod) || stored.is_some_and(|stored| stored.value == **status) {
                continue;
            }
            let begun = self.since.get(pod).copied().unwrap_or_else(Instant::now);
            if begun.elapsed() < LAST_WORDS {
                since.insert(pod.clone(), begun);
                statuses.pods.insert(pod.clone(), Arc::clone(status));
            }
        }
        self.since = since;
    }
}
