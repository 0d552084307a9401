//! Plans the pods of one daemon set: one on every node that fits. Pure.
//!
//! A pod names its node: the scheduler puts it nowhere else, and neither a drain nor the loss of the node moves it.
//! The pod's number follows from the node's name, so that an etcd rebuilt from Git gives each node the pod name
//! that runs there, even before the node has reported it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use schema::codec::content_hash;
use schema::kinds::daemon_set::DaemonSetSpec;
use schema::kinds::pod::{PodSpec, PodStatus};
use schema::meta::NamespacedName;
use schema::object::Object;
use schema::records::{PodInstance, Rollout, Template};
use schema::snapshot::Snapshot;

use super::daemon_nodes::{DaemonNodes, removal_reason, tolerations};
use super::owned::{OwnedPod, PodTraces};
use super::replica_set::{DeadlineClock, TargetTemplate, WorkloadPlan, count, templates_of};
use super::workload::{Workload, slow_start};
use crate::controllers::reason::Reason;
use crate::controllers::writes::Writes;
use crate::last_known::LastKnown;

/// Upper bound of pod numbers: two nodes seldom share one, and names stay readable.
const NUMBERS: u32 = 1_000_000;

/// A daemon set with its pods.
pub(super) struct DaemonSetPlan<'p, 'a, 'n> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) last_known: &'a LastKnown,
    pub(super) object: &'a Object,
    pub(super) spec: &'a DaemonSetSpec,
    pub(super) pods: &'p [OwnedPod<'a>],
    pub(super) names: &'p PodTraces<'n>,
    pub(super) now: Timestamp,
    pub(super) clock: DeadlineClock,
}

impl<'a> DaemonSetPlan<'_, 'a, '_> {
    /// Adds the writes, and the time of the next plan.
    pub(super) fn plan(&self, out: &mut Writes) {
        let snapshot = self.snapshot;
        let mut nodes = self.nodes(&self.spec.template.spec);
        let counted: Vec<OwnedPod<'a>> = self
            .pods
            .iter()
            .filter(|pod| named_node(pod).is_some_and(|node| nodes.wanted.contains(node)))
            .map(|pod| self.on_its_node(pod))
            .collect();
        let record = snapshot.rollouts.get(&self.object.reference()).map(|record| &record.value);
        let workload = Workload::for_daemon_set(
            self.snapshot,
            self.object,
            self.spec,
            record,
            count(nodes.wanted.len()),
        );
        let Self { last_known, names, now, .. } = *self;
        let waits = |pod: &OwnedPod<'_>| {
            let is_old = pod.pod().hash != workload.wanted;
            is_old && named_node(pod).is_some_and(|node| !self.is_settled(node))
        };
        let clock = if counted.iter().any(waits) { DeadlineClock::OnHold } else { self.clock };
        let planned = WorkloadPlan { snapshot, last_known, workload, pods: &counted, names, now, clock };
        let rollout = planned.advance();
        let target = planned.target(&rollout);
        let template = target.as_ref().and_then(|target| planned.template(&target.hash));
        if let Some((target, template)) = target.zip(template) {
            if target.hash != planned.workload.wanted {
                nodes = self.nodes(&template.spec);
            }
            self.end_misplaced(&planned, &nodes, &template, out);
            let missing = self.end_old(&planned, &target, &nodes, out);
            let missing = self.recreate_lost(&planned, &rollout, missing, out);
            self.create(&planned, (&target.hash, &template), missing, out);
        }
        planned.record(&rollout, out);
    }

    fn nodes(&self, pod: &PodSpec) -> DaemonNodes<'a> {
        let mut taken: BTreeSet<&str> = self.pods.iter().filter_map(named_node).collect();
        // Where etcd is not settled, running pods have no record yet.
        let traces = self.names.of_workload(&self.object.reference()).iter();
        let unsettled = traces.filter(|trace| !self.snapshot.settled.contains_key(trace.node));
        taken.extend(unsettled.map(|trace| trace.node));
        DaemonNodes::of(self.snapshot, pod, |node| taken.contains(node))
    }

    /// Counts a pod that waits for a silent node as silent, like one that runs there: its template is not at fault.
    fn on_its_node(&self, pod: &OwnedPod<'a>) -> OwnedPod<'a> {
        let node = named_node(pod).filter(|node| pod.node.is_none() && !self.snapshot.node_is_ready(node));
        OwnedPod { node: node.or(pod.node), ..*pod }
    }

    /// Ends misplaced pods: on nodes that are gone, or that the template no longer fits.
    fn end_misplaced(
        &self,
        planned: &WorkloadPlan<'_, '_, '_>,
        nodes: &DaemonNodes<'_>,
        by: &Template,
        out: &mut Writes,
    ) {
        for pod in self.pods {
            let Some(node) = named_node(pod) else { continue };
            if !nodes.wanted.contains(node)
                && !nodes.untouched.contains(node)
                && let Some(why) = removal_reason(self.snapshot, node, &by.spec)
            {
                planned.end(pod, Reason::NodeUnfit { why }, out);
            }
        }
    }

    /// Ends old pods: unavailable ones immediately, the others as far as nodes may be without a pod. Returns the
    /// nodes that have none.
    fn end_old(
        &self,
        planned: &WorkloadPlan<'_, 'a, '_>,
        target: &TargetTemplate,
        nodes: &DaemonNodes<'a>,
        out: &mut Writes,
    ) -> Vec<&'a str> {
        let mut by_node: BTreeMap<&str, Vec<OwnedPod<'a>>> = BTreeMap::new();
        for pod in self.pods {
            by_node.entry(named_node(pod).unwrap_or_default()).or_default().push(self.on_its_node(pod));
        }
        let (mut missing, mut replaceable, mut down) = (Vec::new(), Vec::new(), 0u32);
        let rolled_out = || Reason::RolledOut { to: Rollout::short(&target.hash).to_owned() };
        let serves = |pod: &OwnedPod<'_>| planned.is_available(pod) && !has_ended(pod);
        for node in &nodes.wanted {
            let pods = by_node.get(node).map_or(&[][..], Vec::as_slice);
            let Some(kept) = pods.iter().min_by_key(|pod| !serves(pod)) else {
                down += 1;
                missing.push(*node);
                continue;
            };
            for surplus in pods.iter().filter(|pod| pod.pod().name != kept.pod().name) {
                planned.end(surplus, Reason::ScaledDown { to: planned.workload.desired }, out);
            }
            let is_new = kept.pod().hash == target.hash;
            if serves(kept) {
                replaceable.extend(Some(*kept).filter(|_| !is_new && self.is_settled(node)));
                continue;
            }
            down += 1;
            if has_ended(kept) {
                planned.end(kept, Reason::PodLost { why: "it ended".to_owned() }, out);
            } else if !is_new && !kept.is_silent() && self.is_settled(node) {
                planned.end(kept, rolled_out(), out);
            }
        }
        let free = self.spec.max_unavailable(count(nodes.wanted.len())).saturating_sub(down);
        replaceable.iter().take(free as usize).for_each(|pod| planned.end(pod, rolled_out(), out));
        missing
    }

    /// True if the node's part of etcd is settled. Otherwise the node ends nothing, and a new pod would run in
    /// addition to the old one.
    fn is_settled(&self, node: &str) -> bool {
        self.snapshot.settled.contains_key(node)
    }

    /// Recreates the pods that nodes had when etcd was lost, of both templates if a rollout was under way. Returns
    /// the nodes that had none.
    fn recreate_lost<'n>(
        &self,
        planned: &WorkloadPlan<'_, '_, '_>,
        rollout: &Rollout,
        mut nodes: Vec<&'n str>,
        out: &mut Writes,
    ) -> Vec<&'n str> {
        let reference = self.object.reference();
        for hash in templates_of(rollout) {
            let Some(template) = planned.template(hash) else { continue };
            for (id, last) in self.last_known.pods_of(&reference) {
                let is_it = || last.uid == PodInstance::uid_of(&planned.workload.owner(), id, hash);
                if nodes.contains(&last.node.as_str()) && is_it() && !planned.is_taken(id) {
                    nodes.retain(|node| *node != last.node);
                    planned.create_pod(id.clone(), hash, &Self::on_node(&template, &last.node), out);
                }
            }
        }
        nodes
    }

    /// Returns nodes that still run an ended pod of the daemon set.
    fn nodes_ending_pods(&self) -> BTreeSet<&str> {
        let traces = self.names.of_workload(&self.object.reference()).iter();
        let ended = traces.filter(|trace| {
            // Where etcd is not settled, nothing is ended: running pods are adopted again.
            !self.snapshot.pods.contains_key(trace.pod) && self.snapshot.settled.contains_key(trace.node)
        });
        ended.map(|trace| trace.node).collect()
    }

    /// Creates pods of a template on nodes that have none and have ended the previous one.
    fn create(
        &self,
        planned: &WorkloadPlan<'_, '_, '_>,
        (hash, template): (&str, &Template),
        mut nodes: Vec<&str>,
        out: &mut Writes,
    ) {
        let leftover = self.nodes_ending_pods();
        nodes.retain(|node| !leftover.contains(node));
        let existing = count(self.pods.iter().filter(|pod| pod.pod().hash == hash).count());
        nodes.truncate(slow_start(existing) as usize);
        let traces = self.names.of_workload(&planned.workload.reference);
        let seen: BTreeMap<&str, &str> =
            traces.iter().map(|trace| (trace.pod.name.as_str(), trace.node)).collect();
        let mut given = BTreeSet::new();
        for node in nodes {
            let is_free = |id: &NamespacedName| {
                let is_elsewhere = seen.get(id.name.as_str()).is_some_and(|other| *other != node);
                !is_elsewhere && !planned.is_taken(id) && !given.contains(id)
            };
            let numbers = (0..NUMBERS).map(|step| (number(node) + step) % NUMBERS);
            let Some(id) = numbers.map(|number| self.name(hash, number)).find(is_free) else { continue };
            given.insert(id.clone());
            planned.create_pod(id, hash, &Self::on_node(template, node), out);
        }
    }

    /// Returns the template as used by the pod of this node.
    fn on_node(template: &Template, node: &str) -> Template {
        let mut template = template.clone();
        let spec = Arc::make_mut(&mut template.spec);
        spec.tolerations = tolerations(spec);
        spec.node_name = Some(node.to_owned());
        template
    }

    fn name(&self, hash: &str, number: u32) -> NamespacedName {
        let metadata = &self.object.metadata;
        let name = format!("{}-{}-{number}", metadata.name, Rollout::short(hash));
        NamespacedName::new(&metadata.namespace, name)
    }
}

/// Returns the node that a pod of a daemon set was created for.
fn named_node<'a>(pod: &OwnedPod<'a>) -> Option<&'a str> {
    pod.pod().spec.node_name.as_deref()
}

fn has_ended(pod: &OwnedPod<'_>) -> bool {
    pod.status.is_some_and(PodStatus::has_ended)
}

/// Returns the number of a node's pods, unless another node has it.
fn number(node: &str) -> u32 {
    let digits = content_hash(&node);
    digits.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or_default() % NUMBERS
}
