//! The states of a machine: one struct for each type, with the fields that the type supports.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use super::Rule;
use super::path::{NullablePath, written};
use crate::codec::{is_default, one, three};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// A state machine inside a state: a branch of a Parallel, or the processor of a Map.
pub struct Machine {
    /// Comment for people; has no effect and is not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Name of the state in which the machine starts.
    pub start_at: String,
    /// States by name. They lead only to each other.
    pub states: BTreeMap<String, State>,
}

/// Reference to the machine of a workflow, a branch or a map.
#[derive(Debug, Clone, Copy)]
pub struct MachineRef<'a> {
    /// Name of the state in which the machine starts.
    pub start_at: &'a str,
    /// States by name.
    pub states: &'a BTreeMap<String, State>,
}

impl Machine {
    /// Returns a reference to the machine.
    pub fn as_ref(&self) -> MachineRef<'_> {
        MachineRef { start_at: &self.start_at, states: &self.states }
    }
}

/// A state. Its input passes through `inputPath`, `parameters` (of a Map: `itemSelector`), the work itself,
/// `resultSelector`, `resultPath` and `outputPath`, in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type")]
pub enum State {
    /// Calls a function.
    Task(TaskState),
    /// Continues with the state of the first rule that matches.
    Choice(ChoiceState),
    /// Passes on its input, or data made from it.
    Pass(PassState),
    /// Waits for a time. Exactly one of `seconds`, `secondsPath`, `timestamp` and `timestampPath` must be set.
    Wait(WaitState),
    /// Ends the machine successfully.
    Succeed(SucceedState),
    /// Ends the run with an error.
    Fail(FailState),
    /// Runs several machines in parallel.
    Parallel(ParallelState),
    /// Runs a machine for each item of a list.
    Map(MapState),
}

impl State {
    /// Returns the value of `type`.
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

    /// Returns `next` and `end` for the types that have them.
    pub fn transition(&self) -> Option<(Option<&str>, bool)> {
        match self {
            State::Task(state) => Some((state.next.as_deref(), state.end)),
            State::Pass(state) => Some((state.next.as_deref(), state.end)),
            State::Wait(state) => Some((state.next.as_deref(), state.end)),
            State::Parallel(state) => Some((state.next.as_deref(), state.end)),
            State::Map(state) => Some((state.next.as_deref(), state.end)),
            State::Choice(_) | State::Succeed(_) | State::Fail(_) => None,
        }
    }

    /// True if the machine may end in this state.
    pub fn is_terminal(&self) -> bool {
        matches!(self, State::Succeed(_) | State::Fail(_)) || self.transition().is_some_and(|(_, end)| end)
    }

    /// Returns the retriers and catchers of the state.
    pub fn handlers(&self) -> (&[Retrier], &[Catcher]) {
        match self {
            State::Task(state) => (&state.retry, &state.catch),
            State::Parallel(state) => (&state.retry, &state.catch),
            State::Map(state) => (&state.retry, &state.catch),
            _ => (&[], &[]),
        }
    }
}

/// Generates the struct of a state: `Name [groups of fields shared by several types] { own fields }`. Each rule but
/// the last takes the first group, appends its fields to the existing ones, and continues with the other groups.
macro_rules! state {
    ($(#[$doc:meta])* $name:ident [onward $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// Name of the next state.
            pub next: Option<String>,
            /// Ends the machine after this state.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            pub end: bool,
        } }
    };
    ($(#[$doc:meta])* $name:ident [input_path $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// Part of the state's input to use; the whole input if absent, `{}` if null.
            #[serde(default, deserialize_with = "written")]
            pub input_path: Option<NullablePath>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [parameters $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// Data that replaces the input. A field `x.$` takes its value from a path or an intrinsic function.
            #[serde(default, deserialize_with = "written")]
            pub parameters: Option<Json>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [result_selector $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// Data that replaces the result before `resultPath`. A field `x.$` takes its value from a path into
            /// the result.
            #[serde(default, deserialize_with = "written")]
            pub result_selector: Option<Json>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [result_path $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// Path in the input at which the result is inserted; replaces the whole input if absent, discarded if
            /// null.
            #[serde(default, deserialize_with = "written")]
            pub result_path: Option<NullablePath>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [output_path $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// Part of the output to pass to the next state; the whole output if absent, `{}` if null.
            #[serde(default, deserialize_with = "written")]
            pub output_path: Option<NullablePath>,
        } }
    };
    ($(#[$doc:meta])* $name:ident [handlers $($group:ident)*] { $($field:tt)* }) => {
        state! { $(#[$doc])* $name [$($group)*] { $($field)*
            /// Retriers for errors; the first that names the error applies.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub retry: Vec<Retrier>,
            /// Catchers for errors; the first that names the error applies.
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
            /// Comment for people; has no effect and is not stored.
            pub comment: Option<String>,
            $($field)*
        }
    };
}

state! {
    /// Calls a function.
    TaskState [onward input_path parameters result_selector result_path output_path handlers] {
        /// Name of the Function to call; `namespace/name` for another namespace.
        pub function: String,
        /// Seconds after which the state fails with `States.Timeout`; unlimited if absent.
        #[schemars(range(min = 1, max = 99_999_999))]
        pub timeout_seconds: Option<u32>,
        /// Path of the number of seconds for the timeout.
        pub timeout_seconds_path: Option<String>,
        /// Maximum number of seconds without a heartbeat; must be less than the timeout.
        #[schemars(range(min = 1, max = 99_999_999))]
        pub heartbeat_seconds: Option<u32>,
        /// Path of the number of seconds for the heartbeat.
        pub heartbeat_seconds_path: Option<String>,
    }
}

state! {
    /// Continues with the state of the first rule that matches.
    ChoiceState [input_path output_path] {
        /// Rules; the first that matches applies.
        pub choices: Vec<Rule>,
        /// State to go to if no rule matches; without it the run fails with `States.NoChoiceMatched`.
        pub default: Option<String>,
    }
}

state! {
    /// Passes on its input, or data made from it.
    PassState [onward input_path parameters result_path output_path] {
        /// Fixed output; defaults to the input.
        #[serde(default, deserialize_with = "written")]
        pub result: Option<Json>,
    }
}

state! {
    /// Waits for a time. Exactly one of `seconds`, `secondsPath`, `timestamp` and `timestampPath` must be set.
    WaitState [onward input_path output_path] {
        /// Number of seconds to wait.
        #[schemars(range(max = 99_999_999))]
        pub seconds: Option<u32>,
        /// Path of the number of seconds.
        pub seconds_path: Option<String>,
        /// Time at which the wait ends, RFC 3339: `2030-01-31T12:00:00Z`.
        pub timestamp: Option<String>,
        /// Path of the point in time.
        pub timestamp_path: Option<String>,
    }
}

state! {
    /// Ends the machine successfully.
    SucceedState [input_path output_path] {}
}

state! {
    /// Ends the run with an error.
    FailState [] {
        /// Name of the error.
        pub error: Option<String>,
        /// Path of the error's name, or an intrinsic function.
        pub error_path: Option<String>,
        /// Description of the error, for people.
        pub cause: Option<String>,
        /// Path of the cause, or an intrinsic function.
        pub cause_path: Option<String>,
    }
}

state! {
    /// Runs several machines in parallel.
    ParallelState [onward input_path parameters result_selector result_path output_path handlers] {
        /// Machines to run in parallel; the result is the list of their outputs.
        pub branches: Vec<Machine>,
    }
}

state! {
    /// Runs a machine for each item of a list.
    MapState [onward input_path result_selector result_path output_path handlers] {
        /// Machine that processes each item.
        pub item_processor: Machine,
        /// Path of the list of items; the whole input if absent.
        pub items_path: Option<String>,
        /// Input of each item's machine, instead of the item. `$$.Map.Item.Value` is the item.
        #[serde(default, deserialize_with = "written")]
        pub item_selector: Option<Json>,
        /// Maximum number of items at a time; 0 means 40, which is also the upper limit.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(range(max = 99_999_999))]
        pub max_concurrency: u32,
        /// Path of the maximum number of items at a time.
        pub max_concurrency_path: Option<String>,
        /// Number of items that may fail. `{"Error": …, "Cause": …}` replaces their output.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(range(max = 99_999_999))]
        pub tolerated_failure_count: u32,
        /// Path of the number of items that may fail.
        pub tolerated_failure_count_path: Option<String>,
        /// Percentage of items that may fail.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(range(max = 100))]
        pub tolerated_failure_percentage: u32,
        /// Path of the percentage of items that may fail.
        pub tolerated_failure_percentage_path: Option<String>,
    }
}

// Error handlers of a state: retriers first, then catchers, each in order.

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Retries a state after certain errors. Each retrier counts its own attempts, starting over each time the state is
/// entered.
pub struct Retrier {
    /// Comment for people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Names of the errors; `States.ALL` matches any.
    pub error_equals: Vec<String>,
    /// Seconds before the first retry.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 99_999_999))]
    pub interval_seconds: u32,
    /// Maximum number of retries; 0 means none.
    #[serde(default = "three")]
    #[schemars(range(max = 99_999_999))]
    pub max_attempts: u32,
    /// Factor by which each wait is longer than the previous one.
    #[serde(default = "two")]
    #[schemars(range(min = 1.0))]
    pub backoff_rate: f64,
    /// Maximum wait in seconds; unlimited if absent.
    #[schemars(range(min = 1, max = 99_999_999))]
    pub max_delay_seconds: Option<u32>,
    /// Randomization of waits, so that many runs do not retry simultaneously.
    #[serde(default)]
    pub jitter_strategy: JitterStrategy,
}

/// Randomization of the waits between attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum JitterStrategy {
    /// No randomization.
    #[default]
    None,
    /// A random wait between zero and the full one.
    Full,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// Continues a run after an error that is not retried any more.
pub struct Catcher {
    /// Comment for people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Names of the errors; `States.ALL` matches any.
    pub error_equals: Vec<String>,
    /// State to continue with.
    pub next: String,
    /// Path in the state's input at which `{"Error": …, "Cause": …}` is inserted; replaces the whole input if
    /// absent, discarded if null.
    #[serde(default, deserialize_with = "written")]
    pub result_path: Option<NullablePath>,
}

fn two() -> f64 {
    2.0
}
