//! Decides on one container: a function of its past starts, the restart policy and the time.
//!
//! Keeps no state in memory: attempt and crash level are labels, the exit status is in Docker, so a restarted agent
//! continues where the former one was.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::pod::{RestartPolicy, completes_init};

use crate::converge::pods::facts::{Container, ExitStatus, State};

/// First delay, after one immediate restart; doubles up to five minutes, as in Kubernetes.
pub const BACKOFF_FIRST: SignedDuration = SignedDuration::from_secs(10);

/// Maximum delay.
pub const BACKOFF_MAX: SignedDuration = SignedDuration::from_secs(300);

/// Duration of a run after which the next crash counts as the first one again.
pub const BACKOFF_RESET: SignedDuration = SignedDuration::from_secs(600);

/// Decision on a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerDecision {
    /// Running as it should.
    Runs,
    /// Create and start it: this attempt, at this crash level.
    Make { attempt: u32, backoff: u32 },
    /// Running but failed a probe: it is stopped, and restarted according to the policy.
    Unhealthy,
    /// Created but not started: start it.
    Start { id: String, attempt: u32 },
    /// Crashed and restarted at that time; `why` says in a few words how it ended.
    BackOff { until: Timestamp, delay: SignedDuration, why: String },
    /// Being removed by someone, or again after that failed; check again later.
    Removing,
    /// Ended for good; success as in [`succeeded`].
    Ended { success: bool },
}

/// Role of a container in its pod, which decides what counts as success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Init,
    Main,
}

/// Delay before a restart at crash level `level`: 0, 10, 20, 40, 80, 160, 300, 300, … seconds.
pub fn delay(level: u32) -> SignedDuration {
    match level.checked_sub(1) {
        None => SignedDuration::ZERO,
        Some(doublings) => {
            BACKOFF_FIRST.checked_mul(1 << doublings.min(10)).map_or(BACKOFF_MAX, |d| d.min(BACKOFF_MAX))
        }
    }
}

/// Decides on a container with these starts (by attempt) in the pod whose pause container is `sandbox`.
pub fn decide(
    history: &[Container],
    sandbox: Option<&str>,
    role: Role,
    policy: RestartPolicy,
    now: Timestamp,
) -> ContainerDecision {
    let Some(current) = history.last() else { return ContainerDecision::Make { attempt: 0, backoff: 0 } };
    let at_home = sandbox.is_some_and(|id| id == current.sandbox);
    let again = ContainerDecision::Make { attempt: current.attempt + 1, backoff: current.backoff };
    match (&current.state, at_home) {
        (State::Removing | State::Dead, _) => ContainerDecision::Removing,
        (State::Running { .. }, true) if current.failed_probe().is_some() => ContainerDecision::Unhealthy,
        (State::Running { .. }, true) => ContainerDecision::Runs,
        // The pause container that it joined is gone, so it has to be stopped too: that end is not its own.
        (State::Running { .. }, false) if policy == RestartPolicy::Never => {
            ContainerDecision::Ended { success: false }
        }
        (State::Running { .. }, false) => again,
        (State::Created, true) => {
            ContainerDecision::Start { id: current.id.clone(), attempt: current.attempt }
        }
        // Never ran: repeat the same start in the new namespaces, once it is removed.
        (State::Created, false) => {
            ContainerDecision::Make { attempt: current.attempt, backoff: current.backoff }
        }
        (State::Exited(end), at_home) => {
            let success = succeeded(current, end, role);
            if !restarts(policy, success) {
                return ContainerDecision::Ended { success };
            }
            if at_home { after_end(current, end, now) } else { again }
        }
    }
}

/// True if it ended with code 0 and did not fail a probe, however it handled its SIGTERM; for an init container, also
/// without a process killed for its use of memory.
pub fn succeeded(container: &Container, end: &ExitStatus, role: Role) -> bool {
    let is_good = match role {
        Role::Init => completes_init(end.code, end.oom_killed),
        Role::Main => end.code == 0,
    };
    is_good && container.failed_probe().is_none()
}

/// True if the policy restarts a container that ended this way.
pub fn restarts(policy: RestartPolicy, success: bool) -> bool {
    match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => !success,
        RestartPolicy::Never => false,
    }
}

/// Tolerated difference between two clocks, or between an observation and the observed event.
const CLOCK_SLACK: SignedDuration = SignedDuration::from_secs(5);

fn after_end(current: &Container, end: &ExitStatus, now: Timestamp) -> ContainerDecision {
    let ran = end.started_at.map_or(SignedDuration::ZERO, |start| end.finished_at.duration_since(start));
    let level = if ran >= BACKOFF_RESET { 0 } else { current.backoff };
    let delay = delay(level);
    let until = end.finished_at.checked_add(delay).unwrap_or(now);
    // An end far in the future means that the clock was set back: don't wait for a meaningless time. One that is a
    // moment ahead happened during the observation.
    if now >= until || end.finished_at.duration_since(now) > CLOCK_SLACK {
        ContainerDecision::Make { attempt: current.attempt + 1, backoff: level.saturating_add(1) }
    } else {
        ContainerDecision::BackOff { until, delay, why: cause(current, end) }
    }
}

/// Describes how it ended, for the message of its back-off. Docker's own error is not repeated here: it may quote
/// the command with a secret in it.
fn cause(container: &Container, end: &ExitStatus) -> String {
    match container.failed_probe() {
        Some(probe) => format!("it failed its {}", probe.title()),
        None if end.oom_killed => "OOMKilled: it used more memory than its limit".to_owned(),
        None if end.started_at.is_none() => "it could not be started".to_owned(),
        None => format!("it ended with exit code {}", end.code),
    }
}
