//! Triggers, which start runs of workflows and functions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

mod schedule;
mod validate;

pub use schedule::{Missed, Schedule, ScheduleError, Ticks};
pub(super) use validate::validate;

/// Starts runs on a schedule, for commits, or on calls. Exactly one of the three must be set.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Trigger {
    /// Name, unique among the triggers of the object. Ids of its runs begin with it.
    pub name: String,
    /// Starts runs at the times of a schedule.
    pub schedule: Option<Schedule>,
    /// Starts a run for each applied commit of the object's repository that changed matching paths.
    pub on_commit: Option<OnCommit>,
    /// Starts a run for each `POST /v1/calls/<kind>/<namespace>/<object>/<trigger>` with the token. The body is the
    /// input.
    pub on_call: Option<OnCall>,
    /// Input of the runs. By default a schedule passes `{"trigger": …, "time": …}`, a commit
    /// `{"trigger": …, "commit": …, "author": …, "subject": …, "paths": […]}`, and a call its body.
    pub params: Option<Json>,
}

/// Commits that changed certain paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct OnCommit {
    /// Patterns in the syntax of `.gitignore`, from the root of the repository: `/data/`, `*.csv`, `!*.tmp.csv`.
    /// Every commit matches if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// HTTP calls that carry the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct OnCall {
    /// SHA-256 of the token, in hex: `printf %s "$TOKEN" | sha256sum`. Generate tokens with `openssl rand -hex 32`:
    /// a token that a person makes up can be guessed from its hash.
    pub token_sha256: String,
}

/// Event that starts the runs of a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartedBy<'a> {
    /// Times of a schedule.
    Schedule(&'a Schedule),
    /// Applied commits.
    Commit(&'a OnCommit),
    /// HTTP calls.
    Call(&'a OnCall),
}

impl Trigger {
    /// Returns the event that starts the runs; `None` if the trigger is not valid.
    pub fn started_by(&self) -> Option<StartedBy<'_>> {
        let schedule = self.schedule.as_ref().map(StartedBy::Schedule);
        let commit = self.on_commit.as_ref().map(StartedBy::Commit);
        schedule.or(commit).or(self.on_call.as_ref().map(StartedBy::Call))
    }

    /// Returns the id of the run that the trigger starts for `key`. Trigger names have no dots, so no two triggers
    /// share an id.
    pub fn run_id(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }
}
