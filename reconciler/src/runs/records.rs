//! What lies below `/minik8s-runs/`. Only reconcilers read and write it.

use std::fmt;

use jiff::Timestamp;
use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::workflow::{RunPhase, RunSummary, WorkflowSpec};
use schema::meta::{NamespacedName, ObjectRef};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use super::machine::Event;

/// Values of more bytes lie in parts of their own.
pub(super) const INLINE_MAX_BYTES: usize = 32 * 1024;
/// Largest part of such a value.
pub(super) const PART_MAX_BYTES: usize = 48 * 1024;
/// Largest input of a run, and output of a state: that of Step Functions.
pub(super) const PAYLOAD_MAX_BYTES: usize = 256 * 1024;
/// A run fails after this many tries that added no entry to its journal.
pub(super) const TRIES_MAX: u32 = 5;
/// So much of a cause is kept beside a run's end.
const CAUSE_SHOWN_CHARS: usize = 1_000;

/// Before the name of a function in place of a workflow's, which has no colon.
const OF_FUNCTION: &str = "function:";

/// Names a run: its workflow, and its id among the workflow's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    pub workflow: NamespacedName,
    pub run: String,
}

impl RunId {
    /// A run of a workflow.
    pub fn new(workflow: NamespacedName, run: impl Into<String>) -> Self {
        Self { workflow, run: run.into() }
    }

    /// A run of a workflow, or of a function, which is of no workflow.
    pub fn of_object(object: &ObjectRef, run: impl Into<String>) -> Self {
        let name = match object.kind {
            Kind::Function => format!("{OF_FUNCTION}{}", object.name),
            _ => object.name.clone(),
        };
        Self::new(NamespacedName::new(&object.namespace, name), run)
    }

    /// The function that it is of, if it is of one.
    pub(super) fn function(workflow: &NamespacedName) -> Option<&str> {
        workflow.name.strip_prefix(OF_FUNCTION)
    }

    pub(super) fn head(&self) -> Key {
        Key::RunHead(self.workflow.clone(), self.run.clone())
    }

    pub(super) fn entries(&self, first: u64) -> Key {
        Key::RunEntries(self.workflow.clone(), self.run.clone(), first)
    }

    pub(super) fn request(&self) -> Key {
        Key::RunRequest(self.workflow.clone(), self.run.clone())
    }

    pub(super) fn input(&self, part: u64) -> Key {
        Key::RunInput(self.workflow.clone(), self.run.clone(), part)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.workflow, self.run)
    }
}

/// Why a run began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "by")]
pub enum Origin {
    /// A push of the workflow with params, of this generation.
    Push { generation: u64 },
    /// `minik8s run` or the API, taken by the reconciler of this name.
    Request { reconciler: String },
    /// A call with a trigger's token, taken by the reconciler of this name.
    Call { trigger: String, reconciler: String },
    /// A commit, by its full id, that changed paths of a trigger.
    Commit { trigger: String, commit: String },
    /// A tick of a schedule. `missed` ticks before it have no run.
    Schedule { trigger: String, tick: Timestamp, missed: u32 },
}

impl Origin {
    /// The trigger that it is asked for by, and the commit that this is for.
    pub(super) fn asking_trigger(&self) -> Option<(&str, Option<&str>)> {
        match self {
            Self::Call { trigger, .. } => Some((trigger, None)),
            Self::Commit { trigger, commit } => Some((trigger, Some(commit))),
            Self::Push { .. } | Self::Request { .. } | Self::Schedule { .. } => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Push { generation } => write!(f, "the push of generation {generation}"),
            Self::Request { reconciler } => write!(f, "a request to {reconciler}"),
            Self::Call { trigger, reconciler } => write!(f, "trigger {trigger} by a call to {reconciler}"),
            Self::Commit { trigger, commit } => write!(f, "trigger {trigger} of commit {commit:.12}"),
            Self::Schedule { trigger, tick, missed: 0 } => write!(f, "trigger {trigger} of {tick}"),
            Self::Schedule { trigger, tick, missed } => {
                write!(f, "trigger {trigger} of {tick}; {missed} before it were missed")
            }
        }
    }
}

/// `requests/<ns>/<workflow>/<run>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRequest {
    /// When it was asked for.
    pub asked_at: Timestamp,
    /// Who asks.
    pub origin: Origin,
    pub input: Stored,
}

/// A value, or where it lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stored {
    /// The value.
    Inline(Json),
    /// It lies in parts.
    Parts(Parts),
}

/// A value in parts of its JSON text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parts {
    /// SHA-256 of the text, in hex.
    pub digest: String,
    pub count: u64,
}

/// How often reconcilers set to work on a run, and may have ended by that, since it last got further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tries {
    /// Number of the entry of its journal that was to be written next.
    pub entry: u64,
    pub count: u32,
}

/// `heads/<ns>/<workflow>/<run>`: written when the run begins and when it ends, and when it is taken up again.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunHead {
    /// Hash of its definition.
    pub definition: String,
    pub origin: Origin,
    pub started_at: Timestamp,
    pub phase: RunPhase,
    pub finished_at: Option<Timestamp>,
    /// The state that it ended in; before its end the one that it began with.
    pub state: String,
    /// States that it went through, once it has ended.
    #[serde(default)]
    pub steps: u32,
    /// Name of the error that ended it; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The error in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// None while all is well.
    pub tries: Option<Tries>,
}

impl RunHead {
    /// That of a run of this definition, at its beginning.
    pub fn begun(spec: &WorkflowSpec, definition: String, origin: Origin, at: Timestamp) -> Self {
        Self {
            definition,
            origin,
            started_at: at,
            phase: RunPhase::Running,
            finished_at: None,
            state: spec.start_at.clone(),
            steps: 0,
            error: String::new(),
            cause: String::new(),
            tries: None,
        }
    }

    /// The next try to work on it, if its journal goes on at this entry.
    ///
    /// # Errors
    /// Why the run fails: it has had [`TRIES_MAX`] tries at this entry.
    pub(super) fn next_try(&self, entry: u64) -> Result<Tries, String> {
        let tried = self.tries.filter(|tries| tries.entry == entry).map_or(0, |tries| tries.count);
        if tried >= TRIES_MAX {
            return Err(format!(
                "{tried} tries to go on with the run failed before entry {entry} of its journal"
            ));
        }
        Ok(Tries { entry, count: tried + 1 })
    }

    /// The run in short, under this id.
    pub fn summary(&self, id: &str) -> RunSummary {
        RunSummary {
            id: id.to_owned(),
            phase: self.phase,
            started_at: self.started_at,
            finished_at: self.finished_at,
            state: self.state.clone(),
            error: self.error.clone(),
            cause: self.cause.clone(),
        }
    }

    /// It has not ended.
    pub fn is_running(&self) -> bool {
        self.phase == RunPhase::Running
    }

    pub(super) fn set_error(&mut self, error: &str, cause: &str) {
        self.error = error.chars().take(CAUSE_SHOWN_CHARS).collect();
        self.cause = cause.chars().take(CAUSE_SHOWN_CHARS).collect();
    }
}

/// `journal/<ns>/<workflow>/<run>/<seq>`: the beginning at 0, then what happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum JournalPart {
    /// What the run was begun with.
    Begun { input: Stored },
    /// What happened, in order.
    Entries(Vec<Entry>),
}

/// One thing that happened.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub at: Timestamp,
    /// What. The output of an answer is null where it lies in parts.
    pub event: Event,
    /// Where the output of the answer lies.
    pub output: Option<Parts>,
    /// The activation id of the call that it is the answer of: its lines in the function's log.
    pub activation: Option<String>,
}
