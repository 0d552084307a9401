//! Wake-ups and intervals of the reconciler's loops.

use std::time::Duration;

use schema::control::{LastRunReader, Row};
use schema::snapshot::Snapshot;
use schema::store::election::FenceReader;
use schema::store::reflector::SnapshotReader;

/// Interval at which controllers run even if nothing changed.
const CONTROLLER_INTERVAL: Duration = Duration::from_secs(60);
/// Shortest time between two wake-ups of a controller by the snapshot.
pub(super) const WAKE_GAP: Duration = Duration::from_millis(10);
/// Shortest time between wake-ups for verdicts, which are for people: a run may check every object of a commit.
pub(super) const VERDICTS_GAP: Duration = Duration::from_millis(250);
/// Shortest time between wake-ups of the autoscaler: a thousand nodes report their usage every 15 s.
const USAGE_GAP: Duration = Duration::from_secs(1);
/// Longest wait before answers that could not be written are retried.
const ANSWERS_RETRY_MAX: Duration = Duration::from_secs(2);

/// Row of a source: woken by its interval, a change of leader and the first synced snapshot.
pub(crate) fn source_row(poll: Duration, snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let mut synced = snapshot.clone();
    Row::every(poll).wake_on(fence.clone()).wake_by(|nudge| async move {
        synced.synced().await;
        nudge.nudge();
        std::future::pending().await
    })
}

/// Row of a controller: woken by changes of the snapshot and the lead, but not by usage, which each node writes
/// every 15 s, nor by sync requests.
pub(super) fn controller_row(snapshot: &SnapshotReader, fence: &FenceReader, gap: Duration) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| !now.plans_as(before);
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), gap, is_news)
}

/// Row of the autoscaler, which also wakes when nodes report usage.
pub(super) fn autoscaler_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news =
        |before: &Snapshot, now: &Snapshot| !now.plans_as(before) || !now.usage.ptr_eq(&before.usage);
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), USAGE_GAP, is_news)
}

/// Row of the functions controller, which wakes immediately when gateways report calls: someone may be waiting for
/// the first replica.
pub(super) fn functions_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news =
        |before: &Snapshot, now: &Snapshot| !now.plans_as(before) || !now.demand.ptr_eq(&before.demand);
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), WAKE_GAP, is_news)
}

/// Row of workflows: woken by changes of objects and of the records of runs and triggers.
pub(super) fn workflows_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.objects.ptr_eq(&before.objects)
            || !now.workflows.ptr_eq(&before.workflows)
            || !now.triggers.ptr_eq(&before.triggers)
            || !now.settled.ptr_eq(&before.settled)
            || now.synced != before.synced
    };
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), WAKE_GAP, is_news)
}

/// Row of the answers: woken by runs of sources' loops, and by changes of requests and sources.
pub(crate) fn answers_row(snapshot: &SnapshotReader, fence: &FenceReader, runs: &[LastRunReader]) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.requests.ptr_eq(&before.requests)
            || !now.answers.ptr_eq(&before.answers)
            || !now.sources.ptr_eq(&before.sources)
            || now.synced != before.synced
    };
    // Someone waits for the answer: after an outage of etcd it must be written soon.
    let row = Row::every(CONTROLLER_INTERVAL).backoff_max(ANSWERS_RETRY_MAX).wake_on(fence.clone());
    let row = row.wake_if(snapshot.clone(), WAKE_GAP, is_news);
    runs.iter().cloned().fold(row, Row::wake_on)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::{FutureExt as _, stream};
    use schema::control::Runtime;
    use schema::store::SharedStore;
    use schema::store::election;
    use tokio_util::sync::CancellationToken;

    use super::super::lead::LEADER_TTL;
    use super::*;

    /// Seen red without the comparison in `controller_row`, and with it alone in `autoscaler_row`.
    #[tokio::test(start_paused = true)]
    async fn what_nodes_use_wakes_the_autoscaler_and_no_other_controller() {
        let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
        let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
        let store: SharedStore = Arc::new(schema::store::memory::MemoryStore::new());
        let token = CancellationToken::new();
        let (fence, election) =
            election::stand(Arc::clone(&store), "r1".to_owned(), LEADER_TTL, token.clone());
        tokio::spawn(election);
        let (woken, nudged) = schema::control::Nudge::new();
        let answers_woken = woken.clone();
        let (scaler_woken, scaler_nudged) = schema::control::Nudge::new();
        let mut runtime = Runtime::new();
        runtime.follow("controller", controller_row(&reader, &fence, WAKE_GAP), move || woken.nudge());
        runtime.follow("answers", answers_row(&reader, &fence, &[]), move || answers_woken.nudge());
        runtime.follow("hpa", autoscaler_row(&reader, &fence), move || scaler_woken.nudge());
        let stop = stream::once(token.clone().cancelled_owned().map(|()| "stop").boxed());
        let running = tokio::spawn(runtime.run_until(stop));
        let write = |snapshot: &mut Snapshot, key: schema::keys::Key, revision: i64| {
            snapshot.put(&key, &schema::records::Settled::default(), revision);
            publisher.publish(snapshot.clone());
        };
        let usage = schema::records::NodeUsage {
            at: jiff::Timestamp::UNIX_EPOCH,
            window_seconds: 15,
            cpu: 0,
            memory: 0,
            pods: Default::default(),
            left_out: String::new(),
        };
        // The lead and the first snapshot wake each loop once, at most.
        write(&mut snapshot, schema::keys::Key::Settled("n1".to_owned()), 1);
        while tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await.is_ok() {}
        while tokio::time::timeout(Duration::from_secs(2), scaler_nudged.wait()).await.is_ok() {}
        for revision in 2..5 {
            snapshot.put(&schema::keys::Key::Usage("n1".to_owned()), &usage, revision);
            publisher.publish(snapshot.clone());
            let woken = tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await;
            assert!(woken.is_err(), "a write of usage woke a controller");
            tokio::time::timeout(Duration::from_secs(2), scaler_nudged.wait()).await.unwrap();
        }
        write(&mut snapshot, schema::keys::Key::Settled("n2".to_owned()), 5);
        tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await.unwrap();
        token.cancel();
        running.await.unwrap().unwrap();
    }
}
