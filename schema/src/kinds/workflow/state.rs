//! The states of a machine: one struct for each type, with the fields that the type may have.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use super::path::{NullablePath, written};
use super::{Catcher, Retrier, Rule};
use crate::codec::is_default;

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

/// Writes the struct of a state: `Name [groups of fields that several types have] { fields of its own }`. Each rule
/// but the last takes the first group, puts its fields below those that are there, and goes on with the others.
macro_rules! state {
    ($(#[$doc:meta])* $name:ident [onward $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// Name of the state that follows.
            pub next: Option<String>,
            /// The machine ends with this state.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            pub end: bool,
        } }
    };
    ($(#[$doc:meta])* $name:ident [input_path $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// The part of the state's input that it sees; all when absent, `{}` when null.
            #[serde(default, deserialize_with = "written")]
            pub input_path: Option<NullablePath>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [parameters $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// What it is called with instead of its input. A field `x.$` takes its value from a path or an intrinsic function.
            #[serde(default, deserialize_with = "written")]
            pub parameters: Option<Json>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [result_selector $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// What is made of the result before `resultPath`. A field `x.$` takes its value from a path of it.
            #[serde(default, deserialize_with = "written")]
            pub result_selector: Option<Json>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [result_path $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// Where in the input the result is put; in place of all of it when absent, nowhere when null.
            #[serde(default, deserialize_with = "written")]
            pub result_path: Option<NullablePath>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [output_path $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// The part of its output that goes to the next state; all when absent, `{}` when null.
            #[serde(default, deserialize_with = "written")]
            pub output_path: Option<NullablePath>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [handlers $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// When it is tried again; the first that names the error counts.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub retry: Vec<Retrier>,
            /// Where a run goes on when it fails; the first that names the error counts.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub catch: Vec<Catcher>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [] { $($field:tt)* }) => {
        #[skip_serializing_none]
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        #[schemars(deny_unknown_fields)]
        $(#[$doc])*
        pub struct $name {
            /// For people; has no effect and is not stored.
            pub comment: Option<String>,
            $($field)*
        }
    };
}

state! {
    /// Calls a function.
    TaskState [onward input_path parameters result_selector result_path output_path handlers] {
        /// Name of the Function that is called; `namespace/name` of one of another namespace.
        pub function: String,
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
}

state! {
    /// Goes on where the first rule that fits says.
    ChoiceState [input_path output_path] {
        /// The rules; the first that fits counts.
        pub choices: Vec<Rule>,
        /// The state to go to if no rule fits; without it the run fails with `States.NoChoiceMatched`.
        pub default: Option<String>,
    }
}

state! {
    /// Hands on its input, or something made of it.
    PassState [onward input_path parameters result_path output_path] {
        /// Its output, as it is; its input when absent.
        #[serde(default, deserialize_with = "written")]
        pub result: Option<Json>,
    }
}

state! {
    /// Waits: exactly one of the four ways.
    WaitState [onward input_path output_path] {
        /// How many seconds.
        #[schemars(range(max = 99_999_999))]
        pub seconds: Option<u32>,
        /// Path of the number of seconds.
        pub seconds_path: Option<String>,
        /// Until when, RFC 3339: `2030-01-31T12:00:00Z`.
        pub timestamp: Option<String>,
        /// Path of the point in time.
        pub timestamp_path: Option<String>,
    }
}

state! {
    /// Ends the machine well.
    SucceedState [input_path output_path] {}
}

state! {
    /// Ends the run with an error.
    FailState [] {
        /// Name of the error.
        pub error: Option<String>,
        /// Path of the error's name, or an intrinsic function.
        pub error_path: Option<String>,
        /// What went wrong, for people.
        pub cause: Option<String>,
        /// Path of the cause, or an intrinsic function.
        pub cause_path: Option<String>,
    }
}

state! {
    /// Runs several machines at the same time.
    ParallelState [onward input_path parameters result_selector result_path output_path handlers] {
        /// The machines that run at the same time; the result is the list of their outputs.
        pub branches: Vec<Machine>,
    }
}

state! {
    /// Runs a machine for each item of a list.
    MapState [onward input_path result_selector result_path output_path handlers] {
        /// What is done with each item.
        pub item_processor: Machine,
        /// Path of the list of items; the whole input when absent.
        pub items_path: Option<String>,
        /// What each item's machine is given instead of the item. `$$.Map.Item.Value` is the item.
        #[serde(default, deserialize_with = "written")]
        pub item_selector: Option<Json>,
        /// Most items at the same time; 40 when 0, and never more than 40.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(range(max = 99_999_999))]
        pub max_concurrency: u32,
        /// Path of that number.
        pub max_concurrency_path: Option<String>,
        /// How many items may fail. `{"Error": …, "Cause": …}` takes the place of their output.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(range(max = 99_999_999))]
        pub tolerated_failure_count: u32,
        /// Path of that number.
        pub tolerated_failure_count_path: Option<String>,
        /// How many items of a hundred may fail.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(range(max = 100))]
        pub tolerated_failure_percentage: u32,
        /// Path of that number.
        pub tolerated_failure_percentage_path: Option<String>,
    }
}
