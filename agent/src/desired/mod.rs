//! Desired state of this node: from etcd once it has been listed, else from the node's own disk.
//!
//! Reads the snapshot and `<state>/agent/desired`; decides which of the two applies; writes each binding to disk
//! before anyone acts on it. An unreadable file or key keeps its pod; it never removes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{Binding, Subnet};
use schema::snapshot::Snapshot;
use schema::store::reflector::SnapshotReader;
use tokio::sync::watch;

use schema::control::publish;

mod disk;

pub use disk::{DesiredDisk, DiskError, known_subnet};

/// Time that a fresh agent waits for etcd's first list before it acts from disk.
pub const ETCD_GRACE: Duration = Duration::from_secs(2);

/// Origin of the desired state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StateOrigin {
    /// etcd, listed in full.
    Etcd,
    /// The node's own disk, written when etcd had been listed in full.
    Disk,
    /// Not known yet: nothing may be planned.
    #[default]
    Unknown,
}

/// Desired state of this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DesiredState {
    pub known_from: StateOrigin,
    pub subnet: Option<Subnet>,
    pub pods: BTreeMap<NamespacedName, Binding>,
    /// Pods bound to this node whose binding can't be read: their containers stay as they are.
    pub unreadable: BTreeMap<NamespacedName, String>,
    /// True if etcd is settled for this node, or was before the state on disk was written.
    pub settled: bool,
}

impl DesiredState {
    /// True if absent pods are unwanted. Before, a lost etcd may not have been refilled from Git yet, and nothing
    /// is taken down for being absent.
    pub fn is_settled(&self) -> bool {
        self.known_from != StateOrigin::Unknown && self.settled
    }
}

/// Keeps [`DesiredState`] between runs.
#[derive(Debug)]
pub struct DesiredStore {
    node: String,
    disk: DesiredDisk,
    current: DesiredState,
    taken: Option<Snapshot>,
    /// A snapshot that could not be written to disk: `current` stays in force until it is.
    unsaved: Option<Snapshot>,
}

impl DesiredStore {
    /// Loads the state below `<state_dir>/agent`.
    pub fn open(state_dir: &Path, node: &str) -> Result<Self, DiskError> {
        let (disk, current) = DesiredDisk::open(&state_dir.join("agent"))?;
        Ok(Self { node: node.to_owned(), disk, current, taken: None, unsaved: None })
    }

    /// The desired state in force.
    pub fn current(&self) -> &DesiredState {
        &self.current
    }

    /// Accepts a listed snapshot, disk first. On a disk error the former state stays in force: a full disk keeps
    /// pods running and only delays changes.
    pub fn take(&mut self, snapshot: &Snapshot) -> Result<(), DiskError> {
        if self.is_taken(snapshot) {
            return Ok(());
        }
        let next = self.next(snapshot);
        if let Err(error) = self.disk.store(&next) {
            self.unsaved = Some(snapshot.clone());
            return Err(error);
        }
        self.current = next;
        self.taken = Some(snapshot.clone());
        self.unsaved = None;
        Ok(())
    }

    /// Returns the state that a run with this snapshot plans on. The run must [`take`](Self::take) the snapshot
    /// before it acts.
    pub fn read(&self, snapshot: &Snapshot) -> DesiredState {
        match self.is_taken(snapshot) || self.is_unsaved(snapshot) {
            true => self.current.clone(),
            false => self.next(snapshot),
        }
    }

    /// True if the state in force reflects this snapshot, or the snapshot is not synced.
    pub fn is_taken(&self, snapshot: &Snapshot) -> bool {
        !snapshot.synced || self.taken.as_ref().is_some_and(|taken| has_same_content(taken, snapshot))
    }

    /// True if this snapshot could not be written to disk yet.
    pub fn is_unsaved(&self, snapshot: &Snapshot) -> bool {
        self.unsaved.as_ref().is_some_and(|unsaved| has_same_content(unsaved, snapshot))
    }

    fn next(&self, snapshot: &Snapshot) -> DesiredState {
        let settled = snapshot.settled.contains_key(&self.node);
        let mut next = DesiredState { known_from: StateOrigin::Etcd, settled, ..DesiredState::default() };
        next.subnet = snapshot.subnets.get(&self.node).map(|s| s.value.clone()).or_else(|| {
            // An unreadable or missing subnet never takes addresses away from running pods.
            self.current.subnet.clone()
        });
        let first = (self.node.clone(), NamespacedName::new("", ""));
        for ((node, pod), binding) in snapshot.bindings.range(first..) {
            if *node != self.node {
                break;
            }
            if binding.value.pod.reference() == *pod {
                next.pods.insert(pod.clone(), binding.value.clone());
            } else {
                let why = format!("its value is for {}", binding.value.pod.reference());
                next.unreadable.insert(pod.clone(), why);
            }
        }
        for (key, why) in &snapshot.malformed {
            let Ok(Key::Binding(node, pod)) = key.parse::<Key>() else { continue };
            if node == self.node {
                next.unreadable.insert(pod, why.to_string());
            }
        }
        self.keep_last_readable(&mut next);
        if !next.is_settled() {
            for (pod, binding) in &self.current.pods {
                next.pods.entry(pod.clone()).or_insert_with(|| binding.clone());
            }
        }
        next
    }

    /// Keeps the last readable version of bindings that can no longer be read.
    fn keep_last_readable(&self, next: &mut DesiredState) {
        let known: BTreeSet<NamespacedName> =
            next.unreadable.keys().filter(|pod| self.current.pods.contains_key(*pod)).cloned().collect();
        for pod in known {
            if let Some(binding) = self.current.pods.get(&pod) {
                next.pods.insert(pod.clone(), binding.clone());
                next.unreadable.remove(&pod);
            }
        }
    }
}

/// Compares content, not revisions: the watch of one prefix may lag behind another's, and late changes no longer
/// raise the newest revision.
fn has_same_content(one: &Snapshot, other: &Snapshot) -> bool {
    one.bindings.ptr_eq(&other.bindings)
        && one.settled.ptr_eq(&other.settled)
        && one.subnets.ptr_eq(&other.subnets)
        && one.malformed.ptr_eq(&other.malformed)
}

/// Returns a step that publishes this node's range of pod addresses. A range deleted from etcd stays: the pods use
/// it.
pub fn publish_subnet(
    node: String,
    snapshot: SnapshotReader,
    subnets: watch::Sender<Option<Subnet>>,
) -> impl FnMut() + Send {
    move || {
        if let Some(subnet) = snapshot.current().subnets.get(&node) {
            publish(&subnets, Some(subnet.value.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
