//! Matching of source runs to the sync requests that they answer.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::keys::Key;
use schema::records::{
    Provider, RequestAnswer, RequestOutcome, SourceError, SourceErrorKind, SourceStatus, SyncRequest,
};
use schema::snapshot::Snapshot;

use super::plan::{AnswersPlan, RepoCheck, WaitingRequests, plan};
use crate::view::testing;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A request for source `apps` that `by` accepted at 10 s.
fn request(by: &str) -> SyncRequest {
    SyncRequest {
        id: "d1".into(),
        provider: Provider::Cli,
        event: "push".into(),
        source: "apps".into(),
        repository: None,
        reference: None,
        commit_hint: None,
        received_at: at(10),
        repeated_at: None,
        repeats: 0,
        peer: String::new(),
        body: String::new(),
        by: by.into(),
        outcome: RequestOutcome::Accepted,
    }
}

fn status(applied_at: i64) -> SourceStatus {
    SourceStatus { name: "apps".into(), applied_at: Some(at(applied_at)), ..testing::source("c2", "c2", 1) }
}

fn seen(by: &str) -> Snapshot {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    snapshot.put(&Key::Request("d1".into()), &request(by), 5);
    snapshot
}

/// Plans at 20 s as the reconciler `r1`, after a run from `began` to 30 s.
fn planned(
    snapshot: &Snapshot,
    waiting: &WaitingRequests,
    look: RepoCheck,
    status: Option<SourceStatus>,
) -> AnswersPlan {
    let looks = BTreeMap::from([("apps".to_owned(), (look, status))]);
    plan(snapshot, "r1", waiting.clone(), &looks, at(20))
}

fn began(began: i64, wrote: bool) -> RepoCheck {
    RepoCheck { began: at(began), over: at(30), wrote }
}

#[test]
fn a_request_is_answered_by_a_look_that_began_after_this_process_saw_it_and_by_no_earlier_one() {
    let (own, others) = (seen("r1"), seen("r2"));
    let cases = [
        // Its own request counts from its acceptance, another's from the snapshot that shows it.
        (&own, 9, 0, 0),
        (&own, 10, 1, 0),
        (&others, 10, 0, 1),
        (&others, 19, 0, 1),
        (&others, 20, 1, 1),
    ];
    for (snapshot, start, answers, wake) in cases {
        let plan = planned(snapshot, &WaitingRequests::default(), began(start, false), Some(status(8)));
        assert_eq!((plan.answers.len(), plan.wake.len()), (answers, wake), "{start}: {plan:?}");
    }
    let plan = planned(&own, &WaitingRequests::default(), began(10, false), Some(status(8)));
    let answer = RequestAnswer { request_revision: 5, at: at(30), commit: Some("c2".into()) };
    assert_eq!((&plan.answers[0].answer, plan.answers[0].replaced_revision), (&answer, None));
}

#[test]
fn another_reconcilers_request_wakes_the_loop_once_and_again_only_when_it_is_repeated() {
    let mut snapshot = seen("r2");
    let first = plan(&snapshot, "r1", WaitingRequests::default(), &BTreeMap::new(), at(20));
    let again = plan(&snapshot, "r1", first.waiting.clone(), &BTreeMap::new(), at(21));
    assert_eq!((first.wake.len(), again.wake.len()), (1, 0));
    // It was first observed at 20 s, not at 21: a run in between answers it.
    let answered = planned(&snapshot, &again.waiting, began(20, false), Some(status(8)));
    assert_eq!(answered.answers.len(), 1);
    snapshot.put(&Key::Request("d1".into()), &request("r2"), 6);
    let repeated = plan(&snapshot, "r1", again.waiting, &BTreeMap::new(), at(22));
    assert_eq!(repeated.wake.len(), 1);
}

#[test]
fn a_look_that_wrote_half_is_looked_after_once_and_one_that_failed_answers_nothing() {
    let snapshot = seen("r1");
    let half = planned(&snapshot, &WaitingRequests::default(), began(15, true), Some(status(14)));
    assert_eq!((half.answers.len(), half.wake.len()), (0, 1));
    assert!(
        !half.waiting.may_be_answered(began(15, true), "apps", &snapshot),
        "the same look is not asked again"
    );
    assert!(half.waiting.may_be_answered(began(16, true), "apps", &snapshot));
    let noted = planned(&snapshot, &WaitingRequests::default(), began(15, true), Some(status(15)));
    assert_eq!((noted.answers.len(), noted.wake.len()), (1, 0));
    let error = SourceError {
        kind: SourceErrorKind::ReferenceNotFound,
        message: "no such branch".into(),
        since: at(16),
    };
    let failed = SourceStatus { error: Some(error), ..status(16) };
    for status in [Some(failed), None] {
        let plan = planned(&snapshot, &WaitingRequests::default(), began(15, false), status);
        assert_eq!((plan.answers.len(), plan.wake.len()), (0, 0));
    }
}

#[test]
fn an_answer_to_a_request_that_is_gone_is_removed_with_the_next_answer() {
    let mut snapshot = seen("r1");
    let answer = RequestAnswer { request_revision: 2, at: at(3), commit: None };
    snapshot.put(&Key::Answer("d0".into()), &answer, 4);
    snapshot.put(&Key::Answer("d1".into()), &answer, 3);
    let plan = planned(&snapshot, &WaitingRequests::default(), began(15, false), Some(status(8)));
    assert_eq!(plan.orphans, [(Key::Answer("d0".into()), 4)]);
    assert_eq!(
        plan.answers[0].replaced_revision,
        Some(3),
        "the answer to the request before it was repeated is replaced"
    );
}
