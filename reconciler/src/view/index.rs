//! Bindings and statuses by pod: the world holds them by node first.
//!
//! Built once per view, so that a list of all pods reads every table once.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::kinds::pod::PodStatus;
use schema::meta::PodRef;
use schema::records::Binding;
use schema::world::World;

use super::unbound::Unbound;

pub(super) struct Index<'a> {
    pub(super) world: &'a World,
    bindings: BTreeMap<&'a PodRef, Vec<&'a Binding>>,
    statuses: BTreeMap<&'a PodRef, Vec<(&'a str, &'a PodStatus)>>,
    applied_at: BTreeMap<&'a str, Timestamp>,
    pub(super) unbound: Unbound<'a>,
}

impl<'a> Index<'a> {
    pub(super) fn new(world: &'a World) -> Self {
        let mut bindings: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ((_, pod), binding) in &world.bindings {
            bindings.entry(pod).or_default().push(&binding.value);
        }
        let mut statuses: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ((node, pod), status) in &world.pod_status {
            statuses.entry(pod).or_default().push((node.as_str(), &status.value));
        }
        let applied_at = world
            .revisions
            .values()
            .map(|revision| (revision.value.commit.as_str(), revision.value.applied_at))
            .collect();
        Self { world, bindings, statuses, applied_at, unbound: Unbound::new(world) }
    }

    /// All pods that should be, or still are.
    pub(super) fn pods(&self) -> impl Iterator<Item = &'a PodRef> + use<'a> {
        let mut all: std::collections::BTreeSet<&PodRef> = self.world.pods.keys().collect();
        all.extend(self.bindings.keys());
        all.extend(self.statuses.keys());
        all.into_iter()
    }

    /// Where the pod is bound; the one with `uid` if there are several.
    pub(super) fn binding(&self, pod: &PodRef, uid: Option<&str>) -> Option<&'a Binding> {
        let all = self.bindings.get(pod)?;
        all.iter().find(|b| Some(b.pod.uid.as_str()) == uid).or_else(|| all.first()).copied()
    }

    /// What `node` reports of the pod.
    pub(super) fn status(&self, pod: &PodRef, node: &str) -> Option<&'a PodStatus> {
        self.statuses(pod).find(|(n, _)| *n == node).map(|(_, status)| status)
    }

    /// What every node reports of the pod.
    pub(super) fn statuses(&self, pod: &PodRef) -> impl Iterator<Item = (&'a str, &'a PodStatus)> + use<'a> {
        self.statuses.get(pod).cloned().unwrap_or_default().into_iter()
    }

    /// When the commit was applied.
    pub(super) fn applied_at(&self, commit: &str) -> Option<Timestamp> {
        self.applied_at.get(commit).copied()
    }
}
