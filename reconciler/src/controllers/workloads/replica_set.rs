//! Plans the pods of one workload: which to create, which to end, and its record. Pure.

use std::borrow::Cow;
use std::collections::BTreeSet;

use jiff::Timestamp;
use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::pod::PodStatus;
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{PodInstance, Rollout, Template};
use schema::snapshot::Snapshot;

use super::owned::{OwnedPod, PodTraces, Trace};
use super::rollout::{self, Counts, cause};
use super::victims;
use super::workload::{Group, Moves, Strategy, Workload, moves, slow_start};
use crate::controllers::reason::Reason;
use crate::controllers::writes::{Precondition, Writes};
use crate::last_known::LastKnown;

/// A workload with its pods.
pub(super) struct WorkloadPlan<'p, 'a, 'n> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) last_known: &'a LastKnown,
    pub(super) workload: Workload<'a>,
    pub(super) pods: &'p [OwnedPod<'a>],
    pub(super) names: &'p PodTraces<'n>,
    pub(super) now: Timestamp,
    pub(super) clock: DeadlineClock,
}

/// Clock of a rollout's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeadlineClock {
    /// The time counts.
    Runs,
    /// Nothing can progress for the time being: the deadline starts over.
    OnHold,
    /// Etcd is not settled: until then a pod without a node may wait for the node that ran it.
    WaitsForNodes(Timestamp),
}

/// Template that the pods should have.
pub(super) struct TargetTemplate {
    pub(super) hash: String,
    /// Set if no pods of other templates are replaced.
    keeps_others: bool,
}

impl<'n> WorkloadPlan<'_, '_, 'n> {
    /// Adds the writes, and the time of the next plan.
    pub(super) fn plan(&self, out: &mut Writes) {
        let rollout = self.advance();
        self.end_lost(out);
        let is_recorded = self.snapshot.rollouts.contains_key(&self.workload.reference);
        let takes_back = !is_recorded && self.recreate_lost(&rollout, out);
        let before = out.writes.len();
        if let Some(target) = self.target(&rollout).filter(|_| !takes_back) {
            self.move_to(&target, out);
        }
        if self.workload.reference.kind == Kind::Pod && out.writes.len() == before {
            self.update_metadata(out);
        }
        // Without a record, the next plan takes back what could not be written now.
        if !takes_back {
            self.record(&rollout, out);
        }
    }

    /// Returns the workload's present record.
    pub(super) fn advance(&self) -> Rollout {
        let (snapshot, workload) = (self.snapshot, &self.workload);
        let record = snapshot.rollouts.get(&workload.reference);
        let before = record.map(|record| Cow::Borrowed(&record.value)).or_else(|| self.last_rollout());
        let unavailable = || self.living().filter(|pod| self.is_wanted(pod) && !self.is_available(pod));
        let mut rollout = rollout::advance(
            workload,
            before.as_deref(),
            self.counts(),
            || {
                (self.clock != DeadlineClock::OnHold && !unavailable().any(OwnedPod::is_silent))
                    .then(|| cause(snapshot, unavailable()))
            },
            self.now,
        );
        // Pods that wait for their nodes are no fault of the template: its time starts at the end of the wait.
        if let DeadlineClock::WaitsForNodes(until) = self.clock
            && self.living().any(|pod| pod.node.is_none())
        {
            rollout.progressed_at = rollout.progressed_at.max(until);
        }
        self.with_pod_trouble(rollout)
    }

    /// Adds the record and its templates, and the time of the next plan.
    pub(super) fn record(&self, rollout: &Rollout, out: &mut Writes) {
        let workload = &self.workload;
        let record = self.snapshot.rollouts.get(&workload.reference);
        self.keep_templates(rollout, out);
        let step = || rollout.steps.last().map(|step| step.message.clone()).unwrap_or_default();
        let key = Key::Rollout(workload.reference.clone());
        let changed_step = record.is_none_or(|record| record.value.steps != rollout.steps);
        let reason = match (changed_step, &rollout.failure) {
            (false, _) => Reason::PodsCounted,
            (true, None) => Reason::Rollout(step()),
            (true, Some(_)) => Reason::RolloutFailed(step()),
        };
        out.put_if_changed(key, record, rollout, reason);
        let matures = self.living().filter_map(|pod| pod.available_at(workload.min_ready_seconds, self.now));
        let next = matures.filter(|at| *at > self.now).chain(rollout::deadline(workload, rollout)).min();
        out.again_at = out.again_at.into_iter().chain(next).min();
    }

    /// Returns the rollout as it was when etcd was lost. The commit that refilled etcd did not touch the object,
    /// and the time without etcd does not count.
    fn last_rollout(&self) -> Option<Cow<'_, Rollout>> {
        let last = self.last_known.rollout(&self.workload.reference)?;
        let mut rollout = Rollout { progressed_at: self.now, ..last.clone() };
        if last.object_hash == self.workload.object.hash {
            rollout.commit.clone_from(&self.workload.object.provenance.commit);
        }
        Some(Cow::Owned(rollout))
    }

    /// Recreates the pods that existed when etcd was lost, of both templates if a rollout was under way: the next
    /// plan continues with them. Returns false if there were none.
    fn recreate_lost(&self, rollout: &Rollout, out: &mut Writes) -> bool {
        let owner = self.workload.owner();
        let mut found = false;
        for hash in templates_of(rollout) {
            let Some(template) = self.template(hash) else { continue };
            for (id, last) in self.last_known.pods_of(&self.workload.reference) {
                if last.uid == PodInstance::uid_of(&owner, id, hash) && !self.is_taken(id) {
                    found |= self.create_pod(id.clone(), hash, &template, out);
                }
            }
        }
        found
    }

    /// Adds what keeps new pods from running to the condition, while the rollout is under way.
    fn with_pod_trouble(&self, mut rollout: Rollout) -> Rollout {
        // The scheduler reports why a pod has no node: finding out means checking all nodes.
        let is_broken =
            |pod: &&OwnedPod<'_>| pod.node.is_some() && self.is_wanted(pod) && !self.is_available(pod);
        let mut broken = self.living().filter(is_broken).peekable();
        if rollout.complete || rollout.failure.is_some() || broken.peek().is_none() {
            return rollout;
        }
        let found = cause(self.snapshot, broken);
        let progressing = rollout.status.conditions.iter_mut().find(|one| one.kind == "Progressing");
        if let Some(condition) = progressing.filter(|_| found.is_trouble()) {
            condition.message = found.message;
        }
        rollout
    }

    fn living(&self) -> impl Iterator<Item = &OwnedPod<'_>> {
        self.pods.iter().filter(|pod| !pod.is_lost)
    }

    fn is_wanted(&self, pod: &OwnedPod<'_>) -> bool {
        pod.pod().hash == self.workload.wanted
    }

    pub(super) fn is_available(&self, pod: &OwnedPod<'_>) -> bool {
        pod.available_at(self.workload.min_ready_seconds, self.now).is_some_and(|at| at <= self.now)
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for pod in self.living() {
            let (available, wanted) = (self.is_available(pod), self.is_wanted(pod));
            counts.replicas += 1;
            counts.ready += u32::from(pod.is_ready());
            counts.available += u32::from(available);
            counts.updated += u32::from(wanted);
            counts.updated_available += u32::from(wanted && available);
        }
        counts
    }

    /// Ends lost pods, so that others take their place.
    fn end_lost(&self, out: &mut Writes) {
        for pod in self.pods.iter().filter(|pod| pod.is_lost) {
            let why = match pod.node.filter(|node| self.snapshot.is_evicted(node)) {
                Some(node) => format!("its node {node} is gone"),
                None => "it ended".to_owned(),
            };
            self.end(pod, Reason::PodLost { why }, out);
        }
    }

    /// Returns the wanted template, or after a failure the last good one, whose pods then replace the others.
    pub(super) fn target(&self, rollout: &Rollout) -> Option<TargetTemplate> {
        let workload = &self.workload;
        let is_known = |hash: &String| {
            let key = (workload.reference.clone(), hash.clone());
            *hash == workload.wanted
                || self.snapshot.templates.contains_key(&key)
                || self.last_known.template(&workload.reference, hash).is_some()
        };
        let good = rollout.good.as_ref().filter(|good| is_known(good));
        if workload.paused && !rollout.complete {
            // Nothing was rolled out before: create nothing until the pause is over.
            let wanted = &workload.wanted;
            let mut traces = self.names.of_workload(&workload.reference).iter();
            // After a loss of etcd, the workload's pods may already run.
            let hash = good.or_else(|| traces.any(|t| self.runs_without_record(t, wanted)).then_some(wanted));
            return hash.map(|hash| TargetTemplate { hash: hash.clone(), keeps_others: true });
        }
        let back = good.filter(|_| rollout.failure.is_some());
        let hash = back.unwrap_or(&workload.wanted).clone();
        // On an unsettled node no pod ends, and Recreate must not run two templates at the same time.
        let stays = |pod: &OwnedPod<'_>| {
            pod.pod().hash != hash && pod.node.is_some_and(|node| !self.snapshot.settled.contains_key(node))
        };
        let keeps_others = workload.strategy == Strategy::Recreate && self.living().any(stays);
        Some(TargetTemplate { hash, keeps_others })
    }

    pub(super) fn template(&self, hash: &str) -> Option<Template> {
        let workload = &self.workload.reference;
        // The object of a held workload already asks for another template.
        if hash == self.workload.wanted && !self.workload.awaits_image {
            return self.workload.template();
        }
        let stored = self.snapshot.templates.get(&(workload.clone(), hash.to_owned()));
        let stored = stored.map(|template| &template.value);
        stored.or_else(|| self.last_known.template(workload, hash)).cloned()
    }

    fn move_to(&self, target: &TargetTemplate, out: &mut Writes) {
        let is_kept = |pod: &OwnedPod<'_>| target.keeps_others || pod.pod().hash == target.hash;
        let most = self.workload.most_pods();
        // A pod that a budget keeps on a drained node gets its successor first where there may be more pods: then the
        // budget may allow it to leave. `Recreate` replaces it once it may leave.
        let is_leaving = |pod: &OwnedPod<'_>| pod.must_move || pod.awaits_budget && most.is_some();
        let is_new = |pod: &OwnedPod<'_>| is_kept(pod) && !is_leaving(pod);
        let (new, old): (Vec<_>, Vec<_>) = self.living().partition(|pod| is_new(pod));
        let group = |pods: &[&OwnedPod<'_>]| Group {
            count: count(pods.len()),
            available: count(pods.iter().filter(|pod| self.is_available(pod)).count()),
        };
        let workload = &self.workload;
        let leftover = workload.strategy == Strategy::Recreate && self.has_ending_pods();
        let moves = moves(workload.desired, workload.strategy, group(&new), group(&old), leftover);
        let Moves { create, end_new, end_unhealthy, end_old } = moves;
        self.end_first(new.iter().copied(), end_new, &Reason::ScaledDown { to: workload.desired }, out);
        let (available, unhealthy): (Vec<_>, Vec<_>) = old.iter().partition(|pod| self.is_available(pod));
        let reason = |pod: &OwnedPod<'_>| match pod.node.filter(|_| pod.pod().hash == target.hash) {
            Some(node) => Reason::PodMoved { from: node.to_owned() },
            None => Reason::RolledOut { to: Rollout::short(&target.hash).to_owned() },
        };
        // Scaling down ends pods that budgets keep, as far as there are too many without the others.
        let is_held = |pod: &OwnedPod<'_>| pod.awaits_budget && is_kept(pod);
        let staying =
            count(new.len()).saturating_sub(end_new) + count(old.iter().filter(|pod| is_held(pod)).count());
        let mut surplus = most.map_or(0, |most| staying.saturating_sub(most));
        for (pods, number) in [(unhealthy, end_unhealthy), (available, end_old)] {
            if number == 0 {
                continue;
            }
            let mut pods = pods;
            victims::order(&mut pods, self.pods, self.now);
            pods.retain(|pod| {
                let may_end = !is_held(pod) || surplus > 0;
                surplus = surplus.saturating_sub(u32::from(is_held(pod)));
                may_end
            });
            pods.iter().take(number as usize).for_each(|pod| self.end(pod, reason(pod), out));
        }
        let existing = count(self.living().filter(|pod| pod.pod().hash == target.hash).count());
        self.create(target, create.min(slow_start(existing)), out);
    }

    fn end_first<'p>(
        &'p self,
        pods: impl Iterator<Item = &'p OwnedPod<'p>>,
        number: u32,
        reason: &Reason,
        out: &mut Writes,
    ) {
        if number == 0 {
            return;
        }
        let mut pods: Vec<_> = pods.collect();
        victims::order(&mut pods, self.pods, self.now);
        pods.iter().take(number as usize).for_each(|pod| self.end(pod, reason.clone(), out));
    }

    pub(super) fn end(&self, pod: &OwnedPod<'_>, reason: Reason, out: &mut Writes) {
        out.delete(Key::Pod(pod.pod().reference()), pod.record.mod_revision, reason);
    }

    /// Updates the labels and annotations of a pod's copies in place, as for the pod itself.
    fn update_metadata(&self, out: &mut Writes) {
        let wanted = &self.workload.object.metadata;
        let differs =
            |pod: &PodInstance| pod.labels != wanted.labels || pod.annotations != wanted.annotations;
        for pod in self.living().filter(|pod| self.is_wanted(pod) && differs(pod.pod())) {
            let commit = self.workload.object.provenance.commit.clone();
            let (labels, annotations) = (wanted.labels.clone(), wanted.annotations.clone());
            let updated = PodInstance { labels, annotations, commit: commit.clone(), ..pod.pod().clone() };
            let expect = Precondition::ModRevision(pod.record.mod_revision);
            out.put(Key::Pod(updated.reference()), &updated, expect, Reason::PodUpdated { commit });
        }
    }

    /// True if ended pods of the workload still run on a live node.
    fn has_ending_pods(&self) -> bool {
        self.names.of_workload(&self.workload.reference).iter().any(|trace| {
            // Where etcd is not settled, nothing is ended: running pods are adopted again.
            !self.snapshot.pods.contains_key(trace.pod)
                && self.snapshot.node_is_ready(trace.node)
                && self.snapshot.settled.contains_key(trace.node)
        })
    }

    fn create(&self, target: &TargetTemplate, number: u32, out: &mut Writes) {
        let Some(template) = self.template(&target.hash).filter(|_| number > 0) else { return };
        for id in self.free_names(&target.hash).take(number as usize) {
            self.create_pod(id, &target.hash, &template, out);
        }
    }

    /// Creates a pod of this template.
    pub(super) fn create_pod(
        &self,
        id: NamespacedName,
        hash: &str,
        template: &Template,
        out: &mut Writes,
    ) -> bool {
        let owner = self.workload.owner();
        let pod = PodInstance {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            uid: PodInstance::uid_of(&owner, &id, hash),
            hash: hash.to_owned(),
            labels: template.labels.clone(),
            annotations: template.annotations.clone(),
            owner,
            commit: template.commit.clone(),
            spec: self.snapshot.cluster().defaults.apply_to(&template.spec),
            files: template.files.clone(),
        };
        let reason = Reason::PodWanted { commit: template.commit.clone() };
        out.put(Key::Pod(id), &pod, Precondition::Absent, reason)
    }

    /// Returns names for new pods: first those of running pods that lack only their record, as after a loss of
    /// etcd; then the lowest numbers of which no node has a pod, dead nodes included.
    fn free_names(&self, hash: &str) -> impl Iterator<Item = NamespacedName> + use<'_, 'n> {
        let workload = &self.workload.reference;
        let traces = self.names.of_workload(workload);
        let running: BTreeSet<NamespacedName> = traces
            .iter()
            .filter(|trace| self.runs_without_record(trace, hash))
            .map(|trace| trace.pod.clone())
            .collect();
        let seen: BTreeSet<&str> = traces.iter().map(|trace| trace.pod.name.as_str()).collect();
        let prefix = format!("{}-{}", workload.name, Rollout::short(hash));
        let numbered = (0u32..).map(move |number| format!("{prefix}-{number}"));
        let fresh = numbered.filter(move |name| !seen.contains(name.as_str()));
        let fresh = fresh.map(|name| NamespacedName::new(&workload.namespace, name));
        running.into_iter().chain(fresh.filter(|id| !self.is_taken(id)))
    }

    fn runs_without_record(&self, trace: &Trace<'_>, hash: &str) -> bool {
        let snapshot = self.snapshot;
        let uid = || PodInstance::uid_of(&self.workload.owner(), trace.pod, hash);
        let is_usable = snapshot.node_is_ready(trace.node) && !snapshot.is_draining(trace.node);
        let runs = || {
            let is_it =
                |status: &PodStatus| !status.is_terminating() && !status.has_ended() && status.uid == uid();
            trace.status.is_some_and(is_it)
        };
        is_usable && !self.is_taken(trace.pod) && runs()
    }

    /// True if a pod has the name, or Git gives it to one.
    pub(super) fn is_taken(&self, id: &NamespacedName) -> bool {
        let named = ObjectRef { kind: Kind::Pod, namespace: id.namespace.clone(), name: id.name.clone() };
        self.snapshot.pods.contains_key(id) || self.snapshot.objects.contains_key(&named)
    }

    /// Stores the wanted and the last good template, and deletes the others.
    fn keep_templates(&self, rollout: &Rollout, out: &mut Writes) {
        let workload = &self.workload.reference;
        let key = |hash: &String| Key::Template(workload.clone(), hash.clone());
        for hash in templates_of(rollout) {
            if !self.snapshot.templates.contains_key(&(workload.clone(), hash.clone()))
                && let Some(template) = self.template(hash)
            {
                out.put(key(hash), &template, Precondition::Absent, Reason::TemplateKept);
            }
        }
        let all = (workload.clone(), String::new())..;
        let stored = self.snapshot.templates.range(all).take_while(|((of, _), _)| of == workload);
        for ((_, hash), template) in stored {
            if templates_of(rollout).all(|kept| kept != hash) {
                out.delete(key(hash), template.mod_revision, Reason::TemplateReplaced);
            }
        }
    }
}

/// Returns the hashes of the templates that a rollout may have pods of, without duplicates.
pub(super) fn templates_of(rollout: &Rollout) -> impl Iterator<Item = &String> {
    let good = rollout.good.as_ref().filter(|good| **good != rollout.wanted);
    [&rollout.wanted].into_iter().chain(good)
}

/// Converts to the number type of records, saturating.
pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
