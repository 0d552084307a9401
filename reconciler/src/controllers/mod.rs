//! Controllers: each is a pure `plan` over the snapshot of etcd; one shell observes and acts for all.
//!
//! A controller reads the [`Snapshot`] and writes only the keys that [`schema::keys::Key::writer`] assigns to it.
//! It knows nothing of Git.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::Ipv4Net;
use jiff::{SignedDuration, Timestamp};
use schema::records::SourceState;
use schema::snapshot::Snapshot;

mod note;
mod reason;
mod shell;
mod writes;

pub mod autoscaler;
pub mod functions;
pub mod jobs;
pub mod nodes;
pub mod scheduler;
pub mod services;
pub mod settings;
pub mod workloads;

#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod testing;

pub use crate::last_known::{LastKnown, LastKnownFile};
pub use note::{Note, NoteKind};
pub use reason::Reason;
pub use shell::{Deps, Shell};
pub use writes::{Change, Precondition, Write, Writes};

/// A controller: a name and a decision, nothing else.
pub trait Controller: Send + 'static {
    /// Name in the key contract, in logs and as the reporter of events.
    const NAME: &'static str;

    /// Decides on the whole snapshot. Total and deterministic: no I/O, clock or randomness, and no
    /// `self`, on purpose.
    fn plan(seen: &Observed, now: Timestamp) -> Writes;
}

/// Input of a controller: the snapshot and the settings.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The snapshot to decide on.
    pub snapshot: Arc<Snapshot>,
    /// State of etcd before it was lost, until it is settled again.
    pub last_known: Arc<LastKnown>,
    /// Time at which this reconciler began to lead. A new term begins after an outage of etcd that outlasted the
    /// lease.
    pub term_began: Timestamp,
    /// Nodes whose record of usage has not changed for so long that it says nothing of the present.
    pub outdated_usage: BTreeSet<String>,
    /// Time at which each node's report of calls was first read.
    pub demand_read_at: BTreeMap<String, Timestamp>,
    /// The arguments of `minik8s serve`.
    pub settings: Settings,
}

impl Observed {
    /// Returns the time until which a pod waits for the node that ran it before etcd was lost: nodes get as long to
    /// come back as silent nodes get. `None` once it has passed.
    fn waits_until(&self, now: Timestamp) -> Option<Timestamp> {
        let seconds = self.snapshot.cluster().nodes.evict_after_seconds;
        let until = self.term_began.checked_add(SignedDuration::from_secs(seconds.into())).ok();
        until.filter(|until| *until > now)
    }
}

/// Configuration that controllers need in addition to the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The range from which every node gets its own.
    pub cluster_cidr: Ipv4Net,
    /// The range from which every service gets its address.
    pub service_cidr: Ipv4Net,
    /// Every configured source: etcd is complete once each of them was applied.
    pub sources: BTreeSet<String>,
    /// The first configured source: without a Cluster object, it owns the secrets that name no source.
    pub first_source: String,
}

/// True if every configured source was applied, with no file in quarantine and no prune held: etcd holds all that
/// Git says. A source that is no longer configured is ignored: it is never read again.
fn all_sources_applied(snapshot: &Snapshot, sources: &BTreeSet<String>) -> bool {
    let is_whole = |source: &String| {
        let status = snapshot.sources.get(source).map(|status| &status.value);
        status.is_some_and(|status| status.state == SourceState::Synced && status.applied_commit.is_some())
    };
    !sources.is_empty() && sources.iter().all(is_whole)
}
