//! Notifications: chats, mailboxes and webhooks that receive verdicts and problems.
//!
//! Wherever a secret is sent, its address is in the same secret, so that a commit cannot send it elsewhere.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::codec::is_default;
use crate::names::{is_dns_label, is_dns_subdomain, is_name};
use crate::violation::{Findings, Path, rules};

/// A target of notifications. Exactly one of `webhook`, `slack`, `matrix` and `smtp` is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Notification {
    /// Name, a DNS label that no other target has.
    pub name: String,
    /// Events that it receives; all by default.
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
    /// Body: JSON in which `{{title}}`, `{{text}}`, `{{state}}`, `{{event}}`, `{{subject}}`, `{{source}}`, `{{commit}}`,
    /// `{{link}}`, `{{id}}` and `{{cluster}}` are replaced within strings. By default an object with all of these.
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
    /// List of all events.
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

/// Channel of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotificationChannel<'n> {
    /// An HTTP request with JSON.
    Webhook(&'n NotificationWebhook),
    /// An incoming webhook of Slack.
    Slack,
    /// A Matrix room.
    Matrix(&'n NotificationMatrix),
    /// Mail.
    Smtp(&'n NotificationSmtp),
}

impl NotificationChannel<'_> {
    /// Returns the name of its field.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::Slack => "slack",
            Self::Matrix(_) => "matrix",
            Self::Smtp(_) => "smtp",
        }
    }
}

impl Notification {
    /// Returns the channel, if exactly one is set.
    pub fn channel(&self) -> Option<NotificationChannel<'_>> {
        let mut channels = self.channels();
        channels.next().filter(|_| channels.next().is_none())
    }

    fn channels(&self) -> impl Iterator<Item = NotificationChannel<'_>> {
        let webhook = self.webhook.iter().map(NotificationChannel::Webhook);
        let slack = self.slack.iter().map(|_| NotificationChannel::Slack);
        let matrix = self.matrix.iter().map(NotificationChannel::Matrix);
        webhook.chain(slack).chain(matrix).chain(self.smtp.iter().map(NotificationChannel::Smtp))
    }
}

// Templates of webhooks.

/// Names of the placeholders of a template.
pub const PLACEHOLDERS: [&str; 10] =
    ["title", "text", "state", "event", "subject", "source", "commit", "link", "id", "cluster"];

/// Fills the placeholders in the texts of a template with the values that `value` has for their names. The result is
/// JSON, whatever the values contain.
///
/// # Errors
/// The template is not JSON, or has a placeholder that `value` does not know, or one in a key.
pub fn fill_template(template: &str, value: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut json: Json = serde_json::from_str(template)
        .map_err(|error| format!("must be JSON, with placeholders within strings only: {error}"))?;
    fill(&mut json, value)?;
    Ok(json.to_string())
}

fn fill(json: &mut Json, value: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    match json {
        Json::String(text) => *text = filled(text, value)?,
        Json::Array(items) => items.iter_mut().try_for_each(|item| fill(item, value))?,
        Json::Object(fields) => {
            for (key, field) in fields {
                if key.contains("{{") {
                    return Err(format!(
                        "must not have a placeholder in a key, as in `{}`",
                        key.escape_debug()
                    ));
                }
                fill(field, value)?;
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
    Ok(())
}

/// Fills one text. Values are not searched for placeholders.
fn filled(text: &str, value: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").ok_or("must not have `{{` without `}}`")?;
        let found = value(name.trim()).ok_or_else(|| {
            let known = PLACEHOLDERS.join("}}`, `{{");
            format!(
                "has the unknown placeholder `{{{{{}}}}}`; known are `{{{{{known}}}}}`",
                name.escape_debug()
            )
        })?;
        done.push_str(before);
        done.push_str(&found);
        rest = after;
    }
    Ok(done + rest)
}

/// Keys that the secret of a target may have.
pub const NOTIFICATION_SECRET_KEYS: [&str; 6] = ["url", "token", "username", "password", "key", "ca"];

/// Returns advice for an unknown field of a record, if it is one of a target and belongs into the target's secret.
pub(crate) fn secret_advice(record: &str, field: &str) -> Option<String> {
    let is_key = record.starts_with("Notification") && NOTIFICATION_SECRET_KEYS.contains(&field);
    is_key.then(|| format!("put it as `{field}` into the secret"))
}

// Checks beyond the schema.

/// Maximum number of targets: each is a delivery for every message.
const COUNT_MAX: usize = 16;
/// Maximum number of recipients of mail; a list of more is better kept at the mail server.
const RECIPIENTS_MAX: usize = 16;
/// Maximum length of a URL.
const URL_MAX_BYTES: usize = 2048;
/// Maximum length of a template.
const TEMPLATE_MAX_BYTES: usize = 16 * 1024;
/// Maximum length of the id of a room, in Matrix, and of a mail address (RFC 5321 4.5.3.1.3).
const ADDRESS_MAX_BYTES: usize = 254;
/// Maximum length of the part of a mail address before the `@` (RFC 5321 4.5.3.1.1).
const LOCAL_PART_MAX_BYTES: usize = 64;

/// Checks the field `notifications` of the spec at `at`.
pub(super) fn validate(notifications: &[Notification], at: &Path<'_>, findings: &mut Findings) {
    let at = at.field("notifications");
    if notifications.len() > COUNT_MAX {
        let message = format!("Too many: {} targets; at most {COUNT_MAX}", notifications.len());
        findings.add(&rules::OUT_OF_RANGE, &at, message);
    }
    let mut seen = BTreeSet::new();
    for (index, target) in notifications.iter().enumerate() {
        let here = at.index(index);
        let name = target.name.as_str();
        if !is_dns_label(name) {
            let message = format!("Invalid value: `{}`: not a valid target name", name.escape_debug());
            let help = "use lower case letters, digits and '-', at most 63 characters";
            findings.add(&rules::INVALID_NAME, &here.field("name"), message).help(help);
        } else if !seen.insert(name) {
            let message = format!("Duplicate value: `{name}`");
            findings.add(&rules::DUPLICATE_NAME, &here.field("name"), message);
        }
        if let Some(secret) = target.secret_name.as_deref().filter(|secret| !is_name(secret)) {
            let message = format!("Invalid value: `{}`: not a valid secret name", secret.escape_debug());
            findings.add(&rules::INVALID_NAME, &here.field("secretName"), message);
        }
        validate_channel(target, &here, findings);
    }
}

fn validate_channel(target: &Notification, here: &Path<'_>, findings: &mut Findings) {
    let mut channels = target.channels();
    let Some(channel) = channels.next() else {
        let message = "Required value: one of `webhook`, `slack`, `matrix` and `smtp`";
        findings.add(&rules::REQUIRED, here, message);
        return;
    };
    if let Some(second) = channels.next() {
        let message = format!("Forbidden: may not be set together with `{}`", channel.as_str());
        let second = here.field(second.as_str());
        findings.add(&rules::EXCLUSIVE, &second, message).on_key().help("write a target for each");
        return;
    }
    let at = here.field(channel.as_str());
    match channel {
        NotificationChannel::Webhook(webhook) => validate_webhook(webhook, target, &at, findings),
        NotificationChannel::Slack => {}
        NotificationChannel::Matrix(matrix) => {
            let room = matrix.room.as_str();
            let is_id = room.len() > 1
                && room.len() <= ADDRESS_MAX_BYTES
                && room.starts_with('!')
                && !room.contains(|c: char| c.is_control() || c.is_whitespace());
            if !is_id {
                let message = format!("Invalid value: `{}`: not the id of a room", room.escape_debug());
                let help =
                    "write its internal id, for example '!abc:example.org', which the room's settings show";
                findings.add(&rules::UNKNOWN_VALUE, &at.field("room"), message).help(help);
            }
        }
        NotificationChannel::Smtp(smtp) => validate_smtp(smtp, &at, findings),
    }
    if target.secret_name.is_none() && !matches!(channel, NotificationChannel::Webhook(_)) {
        let message = "Required value: the secret with the address";
        let help = "'minik8s secrets seal NAME -n .notifications --from FILE' writes it";
        findings.add(&rules::REQUIRED, &here.field("secretName"), message).help(help);
    }
}

fn validate_webhook(
    webhook: &NotificationWebhook,
    target: &Notification,
    at: &Path<'_>,
    findings: &mut Findings,
) {
    match webhook.url.as_deref() {
        None if target.secret_name.is_none() => {
            let message = "Required value: the address, here or as `url` of the secret";
            findings.add(&rules::REQUIRED, &at.field("url"), message);
        }
        None => {}
        Some(url) => validate_url(url, &at.field("url"), findings),
    }
    let Some(template) = &webhook.template else { return };
    let at = at.field("template");
    if template.len() > TEMPLATE_MAX_BYTES {
        let message = format!("Too long: may not be more than {TEMPLATE_MAX_BYTES} bytes");
        findings.add(&rules::OUT_OF_RANGE, &at, message);
        return;
    }
    let sample = |name: &str| PLACEHOLDERS.contains(&name).then(String::new);
    if let Err(why) = fill_template(template, &sample) {
        findings.add(&rules::UNKNOWN_VALUE, &at, format!("Invalid value: {why}"));
    }
}

fn validate_url(url: &str, at: &Path<'_>, findings: &mut Findings) {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    if authority.contains('@') {
        let message = "Forbidden: contains a user or password";
        let help = "put the whole address as `url` into a secret, and its name into `secretName`";
        findings.add(&rules::LITERAL_SECRET, at, message).help(help);
        return;
    }
    let is_odd = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if authority.is_empty() || url.len() > URL_MAX_BYTES || url.contains(is_odd) {
        findings.add(&rules::UNKNOWN_VALUE, at, "Invalid value: must be an http(s) URL");
    }
}

fn validate_smtp(smtp: &NotificationSmtp, at: &Path<'_>, findings: &mut Findings) {
    let mut check = |address: &str, at: &Path<'_>| {
        if !is_mail_address(address) {
            let message = format!("Invalid value: `{}`: not a mail address", address.escape_debug());
            let help = "write the address alone, for example ops@example.org";
            findings.add(&rules::UNKNOWN_VALUE, at, message).help(help);
        }
    };
    check(&smtp.from, &at.field("from"));
    let at = at.field("to");
    for (index, address) in smtp.to.iter().enumerate() {
        check(address, &at.index(index));
    }
    if smtp.to.is_empty() {
        findings.add(&rules::REQUIRED, &at, "Required value: the recipients");
    }
    if smtp.to.len() > RECIPIENTS_MAX {
        let message = format!("Too many: {} recipients; at most {RECIPIENTS_MAX}", smtp.to.len());
        findings.add(&rules::OUT_OF_RANGE, &at, message);
    }
}

/// True for `local@domain` of ASCII, without quotes: what every mail server accepts.
fn is_mail_address(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+/=?^_`{|}~-".contains(&byte);
    text.len() <= ADDRESS_MAX_BYTES
        && local.len() <= LOCAL_PART_MAX_BYTES
        && local.split('.').all(|part| !part.is_empty() && part.bytes().all(fits))
        && is_dns_subdomain(&domain.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::KindSpec as _;
    use crate::kinds::cluster::ClusterSpec;

    #[test]
    fn a_template_stays_json_whatever_the_values_hold() {
        let value = |name: &str| match name {
            "title" => Some("a \"quoted\"\nline \\ {{link}}".to_owned()),
            "link" => Some("https://x".to_owned()),
            _ => None,
        };
        let template = r#"{"text": "{{title}} at {{ link }}", "n": [1, {"deep": "{{link}}"}]}"#;
        let json: Json = serde_json::from_str(&fill_template(template, &value).unwrap()).unwrap();
        assert_eq!(json["text"], "a \"quoted\"\nline \\ {{link}} at https://x");
        assert_eq!(json["n"][1]["deep"], "https://x");
        for (template, part) in [
            (r#"{"a": {{title}}}"#, "within strings"),
            (r#"{"a": "{{title}}""#, "must be JSON"),
            (r#"{"a": "{{titel}}"}"#, "unknown placeholder `{{titel}}`; known are `{{title}}`, `{{text}}`"),
            (r#"{"a": "{{title"}"#, "without `}}`"),
            (r#"{"{{title}}": 1}"#, "in a key"),
        ] {
            let why = fill_template(template, &value).unwrap_err();
            assert!(why.contains(part), "{template}: {why}");
        }
    }

    #[test]
    fn mail_addresses_are_plain() {
        for good in ["ops@example.org", "a.b+c@Mail.example.org", "root@localhost"] {
            assert!(is_mail_address(good), "{good}");
        }
        for bad in [
            "",
            "ops",
            "@example.org",
            "ops@",
            "Ops <ops@example.org>",
            "a b@example.org",
            "a@b@c",
            "a..b@c",
            "ops@example.org\nBcc: x@y",
            "ops@exa mple.org",
            "öps@example.org",
        ] {
            assert!(!is_mail_address(bad), "{bad}");
        }
    }

    // Would fail if it were a login: the object would wait for a file that no node reads.
    #[test]
    fn the_object_does_not_wait_for_a_secret_of_reconcilers() {
        let mut cluster = ClusterSpec::default();
        let before = (ClusterSpec::LINKS.files)(&cluster);
        let target = Notification { secret_name: Some("ops".to_owned()), ..Notification::default() };
        cluster.notifications = vec![target];
        assert_eq!((ClusterSpec::LINKS.files)(&cluster), before);
    }

    #[test]
    fn a_target_has_one_channel() {
        let mut target = Notification::default();
        assert_eq!(target.channel(), None);
        target.slack = Some(NotificationSlack {});
        assert_eq!(target.channel().map(NotificationChannel::as_str), Some("slack"));
        target.smtp = Some(NotificationSmtp::default());
        assert_eq!(target.channel(), None);
    }
}
