//! A pod on its node with its allocations: the input for rendering its containers.

use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use schema::kinds::pod::HostPortStatus;
use schema::records::Binding;

use super::node::NodeFacts;
use crate::converge::names;

/// A bound pod, its node and its allocations.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    pub node: &'a NodeFacts,
    pub binding: &'a Binding,
    /// Pod address; `None` on the host's network.
    pub address: Option<Ipv4Net>,
    pub ports: &'a [HostPortStatus],
}

impl Placement<'_> {
    /// Returns the labels of one of the pod's containers.
    pub fn labels(self, container: &str, attempt: u32, backoff: u32) -> BTreeMap<String, String> {
        let at = self;
        let pod = &at.binding.pod;
        let grace = pod.spec.termination_grace_period_seconds;
        [
            (names::INSTANCE, at.node.instance.clone()),
            (names::NODE, at.node.node.clone()),
            (names::NAMESPACE, pod.namespace.clone()),
            (names::POD, pod.name.clone()),
            (names::UID, pod.uid.clone()),
            (names::HASH, pod.hash.clone()),
            (names::CONTAINER, container.to_owned()),
            (names::ATTEMPT, attempt.to_string()),
            (names::BACKOFF, backoff.to_string()),
            (names::COMMIT, pod.commit.clone()),
            (names::OWNER, format!("{}/{}", pod.owner.kind, pod.owner.name)),
            (names::GRACE, grace.to_string()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }
}
