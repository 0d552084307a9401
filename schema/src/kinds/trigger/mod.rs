//! Triggers: what starts a run of an object that runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

mod schedule;
mod validate;

pub use schedule::{Missed, Schedule, ScheduleError, Ticks};
pub(super) use validate::validate;

/// Starts runs: at times of a schedule, for commits, or when it is called. Exactly one of the three.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Trigger {
    /// Unique among the triggers of the object. The ids of its runs begin with it.
    pub name: String,
    /// It starts runs at these times.
    pub schedule: Option<Schedule>,
    /// It starts a run for each applied commit of the object's repository that changed what this names.
    pub on_commit: Option<OnCommit>,
    /// It starts a run for each `POST /v1/calls/<kind>/<namespace>/<object>/<trigger>` with the token. The body is
    /// the input.
    pub on_call: Option<OnCall>,
    /// The input of its runs. When absent, a schedule gives `{"trigger": …, "time": …}`, a commit
    /// `{"trigger": …, "commit": …, "author": …, "subject": …, "paths": […]}`, and a call its body.
    pub params: Option<Json>,
}

/// Commits that changed certain paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct OnCommit {
    /// Patterns in the syntax of `.gitignore`, from the root of the repository: `/data/`, `*.csv`, `!*.tmp.csv`. Every
    /// commit when absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// HTTP calls that carry the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct OnCall {
    /// SHA-256 of the token, in hex: `printf %s "$TOKEN" | sha256sum`. Make tokens with `openssl rand -hex 32`: what
    /// people think up can be guessed from its hash.
    pub token_sha256: String,
}

/// What of the three a trigger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartedBy<'a> {
    /// Times.
    Schedule(&'a Schedule),
    /// Commits.
    Commit(&'a OnCommit),
    /// Calls.
    Call(&'a OnCall),
}

impl Trigger {
    /// What starts its runs; none of a trigger that is not valid.
    pub fn started_by(&self) -> Option<StartedBy<'_>> {
        let schedule = self.schedule.as_ref().map(StartedBy::Schedule);
        let commit = self.on_commit.as_ref().map(StartedBy::Commit);
        schedule.or(commit).or(self.on_call.as_ref().map(StartedBy::Call))
    }

    /// The id of the run that it starts for `key`. No trigger's name has a dot, so no two triggers share one.
    pub fn run_id(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }
}
