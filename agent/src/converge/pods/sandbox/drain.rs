//! A pod that is not wanted any more and that clients may still be led to.

use jiff::{SignedDuration, Timestamp};

/// Longest time for which a pod waits for the nodes' rules: what etcd, the reconciler and an agent take
/// on a busy machine, and no more than a person who removes a pod bears.
pub const DRAIN_MAX: SignedDuration = SignedDuration::from_secs(5);

/// Shortest time for which a replica of a function waits: for the gateways of other nodes to learn that it goes.
pub const REPLICA_DRAIN_MIN: SignedDuration = SignedDuration::from_secs(1);

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
    /// Calls of a function that may be under way: no gateway makes new ones. As long as these may take.
    Calls(SignedDuration),
}

impl Drain {
    /// Until when it waits at most.
    pub fn until(&self) -> Timestamp {
        let longest = match &self.by {
            DrainedBy::Services | DrainedBy::Nodes(_) => DRAIN_MAX,
            DrainedBy::Calls(longest) => *longest,
        };
        self.since.checked_add(longest).unwrap_or(Timestamp::MAX)
    }
}
