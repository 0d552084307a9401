//! Views of triggers: cause, last start, and next start.

use jiff::Timestamp;
use schema::kinds::Kind;
use schema::kinds::trigger::{OnCommit, Schedule, Trigger, TriggerEvent};
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::TriggerStart;
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerView {
    pub namespace: String,
    /// Unique among the triggers of its object.
    pub name: String,
    /// Object whose runs it starts: `workflow/order`.
    pub object: String,
    pub schedule: Option<Schedule>,
    pub on_commit: Option<OnCommit>,
    /// URL path to call, at any reconciler.
    pub call_path: Option<String>,
    /// The last run that it started.
    pub last: Option<TriggerStart>,
    /// Next time of its schedule; `None` before the reconciler has read it.
    pub next: Option<Timestamp>,
    /// Number of missed times since the last run.
    pub skipped: u32,
}

impl TriggerView {
    /// Cause of its runs, in a few words.
    pub fn starts_on(&self) -> String {
        match (&self.schedule, &self.on_commit, &self.call_path) {
            (Some(Schedule { cron, time_zone, .. }), ..) => format!("{cron} {time_zone}"),
            (_, Some(commits), _) if commits.paths.is_empty() => "each commit".to_owned(),
            (_, Some(commits), _) => format!("commits to {}", commits.paths.join(" ")),
            (.., Some(path)) => format!("POST {path}"),
            (None, None, None) => String::new(),
        }
    }

    /// Time of the last start: that of its schedule, or the second when the run began.
    pub fn last_at(&self) -> Option<Timestamp> {
        let last = self.last.as_ref()?;
        Timestamp::from_second(last.tick.unwrap_or(last.started_at).as_second()).ok()
    }
}

/// Triggers of a namespace, or of every namespace.
pub fn triggers(snapshot: &Snapshot, namespace: Option<&str>) -> Vec<TriggerView> {
    let objects = snapshot.objects.iter();
    objects
        .filter(|(id, _)| namespace.is_none_or(|wanted| id.namespace == wanted))
        .flat_map(|(_, found)| rows(snapshot, &found.value))
        .collect()
}

/// Triggers of an object.
pub(in crate::view) fn rows(snapshot: &Snapshot, object: &Object) -> Vec<TriggerView> {
    let id = object.reference();
    object.resource.triggers().iter().map(|trigger| row(snapshot, &id, trigger)).collect()
}

fn row(snapshot: &Snapshot, id: &ObjectRef, trigger: &Trigger) -> TriggerView {
    let record = snapshot.triggers.get(&(id.clone(), trigger.name.clone())).map(|found| &found.value);
    // A record of another schedule does not determine the next time.
    let current = record.filter(|record| record.schedule == trigger.schedule);
    let is_called = matches!(trigger.event(), Some(TriggerEvent::Call(_)));
    TriggerView {
        namespace: id.namespace.clone(),
        name: trigger.name.clone(),
        object: format!("{}/{}", word(id.kind), id.name),
        schedule: trigger.schedule.clone(),
        on_commit: trigger.on_commit.clone(),
        call_path: is_called
            .then(|| format!("/v1/calls/{}/{}/{}/{}", word(id.kind), id.namespace, id.name, trigger.name)),
        last: record.and_then(|record| record.last.clone()),
        next: current.and_then(|record| record.next),
        skipped: current.map_or(0, |record| record.skipped),
    }
}

fn word(kind: Kind) -> String {
    kind.as_str().to_lowercase()
}
