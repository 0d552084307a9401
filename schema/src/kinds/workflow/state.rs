//! The states of a machine: one struct for each type, with the fields that the type may have.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use super::path::{NullablePath, written};
use super::{Catcher, Retrier, Rule};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// A state machine inside a state: a branch of a Parallel, or what a Map does with each item.
pub struct Machine {
    /// For people; has no effect and is not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Name of the state that it begins with.
    pub start_at: String,
    /// The states by name. They lead to each other only.
    pub states: BTreeMap<String, State>,
}

/// The states of a workflow, a branch or a map, wherever they are written.
#[derive(Debug, Clone, Copy)]
pub struct MachineRef<'a> {
    /// Where it begins.
    pub start_at: &'a str,
    /// The states by name.
    pub states: &'a BTreeMap<String, State>,
}

impl Machine {
    /// Its states.
    pub fn as_ref(&self) -> MachineRef<'_> {
        MachineRef { start_at: &self.start_at, states: &self.states }
    }
}

/// A state. What it gets goes through `inputPath`, `parameters` (of a Map: `itemSelector`), the work
/// itself, `resultSelector`, `resultPath`, `outputPath`, in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type")]
pub enum State {
    /// Calls a function.
    Task(TaskState),
    /// Goes on where the first rule that fits says.
    Choice(ChoiceState),
    /// Hands on its input, or something made of it.
    Pass(PassState),
    /// Waits: exactly one of the four ways.
    Wait(WaitState),
    /// Ends the machine well.
    Succeed(SucceedState),
    /// Ends the run with an error.
    Fail(FailState),
    /// Runs several machines at the same time.
    Parallel(ParallelState),
    /// Runs a machine for each item of a list.
    Map(MapState),
}

impl State {
    /// The word under `type`.
    pub fn kind(&self) -> &'static str {
        match self {
            State::Task(_) => "Task",
            State::Choice(_) => "Choice",
            State::Pass(_) => "Pass",
            State::Wait(_) => "Wait",
            State::Succeed(_) => "Succeed",
            State::Fail(_) => "Fail",
            State::Parallel(_) => "Parallel",
            State::Map(_) => "Map",
        }
    }

    /// `next` and `end`, of the types that have them.
    pub fn onward(&self) -> Option<(Option<&str>, bool)> {
        match self {
            State::Task(state) => Some((state.next.as_deref(), state.end)),
            State::Pass(state) => Some((state.next.as_deref(), state.end)),
            State::Wait(state) => Some((state.next.as_deref(), state.end)),
            State::Parallel(state) => Some((state.next.as_deref(), state.end)),
            State::Map(state) => Some((state.next.as_deref(), state.end)),
            State::Choice(_) | State::Succeed(_) | State::Fail(_) => None,
        }
    }

    /// Whether the machine may end here.
    pub fn is_terminal(&self) -> bool {
        matches!(self, State::Succeed(_) | State::Fail(_)) || self.onward().is_some_and(|(_, end)| end)
    }

    /// What tries it again, and what goes on when it fails.
    pub fn handlers(&self) -> (&[Retrier], &[Catcher]) {
        match self {
            State::Task(state) => (&state.retry, &state.catch),
            State::Parallel(state) => (&state.retry, &state.catch),
            State::Map(state) => (&state.retry, &state.catch),
            _ => (&[], &[]),
        }
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Calls a function.
pub struct TaskState {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Name of the Function that is called; `namespace/name` of one of another namespace.
    pub function: String,
    /// Name of the state that follows.
    pub next: Option<String>,
    /// The machine ends with this state.
    #[serde(default, skip_serializing_if = "is_false")]
    pub end: bool,
    /// The part of the state's input that it sees; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub input_path: Option<NullablePath>,
    /// What it is called with instead of its input. A field `x.$` takes its value from a path or an intrinsic function.
    #[serde(default, deserialize_with = "written")]
    pub parameters: Option<Json>,
    /// What is made of the result before `resultPath`. A field `x.$` takes its value from a path of it.
    #[serde(default, deserialize_with = "written")]
    pub result_selector: Option<Json>,
    /// Where in the input the result is put; in place of all of it when absent, nowhere when null.
    #[serde(default, deserialize_with = "written")]
    pub result_path: Option<NullablePath>,
    /// The part of its output that goes to the next state; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub output_path: Option<NullablePath>,
    /// When it is tried again; the first that names the error counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry: Vec<Retrier>,
    /// Where a run goes on when it fails; the first that names the error counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub catch: Vec<Catcher>,
    /// Seconds after which it fails with `States.Timeout`; no limit when absent.
    #[schemars(range(min = 1, max = 99_999_999))]
    pub timeout_seconds: Option<u32>,
    /// Path of the seconds.
    pub timeout_seconds_path: Option<String>,
    /// Longest time in seconds without a sign of life; must be less than the timeout.
    #[schemars(range(min = 1, max = 99_999_999))]
    pub heartbeat_seconds: Option<u32>,
    /// Path of the seconds.
    pub heartbeat_seconds_path: Option<String>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Goes on where the first rule that fits says.
pub struct ChoiceState {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// The rules; the first that fits counts.
    pub choices: Vec<Rule>,
    /// The state to go to if no rule fits; without it the run fails with `States.NoChoiceMatched`.
    pub default: Option<String>,
    /// The part of the state's input that it sees; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub input_path: Option<NullablePath>,
    /// The part of its output that goes to the next state; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub output_path: Option<NullablePath>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Hands on its input, or something made of it.
pub struct PassState {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Name of the state that follows.
    pub next: Option<String>,
    /// The machine ends with this state.
    #[serde(default, skip_serializing_if = "is_false")]
    pub end: bool,
    /// Its output, as it is; its input when absent.
    #[serde(default, deserialize_with = "written")]
    pub result: Option<Json>,
    /// The part of the state's input that it sees; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub input_path: Option<NullablePath>,
    /// What it is called with instead of its input. A field `x.$` takes its value from a path or an intrinsic function.
    #[serde(default, deserialize_with = "written")]
    pub parameters: Option<Json>,
    /// Where in the input the result is put; in place of all of it when absent, nowhere when null.
    #[serde(default, deserialize_with = "written")]
    pub result_path: Option<NullablePath>,
    /// The part of its output that goes to the next state; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub output_path: Option<NullablePath>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Waits: exactly one of the four ways.
pub struct WaitState {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Name of the state that follows.
    pub next: Option<String>,
    /// The machine ends with this state.
    #[serde(default, skip_serializing_if = "is_false")]
    pub end: bool,
    /// How many seconds.
    #[schemars(range(max = 99_999_999))]
    pub seconds: Option<u32>,
    /// Path of the number of seconds.
    pub seconds_path: Option<String>,
    /// Until when, RFC 3339: `2030-01-31T12:00:00Z`.
    pub timestamp: Option<String>,
    /// Path of the point in time.
    pub timestamp_path: Option<String>,
    /// The part of the state's input that it sees; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub input_path: Option<NullablePath>,
    /// The part of its output that goes to the next state; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub output_path: Option<NullablePath>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Ends the machine well.
pub struct SucceedState {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// The part of the state's input that it sees; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub input_path: Option<NullablePath>,
    /// The part of its output that goes to the next state; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub output_path: Option<NullablePath>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Ends the run with an error.
pub struct FailState {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Name of the error.
    pub error: Option<String>,
    /// Path of the error's name, or an intrinsic function.
    pub error_path: Option<String>,
    /// What went wrong, for people.
    pub cause: Option<String>,
    /// Path of the cause, or an intrinsic function.
    pub cause_path: Option<String>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Runs several machines at the same time.
pub struct ParallelState {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// The machines that run at the same time; the result is the list of their outputs.
    pub branches: Vec<Machine>,
    /// Name of the state that follows.
    pub next: Option<String>,
    /// The machine ends with this state.
    #[serde(default, skip_serializing_if = "is_false")]
    pub end: bool,
    /// The part of the state's input that it sees; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub input_path: Option<NullablePath>,
    /// What it is called with instead of its input. A field `x.$` takes its value from a path or an intrinsic function.
    #[serde(default, deserialize_with = "written")]
    pub parameters: Option<Json>,
    /// What is made of the result before `resultPath`. A field `x.$` takes its value from a path of it.
    #[serde(default, deserialize_with = "written")]
    pub result_selector: Option<Json>,
    /// Where in the input the result is put; in place of all of it when absent, nowhere when null.
    #[serde(default, deserialize_with = "written")]
    pub result_path: Option<NullablePath>,
    /// The part of its output that goes to the next state; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub output_path: Option<NullablePath>,
    /// When it is tried again; the first that names the error counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry: Vec<Retrier>,
    /// Where a run goes on when it fails; the first that names the error counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub catch: Vec<Catcher>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Runs a machine for each item of a list.
pub struct MapState {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// What is done with each item.
    pub item_processor: Machine,
    /// Path of the list of items; the whole input when absent.
    pub items_path: Option<String>,
    /// What each item's machine is given instead of the item. `$$.Map.Item.Value` is the item.
    #[serde(default, deserialize_with = "written")]
    pub item_selector: Option<Json>,
    /// Most items at the same time; 40 when 0, and never more than 40.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 99_999_999))]
    pub max_concurrency: u32,
    /// Path of that number.
    pub max_concurrency_path: Option<String>,
    /// How many items may fail. `{"Error": …, "Cause": …}` takes the place of their output.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 99_999_999))]
    pub tolerated_failure_count: u32,
    /// Path of that number.
    pub tolerated_failure_count_path: Option<String>,
    /// How many items of a hundred may fail.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 100))]
    pub tolerated_failure_percentage: u32,
    /// Path of that number.
    pub tolerated_failure_percentage_path: Option<String>,
    /// Name of the state that follows.
    pub next: Option<String>,
    /// The machine ends with this state.
    #[serde(default, skip_serializing_if = "is_false")]
    pub end: bool,
    /// The part of the state's input that it sees; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub input_path: Option<NullablePath>,
    /// What is made of the result before `resultPath`. A field `x.$` takes its value from a path of it.
    #[serde(default, deserialize_with = "written")]
    pub result_selector: Option<Json>,
    /// Where in the input the result is put; in place of all of it when absent, nowhere when null.
    #[serde(default, deserialize_with = "written")]
    pub result_path: Option<NullablePath>,
    /// The part of its output that goes to the next state; all when absent, `{}` when null.
    #[serde(default, deserialize_with = "written")]
    pub output_path: Option<NullablePath>,
    /// When it is tried again; the first that names the error counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry: Vec<Retrier>,
    /// Where a run goes on when it fails; the first that names the error counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub catch: Vec<Catcher>,
}

// serde hands a reference to `skip_serializing_if`.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}
