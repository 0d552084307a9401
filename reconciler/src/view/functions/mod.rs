//! Views of functions: replicas, images, calls, and problems.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::kinds::function::{FunctionSpec, ImageState};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectMeta, StringMap};
use schema::object::Object;
use schema::records::{
    CallFailure, FunctionDemand, FunctionImage, FunctionRecord, Replica, Rollout, RolloutStep,
};
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use super::events::EventView;
use super::objects::Selection;
use super::rows::{Common, Rows, find};
use super::workflows::{TriggerView, trigger_rows};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionView {
    pub namespace: String,
    pub name: String,
    /// Replicas that take calls.
    pub ready: u32,
    /// Desired number of replicas.
    pub wanted: u32,
    /// Calls that wait for a replica, on all nodes.
    pub waiting: u32,
    /// Calls under way at replicas, not their number over time.
    pub in_flight: u32,
    /// Calls answered per second, the mean over the last minute.
    #[serde(default)]
    pub calls_per_second: f64,
    /// Mean time of calls at the gateways in milliseconds; `None` without calls.
    pub mean_millis: Option<f64>,
    /// State of the newest version's image: Ready, Building, Waiting or Failed.
    pub image: String,
    /// Folder or image.
    pub source: String,
    /// Healthy, Progressing or Degraded.
    pub health: String,
    pub note: String,
    /// Time since the object was first applied; empty if not known.
    pub age: String,
    pub labels: StringMap,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionDetail {
    #[serde(flatten)]
    pub row: FunctionView,
    /// URL path for calls, below the address of a node.
    pub path: String,
    pub replicas: Vec<Replica>,
    pub images: Vec<FunctionImage>,
    /// Versions that have pods, and the newest one.
    #[serde(default)]
    pub revisions: Vec<FunctionRevision>,
    /// Recent failures of calls, newest first.
    #[serde(default)]
    pub failures: Vec<CallFailure>,
    /// Steps of the newest version's rollout, with reasons.
    pub steps: Vec<RolloutStep>,
    /// Manifest that defines it: `apps/web.yaml:1 of source main`.
    pub set_by: String,
    pub commit: String,
    pub annotations: StringMap,
    /// Spec with its defaults applied.
    pub spec: FunctionSpec,
    pub triggers: Vec<TriggerView>,
    pub events: Vec<EventView>,
}

impl FunctionDetail {
    /// Returns how people call the function: anybody if it is public or has a token, else on a node or by a certificate.
    pub fn called_at(&self) -> String {
        let Self { path, row, .. } = self;
        match (self.spec.public, &self.spec.auth) {
            (true, _) => format!("POST http://<any node>:8081{path}"),
            (false, Some(_)) => format!("POST http://<any node>:8081{path}, with its token"),
            (false, None) => format!(
                "POST http://localhost:8081{path} on a node; elsewhere by 'minik8s invoke {}/{}'",
                row.namespace, row.name
            ),
        }
    }
}

/// A version of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionRevision {
    /// Version as in the names of its pods; empty before its image is built.
    pub version: String,
    pub commit: String,
    pub image: String,
    pub pods: u32,
    /// Newest (with its build state or failure), or before.
    pub state: String,
}

pub fn functions(snapshot: &Snapshot, which: &Selection<'_>, now: Timestamp) -> Vec<FunctionView> {
    let rows = Rows::new(snapshot, now);
    rows.chosen(Kind::Function, which)
        .filter_map(|object| match &object.resource {
            Resource::Function(spec) => Some(row(&rows, object, spec)),
            _ => None,
        })
        .collect()
}

/// Returns a function in full, with the given `events`.
pub fn function(
    snapshot: &Snapshot,
    id: &NamespacedName,
    events: Vec<EventView>,
    now: Timestamp,
) -> Option<FunctionDetail> {
    let object = find(snapshot, Kind::Function, id)?;
    let Resource::Function(spec) = &object.resource else { return None };
    let record = snapshot.functions.get(id).map(|found| found.value.clone()).unwrap_or_default();
    let rollout = snapshot.rollouts.get(&object.reference()).map(|found| &found.value);
    let from = &object.provenance;
    Some(FunctionDetail {
        row: row(&Rows::new(snapshot, now), object, spec),
        path: format!("/{}/{}", id.namespace, id.name),
        revisions: revisions(snapshot, object, &record, rollout),
        failures: failures(snapshot, id),
        replicas: record.replicas,
        images: record.images,
        steps: rollout.map(|rollout| rollout.steps.clone()).unwrap_or_default(),
        set_by: from.set_by(),
        commit: from.commit_by(),
        annotations: object.metadata.annotations.clone(),
        spec: spec.with_defaults(&snapshot.cluster().functions),
        triggers: trigger_rows(snapshot, object),
        events,
    })
}

/// Recent failures of calls; merges equal failures of several nodes.
fn failures(snapshot: &Snapshot, id: &NamespacedName) -> Vec<CallFailure> {
    const SHOWN: usize = 5;
    let mut all: Vec<CallFailure> = Vec::new();
    let name = id.to_string();
    for failure in snapshot.demand.values().flat_map(|demand| demand.value.failures.get(&name)).flatten() {
        let is_alike =
            |one: &&mut CallFailure| (&one.kind, &one.message) == (&failure.kind, &failure.message);
        match all.iter_mut().find(is_alike) {
            Some(known) => {
                known.count += failure.count;
                known.last = known.last.max(failure.last);
            }
            None => all.push(failure.clone()),
        }
    }
    all.sort_by_key(|one| std::cmp::Reverse(one.last));
    all.truncate(SHOWN);
    all
}

fn revisions(
    snapshot: &Snapshot,
    object: &Object,
    record: &FunctionRecord,
    rollout: Option<&Rollout>,
) -> Vec<FunctionRevision> {
    let ObjectMeta { namespace, name, .. } = &object.metadata;
    let is_newest = |hash: &str| rollout.is_some_and(|rollout| rollout.wanted == hash);
    let failed = rollout.is_some_and(|rollout| rollout.failure.is_some());
    let newest_state = if failed { "newest, given up" } else { "newest" };
    let mut found: BTreeMap<String, FunctionRevision> = BTreeMap::new();
    for pod in snapshot.pods.values().map(|pod| &pod.value) {
        if (pod.owner.kind, &pod.owner.name, &pod.namespace) != (Kind::Function, name, namespace) {
            continue;
        }
        let state = if is_newest(&pod.hash) { newest_state } else { "before" };
        let revision = found.entry(pod.hash.clone()).or_insert_with(|| FunctionRevision {
            version: Rollout::short(&pod.hash).to_owned(),
            commit: pod.commit.clone(),
            image: pod.spec.containers.first().map(|container| container.image.clone()).unwrap_or_default(),
            pods: 0,
            state: state.to_owned(),
        });
        revision.pods += 1;
    }
    let mut revisions: Vec<FunctionRevision> = found.into_values().collect();
    if !revisions.iter().any(|one| one.state == newest_state)
        && let Some(image) = record.image()
    {
        let state = match &image.state {
            ImageState::Waiting => "newest, waiting to be built",
            ImageState::Building { .. } => "newest, being built",
            ImageState::Failed { .. } => "newest, can't be built",
            ImageState::Ready => newest_state,
        };
        revisions.push(FunctionRevision {
            version: String::new(),
            commit: object.provenance.commit.clone(),
            image: image.reference.clone(),
            pods: 0,
            state: state.to_owned(),
        });
    }
    revisions.sort_by_key(|one| !one.state.starts_with("newest"));
    revisions
}

fn row(rows: &Rows<'_>, object: &Object, spec: &FunctionSpec) -> FunctionView {
    let snapshot = rows.snapshot;
    let Common { id, health, note, age, labels } = rows.common(object);
    let record = snapshot.functions.get(&id).map(|found| &found.value);
    let name = id.to_string();
    let living = snapshot.demand.iter().filter(|(node, _)| snapshot.node_is_ready(node));
    let calls = living.filter_map(|(_, demand)| demand.value.functions.get(&name));
    let mut sum = FunctionDemand::default();
    let mut weighted = 0_u64;
    for one in calls {
        sum.waiting += one.waiting;
        sum.in_flight += one.in_flight;
        sum.answered_milli += one.answered_milli;
        weighted = weighted.saturating_add(one.answered_milli.saturating_mul(one.mean_micros));
    }
    let FunctionDemand { waiting, in_flight, answered_milli, .. } = sum;
    FunctionView {
        calls_per_second: thousandths(answered_milli),
        mean_millis: weighted.checked_div(answered_milli).map(thousandths),
        ready: record.map_or(0, |record| u32::try_from(record.replicas.len()).unwrap_or(u32::MAX)),
        wanted: record.map_or(0, |record| record.wanted),
        waiting,
        in_flight,
        image: image_word(record).to_owned(),
        source: spec.source.clone().or_else(|| spec.image.clone()).unwrap_or_default(),
        note,
        health,
        age,
        labels,
        namespace: id.namespace,
        name: id.name,
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn thousandths(value: u64) -> f64 {
    value as f64 / 1000.0
}

fn image_word(record: Option<&FunctionRecord>) -> &'static str {
    match record.and_then(FunctionRecord::image).map(|image| &image.state) {
        None | Some(ImageState::Waiting) => "Waiting",
        Some(ImageState::Building { .. }) => "Building",
        Some(ImageState::Ready) => "Ready",
        Some(ImageState::Failed { .. }) => "Failed",
    }
}

#[cfg(test)]
mod tests;
