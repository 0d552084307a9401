//! Identifiers of pods and containers on a node, and maps keyed by them.

use std::collections::BTreeMap;
use std::sync::Arc;

use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;

/// A pod's uid.
pub type Uid = String;

/// A container of a pod: uid and container name; an empty name stands for the pod as a whole.
pub type Slot = (Uid, String);

/// Final statuses by pod uid.
pub type Finished = BTreeMap<Uid, Arc<PodStatus>>;

/// Last reported statuses by pod.
pub type LastReported = BTreeMap<NamespacedName, Arc<PodStatus>>;
