//! `events/…`: events, on a lease of an hour.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Event about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Time of the event.
    pub time: Timestamp,
    /// Type: normal or warning.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// Kind of the object: `Pod`, `Node`, `Source`, ….
    pub object_kind: String,
    /// Namespace of the object; empty when it has none.
    #[serde(default)]
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// CamelCase word for the reason: Scheduled, Pulling, Created, Started, Killing, BackOff, ….
    pub reason: String,
    /// Human-readable sentence.
    pub message: String,
    /// Component that reported it: `agent/<node>`, `gitops`, `scheduler`, ….
    pub reporter: String,
}

/// Type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventType {
    /// Expected.
    Normal,
    /// Worth a person's attention.
    Warning,
}
