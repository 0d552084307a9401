//! The drain of a pod that is no longer wanted but may still receive connections.

use jiff::{SignedDuration, Timestamp};

/// Maximum time that a pod waits for the nodes' rules: enough for etcd, the reconciler and an agent on a busy
/// machine, and no more than a person who removes a pod will tolerate.
pub const DRAIN_MAX: SignedDuration = SignedDuration::from_secs(5);

/// Minimum time that a function replica waits, so that the gateways of other nodes learn that it is leaving.
pub const REPLICA_DRAIN_MIN: SignedDuration = SignedDuration::from_secs(1);

/// Interval between checks of a drain.
pub const DRAIN_CHECK: SignedDuration = SignedDuration::from_millis(100);

/// The drain of a pod that is no longer wanted but may still receive connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    pub since: Timestamp,
    pub by: DrainedBy,
}

/// Reason why a pod may still receive connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainedBy {
    Services,
    /// The rules of these nodes are older, or their age is unknown.
    Nodes(Vec<String>),
    /// Function calls may be in progress, for at most this long; no gateway starts new ones.
    Calls(SignedDuration),
}

impl Drain {
    /// Returns the time at which the wait ends at the latest.
    pub fn until(&self) -> Timestamp {
        let longest = match &self.by {
            DrainedBy::Services | DrainedBy::Nodes(_) => DRAIN_MAX,
            DrainedBy::Calls(longest) => *longest,
        };
        self.since.checked_add(longest).unwrap_or(Timestamp::MAX)
    }
}
