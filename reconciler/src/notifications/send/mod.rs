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

use jiff::Timestamp;
use schema::kinds::cluster::{Notification, NotificationChannel};
use tokio::time::{Instant, timeout_at};

use super::target::{Target, TargetKind};
use exchange::{DELIVERY_MAX, Route, Secrets, exchange, redacted, url_of};
pub use exchange::{Delivery, DeliveryError, DeliveryOutcome};

/// Delivers a message.
///
/// # Errors
/// Why it may not have arrived, and the pause that the target asks for.
pub async fn send(target: &Target, delivery: &Delivery) -> Result<DeliveryOutcome, DeliveryError> {
    let (reads, deadline) = (target.clone(), Instant::now() + DELIVERY_MAX);
    let read = timeout_at(deadline, tokio::task::spawn_blocking(move || reads.secrets())).await;
    let read = read.map_err(|_| DeliveryError::new("its secret could not be read in time"))?;
    let secrets = read.map_err(|error| DeliveryError::new(error.to_string()))?.map_err(DeliveryError::new)?;
    let delivered = Box::pin(dispatch(target, delivery, &secrets, deadline)).await;
    delivered.map_err(|error| DeliveryError { message: redacted(&error.message, &secrets), ..error })
}

async fn dispatch(
    target: &Target,
    delivery: &Delivery,
    secrets: &Secrets,
    deadline: Instant,
) -> Result<DeliveryOutcome, DeliveryError> {
    match &target.kind {
        TargetKind::CommitStatus { config, status, .. } => {
            let route = route(target, secrets, deadline);
            forge::deliver(config, status, needed(target, secrets, "token")?, delivery, &route).await
        }
        TargetKind::Chat { notification, .. } => {
            chat(target, notification, delivery, route(target, secrets, deadline)).await
        }
    }
}

async fn chat(
    target: &Target,
    notification: &Notification,
    delivery: &Delivery,
    mut route: Route<'_>,
) -> Result<DeliveryOutcome, DeliveryError> {
    let (secrets, cluster) = (route.secrets, target.own.cluster_name.as_deref());
    let needed = |key| needed(target, secrets, key);
    let request = match notification.channel() {
        Some(NotificationChannel::Webhook(webhook)) => {
            let url = webhook.url.as_deref().map_or_else(|| needed("url"), Ok)?;
            route.is_confidential = webhook.url.is_none();
            let key = secrets.get("key").map(String::as_str);
            let message = (delivery, cluster.unwrap_or_default());
            webhook::webhook(webhook, url_of(url)?, key, message, Timestamp::now())?
        }
        Some(NotificationChannel::Slack) => {
            webhook::slack(url_of(needed("url")?)?, &titled(delivery, cluster))
        }
        Some(NotificationChannel::Matrix(matrix)) => {
            let (homeserver, token) = (url_of(needed("url")?)?, needed("token")?);
            webhook::matrix(&homeserver, token, &matrix.room, &titled(delivery, cluster))
        }
        Some(NotificationChannel::Smtp(smtp)) => {
            return mail::deliver(smtp, &titled(delivery, cluster), &route).await;
        }
        None => return Err(DeliveryError::new("it has not exactly one of webhook, slack, matrix and smtp")),
    };
    exchange(request, &route).await?.accepted(Timestamp::now())
}

/// Returns the route to a target; its requests have a secret.
fn route<'t>(target: &'t Target, secrets: &'t Secrets, deadline: Instant) -> Route<'t> {
    let (allow_private, ca_setting) = match &target.kind {
        TargetKind::CommitStatus { status, .. } => {
            (status.allow_private, "`caFile` of the source (--ca-file)")
        }
        TargetKind::Chat { notification, .. } => (notification.allow_private, "`ca` of the secret"),
    };
    let own = &target.own;
    Route { allow_private, own, secrets, is_confidential: true, ca_setting, deadline }
}

/// Returns a value that the secret must have.
fn needed<'s>(target: &Target, secrets: &'s Secrets, key: &str) -> Result<&'s str, DeliveryError> {
    let value = secrets.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
    value.ok_or_else(|| DeliveryError::new(format!("{} has no `{key}`", target.secret_place())))
}

/// Returns the delivery with the name of the cluster before its title: people may have several.
fn titled(delivery: &Delivery, cluster: Option<&str>) -> Delivery {
    let mut delivery = delivery.clone();
    if let Some(cluster) = cluster {
        delivery.message.title = format!("[{cluster}] {}", delivery.message.title);
    }
    delivery
}
