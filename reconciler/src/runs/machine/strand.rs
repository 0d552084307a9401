//! A strand: one machine under way. The whole workflow is one, and each branch of a Parallel and each item of
//! a Map that is begun. So a run is a tree of strands, each in one state.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::failure::Failure;
use super::{Call, Pending, Timer};

/// A machine under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Strand {
    /// The state that it is in.
    pub(super) state: String,
    /// Since when.
    pub(super) entered: Timestamp,
    /// How many states the run had entered with this one.
    pub(super) step: u64,
    /// What the state was given, before `inputPath`.
    pub(super) input: Json,
    /// How often each retrier of the state was used in this visit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) retries: Vec<u32>,
    pub(super) phase: Phase,
    /// The last event of its history.
    pub(super) last_event: u32,
    /// The item that it is about, in a Map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) item: Option<Item>,
}

/// An item of a Map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Item {
    pub(super) index: usize,
    pub(super) value: Json,
}

/// How far the state is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub(super) enum Phase {
    /// Waits for nothing outside.
    Ready,
    /// Failed as it was entered, and waits for nothing outside.
    Broken { failure: Failure },
    /// Waits for a function.
    Calling { call: Call, timeout: Option<Timer>, heartbeat: Option<Timer> },
    /// Waits for a time.
    Waiting { timer: Timer },
    /// Waits for a time to try again.
    Retrying { timer: Timer },
    /// Waits for its branches or items.
    Inside { branches: Vec<Branch>, bounds: Bounds },
    /// The run is over.
    Over,
}

/// The numbers of a Map, as they were when it was entered. Those of a Parallel are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Bounds {
    pub(super) is_map: bool,
    /// Most items at the same time.
    pub(super) concurrency: u32,
    /// Items that may fail, and their part in a hundred; none may when both are 0.
    pub(super) failures: u32,
    pub(super) failure_percentage: u32,
}

/// A branch of a Parallel or an item of a Map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase")]
pub(super) enum Branch {
    /// Not begun, because there are as many at the same time as may be.
    Waiting,
    /// Under way.
    Running { strand: Box<Strand> },
    /// Ended well.
    Done { output: Json },
    /// Failed, and may.
    Failed { failure: Failure },
}

impl Strand {
    /// In no state yet.
    pub(super) fn new(at: Timestamp, last_event: u32, item: Option<Item>) -> Self {
        Self {
            state: String::new(),
            entered: at,
            step: 0,
            input: Json::Null,
            retries: Vec::new(),
            phase: Phase::Ready,
            last_event,
            item,
        }
    }

    /// How often the state was tried again in this visit.
    pub(super) fn retry_count(&self) -> u32 {
        self.retries.iter().sum()
    }

    /// Adds what it waits for.
    pub(super) fn pending<'a>(&'a self, pending: &mut Pending<'a>) {
        match &self.phase {
            Phase::Ready | Phase::Broken { .. } => pending.continues = true,
            Phase::Calling { call, timeout, heartbeat } => {
                pending.calls.push(call);
                pending.timers.extend(timeout.iter().chain(heartbeat));
                pending.heartbeats.extend(heartbeat.map(|timer| timer.id));
            }
            Phase::Waiting { timer } | Phase::Retrying { timer } => pending.timers.push(*timer),
            Phase::Inside { branches, .. } => {
                pending.continues |= branches.is_empty();
                for branch in branches {
                    if let Branch::Running { strand } = branch {
                        strand.pending(pending);
                    }
                }
            }
            Phase::Over => {}
        }
    }
}
