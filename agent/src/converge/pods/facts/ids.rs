//! Names of things on a node, and what is kept of them by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;

/// A pod's uid.
pub type Uid = String;

/// A container of a pod: uid and container name; an empty name is the pod as a whole.
pub type Slot = (Uid, String);

/// The last status by pod uid.
pub type Finished = BTreeMap<Uid, Arc<PodStatus>>;

/// What was said last, by pod.
pub type LastReported = BTreeMap<NamespacedName, Arc<PodStatus>>;
