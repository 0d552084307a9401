//! Receipts of webhooks and of `minik8s sync` as a person sees them.

use jiff::Timestamp;
use schema::records::{Delivery, DeliveryAnswer, DeliveryOutcome};
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use super::age::age;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryView {
    #[serde(flatten)]
    pub delivery: Delivery,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<DeliveryAnswer>,
    /// Synced, Waiting or Ignored.
    pub status: String,
    /// What it waits for, or why it is ignored.
    pub why: String,
    /// Time from its coming to the end of the look, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    pub age: String,
}

pub fn deliveries(snapshot: &Snapshot, now: Timestamp) -> Vec<DeliveryView> {
    let mut all: Vec<DeliveryView> =
        snapshot.requests.values().map(|known| view(snapshot, &known.value, now)).collect();
    all.sort_by(|a, b| (b.delivery.last_at(), &b.delivery.id).cmp(&(a.delivery.last_at(), &a.delivery.id)));
    all
}

pub fn delivery(snapshot: &Snapshot, id: &str, now: Timestamp) -> Option<DeliveryView> {
    snapshot.requests.get(id).map(|known| view(snapshot, &known.value, now))
}

fn view(snapshot: &Snapshot, delivery: &Delivery, now: Timestamp) -> DeliveryView {
    let answer = snapshot.answer_to(&delivery.id);
    let (status, why) = match (&delivery.outcome, answer) {
        (DeliveryOutcome::Ignored { why }, _) => ("Ignored", why.clone()),
        (DeliveryOutcome::Accepted, Some(_)) => ("Synced", String::new()),
        (DeliveryOutcome::Accepted, None) => ("Waiting", waits_for(snapshot, delivery)),
    };
    let took = answer.map(|answer| answer.at.duration_since(delivery.last_at()));
    DeliveryView {
        status: status.to_owned(),
        why,
        took_ms: took.map(|took| u64::try_from(took.as_millis()).unwrap_or_default()),
        age: age(delivery.last_at(), now),
        delivery: delivery.clone(),
        answer: answer.cloned(),
    }
}

fn waits_for(snapshot: &Snapshot, delivery: &Delivery) -> String {
    match snapshot.sources.get(&delivery.source) {
        None => format!("source {} was never looked at", delivery.source),
        Some(source) => match &source.value.error {
            Some(error) => error.message.clone(),
            None => format!("source {} is looked at next", delivery.source),
        },
    }
}

#[cfg(test)]
mod tests {
    use schema::keys::Key;
    use schema::records::{Provider, SourceError, SourceErrorKind};

    use super::*;
    use crate::view::testing::{C1, at, snapshot};

    fn receipt(id: &str, second: i64) -> Delivery {
        Delivery {
            id: id.to_owned(),
            provider: Provider::GitHub,
            event: "push".to_owned(),
            source: "main".to_owned(),
            repository: None,
            reference: None,
            commit_hint: None,
            received_at: at(second),
            repeated_at: None,
            repeats: 0,
            peer: "192.0.2.1".to_owned(),
            body: String::new(),
            by: "r0".to_owned(),
            outcome: DeliveryOutcome::Accepted,
        }
    }

    #[test]
    fn a_receipt_tells_what_it_waits_for_and_what_came_of_it() {
        let mut snapshot = snapshot();
        let answer = DeliveryAnswer { request_revision: 9, at: at(12), commit: Some(C1.to_owned()) };
        let synced = receipt("a", 10);
        let why = "another branch".to_owned();
        let ignored = Delivery { outcome: DeliveryOutcome::Ignored { why }, ..receipt("b", 20) };
        for delivery in [&synced, &ignored, &receipt("c", 30)] {
            snapshot.put(&Key::Request(delivery.id.clone()), delivery, 9);
        }
        snapshot.put(&Key::Answer("a".to_owned()), &answer, 10);
        let rows = |snapshot: &Snapshot| -> Vec<(String, String, Option<u64>)> {
            deliveries(snapshot, at(40)).into_iter().map(|row| (row.status, row.why, row.took_ms)).collect()
        };
        let row = |status: &str, why: &str, took| (status.to_owned(), why.to_owned(), took);
        assert_eq!(
            rows(&snapshot),
            [
                row("Waiting", "source main is looked at next", None),
                row("Ignored", "another branch", None),
                row("Synced", "", Some(2_000))
            ]
        );
        let mut source = snapshot.sources["main"].value.clone();
        let message = "no route to host".to_owned();
        source.error = Some(SourceError { kind: SourceErrorKind::RemoteUnreachable, message, since: at(5) });
        snapshot.put(&Key::Source("main".to_owned()), &source, 10);
        assert_eq!(rows(&snapshot)[0].1, "no route to host");
        snapshot.put(&Key::Request("a".to_owned()), &synced, 11);
        assert_eq!(rows(&snapshot)[2].0, "Waiting", "one that came again has no answer yet");
    }
}
