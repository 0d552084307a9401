//! What tasks have under way, and what went wrong lately.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use jiff::Timestamp;
use schema::kinds::pod::{HostPortStatus, PodStatus};
use schema::meta::NamespacedName;

use super::container::Ends;
use super::ids::{Slot, Uid};

/// What tasks have under way, and what went wrong lately.
#[derive(Debug, Clone, Default)]
pub struct Work {
    pub busy: BTreeMap<Uid, Busy>,
    pub pulling: BTreeMap<Slot, Pulling>,
    /// Containers whose image was pulled for the start of this number.
    pub pulled: BTreeMap<Slot, u32>,
    /// Containers whose image was found missing at their start.
    pub missing: BTreeSet<Slot>,
    /// Docker ids of containers that are being stopped because they failed a probe.
    pub killing: BTreeSet<String>,
    pub trouble: BTreeMap<Slot, Trouble>,
    /// Pods whose link this agent made or found whole, both ends of it; no try since has failed.
    pub linked: BTreeSet<Uid>,
    /// Containers that failed a probe and could not be stopped so far, by Docker id.
    pub unkilled: BTreeMap<String, Trouble>,
    /// Dead containers that could not be removed so far, by Docker id.
    pub unremoved: BTreeMap<String, Trouble>,
    /// How containers ended of pods that are taken away, by pod and Docker id.
    pub ends: BTreeMap<Uid, Ends>,
    pub last_address: Option<Ipv4Addr>,
}

/// A pull that a container waits for.
#[derive(Debug, Clone, Default)]
pub struct Pulling {
    /// How far it is, in words; empty at the beginning.
    pub progress: String,
    /// Ends the wait; the pull ends with its last waiter.
    pub cancel: tokio_util::sync::CancellationToken,
}

/// A task under way.
#[derive(Debug, Clone)]
pub struct Busy {
    pub pod: NamespacedName,
    /// It brings the pod up (and may be cut off), or takes it down.
    pub up: bool,
    pub address: Option<Ipv4Addr>,
    pub ports: Vec<HostPortStatus>,
    /// Docker ids of containers that it stops.
    pub stops: Vec<String>,
    pub cancel: tokio_util::sync::CancellationToken,
}

impl Work {
    /// Something stops this container, by Docker id.
    pub fn is_stopping(&self, id: &str) -> bool {
        self.killing.contains(id) || self.busy.values().any(|busy| busy.stops.iter().any(|stop| stop == id))
    }

    /// The image was pulled for this very start of a container.
    pub fn is_pulled(&self, slot: &Slot, attempt: u32) -> bool {
        self.pulled.get(slot) == Some(&attempt)
    }

    /// Why a pod could not be taken away so far. That it could not be made is no word on that.
    pub fn removal_trouble(&self, uid: &str) -> Option<&Trouble> {
        self.trouble.get(&(uid.to_owned(), String::new())).filter(|trouble| trouble.is_of_removal())
    }
}

/// Something that did not work and is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Kubernetes' word for it.
    pub reason: String,
    pub message: String,
    /// How often in a row.
    pub failures: u32,
    pub at: Timestamp,
    pub retry_at: Timestamp,
}

impl Trouble {
    /// Something could not be taken away.
    pub fn is_of_removal(&self) -> bool {
        self.reason == PodStatus::TERMINATING
    }
}
