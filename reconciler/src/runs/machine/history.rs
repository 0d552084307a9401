//! The history of a run, with the names that Step Functions gives to events.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use super::limits::{HISTORY_MAX_BYTES, size};

/// All that happened in a run, the newest of it with inputs and outputs: 25,000 states may have had 256 KiB in each.
#[derive(Default)]
pub struct History {
    events: Vec<HistoryEvent>,
    bytes: usize,
    without_data: usize,
}

impl History {
    /// What a transition gave.
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

    /// The events, and how many from the first one on are without their data.
    pub fn into_events(self) -> (Vec<HistoryEvent>, usize) {
        (self.events, self.without_data)
    }
}

impl HistoryEvent {
    fn data_bytes(&self) -> usize {
        self.detail.input.iter().chain(&self.detail.output).map(size).sum()
    }
}

/// One thing that happened in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEvent {
    /// From 1, without gaps.
    pub id: u32,
    /// The event before it in its branch; 0 for the first.
    pub previous_event_id: u32,
    pub timestamp: Timestamp,
    /// `TaskStateEntered` and so on.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// The state that it is about; null for the run's own.
    pub state: Option<String>,
    /// What more there is to say.
    #[serde(flatten)]
    pub detail: HistoryDetail,
}

/// What more there is to say of an event.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryDetail {
    /// What the run, state or function was given.
    #[serde(default, with = "some")]
    pub input: Option<Json>,
    /// What it gave.
    #[serde(default, with = "some")]
    pub output: Option<Json>,
    /// Name of an error.
    pub error: Option<String>,
    /// The error in a sentence.
    pub cause: Option<String>,
    /// The function that is called.
    pub function: Option<String>,
    /// Id of the call.
    pub call: Option<u64>,
    /// Which attempt, from 1.
    pub attempt: Option<u32>,
    /// Which item of a Map, from 0.
    pub index: Option<usize>,
    /// How many items a Map has.
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

/// A value that is null is one.
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
