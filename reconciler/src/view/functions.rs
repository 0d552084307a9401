//! Functions as a person sees them: their replicas, images and calls, and what is wrong with them.

use jiff::Timestamp;
use schema::kinds::function::{FunctionSpec, ImageState};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef, StringMap};
use schema::object::Object;
use schema::records::{FunctionImage, FunctionRecord, Replica, RolloutStep};
use schema::snapshot::Snapshot;
use schema::snapshot::health::health;
use serde::{Deserialize, Serialize};

use super::age::AppliedAt;
use super::events::EventView;
use super::objects::Selection;
use super::workflows::{TriggerView, trigger_rows};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionView {
    pub namespace: String,
    pub name: String,
    /// Replicas that take calls.
    pub ready: u32,
    /// Replicas that there are to be.
    pub wanted: u32,
    /// Calls that wait for a replica, through all nodes.
    pub waiting: u32,
    /// Calls at replicas.
    pub in_flight: u32,
    /// How far the image of the newest version is: Ready, Building, Waiting or Failed.
    pub image: String,
    /// Folder or image.
    pub source: String,
    /// Healthy, Progressing or Degraded.
    pub health: String,
    pub note: String,
    /// Time since the commit was applied; empty when that is not known any more.
    pub age: String,
    pub labels: StringMap,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionDetail {
    #[serde(flatten)]
    pub row: FunctionView,
    /// How it is called, below the address of a node.
    pub path: String,
    pub replicas: Vec<Replica>,
    pub images: Vec<FunctionImage>,
    /// What the rollout of the newest version did, and why.
    pub steps: Vec<RolloutStep>,
    /// Who set it: `apps/web.yaml:1 of source main`.
    pub set_by: String,
    pub commit: String,
    pub annotations: StringMap,
    /// As it is after its defaults.
    pub spec: FunctionSpec,
    pub triggers: Vec<TriggerView>,
    pub events: Vec<EventView>,
}

pub fn functions(snapshot: &Snapshot, which: &Selection<'_>, now: Timestamp) -> Vec<FunctionView> {
    let applied = AppliedAt::new(snapshot);
    let all = snapshot.objects.iter().filter(|(id, found)| which.takes(id, &found.value));
    all.filter_map(|(_, found)| match &found.value.resource {
        Resource::Function(spec) => Some(row(snapshot, &found.value, spec, (&applied, now))),
        _ => None,
    })
    .collect()
}

/// One function in full; `events` are shown as they are given.
pub fn function(
    snapshot: &Snapshot,
    id: &NamespacedName,
    events: Vec<EventView>,
    now: Timestamp,
) -> Option<FunctionDetail> {
    let key = ObjectRef { kind: Kind::Function, namespace: id.namespace.clone(), name: id.name.clone() };
    let object = &snapshot.objects.get(&key)?.value;
    let Resource::Function(spec) = &object.resource else { return None };
    let record = snapshot.functions.get(id).map(|found| found.value.clone()).unwrap_or_default();
    let rollout = snapshot.rollouts.get(&key).map(|found| &found.value);
    let from = &object.provenance;
    Some(FunctionDetail {
        row: row(snapshot, object, spec, (&AppliedAt::new(snapshot), now)),
        path: format!("/{}/{}", id.namespace, id.name),
        replicas: record.replicas,
        images: record.images,
        steps: rollout.map(|rollout| rollout.steps.clone()).unwrap_or_default(),
        set_by: format!("{}:{} of source {}", from.file, from.line, from.source),
        commit: format!("{} by {}", from.commit, from.author),
        annotations: object.metadata.annotations.clone(),
        spec: spec.with_defaults(&snapshot.cluster().functions),
        triggers: trigger_rows(snapshot, object),
        events,
    })
}

fn row(
    snapshot: &Snapshot,
    object: &Object,
    spec: &FunctionSpec,
    (applied, now): (&AppliedAt<'_>, Timestamp),
) -> FunctionView {
    let id = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    let record = snapshot.functions.get(&id).map(|found| &found.value);
    let health = health(snapshot, object);
    let name = id.to_string();
    let living = snapshot.demand.iter().filter(|(node, _)| snapshot.node_is_ready(node));
    let calls = living.filter_map(|(_, demand)| demand.value.functions.get(&name));
    let (waiting, in_flight) =
        calls.fold((0, 0), |(waiting, flight), one| (waiting + one.waiting, flight + one.in_flight));
    FunctionView {
        ready: record.map_or(0, |record| record.status().ready),
        wanted: record.map_or(0, |record| record.wanted),
        waiting,
        in_flight,
        image: image_word(record).to_owned(),
        source: spec.source.clone().or_else(|| spec.image.clone()).unwrap_or_default(),
        note: health.why().unwrap_or_default().to_owned(),
        health: health.to_string(),
        age: applied.age(&object.provenance.commit, now),
        labels: object.metadata.labels.clone(),
        namespace: id.namespace,
        name: id.name,
    }
}

fn image_word(record: Option<&FunctionRecord>) -> &'static str {
    match record.and_then(FunctionRecord::image).map(|image| &image.state) {
        None | Some(ImageState::Waiting) => "Waiting",
        Some(ImageState::Building { .. }) => "Building",
        Some(ImageState::Ready) => "Ready",
        Some(ImageState::Failed { .. }) => "Failed",
    }
}
