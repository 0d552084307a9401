//! `outbox/<target>/<subject>`: the wanted message about a subject, and the state of its delivery.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;
use crate::kinds::cluster::NotificationEvent;

/// The wanted message about one subject, and the state of its delivery.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutboxEntry {
    /// Name of the target, as in the key: that of the Cluster object, or `source.<source>` for commit statuses.
    pub target: String,
    /// Subject, as in the key: `commit.<hex id>`, `verdict.<source>`, `nodes`, …
    pub subject: String,
    /// Hash of the settings that name the receiver: another address or room has received nothing.
    #[serde(default)]
    pub settings: String,
    /// The message that the target should have.
    pub wanted: Message,
    /// Number of that message among those about this subject, from 1.
    pub sequence: u64,
    /// Time since which it is wanted.
    pub since: Timestamp,
    /// The message that was delivered last; `None` before the first.
    pub sent: Option<SentMessage>,
    /// Delivery whose outcome is not known, or that failed. Written before it begins.
    pub attempt: Option<Attempt>,
    /// Failed deliveries of the wanted message.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failures: u32,
    /// Earliest time of the next delivery.
    pub retry_at: Option<Timestamp>,
    /// End of the pause for which the target asked with the last failed delivery, for all of its messages.
    pub paused_until: Option<Timestamp>,
    /// Error of the last failed delivery, without secrets.
    pub error: Option<String>,
}

impl OutboxEntry {
    /// True if a delivery is still to be made: another message was delivered last, or the last outcome is not known.
    pub fn is_owed(&self) -> bool {
        self.attempt.is_some() || self.sent.as_ref().is_none_or(|sent| sent.message != self.wanted)
    }
}

/// A message about one subject. Holds no time, so that equal states give equal messages.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// Event that it reports.
    pub event: NotificationEvent,
    /// State of the subject.
    pub state: MessageState,
    /// The news in one line.
    pub title: String,
    /// Reasons, one a line; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Path of the page about the subject, with a leading `/`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub page: String,
    /// Source of the commit, if the message is about one.
    pub source: Option<String>,
    /// Full hex id of the commit.
    pub commit: Option<String>,
}

/// State of the subject of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageState {
    /// Not decided yet. Only for forges.
    Pending,
    /// Good, or good again.
    Success,
    /// Someone should look.
    Failure,
}

impl MessageState {
    /// Returns the word used in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            MessageState::Pending => "pending",
            MessageState::Success => "success",
            MessageState::Failure => "failure",
        }
    }
}

/// A message that the target has received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SentMessage {
    /// The message.
    pub message: Message,
    /// Id of the delivery.
    pub id: String,
    /// Time at which the target had accepted it.
    pub at: Timestamp,
}

/// A delivery that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The message.
    pub message: Message,
    /// Id of the delivery; each repetition of the same message has it, too.
    pub id: String,
    /// Start of its first delivery.
    pub began_at: Timestamp,
}
