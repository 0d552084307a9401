//! Tasks in progress and recent failures.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use jiff::Timestamp;
use schema::kinds::pod::{HostPortStatus, PodStatus};
use schema::meta::NamespacedName;

use super::container::Ends;
use super::ids::{Slot, Uid};

/// Tasks in progress and recent failures.
#[derive(Debug, Clone, Default)]
pub struct Work {
    pub busy: BTreeMap<Uid, Busy>,
    pub pulling: BTreeMap<Slot, Pulling>,
    /// Containers whose image was pulled, with the attempt that it was pulled for.
    pub pulled: BTreeMap<Slot, u32>,
    /// Containers whose image was found missing at their start.
    pub missing: BTreeSet<Slot>,
    /// Docker ids of containers being stopped because they failed a probe.
    pub killing: BTreeSet<String>,
    pub trouble: BTreeMap<Slot, Trouble>,
    /// Pods whose link this agent created or found complete at both ends; no attempt since has failed.
    pub linked: BTreeSet<Uid>,
    /// Containers that failed a probe and could not be stopped yet, by Docker id.
    pub unkilled: BTreeMap<String, Trouble>,
    /// Dead containers that could not be removed yet, by Docker id.
    pub unremoved: BTreeMap<String, Trouble>,
    /// Exit statuses of containers whose pods are being removed, by pod and Docker id.
    pub ends: BTreeMap<Uid, Ends>,
    pub last_address: Option<Ipv4Addr>,
}

/// A pull that a container waits for.
#[derive(Debug, Clone, Default)]
pub struct Pulling {
    /// Human-readable progress; empty at first.
    pub progress: String,
    /// Ends the wait; the pull ends with its last waiter.
    pub cancel: tokio_util::sync::CancellationToken,
}

/// A task in progress.
#[derive(Debug, Clone)]
pub struct Busy {
    pub pod: NamespacedName,
    /// True if the task brings the pod up (and may be canceled), false if it takes the pod down.
    pub up: bool,
    pub address: Option<Ipv4Addr>,
    pub ports: Vec<HostPortStatus>,
    /// Docker ids of containers that the task stops.
    pub stops: Vec<String>,
    pub cancel: tokio_util::sync::CancellationToken,
}

impl Work {
    /// True if this container, given by Docker id, is being stopped.
    pub fn is_stopping(&self, id: &str) -> bool {
        self.killing.contains(id) || self.busy.values().any(|busy| busy.stops.iter().any(|stop| stop == id))
    }

    /// True if the image was pulled for this very start of the container.
    pub fn is_pulled(&self, slot: &Slot, attempt: u32) -> bool {
        self.pulled.get(slot) == Some(&attempt)
    }

    /// Returns the reason why a pod could not be removed so far. Failures to create it do not count.
    pub fn removal_trouble(&self, uid: &str) -> Option<&Trouble> {
        self.trouble.get(&(uid.to_owned(), String::new())).filter(|trouble| trouble.is_of_removal())
    }
}

/// A failure that is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Reason as Kubernetes names it.
    pub reason: String,
    pub message: String,
    /// Number of consecutive failures.
    pub failures: u32,
    pub at: Timestamp,
    pub retry_at: Timestamp,
}

impl Trouble {
    /// True if a removal failed.
    pub fn is_of_removal(&self) -> bool {
        self.reason == PodStatus::TERMINATING
    }
}
