//! Runs the checks of all containers with probes, on time: one task and one timer queue for the whole node, and a
//! limit on concurrent checks. Decides nothing; the machine of each container does.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::records::EventType;
use schema::store::events::{EventDraft, EventRecorder};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::time::DelayQueue;

use super::health_store::{HealthBook, may_be_same_run};
use super::machine::{Action, ProbeKind, ProbeMachine, ProbeTarget, Targets};
use super::perform::{ActionRunner, CheckResult};
use crate::metrics::METRICS;

/// Maximum number of concurrent requests and connections: each takes one descriptor, and a few hundred probes that
/// all hang for a second still get their turn within a few seconds.
const NETWORK_CHECKS: usize = 128;

/// Maximum number of concurrent commands: each costs the engine a process and some 50 ms of a core, so more are not
/// faster, but hanging ones must not hold up the others.
const EXEC_CHECKS: usize = 32;

/// Interval between attempts to connect to a container that was just started.
const EARLY: Duration = Duration::from_millis(20);

/// Age from which a container no longer gets such attempts.
const EARLY_UNTIL: Duration = Duration::from_secs(10);

/// A container being probed.
struct TrackedContainer {
    target: Arc<ProbeTarget>,
    machine: ProbeMachine,
    /// Probes that are in the queue or being checked.
    scheduled: BTreeSet<ProbeKind>,
    checks_in_progress: BTreeMap<ProbeKind, AbortHandle>,
    /// Time from which the next check of a probe counts: earlier attempts may only succeed.
    counts_from: BTreeMap<ProbeKind, Instant>,
    /// Number of this observation of the container: queue entries left from a former one are dropped.
    round: u64,
}

/// Outcome of a finished check.
struct FinishedCheck {
    id: String,
    kind: ProbeKind,
    round: u64,
    action: Action,
    begun: Instant,
    found: CheckResult,
}

/// Runs the probes of all containers on the node.
pub struct ProbeRunner {
    asker: ActionRunner,
    book: HealthBook,
    events: EventRecorder,
    began: Instant,
    tracked: BTreeMap<String, TrackedContainer>,
    queue: DelayQueue<(String, ProbeKind, u64)>,
    round: u64,
    answers: JoinSet<FinishedCheck>,
    network: Arc<Semaphore>,
    exec: Arc<Semaphore>,
}

impl ProbeRunner {
    /// Creates a runner without targets.
    pub fn new(asker: ActionRunner, book: HealthBook, events: EventRecorder) -> Self {
        Self {
            asker,
            book,
            events,
            began: Instant::now(),
            tracked: BTreeMap::new(),
            queue: DelayQueue::new(),
            round: 0,
            answers: JoinSet::new(),
            network: Arc::new(Semaphore::new(NETWORK_CHECKS)),
            exec: Arc::new(Semaphore::new(EXEC_CHECKS)),
        }
    }

    /// Probes the wanted containers until `shutdown`, which aborts checks in progress.
    pub async fn run(mut self, mut wanted: watch::Receiver<Arc<Targets>>, shutdown: CancellationToken) {
        loop {
            // All are cancel-safe: queue and set hand out an item only when it is taken.
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let targets = Arc::clone(&wanted.borrow_and_update());
                    self.follow(&targets);
                }
                Some(due) = self.queue.next(), if !self.queue.is_empty() => self.start_check(due.into_inner()),
                Some(answer) = self.answers.join_next(), if !self.answers.is_empty() => {
                    // An aborted check has no result.
                    if let Ok(answer) = answer {
                        self.apply(answer);
                    }
                }
            }
        }
    }

    /// Starts probing new containers and stops probing those no longer wanted. A container whose checks changed,
    /// because its node has another address, keeps its results so far.
    fn follow(&mut self, targets: &Targets) {
        self.tracked.retain(|id, tracked| {
            let stays = targets.contains_key(id);
            if !stays {
                tracked.checks_in_progress.values().for_each(AbortHandle::abort);
            }
            stays
        });
        for (id, target) in targets {
            if let Some(tracked) = self.tracked.get_mut(id) {
                if may_be_same_run(tracked.target.started_at, target.started_at) {
                    let started_at = tracked.target.started_at.or(target.started_at);
                    if tracked.target.checks != target.checks || tracked.target.started_at != started_at {
                        tracked.target = Arc::new(ProbeTarget { started_at, ..target.clone() });
                    }
                    continue;
                }
                // The same container was started again: its former checks say nothing about it.
                tracked.checks_in_progress.values().for_each(AbortHandle::abort);
                self.book.set_failing(id, None);
            }
            let timings = target.checks.iter().map(|(kind, check)| (*kind, check.timing)).collect();
            let machine = ProbeMachine::new(timings, target.former);
            self.book.set(id, target.started_at, machine.health());
            self.round += 1;
            let tracked = TrackedContainer {
                target: Arc::new(target.clone()),
                machine,
                scheduled: BTreeSet::new(),
                checks_in_progress: BTreeMap::new(),
                counts_from: BTreeMap::new(),
                round: self.round,
            };
            self.tracked.insert(id.clone(), tracked);
            let age = age(target.started_at);
            // The container is older than this agent, as many others may be.
            let spread = age > self.began.elapsed();
            self.schedule(id, if spread { Some(rand::random_range(0.0..1.0)) } else { None });
        }
    }

    /// Queues every active probe that is not queued yet for its first check.
    fn schedule(&mut self, id: &str, spread: Option<f64>) {
        let Some(tracked) = self.tracked.get_mut(id) else { return };
        let age = age(tracked.target.started_at);
        for kind in tracked.machine.active() {
            if tracked.scheduled.insert(kind) {
                let wait = tracked.machine.first_delay(kind, age, spread.unwrap_or_default());
                self.queue.insert((id.to_owned(), kind, tracked.round), wait);
            }
        }
    }

    fn start_check(&mut self, (id, kind, round): (String, ProbeKind, u64)) {
        let Some(tracked) = self.tracked.get_mut(&id).filter(|tracked| tracked.round == round) else {
            return;
        };
        let Some(check) = tracked.target.checks.get(&kind).cloned() else { return };
        if !tracked.machine.active().contains(&kind) {
            return;
        }
        // A hook may take as long as it likes, so it takes no slot from the checks.
        let semaphore = match kind {
            ProbeKind::PostStart => None,
            _ => Some(Arc::clone(if check.action.is_exec() { &self.exec } else { &self.network })),
        };
        let (asker, begun) = (self.asker.clone(), Instant::now());
        let handle = self.answers.spawn(async move {
            // The semaphore is never closed.
            let _slot = match &semaphore {
                Some(semaphore) => semaphore.acquire().await.ok(),
                None => None,
            };
            let (action, timeout) = (check.action, check.timing.timeout);
            let found = async {
                match kind {
                    ProbeKind::PostStart => asker.post_start(&id, &action, timeout).await,
                    _ => asker.check(&id, &action, timeout).await,
                }
            };
            // A check that panics must not be the last one of its container.
            let found = AssertUnwindSafe(found).catch_unwind().await;
            let found = found.unwrap_or_else(|_| CheckResult::Unknown("the check panicked".to_owned()));
            FinishedCheck { id, kind, round, action, begun, found }
        });
        tracked.checks_in_progress.insert(kind, handle);
    }

    fn apply(&mut self, answer: FinishedCheck) {
        let FinishedCheck { id, kind, round, action, begun, found } = answer;
        // A result that arrived just as its check was aborted belongs to the former observation.
        let Some(tracked) = self.tracked.get_mut(&id).filter(|tracked| tracked.round == round) else {
            return;
        };
        tracked.checks_in_progress.remove(&kind);
        let target = Arc::clone(&tracked.target);
        // A check at an address that the node no longer has says nothing about the container.
        let is_current = target.checks.get(&kind).is_some_and(|check| check.action == action);
        let found =
            if is_current { found } else { CheckResult::Unknown("its address has changed".to_owned()) };
        let before = tracked.machine.health();
        let is_early = tracked.counts_from.get(&kind).is_some_and(|from| begun < *from);
        match &found {
            CheckResult::Success | CheckResult::Warning(_) => {
                count(kind, "success");
                tracked.machine.note(kind, true);
            }
            CheckResult::Failure(_) if is_early => {}
            CheckResult::Failure(_) => {
                count(kind, "failure");
                tracked.machine.note(kind, false);
            }
            CheckResult::Unknown(_) => {}
        }
        let now = tracked.machine.health();
        let period = tracked.machine.timing(kind).map_or(Duration::ZERO, |timing| timing.period);
        if !is_early {
            tracked.counts_from.insert(kind, begun + period);
        }
        let regular = tracked.counts_from.get(&kind).copied().unwrap_or(begun + period);
        let early = early(&target, &action, now.ready, &found).map(|wait| begun + wait);
        // Before the health update, which wakes the loop.
        if kind != ProbeKind::Liveness {
            self.book.set_failing(&id, found.failure_message(kind));
        }
        self.book.set(&id, target.started_at, now);
        if before != now {
            let (pod, container) = (&target.pod, &target.container);
            let (started, ready) = (now.started, now.ready);
            tracing::info!(%pod, container, probe = kind.word(), started, ready, "probe result changed");
        }
        let active = tracked.machine.active();
        if active.contains(&kind) {
            // A check that took longer than its period is followed by the next one immediately, as with kubelet's
            // ticker.
            let next = early.map_or(regular, |early| early.min(regular));
            self.queue.insert_at((id.clone(), kind, round), next.max(Instant::now()));
        } else {
            tracked.scheduled.remove(&kind);
            for (_, handle) in tracked.checks_in_progress.iter().filter(|(other, _)| !active.contains(other))
            {
                handle.abort();
            }
        }
        self.schedule(&id, None);
        if kind == ProbeKind::Readiness && before.ready && !now.ready {
            // Reported every time, whatever was reported a moment ago.
            let (since, why) = (Timestamp::now().strftime("%H:%M:%SZ"), found.failure_message(kind));
            let name = &target.container;
            self.warn(
                &target,
                "Unhealthy",
                format!("Container {name} is not ready since {since}: {}", why.unwrap_or_default()),
            );
        }
        if !is_early {
            self.record_event(&target, kind, &found);
        }
    }

    /// Records an event for every failure, even below the threshold; the recorder suppresses repetitions.
    fn record_event(&self, target: &ProbeTarget, kind: ProbeKind, found: &CheckResult) {
        match (found, found.failure_message(kind)) {
            (CheckResult::Warning(why), _) => {
                self.warn(target, "ProbeWarning", format!("{kind} probe warning: {why}"));
            }
            (_, Some(why)) if kind == ProbeKind::PostStart => self.warn(target, "FailedPostStartHook", why),
            (_, Some(why)) => self.warn(target, "Unhealthy", why),
            (_, None) => {}
        }
    }

    fn warn(&self, target: &ProbeTarget, reason: &str, message: String) {
        tracing::debug!(pod = %target.pod, container = target.container, reason, why = message, "probe reported");
        self.events.record(EventDraft::about(EventType::Warning, Kind::Pod, &target.pod, reason, message));
    }
}

/// Counts the result of a probe; a hook is none.
fn count(kind: ProbeKind, result: &'static str) {
    if kind != ProbeKind::PostStart {
        METRICS.probes.inc(&[kind.word(), result]);
    }
}

/// Returns the delay before a container that does not listen yet is tried again: one that was just started may
/// listen at any moment. The delay grows with the container's age, so that one that never listens costs little.
fn early(target: &ProbeTarget, action: &Action, is_ready: bool, found: &CheckResult) -> Option<Duration> {
    let may = matches!((action, found), (Action::TcpSocket { .. }, CheckResult::Failure(_))) && !is_ready;
    let age = age(target.started_at);
    (may && target.started_at.is_some() && age < EARLY_UNTIL).then(|| EARLY.max(age / 100))
}

/// Returns the time since the start; zero if it is in the future, as after a clock was set back, or unknown.
fn age(started_at: Option<Timestamp>) -> Duration {
    let age = started_at.map(|at| Timestamp::now().duration_since(at));
    age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    // Seen red with a tenth of its age.
    #[test]
    fn a_container_that_starts_is_asked_every_20_ms_and_an_old_one_as_its_probe_says() {
        let asked = |age: i64, is_ready, found: &CheckResult| {
            let target = ProbeTarget {
                pod: schema::meta::NamespacedName::new("default", "web"),
                container: "app".to_owned(),
                started_at: Some(Timestamp::now() - SignedDuration::from_millis(age)),
                checks: Default::default(),
                former: None,
            };
            early(&target, &Action::TcpSocket { host: "192.0.2.1".to_owned(), port: 80 }, is_ready, found)
        };
        let refused = CheckResult::Failure("refused".to_owned());
        assert_eq!(asked(50, false, &refused), Some(EARLY));
        assert_eq!(asked(1500, false, &refused), Some(EARLY));
        let later = asked(8000, false, &refused).unwrap();
        assert!((80..100).contains(&later.as_millis()), "{later:?}");
        assert_eq!(asked(11_000, false, &refused), None);
        assert_eq!((asked(50, true, &refused), asked(50, false, &CheckResult::Success)), (None, None));
    }
}
