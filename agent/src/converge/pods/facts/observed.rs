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
    /// The node.
    pub node: NodeFacts,
    /// What should run.
    pub desired: Desired,
    /// What is there, by pod uid.
    pub pods: BTreeMap<Uid, PodFacts>,
    /// Host ends of pod links; none when the kernel could not be asked.
    pub links: Option<BTreeMap<String, HostEnd>>,
    /// Ports of the node that something listens on, with its process; read only when a pod is about to
    /// get host ports.
    pub listeners: BTreeMap<Port, Listener>,
    /// How pods ended that ended for good, whatever is left of their containers.
    pub finished: Finished,
    /// Pods that are not wanted any more and that clients may still be led to.
    pub draining: BTreeMap<Uid, Drain>,
    /// What was said last of the pods of this node.
    pub last_reported: LastReported,
    /// Pod uids with a folder on disk.
    pub folders: BTreeSet<Uid>,
    /// What tasks have under way and remember.
    pub work: Work,
}
