//! Restart policy × exit code × time, as a table.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::pod::RestartPolicy::{self, Always, Never, OnFailure};

use super::{at, container, exited, running};
use crate::converge::pods::container::machine::{self, ContainerDecision, Role, delay};
use crate::converge::pods::facts::{Container, State};

#[test]
fn the_backoff_doubles_from_nothing_to_five_minutes() {
    let seconds: Vec<i64> = (0..9).map(|level| delay(level).as_secs()).collect();
    assert_eq!(seconds, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(delay(u32::MAX).as_secs(), 300);
}

fn decide(
    history: &[Container],
    sandbox: Option<&str>,
    policy: RestartPolicy,
    now: Timestamp,
) -> ContainerDecision {
    machine::decide(history, sandbox, Role::Main, policy, now)
}

#[test]
fn the_policy_and_the_exit_code_decide_who_runs_again() {
    let make = ContainerDecision::Make { attempt: 1, backoff: 1 };
    for (policy, code, expected) in [
        (Always, 0, make.clone()),
        (Always, 1, make.clone()),
        (OnFailure, 0, ContainerDecision::Ended { success: true }),
        (OnFailure, 1, make),
        (Never, 0, ContainerDecision::Ended { success: true }),
        (Never, 137, ContainerDecision::Ended { success: false }),
    ] {
        let history = [container("web", 0, exited(code, 5, 100))];
        assert_eq!(decide(&history, Some("POD-0"), policy, at(100)), expected, "{policy:?} {code}");
    }
}

#[test]
fn later_crashes_wait_and_a_long_run_makes_the_next_crash_the_first() {
    let crash =
        |level: u32, ran: i64| [Container { backoff: level, ..container("web", 4, exited(1, ran, 1000)) }];
    let look = |level, ran, now| decide(&crash(level, ran), Some("POD-0"), Always, at(now));
    let make = |backoff| ContainerDecision::Make { attempt: 5, backoff };
    let wait = |seconds: i64| ContainerDecision::BackOff {
        until: at(1000 + seconds),
        delay: SignedDuration::from_secs(seconds),
        why: "it ended with exit code 1".to_owned(),
    };
    assert_eq!(look(0, 5, 1000), make(1));
    assert_eq!(look(1, 5, 1009), wait(10));
    assert_eq!(look(1, 5, 1010), make(2));
    assert_eq!(look(6, 5, 1299), wait(300));
    assert_eq!(look(6, 599, 1299), wait(300));
    assert_eq!(look(6, 600, 1000), make(1));
    // A clock set back does not hold a container for hours.
    assert_eq!(look(6, 5, 500), make(7));
    // A container that ended during the observation does wait: the observation's time is that of its start.
    assert_eq!(look(1, 5, 999), wait(10));
}

#[test]
fn what_joined_a_lost_pause_container_is_made_again_unless_never() {
    let alive = [container("web", 2, running())];
    assert_eq!(decide(&alive, None, Always, at(9)), ContainerDecision::Make { attempt: 3, backoff: 0 });
    assert_eq!(
        decide(&alive, Some("other"), OnFailure, at(9)),
        ContainerDecision::Make { attempt: 3, backoff: 0 }
    );
    assert_eq!(decide(&alive, None, Never, at(9)), ContainerDecision::Ended { success: false });
    let done = [container("web", 2, exited(0, 5, 8))];
    assert_eq!(decide(&done, None, OnFailure, at(9)), ContainerDecision::Ended { success: true });
    // The dead container must be removed first.
    let dead = [container("web", 2, State::Dead)];
    assert_eq!(decide(&dead, Some("POD-0"), Always, at(9)), ContainerDecision::Removing);
    let made = [container("web", 2, State::Created)];
    assert_eq!(decide(&made, None, Always, at(9)), ContainerDecision::Make { attempt: 2, backoff: 0 });
    let start = ContainerDecision::Start { id: "web-2".into(), attempt: 2 };
    assert_eq!(decide(&made, Some("POD-0"), Always, at(9)), start);
}
