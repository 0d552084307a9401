//! Workflow: a state machine over functions.
//!
//! Fields have the semantics of the Amazon States Language with JSONPath; their names are ours, in lower camel
//! case. A table of the manifest loader (`manifest/states_language.rs`) lists the parts of the language that are
//! not supported, with alternatives; `dialect/` reads other spellings.

mod descriptor;
mod dialect;
mod intrinsic;
mod path;
mod rule;
mod state;
mod validate;

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use crate::codec::content_hash;
use crate::kinds::trigger::Trigger;
use crate::violation::{OwnedStep, Path};

pub use dialect::function_from_resource;
pub(crate) use dialect::{SPELLINGS, STATES_LANGUAGE_KEYS, Spelling};
pub use intrinsic::{
    Argument, Expression, ExpressionError, INTRINSIC_NESTING_MAX, Intrinsic, IntrinsicCall, unescaped,
};
pub use path::{JsonPath, NullablePath, PathError, PathRoot, Segment};
pub use rule::{Operand, Operator};
pub use rule::{Rule, timestamp};
pub use state::{Catcher, JitterStrategy, Retrier};
pub use state::{
    ChoiceState, FailState, Machine, MachineRef, MapState, ParallelState, PassState, State, SucceedState,
    TaskState, WaitState,
};

/// Maximum of seconds, attempts and similar fields: the language's own limit.
pub const COUNT_MAX: u32 = 99_999_999;

/// Maximum length of a state's name in characters: the language's own limit.
pub const STATE_NAME_MAX_CHARS: usize = 80;

/// Name of the only state of a run that a function's trigger starts.
const CALL_STATE: &str = "call";

/// Maximum nesting of machines (in branches and maps), and of rules in `and`, `or`, `not`. People write two levels;
/// each costs four levels of YAML, of which there are [`crate::manifest::limits::DEPTH_MAX`].
pub const NESTING_MAX: usize = 8;

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// A state machine and the input of its runs.
pub struct WorkflowSpec {
    /// Comment for people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Path of a file of the repository, from its root, that holds the state machine in the Amazon States Language,
    /// as JSON or YAML. Replaces `startAt` and `states`, which are filled in from it.
    pub definition_path: Option<String>,
    /// Name of the state in which a run starts.
    pub start_at: String,
    /// States by name.
    pub states: BTreeMap<String, State>,
    /// Input of the run that a push starts, once for each change of this spec. No run is started if absent.
    #[serde(default, deserialize_with = "path::written")]
    pub params: Option<Json>,
    /// Seconds after which a run ends as `TimedOut`, with the error `States.Timeout`; defaults to 24 hours.
    #[schemars(range(min = 1, max = 99_999_999))]
    pub timeout_seconds: Option<u32>,
    /// Seconds for which a run is kept after its end; defaults to 7 days. A change starts no run.
    #[schemars(range(min = 0, max = 99_999_999))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// Maximum number of finished runs to keep, the newest first; defaults to 1000. A change starts no run.
    #[schemars(range(min = 0, max = 10_000))]
    pub runs_history_limit: Option<u32>,
    /// Ids of runs to cancel. A change starts no run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel: Vec<String>,
    /// Triggers that start runs in addition to pushes and `minik8s run`. A change starts no run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Trigger>,
}

impl WorkflowSpec {
    /// Returns the hash of everything that defines a run: if it changes, a push starts a run. Includes the
    /// definition, but not the path of its file.
    pub fn run_hash(&self) -> String {
        content_hash(&Self {
            cancel: Vec::new(),
            triggers: Vec::new(),
            comment: None,
            ttl_seconds_after_finished: None,
            runs_history_limit: None,
            definition_path: None,
            ..self.clone()
        })
    }

    /// True if the state machine is in another file that has not been read yet.
    pub fn is_undefined(&self) -> bool {
        self.definition_path.is_some() && self.states.is_empty()
    }

    /// Creates a workflow that calls `function` once, with the run's input.
    pub fn for_function(function: &str) -> Self {
        let call = TaskState { function: function.to_owned(), end: true, ..TaskState::default() };
        let states = BTreeMap::from([(CALL_STATE.to_owned(), State::Task(call))]);
        Self { start_at: CALL_STATE.to_owned(), states, ..Self::default() }
    }

    /// Returns the outermost machine.
    pub fn machine(&self) -> MachineRef<'_> {
        MachineRef { start_at: &self.start_at, states: &self.states }
    }

    /// Returns every function that the workflow calls, including in branches and maps, with the path of the field
    /// that names it. `namespace/name` is a function of that namespace, any other name one of the workflow's own.
    pub fn functions(&self) -> Vec<(Vec<OwnedStep>, &str)> {
        let mut found = Vec::new();
        collect_functions(self.machine(), &Path::ROOT.field("spec"), &mut found);
        found
    }
}

fn collect_functions<'a>(machine: MachineRef<'a>, at: &Path<'_>, found: &mut Vec<(Vec<OwnedStep>, &'a str)>) {
    let states = at.field("states");
    for (name, state) in machine.states {
        let here = states.field(name);
        match state {
            State::Task(task) => found.push((here.field("function").steps(), task.function.as_str())),
            State::Parallel(parallel) => {
                let branches = here.field("branches");
                for (index, branch) in parallel.branches.iter().enumerate() {
                    collect_functions(branch.as_ref(), &branches.index(index), found);
                }
            }
            State::Map(map) => {
                collect_functions(map.item_processor.as_ref(), &here.field("itemProcessor"), found);
            }
            State::Choice(_) | State::Pass(_) | State::Wait(_) | State::Succeed(_) | State::Fail(_) => {}
        }
    }
}

// Summaries of a workflow's runs.

/// Summary of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Id of the run.
    pub id: String,
    /// Current phase.
    pub phase: RunPhase,
    /// Start time.
    pub started_at: Timestamp,
    /// End time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Current state, or the last one.
    pub state: String,
    /// Name of the error that ended the run, for example `States.Timeout`; empty without an error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Description of the error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
}

/// Phase of a run, in the terms of Step Functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunPhase {
    /// Running in some state.
    Running,
    /// Ended in a Succeed state, or in a state with `end`.
    Succeeded,
    /// Ended by an error that nothing caught, or in a Fail state.
    Failed,
    /// Ended by its time limit.
    TimedOut,
    /// Ended by a person, or because its workflow was removed.
    Aborted,
}
