//! Writes a daemon's reports to etcd: only changes, guarded per key, at most once a second per key unless someone
//! waits for the change. Due values share few transactions; when one is refused, they are written one by one, so
//! that a value that can't be written blocks no other. While etcd is away the newest state waits here.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Guard, Op, SharedStore, StoreError, TxnOutcome};
use crate::codec::{decode, encode};
use crate::keys::Key;
use crate::records::{NodeDemand, NodeUsage, RulesStatus};
use crate::snapshot::{Snapshot, Table, VersionedValue};

/// Time between two writes of one key.
const SPACING: Duration = Duration::from_secs(1);
/// Time between two attempts while the store does not answer.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait before a retry of a value that was refused while others were accepted.
const REFUSED_RETRY_MAX: Duration = Duration::from_secs(60);
/// Most values in a transaction.
const BATCH: usize = 64;
/// Most bytes of values in a transaction; a single larger value goes alone.
const BATCH_BYTES: usize = 1024 * 1024;
/// Consecutive refusals from which the store counts as away.
const REFUSED_IN_A_ROW: usize = 3;
/// Interval at which the writer checks that the keys still hold what was written, and longest time that a snapshot
/// may take to show a write.
const AUDIT: Duration = Duration::from_secs(10);

/// Content reported by a writer: its keys, their values, and the stored values.
#[async_trait]
pub trait Report: Send + Sync + 'static {
    /// Identifies one of its keys.
    type Id: Ord + Clone + Debug + Send + Sync;
    /// Value of a key.
    type Value: Serialize + PartialEq + Clone + Send + Sync;
    /// Complete newest state to report.
    type Newest: Clone + Send + Sync;

    /// Returns the key.
    fn key(&self, id: &Self::Id) -> Key;

    /// Returns the values to report, by key.
    fn values(newest: &Self::Newest) -> BTreeMap<Self::Id, Arc<Self::Value>>;

    /// True if everything is known: keys without a value are removed.
    fn is_complete(_: &Self::Newest) -> bool {
        false
    }

    /// True if someone waits for this change.
    fn is_urgent(_old: Option<&Self::Value>, _new: Option<&Self::Value>) -> bool {
        false
    }

    /// Derives the newest value from the written one.
    fn continued_from(_written: &Self::Value, newest: Arc<Self::Value>) -> Arc<Self::Value> {
        newest
    }

    /// Returns the stored values; `None` while they are not known. Unless `is_due`, returns only what is known
    /// without a request.
    async fn stored(&self, is_due: bool) -> Result<Option<StoredValues<Self::Id, Self::Value>>, StoreError>;
}

/// Stored values of the keys of a [`Report`].
pub struct StoredValues<I, V> {
    /// Revision of the values.
    pub revision: i64,
    /// Values by key.
    pub values: BTreeMap<I, Arc<VersionedValue<V>>>,
}

impl<I: Ord + Clone, V> StoredValues<I, V> {
    /// Returns the rows of a node in a snapshot; `None` before they were listed.
    pub fn from_snapshot(snapshot: &Snapshot, rows: &Table<(String, I), V>, node: &str) -> Option<Self> {
        if !snapshot.synced {
            return None;
        }
        let own = rows.iter().filter(|((of, _), _)| of == node);
        let values = own.map(|((_, id), stored)| (id.clone(), Arc::clone(stored))).collect();
        Some(Self { revision: snapshot.revision, values })
    }
}

/// Report of a single key. A stored value that can't be read is overwritten.
pub struct SingleKeyReport<V> {
    store: SharedStore,
    key: Key,
    value: PhantomData<fn() -> V>,
}

/// Value reported under a single key.
pub trait ReportedValue: Serialize + DeserializeOwned + PartialEq + Clone + Send + Sync + 'static {
    /// Derives the value from the written one.
    #[must_use]
    fn continued_from(self, _written: &Self) -> Self {
        self
    }

    /// True if someone waits for this change.
    fn is_urgent(_old: Option<&Self>, _new: Option<&Self>) -> bool {
        false
    }
}

#[async_trait]
impl<V: ReportedValue> Report for SingleKeyReport<V> {
    type Id = ();
    type Value = V;
    type Newest = Option<V>;

    fn key(&self, (): &()) -> Key {
        self.key.clone()
    }

    fn values(newest: &Option<V>) -> BTreeMap<(), Arc<V>> {
        newest.iter().map(|value| ((), Arc::new(value.clone()))).collect()
    }

    fn is_urgent(old: Option<&V>, new: Option<&V>) -> bool {
        V::is_urgent(old, new)
    }

    fn continued_from(written: &V, newest: Arc<V>) -> Arc<V> {
        Arc::new(V::clone(&newest).continued_from(written))
    }

    async fn stored(&self, is_due: bool) -> Result<Option<StoredValues<(), V>>, StoreError> {
        if !is_due {
            return Ok(None);
        }
        let there = self.store.get(&self.key.to_string()).await?;
        let value = there.and_then(|there| {
            let (create_revision, mod_revision) = (there.create_revision, there.mod_revision);
            let value = decode(&there.value).ok()?;
            Some(((), Arc::new(VersionedValue { value, create_revision, mod_revision })))
        });
        Ok(Some(StoredValues { revision: i64::MAX, values: value.into_iter().collect() }))
    }
}

impl<V: ReportedValue> StatusWriter<SingleKeyReport<V>> {
    /// Creates a writer of a single key.
    pub fn for_key(key: Key, store: SharedStore) -> Self {
        Self::new(SingleKeyReport { store: Arc::clone(&store), key, value: PhantomData }, store)
    }
}

/// Known state of a key.
struct KeyState<V> {
    value: Option<Arc<V>>,
    mod_revision: Option<i64>,
    at: Option<Instant>,
    /// Consecutive refusals while others were accepted.
    refused: u32,
    /// Earliest retry after a refusal.
    retry_at: Option<Instant>,
}

impl<V> Default for KeyState<V> {
    fn default() -> Self {
        Self { value: None, mod_revision: None, at: None, refused: 0, retry_at: None }
    }
}

/// A key to write.
struct PendingWrite<R: Report> {
    id: R::Id,
    key: String,
    value: Option<Arc<R::Value>>,
    op: Op,
    bytes: usize,
    refused: u32,
}

/// Writes the newest state of a report until shutdown.
pub struct StatusWriter<R: Report> {
    report: R,
    store: SharedStore,
    written: BTreeMap<R::Id, KeyState<R::Value>>,
    listed: bool,
    audit_at: Instant,
    /// Revision of the last removal of a key: an older snapshot may still show the key.
    removed_at: i64,
}

impl<R: Report> StatusWriter<R> {
    /// Creates a writer that knows nothing yet.
    pub fn new(report: R, store: SharedStore) -> Self {
        let audit_at = Instant::now();
        Self { report, store, written: BTreeMap::new(), listed: false, audit_at, removed_at: 0 }
    }

    /// Runs until `shutdown`.
    pub async fn run(mut self, mut newest: watch::Receiver<R::Newest>, shutdown: CancellationToken) {
        loop {
            let now = newest.borrow_and_update().clone();
            let next = self.write_all(&now).await;
            let next = next.map_or(self.audit_at, |at| at.min(self.audit_at));
            // All three are cancel-safe: nothing is taken out of a queue.
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = newest.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Writes what may be written now; returns the time to continue with the rest.
    async fn write_all(&mut self, newest: &R::Newest) -> Option<Instant> {
        self.refresh_stored().await;
        let (mut due, mut next) = self.due(newest);
        // Recently refused values come last: the others show whether the store accepts anything.
        due.sort_by_key(|one| one.refused);
        let mut refused = Vec::new();
        let (mut in_a_row, mut taken) = (0, false);
        while !due.is_empty() {
            let batch: Vec<PendingWrite<R>> = due.drain(..batch_len(&due)).collect();
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
                            tracing::debug!(%error, "store away; statuses are written later");
                            return Some(Instant::now() + RETRY);
                        }
                        refused.push((one.id.clone(), error));
                        if in_a_row >= REFUSED_IN_A_ROW || (!taken && !self.answers(&one.key).await) {
                            let again = Instant::now() + RETRY;
                            self.step_back(refused, taken);
                            return Some(again);
                        }
                    }
                }
            }
        }
        for (id, error) in refused {
            let at = self.delay_retry(&id, &error);
            next = Some(next.map_or(at, |n| n.min(at)));
        }
        next
    }

    /// True if the store answers reads while it refuses writes.
    async fn answers(&self, key: &str) -> bool {
        self.store.get(key).await.is_ok()
    }

    /// Gives up for now after too many consecutive refusals. Next time the others come first: if the store accepted
    /// anything, these values are to blame, else they must not be late when it is back.
    fn step_back(&mut self, refused: Vec<(R::Id, StoreError)>, taken: bool) {
        tracing::debug!(taken, "statuses refused; the others are written later");
        for (id, error) in refused {
            if taken {
                self.delay_retry(&id, &error);
            } else {
                let key = self.report.key(&id);
                let known = self.written.entry(id).or_default();
                // Only once: it is retried every second as long as etcd accepts nothing.
                if known.refused == 0 {
                    tracing::warn!(%key, %error, "status not written; it is tried again");
                }
                known.refused = known.refused.saturating_add(1);
            }
        }
    }

    /// Schedules a retry, at growing intervals, of a value that the store refuses while it accepts others.
    fn delay_retry(&mut self, id: &R::Id, error: &StoreError) -> Instant {
        let key = self.report.key(id);
        let known = self.written.entry(id.clone()).or_default();
        known.refused = known.refused.saturating_add(1);
        let wait = RETRY.saturating_mul(1 << known.refused.saturating_sub(1).min(6)).min(REFUSED_RETRY_MAX);
        tracing::warn!(%key, %error, retry_in = ?wait, "status refused; it is tried again");
        let at = Instant::now() + wait;
        known.retry_at = Some(at);
        at
    }

    /// Returns the values that differ from the stored ones and may be written now, and the time at which more may.
    fn due(&mut self, newest: &R::Newest) -> (Vec<PendingWrite<R>>, Option<Instant>) {
        let now = Instant::now();
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        let mut wanted: BTreeMap<R::Id, Option<Arc<R::Value>>> =
            R::values(newest).into_iter().map(|(id, value)| (id, Some(value))).collect();
        if R::is_complete(newest) && self.listed {
            for id in self.written.keys() {
                wanted.entry(id.clone()).or_insert(None);
            }
        }
        for (id, value) in wanted {
            let known = self.written.entry(id.clone()).or_default();
            let value = match (value, &known.value) {
                (Some(value), Some(written)) => Some(R::continued_from(written, value)),
                (value, _) => value,
            };
            if known.value == value {
                if value.is_none() {
                    self.written.remove(&id);
                }
                continue;
            }
            let spaced = known.at.map(|at| at + SPACING);
            let spaced = spaced.filter(|_| !R::is_urgent(known.value.as_deref(), value.as_deref()));
            if let Some(at) = spaced.max(known.retry_at).filter(|at| *at > now) {
                next = Some(next.map_or(at, |n| n.min(at)));
                continue;
            }
            let refused = known.refused;
            let key = self.report.key(&id).to_string();
            let (op, bytes) = match value.as_deref().map(encode).transpose() {
                Ok(None) => (Op::delete(&key), 0),
                Ok(Some(bytes)) => (Op::put(&key, bytes.clone()), bytes.len()),
                Err(error) => {
                    let error = StoreError::Request { act: "a status", message: error.to_string() };
                    let at = self.delay_retry(&id, &error);
                    next = Some(next.map_or(at, |n| n.min(at)));
                    continue;
                }
            };
            due.push(PendingWrite { id, key, value, op, bytes, refused });
        }
        (due, next)
    }

    /// Writes the whole batch; false if nothing was written, or that is not known.
    async fn write_batch(&mut self, batch: &[PendingWrite<R>]) -> bool {
        let guards = batch.iter().map(|one| guard(&one.key, self.revision_of(&one.id))).collect();
        let ops = batch.iter().map(|one| one.op.clone()).collect();
        match self.store.txn(guards, ops).await {
            Ok(TxnOutcome::Committed(at)) => {
                batch.iter().for_each(|one| self.record_write(one, at));
                true
            }
            Ok(TxnOutcome::Conflict) => false,
            Err(error) => {
                tracing::debug!(%error, statuses = batch.len(), "batch refused; its statuses are written one by one");
                false
            }
        }
    }

    fn revision_of(&self, id: &R::Id) -> Option<i64> {
        self.written.get(id).and_then(|known| known.mod_revision)
    }

    /// Records a write at that revision.
    fn record_write(&mut self, one: &PendingWrite<R>, at: i64) {
        if one.value.is_none() {
            self.written.remove(&one.id);
            self.removed_at = self.removed_at.max(at);
            return;
        }
        let (value, at) = (one.value.clone(), Some(at));
        let written = KeyState { value, mod_revision: at, at: Some(Instant::now()), ..KeyState::default() };
        self.written.insert(one.id.clone(), written);
    }

    /// Compares the known state with the stored one.
    async fn refresh_stored(&mut self) {
        let now = Instant::now();
        let is_due = now >= self.audit_at;
        if is_due {
            self.audit_at = now + AUDIT;
        }
        let stored = match self.report.stored(is_due || !self.listed).await {
            Ok(Some(stored)) => stored,
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "stored statuses not read; writes wait"),
        };
        self.adopt(&stored);
        self.forget_lost(&stored);
    }

    /// Adopts stored values that are not known: from the previous process, from another writer, or from a write
    /// that succeeded after it was given up. Otherwise a key would stay forever.
    fn adopt(&mut self, stored: &StoredValues<R::Id, R::Value>) {
        if self.listed && stored.revision < self.removed_at {
            return;
        }
        for (id, there) in &stored.values {
            let known = self.written.entry(id.clone()).or_default();
            if known.mod_revision.is_none_or(|written| written < there.mod_revision) {
                known.mod_revision = Some(there.mod_revision);
                known.value = Some(Arc::new(there.value.clone()));
            }
        }
        self.listed = true;
    }

    /// Forgets values that were written a while ago and are missing, so that they are written again: etcd was lost
    /// and started over, or somebody removed them.
    fn forget_lost(&mut self, stored: &StoredValues<R::Id, R::Value>) {
        for (id, known) in self.written.iter_mut().filter(|(_, known)| known.value.is_some()) {
            if !stored.values.contains_key(id) && known.at.is_none_or(|at| at.elapsed() >= AUDIT) {
                *known = KeyState { at: known.at, ..KeyState::default() };
            }
        }
    }

    async fn write(&mut self, one: &PendingWrite<R>) -> Result<(), StoreError> {
        let mut revision = self.revision_of(&one.id);
        // Twice: the first guard may rest on an old revision.
        for _ in 0..2 {
            let guards = vec![guard(&one.key, revision)];
            if let TxnOutcome::Committed(at) = self.store.txn(guards, vec![one.op.clone()]).await? {
                self.record_write(one, at);
                return Ok(());
            }
            revision = self.store.get(&one.key).await?.map(|stored| stored.mod_revision);
            if one.value.is_none() && revision.is_none() {
                self.written.remove(&one.id);
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

/// Returns how many of the first values go in one transaction; at least one.
fn batch_len<R: Report>(due: &[PendingWrite<R>]) -> usize {
    let mut bytes = 0;
    let fits = |one: &&PendingWrite<R>| {
        bytes += one.bytes;
        bytes <= BATCH_BYTES
    };
    due.iter().take(BATCH).take_while(fits).count().max(1)
}

impl ReportedValue for NodeUsage {}

impl ReportedValue for NodeDemand {
    /// Urgent if a call waits for a function that had none.
    fn is_urgent(old: Option<&Self>, new: Option<&Self>) -> bool {
        let waits = |name: &String| {
            let before = old.and_then(|old| old.functions.get(name));
            before.is_none_or(|before| before.waiting + before.in_flight == 0)
        };
        new.is_some_and(|new| new.functions.iter().any(|(name, demand)| demand.waiting > 0 && waits(name)))
    }
}

impl ReportedValue for RulesStatus {
    /// Keeps the time of the previous process if it had programmed this revision already.
    fn continued_from(mut self, written: &Self) -> Self {
        if written.revision == self.revision {
            self.programmed_at = written.programmed_at.or(self.programmed_at);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::FunctionDemand;
    use crate::store::Store as _;
    use crate::store::memory::MemoryStore;

    fn rules(revision: i64) -> Option<RulesStatus> {
        Some(RulesStatus { revision, ..RulesStatus::default() })
    }

    /// Builds the demand of functions: calls that wait, and calls at a replica.
    fn demand(functions: &[(&str, u32, u32)]) -> NodeDemand {
        let of = |&(name, waiting, in_flight): &(&str, u32, u32)| {
            (name.to_owned(), FunctionDemand { waiting, in_flight, ..FunctionDemand::default() })
        };
        NodeDemand {
            at: None,
            since: jiff::Timestamp::UNIX_EPOCH,
            functions: functions.iter().map(of).collect(),
            beats: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    // Seen red with every call that waits taken for the first.
    #[test]
    fn only_a_call_that_wakes_a_function_is_urgent() {
        let is_urgent = |before: Option<&[_]>, now: Option<&[_]>| {
            NodeDemand::is_urgent(before.map(demand).as_ref(), now.map(demand).as_ref())
        };
        let waits = Some(&[("f", 1, 0)][..]);
        assert!(is_urgent(None, waits), "nothing is written yet");
        assert!(is_urgent(Some(&[]), waits), "it was left out");
        assert!(is_urgent(Some(&[("f", 0, 0)]), waits), "from zero");
        assert!(is_urgent(Some(&[("f", 0, 3)]), Some(&[("f", 0, 3), ("g", 1, 0)])), "another one");
        assert!(!is_urgent(waits, waits), "unchanged");
        assert!(!is_urgent(waits, Some(&[("f", 2, 0)])), "it is woken already");
        assert!(!is_urgent(Some(&[("f", 0, 1)]), Some(&[("f", 1, 1)])), "it has a replica");
        assert!(!is_urgent(Some(&[("f", 0, 0)]), Some(&[("f", 0, 1)])), "no call waits");
        assert!(!is_urgent(waits, Some(&[])) && !is_urgent(waits, None));
    }

    // Seen red with no change of one key urgent.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_wakes_a_function_is_written_at_once_and_another_number_a_second_later() {
        let store = Arc::new(MemoryStore::new());
        let key = Key::Demand("n1".to_owned());
        let (sender, newest) = watch::channel(Some(demand(&[])));
        let shutdown = CancellationToken::new();
        let writer = StatusWriter::for_key(key.clone(), store.clone() as SharedStore);
        let running = tokio::spawn(writer.run(newest, shutdown.clone()));
        let waiting = async |millis: u64| {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            let value = store.get(&key.to_string()).await.unwrap().unwrap().value;
            decode::<NodeDemand>(&value).unwrap().functions.get("f").map(|demand| demand.waiting)
        };
        assert_eq!(waiting(10).await, None);
        sender.send_replace(Some(demand(&[("f", 1, 0)])));
        assert_eq!(waiting(10).await, Some(1), "at once");
        sender.send_replace(Some(demand(&[("f", 2, 0)])));
        assert_eq!(waiting(900).await, Some(1));
        assert_eq!(waiting(200).await, Some(2));
        shutdown.cancel();
        running.await.unwrap();
    }

    // Seen red with only unknown keys adopted, and with an unavailable store taken for one that refuses a key.
    #[tokio::test(start_paused = true)]
    async fn what_others_write_and_garbage_are_written_over_and_an_outage_is_waited_out() {
        let store = Arc::new(MemoryStore::new());
        let key = Key::Rules("n1".to_owned());
        let put = async |value: &[u8]| {
            let _ = store.txn(Vec::new(), vec![Op::put(&key, value.to_vec())]).await.unwrap();
        };
        put(b"garbage").await;
        let (sender, newest) = watch::channel(None);
        let shutdown = CancellationToken::new();
        let writer = StatusWriter::for_key(key.clone(), store.clone() as SharedStore);
        let running = tokio::spawn(writer.run(newest, shutdown.clone()));
        let stored = async |seconds: u64| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let value = store.get(&key.to_string()).await.unwrap().unwrap().value;
            decode::<RulesStatus>(&value).ok().map(|status| status.revision)
        };
        assert_eq!(stored(5).await, None, "nothing is reported yet");
        sender.send_replace(rules(3));
        assert_eq!(stored(1).await, Some(3));
        put(&encode(&rules(1).unwrap()).unwrap()).await;
        assert_eq!(stored(11).await, Some(3));
        store.refuse_everything(true);
        sender.send_replace(rules(4));
        sender.send_replace(rules(5));
        tokio::time::sleep(Duration::from_secs(100)).await;
        store.refuse_everything(false);
        assert_eq!(stored(2).await, Some(5));
        shutdown.cancel();
        running.await.unwrap();
    }
}
