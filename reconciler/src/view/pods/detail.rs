//! Detail view of a pod.

use std::sync::Arc;

use jiff::Timestamp;
use schema::condition::Condition;
use schema::kinds::pod::{ContainerStatus, PodSpec};
use schema::meta::{NamespacedName, StringMap};
use schema::object::Provenance;
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::index::PodIndex;
use super::{PodFacts, PodView};
use crate::view::events::EventView;
use crate::view::usage::{PodUsageView, usage_of};

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodDetail {
    #[serde(flatten)]
    pub row: PodView,
    pub labels: StringMap,
    pub annotations: StringMap,
    pub hash: String,
    /// Commit and line that define the pod; `None` if the object is gone.
    pub provenance: Option<Provenance>,
    /// Reason for the choice of the node; empty without a node.
    pub binding_reason: String,
    #[serde(rename = "hostIP")]
    pub host_ip: Option<String>,
    pub conditions: Vec<Condition>,
    pub init_container_statuses: Vec<ContainerStatus>,
    pub container_statuses: Vec<ContainerStatus>,
    /// Desired spec; `None` if only a report is left of the pod.
    pub spec: Option<Arc<PodSpec>>,
    #[serde(default)]
    pub usage: PodUsageView,
    pub events: Vec<EventView>,
}

/// Returns a pod in full, with the given `events`.
pub fn pod(
    snapshot: &Snapshot,
    pod: &NamespacedName,
    events: Vec<EventView>,
    now: Timestamp,
) -> Option<PodDetail> {
    let index = PodIndex::of(snapshot, |name| name == pod);
    let facts = PodFacts::gather(&index, pod);
    if facts.instance.is_none() && facts.binding.is_none() && facts.status.is_none() {
        return None;
    }
    let status = facts.status.cloned().unwrap_or_default();
    let wanted = facts.wanted();
    let row = facts.view(&index, now);
    Some(PodDetail {
        usage: usage_of(snapshot, &row, now),
        row,
        labels: wanted.map(|p| p.labels.clone()).unwrap_or_default(),
        annotations: wanted.map(|p| p.annotations.clone()).unwrap_or_default(),
        hash: wanted.map_or(status.hash, |p| p.hash.clone()),
        provenance: facts.object.map(|object| object.provenance.clone()),
        binding_reason: facts.binding.map(|b| b.reason.clone()).unwrap_or_default(),
        host_ip: status.host_ip,
        conditions: status.conditions,
        init_container_statuses: status.init_container_statuses,
        container_statuses: status.container_statuses,
        spec: wanted.map(|p| Arc::clone(&p.spec)),
        events,
    })
}
