//! Writes statuses to etcd: what changed, guarded per key, at most once a second per pod unless its
//! phase or readiness changes. What is due goes in few transactions; when one of them is refused, one
//! by one, so that a status that can't be written stops no other. When etcd is away the newest state
//! waits here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use schema::codec::encode;
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;
use schema::store::reflector::SnapshotReader;
use schema::store::{Guard, Op, SharedStore, StoreError, TxnOutcome};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::statuses::Statuses;

/// Between two writes of one pod.
const SPACING: Duration = Duration::from_secs(1);

/// Between two tries when the store does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Longest wait before a status is tried again that was refused while others were taken.
const REFUSED_RETRY_MAX: Duration = Duration::from_secs(60);

/// Statuses in one transaction.
const BATCH: usize = 64;

/// Bytes of statuses in one transaction; a single larger one goes by itself.
const BATCH_BYTES: usize = 1024 * 1024;

/// Refusals in a row that are taken for a store that is away.
const REFUSED_IN_A_ROW: usize = 3;

/// How often it is looked whether the keys still hold what was written, and how long the snapshot may
/// take to show a write.
const AUDIT: Duration = Duration::from_secs(10);

/// What is known of one key.
#[derive(Debug, Default)]
struct Written {
    status: Option<Arc<PodStatus>>,
    mod_revision: Option<i64>,
    at: Option<Instant>,
    /// How often in a row it was refused while others were taken.
    refused: u32,
    /// Not before, for that reason.
    retry_at: Option<Instant>,
}

/// One key to be written.
struct Due {
    pod: NamespacedName,
    key: String,
    status: Option<Arc<PodStatus>>,
    op: Op,
    bytes: usize,
    refused: u32,
}

/// Writes the newest statuses until `shutdown`.
pub struct StatusWriter {
    node: String,
    store: SharedStore,
    snapshot: SnapshotReader,
    written: BTreeMap<NamespacedName, Written>,
    listed: bool,
    /// Revision of the last removal of a key: an older snapshot may show the key still.
    removed_at: i64,
}

impl StatusWriter {
    /// A writer for `node`.
    pub fn new(node: String, store: SharedStore, snapshot: SnapshotReader) -> Self {
        Self { node, store, snapshot, written: BTreeMap::new(), listed: false, removed_at: 0 }
    }

    /// Runs until `shutdown`.
    pub async fn run(mut self, mut statuses: watch::Receiver<Statuses>, shutdown: CancellationToken) {
        loop {
            let newest = statuses.borrow_and_update().clone();
            let audit = Instant::now() + AUDIT;
            let next = self.write_all(&newest).await.map_or(audit, |at| at.min(audit));
            // All three are cancel-safe: nothing is taken out of a queue.
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = statuses.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Writes what may be written now; when to come again for the rest.
    async fn write_all(&mut self, newest: &Statuses) -> Option<Instant> {
        self.learn();
        self.forget_lost();
        let (mut due, mut next) = self.due(newest);
        // What was refused lately comes last: by then it shows whether the store takes anything.
        due.sort_by_key(|one| one.refused);
        let mut refused = Vec::new();
        let (mut in_a_row, mut taken) = (0, false);
        while !due.is_empty() {
            let batch: Vec<Due> = due.drain(..batch_of(&due)).collect();
            if batch.len() > 1 && self.write_batch(&batch).await {
                (in_a_row, taken) = (0, true);
                continue;
            }
            for one in batch {
                match self.write(&one).await {
                    Ok(()) => (in_a_row, taken) = (0, true),
                    Err(error) => {
                        in_a_row += 1;
                        if matches!(error, StoreError::Connect { .. } | StoreError::Timeout { .. }) {
                            tracing::debug!(%error, "the store is away; statuses are written later");
                            return Some(Instant::now() + RETRY);
                        }
                        refused.push((one.pod, error));
                        if in_a_row >= REFUSED_IN_A_ROW {
                            let again = Instant::now() + RETRY;
                            self.step_back(refused, taken);
                            return Some(again);
                        }
                    }
                }
            }
        }
        for (pod, error) in refused {
            let at = self.put_off(&pod, &error);
            next = Some(next.map_or(at, |n| n.min(at)));
        }
        next
    }

    /// Too many were refused in a row to go on now. Next time the others come first, whatever it is: if
    /// the store took anything it is about these, else they are not late when it is back.
    fn step_back(&mut self, refused: Vec<(NamespacedName, StoreError)>, taken: bool) {
        tracing::debug!(taken, "statuses are refused; the others are written later");
        for (pod, error) in refused {
            if taken {
                self.put_off(&pod, &error);
            } else {
                let known = self.written.entry(pod).or_default();
                known.refused = known.refused.saturating_add(1);
            }
        }
    }

    /// The store takes statuses, but not this one: it is tried again, ever later.
    fn put_off(&mut self, pod: &NamespacedName, error: &StoreError) -> Instant {
        let known = self.written.entry(pod.clone()).or_default();
        known.refused = known.refused.saturating_add(1);
        let wait = RETRY.saturating_mul(1 << known.refused.saturating_sub(1).min(6)).min(REFUSED_RETRY_MAX);
        tracing::warn!(%pod, %error, again_in = ?wait, "a status can't be written");
        let at = Instant::now() + wait;
        known.retry_at = Some(at);
        at
    }

    /// What differs from what is stored and may be written now; when more will.
    fn due(&mut self, newest: &Statuses) -> (Vec<Due>, Option<Instant>) {
        let now = Instant::now();
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        let gone: BTreeSet<NamespacedName> = if newest.complete && self.listed {
            self.written.keys().filter(|pod| !newest.pods.contains_key(*pod)).cloned().collect()
        } else {
            BTreeSet::new()
        };
        let wanted = newest.pods.iter().map(|(pod, status)| (pod, Some(status)));
        for (pod, status) in wanted.chain(gone.iter().map(|pod| (pod, None))) {
            let known = self.written.entry(pod.clone()).or_default();
            if known.status.as_ref() == status {
                if status.is_none() {
                    self.written.remove(pod);
                }
                continue;
            }
            let spaced = known.at.map(|at| at + SPACING);
            let spaced = spaced.filter(|_| !urgent(known.status.as_deref(), status.map(|s| &**s)));
            if let Some(at) = spaced.max(known.retry_at).filter(|at| *at > now) {
                next = Some(next.map_or(at, |n| n.min(at)));
                continue;
            }
            let refused = known.refused;
            let key = Key::PodStatus(self.node.clone(), pod.clone()).to_string();
            let encoded = status.map(|status| encode(&**status)).transpose();
            let (op, bytes) = match encoded {
                Ok(None) => (Op::delete(&key), 0),
                Ok(Some(bytes)) => (Op::put(&key, bytes.clone()), bytes.len()),
                Err(error) => {
                    let error = StoreError::Request { act: "a status", message: error.to_string() };
                    let at = self.put_off(pod, &error);
                    next = Some(next.map_or(at, |n| n.min(at)));
                    continue;
                }
            };
            due.push(Due { pod: pod.clone(), key, status: status.cloned(), op, bytes, refused });
        }
        (due, next)
    }

    /// Writes all of them at once; false when nobody knows, or nothing was done.
    async fn write_batch(&mut self, batch: &[Due]) -> bool {
        let guards = batch.iter().map(|one| guard(&one.key, self.revision_of(&one.pod))).collect();
        let ops = batch.iter().map(|one| one.op.clone()).collect();
        match self.store.txn(guards, ops).await {
            Ok(TxnOutcome::Committed(at)) => {
                batch.iter().for_each(|one| self.note(one, at));
                true
            }
            Ok(TxnOutcome::Conflict) => false,
            Err(error) => {
                tracing::debug!(%error, statuses = batch.len(), "statuses are written one by one");
                false
            }
        }
    }

    fn revision_of(&self, pod: &NamespacedName) -> Option<i64> {
        self.written.get(pod).and_then(|known| known.mod_revision)
    }

    /// It was written at that revision.
    fn note(&mut self, one: &Due, at: i64) {
        if one.status.is_none() {
            self.written.remove(&one.pod);
            self.removed_at = self.removed_at.max(at);
            return;
        }
        let (status, at) = (one.status.clone(), Some(at));
        let written = Written { status, mod_revision: at, at: Some(Instant::now()), ..Written::default() };
        self.written.insert(one.pod.clone(), written);
    }

    /// Takes over what is stored when nothing is known of a key: from the agent before, or from a write
    /// that came through after it was given up. Without that, a pod's key would outlive it for good.
    fn learn(&mut self) {
        let snapshot = self.snapshot.current();
        if !snapshot.synced || (self.listed && snapshot.revision < self.removed_at) {
            return;
        }
        for ((node, pod), stored) in &snapshot.pod_status {
            if *node != self.node || (self.listed && self.written.contains_key(pod)) {
                continue;
            }
            let known = self.written.entry(pod.clone()).or_default();
            if known.mod_revision.is_none() {
                known.mod_revision = Some(stored.mod_revision);
                known.status = Some(Arc::new(stored.value.clone()));
            }
        }
        self.listed = true;
    }

    /// A key that was written a while ago and is not there is written again: etcd was lost and began
    /// anew, or somebody removed it.
    fn forget_lost(&mut self) {
        let snapshot = self.snapshot.current();
        if !snapshot.synced {
            return;
        }
        for (pod, known) in self.written.iter_mut().filter(|(_, known)| known.status.is_some()) {
            let shown = snapshot.pod_status.contains_key(&(self.node.clone(), pod.clone()));
            if !shown && known.at.is_none_or(|at| at.elapsed() >= AUDIT) {
                *known = Written { at: known.at, ..Written::default() };
            }
        }
    }

    async fn write(&mut self, one: &Due) -> Result<(), StoreError> {
        let mut revision = self.revision_of(&one.pod);
        // Twice: the first guard may rest on an old revision.
        for _ in 0..2 {
            let guards = vec![guard(&one.key, revision)];
            if let TxnOutcome::Committed(at) = self.store.txn(guards, vec![one.op.clone()]).await? {
                self.note(one, at);
                return Ok(());
            }
            revision = self.store.get(&one.key).await?.map(|stored| stored.mod_revision);
            if one.status.is_none() && revision.is_none() {
                self.written.remove(&one.pod);
                return Ok(());
            }
        }
        Err(StoreError::Request { act: "a status write", message: "the key keeps changing".to_owned() })
    }
}

fn guard(key: &str, revision: Option<i64>) -> Guard {
    match revision {
        Some(revision) => Guard::ModRevision(key.to_owned(), revision),
        None => Guard::Absent(key.to_owned()),
    }
}

/// How many of the first go in one transaction; at least one.
fn batch_of(due: &[Due]) -> usize {
    let mut bytes = 0;
    let fits = |one: &&Due| {
        bytes += one.bytes;
        bytes <= BATCH_BYTES
    };
    due.iter().take(BATCH).take_while(fits).count().max(1)
}

/// Someone waits for this change.
fn urgent(old: Option<&PodStatus>, new: Option<&PodStatus>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            old.phase != new.phase || old.uid != new.uid || old.is_ready() != new.is_ready()
        }
        _ => true,
    }
}
