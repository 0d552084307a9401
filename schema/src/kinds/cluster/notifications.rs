//! Notifications: chats, mailboxes and webhooks that are told of verdicts and problems.
//!
//! Wherever a secret is sent, its address is in the same secret, so that a commit cannot send it elsewhere.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::codec::is_default;

/// A target of notifications. Exactly one of `webhook`, `slack`, `matrix` and `smtp` is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Notification {
    /// Name, a DNS label that no other target has.
    pub name: String,
    /// Events that it is told of; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<NotificationEvent>,
    /// Secret that is sealed to the reconcilers, `secrets/.notifications/NAME.age`. Its keys: `url` and, as the
    /// target needs them, `token`, `username`, `password`, `key` (signs webhooks) and `ca` (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// Allows loopback and private addresses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow_private: bool,
    /// An HTTP request with JSON, signed with the secret's `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<NotificationWebhook>,
    /// An incoming webhook of Slack or of a chat that understands these; its address is the secret's `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slack: Option<NotificationSlack>,
    /// A Matrix room; the homeserver is the secret's `url`, the access token its `token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<NotificationMatrix>,
    /// Mail; the server is the secret's `url` (`smtp://HOST:587` with STARTTLS, `smtps://HOST:465`), the login its
    /// `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smtp: Option<NotificationSmtp>,
}

/// An HTTP request with JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct NotificationWebhook {
    /// Address; by default the secret's `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Body: JSON in which `{{title}}`, `{{text}}`, `{{state}}`, `{{event}}`, `{{source}}`, `{{commit}}`, `{{link}}` and
    /// `{{id}}` are replaced within strings. By default an object with all of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// An incoming webhook of Slack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct NotificationSlack {}

/// A Matrix room.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct NotificationMatrix {
    /// Id of the room: `!abc:example.org`.
    pub room: String,
}

/// Sender and recipients of mail.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct NotificationSmtp {
    /// Address of the sender.
    pub from: String,
    /// Addresses of the recipients.
    pub to: Vec<String>,
}

/// Event that a message reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NotificationEvent {
    /// Final verdict on a commit.
    Verdict,
    /// Files that cannot be applied.
    Quarantine,
    /// A prune that is held.
    Prune,
    /// A source that cannot be read or applied.
    Source,
    /// Nodes that are not ready.
    Node,
    /// A rollout that failed.
    Rollout,
    /// A Slurm job that ended.
    Job,
    /// etcd that is nearly full or has an alarm.
    Etcd,
    /// A node's disk that is nearly full.
    Disk,
}

impl NotificationEvent {
    /// All events.
    pub const ALL: [Self; 9] = [
        Self::Verdict,
        Self::Quarantine,
        Self::Prune,
        Self::Source,
        Self::Node,
        Self::Rollout,
        Self::Job,
        Self::Etcd,
        Self::Disk,
    ];

    /// Returns the word used in manifests and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Verdict => "verdict",
            Self::Quarantine => "quarantine",
            Self::Prune => "prune",
            Self::Source => "source",
            Self::Node => "node",
            Self::Rollout => "rollout",
            Self::Job => "job",
            Self::Etcd => "etcd",
            Self::Disk => "disk",
        }
    }
}

impl Notification {
    /// True if the target is told of this event.
    pub fn reports(&self, event: NotificationEvent) -> bool {
        self.on.is_empty() || self.on.contains(&event)
    }
}
