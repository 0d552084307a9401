//! Records below `/minik8s-runs/`, which only reconcilers read and write.

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

/// Size above which values are stored in separate parts.
pub(super) const INLINE_MAX_BYTES: usize = 32 * 1024;
/// Maximum size of such a part.
pub(super) const PART_MAX_BYTES: usize = 48 * 1024;
/// Largest input of a run, and output of a state: the same as in Step Functions.
pub(super) const PAYLOAD_MAX_BYTES: usize = 256 * 1024;
/// Number of attempts without a new journal entry after which a run fails.
pub(super) const TRIES_MAX: u32 = 5;
/// Maximum length of an error and of its cause in a head.
const CAUSE_SHOWN_CHARS: usize = 1_000;

/// Prefix of a function's name in place of a workflow's name, which has no colon.
const OF_FUNCTION: &str = "function:";

/// Identifies a run: its workflow, and its id within the workflow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    pub workflow: NamespacedName,
    pub run: String,
}

impl RunId {
    /// Creates the id of a workflow's run.
    pub fn new(workflow: NamespacedName, run: impl Into<String>) -> Self {
        Self { workflow, run: run.into() }
    }

    /// Creates the id of a run of a workflow, or of a function that is run without a workflow.
    pub fn for_object(object: &ObjectRef, run: impl Into<String>) -> Self {
        let name = match object.kind {
            Kind::Function => format!("{OF_FUNCTION}{}", object.name),
            _ => object.name.clone(),
        };
        Self::new(NamespacedName::new(&object.namespace, name), run)
    }

    /// Returns the function that is run under this name; `None` for a workflow.
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

/// Origin of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "by")]
pub enum Origin {
    /// A push of the workflow with params, of this generation.
    Push { generation: u64 },
    /// `minik8s run` or the API, accepted by the reconciler of this name.
    Request { reconciler: String },
    /// A call with a trigger's token, accepted by the reconciler of this name.
    Call { trigger: String, reconciler: String },
    /// A commit, by its full id, that changed paths of a trigger.
    Commit { trigger: String, commit: String },
    /// A tick of a schedule. `missed` ticks before it have no run.
    Schedule { trigger: String, tick: Timestamp, missed: u32 },
}

impl Origin {
    /// Returns the trigger that started the run; `None` for other runs.
    pub(super) fn trigger(&self) -> Option<&str> {
        match self {
            Self::Call { trigger, .. } | Self::Commit { trigger, .. } | Self::Schedule { trigger, .. } => {
                Some(trigger)
            }
            Self::Push { .. } | Self::Request { .. } => None,
        }
    }

    /// Returns the trigger that requested the run, and the commit, if it was for one.
    pub(super) fn requesting_trigger(&self) -> Option<(&str, Option<&str>)> {
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

/// Request for a run, at `requests/<ns>/<workflow>/<run>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRequest {
    /// Time of the request.
    pub asked_at: Timestamp,
    pub origin: Origin,
    pub input: StoredValue,
}

/// A value, or its location.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoredValue {
    /// The value itself.
    Inline(Json),
    /// Parts with separate keys.
    Parts(ValueParts),
}

/// A value in parts of its JSON text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ValueParts {
    /// SHA-256 of the text, in hex.
    pub digest: String,
    pub count: u64,
}

/// Attempts of reconcilers to continue a run since its last progress; any of them may have ended its reconciler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempts {
    /// Number of the next journal entry at that time.
    pub entry: u64,
    pub count: u32,
}

/// Head of a run, at `heads/<ns>/<workflow>/<run>`: written when the run begins, ends or is resumed.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunHead {
    /// Hash of the definition.
    pub definition: String,
    pub origin: Origin,
    pub started_at: Timestamp,
    pub phase: RunPhase,
    pub finished_at: Option<Timestamp>,
    /// State that the run ended in; before its end the state that it began with.
    pub state: String,
    /// Number of states entered, once the run has ended.
    #[serde(default)]
    pub steps: u32,
    /// Bytes of the run in etcd, once it has ended; 0 in heads of earlier versions.
    #[serde(default)]
    pub bytes: u64,
    /// Name of the error that ended the run; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Description of the error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// Attempts without progress; `None` while all is well.
    pub tries: Option<Attempts>,
}

impl RunHead {
    /// Creates the head of a run of this definition, at its beginning.
    pub fn begun(spec: &WorkflowSpec, definition: String, origin: Origin, at: Timestamp) -> Self {
        Self {
            definition,
            origin,
            started_at: at,
            phase: RunPhase::Running,
            finished_at: None,
            state: spec.start_at.clone(),
            steps: 0,
            bytes: 0,
            error: String::new(),
            cause: String::new(),
            tries: None,
        }
    }

    /// Returns the next attempt at the run, if its journal goes on at this entry.
    ///
    /// # Errors
    /// The reason why the run fails: it has had [`TRIES_MAX`] attempts at this entry.
    pub(super) fn next_try(&self, entry: u64) -> Result<Attempts, String> {
        let tried = self.tries.filter(|tries| tries.entry == entry).map_or(0, |tries| tries.count);
        if tried >= TRIES_MAX {
            return Err(format!(
                "{tried} attempts to resume the run failed before entry {entry} of its journal"
            ));
        }
        Ok(Attempts { entry, count: tried + 1 })
    }

    /// Returns the summary of the run, under this id.
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

    pub fn is_running(&self) -> bool {
        self.phase == RunPhase::Running
    }

    pub(super) fn set_error(&mut self, error: &str, cause: &str) {
        self.error = error.chars().take(CAUSE_SHOWN_CHARS).collect();
        self.cause = cause.chars().take(CAUSE_SHOWN_CHARS).collect();
    }
}

/// Part of a journal, at `journal/<ns>/<workflow>/<run>/<seq>`: the beginning at 0, then the entries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum JournalPart {
    /// Beginning of the run, with its input.
    Begun { input: StoredValue },
    /// Entries in order.
    Entries(Vec<Entry>),
}

/// An entry of a journal.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub at: Timestamp,
    /// Event, where the output of an answer is null if it is stored in parts.
    pub event: Event,
    /// Location of the answer's output, if it is stored in parts.
    pub output: Option<ValueParts>,
    /// Activation id of the answered call, which marks its lines in the function's log.
    pub activation: Option<String>,
}
