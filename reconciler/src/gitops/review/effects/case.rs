//! Inputs from which the functions of kinds decide effects. Pure.

use std::collections::{BTreeMap, BTreeSet};

use schema::kinds::cluster::{ClusterSpec, DEFAULT_ZONE, WorkloadDefaults};
use schema::kinds::node::NodeSpec;
use schema::kinds::pod::{PodSpec, TaintEffect};
use schema::kinds::{Kind, Resource};
use schema::meta::{DEFAULT_NAMESPACE, ObjectRef, StringMap, matches_node_selector};
use schema::object::Object;
use schema::quantity::{Cpu, Memory};
use schema::snapshot::Table;
use schema::violation::OwnedStep;

use crate::gitops::diff::FILES;
use crate::gitops::plan::Step;
use crate::gitops::review::change::{Action, Field};

/// Room for pods on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRoom {
    pub name: String,
    pub labels: StringMap,
    /// CPU for pods.
    pub cpu: Cpu,
    /// Memory for pods.
    pub memory: Memory,
    /// Limit on pods.
    pub max_pods: u64,
}

impl NodeRoom {
    /// True if a daemon set with pods of `pod` has one here. `spec` is the node's object in Git.
    pub(super) fn has_daemon(&self, pod: &PodSpec, spec: Option<&NodeSpec>) -> bool {
        let keeps_away = |effect: TaintEffect| effect != TaintEffect::PreferNoSchedule;
        let taints = spec.into_iter().flat_map(|spec| &spec.taints).filter(|taint| keeps_away(taint.effect));
        pod.node_name.as_ref().is_none_or(|name| *name == self.name)
            && matches_node_selector(&pod.node_selector, &self.labels)
            && pod.required_nodes().is_none_or(|nodes| nodes.matches(&self.name, &self.labels))
            && taints.into_iter().all(|taint| taint.is_tolerated_by(&pod.tolerations, 0))
    }
}

/// Live objects, and the plan's changes to them.
pub(crate) struct PlannedObjects<'a> {
    pub(super) live: &'a Table<ObjectRef, Object>,
    pub(super) changed: BTreeMap<&'a ObjectRef, Option<&'a Object>>,
    /// Running pods of each workload.
    running: &'a BTreeMap<ObjectRef, u32>,
    /// Live nodes; `None` without a server.
    nodes: Option<&'a [NodeRoom]>,
    /// Workloads whose number of pods an autoscaler sets once everything is applied.
    scaled: BTreeSet<ObjectRef>,
    /// The Cluster object once everything is applied.
    cluster: Option<&'a ClusterSpec>,
}

impl<'a> PlannedObjects<'a> {
    pub(crate) fn new(
        live: &'a Table<ObjectRef, Object>,
        steps: &'a [Step],
        running: &'a BTreeMap<ObjectRef, u32>,
        nodes: Option<&'a [NodeRoom]>,
    ) -> Self {
        let after = |step: &'a Step| step.object_after().map(|object| &**object);
        let changed = steps.iter().map(|step| (&step.object, after(step))).collect();
        let planned = Self { live, changed, running, nodes, scaled: BTreeSet::new(), cluster: None };
        let (mut scaled, mut cluster) = (BTreeSet::new(), None);
        for (_, object) in planned.after() {
            if let Resource::Cluster(found) = &object.resource {
                cluster = Some(&**found);
            }
            if let Resource::HorizontalPodAutoscaler(scaler) = &object.resource {
                scaled.insert(scaler.target(&object.metadata));
            }
        }
        Self { scaled, cluster, ..planned }
    }

    /// Returns the zone of the cluster's own names.
    pub(super) fn zone(&self) -> &'a str {
        self.cluster.map_or(DEFAULT_ZONE, |cluster| &cluster.dns.zone)
    }

    /// Returns the defaults of workloads that set no values of their own.
    pub(crate) fn defaults(&self) -> WorkloadDefaults {
        self.cluster.map(|cluster| cluster.defaults.clone()).unwrap_or_default()
    }

    /// Returns the number of running pods of a workload, if known.
    pub(super) fn running(&self, object: &ObjectRef) -> Option<u32> {
        self.running.get(object).copied()
    }

    /// Counts the live nodes that have a pod of a daemon set with this template, if the nodes are known.
    pub(crate) fn count_nodes(&self, pod: &PodSpec) -> Option<u32> {
        let fit = self.nodes?.iter().filter(|node| {
            let (namespace, name) = (DEFAULT_NAMESPACE.to_owned(), node.name.clone());
            let object = self.now(&ObjectRef { kind: Kind::Node, namespace, name });
            let spec = object.and_then(|object| match &object.resource {
                Resource::Node(spec) => Some(&**spec),
                _ => None,
            });
            node.has_daemon(pod, spec)
        });
        u32::try_from(fit.count()).ok()
    }

    /// Returns the number of pods of a workload before anything is applied.
    pub(super) fn count_before(&self, object: &ObjectRef, in_git: u32) -> u32 {
        self.running(object).unwrap_or(in_git)
    }

    /// Returns the number of pods of a workload once everything is applied, if Git then asks for `in_git`. A number
    /// that Git does not change leaves the running pods.
    pub(crate) fn count_after(&self, object: &ObjectRef, in_git: u32) -> u32 {
        if object.kind == Kind::Pod && !self.is_scaled(object) {
            return in_git;
        }
        let before = self.before(object).and_then(|before| before.resource.pod(&before.metadata));
        let keeps = before.is_some_and(|before| before.count == in_git) || self.scaled.contains(object);
        if keeps { self.count_before(object, in_git) } else { in_git }
    }

    /// True if an autoscaler sets the workload's number of pods once everything is applied.
    pub(super) fn is_scaled(&self, object: &ObjectRef) -> bool {
        self.scaled.contains(object)
    }

    pub(crate) fn before(&self, object: &ObjectRef) -> Option<&'a Object> {
        self.live.get(object).map(|live| &live.value)
    }

    pub(super) fn now(&self, object: &ObjectRef) -> Option<&'a Object> {
        match self.changed.get(object) {
            Some(changed) => *changed,
            None => self.before(object),
        }
    }

    /// Iterates over every object after the plan.
    pub(crate) fn after(&self) -> impl Iterator<Item = (&'a ObjectRef, &'a Object)> {
        let kept = self.live.iter().filter(|(object, _)| !self.changed.contains_key(*object));
        let kept = kept.map(|(object, live)| (object, &live.value));
        let changed = self.changed.iter().filter_map(|(object, after)| Some((*object, (*after)?)));
        kept.chain(changed)
    }
}

/// Input of a kind's function: the object before and after, and the fields that differ.
pub(crate) struct EffectCase<'a> {
    pub(super) object: &'a ObjectRef,
    pub(super) before: Option<&'a Resource>,
    pub(super) after: Option<&'a Resource>,
    pub(super) fields: &'a [Field],
    pub(super) action: Action,
    pub(super) planned: &'a PlannedObjects<'a>,
}

impl<'a> EffectCase<'a> {
    /// Returns before and after as the spec that `of` extracts from a resource.
    pub(super) fn specs<S>(
        &self,
        of: impl Fn(&'a Resource) -> Option<&'a S>,
    ) -> (Option<&'a S>, Option<&'a S>) {
        (self.before.and_then(&of), self.after.and_then(&of))
    }

    /// True if repository files that its pods need differ.
    pub(super) fn files_differ(&self) -> bool {
        self.fields.iter().any(is_file)
    }

    /// True if this file or folder of the repository differs.
    pub(super) fn file_differs(&self, path: &str) -> bool {
        let is_it =
            |field: &Field| matches!(field.steps.get(1), Some(OwnedStep::Field(name)) if name == path);
        self.fields.iter().any(|field| is_file(field) && is_it(field))
    }

    /// Returns the first few fields of the spec that differ.
    pub(super) fn because(&self) -> Vec<String> {
        const NAMED_MAX: usize = 5;
        let is_cause = |field: &&Field| field.path.starts_with("spec") || is_file(field);
        let spec = self.fields.iter().filter(is_cause);
        let mut named: Vec<String> = spec.clone().take(NAMED_MAX).map(|field| field.path.clone()).collect();
        let more = spec.count().saturating_sub(NAMED_MAX);
        if more > 0 {
            named.push(format!("{more} more"));
        }
        named
    }
}

/// Recognizes a repository file that a volume or secret names.
fn is_file(field: &Field) -> bool {
    matches!(field.steps.first(), Some(OwnedStep::Field(name)) if name == FILES)
}
