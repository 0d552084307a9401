//! Delivers one message to one target, within 5 s: commit status at a forge, a webhook, a chat, mail.
//!
//! Reads the target's secret at each delivery. Decides nothing about when to send, or again. No error has a secret.

mod address;
mod exchange;
mod forge;
mod mail;
#[cfg(test)]
mod tests;
mod webhook;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use schema::kinds::cluster::{Notification, NotificationChannel};
use tokio::time::timeout;

use super::target::{Target, TargetKind};
pub use exchange::{Delivery, DeliveryError, DeliveryOutcome};
use exchange::{Route, exchange, url_of};

/// Longest duration of a delivery, with the lookup of the name and what is read back.
const DELIVERY_MAX: Duration = Duration::from_secs(5);
/// Shortest part of a URL's path that is taken for a secret; `services` and `hooks` are none.
const SECRET_PART_MIN_BYTES: usize = 9;

type Secrets = BTreeMap<String, String>;

/// Delivers a message.
///
/// # Errors
/// Why it may not have arrived, and the pause that the target asks for.
pub async fn send(target: &Target, delivery: &Delivery) -> Result<DeliveryOutcome, DeliveryError> {
    let reads = target.clone();
    let delivering = async {
        let read = tokio::task::spawn_blocking(move || reads.secrets()).await;
        let read = read.map_err(|error| DeliveryError::new(error.to_string()))?;
        let secrets = read.map_err(DeliveryError::new)?;
        let delivered = Box::pin(dispatch(target, delivery, &secrets)).await;
        delivered.map_err(|error| DeliveryError { message: redacted(&error.message, &secrets), ..error })
    };
    match timeout(DELIVERY_MAX, delivering).await {
        Ok(outcome) => outcome,
        Err(_) => Err(DeliveryError::new(format!("it took longer than {} s", DELIVERY_MAX.as_secs()))),
    }
}

async fn dispatch(
    target: &Target,
    delivery: &Delivery,
    secrets: &Secrets,
) -> Result<DeliveryOutcome, DeliveryError> {
    match &target.kind {
        TargetKind::CommitStatus { config, status, .. } => {
            let route = route(target, status.allow_private, secrets, true);
            forge::deliver(config, status, needed(secrets, "token")?, delivery, &route).await
        }
        TargetKind::Chat { notification, .. } => chat(target, notification, delivery, secrets).await,
    }
}

async fn chat(
    target: &Target,
    notification: &Notification,
    delivery: &Delivery,
    secrets: &Secrets,
) -> Result<DeliveryOutcome, DeliveryError> {
    let route = |is_confidential| route(target, notification.allow_private, secrets, is_confidential);
    let (request, route) = match notification.channel() {
        Some(NotificationChannel::Webhook(webhook)) => {
            let url = webhook.url.as_deref().map_or_else(|| needed(secrets, "url"), Ok)?;
            let key = secrets.get("key").map(String::as_str);
            let request = webhook::webhook(webhook, url_of(url)?, key, delivery, Timestamp::now())?;
            (request, route(webhook.url.is_none()))
        }
        Some(NotificationChannel::Slack) => {
            (webhook::slack(url_of(needed(secrets, "url")?)?, delivery), route(true))
        }
        Some(NotificationChannel::Matrix(matrix)) => {
            let (homeserver, token) = (url_of(needed(secrets, "url")?)?, needed(secrets, "token")?);
            (webhook::matrix(&homeserver, token, &matrix.room, delivery), route(true))
        }
        Some(NotificationChannel::Smtp(smtp)) => {
            return mail::deliver(smtp, secrets, delivery, &route(true)).await;
        }
        None => return Err(DeliveryError::new("it has not exactly one of webhook, slack, matrix and smtp")),
    };
    exchange(request, &route).await?.accepted(Timestamp::now())
}

fn route<'t>(
    target: &'t Target,
    allow_private: bool,
    secrets: &'t Secrets,
    is_confidential: bool,
) -> Route<'t> {
    let ca = secrets.get("ca").map(String::as_str);
    Route { allow_private, own_ranges: &target.own_ranges, ca, is_confidential }
}

/// Returns a value that the secret must have.
fn needed<'s>(secrets: &'s Secrets, key: &str) -> Result<&'s str, DeliveryError> {
    let value = secrets.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
    value.ok_or_else(|| DeliveryError::new(format!("its secret has no `{key}`")))
}

/// Masks secrets in what a server said: the values, also in Base64, and the parts of a URL after its host.
fn redacted(text: &str, secrets: &Secrets) -> String {
    let mut masked = Vec::new();
    for (key, value) in secrets {
        let value = value.trim();
        match key.as_str() {
            "ca" | "username" => {}
            "url" => {
                let rest = value.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
                let path = rest.map_or("", |(_, path)| path);
                let parts = path.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_'));
                let parts = parts.chain([path]).filter(|part| part.len() >= SECRET_PART_MIN_BYTES);
                masked.extend(parts.map(str::to_owned));
            }
            _ => masked.extend([value.to_owned(), BASE64.encode(value)]),
        }
    }
    if let (Some(user), Some(password)) = (secrets.get("username"), secrets.get("password")) {
        masked.push(BASE64.encode(format!("\0{}\0{}", user.trim(), password.trim())));
    }
    masked.retain(|part| !part.is_empty());
    masked.sort_by_key(|part| Reverse(part.len()));
    masked.iter().fold(text.to_owned(), |text, part| text.replace(part.as_str(), "***"))
}
