//! `requests/<id>`, webhooks and `minik8s sync`, and `answers/<id>`.
//!
//! The reconciler that takes the request writes it down; the leading one answers once it has looked at the
//! repository after it. Both keys are on leases.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;

/// Requests of webhooks that are kept; older ones are removed with the next write.
pub const WEBHOOK_REQUESTS_MAX: usize = 1_000;

/// Requests of `minik8s sync` that are kept, beside those of webhooks: who may ask for a look can ask
/// often, and must not push out what distinguishes a replayed webhook from a new one.
pub const CLI_REQUESTS_MAX: usize = 50;

/// Longest id of a request, in bytes.
pub const REQUEST_ID_MAX: usize = 128;

/// Who asks for a look at a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// GitHub.
    GitHub,
    /// GitLab.
    GitLab,
    /// Gitea.
    Gitea,
    /// Forgejo.
    Forgejo,
    /// Gogs.
    Gogs,
    /// Any sender that signs with `X-Signature`.
    Generic,
    /// `minik8s sync`.
    Cli,
}

impl Provider {
    /// As a request holds it.
    pub fn as_str(self) -> &'static str {
        match self {
            Provider::GitHub => "github",
            Provider::GitLab => "gitlab",
            Provider::Gitea => "gitea",
            Provider::Forgejo => "forgejo",
            Provider::Gogs => "gogs",
            Provider::Generic => "generic",
            Provider::Cli => "cli",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One request to look at a repository.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncRequest {
    /// As in the key.
    pub id: String,
    /// Who sent it.
    pub provider: Provider,
    /// What it says has happened, in the provider's word: `push`.
    pub event: String,
    /// Name of the source that it is for.
    pub source: String,
    /// The repository that it names.
    pub repository: Option<String>,
    /// The branch or tag that it names, in full: `refs/heads/main`.
    pub reference: Option<String>,
    /// The commit that it names. A hint: what is applied is what the repository shows.
    pub commit_hint: Option<String>,
    /// When it came first.
    pub received_at: Timestamp,
    /// When it came last, if it came again.
    pub repeated_at: Option<Timestamp>,
    /// How often it came again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repeats: u32,
    /// Address that it came from.
    pub peer: String,
    /// SHA-256 of its body in hex; empty without a body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// Name of the reconciler that took it last.
    pub by: String,
    /// What was decided when it came.
    pub outcome: RequestOutcome,
}

impl SyncRequest {
    /// When it came last.
    pub fn last_at(&self) -> Timestamp {
        self.repeated_at.unwrap_or(self.received_at)
    }
}

/// What was decided when it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum RequestOutcome {
    /// The source is looked at.
    Accepted,
    /// It is nothing that the source follows.
    Ignored {
        /// Why.
        why: String,
    },
}

/// The look at the repository that came after the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestAnswer {
    /// The revision of the request that it answers. One that comes again waits anew.
    pub request_revision: i64,
    /// When the look was over.
    pub at: Timestamp,
    /// The commit that is applied since; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_as_it_was_written_and_older_ones_need_no_new_fields() {
        let text = r#"{"id":"d1","provider":"github","event":"push","source":"main","receivedAt":"2026-01-02T03:04:05Z","peer":"192.0.2.1","by":"r0","outcome":{"state":"accepted"}}"#;
        let request: SyncRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.outcome, RequestOutcome::Accepted);
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
    }

    #[test]
    fn a_provider_is_written_as_it_is_shown() {
        for provider in [Provider::GitHub, Provider::GitLab, Provider::Forgejo, Provider::Cli] {
            assert_eq!(serde_json::to_string(&provider).unwrap(), format!("\"{provider}\""));
        }
    }
}
