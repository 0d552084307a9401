//! Plans the writes for functions. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use schema::keys::{Key, prefix};
use schema::kinds::function::{FunctionSpec, ImageState};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{CallLimits, CallToken, FunctionImage, FunctionRecord, Rollout, ScaleRecord, Trouble};
use schema::snapshot::Snapshot;

use super::builds::{Builds, NeededImage};
use super::replicas::{FunctionReplicas, Replicas, replicas};
use super::scaling::{ScalingInput, demand};
use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::Writes;
use crate::last_known::LastKnown;

/// Minimum advance of the last call's time before it is written again: the record counts only where gateways forgot.
const ACTIVE_STEP: SignedDuration = SignedDuration::from_secs(5);

pub(super) fn plan(
    snapshot: &Snapshot,
    last_known: &LastKnown,
    demand_read_at: &BTreeMap<String, Timestamp>,
    now: Timestamp,
) -> Writes {
    let mut out = Writes::default();
    let cluster = snapshot.cluster();
    // An unreadable object may still need its image and its record.
    let is_function = |key: &String| key.starts_with(&format!("{}{}/", prefix::OBJECTS, Kind::Function));
    let (mut builds, replicas) = (Builds::from_snapshot(snapshot), replicas(snapshot));
    let blind = snapshot.malformed.keys().any(is_function);
    for object in snapshot.objects.values().map(|object| &object.value) {
        let Resource::Function(spec) = &object.resource else { continue };
        let planned = FunctionPlan {
            snapshot,
            object,
            id: NamespacedName::new(&object.metadata.namespace, &object.metadata.name),
            spec: spec.with_defaults(&cluster.functions),
            replicas: &replicas,
            rollout: snapshot.rollouts.get(&object.reference()).map(|record| &record.value),
            last_known,
            demand_read_at,
            now,
        };
        let needed = NeededImage::for_function(snapshot, object, &planned.spec, &cluster.functions);
        let images: Vec<_> = needed.into_iter().map(|one| builds.image(one, &mut out)).collect();
        let key = Key::Function(planned.id.clone());
        if snapshot.malformed.contains_key(&key.to_string()) {
            out.note(Note::about_key(&key, NoteKind::Unreadable { key: key.to_string() }));
            continue;
        }
        planned.write(images, &mut out);
    }
    if !blind {
        builds.delete_unneeded(&mut out);
        remove_orphans(snapshot, &mut out);
    }
    out
}

fn remove_orphans(snapshot: &Snapshot, out: &mut Writes) {
    let functions: BTreeSet<&ObjectRef> =
        snapshot.objects.keys().filter(|object| object.kind == Kind::Function).collect();
    for (id, record) in &snapshot.functions {
        if !functions.contains(&reference(id)) {
            out.delete(Key::Function(id.clone()), record.mod_revision, Reason::OwnerGone);
        }
    }
    for (scaled, record) in &snapshot.scales {
        if scaled.kind == Kind::Function && !functions.contains(scaled) {
            out.delete(Key::Scale(scaled.clone()), record.mod_revision, Reason::RecordOrphaned);
        }
    }
}

fn reference(id: &NamespacedName) -> ObjectRef {
    ObjectRef { kind: Kind::Function, namespace: id.namespace.clone(), name: id.name.clone() }
}

/// A function and the state that its record depends on.
struct FunctionPlan<'a> {
    snapshot: &'a Snapshot,
    object: &'a Object,
    id: NamespacedName,
    /// Spec with the Cluster object's defaults.
    spec: FunctionSpec,
    replicas: &'a Replicas,
    rollout: Option<&'a Rollout>,
    /// State of etcd before it was lost.
    last_known: &'a LastKnown,
    demand_read_at: &'a BTreeMap<String, Timestamp>,
    now: Timestamp,
}

impl FunctionPlan<'_> {
    fn write(&self, images: Vec<FunctionImage>, out: &mut Writes) {
        let snapshot = self.snapshot;
        let before = snapshot.functions.get(&self.id);
        let scale = snapshot.scales.get(&self.object.reference());
        let running = self.rollout.map_or(0, |rollout| rollout.status.replicas);
        let demand = demand(snapshot, &self.id, self.demand_read_at, self.now);
        let last_active = before.and_then(|before| before.value.last_active);
        let FunctionReplicas { ready: replicas, crashed } =
            self.replicas.get(&self.id).cloned().unwrap_or_default();
        let memory = before.map(|before| before.value.scaler.clone()).unwrap_or_default();
        let scaled = ScalingInput {
            spec: &self.spec,
            demand,
            memory: &memory,
            ready: u32::try_from(replicas.len()).unwrap_or(u32::MAX),
            rollout: self.rollout,
            last_active: last_active.map(|at| at.min(self.now)),
            scaled_at: before.and_then(|before| before.value.scaled_at),
            current: scale
                .map(|scale| scale.value.replicas)
                .or_else(|| self.last_known.replicas(&self.object.reference()))
                .unwrap_or(running),
        };
        let decided = scaled.decide(self.now);
        let record = FunctionRecord {
            hash: self.object.hash.clone(),
            image_ready_at: self.image_ready_at(&images, before.map(|before| &before.value)),
            images,
            wanted: decided.replicas,
            replicas,
            scaled_at: match before {
                Some(before) if before.value.wanted == decided.replicas => before.value.scaled_at,
                Some(_) | None => Some(self.now),
            },
            scaler: decided.memory,
            trouble: self.rollout.and_then(failure).or(crashed),
            has_good: self.rollout.is_some_and(|rollout| rollout.good.is_some()),
            calls: CallLimits::from_spec(&self.spec),
            token: CallToken::from_spec(&self.spec, &self.object.files),
            last_active: self.last_active(demand.busy, demand.idle_since, last_active),
        };
        out.put_if_changed(Key::Function(self.id.clone()), before, &record, Reason::Published);
        let wanted = ScaleRecord { replicas: decided.replicas, scaler: self.object.reference().to_string() };
        let reason = Reason::Scaled { replicas: decided.replicas };
        out.put_if_changed(Key::Scale(self.object.reference()), scale, &wanted, reason);
        if let Some(at) = decided.again_at {
            out.plan_again_by(at);
        }
    }

    /// Returns the time at which the image of new replicas became ready.
    fn image_ready_at(&self, images: &[FunctionImage], before: Option<&FunctionRecord>) -> Option<Timestamp> {
        let image = images.first().filter(|image| image.state == ImageState::Ready)?;
        let known =
            before.filter(|before| before.image().is_some_and(|former| former.reference == image.reference));
        // A time in the future comes from a leader whose clock was wrong.
        known.and_then(|before| before.image_ready_at).map_or(Some(self.now), |at| Some(at.min(self.now)))
    }

    /// Returns the time of the last call to record, which advances in steps of at least `ACTIVE_STEP`.
    fn last_active(
        &self,
        busy: u32,
        idle_since: Option<Timestamp>,
        before: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let newest = if busy > 0 { Some(self.now) } else { idle_since };
        let moved = newest
            .is_some_and(|newest| before.is_none_or(|before| newest.duration_since(before) >= ACTIVE_STEP));
        if moved { newest } else { before }
    }
}

/// Returns why the newest version was given up.
fn failure(rollout: &Rollout) -> Option<Trouble> {
    let failure = rollout.failure.as_ref()?;
    Some(Trouble { reason: failure.reason.clone(), message: failure.message.clone() })
}
