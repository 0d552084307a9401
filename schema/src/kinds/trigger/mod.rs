//! Triggers: what starts a run of an object that runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

mod schedule;
mod validate;

pub use schedule::{Missed, Schedule, ScheduleError, Ticks};
pub(super) use validate::validate;

/// Starts runs at times of its schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Trigger {
    /// Unique among the triggers of the object. The ids of its runs begin with it.
    pub name: String,
    /// When it starts runs.
    pub schedule: Schedule,
    /// The input of its runs; `{"trigger": …, "time": …}`, with its name and the time of the schedule,
    /// when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Json>,
}
