//! The journal of a run: appended one entry at a time, each only if nothing else took its number, and read back.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use schema::codec::{decode, encode, sha256_hex};
use schema::keys::{Key, prefix};
use schema::kinds::workflow::{RunPhase, WorkflowSpec};
use schema::store::election::Fence;
use schema::store::{Guard, Op, SharedStore, StoreError, TxnOutcome};
use serde_json::Value as Json;

use super::active_runs::StoredHead;
use super::machine::Event;
use super::records::{
    Entry, INLINE_MAX_BYTES, JournalPart, PART_MAX_BYTES, RunHead, RunId, StoredValue, ValueParts,
};

/// Number of entries that are compacted into one value.
const COMPACTED_ENTRIES: usize = 100;
/// Total size from which on fewer entries are compacted.
const COMPACTED_BYTES: usize = 24 * 1024;
/// First and longest wait before a request to etcd is retried.
const RETRY_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Error of reading or writing a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another reconciler leads, or another process wrote this number.
    #[error("another reconciler has taken over the run")]
    Lost,
    /// A value can't be written or read.
    #[error("{0}")]
    Unreadable(String),
    /// The request to etcd failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writer at the end of a journal.
pub struct Journal {
    id: RunId,
    next: u64,
    /// Bytes of the run in etcd. A compaction changes little of them.
    bytes: u64,
    /// Entries since the last compaction, each with its number.
    tail: Vec<(u64, Entry)>,
    tail_bytes: usize,
}

/// Content of a journal.
pub struct LoadedJournal {
    /// Input of the run.
    pub input: Json,
    /// Entries in order.
    pub entries: Vec<Entry>,
    /// Writer for further entries.
    pub journal: Journal,
}

/// Prepares the writes that store `value` for a run: none if it is small.
pub(super) fn store(id: &RunId, value: Json) -> (StoredValue, Vec<Op>) {
    let text = value.to_string();
    if text.len() <= INLINE_MAX_BYTES {
        return (StoredValue::Inline(value), Vec::new());
    }
    let digest = sha256_hex(text.as_bytes());
    let (parts, count) = split_into_parts(&text);
    let key = |part| Key::RunPayload(id.workflow.clone(), id.run.clone(), digest.clone(), part);
    let ops = parts.zip(0..).map(|(part, number)| Op::put(key(number), part)).collect();
    (StoredValue::Parts(ValueParts { digest: digest.clone(), count }), ops)
}

/// Returns the bytes that these writes add to etcd.
pub(super) fn size_bytes(ops: &[Op]) -> u64 {
    let size = |op: &Op| match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete { .. } => 0,
    };
    ops.iter().map(size).sum::<usize>() as u64
}

/// Splits a text into JSON strings of bounded size, and returns their number as well.
pub(super) fn split_into_parts(text: &str) -> (impl Iterator<Item = Bytes>, u64) {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        // Half of what fits: quotes and backslashes become two bytes.
        let most = rest.len().min(PART_MAX_BYTES / 2);
        let end = (0..=most).rev().find(|end| rest.is_char_boundary(*end)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        parts.push(Bytes::from(Json::from(part).to_string()));
        rest = after;
    }
    let count = parts.len() as u64;
    (parts.into_iter(), count)
}

/// Reads the value from where it is stored.
pub(super) async fn restore(
    store: &SharedStore,
    stored: StoredValue,
    prefix: &str,
) -> Result<Json, JournalError> {
    let parts = match stored {
        StoredValue::Inline(value) => return Ok(value),
        StoredValue::Parts(parts) => parts,
    };
    let listing = store.list(prefix).await?;
    let unreadable = || JournalError::Unreadable(format!("{prefix} is incomplete"));
    let mut text = String::new();
    for item in &listing.items {
        text.push_str(&decode::<String>(&item.value).map_err(|_| unreadable())?);
    }
    if listing.items.len() as u64 != parts.count || sha256_hex(text.as_bytes()) != parts.digest {
        return Err(unreadable());
    }
    serde_json::from_str(&text).map_err(|_| unreadable())
}

fn payload_prefix(id: &RunId, parts: &StoredValue) -> String {
    let digest = match parts {
        StoredValue::Parts(parts) => parts.digest.as_str(),
        StoredValue::Inline(_) => "",
    };
    format!("{}{id}/{digest}/", prefix::RUN_PAYLOADS)
}

/// Ends a run with an error that is not in its journal, and returns its final head.
pub(super) async fn end_failed(
    store: &SharedStore,
    fence: Fence,
    id: &RunId,
    kept: &StoredHead,
    (error, cause): (&str, &str),
) -> Result<StoredHead, JournalError> {
    let mut head = kept.head.clone();
    head.phase = RunPhase::Failed;
    head.finished_at = Some(Timestamp::now().max(head.started_at));
    head.tries = None;
    head.set_error(error, cause);
    write_head(store, fence, id, kept, head).await
}

/// Writes the head of a run without a journal entry.
pub(super) async fn write_head(
    store: &SharedStore,
    fence: Fence,
    id: &RunId,
    kept: &StoredHead,
    head: RunHead,
) -> Result<StoredHead, JournalError> {
    let value = encode(&head).map_err(|error| JournalError::Unreadable(error.to_string()))?;
    let key = id.head().to_string();
    let guards = vec![fence.guard(), Guard::ModRevision(key.clone(), kept.revision)];
    let revision = write(store, (&key, &value), guards, vec![Op::put(&key, value.clone())]).await?;
    Ok(StoredHead { head, revision })
}

/// Returns the prefixes of a run's journal and payload keys.
pub(super) fn prefixes_of(id: &RunId) -> [String; 2] {
    [format!("{}{id}/", prefix::RUN_JOURNALS), format!("{}{id}/", prefix::RUN_PAYLOADS)]
}

impl Journal {
    /// Creates the journal of a run whose beginning is written at 0, with these bytes in etcd.
    pub fn at_beginning(id: RunId, bytes: u64) -> Self {
        Self { id, next: 1, bytes, tail: Vec::new(), tail_bytes: 0 }
    }

    /// Returns the bytes of the run in etcd.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of the next entry.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Loads a journal; `None` if the run has none.
    pub async fn load(store: &SharedStore, id: &RunId) -> Result<Option<LoadedJournal>, JournalError> {
        let listing = store.list(&format!("{}{id}/", prefix::RUN_JOURNALS)).await?;
        let (mut begun, mut entries) = (None, Vec::new());
        let mut journal = Self::at_beginning(id.clone(), 0);
        for item in listing.items {
            journal.bytes += (item.key.len() + item.value.len()) as u64;
            let unreadable = |why: String| JournalError::Unreadable(format!("{}: {why}", item.key));
            let part = decode::<JournalPart>(&item.value).map_err(|error| unreadable(error.to_string()))?;
            let first = match item.key.parse() {
                Ok(Key::RunEntries(_, _, first)) => first,
                _ => return Err(unreadable("not a journal key".to_owned())),
            };
            match part {
                JournalPart::Begun { input } => begun = Some(input),
                JournalPart::Entries(part) => {
                    if first != journal.next {
                        return Err(unreadable(format!("entry {} is missing", journal.next)));
                    }
                    journal.next = first + part.len() as u64;
                    journal.tail.clear();
                    journal.tail_bytes = 0;
                    entries.extend(part);
                }
            }
        }
        let Some(begun) = begun else { return Ok(None) };
        let prefix = payload_prefix(id, &begun);
        let in_parts = matches!(begun, StoredValue::Parts(_));
        let input = restore(store, begun, &prefix).await?;
        journal.bytes += if in_parts { input.to_string().len() as u64 } else { 0 };
        for entry in &mut entries {
            let (Some(parts), Event::Returned { output, .. }) = (entry.output.clone(), &mut entry.event)
            else {
                continue;
            };
            let stored = StoredValue::Parts(parts);
            let prefix = payload_prefix(id, &stored);
            *output = restore(store, stored, &prefix).await?;
            journal.bytes += output.to_string().len() as u64;
        }
        Ok(Some(LoadedJournal { input, entries, journal }))
    }

    /// Appends an entry under the next number, and with `head` also the end of the run. Retries for as long as etcd
    /// is away: on return, the entry is written, or another reconciler has taken over the run.
    pub async fn append(
        &mut self,
        store: &SharedStore,
        fence: Fence,
        mut entry: Entry,
        head: Option<(&RunHead, i64)>,
    ) -> Result<(), JournalError> {
        let mut ops = Vec::new();
        if let Event::Returned { output, .. } = &mut entry.event {
            let (stored, parts) = self::store(&self.id, output.take());
            ops = parts;
            match stored {
                StoredValue::Inline(value) => *output = value,
                StoredValue::Parts(parts) => entry.output = Some(parts),
            }
        }
        let part = JournalPart::Entries(vec![entry]);
        let value = encode(&part).map_err(|error| JournalError::Unreadable(error.to_string()))?;
        let JournalPart::Entries(mut written) = part else { return Ok(()) };
        let key = self.id.entries(self.next).to_string();
        let mut guards = vec![fence.guard(), Guard::Absent(key.clone())];
        ops.push(Op::put(&key, value.clone()));
        self.bytes += size_bytes(&ops);
        if let Some((head, revision)) = head {
            let head = RunHead { bytes: self.bytes, ..head.clone() };
            let bytes = encode(&head).map_err(|error| JournalError::Unreadable(error.to_string()))?;
            guards.push(Guard::ModRevision(self.id.head().to_string(), revision));
            ops.push(Op::put(self.id.head(), bytes));
        }
        write(store, (&key, &value), guards, ops).await?;
        self.tail_bytes += value.len();
        if let Some(entry) = written.pop() {
            self.tail.push((self.next, entry));
        }
        self.next += 1;
        if self.tail.len() >= COMPACTED_ENTRIES || self.tail_bytes >= COMPACTED_BYTES {
            self.compact(store, fence).await;
        }
        Ok(())
    }

    /// Compacts the entries since the last compaction under the key of the first of them. On failure they stay as
    /// they are.
    async fn compact(&mut self, store: &SharedStore, fence: Fence) {
        let tail = std::mem::take(&mut self.tail);
        self.tail_bytes = 0;
        let Some((first, _)) = tail.first() else { return };
        let first = *first;
        let others: Vec<Op> =
            tail.iter().skip(1).map(|(number, _)| Op::delete(self.id.entries(*number))).collect();
        let entries = JournalPart::Entries(tail.into_iter().map(|(_, entry)| entry).collect());
        let Ok(value) = encode(&entries) else { return };
        let ops = [Op::put(self.id.entries(first), value)].into_iter().chain(others).collect();
        if let Err(error) = store.txn(vec![fence.guard()], ops).await {
            tracing::debug!(run = %self.id, %error, "journal not compacted");
        }
    }
}

/// Commits `ops`, one of which writes `value` at `key`; retries until they are committed or can't be. Returns the
/// revision of the commit.
async fn write(
    store: &SharedStore,
    (key, value): (&str, &[u8]),
    guards: Vec<Guard>,
    ops: Vec<Op>,
) -> Result<i64, JournalError> {
    let mut wait = RETRY_WAIT.0;
    loop {
        let error = match store.txn(guards.clone(), ops.clone()).await {
            Ok(TxnOutcome::Committed(revision)) => return Ok(revision),
            // The conflict may be with this very transaction, committed by an earlier attempt.
            Ok(TxnOutcome::Conflict) => match store.get(key).await {
                Ok(Some(there)) if there.value == value => return Ok(there.mod_revision),
                Ok(_) => return Err(JournalError::Lost),
                Err(error) => error,
            },
            Err(error) => error,
        };
        tracing::debug!(key, %error, "journal entry written again");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_WAIT.1);
    }
}

// Reads runs for the API, at any reconciler.

/// Reads the heads of the newest runs, of one namespace or workflow if `below` says so: `default/` or
/// `default/sum/`. Returns at most `limit` runs that began before `before`, and the value of `before` for the next
/// page, if there is one.
///
/// # Errors
/// Etcd does not respond.
pub async fn newest_runs(
    store: &SharedStore,
    below: &str,
    limit: u16,
    before: Option<i64>,
) -> Result<(Vec<(RunId, RunHead)>, Option<i64>), StoreError> {
    let page = store.newest(&format!("{}{below}", prefix::RUN_HEADS), limit, before).await?;
    // Each run begins in its own transaction, so none is lost between two pages.
    let next = page.items.last().filter(|_| page.has_more).map(|last| last.create_revision);
    let heads = page.items.into_iter().filter_map(|item| {
        let Ok(Key::RunHead(workflow, run)) = item.key.parse() else { return None };
        Some((RunId { workflow, run }, decode(&item.value).ok()?))
    });
    Ok((heads.collect(), next))
}

/// Reads the head of a run; `None` if there is no such run.
///
/// # Errors
/// Etcd does not respond, or the head is unreadable.
pub async fn run_head(store: &SharedStore, id: &RunId) -> Result<Option<RunHead>, JournalError> {
    let Some(found) = store.get(&id.head().to_string()).await? else { return Ok(None) };
    decode(&found.value).map(Some).map_err(|error| JournalError::Unreadable(error.to_string()))
}

/// Reads a run with its definition and its journal; `None` if there is no such run.
///
/// # Errors
/// Etcd does not respond, or a value is unreadable.
pub async fn kept_run(
    store: &SharedStore,
    id: &RunId,
) -> Result<Option<(RunHead, WorkflowSpec, LoadedJournal)>, JournalError> {
    let unreadable = |error: schema::codec::CodecError| JournalError::Unreadable(error.to_string());
    let Some(head) = run_head(store, id).await? else { return Ok(None) };
    let key = Key::RunDefinition(id.workflow.clone(), head.definition.clone());
    let Some(spec) = store.get(&key.to_string()).await? else { return Ok(None) };
    let spec = decode(&spec.value).map_err(unreadable)?;
    Ok(Journal::load(store, id).await?.map(|journal| (head, spec, journal)))
}
