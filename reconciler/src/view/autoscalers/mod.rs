//! Views of autoscalers: target, metrics, bounds, and the last decision.

use jiff::Timestamp;
use schema::condition::Condition;
use schema::kinds::autoscaler::{
    Behavior, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricStatus, ResourceMetric,
    ResourceName,
};
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, StringMap};
use schema::object::Object;
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::age::age;
use super::events::EventView;
use super::objects::Selection;
use super::pods::index::{PodCounts, pod_counts};
use super::rows::{Common, Rows, find};

mod samples;
#[cfg(test)]
mod tests;

pub use samples::{AutoscalerHistory, AutoscalerSamples, SampleChart, SampleLine, SamplePoint, Unit};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerView {
    pub namespace: String,
    pub name: String,
    /// Scaled object: `ReplicaSet/web`.
    pub reference: String,
    /// Current and target value of each metric: `cpu: 63%/50%`.
    pub targets: Vec<String>,
    pub min_replicas: u32,
    pub max_replicas: u32,
    /// Current number of the target's pods.
    pub replicas: u32,
    /// Desired number of pods; `None` before the first evaluation.
    pub desired_replicas: Option<u32>,
    /// Healthy, Progressing or Degraded.
    pub health: String,
    pub note: String,
    /// Time since the object was first applied; empty if not known.
    pub age: String,
    pub labels: StringMap,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerDetail {
    #[serde(flatten)]
    pub row: AutoscalerView,
    /// Limits on the speed of scaling; `None` for Kubernetes' defaults.
    pub behavior: Option<Behavior>,
    pub last_scale_time: Option<Timestamp>,
    /// Time since the last scaling; empty if there was none.
    pub last_scale_age: String,
    /// Old and new number of pods, with the reason.
    pub last_scale_reason: String,
    pub conditions: Vec<Condition>,
    /// Manifest that defines it: `apps/web.yaml:1 of source main`.
    pub set_by: String,
    pub commit: String,
    pub annotations: StringMap,
    pub events: Vec<EventView>,
}

pub fn autoscalers(snapshot: &Snapshot, which: &Selection<'_>, now: Timestamp) -> Vec<AutoscalerView> {
    let context = Context::new(snapshot, now);
    let chosen = context.rows.chosen(Kind::HorizontalPodAutoscaler, which);
    chosen
        .filter_map(|object| match &object.resource {
            Resource::HorizontalPodAutoscaler(spec) => Some(context.row(object, spec)),
            _ => None,
        })
        .collect()
}

/// Returns an autoscaler in full, with the given `events`.
pub fn autoscaler(
    snapshot: &Snapshot,
    id: &NamespacedName,
    events: Vec<EventView>,
    now: Timestamp,
) -> Option<AutoscalerDetail> {
    let object = find(snapshot, Kind::HorizontalPodAutoscaler, id)?;
    let Resource::HorizontalPodAutoscaler(spec) = &object.resource else { return None };
    let status = status(snapshot, id).cloned().unwrap_or_default();
    let from = &object.provenance;
    Some(AutoscalerDetail {
        row: Context::new(snapshot, now).row(object, spec),
        behavior: spec.behavior.clone(),
        last_scale_time: status.last_scale_time,
        last_scale_age: status.last_scale_time.map(|then| age(then, now)).unwrap_or_default(),
        last_scale_reason: status.last_scale_reason,
        conditions: status.conditions,
        set_by: from.set_by(),
        commit: from.commit_by(),
        annotations: object.metadata.annotations.clone(),
        events,
    })
}

fn status<'a>(snapshot: &'a Snapshot, id: &NamespacedName) -> Option<&'a HorizontalPodAutoscalerStatus> {
    snapshot.autoscalers.get(id).map(|record| &record.value.status)
}

/// Data shared by several rows, read once.
struct Context<'a> {
    rows: Rows<'a>,
    /// Number of pods of each object.
    pods: PodCounts<'a>,
}

impl<'a> Context<'a> {
    fn new(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        Self { rows: Rows::new(snapshot, now), pods: pod_counts(snapshot) }
    }

    fn row(&self, object: &Object, spec: &HorizontalPodAutoscalerSpec) -> AutoscalerView {
        let Common { id, health, note, age, labels } = self.rows.common(object);
        let target = spec.target(&object.metadata);
        let status = status(self.rows.snapshot, &id);
        let pods = self.pods.get(&(target.kind, target.namespace.as_str(), target.name.as_str()));
        let metrics = spec.metrics.iter().filter_map(|metric| metric.resource.as_ref());
        AutoscalerView {
            namespace: id.namespace,
            name: id.name,
            reference: format!("{}/{}", target.kind, target.name),
            targets: metrics.map(|metric| in_words(metric, status)).collect(),
            min_replicas: spec.min_replicas,
            max_replicas: spec.max_replicas,
            replicas: pods.copied().unwrap_or_default(),
            desired_replicas: status.map(|status| status.desired_replicas),
            note,
            health,
            age,
            labels,
        }
    }
}

/// `cpu: 63%/50%`, as kubectl writes it.
fn in_words(metric: &ResourceMetric, status: Option<&HorizontalPodAutoscalerStatus>) -> String {
    let current = current_usage(metric, status);
    let (found, wanted) = match (metric.target.average_utilization, &metric.target.average_value) {
        (Some(wanted), _) => {
            let found = current.and_then(|current| current.average_utilization);
            (found.map(|found| format!("{found}%")), format!("{wanted}%"))
        }
        (None, Some(wanted)) => (current.map(|current| current.average_value.clone()), wanted.0.clone()),
        (None, None) => (None, String::new()),
    };
    let name = resource_name(metric.name);
    format!("{name}: {}/{wanted}", found.as_deref().unwrap_or("<unknown>"))
}

/// Returns the usage that a metric found at the last evaluation.
fn current_usage<'a>(
    metric: &ResourceMetric,
    status: Option<&'a HorizontalPodAutoscalerStatus>,
) -> Option<&'a MetricStatus> {
    // Match the type as well, because a spec may name a resource twice.
    let is_share = metric.target.average_utilization.is_some();
    let current = status.into_iter().flat_map(|status| &status.current_metrics);
    current
        .filter(|found| found.name == metric.name)
        .find(|found| found.average_utilization.is_some() == is_share)
}

fn resource_name(name: ResourceName) -> &'static str {
    match name {
        ResourceName::Cpu => "cpu",
        ResourceName::Memory => "memory",
    }
}
