//! Input of the pods plan.

use std::collections::{BTreeMap, BTreeSet};

use super::container::PodFacts;
use super::ids::{Finished, LastReported, Uid};
use super::node::NodeFacts;
use super::work::Work;
use crate::converge::pods::sandbox::drain::Drain;
use crate::desired::Desired;
use crate::worlds::netlink::{HostEnd, Listener, Port};

/// Observed state of the whole pods loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub node: NodeFacts,
    pub desired: Desired,
    pub pods: BTreeMap<Uid, PodFacts>,
    /// Host ends of pod links; `None` if the kernel could not be queried.
    pub links: Option<BTreeMap<String, HostEnd>>,
    /// Node ports with a listener, and its process; read only when a pod is about to get host ports.
    pub listeners: BTreeMap<Port, Listener>,
    pub finished: Finished,
    pub draining: BTreeMap<Uid, Drain>,
    pub last_reported: LastReported,
    pub folders: BTreeSet<Uid>,
    /// True if the last removal of unused content is long enough ago.
    pub sweep_is_due: bool,
    pub work: Work,
}
