//! A strand: a state machine in progress. The whole workflow is one, and so is each branch of a Parallel and each
//! item of a Map that has begun. So a run is a tree of strands, each in one state.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::failure::Failure;
use super::{Call, Pending, Timer};

/// A state machine in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Strand {
    /// Present state.
    pub(super) state: String,
    /// Time of entering the state.
    pub(super) entered: Timestamp,
    /// Number of states that the run had entered with this one.
    pub(super) step: u64,
    /// Input of the state, before `inputPath`.
    pub(super) input: Json,
    /// Bytes of the input and of the item, as JSON.
    #[serde(default)]
    pub(super) bytes: usize,
    /// Number of uses of each retrier of the state in this visit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) retries: Vec<u32>,
    pub(super) phase: Phase,
    /// Last event of the strand's history.
    pub(super) last_event: u32,
    /// Item that the strand processes, in a Map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) item: Option<Item>,
}

/// An item of a Map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Item {
    pub(super) index: usize,
    pub(super) value: Json,
    /// Bytes of the value, as JSON.
    #[serde(default)]
    pub(super) bytes: usize,
}

/// Phase of a strand in its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub(super) enum Phase {
    /// Waits for nothing outside.
    Ready,
    /// Failed on entry, and waits for nothing outside.
    Broken { failure: Failure },
    /// Waits for other calls of the run to end before it makes its own.
    Queued,
    /// Waits for a function.
    Calling { call: Call, timeout: Option<Timer>, heartbeat: Option<Timer> },
    /// Waits for a time.
    Waiting { timer: Timer },
    /// Waits for the time of a retry.
    Retrying { timer: Timer },
    /// Waits for its branches or items.
    Inside { branches: Vec<Branch>, bounds: MapLimits },
    /// The run is over.
    Over,
}

/// Limits of a Map, as they were when it was entered. Those of a Parallel are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MapLimits {
    pub(super) is_map: bool,
    /// Maximum number of items at the same time.
    pub(super) concurrency: u32,
    /// Items that may fail, as a number and as a percentage; none may when both are 0.
    pub(super) failures: u32,
    pub(super) failure_percentage: u32,
}

/// A branch of a Parallel or an item of a Map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase")]
pub(super) enum Branch {
    /// Not begun, because as many run at the same time as may.
    Waiting,
    /// In progress.
    Running { strand: Box<Strand> },
    /// Ended successfully.
    Done {
        output: Json,
        /// Bytes of the output, as JSON.
        #[serde(default)]
        bytes: usize,
    },
    /// Failed; the state may tolerate it.
    Failed { failure: Failure },
}

/// Work in progress in strands, and the size of their data.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    /// Strands in progress.
    pub(super) strands: usize,
    /// Items of Maps that have not begun.
    pub(super) waiting: usize,
    /// Calls in progress.
    pub(super) calls: usize,
    /// Tasks that wait to make their calls.
    pub(super) queued: usize,
    /// Bytes of inputs, items, outputs and failures, as JSON. Excludes the payloads of calls: there are so few that
    /// they take less.
    pub(super) bytes: usize,
}

impl Load {
    /// Returns the load of a strand and of all inside it.
    pub(super) fn of(strand: &Strand) -> Self {
        let mut load = Self::default();
        load.add_strand(strand);
        load
    }

    fn add_strand(&mut self, strand: &Strand) {
        self.strands += 1;
        self.bytes += strand.bytes;
        match &strand.phase {
            Phase::Calling { .. } => self.calls += 1,
            Phase::Queued => self.queued += 1,
            Phase::Inside { branches, .. } => branches.iter().for_each(|branch| self.add(branch)),
            _ => {}
        }
    }

    /// Adds the load of a branch.
    pub(super) fn add(&mut self, branch: &Branch) {
        match branch {
            Branch::Waiting => self.waiting += 1,
            Branch::Running { strand } => self.add_strand(strand),
            Branch::Done { bytes, .. } => self.bytes += bytes,
            Branch::Failed { failure } => self.bytes += failure.error.len() + failure.cause.len(),
        }
    }

    /// Subtracts the load of a branch.
    pub(super) fn remove(&mut self, branch: &Branch) {
        let mut gone = Self::default();
        gone.add(branch);
        self.strands = self.strands.saturating_sub(gone.strands);
        self.waiting = self.waiting.saturating_sub(gone.waiting);
        self.calls = self.calls.saturating_sub(gone.calls);
        self.queued = self.queued.saturating_sub(gone.queued);
        self.bytes = self.bytes.saturating_sub(gone.bytes);
    }
}

impl Strand {
    /// Creates a strand that is in no state yet.
    pub(super) fn new(at: Timestamp, last_event: u32, item: Option<Item>) -> Self {
        Self {
            state: String::new(),
            entered: at,
            step: 0,
            input: Json::Null,
            bytes: 0,
            retries: Vec::new(),
            phase: Phase::Ready,
            last_event,
            item,
        }
    }

    /// Returns the number of retries of the state in this visit.
    pub(super) fn retry_count(&self) -> u32 {
        self.retries.iter().sum()
    }

    /// Adds the actions that the strand waits for.
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
            Phase::Queued | Phase::Over => {}
        }
    }

    /// Adds the steps of Tasks that wait to make their calls.
    pub(super) fn queued(&self, steps: &mut Vec<u64>) {
        match &self.phase {
            Phase::Queued => steps.push(self.step),
            Phase::Inside { branches, .. } => {
                for branch in branches {
                    if let Branch::Running { strand } = branch {
                        strand.queued(steps);
                    }
                }
            }
            _ => {}
        }
    }
}
