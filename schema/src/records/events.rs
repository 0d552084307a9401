//! `events/…`: what happened, on a lease of an hour.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Something that happened to an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// When.
    pub time: Timestamp,
    /// Normal or Warning.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// `Pod`, `Node`, `Source`, ….
    pub object_kind: String,
    /// Namespace of the object; empty when it has none.
    #[serde(default)]
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// One CamelCase word: Scheduled, Pulling, Created, Started, Killing, BackOff, ….
    pub reason: String,
    /// A sentence for a person.
    pub message: String,
    /// Who saw it: `agent/<node>`, `gitops`, `scheduler`, ….
    pub reporter: String,
}

/// Whether an event is as expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventType {
    /// As expected.
    Normal,
    /// Someone should look.
    Warning,
}
