//! All that the plan of the pods follows from.

use std::collections::{BTreeMap, BTreeSet};

use super::container::PodFacts;
use super::ids::{Finished, LastReported, Uid};
use super::node::NodeFacts;
use super::work::Work;
use crate::converge::pods::sandbox::drain::Drain;
use crate::desired::Desired;
use crate::worlds::netlink::{HostEnd, Listener, Port};

/// The whole world of the pods loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub node: NodeFacts,
    pub desired: Desired,
    pub pods: BTreeMap<Uid, PodFacts>,
    /// Host ends of pod links; none when the kernel could not be asked.
    pub links: Option<BTreeMap<String, HostEnd>>,
    /// Ports of the node that something listens on, with its process; read only when a pod is about to
    /// get host ports.
    pub listeners: BTreeMap<Port, Listener>,
    pub finished: Finished,
    pub draining: BTreeMap<Uid, Drain>,
    pub last_reported: LastReported,
    pub folders: BTreeSet<Uid>,
    /// Content that nothing needs was removed long enough ago.
    pub sweep_is_due: bool,
    pub work: Work,
}
