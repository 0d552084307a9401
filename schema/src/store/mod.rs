//! The store: etcd, or in tests the same in memory, behind one trait; and the reflector on top.
//!
//! The same tests run against both. Every write is a transaction with guards.

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
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod reflector;
pub mod status_writer;

/// A shared store.
pub type SharedStore = Arc<dyn Store>;

/// Id of a lease in etcd.
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

/// Keys below a prefix, as of one revision.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Keys in ascending order.
    pub items: Vec<KeyValue>,
    /// Revision of the listing; a watch continues from the next one.
    pub revision: i64,
}

/// The newest keys below a prefix.
#[derive(Debug, Clone, Default)]
pub struct NewestKeys {
    /// Keys, the newest first.
    pub items: Vec<KeyValue>,
    /// True if there are older keys.
    pub has_more: bool,
}

/// Condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// The key does not exist.
    Absent(String),
    /// The key was last written at this revision.
    ModRevision(String, i64),
    /// The key appeared at this revision: the fence of a leader.
    CreateRevision(String, i64),
}

/// Operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes a key, on a lease if one is given.
    Put {
        /// Full key.
        key: String,
        /// Value.
        value: Bytes,
        /// Lease whose end removes the key.
        lease: Option<LeaseId>,
    },
    /// Removes a key; a missing key is no error.
    Delete {
        /// Full key.
        key: String,
    },
}

impl Op {
    /// Creates a put without a lease.
    pub fn put(key: impl fmt::Display, value: impl Into<Bytes>) -> Self {
        Op::Put { key: key.to_string(), value: value.into(), lease: None }
    }

    /// Creates a delete.
    pub fn delete(key: impl fmt::Display) -> Self {
        Op::Delete { key: key.to_string() }
    }
}

/// Outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum TxnOutcome {
    /// Every guard held: the operations are applied, at this revision.
    Committed(i64),
    /// A guard did not hold: nothing is applied.
    Conflict,
}

/// A change reported by a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// The key was written.
    Put(KeyValue),
    /// The key was removed.
    Delete {
        /// Full key.
        key: String,
        /// Revision of the removal.
        mod_revision: i64,
    },
}

/// Events of one or more complete revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchBatch {
    /// Events in order of revision.
    pub events: Vec<WatchEvent>,
    /// Newest revision included.
    pub revision: i64,
}

/// Error of a store operation. The variant names the operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No connection could be made.
    #[error("cannot connect to etcd at {endpoints}: {message}")]
    Connect {
        /// The endpoints tried.
        endpoints: String,
        /// Error of the client.
        message: String,
    },
    /// A request got no answer in time.
    #[error("etcd did not answer {act} within {after:?}")]
    Timeout {
        /// The request.
        act: &'static str,
        /// Duration of the wait.
        after: Duration,
    },
    /// A request was refused or lost.
    #[error("etcd refused {act}: {message}")]
    Request {
        /// The request.
        act: &'static str,
        /// Message of etcd.
        message: String,
    },
    /// A member of etcd does not serve at present: it has no leader, for example.
    #[error("etcd refused {act}: {message}")]
    Unavailable {
        /// The request.
        act: &'static str,
        /// Message of etcd.
        message: String,
    },
    /// Nothing was applied: the client's user may not do this, or there is no such user.
    #[error("etcd refused {act}: {message}")]
    Denied {
        /// The request.
        act: &'static str,
        /// Message of etcd.
        message: String,
    },
    /// Nothing was applied: etcd does not recognize the client.
    #[error("etcd refused {act}: {message}")]
    Unauthenticated {
        /// The request.
        act: &'static str,
        /// Message of etcd.
        message: String,
    },
    /// The revision to watch from is compacted: list again. 0 for a read, which knows no revision.
    #[error("revision {0} is compacted")]
    Compacted(i64),
    /// The watch ended: list again.
    #[error("the watch on {0} ended")]
    WatchEnded(String),
    /// The lease is gone.
    #[error("lease {0:x} has ended")]
    LeaseLost(i64),
}

/// The part of etcd that Minik8s uses. Every call is bounded in time by the implementation.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Reads a key.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError>;
    /// Lists the keys below `prefix`, paged internally, as of one revision.
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError>;
    /// Returns the keys below `prefix` that were created last, or last before the revision `before`; at most
    /// `limit` of them.
    async fn newest(&self, prefix: &str, limit: u16, before: Option<i64>) -> Result<NewestKeys, StoreError>;
    /// Applies `ops` if all `guards` hold: all of them at one revision, or none. At most [`TXN_OPS_MAX`] of each
    /// and [`TXN_MAX_BYTES`], one operation per key.
    ///
    /// After an error it is unknown whether they were applied, unless it is [`StoreError::LeaseLost`] (a lease of
    /// `ops` is gone, nothing was applied): the caller reads the state again and decides again.
    async fn txn(&self, guards: Vec<Guard>, ops: Vec<Op>) -> Result<TxnOutcome, StoreError>;
    /// Watches all changes below `prefix` from `from_revision` (1 or more) on. The stream ends with an error when
    /// it can't continue ([`StoreError::Compacted`], [`StoreError::WatchEnded`]); the caller lists again.
    async fn watch(
        &self,
        prefix: &str,
        from_revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError>;
    /// Grants a lease that ends `ttl` after its last keep-alive. etcd counts whole seconds, rounded up, and no
    /// fewer than 2.
    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;
    /// Renews a lease once; [`StoreError::LeaseLost`] if it has ended.
    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;
    /// Ends a lease and removes its keys; a lease that has ended already is no error.
    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
}

/// Returns the newest revision of the store. Not less than that of any answered write, unless the store was lost
/// and recreated since.
///
/// # Errors
/// Same as [`Store::list`].
pub async fn newest_revision(store: &dyn Store) -> Result<i64, StoreError> {
    Ok(store.list(&Key::Leader.to_string()).await?.revision)
}

/// Most guards, and most operations, of one transaction. etcd's default limit is 128.
pub const TXN_OPS_MAX: usize = 120;

/// Largest transaction in bytes; etcd's default limit is 1.5 MiB with everything around it.
pub const TXN_MAX_BYTES: usize = 1400 * 1024;

/// Rejects transactions that etcd would reject, in both stores and with the same message, before anything is sent.
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
