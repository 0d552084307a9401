//! The store: etcd, or the same in memory, behind one trait; and the reflector on top.
//!
//! One battery of tests runs on both. Every write is a transaction with guards.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::keys::Key;

pub mod election;
pub mod etcd;
pub mod events;
pub mod memory;
pub mod reflector;
pub mod status_writer;

/// A shared store.
pub type SharedStore = Arc<dyn Store>;

/// A lease, by etcd's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(pub i64);

/// A key with its value and the revisions that guards refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// Full key.
    pub key: String,
    /// Value.
    pub value: Bytes,
    /// Revision of the store at which the key appeared.
    pub create_revision: i64,
    /// Revision of its last write.
    pub mod_revision: i64,
}

/// All keys below a prefix, as of one revision.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The keys in ascending order.
    pub items: Vec<KeyValue>,
    /// The revision; a watch goes on from the next one.
    pub revision: i64,
}

/// The newest keys below a prefix.
#[derive(Debug, Clone, Default)]
pub struct Newest {
    /// The keys, the one that appeared last first.
    pub items: Vec<KeyValue>,
    /// There are older ones.
    pub has_more: bool,
}

/// What must hold for a transaction to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// There is no such key.
    Absent(String),
    /// The key was last written at this revision.
    ModRevision(String, i64),
    /// The key appeared at this revision: the fence of a leader.
    CreateRevision(String, i64),
}

/// One change of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes a key, on a lease if one is given.
    Put {
        /// Full key.
        key: String,
        /// Value.
        value: Bytes,
        /// Removes the key when the lease ends.
        lease: Option<LeaseId>,
    },
    /// Removes a key; no error if it is not there.
    Delete {
        /// Full key.
        key: String,
    },
}

impl Op {
    /// A put without a lease.
    pub fn put(key: impl fmt::Display, value: impl Into<Bytes>) -> Self {
        Op::Put { key: key.to_string(), value: value.into(), lease: None }
    }

    /// A delete.
    pub fn delete(key: impl fmt::Display) -> Self {
        Op::Delete { key: key.to_string() }
    }
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum TxnOutcome {
    /// All guards held, all operations are done, at this revision.
    Committed(i64),
    /// A guard did not hold, nothing is done.
    Conflict,
}

/// What a watch says, in order of revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// Written.
    Put(KeyValue),
    /// Removed.
    Delete {
        /// Full key.
        key: String,
        /// At this revision.
        mod_revision: i64,
    },
}

/// Events of one revision or several, never a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchBatch {
    /// In order.
    pub events: Vec<WatchEvent>,
    /// The newest revision seen.
    pub revision: i64,
}

/// Why the store did not do it. The variant names the act.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No connection could be made.
    #[error("cannot connect to etcd at {endpoints}: {message}")]
    Connect {
        /// The endpoints tried.
        endpoints: String,
        /// What the client said.
        message: String,
    },
    /// A request got no answer in time.
    #[error("etcd did not answer {act} within {after:?}")]
    Timeout {
        /// Which request.
        act: &'static str,
        /// How long it waited.
        after: Duration,
    },
    /// A request was refused or lost.
    #[error("etcd refused {act}: {message}")]
    Request {
        /// Which request.
        act: &'static str,
        /// What it said.
        message: String,
    },
    /// Nothing was done: etcd does not know who asks.
    #[error("etcd refused {act}: {message}")]
    Unauthenticated {
        /// Which request.
        act: &'static str,
        /// What it said.
        message: String,
    },
    /// The revision to watch from is compacted: list again. Of a read, which knows no revision, it is 0.
    #[error("revision {0} is compacted")]
    Compacted(i64),
    /// The watch ended: list again.
    #[error("the watch on {0} ended")]
    WatchEnded(String),
    /// The lease is gone.
    #[error("lease {0:x} has ended")]
    LeaseLost(i64),
}

/// etcd as far as Minik8s uses it. Every call is bounded in time by the implementation.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// One key.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError>;
    /// All keys below `prefix`, paged within, as of one revision.
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError>;
    /// The keys below `prefix` that appeared last, or last before the revision `before`; at most `limit` of them.
    async fn newest(&self, prefix: &str, limit: u16, before: Option<i64>) -> Result<Newest, StoreError>;
    /// Does `ops` if all `guards` hold: all of them at one revision, or none. At most
    /// [`TXN_OPS_MAX`] of each and [`TXN_MAX_BYTES`], one operation per key.
    ///
    /// After an error it is unknown whether it was done, unless it is [`StoreError::LeaseLost`]
    /// (a lease of `ops` is gone, nothing was done): the caller looks again and decides anew.
    async fn txn(&self, guards: Vec<Guard>, ops: Vec<Op>) -> Result<TxnOutcome, StoreError>;
    /// All changes below `prefix` from `from_revision` (1 or more) on. The stream ends with an
    /// error when it can't go on ([`StoreError::Compacted`], [`StoreError::WatchEnded`]); the
    /// caller lists again.
    async fn watch(
        &self,
        prefix: &str,
        from_revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError>;
    /// A new lease; it ends `ttl` after its last keep-alive. etcd counts whole seconds, rounded
    /// up, and no fewer than 2.
    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;
    /// Prolongs a lease once; [`StoreError::LeaseLost`] if it has ended.
    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;
    /// Ends a lease and removes its keys; no error if it has ended already.
    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
}

/// The newest revision of the store. Not less than that of any write whose answer has come, unless
/// the store was lost since and made anew.
///
/// # Errors
/// As [`Store::list`].
pub async fn newest_revision(store: &dyn Store) -> Result<i64, StoreError> {
    Ok(store.list(&Key::Leader.to_string()).await?.revision)
}

/// Most guards, and most operations, of one transaction. etcd's default limit is 128.
pub const TXN_OPS_MAX: usize = 120;

/// Largest transaction in bytes; etcd's default limit is 1.5 MiB with everything around it.
pub const TXN_MAX_BYTES: usize = 1400 * 1024;

/// Both stores refuse what etcd would refuse, with the same words, before anything is sent.
fn check_txn_size(guards: &[Guard], ops: &[Op]) -> Result<(), StoreError> {
    let refused = |message: String| Err(StoreError::Request { act: "a transaction", message });
    if guards.len() > TXN_OPS_MAX || ops.len() > TXN_OPS_MAX {
        return refused(format!("more than {TXN_OPS_MAX} guards or operations"));
    }
    let mut keys = BTreeSet::new();
    let mut bytes = 0;
    for op in ops {
        let (key, value_bytes) = match op {
            Op::Put { key, value, .. } => (key, value.len()),
            Op::Delete { key } => (key, 0),
        };
        bytes += key.len() + value_bytes;
        if !keys.insert(key) {
            return refused(format!("two operations on {key}"));
        }
    }
    if bytes > TXN_MAX_BYTES {
        return refused(format!("{bytes} bytes are more than {TXN_MAX_BYTES}"));
    }
    Ok(())
}
