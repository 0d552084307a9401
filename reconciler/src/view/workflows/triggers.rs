//! Triggers as a person sees them: when they last started a run, and when they will next.

use jiff::Timestamp;
use schema::kinds::trigger::{Schedule, Trigger};
use schema::kinds::{Kind, Resource};
use schema::meta::ObjectRef;
use schema::records::TriggerStart;
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerView {
    pub namespace: String,
    /// Unique among the triggers of its object.
    pub name: String,
    /// The object that it starts runs of: `workflow/order`.
    pub object: String,
    pub schedule: Schedule,
    /// The last run that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<TriggerStart>,
    /// When it starts the next; none before the reconciler saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// Times since the last run that have none, because they were missed.
    pub skipped: u32,
}

/// The triggers of a namespace, or of all.
pub fn triggers(snapshot: &Snapshot, namespace: Option<&str>) -> Vec<TriggerView> {
    let objects = snapshot.objects.iter();
    objects
        .filter(|(id, _)| id.kind == Kind::Workflow && namespace.is_none_or(|wanted| id.namespace == wanted))
        .flat_map(|(id, found)| {
            let written = match &found.value.resource {
                Resource::Workflow(spec) => spec.triggers.as_slice(),
                _ => &[],
            };
            written.iter().map(|trigger| row(snapshot, id, trigger))
        })
        .collect()
}

/// Those of one object.
pub(super) fn triggers_of(snapshot: &Snapshot, id: &ObjectRef, written: &[Trigger]) -> Vec<TriggerView> {
    written.iter().map(|trigger| row(snapshot, id, trigger)).collect()
}

fn row(snapshot: &Snapshot, id: &ObjectRef, trigger: &Trigger) -> TriggerView {
    let record = snapshot.triggers.get(&(id.clone(), trigger.name.clone())).map(|found| &found.value);
    // What is said of another schedule says nothing of the next time.
    let current = record.filter(|record| record.schedule == trigger.schedule);
    TriggerView {
        namespace: id.namespace.clone(),
        name: trigger.name.clone(),
        object: format!("{}/{}", id.kind.as_str().to_lowercase(), id.name),
        schedule: trigger.schedule.clone(),
        last: record.and_then(|record| record.last.clone()),
        next: current.and_then(|record| record.next),
        skipped: current.map_or(0, |record| record.skipped),
    }
}
