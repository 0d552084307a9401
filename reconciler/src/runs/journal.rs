//! The journal of a run: written an entry at a time, each only if nothing else took its number, and read back.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use schema::codec::{decode, encode, sha256_hex};
use schema::keys::{Key, prefix};
use schema::kinds::workflow::RunPhase;
use schema::store::election::Fence;
use schema::store::{Guard, Op, SharedStore, StoreError, TxnOutcome};
use serde_json::Value as Json;

use super::book::KeptHead;
use super::machine::Event;
use super::records::{Entry, INLINE_MAX_BYTES, JournalPart, PART_MAX_BYTES, Parts, RunHead, RunId, Stored};

/// Entries that become one value.
const COMPACTED_ENTRIES: usize = 100;
/// Most bytes of that value.
const COMPACTED_BYTES: usize = 24 * 1024;
/// First and longest wait before etcd is asked again.
const RETRY_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Why nothing more is written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another reconciler leads, or another process wrote this number.
    #[error("another reconciler has taken over the run")]
    Lost,
    /// A value that can't be written or read.
    #[error("{0}")]
    Unreadable(String),
    /// Etcd did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A journal at its end.
pub struct Journal {
    id: RunId,
    next: u64,
    /// What was written since the last compaction, each with its number.
    tail: Vec<(u64, Entry)>,
    tail_bytes: usize,
}

/// All of a journal.
pub struct Loaded {
    /// The input of the run.
    pub input: Json,
    /// What happened, in order.
    pub entries: Vec<Entry>,
    /// Where it goes on.
    pub journal: Journal,
}

/// The writes that keep `value` for a run: none if it is small.
pub(super) fn store(id: &RunId, value: Json) -> (Stored, Vec<Op>) {
    let text = value.to_string();
    if text.len() <= INLINE_MAX_BYTES {
        return (Stored::Inline(value), Vec::new());
    }
    let digest = sha256_hex(text.as_bytes());
    let (parts, count) = in_parts(&text);
    let key = |part| Key::RunPayload(id.workflow.clone(), id.run.clone(), digest.clone(), part);
    let ops = parts.zip(0..).map(|(part, number)| Op::put(key(number), part)).collect();
    (Stored::Parts(Parts { digest: digest.clone(), count }), ops)
}

/// A text as JSON strings of bounded size, and how many.
pub(super) fn in_parts(text: &str) -> (impl Iterator<Item = Bytes>, u64) {
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

/// The value, read from where it lies.
pub(super) async fn restore(store: &SharedStore, stored: Stored, prefix: &str) -> Result<Json, JournalError> {
    let parts = match stored {
        Stored::Inline(value) => return Ok(value),
        Stored::Parts(parts) => parts,
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

fn payload_prefix(id: &RunId, parts: &Stored) -> String {
    let digest = match parts {
        Stored::Parts(parts) => parts.digest.as_str(),
        Stored::Inline(_) => "",
    };
    format!("{}{id}/{digest}/", prefix::RUN_PAYLOADS)
}

/// Ends a run with an error that its journal does not have; its end then.
pub(super) async fn end_failed(
    store: &SharedStore,
    fence: Fence,
    id: &RunId,
    kept: &KeptHead,
    (error, cause): (&str, &str),
) -> Result<KeptHead, JournalError> {
    let mut head = kept.head.clone();
    head.phase = RunPhase::Failed;
    head.finished_at = Some(Timestamp::now().max(head.started_at));
    head.tries = None;
    head.set_error(error, cause);
    write_head(store, fence, id, kept, head).await
}

/// Writes the head of a run without an entry of its journal.
pub(super) async fn write_head(
    store: &SharedStore,
    fence: Fence,
    id: &RunId,
    kept: &KeptHead,
    head: RunHead,
) -> Result<KeptHead, JournalError> {
    let value = encode(&head).map_err(|error| JournalError::Unreadable(error.to_string()))?;
    let key = id.head().to_string();
    let guards = vec![fence.guard(), Guard::ModRevision(key.clone(), kept.revision)];
    let revision = write(store, (&key, &value), guards, vec![Op::put(&key, value.clone())]).await?;
    Ok(KeptHead { head, revision })
}

/// All that lies at keys of this run.
pub(super) fn prefixes_of(id: &RunId) -> [String; 2] {
    [format!("{}{id}/", prefix::RUN_JOURNALS), format!("{}{id}/", prefix::RUN_PAYLOADS)]
}

impl Journal {
    /// That of a run whose beginning is written at 0.
    pub fn of_begun(id: RunId) -> Self {
        Self { id, next: 1, tail: Vec::new(), tail_bytes: 0 }
    }

    /// Number of the next entry.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Reads a journal; none if there is none.
    pub async fn load(store: &SharedStore, id: &RunId) -> Result<Option<Loaded>, JournalError> {
        let listing = store.list(&format!("{}{id}/", prefix::RUN_JOURNALS)).await?;
        let (mut begun, mut entries) = (None, Vec::new());
        let mut journal = Self::of_begun(id.clone());
        for item in listing.items {
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
        let input = restore(store, begun, &prefix).await?;
        for entry in &mut entries {
            let (Some(parts), Event::Returned { output, .. }) = (entry.output.clone(), &mut entry.event)
            else {
                continue;
            };
            let stored = Stored::Parts(parts);
            let prefix = payload_prefix(id, &stored);
            *output = restore(store, stored, &prefix).await?;
        }
        Ok(Some(Loaded { input, entries, journal }))
    }

    /// Writes what happened under the next number; with `head`, the end of the run as well. Waits for as long as
    /// etcd is away: when it returns, the entry is there, or another reconciler carries the run on.
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
                Stored::Inline(value) => *output = value,
                Stored::Parts(parts) => entry.output = Some(parts),
            }
        }
        let part = JournalPart::Entries(vec![entry]);
        let value = encode(&part).map_err(|error| JournalError::Unreadable(error.to_string()))?;
        let JournalPart::Entries(mut written) = part else { return Ok(()) };
        let key = self.id.entries(self.next).to_string();
        let mut guards = vec![fence.guard(), Guard::Absent(key.clone())];
        ops.push(Op::put(&key, value.clone()));
        if let Some((head, revision)) = head {
            let bytes = encode(head).map_err(|error| JournalError::Unreadable(error.to_string()))?;
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

    /// Puts the entries since the last time under the key of the first of them. It may fail: they stay as they are.
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
            tracing::debug!(run = %self.id, %error, "the journal was not compacted");
        }
    }
}

/// Does `ops`, of which one writes `value` at `key`, until it is done or can't be; the revision at which it was.
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
            // It may be the answer to the second time of what was done the first.
            Ok(TxnOutcome::Conflict) => match store.get(key).await {
                Ok(Some(there)) if there.value == value => return Ok(there.mod_revision),
                Ok(_) => return Err(JournalError::Lost),
                Err(error) => error,
            },
            Err(error) => error,
        };
        tracing::debug!(key, %error, "the entry is written again");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_WAIT.1);
    }
}
