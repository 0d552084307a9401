//! Views of desired objects, and the objects as stored in etcd.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use jiff::Timestamp;
use schema::condition::Condition;
use schema::kinds::links::references;
use schema::kinds::replica_set::{DEPLOYMENT_PAUSED, IntOrPercent, ReplicaSetStatus};
use schema::kinds::{Health, Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef, StringMap};
use schema::object::Object;
use schema::records::{Rollout, RolloutFailure, RolloutStep};
use schema::snapshot::health::health;
use schema::snapshot::{BudgetStatus, Snapshot};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Selector;
use super::age::AppliedAt;
use super::nodes::conditions as node_conditions;
use super::pods::index::{PodIndex, pod_counts};
use super::pods::{PodView, row};

mod rollout;

pub use rollout::{RolloutStage, RolloutState, RolloutView, StageState, TemplatePods, TemplateRole, rollout};

/// An object as stored in etcd, with its revisions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredObject {
    pub object: Object,
    pub create_revision: i64,
    pub mod_revision: i64,
    /// Current number of pods, for kinds that keep a number of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectView {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    pub source: String,
    pub commit: String,
    pub author: String,
    pub file: String,
    /// 1-based line in the file.
    pub line: u32,
    /// Time since the object was first applied; empty if not known.
    pub age: String,
    /// Healthy, Progressing, Degraded or Unknown.
    pub health: String,
    pub note: String,
    pub labels: StringMap,
    /// Status reported by controllers and nodes; null for kinds without one.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub status: serde_json::Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectDetail {
    #[serde(flatten)]
    pub row: ObjectView,
    /// API version, for example `v1`.
    pub api_version: String,
    pub annotations: StringMap,
    pub hash: String,
    pub generation: u64,
    pub spec: serde_json::Value,
    /// Objects that refer to it, as `Kind/namespace/name`.
    #[serde(default)]
    pub used_by: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Selection<'a> {
    pub source: Option<&'a str>,
    pub kind: Option<Kind>,
    /// Limits objects to this namespace; cluster-scoped objects always match.
    pub namespace: Option<&'a str>,
    pub labels: Option<Selector>,
}

impl Selection<'_> {
    pub(super) fn matches(&self, id: &ObjectRef, object: &Object) -> bool {
        self.source.is_none_or(|source| object.provenance.source == source)
            && self.labels.as_ref().is_none_or(|labels| labels.matches(&object.metadata.labels))
            && self.kind.is_none_or(|kind| id.kind == kind)
            && (id.kind.is_cluster_scoped()
                || self.namespace.is_none_or(|namespace| id.namespace == namespace))
    }
}

/// Returns the selected objects as stored in etcd.
pub fn stored_objects(snapshot: &Snapshot, selection: &Selection<'_>) -> Vec<StoredObject> {
    let pods = pod_counts(snapshot);
    let chosen = snapshot.objects.iter().filter(|(id, found)| selection.matches(id, &found.value));
    let stored = chosen.map(|(id, found)| {
        let object = &found.value;
        let has_pods = object.resource.pod(&object.metadata).is_some();
        let count =
            pods.get(&(id.kind, id.namespace.as_str(), id.name.as_str())).copied().unwrap_or_default();
        StoredObject {
            object: object.clone(),
            create_revision: found.create_revision,
            mod_revision: found.mod_revision,
            // A pod without copies has no count.
            pods: (has_pods && (id.kind != Kind::Pod || count > 1)).then_some(count),
        }
    });
    stored.collect()
}

pub fn objects(snapshot: &Snapshot, selection: &Selection<'_>, now: Timestamp) -> Vec<ObjectView> {
    let context = Context::new(snapshot, now);
    let chosen = snapshot.objects.iter().filter(|(id, found)| selection.matches(id, &found.value));
    chosen.map(|(id, found)| context.row(id, &found.value)).collect()
}

/// Returns the rows of these objects, in their order, without those that are gone.
pub(super) fn rows_of(snapshot: &Snapshot, ids: &[ObjectRef], now: Timestamp) -> Vec<ObjectView> {
    let context = Context::of(snapshot, ids, now);
    let found = ids.iter().filter_map(|id| Some((id, snapshot.objects.get(id)?)));
    found.map(|(id, found)| context.row(id, &found.value)).collect()
}

/// Line of an object in a list of many: less than an [`ObjectView`], which takes longer to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSummary {
    pub reference: ObjectRef,
    /// `Kind/namespace/name`.
    pub id: String,
    /// Healthy, Progressing, Degraded or Unknown.
    pub health: String,
    /// Reason that it is not healthy; else empty.
    pub why: String,
    pub source: String,
    /// `path:line` in the repository.
    pub file: String,
    pub pods: u32,
}

impl ObjectSummary {
    /// Rank of the health: objects that need help come first.
    pub fn urgency(&self) -> usize {
        let order = ["Degraded", "Unknown", "Progressing"];
        order.iter().position(|word| *word == self.health).unwrap_or(order.len())
    }
}

/// Returns the selected objects whose health `is_shown`, sorted by kind and name.
pub fn summaries(
    snapshot: &Snapshot,
    selection: &Selection<'_>,
    is_shown: impl Fn(&Health) -> bool,
) -> Vec<ObjectSummary> {
    let pods = pod_counts(snapshot);
    let chosen = snapshot.objects.iter().filter(|(id, found)| selection.matches(id, &found.value));
    let judged = chosen.map(|(id, found)| (id, &found.value, health(snapshot, &found.value)));
    let shown = judged.filter(|(.., health)| is_shown(health)).map(|(id, object, health)| ObjectSummary {
        reference: id.clone(),
        id: id.to_string(),
        why: health.why().unwrap_or_default().to_owned(),
        health: health.to_string(),
        source: object.provenance.source.clone(),
        file: format!("{}:{}", object.provenance.file, object.provenance.line),
        pods: pods.get(&(id.kind, id.namespace.as_str(), id.name.as_str())).copied().unwrap_or_default(),
    });
    shown.collect()
}

/// Returns the objects that are not healthy, those that need help first.
pub fn unhealthy(snapshot: &Snapshot) -> Vec<ObjectSummary> {
    let mut found = summaries(snapshot, &Selection::default(), |health| *health != Health::Healthy);
    found.sort_by_key(ObjectSummary::urgency);
    found
}

pub fn object(snapshot: &Snapshot, id: &ObjectRef, now: Timestamp) -> Option<ObjectDetail> {
    let object = &snapshot.objects.get(id)?.value;
    let resource = serde_json::to_value(&object.resource).unwrap_or_default();
    Some(ObjectDetail {
        row: Context::of(snapshot, std::slice::from_ref(id), now).row(id, object),
        api_version: object.api_version.clone(),
        annotations: object.metadata.annotations.clone(),
        hash: object.hash.clone(),
        generation: object.generation,
        spec: resource.get("spec").cloned().unwrap_or_default(),
        used_by: users(snapshot, id),
    })
}

/// Objects that refer to `id`.
fn users(snapshot: &Snapshot, id: &ObjectRef) -> Vec<String> {
    let names_it = |object: &Object| {
        references(&object.metadata, &object.resource).iter().any(|field| field.target == *id)
    };
    let users = snapshot.objects.iter().filter(|(_, found)| names_it(&found.value));
    users.map(|(user, _)| user.to_string()).collect()
}

/// Returns the conditions of an object or a pod, and those of its rollout; empty for kinds without conditions.
pub fn conditions(snapshot: &Snapshot, id: &ObjectRef) -> Vec<Condition> {
    let name = NamespacedName::new(&id.namespace, &id.name);
    let own = match id.kind {
        Kind::Pod => pod_conditions(snapshot, &name),
        Kind::Node => node_conditions(snapshot, &id.name),
        Kind::HorizontalPodAutoscaler => {
            let record = snapshot.autoscalers.get(&name);
            record.map(|record| record.value.status.conditions.clone()).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let rollout = snapshot.rollouts.get(id);
    let of_rollout = rollout.map(|rollout| rollout.value.status.conditions.clone()).unwrap_or_default();
    [own, of_rollout].concat()
}

/// Conditions that the node of a pod reports about its present incarnation.
fn pod_conditions(snapshot: &Snapshot, pod: &NamespacedName) -> Vec<Condition> {
    let Some(binding) = snapshot.binding_of(pod).map(|binding| &binding.value) else { return Vec::new() };
    let reported = snapshot.pod_status.get(&(binding.node.clone(), pod.clone()));
    let current = reported.map(|reported| &reported.value).filter(|status| status.uid == binding.pod.uid);
    current.map(|status| status.conditions.clone()).unwrap_or_default()
}

/// Reported status of an object, besides its health.
fn status(snapshot: &Snapshot, object: &Object) -> serde_json::Value {
    if let Resource::PodDisruptionBudget(spec) = &object.resource {
        let (min_available, max_unavailable) = (spec.min_available.clone(), spec.max_unavailable.clone());
        let status = snapshot.budget_status(&object.metadata.namespace, spec);
        return serde_json::to_value(BudgetView { min_available, max_unavailable, status })
            .unwrap_or_default();
    }
    // The status of a pod is that of its copies, if it has any.
    let is_shown = object.kind().descriptor().shows_rollout;
    let rollout = is_shown.then(|| snapshot.rollouts.get(&object.reference())).flatten();
    rollout
        .and_then(|rollout| serde_json::to_value(WorkloadView::new(&rollout.value, &object.resource)).ok())
        .unwrap_or_default()
}

/// Data shared by several rows, read once.
struct Context<'a> {
    now: Timestamp,
    snapshot: &'a Snapshot,
    /// Names of the objects, if these are few; `None` for all.
    only: Option<BTreeSet<NamespacedName>>,
    /// Pods of the objects, read with the first one that is not healthy.
    pods: OnceCell<PodIndex<'a>>,
    applied: AppliedAt<'a>,
}

impl<'a> Context<'a> {
    fn new(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        Self { now, snapshot, only: None, pods: OnceCell::new(), applied: AppliedAt::new(snapshot) }
    }

    fn of(snapshot: &'a Snapshot, ids: &[ObjectRef], now: Timestamp) -> Self {
        let names = ids.iter().map(|id| NamespacedName::new(&id.namespace, &id.name));
        Self { only: Some(names.collect()), ..Self::new(snapshot, now) }
    }

    /// Row of the pod of this name; `None` if there is none.
    fn pod(&self, name: &NamespacedName) -> Option<PodView> {
        let index = self.pods.get_or_init(|| {
            PodIndex::of(self.snapshot, |pod| self.only.as_ref().is_none_or(|only| only.contains(pod)))
        });
        let (name, _) =
            self.snapshot.pods.range(name.clone()..).next().filter(|(found, _)| *found == name)?;
        Some(row(index, name, self.now))
    }

    fn row(&self, id: &ObjectRef, object: &Object) -> ObjectView {
        let from = &object.provenance;
        let health = health(self.snapshot, object);
        let note = self.note(id, &health);
        ObjectView {
            kind: id.kind,
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            source: from.source.clone(),
            commit: from.commit.clone(),
            author: from.author.clone(),
            file: from.file.clone(),
            line: from.line,
            age: self.applied.age(object, self.now),
            health: health.to_string(),
            note,
            labels: object.metadata.labels.clone(),
            status: status(self.snapshot, object),
        }
    }

    /// Reason that the object is not healthy. The row of a pod says more than its health.
    fn note(&self, id: &ObjectRef, health: &Health) -> String {
        if *health == Health::Healthy {
            return String::new();
        }
        let name = NamespacedName::new(&id.namespace, &id.name);
        match (id.kind == Kind::Pod).then(|| self.pod(&name)).flatten() {
            Some(pod) if !pod.why.is_empty() => format!("{}: {}", pod.status, pod.why),
            // The pod itself runs, so the reason is that of its copies, or that another version is to come.
            _ => health.why().unwrap_or_default().to_owned(),
        }
    }
}

/// Status of a disruption budget: its numbers, and what they are derived from.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetView {
    pub min_available: Option<IntOrPercent>,
    pub max_unavailable: Option<IntOrPercent>,
    #[serde(flatten)]
    pub status: BudgetStatus,
}

impl BudgetView {
    /// Parses the status of a disruption budget.
    pub fn from_status(status: &serde_json::Value) -> Self {
        serde_json::from_value(status.clone()).unwrap_or_default()
    }
}

// Status of a workload: its pods and the progress of its rollout.

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadView {
    #[serde(flatten)]
    pub status: ReplicaSetStatus,
    /// First digits of the hash of the desired template, as in the names of its pods.
    pub wanted_template: String,
    /// First digits of the hash of the last template with which all pods were available.
    pub good_template: Option<String>,
    pub failure: Option<RolloutFailure>,
    pub progressed_at: Option<Timestamp>,
    /// Rollout steps, newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RolloutStep>,
    /// Node selector of a DaemonSet; empty for all nodes, and for other kinds.
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    pub node_selector: StringMap,
}

impl WorkloadView {
    pub fn new(rollout: &Rollout, resource: &Resource) -> Self {
        let short = |hash: &String| Rollout::short(hash).to_owned();
        let node_selector = match resource {
            Resource::DaemonSet(spec) => spec.template.spec.node_selector.clone(),
            _ => StringMap::new(),
        };
        Self {
            node_selector,
            status: rollout.status.clone(),
            wanted_template: short(&rollout.wanted),
            good_template: rollout.good.as_ref().map(short),
            failure: rollout.failure.clone(),
            progressed_at: Some(rollout.progressed_at),
            steps: rollout.steps.clone(),
        }
    }

    /// Parses the status of a workload; default values if none is reported yet.
    pub fn from_status(status: &serde_json::Value) -> Self {
        serde_json::from_value(status.clone()).unwrap_or_default()
    }

    /// Progress of the rollout, in a few words.
    pub fn rollout(&self) -> String {
        match (&self.failure, &self.good_template) {
            (Some(failure), _) => format!("failed: {}: {}", failure.reason, failure.message),
            (None, Some(good)) if *good == self.wanted_template => "complete".to_owned(),
            (None, _) if self.wanted_template.is_empty() => "not begun".to_owned(),
            (None, _) if self.is_paused() => "waiting until `paused` is removed".to_owned(),
            (None, _) => "under way".to_owned(),
        }
    }

    fn is_paused(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.reason == DEPLOYMENT_PAUSED)
    }
}

#[cfg(test)]
mod tests {
    use schema::condition::ConditionStatus;
    use schema::records::ScaleRecord;

    use super::object as object_detail;
    use super::*;
    use crate::view::testing::*;

    // Seen red without `is_paused`: a paused workload was reported as under way.
    #[test]
    fn a_pause_is_not_said_to_be_under_way() {
        let mut view = WorkloadView { wanted_template: "0123abcd".to_owned(), ..WorkloadView::default() };
        assert_eq!(view.rollout(), "under way");
        let condition = condition("Progressing", ConditionStatus::Unknown, Timestamp::UNIX_EPOCH);
        view.status.conditions.push(Condition { reason: DEPLOYMENT_PAUSED.to_owned(), ..condition });
        assert_eq!(view.rollout(), "waiting until `paused` is removed");
    }

    #[test]
    fn the_note_of_a_pod_that_runs_says_what_is_wrong_with_its_copies() {
        let mut snapshot = snapshot();
        put_pod(&mut snapshot, "web", running());
        let web = snapshot.objects.keys().next().cloned().unwrap();
        snapshot.scales.insert(web.clone(), versioned(ScaleRecord { replicas: 3, scaler: String::new() }));
        let condition = Condition {
            message: "no copy starts".to_owned(),
            ..condition("Progressing", ConditionStatus::False, at(60))
        };
        let rollout = serde_json::json!({"objectHash": "", "commit": C2, "wanted": "b", "good": "a",
            "startedAt": at(60), "progressedAt": at(60), "best": {"updated": 0, "available": 0, "old": 0},
            "status": {"observedGeneration": 1, "conditions": [condition]}});
        snapshot.rollouts.insert(web.clone(), versioned(serde_json::from_value(rollout).unwrap()));
        let row = object_detail(&snapshot, &web, at(100)).unwrap().row;
        assert_eq!((row.health.as_str(), row.note.as_str()), ("Degraded", "no copy starts"));
    }

    #[test]
    fn the_status_of_a_budget_has_its_numbers_as_in_kubernetes() {
        let mut snapshot = snapshot();
        ["a", "b", "c"].iter().for_each(|name| _ = put_pod(&mut snapshot, name, running()));
        put_pod(&mut snapshot, "d", pod_waiting("ErrImagePull", "no such image"));
        let spec = serde_json::json!({"selector": {}, "minAvailable": 2});
        let budget = object_of("all", Resource::from_json(Kind::PodDisruptionBudget, spec).unwrap());
        snapshot.objects.insert(budget.reference(), versioned(budget.clone()));
        let row = object_detail(&snapshot, &budget.reference(), at(100)).unwrap().row;
        let numbers = serde_json::json!({"minAvailable": 2, "currentHealthy": 3, "desiredHealthy": 2,
            "expectedPods": 4, "disruptionsAllowed": 1});
        assert_eq!((row.health.as_str(), row.status), ("Healthy", numbers));
    }
}
