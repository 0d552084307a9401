//! Views of sync requests from webhooks and `minik8s sync`.

use jiff::Timestamp;
use schema::records::{RequestAnswer, RequestOutcome, SyncRequest};
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::age::age;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestView {
    #[serde(flatten)]
    pub request: SyncRequest,
    pub answer: Option<RequestAnswer>,
    /// Synced, Waiting or Ignored.
    pub status: String,
    /// Reason for waiting or for being ignored.
    pub why: String,
    /// Time from the last receipt to the end of the sync, in milliseconds.
    pub took_ms: Option<u64>,
    pub age: String,
}

pub fn requests(snapshot: &Snapshot, now: Timestamp) -> Vec<RequestView> {
    let mut all: Vec<RequestView> =
        snapshot.requests.values().map(|known| view(snapshot, &known.value, now)).collect();
    all.sort_by(|a, b| (b.request.last_at(), &b.request.id).cmp(&(a.request.last_at(), &a.request.id)));
    all
}

pub fn request(snapshot: &Snapshot, id: &str, now: Timestamp) -> Option<RequestView> {
    snapshot.requests.get(id).map(|known| view(snapshot, &known.value, now))
}

fn view(snapshot: &Snapshot, request: &SyncRequest, now: Timestamp) -> RequestView {
    let answer = snapshot.answer_to(&request.id);
    let (status, why) = match (&request.outcome, answer) {
        (RequestOutcome::Ignored { why }, _) => ("Ignored", why.clone()),
        (RequestOutcome::Accepted, Some(_)) => ("Synced", String::new()),
        (RequestOutcome::Accepted, None) => ("Waiting", pending_reason(snapshot, request)),
    };
    let took = answer.map(|answer| answer.at.duration_since(request.last_at()));
    RequestView {
        status: status.to_owned(),
        why,
        took_ms: took.map(|took| u64::try_from(took.as_millis()).unwrap_or_default()),
        age: age(request.last_at(), now),
        request: request.clone(),
        answer: answer.cloned(),
    }
}

fn pending_reason(snapshot: &Snapshot, request: &SyncRequest) -> String {
    match snapshot.sources.get(&request.source) {
        None => format!("source {} was never fetched", request.source),
        Some(source) => match &source.value.error {
            Some(error) => error.message.clone(),
            None => format!("source {} is fetched next", request.source),
        },
    }
}

#[cfg(test)]
mod tests {
    use schema::keys::Key;
    use schema::records::{Provider, SourceError, SourceErrorKind};

    use super::*;
    use crate::view::testing::{C1, at, snapshot};

    fn taken(id: &str, second: i64) -> SyncRequest {
        SyncRequest {
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
            outcome: RequestOutcome::Accepted,
        }
    }

    #[test]
    fn a_request_shows_what_it_waits_for_and_what_came_of_it() {
        let mut snapshot = snapshot();
        let answer = RequestAnswer { request_revision: 9, at: at(12), commit: Some(C1.to_owned()) };
        let synced = taken("a", 10);
        let why = "another branch".to_owned();
        let ignored = SyncRequest { outcome: RequestOutcome::Ignored { why }, ..taken("b", 20) };
        for request in [&synced, &ignored, &taken("c", 30)] {
            snapshot.put(&Key::Request(request.id.clone()), request, 9);
        }
        snapshot.put(&Key::Answer("a".to_owned()), &answer, 10);
        let rows = |snapshot: &Snapshot| -> Vec<(String, String, Option<u64>)> {
            requests(snapshot, at(40)).into_iter().map(|row| (row.status, row.why, row.took_ms)).collect()
        };
        let row = |status: &str, why: &str, took| (status.to_owned(), why.to_owned(), took);
        assert_eq!(
            rows(&snapshot),
            [
                row("Waiting", "source main is fetched next", None),
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
