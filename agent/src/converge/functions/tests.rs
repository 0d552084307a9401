//! Who gets which place, and when it is given back.

use std::net::SocketAddr;

use jiff::Timestamp;
use schema::kinds::function::ImageState;
use schema::meta::NamespacedName;
use schema::records::{CallLimits, FunctionImage, FunctionRecord, Replica, Trouble};

use super::book::{Calls, Given, Lease, Place};

fn id() -> NamespacedName {
    NamespacedName::new("default", "hello")
}

fn limits() -> CallLimits {
    CallLimits { concurrency: 1, queue_length: 2, ..CallLimits::default() }
}

/// A function with this many replicas.
fn record(replicas: u8) -> FunctionRecord {
    let replica = |number| Replica {
        pod: format!("hello-{number}"),
        node: "n1".to_owned(),
        address: format!("10.244.0.{number}:8080").parse().unwrap(),
    };
    let image = FunctionImage {
        reference: "minik8s.local/function:0".to_owned(),
        id: None,
        state: ImageState::Ready,
        nodes: Vec::new(),
        registry: None,
    };
    FunctionRecord {
        images: vec![image],
        replicas: (1..=replicas).map(replica).collect(),
        calls: limits(),
        ..FunctionRecord::default()
    }
}

fn calls(replicas: u8) -> Calls {
    let calls = Calls::new(Timestamp::UNIX_EPOCH);
    follow(&calls, &record(replicas));
    calls
}

fn follow(calls: &Calls, record: &FunctionRecord) {
    calls.follow([(&id(), record)].into_iter());
}

fn enter(calls: &Calls) -> Place {
    calls.enter(&id(), &limits(), None)
}

fn at(place: Place) -> Lease {
    match place {
        Place::At(lease) => lease,
        other => panic!("{other:?}"),
    }
}

fn waits(place: Place) -> tokio::sync::oneshot::Receiver<Given> {
    match place {
        Place::Waits(wait) => wait,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn calls_wait_in_turn_for_the_replicas_that_come() {
    let calls = calls(0);
    let (mut first, mut second) = (waits(enter(&calls)), waits(enter(&calls)));
    assert!(matches!(enter(&calls), Place::Full), "two may wait");
    assert_eq!(calls.state(&id()), (2, 0));
    follow(&calls, &record(1));
    let Ok(Given::Replica(lease)) = first.try_recv() else { panic!("the first is served") };
    assert!(second.try_recv().is_err(), "one call at a time");
    assert_eq!(calls.state(&id()), (1, 1));
    drop(lease);
    assert!(matches!(second.try_recv(), Ok(Given::Replica(_))));
    assert_eq!(calls.state(&id()), (0, 0), "the second gave its place back, too");
}

// Seen red with an address in the place of a lease.
#[tokio::test]
async fn a_caller_that_goes_as_it_gets_its_place_gives_it_back() {
    let calls = calls(0);
    let wait = waits(enter(&calls));
    follow(&calls, &record(1));
    assert_eq!(calls.state(&id()), (0, 1), "it was given the place");
    drop(wait);
    assert_eq!(calls.state(&id()), (0, 0));
    drop(at(enter(&calls)));
}

#[tokio::test(start_paused = true)]
async fn who_refused_gets_none_for_a_while_and_who_was_not_reached_comes_last() {
    let calls = calls(2);
    let first = at(enter(&calls));
    let busy = first.address();
    calls.is_full(&id(), busy, std::time::Duration::from_millis(50));
    drop(first);
    let other = at(enter(&calls));
    assert_ne!(other.address(), busy);
    assert!(matches!(enter(&calls), Place::Waits(_)), "the one is full, the other has a call");
    tokio::time::advance(std::time::Duration::from_millis(60)).await;
    let again: SocketAddr = at(enter(&calls)).address();
    assert_eq!(again, busy);
    calls.shun(&id(), again);
    drop(other);
    for _ in 0..3 {
        assert_ne!(at(enter(&calls)).address(), again);
    }
}

// Seen red with every trouble taken for the end.
#[tokio::test]
async fn only_what_never_ran_and_cannot_start_is_answered_at_once() {
    let calls = calls(0);
    let trouble = Trouble { reason: "CrashLoopBackOff".to_owned(), message: "SyntaxError".to_owned() };
    let serves = FunctionRecord { trouble: Some(trouble), has_good: true, ..record(0) };
    let mut wait = waits(enter(&calls));
    follow(&calls, &serves);
    assert!(wait.try_recv().is_err(), "a version of it has run");
    follow(&calls, &FunctionRecord { has_good: false, ..serves });
    assert!(matches!(wait.try_recv(), Ok(Given::Nothing(why)) if why == "SyntaxError"));
    let mut gone = waits(calls.enter(&NamespacedName::new("default", "other"), &limits(), None));
    calls.follow([(&id(), &record(0))].into_iter());
    assert!(matches!(gone.try_recv(), Ok(Given::Gone)));
}
