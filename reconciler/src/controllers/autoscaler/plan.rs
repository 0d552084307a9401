//! Plans the number of pods of each workload that an autoscaler targets.
//!
//! Evaluates a target every [`EVALUATION_SECONDS`] and no more often, because each evaluation may go a step further. The
//! state between evaluations is in `autoscalers/`, written only when an evaluation finds something new.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use schema::keys::{Key, prefix};
use schema::kinds::autoscaler::{
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricStatus, ResourceName,
};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::quantity::{Cpu, Memory as Bytes};
use schema::records::{AutoscalerRecord, Recommendation, ScaleRecord};
use schema::snapshot::Snapshot;

use super::decide::{UndecidedReason, decide, failures, is_active, undecided_memory};
use super::model::{AutoscalerMemory, Basis, Decision, Input, MetricResult, Tuning};
use super::target::Targets;
use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::{Precondition, Writes};
use crate::last_known::LastKnown;

/// Seconds between two evaluations of a target, as in Kubernetes.
pub const EVALUATION_SECONDS: i64 = 15;

/// Returns the writes below `scale/` and `autoscalers/`. Samples of `outdated` nodes do not count.
pub fn plan(
    snapshot: &Snapshot,
    last_known: &LastKnown,
    outdated: &BTreeSet<String>,
    now: Timestamp,
) -> Writes {
    let autoscalers: Vec<Scaler<'_>> =
        snapshot.objects.values().filter_map(|o| Scaler::of(&o.value)).collect();
    let mut of_target: BTreeMap<&ObjectRef, Vec<&str>> = BTreeMap::new();
    for scaler in &autoscalers {
        of_target.entry(&scaler.target).or_default().push(&scaler.object.metadata.name);
    }
    let wanted: BTreeSet<&ObjectRef> = of_target.keys().copied().collect();
    let mut out = Writes::default();
    remove(snapshot, &wanted, &mut out);
    let targets = Targets::new(snapshot, last_known, outdated, &wanted);
    for scaler in &autoscalers {
        let others = of_target[&scaler.target].iter().filter(|name| **name != scaler.object.metadata.name);
        let others: Vec<&str> = others.copied().collect();
        ScalerEvaluation { snapshot, last_known, targets: &targets, scaler, others, now }.plan(&mut out);
    }
    out
}

/// Deletes the records of autoscalers that are gone, so that the number in Git applies again.
fn remove(snapshot: &Snapshot, wanted: &BTreeSet<&ObjectRef>, out: &mut Writes) {
    let unreadable = |key: &String| {
        key.starts_with(prefix::OBJECTS)
            && matches!(key.parse(), Ok(Key::Object(object)) if object.kind == Kind::HorizontalPodAutoscaler)
    };
    // An unreadable autoscaler is not gone, and its target is unknown.
    if snapshot.malformed.keys().any(unreadable) {
        return;
    }
    for (target, scale) in &snapshot.scales {
        let is_ours = scale.value.scaler.starts_with(Kind::HorizontalPodAutoscaler.as_str());
        if is_ours && !wanted.contains(target) {
            out.delete(Key::Scale(target.clone()), scale.mod_revision, Reason::ScaleReturned);
        }
    }
    for (id, record) in &snapshot.autoscalers {
        if !snapshot.objects.contains_key(&reference(id)) {
            out.delete(Key::Autoscaler(id.clone()), record.mod_revision, Reason::OwnerGone);
        }
    }
}

fn reference(id: &NamespacedName) -> ObjectRef {
    let (namespace, name) = (id.namespace.clone(), id.name.clone());
    ObjectRef { kind: Kind::HorizontalPodAutoscaler, namespace, name }
}

/// An autoscaler object from Git.
struct Scaler<'a> {
    object: &'a Object,
    spec: &'a HorizontalPodAutoscalerSpec,
    target: ObjectRef,
}

impl<'a> Scaler<'a> {
    fn of(object: &'a Object) -> Option<Self> {
        match &object.resource {
            Resource::HorizontalPodAutoscaler(spec) => {
                Some(Self { object, spec, target: spec.target(&object.metadata) })
            }
            _ => None,
        }
    }

    fn id(&self) -> NamespacedName {
        NamespacedName::new(&self.object.metadata.namespace, &self.object.metadata.name)
    }
}

/// Evaluation of one autoscaler in one plan.
struct ScalerEvaluation<'a> {
    snapshot: &'a Snapshot,
    last_known: &'a LastKnown,
    targets: &'a Targets<'a>,
    scaler: &'a Scaler<'a>,
    /// Names of other autoscalers of the same target.
    others: Vec<&'a str>,
    now: Timestamp,
}

impl ScalerEvaluation<'_> {
    fn plan(&self, out: &mut Writes) {
        let id = self.scaler.id();
        let key = Key::Autoscaler(id.clone());
        if self.snapshot.malformed.contains_key(&key.to_string()) {
            out.note(Note::about_key(&key, NoteKind::Unreadable { key: key.to_string() }));
            return;
        }
        let stored = self.snapshot.autoscalers.get(&id);
        let written = stored.map(|stored| &stored.value);
        let record = written.or_else(|| self.last_known.autoscaler(&id));
        if let Some(record) = written.filter(|record| self.is_recent(record) && !self.runs_more_than(record))
        {
            out.plan_again_by(next_evaluation(record.decided_at));
            self.note(&record.status, out);
            return;
        }
        out.plan_again_by(next_evaluation(self.now));
        let (next, scale) = self.evaluate(record);
        self.note(&next.status, out);
        let scale_key = Key::Scale(self.scaler.target.clone());
        let scale_now = self.snapshot.scales.get(&self.scaler.target);
        let rescales = scale.as_ref().is_some_and(|wanted| wanted.is_other_than(scale_now.map(|s| &s.value)));
        if !rescales && written.is_some_and(|record| !has_news(record, &next)) {
            return;
        }
        let expect =
            stored.map_or(Precondition::Absent, |stored| Precondition::ModRevision(stored.mod_revision));
        let reason = match next.status.last_scale_time {
            Some(at) if at == self.now => Reason::Rescaled { why: next.status.last_scale_reason.clone() },
            _ => Reason::Published,
        };
        if !out.put(key, &next, expect, reason) || !rescales {
            return;
        }
        match (scale, scale_now) {
            (Some(TargetScale::To(record)), _) => {
                let expect =
                    scale_now.map_or(Precondition::Absent, |now| Precondition::ModRevision(now.mod_revision));
                let reason = Reason::Scaled { replicas: record.replicas };
                if out.put(scale_key, &record, expect, reason) {
                    out.join_last();
                }
            }
            (Some(TargetScale::GitNumber), Some(now)) => {
                out.delete_joined(scale_key, now.mod_revision, Reason::ScaleReturned);
            }
            (Some(TargetScale::GitNumber), None) | (None, _) => {}
        }
    }

    /// True if the record is from a moment ago and for the same object.
    fn is_recent(&self, record: &AutoscalerRecord) -> bool {
        let age = self.now.duration_since(record.decided_at);
        record.observed_generation == self.scaler.object.generation
            && record.target == self.scaler.target
            // A time in the future comes from a leader whose clock was wrong.
            && !age.is_negative()
            && age < evaluation_interval()
    }

    /// True if nodes that are not settled run more pods than `record` asks for: etcd was lost.
    fn runs_more_than(&self, record: &AutoscalerRecord) -> bool {
        if self.snapshot.nodes.keys().all(|node| self.snapshot.settled.contains_key(node)) {
            return false;
        }
        let seed = self.targets.replicas_in_git(&self.scaler.target);
        let current = seed.map(|seed| self.targets.current(&self.scaler.target, seed, Some(record)));
        current.is_ok_and(|current| current > record.status.desired_replicas)
    }

    /// Evaluates the target. Returns the next record, and the new scale; `None` leaves the scale unchanged.
    fn evaluate(&self, record: Option<&AutoscalerRecord>) -> (AutoscalerRecord, Option<TargetScale>) {
        let same_target = record.filter(|record| record.target == self.scaler.target);
        let memory = same_target.map(|record| memory_from_record(record, self.now)).unwrap_or_default();
        let before = same_target.map(|record| record.status.clone()).unwrap_or_default();
        let seed = match self.targets.replicas_in_git(&self.scaler.target) {
            Ok(seed) => seed,
            Err(why) => {
                return (self.undecided_record(&memory, before, UndecidedReason::FailedGetScale, &why), None);
            }
        };
        if !self.others.is_empty() {
            let also = self.others.join(", ");
            let why = format!("{} is also scaled by {also}: keep one of them", self.scaler.target);
            return (self.undecided_record(&memory, before, UndecidedReason::AmbiguousSelector, &why), None);
        }
        let current = self.targets.current(&self.scaler.target, seed, same_target);
        let pods = self.targets.pods(&self.scaler.target);
        let decision = decide(&Input {
            spec: self.scaler.spec,
            current,
            basis: Basis::Pods(&pods),
            memory: &memory,
            now: self.now,
            tuning: &Tuning::default(),
        });
        let scale = match decision.desired {
            0 => TargetScale::GitNumber,
            replicas => {
                let scaler = self.scaler.object.reference().to_string();
                TargetScale::To(ScaleRecord { replicas, scaler })
            }
        };
        let pods = u32::try_from(pods.len()).unwrap_or(u32::MAX);
        (self.decided_record(decision, before, (current, pods)), Some(scale))
    }

    fn undecided_record(
        &self,
        memory: &AutoscalerMemory,
        before: HorizontalPodAutoscalerStatus,
        false_condition: UndecidedReason,
        why: &str,
    ) -> AutoscalerRecord {
        let memory = undecided_memory(memory, self.now, false_condition, why);
        let status = HorizontalPodAutoscalerStatus { current_metrics: Vec::new(), ..before };
        self.record(memory, status)
    }

    fn decided_record(
        &self,
        decision: Decision,
        before: HorizontalPodAutoscalerStatus,
        (current, pods): (u32, u32),
    ) -> AutoscalerRecord {
        let Decision { desired, metrics, memory, reason, .. } = decision;
        let rescaled = (desired != current).then(|| format!("{current} to {desired}: {reason}"));
        let status = HorizontalPodAutoscalerStatus {
            current_replicas: pods,
            desired_replicas: desired,
            last_scale_time: rescaled.as_ref().map(|_| self.now).or(before.last_scale_time),
            last_scale_reason: rescaled.unwrap_or(before.last_scale_reason),
            current_metrics: metrics.iter().filter_map(metric_status).collect(),
            conditions: Vec::new(),
        };
        self.record(memory, status)
    }

    fn record(&self, memory: AutoscalerMemory, status: HorizontalPodAutoscalerStatus) -> AutoscalerRecord {
        let AutoscalerMemory { recommendations, scale_ups, scale_downs, conditions } = memory;
        AutoscalerRecord {
            observed_generation: self.scaler.object.generation,
            target: self.scaler.target.clone(),
            decided_at: self.now,
            recommendations: recommendations.unwrap_or_default(),
            scale_ups,
            scale_downs,
            status: HorizontalPodAutoscalerStatus { conditions, ..status },
        }
    }

    /// Notes the conditions that keep the autoscaler from scaling, for as long as they last.
    fn note(&self, status: &HorizontalPodAutoscalerStatus, out: &mut Writes) {
        let key = Key::Autoscaler(self.scaler.id());
        for condition in failures(&status.conditions) {
            let (reason, why) = (condition.reason.clone(), condition.message.clone());
            out.note(Note::about_key(&key, NoteKind::NotScaled { reason, why }));
        }
    }
}

/// Scale of a target after an evaluation.
enum TargetScale {
    /// Set to this number.
    To(ScaleRecord),
    /// Left to the number in Git.
    GitNumber,
}

impl TargetScale {
    fn is_other_than(&self, now: Option<&ScaleRecord>) -> bool {
        match self {
            Self::To(record) => now != Some(record),
            Self::GitNumber => now.is_some(),
        }
    }
}

fn evaluation_interval() -> SignedDuration {
    SignedDuration::from_secs(EVALUATION_SECONDS)
}

fn next_evaluation(at: Timestamp) -> Timestamp {
    at.checked_add(evaluation_interval()).unwrap_or(Timestamp::MAX)
}

/// Restores the state from a record. The last recommendation held until the previous evaluation, or there would be
/// a newer record.
fn memory_from_record(record: &AutoscalerRecord, now: Timestamp) -> AutoscalerMemory {
    let mut recommendations = record.recommendations.clone();
    // If scaling is not active, the previous evaluation made no recommendation.
    if let Some(last) = recommendations.last_mut().filter(|_| is_active(&record.status.conditions)) {
        last.at = last.at.max(now.checked_sub(evaluation_interval()).unwrap_or(last.at));
    }
    AutoscalerMemory {
        // `None` if the target was never evaluated.
        recommendations: (!recommendations.is_empty()).then_some(recommendations),
        scale_ups: record.scale_ups.clone(),
        scale_downs: record.scale_downs.clone(),
        conditions: record.status.conditions.clone(),
    }
}

/// True if `next` says more than that the last recommendation still holds.
fn has_news(before: &AutoscalerRecord, next: &AutoscalerRecord) -> bool {
    let mut as_before = AutoscalerRecord { decided_at: before.decided_at, ..next.clone() };
    if let (Some(last), Some(Recommendation { at, replicas })) =
        (as_before.recommendations.last_mut(), before.recommendations.last())
        && last.replicas == *replicas
    {
        last.at = *at;
    }
    as_before != *before
}

fn metric_status(result: &MetricResult) -> Option<MetricStatus> {
    let proposal = result.outcome.as_ref().ok()?;
    let average_value = match result.name {
        ResourceName::Cpu => Cpu { millis: proposal.average }.to_string(),
        // Few digits, so that a change of a few bytes does not rewrite the record.
        ResourceName::Memory => Bytes { bytes: proposal.average }.readable(),
    };
    Some(MetricStatus { name: result.name, average_utilization: proposal.utilization, average_value })
}
