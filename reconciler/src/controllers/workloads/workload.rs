//! Desired state of an object that creates pods, whatever its kind.

use std::sync::Arc;

use schema::codec::content_hash;
use schema::kinds::Resource;
use schema::kinds::daemon_set::DaemonSetSpec;
use schema::kinds::function::{FUNCTION_LABEL, FunctionSpec, ImageState};
use schema::kinds::links::hashed_content;
use schema::kinds::pod::RestartPolicy;
use schema::kinds::replica_set::{IntOrPercent, PodTemplate, ReplicaSetSpec, RollingUpdate, StrategyType};
use schema::meta::{NamespacedName, ObjectMeta, ObjectRef};
use schema::object::Object;
use schema::records::{OwnerRef, Rollout, Template};
use schema::snapshot::{Snapshot, health};

use crate::last_known::LastKnown;

/// An object that creates equal pods.
pub(super) struct Workload<'a> {
    pub(super) reference: ObjectRef,
    pub(super) object: &'a Object,
    /// Desired number of pods.
    pub(super) desired: u32,
    /// Hash of the template that the object asks for.
    pub(super) wanted: String,
    pub(super) min_ready_seconds: u32,
    pub(super) deadline_seconds: u32,
    pub(super) strategy: Strategy,
    /// Set while no template is rolled out.
    pub(super) paused: bool,
    /// Set while the present object can't be rolled out yet: its former record continues to apply.
    pub(super) awaits_image: bool,
    /// Template, if it depends on more than the object.
    built_template: Option<Template>,
}

/// Strategy for replacing one template by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// Create new pods once all old ones are gone.
    Recreate,
    /// At most `surge` pods above the desired number, and `unavailable` below it.
    Rolling { surge: u32, unavailable: u32 },
}

impl<'a> Workload<'a> {
    /// Returns the workload of a replica set or a function. `scale` is the number that an autoscaler set.
    pub(super) fn for_scaled(
        snapshot: &Snapshot,
        last_known: &LastKnown,
        object: &'a Object,
        scale: Option<u32>,
    ) -> Option<Self> {
        let reference = object.reference();
        let record = snapshot.rollouts.get(&reference).map(|record| &record.value);
        let record = record.or_else(|| last_known.rollout(&reference));
        match &object.resource {
            Resource::ReplicaSet(spec) => Some(Self::for_replica_set(snapshot, object, spec, scale, record)),
            Resource::Function(spec) => Self::for_function(snapshot, object, spec, scale, record),
            _ => None,
        }
    }

    /// Returns the workload of a replica set. `scale` is the number that an autoscaler set. `record` saves hashing
    /// an unchanged object.
    pub(super) fn for_replica_set(
        snapshot: &Snapshot,
        object: &'a Object,
        spec: &'a ReplicaSetSpec,
        scale: Option<u32>,
        record: Option<&Rollout>,
    ) -> Self {
        let reference = object.reference();
        let desired = scale.unwrap_or(spec.replicas);
        Self {
            reference,
            object,
            desired,
            wanted: wanted(object, &spec.template, record),
            min_ready_seconds: spec.min_ready_seconds,
            deadline_seconds: health::deadline_seconds(snapshot, object),
            strategy: Strategy::of(spec, desired),
            paused: spec.paused,
            awaits_image: false,
            built_template: None,
        }
    }

    /// Returns the workload of a bare pod's copies; `scale` counts the pod as well. `None` if the object is not a
    /// pod.
    pub(super) fn for_copies(snapshot: &Snapshot, object: &'a Object, scale: Option<u32>) -> Option<Self> {
        let Resource::Pod(spec) = &object.resource else { return None };
        // A copy of a pod that ends by itself would be run again and again.
        let scale = scale.filter(|_| spec.restart_policy == RestartPolicy::Always);
        let desired = scale.map_or(0, |replicas| replicas.saturating_sub(1));
        Some(Self {
            reference: object.reference(),
            object,
            desired,
            // Excludes labels and annotations: as on the pod itself, they change in place on its copies.
            wanted: object.hash.clone(),
            min_ready_seconds: 0,
            deadline_seconds: health::deadline_seconds(snapshot, object),
            strategy: Strategy::rolling(None, desired),
            paused: false,
            awaits_image: false,
            built_template: None,
        })
    }

    /// Returns the workload of a daemon set with pods on `nodes` nodes.
    pub(super) fn for_daemon_set(
        snapshot: &Snapshot,
        object: &'a Object,
        spec: &'a DaemonSetSpec,
        record: Option<&Rollout>,
        nodes: u32,
    ) -> Self {
        Self {
            reference: object.reference(),
            object,
            desired: nodes,
            wanted: wanted(object, &spec.template, record),
            min_ready_seconds: spec.min_ready_seconds,
            deadline_seconds: health::deadline_seconds(snapshot, object),
            strategy: Strategy::Rolling { surge: 0, unavailable: spec.max_unavailable(nodes) },
            paused: false,
            awaits_image: false,
            built_template: None,
        }
    }

    /// Returns the workload of a function: of the present object once its image is built, before that of the former
    /// one. `None` if it never had an image.
    fn for_function(
        snapshot: &Snapshot,
        object: &'a Object,
        spec: &FunctionSpec,
        scale: Option<u32>,
        record: Option<&Rollout>,
    ) -> Option<Self> {
        let ObjectMeta { namespace, name, .. } = &object.metadata;
        let id = NamespacedName::new(namespace, name);
        let known = snapshot.functions.get(&id).filter(|found| found.value.hash == object.hash);
        let image =
            known.and_then(|found| found.value.image()).filter(|image| image.state == ImageState::Ready);
        let made = image.map(|image| {
            let effective = spec.with_defaults(&snapshot.cluster().functions);
            let pod = effective.pod(&image.reference, &id.to_string());
            let mut labels = object.metadata.labels.clone();
            labels.insert(FUNCTION_LABEL.to_owned(), name.clone());
            Template {
                commit: object.provenance.commit.clone(),
                labels,
                annotations: object.metadata.annotations.clone(),
                spec: Arc::new(pod),
                files: object.files.clone(),
            }
        });
        let wanted = match &made {
            Some(made) => {
                content_hash(&(&made.spec, &made.labels, hashed_content(&object.resource, &made.files)))
            }
            None => record?.wanted.clone(),
        };
        let desired = scale.unwrap_or_else(|| spec.min_scale.max(1));
        Some(Self {
            reference: object.reference(),
            object,
            desired,
            wanted,
            min_ready_seconds: 0,
            deadline_seconds: health::deadline_seconds(snapshot, object),
            strategy: Strategy::rolling(None, desired),
            paused: false,
            awaits_image: made.is_none(),
            built_template: made,
        })
    }

    /// Returns the minimum number of available pods during a rollout.
    pub(super) fn least_available(&self) -> u32 {
        match self.strategy {
            Strategy::Recreate => self.desired,
            Strategy::Rolling { unavailable, .. } => self.desired.saturating_sub(unavailable),
        }
    }

    /// Returns the maximum number of pods during a rollout; `None` if it never has more than desired.
    pub(super) fn most_pods(&self) -> Option<u32> {
        match self.strategy {
            Strategy::Recreate => None,
            Strategy::Rolling { surge, .. } => Some(self.desired.saturating_add(surge)),
        }
    }

    pub(super) fn owner(&self) -> OwnerRef {
        OwnerRef { kind: self.reference.kind, name: self.reference.name.clone() }
    }

    /// Returns the template that the object asks for.
    pub(super) fn template(&self) -> Option<Template> {
        if self.built_template.is_some() {
            return self.built_template.clone();
        }
        let commit = self.object.provenance.commit.clone();
        let files = self.object.files.clone();
        let of = |template: &PodTemplate| {
            let PodTemplate { metadata, spec, .. } = template;
            (metadata.labels.clone(), metadata.annotations.clone(), Arc::new(spec.clone()))
        };
        let metadata = &self.object.metadata;
        let (labels, annotations, spec) = match &self.object.resource {
            Resource::ReplicaSet(spec) => of(&spec.template),
            Resource::DaemonSet(spec) => of(&spec.template),
            Resource::Pod(spec) => (metadata.labels.clone(), metadata.annotations.clone(), Arc::clone(spec)),
            _ => return None,
        };
        Some(Template { commit, labels, annotations, spec, files })
    }
}

impl Strategy {
    fn of(spec: &ReplicaSetSpec, desired: u32) -> Self {
        if spec.strategy.kind == StrategyType::Recreate {
            return Self::Recreate;
        }
        Self::rolling(spec.strategy.rolling_update.as_ref(), desired)
    }

    fn rolling(update: Option<&RollingUpdate>, desired: u32) -> Self {
        let amount = |written: Option<&IntOrPercent>, round_up: bool| {
            let written = written.cloned().unwrap_or_else(IntOrPercent::quarter);
            written.resolve(desired, round_up).unwrap_or(0)
        };
        let surge = amount(update.and_then(|update| update.max_surge.as_ref()), true);
        let unavailable =
            amount(update.and_then(|update| update.max_unavailable.as_ref()), false).min(desired);
        // As in Kubernetes: 0 and 0, possible for a percentage of few pods, would never finish.
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
        Self::Rolling { surge, unavailable }
    }
}

/// Returns the hash of the template that the object asks for. `record` saves hashing an unchanged object.
fn wanted(object: &Object, template: &PodTemplate, record: Option<&Rollout>) -> String {
    let known = record.filter(|record| record.object_hash == object.hash);
    known.map_or_else(|| template_hash(object, template), |record| record.wanted.clone())
}

/// Returns the identity of a pod's version: its template, and the repository's files that it needs.
fn template_hash(object: &Object, template: &PodTemplate) -> String {
    content_hash(&(template, hashed_content(&object.resource, &object.files)))
}

// Computes how many pods a rollout creates and ends now. Pure arithmetic, as in Kubernetes' Deployment controller.

/// Number of pods in a group, and how many of them are available.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) count: u32,
    pub(super) available: u32,
}

/// Numbers of pods to create and to end now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moves {
    /// New pods to create.
    pub(super) create: u32,
    /// New pods to end, because there are more than desired.
    pub(super) end_new: u32,
    /// Unavailable old pods to end.
    pub(super) end_unhealthy: u32,
    /// Available old pods to end.
    pub(super) end_old: u32,
}

/// Plans the moves towards `desired` new pods and no old ones. `leftover` is set while ended pods still run.
pub(super) fn moves(desired: u32, strategy: Strategy, new: Group, old: Group, leftover: bool) -> Moves {
    let end_new = new.count.saturating_sub(desired);
    let missing = desired.saturating_sub(new.count);
    let (surge, unavailable) = match strategy {
        Strategy::Rolling { surge, unavailable } => (surge, unavailable),
        Strategy::Recreate => {
            let create = if old.count == 0 && !leftover { missing } else { 0 };
            let end_unhealthy = old.count - old.available;
            return Moves { create, end_new, end_unhealthy, end_old: old.available };
        }
    };
    let total = new.count + old.count;
    let room = desired.saturating_add(surge).saturating_sub(total);
    let create = if old.count == 0 { missing } else { missing.min(room) };
    let least = desired.saturating_sub(unavailable);
    // New pods that are not available yet are expected to become so: the old ones that stand in for them stay.
    let spare = total.saturating_sub(end_new).saturating_sub(least + (new.count - new.available));
    let end_unhealthy = (old.count - old.available).min(spare);
    let new_available = new.available.min(new.count - end_new);
    let end_old = (new_available + old.available).saturating_sub(least).min(old.available);
    Moves { create, end_new, end_unhealthy, end_old }
}

/// Limits the pods created at once to 1, 2, 4, 8 and so on, so that a pod that can't be written fails once and not
/// a thousand times.
pub(super) fn slow_start(existing: u32) -> u32 {
    existing.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(count: u32, available: u32) -> Group {
        Group { count, available }
    }

    const QUARTER: Strategy = Strategy::Rolling { surge: 3, unavailable: 2 };

    #[test]
    fn a_rollout_goes_step_by_step_as_in_kubernetes() {
        let steps: [(u32, Strategy, Group, Group, [u32; 4]); 12] = [
            // 10 pods, 25 %: three more come, two go.
            (10, QUARTER, group(0, 0), group(10, 10), [3, 0, 0, 2]),
            (10, QUARTER, group(3, 0), group(8, 8), [2, 0, 0, 0]),
            (10, QUARTER, group(5, 3), group(8, 8), [0, 0, 0, 3]),
            (10, QUARTER, group(10, 10), group(0, 0), [0, 0, 0, 0]),
            // Old pods that do not work go first, except those that stand in for new ones.
            (10, QUARTER, group(0, 0), group(10, 4), [3, 0, 2, 0]),
            (10, QUARTER, group(3, 0), group(10, 8), [0, 0, 2, 0]),
            // One pod: the new one first.
            (1, Strategy::Rolling { surge: 1, unavailable: 0 }, group(0, 0), group(1, 1), [1, 0, 0, 0]),
            (1, Strategy::Rolling { surge: 1, unavailable: 0 }, group(1, 0), group(1, 1), [0, 0, 0, 0]),
            (1, Strategy::Rolling { surge: 1, unavailable: 0 }, group(1, 1), group(1, 1), [0, 0, 0, 1]),
            // Scaled down, and down to nothing.
            (3, QUARTER, group(5, 5), group(0, 0), [0, 2, 0, 0]),
            (0, QUARTER, group(2, 1), group(3, 3), [0, 2, 0, 3]),
            // No room at all: one old pod goes first.
            (2, Strategy::Rolling { surge: 0, unavailable: 1 }, group(0, 0), group(2, 2), [0, 0, 0, 1]),
        ];
        for (desired, strategy, new, old, [create, end_new, end_unhealthy, end_old]) in steps {
            let expected = Moves { create, end_new, end_unhealthy, end_old };
            let moves = moves(desired, strategy, new, old, false);
            assert_eq!(moves, expected, "{desired} {strategy:?} {new:?} {old:?}");
        }
    }

    #[test]
    fn recreate_waits_until_the_old_pods_are_gone() {
        let moves = |new, old, leftover| moves(2, Strategy::Recreate, new, old, leftover);
        let none = Group::default();
        assert_eq!(
            moves(none, group(2, 1), false),
            Moves { end_unhealthy: 1, end_old: 1, ..Moves::default() }
        );
        assert_eq!(moves(none, none, true), Moves::default());
        assert_eq!(moves(none, none, false), Moves { create: 2, ..Moves::default() });
    }
}
