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

use std::time::Duration;

use jiff::Timestamp;
use schema::kinds::cluster::{Notification, NotificationChannel};
use tokio::time::timeout;

use super::target::{Target, TargetKind};
pub use exchange::{Delivery, DeliveryError, DeliveryOutcome};
use exchange::{Route, Secrets, exchange, redacted, url_of};

/// Longest duration of a delivery, with the lookup of the name and what is read back.
const DELIVERY_MAX: Duration = Duration::from_secs(5);

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
            let route = route(target, secrets, true);
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
    let route = |is_confidential| route(target, secrets, is_confidential);
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

fn route<'t>(target: &'t Target, secrets: &'t Secrets, is_confidential: bool) -> Route<'t> {
    let (allow_private, allow_loopback) = match &target.kind {
        // Set by the operator, not by a commit.
        TargetKind::CommitStatus { status, .. } => (status.allow_private, true),
        TargetKind::Chat { notification, .. } => (notification.allow_private, target.own.notify_loopback),
    };
    Route { allow_private, allow_loopback, own: &target.own, secrets, is_confidential }
}

/// Returns a value that the secret must have.
fn needed<'s>(secrets: &'s Secrets, key: &str) -> Result<&'s str, DeliveryError> {
    let value = secrets.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
    value.ok_or_else(|| DeliveryError::new(format!("its secret has no `{key}`")))
}
