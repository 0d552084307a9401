//! What an object that makes pods asks for, whatever its kind.

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

/// An object that makes equal pods.
pub(super) struct Workload<'a> {
    pub(super) reference: ObjectRef,
    pub(super) object: &'a Object,
    /// How many pods there are to be.
    pub(super) desired: u32,
    /// Hash of the template that the object asks for.
    pub(super) wanted: String,
    pub(super) min_ready_seconds: u32,
    pub(super) deadline_seconds: u32,
    pub(super) strategy: Strategy,
    /// No template is rolled out for the time being.
    pub(super) paused: bool,
    /// The object as it is can't be rolled out yet: what is written down of it goes on.
    pub(super) is_held: bool,
    /// The template, where it follows from more than the object.
    made: Option<Template>,
}

/// How a template takes the place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// All old pods are gone before new ones come.
    Recreate,
    /// At most `surge` pods above the number that is to be, and `unavailable` below it.
    Rolling { surge: u32, unavailable: u32 },
}

impl<'a> Workload<'a> {
    /// What a replica set or a function asks for. `scale`: the number that an autoscaler gave it.
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

    /// What a replica set asks for. `scale`: the number that an autoscaler gave it. `record` spares the hash of an
    /// object that did not change.
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

    /// The copies of a pod that Git names, which `scale` counts, too. None: the object is no pod.
    pub(super) fn of_copies(snapshot: &Snapshot, object: &'a Object, scale: Option<u32>) -> Option<Self> {
        let Resource::Pod(spec) = &object.resource else { return None };
        // Of a pod that ends by itself a copy would be run again and again.
        let scale = scale.filter(|_| spec.restart_policy == RestartPolicy::Always);
        let desired = scale.map_or(0, |replicas| replicas.saturating_sub(1));
        Some(Self {
            reference: object.reference(),
            object,
            desired,
            // Labels and annotations are no part of it: as the pod itself, its copies get new ones in place.
            wanted: object.hash.clone(),
            min_ready_seconds: 0,
            deadline_seconds: health::deadline_seconds(snapshot, object),
            strategy: Strategy::rolling(None, desired),
            paused: false,
            is_held: false,
            made: None,
        })
    }

    /// What a daemon set asks for where `nodes` nodes are to have a pod.
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

    /// What a function asks for: as it is once its image is built, before that as it was. None: it has never had one.
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

    /// Fewest pods that are available while a template takes the place of another.
    pub(super) fn least_available(&self) -> u32 {
        match self.strategy {
            Strategy::Recreate => self.desired,
            Strategy::Rolling { unavailable, .. } => self.desired.saturating_sub(unavailable),
        }
    }

    pub(super) fn owner(&self) -> OwnerRef {
        OwnerRef { kind: self.reference.kind, name: self.reference.name.clone() }
    }

    /// The template that the object asks for.
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
        // As Kubernetes: 0 and 0, which a share of few pods can be, would never end.
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
        Self::Rolling { surge, unavailable }
    }
}

/// The hash of the template that the object asks for. `record` spares it of an object that did not change.
fn wanted(object: &Object, template: &PodTemplate, record: Option<&Rollout>) -> String {
    let known = record.filter(|record| record.object_hash == object.hash);
    known.map_or_else(|| template_hash(object, template), |record| record.wanted.clone())
}

/// What makes a pod another one: its template, and what it needs of the repository's files.
fn template_hash(object: &Object, template: &PodTemplate) -> String {
    content_hash(&(template, in_hash(&object.resource, &object.files)))
}
