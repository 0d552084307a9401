//! Decides which pod runs where. Reads pods, bindings, nodes and status, writes `bindings/`.
//!
//! A pod always has one binding: it moves in a single transaction. A pod stays on its node as long as it fits; if
//! its new version fits nowhere, the old one keeps running. A pod on a node that is not ready stays bound to it
//! until the node is evicted; then bare pods move, as they do from a drained node. Last of all, the plan records
//! for each node, once, that etcd is complete.
//!
//! After a loss of etcd, a pod goes to the node that ran it, and waits for that node for a while.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::keys::{Key, prefix};
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;
use schema::records::{Binding, PodInstance, SettledRecord};
use schema::snapshot::{BoundPod, Snapshot, VersionedValue, health};

use super::cluster::Cluster;
use super::fit::FitFailures;
use super::node::{Needs, PodNeeds};
use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::{Precondition, Writes};
use crate::controllers::{Observed, all_sources_applied};
use crate::last_known::LastKnown;

/// Time that the other controllers may take to notice what a newly registered node runs.
const NODE_SETTLE_DELAY: SignedDuration = SignedDuration::from_secs(3);

/// A pod that needs a node, and its binding so far: of the version before it, or its own if it must leave.
struct WaitingPod<'a> {
    id: &'a NamespacedName,
    pod: &'a PodInstance,
    before: Option<BoundPod<'a>>,
    leave: Option<LeaveMode>,
}

struct Planner<'a> {
    snapshot: &'a Snapshot,
    cluster: Cluster<'a>,
    /// Pods whose record or binding is unreadable: the pod is not gone, so nothing is touched.
    unreadable: BTreeMap<NamespacedName, String>,
    /// Needs that fit nowhere, cached so that a thousand equal pods are counted once.
    unfit: BTreeMap<Needs<'a>, Arc<FitFailures>>,
    /// Node that reports a pod which is not bound to it.
    reported: HashMap<&'a NamespacedName, &'a str>,
    /// Nodes from which this plan has moved a pod in turn.
    had_turn: BTreeSet<&'a str>,
    last_known: &'a LastKnown,
    /// Time until which a pod waits for the node that ran it before etcd was lost; `None` once it has passed.
    waits_until: Option<Timestamp>,
    /// Set if etcd is not settled, and nodes run pods that it does not know.
    was_lost: bool,
    out: Writes,
}

/// Returns the writes below `bindings/` and `settled/`.
pub(super) fn plan(seen: &Observed, now: Timestamp) -> Writes {
    let mut out = bind(&seen.snapshot, &seen.last_known, seen.waits_until(now));
    remove_settled(&seen.snapshot, &mut out);
    settle(seen, now, &mut out);
    out
}

/// Assigns pods to nodes. `waits_until` is the time until which a pod waits for the node that ran it before etcd
/// was lost; `None` once it has passed.
pub fn bind(snapshot: &Snapshot, last_known: &LastKnown, waits_until: Option<Timestamp>) -> Writes {
    let unreadable = unreadable_pods(snapshot);
    let mut planner = Planner {
        snapshot,
        cluster: Cluster::empty(snapshot),
        unreadable,
        unfit: BTreeMap::new(),
        reported: HashMap::new(),
        had_turn: BTreeSet::new(),
        last_known,
        waits_until,
        was_lost: snapshot.settled.is_empty() && unbound_running_pods(snapshot).next().is_some(),
        out: Writes::default(),
    };
    let waiting = planner.load_bindings();
    let mut waiting = planner.replace_in_place(waiting);
    // Group pods by owner: the order of the nodes is for one owner at a time.
    // Pods that must join others come last: the others may be placed now.
    waiting.sort_by_key(|waiting| {
        let (pod, owner) = (waiting.pod, &waiting.pod.owner);
        (!pod.spec.required_pods().is_empty(), &pod.namespace, &owner.name, owner.kind)
    });
    planner.reported = reported(snapshot, &waiting);
    for pod in waiting {
        planner.place(&pod);
    }
    planner.note_unreadable();
    planner.out
}

/// Records for every node, once, that this etcd is complete. Waits for a plan that binds no new pod: a pod that
/// moves or is removed leaves nothing open. Waits as well for nodes that ran pods before etcd was lost.
fn settle(seen: &Observed, now: Timestamp, out: &mut Writes) {
    let snapshot = &*seen.snapshot;
    let unsettled = || snapshot.nodes.keys().filter(|node| !snapshot.settled.contains_key(*node));
    let binds = out.writes.iter().any(|write| matches!(write.reason, Reason::Bound { .. }));
    let waits = out.notes.iter().any(|note| matches!(note.kind, NoteKind::WaitsForNode { .. }));
    if binds || waits || unsettled().next().is_none() || !is_complete(snapshot, &seen.settings.sources) {
        return;
    }
    // The other controllers may not have noticed yet what a newly registered node runs.
    let holders: BTreeSet<&str> = unbound_running_pods(snapshot).map(|(node, _)| node).collect();
    let holders = unsettled().filter(|node| holders.contains(node.as_str()));
    let youngest = holders.map(|node| snapshot.nodes[node].value.registered_at).max();
    if let Some(young) =
        youngest.filter(|at| (SignedDuration::ZERO..NODE_SETTLE_DELAY).contains(&now.duration_since(*at)))
    {
        return out.plan_again_by(young + NODE_SETTLE_DELAY);
    }
    let since = youngest.map_or(seen.term_began, |at| at.min(now).max(seen.term_began));
    if let Some(until) = pods_awaited_until(snapshot, since).filter(|until| *until > now) {
        return out.plan_again_by(until);
    }
    let commits = snapshot.sources.iter().filter_map(|(source, status)| {
        status.value.applied_commit.clone().map(|commit| (source.clone(), commit))
    });
    let value = SettledRecord { commits: commits.collect() };
    for node in unsettled() {
        out.put(Key::Settled(node.clone()), &value, Precondition::Absent, Reason::Settled);
    }
}

/// Deletes the settled marks of nodes that left: a node that comes back is another one.
fn remove_settled(snapshot: &Snapshot, out: &mut Writes) {
    for (node, settled) in snapshot.settled.iter().filter(|(node, _)| has_left(snapshot, node)) {
        out.delete(Key::Settled(node.clone()), settled.mod_revision, Reason::NodeLeft);
    }
}

/// True if all that Git says has its records, and pods those of their present version; the caller has checked that
/// pods have become bindings, as far as nodes fit. False with a quarantined file, a held prune, an object that
/// waits or a source that was never read: their pods may run on a node and be missing from this etcd.
fn is_complete(snapshot: &Snapshot, sources: &BTreeSet<String>) -> bool {
    all_sources_applied(snapshot, sources)
        && snapshot.malformed.is_empty()
        && snapshot.objects.values().all(|object| health::is_complete(snapshot, &object.value))
}

/// Returns the time until which pods whose template was lost keep serving: they go once pods of the wanted template
/// serve, or have had their time from `since` on.
fn pods_awaited_until(snapshot: &Snapshot, since: Timestamp) -> Option<Timestamp> {
    let strays: BTreeSet<(&str, &str)> = unbound_running_pods(snapshot)
        .filter_map(|(_, pod)| Some((pod.namespace.as_str(), PodInstance::workload_in_name(&pod.name)?)))
        .collect();
    let waits = snapshot.rollouts.iter().filter(|(id, rollout)| {
        let (status, failure) = (&rollout.value.status, &rollout.value.failure);
        strays.contains(&(id.namespace.as_str(), id.name.as_str()))
            && failure.is_none()
            && status.available_replicas < status.desired_replicas
    });
    let objects = waits.filter_map(|(id, _)| snapshot.objects.get(id));
    let within = objects.map(|object| health::deadline_seconds(snapshot, &object.value)).max()?;
    since.checked_add(SignedDuration::from_secs(within.into())).ok()
}

/// Returns the pods that run on unsettled nodes without a binding there, each with its node.
fn unbound_running_pods(snapshot: &Snapshot) -> impl Iterator<Item = (&str, &NamespacedName)> {
    let reported = snapshot.pod_status.iter().filter(|(place, status)| {
        let runs = !status.value.has_ended() && !status.value.is_terminating();
        runs && !snapshot.settled.contains_key(&place.0) && !snapshot.bindings.contains_key(*place)
    });
    reported.map(|((node, pod), _)| (node.as_str(), pod))
}

/// Returns the pods that run on a node that they are not bound to, going by its reports of this very version; of
/// several nodes the last by name. Empty if all of `waiting` are bound, because it is not needed then.
fn reported<'a>(snapshot: &'a Snapshot, waiting: &[WaitingPod<'a>]) -> HashMap<&'a NamespacedName, &'a str> {
    if waiting.iter().all(|waiting| waiting.before.is_some()) {
        return HashMap::new();
    }
    // Both are sorted by node and pod.
    let mut bound = snapshot.bindings.keys().peekable();
    let unbound = snapshot.pod_status.iter().filter(|(place, _)| {
        while bound.next_if(|bound| bound < place).is_some() {}
        bound.peek() != Some(place)
    });
    let runs = |pod: &NamespacedName, status: &PodStatus| {
        let wanted = snapshot.pods.get(pod).map(|pod| &pod.value.uid);
        !status.has_ended() && wanted == Some(&status.uid)
    };
    let of_pods = unbound.filter(|((_, pod), status)| runs(pod, &status.value));
    of_pods.map(|((node, pod), _)| (pod, node.as_str())).collect()
}

fn unreadable_pods(snapshot: &Snapshot) -> BTreeMap<NamespacedName, String> {
    let below = |text: &str| text.starts_with(prefix::PODS) || text.starts_with(prefix::BINDINGS);
    snapshot
        .malformed
        .keys()
        .filter(|text| below(text))
        .filter_map(|text| match text.parse() {
            Ok(Key::Pod(pod) | Key::Binding(_, pod)) => Some((pod, text.clone())),
            _ => None,
        })
        .collect()
}

impl<'a> Planner<'a> {
    /// Loads the existing bindings: keeps one per pod, removes those of pods that are gone, updates metadata in
    /// place. Returns the pods that need a place.
    fn load_bindings(&mut self) -> Vec<WaitingPod<'a>> {
        let snapshot = self.snapshot;
        let mut bound: Vec<BoundPod<'a>> = snapshot.bound_pods().collect();
        bound.sort_by_key(|b| (&b.key.1, &b.key.0));
        let mut groups = bound.chunk_by(|a, b| a.key.1 == b.key.1).peekable();
        let mut waiting = Vec::new();
        for (id, pod) in &snapshot.pods {
            while let Some(orphans) = groups.next_if(|group| group[0].key.1 < *id) {
                self.remove_orphans(orphans);
            }
            let bindings = groups.next_if(|group| group[0].key.1 == *id).unwrap_or_default();
            if self.unreadable.contains_key(id) {
                self.charge_all(bindings);
                continue;
            }
            match self.keep_one(bindings, &pod.value.uid) {
                Some(kept) if kept.binding.value.pod.uid == pod.value.uid => {
                    match must_leave(snapshot, kept.key, kept.binding) {
                        Some(leave) if bindings.len() == 1 => {
                            let pod = &pod.value;
                            waiting.push(WaitingPod { id, pod, before: Some(kept), leave: Some(leave) });
                        }
                        _ => self.update_metadata(kept, &pod.value),
                    }
                }
                // One step at a time: the pod may want the very place that it loses now.
                _ if bindings.len() > 1 => {}
                before => waiting.push(WaitingPod { id, pod: &pod.value, before, leave: None }),
            }
        }
        for orphans in groups {
            self.remove_orphans(orphans);
        }
        waiting
    }

    /// Removes the bindings of a pod that is gone.
    fn remove_orphans(&mut self, orphans: &[BoundPod<'a>]) {
        if orphans.iter().any(|orphan| self.unreadable.contains_key(&orphan.key.1)) {
            self.charge_all(orphans);
            return;
        }
        for orphan in orphans {
            self.out.delete(binding_key(orphan.key), orphan.binding.mod_revision, Reason::PodGone);
        }
    }

    fn charge_all(&mut self, bindings: &[BoundPod<'a>]) {
        for &bound in bindings {
            self.charge(bound);
        }
    }

    fn charge(&mut self, bound: BoundPod<'a>) {
        if let Some(node) = self.cluster.find(&bound.key.0) {
            let pod_needs = self.cluster.bound_needs(&bound);
            self.cluster.charge_bound(node, bound.binding.create_revision, pod_needs.as_ref());
        }
    }

    /// Keeps exactly one of several bindings of a pod (from a crash, a race or manual changes): one whose node
    /// reports the pod, else one of the wanted version, else the first by name of the node.
    fn keep_one(&mut self, bindings: &[BoundPod<'a>], wanted_uid: &str) -> Option<BoundPod<'a>> {
        let rank = |bound: &BoundPod<'a>| {
            let uid = &bound.binding.value.pod.uid;
            (bound.status_of(uid).is_none(), uid != wanted_uid)
        };
        // `min_by_key` returns the first of equals, and bindings are sorted by the node's name.
        let kept = *bindings.iter().min_by_key(|bound| rank(bound))?;
        for other in bindings.iter().filter(|b| b.key.0 != kept.key.0) {
            let reason = Reason::DuplicateBinding { kept: kept.key.0.clone() };
            self.out.delete(binding_key(other.key), other.binding.mod_revision, reason);
        }
        self.charge(kept);
        Some(kept)
    }

    fn update_metadata(&mut self, bound: BoundPod<'a>, pod: &PodInstance) {
        if bound.binding.value.pod == *pod {
            return;
        }
        let value = Binding { pod: pod.clone(), ..bound.binding.value.clone() };
        let expect = Precondition::ModRevision(bound.binding.mod_revision);
        self.out.put(binding_key(bound.key), &value, expect, Reason::BindingUpdated);
    }

    /// Replaces pods on their node where the new version fits, not counting the old one, before any pod that is new
    /// to a node. Returns the rest.
    fn replace_in_place(&mut self, waiting: Vec<WaitingPod<'a>>) -> Vec<WaitingPod<'a>> {
        let mut rest = Vec::new();
        for pod in waiting {
            if !self.replace_on_same_node(&pod) {
                rest.push(pod);
            }
        }
        rest
    }

    fn replace_on_same_node(&mut self, waiting: &WaitingPod<'a>) -> bool {
        let WaitingPod { pod, before: Some(before), leave: None, .. } = *waiting else { return false };
        let Some(node) = self.cluster.find(&before.key.0) else { return false };
        let old = self.cluster.bound_needs(&before);
        old.iter().for_each(|old| self.cluster.release(node, old));
        let pod_needs = self.cluster.needs(pod);
        if self.cluster.unfit_on(node, &pod_needs.needs).is_some() {
            old.iter().for_each(|old| self.cluster.charge(node, old));
            return false;
        }
        let name = before.key.0.clone();
        let value =
            Binding { node: name.clone(), pod: pod.clone(), reason: before.binding.value.reason.clone() };
        let expect = Precondition::ModRevision(before.binding.mod_revision);
        if self.out.put(binding_key(before.key), &value, expect, Reason::Rebound { node: name }) {
            self.cluster.charge(node, &pod_needs);
        } else {
            old.iter().for_each(|old| self.cluster.charge(node, old));
        }
        true
    }

    /// Finds a node for a pod, or notes why there is none.
    fn place(&mut self, waiting: &WaitingPod<'a>) {
        // Try again: a pod that has moved away since may have left the room.
        if self.replace_on_same_node(waiting) || !self.may_move(waiting) {
            return;
        }
        if self.waits_for_node(waiting) {
            return;
        }
        // The version before it goes in the same transaction: it is no neighbour.
        let before = waiting
            .before
            .and_then(|before| self.cluster.find(&before.key.0).zip(self.cluster.bound_needs(&before)));
        before.iter().for_each(|(node, before)| self.cluster.release(*node, before));
        let pod_needs = self.cluster.needs(waiting.pod);
        let ran_on = self.runs_on(waiting, &pod_needs);
        let unfit = self.unfit.get(&pod_needs.needs).cloned();
        let node = match &unfit {
            None => ran_on.or_else(|| self.cluster.choose(&pod_needs)),
            Some(_) => ran_on,
        };
        before.iter().for_each(|(node, before)| self.cluster.charge(*node, before));
        let Some(node) = node else {
            let unfit = unfit.unwrap_or_else(|| self.count_unfit(pod_needs.needs));
            return self.note_unschedulable(waiting, unfit);
        };
        let choice = match ran_on {
            Some(_) => "it ran there before etcd was lost".to_owned(),
            None => self.cluster.choice(node, &pod_needs),
        };
        self.bind(waiting, node, &pod_needs, choice);
    }

    /// Counts the nodes that each filter refuses, and remembers it for equal pods.
    fn count_unfit(&mut self, needs: Needs<'a>) -> Arc<FitFailures> {
        let unfit = Arc::new(self.cluster.unfit(&needs));
        // The next pod that is placed may be the one that this one must join.
        if needs.neighbours.required.is_none() {
            self.unfit.insert(needs, Arc::clone(&unfit));
        }
        unfit
    }

    /// True if the pod may move now; a pod of a drained node waits for its turn.
    fn may_move(&mut self, waiting: &WaitingPod<'a>) -> bool {
        let (Some(before), Some(LeaveMode::InTurn)) = (waiting.before, waiting.leave) else { return true };
        let node = before.key.0.as_str();
        let is_its_turn = !self.had_turn.contains(node) && !is_ending_a_pod(self.snapshot, node);
        if !is_its_turn {
            self.update_metadata(before, waiting.pod);
        }
        is_its_turn
    }

    /// True if the pod ran, or may have run, on a node that has not come back since etcd was lost: elsewhere it
    /// would run twice.
    fn waits_for_node(&mut self, waiting: &WaitingPod<'a>) -> bool {
        let Some(until) = self.waits_until.filter(|_| waiting.before.is_none()) else { return false };
        let last = self.last_known.node_of(waiting.id, &waiting.pod.uid);
        let node = last.or_else(|| self.reported.get(waiting.id).copied());
        let waits = match node {
            // A node gets its range a moment after it registers.
            Some(node) => !self.snapshot.node_is_ready(node) || !self.snapshot.subnets.contains_key(node),
            None => self.was_lost && self.last_known.is_empty(),
        };
        if !waits {
            return false;
        }
        let kind = NoteKind::WaitsForNode { node: node.map(str::to_owned) };
        self.out.note(Note::about_pod(&waiting.id.namespace, &waiting.id.name, kind));
        self.out.plan_again_by(until);
        true
    }

    /// Returns the node that runs the pod, or ran it last, if the pod still fits there: its binding was lost with
    /// etcd.
    fn runs_on(&self, waiting: &WaitingPod<'a>, pod_needs: &PodNeeds<'a>) -> Option<usize> {
        if waiting.before.is_some() {
            return None;
        }
        let reported = self.reported.get(waiting.id).copied();
        let node = reported.or_else(|| self.last_known.node_of(waiting.id, &waiting.pod.uid))?;
        self.cluster.find(node).filter(|&node| self.cluster.unfit_on(node, &pod_needs.needs).is_none())
    }

    fn bind(&mut self, waiting: &WaitingPod<'a>, node: usize, pod_needs: &PodNeeds<'a>, choice: String) {
        let name = self.cluster.name(node).to_owned();
        let value = Binding { node: name.clone(), pod: waiting.pod.clone(), reason: choice.clone() };
        let place = (name.clone(), waiting.id.clone());
        let reason = match waiting.before {
            None => Reason::Bound { node: name, choice },
            Some(before) => self.moved(before, name, &pod_needs.needs),
        };
        let before = waiting.before;
        if !self.out.put(binding_key(&place), &value, Precondition::Absent, reason.clone()) {
            return;
        }
        self.cluster.bind(node, pod_needs);
        if let Some(before) = before {
            self.had_turn.extend(waiting.leave.map(|_| before.key.0.as_str()));
            self.out.delete_joined(binding_key(before.key), before.binding.mod_revision, reason);
            let pod_needs = self.cluster.bound_needs(&before);
            if let Some((node, pod_needs)) = self.cluster.find(&before.key.0).zip(pod_needs) {
                self.cluster.release(node, &pod_needs);
            }
            // The old pod may free what another pod was refused.
            self.unfit.clear();
        }
    }

    fn moved(&self, before: BoundPod<'a>, to: String, needs: &Needs<'a>) -> Reason {
        let why = self
            .cluster
            .find(&before.key.0)
            .and_then(|node| self.cluster.unfit_on(node, needs))
            .map_or_else(|| "the node is not registered".to_owned(), |unfit| unfit.reasons());
        Reason::Moved { from: before.key.0.clone(), to, why }
    }

    fn note_unschedulable(&mut self, waiting: &WaitingPod<'a>, unfit: Arc<FitFailures>) {
        let kind = match (waiting.before, waiting.leave) {
            // No node will report that the pod has ended: it waits without a place.
            (Some(before), Some(_)) if has_left(self.snapshot, &before.key.0) => {
                self.out.delete(binding_key(before.key), before.binding.mod_revision, Reason::NodeLeft);
                NoteKind::Unschedulable { unfit, old_stays_on: None }
            }
            (Some(before), Some(_)) => {
                self.update_metadata(before, waiting.pod);
                NoteKind::Stranded { unfit, node: before.key.0.clone() }
            }
            (before, _) => {
                NoteKind::Unschedulable { unfit, old_stays_on: before.map(|before| before.key.0.clone()) }
            }
        };
        self.out.note(Note::about_pod(&waiting.pod.namespace, &waiting.pod.name, kind));
    }

    fn note_unreadable(&mut self) {
        for (pod, key) in &self.unreadable {
            let kind = NoteKind::Unreadable { key: key.clone() };
            self.out.notes.push(Note::about_pod(&pod.namespace, &pod.name, kind));
        }
    }
}

fn binding_key(place: &(String, NamespacedName)) -> Key {
    Key::Binding(place.0.clone(), place.1.clone())
}

// Pods that must leave their node although their binding is correct.
//
// Only bare pods: the controller of a workload replaces its pods under new names, and calls
// [`Snapshot::is_evicted`] and [`Snapshot::drives_out`] itself. A pod that names its node leaves it only with the
// node.

/// Manner in which a pod leaves its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaveMode {
    /// Immediately: the node is lost, or has a taint that drives the pod out.
    AtOnce,
    /// In turn: the node is drained, and ends one such pod after the other.
    InTurn,
}

/// Returns how the pod of this binding must leave its node; `None` if it stays.
pub(super) fn must_leave(
    snapshot: &Snapshot,
    place: &(String, NamespacedName),
    binding: &VersionedValue<Binding>,
) -> Option<LeaveMode> {
    let (node, pod) = (&place.0, &binding.value.pod);
    if !pod.is_bare() {
        return None;
    }
    if has_left(snapshot, node) {
        return Some(LeaveMode::AtOnce);
    }
    let status = snapshot.pod_status.get(place).map(|status| &status.value);
    let has_ended = status.is_some_and(|status| status.uid == pod.uid && status.has_ended());
    // A pod that has ended must not run again.
    if pod.spec.node_name.is_some() || has_ended {
        return None;
    }
    if snapshot.is_evicted(node) {
        return Some(LeaveMode::AtOnce);
    }
    // A silent node may not be lost.
    if !snapshot.node_is_ready(node)
        || !snapshot.drives_out(node, &pod.spec)
        || snapshot.awaits_budget(node, pod)
    {
        return None;
    }
    Some(if snapshot.is_draining(node) { LeaveMode::InTurn } else { LeaveMode::AtOnce })
}

/// True if the node is neither registered nor alive: it left, or Git declared it gone.
pub(super) fn has_left(snapshot: &Snapshot, node: &str) -> bool {
    !snapshot.nodes.contains_key(node) && !snapshot.node_is_ready(node)
}

/// True while the node ends a pod that is no longer bound to it.
pub(super) fn is_ending_a_pod(snapshot: &Snapshot, node: &str) -> bool {
    let is_bound = |pod: &NamespacedName| snapshot.bindings.contains_key(&(node.to_owned(), pod.clone()));
    snapshot.pod_status_of(node).any(|(pod, _)| !is_bound(pod))
}
