//! `requests/<id>`, of webhooks and `minik8s sync`, and `answers/<id>`.
//!
//! The reconciler that receives a request records it; the leader answers once it has checked the repository after
//! that. Both keys are on leases.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;

/// Most webhook requests kept; older ones are removed with the next write.
pub const WEBHOOK_REQUESTS_MAX: usize = 1_000;

/// Most requests of `minik8s sync` kept, separate from those of webhooks: their senders can ask often, and must not
/// push out the records that distinguish a replayed webhook from a new one.
pub const CLI_REQUESTS_MAX: usize = 50;

/// Longest id of a request, in bytes.
pub const REQUEST_ID_MAX: usize = 128;

/// Sender of a sync request.
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
    /// Returns the name used in requests.
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

/// A request to check a repository.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncRequest {
    /// Id, as in the key.
    pub id: String,
    /// Sender.
    pub provider: Provider,
    /// Reported event, in the provider's word: `push`.
    pub event: String,
    /// Name of the source.
    pub source: String,
    /// Repository that it names.
    pub repository: Option<String>,
    /// Branch or tag that it names, in full: `refs/heads/main`.
    pub reference: Option<String>,
    /// Commit that it names. A hint: the commit found in the repository is applied.
    pub commit_hint: Option<String>,
    /// Time of the first delivery.
    pub received_at: Timestamp,
    /// Time of the last repetition, if it was repeated.
    pub repeated_at: Option<Timestamp>,
    /// Number of repetitions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repeats: u32,
    /// Address of the sender.
    pub peer: String,
    /// SHA-256 of the body in hex; empty without a body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// Name of the reconciler that received it last.
    pub by: String,
    /// Decision made on receipt.
    pub outcome: RequestOutcome,
}

impl SyncRequest {
    /// Returns the time of the last delivery.
    pub fn last_at(&self) -> Timestamp {
        self.repeated_at.unwrap_or(self.received_at)
    }
}

/// Decision made on receipt of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum RequestOutcome {
    /// The source is checked.
    Accepted,
    /// Nothing that the source follows.
    Ignored {
        /// Reason why it was ignored.
        why: String,
    },
}

/// Result of the check of the repository after the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestAnswer {
    /// Revision of the request that it answers. A repeated request waits again.
    pub request_revision: i64,
    /// Time at which the check was done.
    pub at: Timestamp,
    /// Commit applied since; `None` before the first.
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
