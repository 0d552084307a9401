//! Workflow: a state machine over functions.
//!
//! The meaning of every field is that of the Amazon States Language with JSONPath; names are ours, in
//! lower camel case. What of the language is not here, and what to do instead, is a table of the
//! manifest loader (`manifest/states_language.rs`); other spellings are read by `dialect/`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use crate::codec::content_hash;
use crate::kinds::trigger::Trigger;
use crate::violation::{OwnedStep, Path};

mod defaults;
mod descriptor;
mod dialect;
mod handler;
mod intrinsic;
mod operator;
mod path;
mod rule;
mod state;
mod status;
mod validate;

pub use dialect::function_of_resource;
pub(crate) use dialect::{SPELLINGS, STATES_LANGUAGE_KEYS, Spelling};
pub use handler::{Catcher, JitterStrategy, Retrier};
pub use intrinsic::{
    Argument, Expression, ExpressionError, INTRINSIC_NESTING_MAX, Intrinsic, IntrinsicCall, unescaped,
};
pub use operator::{Operand, Operator};
pub use path::{JsonPath, NullablePath, PathError, PathRoot, Segment};
pub use rule::{Rule, timestamp};
pub use state::{
    ChoiceState, FailState, Machine, MachineRef, MapState, ParallelState, PassState, State, SucceedState,
    TaskState, WaitState,
};
pub use status::{RunPhase, RunSummary};

/// Most seconds, attempts and so on that a field takes: the language's own bound.
pub const COUNT_MAX: u32 = 99_999_999;

/// Longest name of a state, in characters: the language's own bound.
pub const STATE_NAME_MAX_CHARS: usize = 80;

/// The one state of a run that a function's trigger starts.
const CALL_STATE: &str = "call";

/// How deep machines may lie in each other (in branches and maps), and rules in `and`, `or`, `not`.
/// People write two; each level costs four levels of YAML, of which there are
/// [`crate::manifest::limits::DEPTH_MAX`].
pub const NESTING_MAX: usize = 8;

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
/// The state machine, and what a push runs it with.
pub struct WorkflowSpec {
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// Path of a file of the repository, from its root, that holds the state machine in the Amazon States Language, as
    /// JSON or YAML; in place of `startAt` and `states`, which it fills in.
    pub definition_path: Option<String>,
    /// Name of the state that a run begins with.
    pub start_at: String,
    /// The states by name.
    pub states: BTreeMap<String, State>,
    /// The input of the run that a push starts, once for each change of this spec. No run is started
    /// when absent.
    #[serde(default, deserialize_with = "path::written")]
    pub params: Option<Json>,
    /// Seconds after which a run ends as `TimedOut`, with the error `States.Timeout`; 24 hours when absent.
    #[schemars(range(min = 1, max = 99_999_999))]
    pub timeout_seconds: Option<u32>,
    /// Seconds for which a run is kept after its end; 7 days when absent. To change it starts no run.
    #[schemars(range(min = 0, max = 99_999_999))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// Most runs that are kept after their end, the newest of them; 1000 when absent. To change it starts no run.
    #[schemars(range(min = 0, max = 10_000))]
    pub runs_history_limit: Option<u32>,
    /// Ids of runs that are to end. It starts none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel: Vec<String>,
    /// What starts runs beside pushes and `minik8s run`. To change one starts none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Trigger>,
}

impl WorkflowSpec {
    /// The hash of all that a run is made of: another one means that a push starts a run. The definition counts, and
    /// not the path of its file.
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

    /// Its state machine is in another file, which was not read yet.
    pub fn is_undefined(&self) -> bool {
        self.definition_path.is_some() && self.states.is_empty()
    }

    /// What calls this function once, with the run's input.
    pub fn of_function(function: &str) -> Self {
        let call = TaskState { function: function.to_owned(), end: true, ..TaskState::default() };
        let states = BTreeMap::from([(CALL_STATE.to_owned(), State::Task(call))]);
        Self { start_at: CALL_STATE.to_owned(), states, ..Self::default() }
    }

    /// The outermost states.
    pub fn machine(&self) -> MachineRef<'_> {
        MachineRef { start_at: &self.start_at, states: &self.states }
    }

    /// Every function that it calls, also in branches and maps, by the path of the field that names it.
    /// `namespace/name` is of that namespace, any other of the workflow's own.
    pub fn functions(&self) -> Vec<(Vec<OwnedStep>, &str)> {
        let mut found = Vec::new();
        functions_of(self.machine(), &Path::ROOT.field("spec"), &mut found);
        found
    }
}

fn functions_of<'a>(machine: MachineRef<'a>, at: &Path<'_>, found: &mut Vec<(Vec<OwnedStep>, &'a str)>) {
    let states = at.field("states");
    for (name, state) in machine.states {
        let here = states.field(name);
        match state {
            State::Task(task) => found.push((here.field("function").steps(), task.function.as_str())),
            State::Parallel(parallel) => {
                let branches = here.field("branches");
                for (index, branch) in parallel.branches.iter().enumerate() {
                    functions_of(branch.as_ref(), &branches.index(index), found);
                }
            }
            State::Map(map) => {
                functions_of(map.item_processor.as_ref(), &here.field("itemProcessor"), found);
            }
            State::Choice(_) | State::Pass(_) | State::Wait(_) | State::Succeed(_) | State::Fail(_) => {}
        }
    }
}
