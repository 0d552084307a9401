//! Index of bindings and statuses by pod, which the snapshot holds by node first, and the number of pods of each object.
//!
//! Built once per view, so that a list of all pods reads every table once.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use schema::kinds::Kind;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;
use schema::records::Binding;
use schema::snapshot::Snapshot;

use crate::controllers::scheduler::Explainer;
use crate::view::age::AppliedAt;

pub(in crate::view) struct PodIndex<'a> {
    pub(in crate::view) snapshot: &'a Snapshot,
    /// Desired pods.
    names: BTreeSet<&'a NamespacedName>,
    bindings: BTreeMap<&'a NamespacedName, Vec<&'a Binding>>,
    statuses: BTreeMap<&'a NamespacedName, Vec<(&'a str, &'a PodStatus)>>,
    pub(in crate::view) applied: AppliedAt<'a>,
    pub(in crate::view) unbound: UnboundReasons<'a>,
}

impl<'a> PodIndex<'a> {
    pub(in crate::view) fn new(snapshot: &'a Snapshot) -> Self {
        Self::of(snapshot, |_| true)
    }

    /// Indexes the pods whose names are `wanted`: much less work than all, if these are few.
    pub(in crate::view) fn of(snapshot: &'a Snapshot, wanted: impl Fn(&NamespacedName) -> bool) -> Self {
        let mut bindings: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ((_, pod), binding) in snapshot.bindings.iter().filter(|((_, pod), _)| wanted(pod)) {
            bindings.entry(pod).or_default().push(&binding.value);
        }
        let mut statuses: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ((node, pod), status) in snapshot.pod_status.iter().filter(|((_, pod), _)| wanted(pod)) {
            statuses.entry(pod).or_default().push((node.as_str(), &status.value));
        }
        Self {
            names: snapshot.pods.keys().filter(|pod| wanted(pod)).collect(),
            snapshot,
            bindings,
            statuses,
            applied: AppliedAt::new(snapshot),
            unbound: UnboundReasons::new(snapshot),
        }
    }

    /// Every pod that should exist or still exists.
    pub(in crate::view) fn pods(&self) -> impl Iterator<Item = &'a NamespacedName> + use<'a> {
        let mut all = self.names.clone();
        all.extend(self.bindings.keys());
        all.extend(self.statuses.keys());
        all.into_iter()
    }

    /// Binding of the pod; the one with `uid` if there are several.
    pub(in crate::view) fn binding(&self, pod: &NamespacedName, uid: Option<&str>) -> Option<&'a Binding> {
        let all = self.bindings.get(pod)?;
        all.iter().find(|b| Some(b.pod.uid.as_str()) == uid).or_else(|| all.first()).copied()
    }

    pub(in crate::view) fn status(&self, pod: &NamespacedName, node: &str) -> Option<&'a PodStatus> {
        self.statuses(pod).find(|(n, _)| *n == node).map(|(_, status)| status)
    }

    pub(in crate::view) fn statuses(
        &self,
        pod: &NamespacedName,
    ) -> impl Iterator<Item = (&'a str, &'a PodStatus)> + use<'a> {
        self.statuses.get(pod).cloned().unwrap_or_default().into_iter()
    }
}

/// Number of pods of each object, by its kind, namespace and name.
pub(in crate::view) type PodCounts<'a> = BTreeMap<(Kind, &'a str, &'a str), u32>;

/// Counts the pods of each object. Those of one object are mostly next to each other.
pub(in crate::view) fn pod_counts(snapshot: &Snapshot) -> PodCounts<'_> {
    let mut counts = PodCounts::new();
    let mut last: Option<((Kind, &str, &str), u32)> = None;
    for pod in snapshot.pods.values().map(|pod| &pod.value) {
        let owner = (pod.owner.kind, pod.namespace.as_str(), pod.owner.name.as_str());
        match &mut last {
            Some((of, count)) if *of == owner => *count += 1,
            other => {
                if let Some((of, count)) = other.replace((owner, 1)) {
                    *counts.entry(of).or_default() += count;
                }
            }
        }
    }
    if let Some((of, count)) = last {
        *counts.entry(of).or_default() += count;
    }
    counts
}

// Reason that a pod has no node, computed by the scheduler on the same snapshot.

/// Computes the resources taken on every node lazily, because most snapshots need no explanation.
pub(in crate::view) struct UnboundReasons<'a> {
    snapshot: &'a Snapshot,
    explainer: OnceCell<Explainer<'a>>,
}

impl<'a> UnboundReasons<'a> {
    pub(in crate::view) fn new(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, explainer: OnceCell::new() }
    }

    /// Reason that the desired pod is not bound, in a sentence.
    pub(in crate::view) fn reason(&self, pod: &NamespacedName) -> String {
        let explainer = self.explainer.get_or_init(|| Explainer::new(self.snapshot));
        explainer.explain(pod).unwrap_or_else(|| "waiting for the scheduler".to_owned())
    }
}
