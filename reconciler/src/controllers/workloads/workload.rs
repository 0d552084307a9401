//! Desired state of an object that creates pods, whatever its kind.

use std::sync::Arc;

use schema::codec::content_hash;
use schema::kinds::Resource;
use schema::kinds::daemon_set::DaemonSetSpec;
use schema::kinds::function::{FUNCTION_LABEL, FunctionSpec, ImageState};
use schema::kinds::links::in_hash;
use schema::kinds::pod::RestartPolicy;
use schema::kinds::replica_set::{IntOrPercent, PodTemplate, ReplicaSetSpec, RollingUpdate, StrategyType};
use schema::meta::{NamespacedName, ObjectMeta, ObjectRef};
use schema::object::Object;
use schema::records::{OwnerRef, Rollout, Template};
use schema::snapshot::{Snapshot, health};

use crate::controllers::last_known::LastKnown;

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
    pub(super) is_held: bool,
    /// Template, if it depends on more than the object.
    made: Option<Template>,
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
    pub(super) fn of_scaled(
        snapshot: &Snapshot,
        last_known: &LastKnown,
        object: &'a Object,
        scale: Option<u32>,
    ) -> Option<Self> {
        let reference = object.reference();
        let record = snapshot.rollouts.get(&reference).map(|record| &record.value);
        let record = record.or_else(|| last_known.rollout(&reference));
        match &object.resource {
            Resource::ReplicaSet(spec) => Some(Self::of_replica_set(snapshot, object, spec, scale, record)),
            Resource::Function(spec) => Self::of_function(snapshot, object, spec, scale, record),
            _ => None,
        }
    }

    /// Returns the workload of a replica set. `scale` is the number that an autoscaler set. `record` saves hashing
    /// an unchanged object.
    pub(super) fn of_replica_set(
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
            is_held: false,
            made: None,
        }
    }

    /// Returns the workload of a bare pod's copies; `scale` counts the pod as well. `None` if the object is not a
    /// pod.
    pub(super) fn of_copies(snapshot: &Snapshot, object: &'a Object, scale: Option<u32>) -> Option<Self> {
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
            is_held: false,
            made: None,
        })
    }

    /// Returns the workload of a daemon set with pods on `nodes` nodes.
    pub(super) fn of_daemon_set(
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
            is_held: false,
            made: None,
        }
    }

    /// Returns the workload of a function: of the present object once its image is built, before that of the former
    /// one. `None` if it never had an image.
    fn of_function(
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
            Some(made) => content_hash(&(&made.spec, &made.labels, in_hash(&object.resource, &made.files))),
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
            is_held: made.is_none(),
            made,
        })
    }

    /// Returns the minimum number of available pods during a rollout.
    pub(super) fn least_available(&self) -> u32 {
        match self.strategy {
            Strategy::Recreate => self.desired,
            Strategy::Rolling { unavailable, .. } => self.desired.saturating_sub(unavailable),
        }
    }

    pub(super) fn owner(&self) -> OwnerRef {
        OwnerRef { kind: self.reference.kind, name: self.reference.name.clone() }
    }

    /// Returns the template that the object asks for.
    pub(super) fn template(&self) -> Option<Template> {
        if self.made.is_some() {
            return self.made.clone();
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
            written.of(desired, round_up).unwrap_or(0)
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
    content_hash(&(template, in_hash(&object.resource, &object.files)))
}
