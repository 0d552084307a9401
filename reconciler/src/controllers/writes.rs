//! A controller's plan: guarded writes in order, and notes on what it leaves undone.
//!
//! A plan leaves the shell no choice and can be printed, one line per write and per note.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use schema::codec::encode;
use schema::control::Plan;
use schema::keys::{Key, ROOT};
use schema::snapshot::{Change as SnapshotChange, Snapshot, VersionedValue};
use schema::store::{Guard, Op};
use serde::Serialize;

use super::note::{Note, NoteKind};
use super::reason::Reason;

/// A controller's plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Writes {
    /// Writes in order; [`Write::joined`] marks those that share a transaction.
    pub writes: Vec<Write>,
    /// Findings worth reporting, including actions not taken and the reason.
    pub notes: Vec<Note>,
    /// Latest time of the next plan if nothing changes before.
    pub again_at: Option<Timestamp>,
}

/// A guarded write.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    pub key: Key,
    pub change: Change,
    /// Condition that the key must meet, as the plan observed it.
    pub expect: Precondition,
    pub reason: Reason,
    /// Set if the write happens in the same transaction as the one before it, or not at all.
    pub joined: bool,
}

/// Change to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Set to this JSON.
    Put(Bytes),
    Delete,
}

/// Precondition on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// The key does not exist.
    Absent,
    /// The key was last written at this revision.
    ModRevision(i64),
}

impl Write {
    /// Applies the write to a snapshot, as etcd would, at the snapshot's next revision.
    pub fn apply_to(&self, snapshot: &mut Snapshot) {
        let (key, revision) = (self.key.to_string(), snapshot.revision + 1);
        snapshot.revision = revision;
        snapshot.apply(&match &self.change {
            Change::Put(value) => {
                let value = value.clone();
                SnapshotChange::Put { key, value, create_revision: revision, mod_revision: revision }
            }
            Change::Delete => SnapshotChange::Delete { key },
        });
    }
}

impl Writes {
    /// Adds a put. For a value too large for a key, adds a note instead and returns `false`.
    pub fn put<T: Serialize>(&mut self, key: Key, value: &T, expect: Precondition, reason: Reason) -> bool {
        match encode(value) {
            Ok(bytes) => {
                let change = Change::Put(Bytes::from(bytes));
                self.writes.push(Write { key, change, expect, reason, joined: false });
                true
            }
            Err(error) => {
                self.notes.push(Note::about_key(&key, NoteKind::NotWritten { why: error.to_string() }));
                false
            }
        }
    }

    /// Adds a put of `wanted` unless the key already holds it.
    pub fn put_if_changed<T: PartialEq + Serialize>(
        &mut self,
        key: Key,
        present: Option<&Arc<VersionedValue<T>>>,
        wanted: &T,
        reason: Reason,
    ) {
        let expect = match present {
            None => Precondition::Absent,
            Some(present) if present.value != *wanted => Precondition::ModRevision(present.mod_revision),
            Some(_) => return,
        };
        self.put(key, wanted, expect, reason);
    }

    /// Adds the removal of a key that was last written at `mod_revision`.
    pub fn delete(&mut self, key: Key, mod_revision: i64, reason: Reason) {
        let expect = Precondition::ModRevision(mod_revision);
        self.writes.push(Write { key, change: Change::Delete, expect, reason, joined: false });
    }

    /// Like [`Self::delete`], in one transaction with the write before it.
    pub fn delete_joined(&mut self, key: Key, mod_revision: i64, reason: Reason) {
        self.delete(key, mod_revision, reason);
        self.join_last();
    }

    /// Joins the last write to the transaction of the one before it.
    pub fn join_last(&mut self) {
        if let Some(last) = self.writes.last_mut() {
            last.joined = true;
        }
    }

    /// Requests a plan at this time or before.
    pub fn plan_again_by(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |sooner| sooner.min(at)));
    }

    /// Groups the writes by transaction.
    pub(super) fn groups(&self) -> impl Iterator<Item = &[Write]> {
        self.writes.chunk_by(|_, next| next.joined)
    }

    pub fn note(&mut self, note: Note) {
        self.notes.push(note);
    }
}

impl Write {
    pub fn guard(&self) -> Guard {
        match self.expect {
            Precondition::Absent => Guard::Absent(self.key.to_string()),
            Precondition::ModRevision(revision) => Guard::ModRevision(self.key.to_string(), revision),
        }
    }

    pub fn op(&self) -> Op {
        match &self.change {
            Change::Put(value) => Op::put(&self.key, value.clone()),
            Change::Delete => Op::delete(&self.key),
        }
    }
}

impl Plan for Writes {
    fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for write in &self.writes {
            writeln!(f, "{write}")?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.change {
            Change::Put(_) => "put",
            Change::Delete => "delete",
        };
        let key = self.key.to_string();
        let key = key.strip_prefix(ROOT).unwrap_or(&key);
        let joined = if self.joined { "+ " } else { "" };
        match self.expect {
            Precondition::Absent => write!(f, "{joined}{verb} {key} if absent: {}", self.reason),
            Precondition::ModRevision(at) => write!(f, "{joined}{verb} {key} if at {at}: {}", self.reason),
        }
    }
}
