//! Events as a person reads them: oldest first, as kubectl sorts them.

use jiff::Timestamp;
use schema::records::Event;
use serde::{Deserialize, Serialize};

use super::age::age;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// When, who, what.
    #[serde(flatten)]
    pub event: Event,
    /// Time since it happened.
    pub age: String,
}

/// One event as seen at `now`.
pub fn event_view(event: Event, now: Timestamp) -> EventView {
    EventView { age: age(event.time, now), event }
}

/// Events in order of time; of more than `max` the newest.
pub fn event_views(mut events: Vec<Event>, max: usize, now: Timestamp) -> Vec<EventView> {
    events.sort_by(|a, b| (a.time, &a.namespace, &a.name).cmp(&(b.time, &b.namespace, &b.name)));
    let surplus = events.len().saturating_sub(max);
    events.drain(..surplus);
    events.into_iter().map(|event| event_view(event, now)).collect()
}
