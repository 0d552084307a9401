//! Views of events: oldest first, as kubectl sorts them.

use jiff::Timestamp;
use schema::records::Event;
use serde::{Deserialize, Serialize};

use super::age::age;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    #[serde(flatten)]
    pub event: Event,
    pub age: String,
}

/// Returns an event with its age at `now`.
pub fn event_view(event: Event, now: Timestamp) -> EventView {
    EventView { age: age(event.time, now), event }
}

/// Events that differ only in their time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventGroup {
    pub last: Event,
    pub count: usize,
    /// `4s`, or `4s (x3 over 2m)` as kubectl writes it.
    pub age: String,
}

/// Groups similar events, ordered by their last time; keeps the newest `max` groups.
pub fn event_groups(events: &[EventView], max: usize, now: Timestamp) -> Vec<EventGroup> {
    let mut groups: Vec<(Timestamp, EventGroup)> = Vec::new();
    for EventView { event, .. } in events {
        let like = |there: &Event| {
            (&there.reason, &there.message, &there.reporter, there.kind)
                == (&event.reason, &event.message, &event.reporter, event.kind)
        };
        match groups.iter().position(|(_, group)| like(&group.last)) {
            Some(position) => {
                let (first, mut group) = groups.remove(position);
                group.count += 1;
                group.last.clone_from(event);
                groups.push((first, group));
            }
            None => {
                let group = EventGroup { last: event.clone(), count: 1, age: String::new() };
                groups.push((event.time, group));
            }
        }
    }
    groups.drain(..groups.len().saturating_sub(max));
    let aged = groups.into_iter().map(|(first, mut group)| {
        group.age = age(group.last.time, now);
        if group.count > 1 {
            group.age = format!("{} (x{} over {})", group.age, group.count, age(first, now));
        }
        group
    });
    aged.collect()
}

/// Sorts events by time; keeps the newest `max`.
pub fn event_views(mut events: Vec<Event>, max: usize, now: Timestamp) -> Vec<EventView> {
    events.sort_by(|a, b| (a.time, &a.namespace, &a.name).cmp(&(b.time, &b.namespace, &b.name)));
    let surplus = events.len().saturating_sub(max);
    events.drain(..surplus);
    events.into_iter().map(|event| event_view(event, now)).collect()
}
