//! A pod that is not wanted any more and that clients may still be led to.

use jiff::{SignedDuration, Timestamp};

/// Longest time for which a pod waits for the nodes' rules: what etcd, the reconciler and an agent take
/// on a busy machine, and no more than a person who removes a pod bears.
pub const DRAIN_MAX: SignedDuration = SignedDuration::from_secs(5);

/// How soon it is looked at again.
pub const DRAIN_CHECK: SignedDuration = SignedDuration::from_millis(100);

/// A pod that is not wanted any more and that clients may still be led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    pub since: Timestamp,
    pub by: DrainedBy,
}

/// Who may still lead clients to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainedBy {
    Services,
    /// The rules of these nodes are older, or their age is unknown.
    Nodes(Vec<String>),
}

impl Drain {
    /// Until when it waits at most.
    pub fn until(&self) -> Timestamp {
        self.since.checked_add(DRAIN_MAX).unwrap_or(Timestamp::MAX)
    }
}
