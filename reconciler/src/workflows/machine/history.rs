//! History of a run, with Step Functions' names of events.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use super::context::{HISTORY_MAX_BYTES, size};

/// Events of a run, the newest with inputs and outputs: 25,000 states may each have had 256 KiB.
#[derive(Default)]
pub struct History {
    events: Vec<HistoryEvent>,
    bytes: usize,
    without_data: usize,
}

impl History {
    /// Adds the events of a transition.
    pub fn add(&mut self, events: Vec<HistoryEvent>) {
        self.bytes += events.iter().map(HistoryEvent::data_bytes).sum::<usize>();
        self.events.extend(events);
        while self.bytes > HISTORY_MAX_BYTES {
            let Some(oldest) = self.events.get_mut(self.without_data) else { break };
            self.bytes = self.bytes.saturating_sub(oldest.data_bytes());
            (oldest.detail.input, oldest.detail.output) = (None, None);
            self.without_data += 1;
        }
    }

    /// Returns the events, and how many of the oldest lack their data.
    pub fn into_events(self) -> (Vec<HistoryEvent>, usize) {
        (self.events, self.without_data)
    }
}

impl HistoryEvent {
    fn data_bytes(&self) -> usize {
        self.detail.input.iter().chain(&self.detail.output).map(size).sum()
    }
}

/// An event in the history of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEvent {
    /// Number of the event: from 1, without gaps.
    pub id: u32,
    /// Previous event of the same branch; 0 for the first.
    pub previous_event_id: u32,
    pub timestamp: Timestamp,
    /// Type of the event: `TaskStateEntered` and so on.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// State of the event; null for events of the run itself.
    pub state: Option<String>,
    /// Further details.
    #[serde(flatten)]
    pub detail: HistoryDetail,
}

/// Further details of an event.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryDetail {
    /// Input of the run, state or function.
    #[serde(default, with = "some")]
    pub input: Option<Json>,
    /// Output of the run, state or function.
    #[serde(default, with = "some")]
    pub output: Option<Json>,
    /// Name of an error.
    pub error: Option<String>,
    /// Description of the error.
    pub cause: Option<String>,
    /// Called function.
    pub function: Option<String>,
    /// Id of the call.
    pub call: Option<u64>,
    /// Number of the attempt, from 1.
    pub attempt: Option<u32>,
    /// Index of an item of a Map, from 0.
    pub index: Option<usize>,
    /// Number of items of a Map.
    pub length: Option<usize>,
}

impl HistoryDetail {
    pub(super) fn input(input: &Json) -> Self {
        Self { input: Some(input.clone()), ..Self::default() }
    }

    pub(super) fn output(output: &Json) -> Self {
        Self { output: Some(output.clone()), ..Self::default() }
    }

    pub(super) fn error(error: &str, cause: &str) -> Self {
        Self { error: Some(error.to_owned()), cause: Some(cause.to_owned()), ..Self::default() }
    }

    pub(super) fn index(index: usize) -> Self {
        Self { index: Some(index), ..Self::default() }
    }
}

/// Keeps null as a value, other than an absent field.
mod some {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use serde_json::Value as Json;

    pub(super) fn serialize<S: Serializer>(value: &Option<Json>, to: S) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
        Json::deserialize(from).map(Some)
    }
}
