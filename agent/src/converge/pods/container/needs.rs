//! Determines which containers of one pod must be created, started, pulled or removed. Pure.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::pod::{Container as ContainerSpec, PodSpec, PullPolicy, RestartPolicy, WaitingState};

use super::machine::{ContainerDecision, Role, decide, restarts, succeeded};
use super::render;
use crate::converge::pods::facts::{
    Container, ContainerKey, Placement, PodFacts, RecentFailure, State, Work,
};
use crate::converge::pods::probe;
use crate::converge::pods::probe::machine::{ProbeHealth, ProbeKind};
use crate::converge::pods::steps::{
    ContainerAct, ContainerStep, Decision, DecisionReason, Kill, Pull, Target,
};

/// Time for which a failed pull shows as `ErrImagePull` before it shows as `ImagePullBackOff`.
const ERR_IMAGE_PULL_SHOWN: SignedDuration = SignedDuration::from_secs(2);

/// Interval between checks of a container that someone is removing.
const REMOVING_AGAIN: SignedDuration = SignedDuration::from_secs(1);

/// Pending work on the containers of a pod.
#[derive(Debug, Default)]
pub struct Needs<'a> {
    /// Containers to act on now, each with its decision.
    pub due: Vec<(&'a ContainerSpec, ContainerDecision)>,
    /// True if all containers ended for good, or an init container failed for good.
    pub finished: bool,
    /// True if some container has run in the current namespaces.
    pub ever_started: bool,
    /// Running although a newer start of the same container exists, or the manifest has no such container.
    pub stop_first: Vec<&'a Container>,
    /// To remove before anything is created: their names are needed, or they must not run.
    pub remove_first: Vec<&'a Container>,
    /// Dead starts older than the last one.
    pub obsolete: Vec<&'a Container>,
    /// Failed removals of obsolete starts; these starts are left out of `obsolete` until a retry is due.
    unremoved: Vec<&'a RecentFailure>,
}

impl Needs<'_> {
    /// Returns the decision's reason for a pod that has its namespaces.
    pub fn why(&self) -> DecisionReason {
        if self.finished {
            return DecisionReason::Finished;
        }
        let acts = |v: &ContainerDecision| {
            matches!(v, ContainerDecision::Make { .. } | ContainerDecision::Start { .. })
        };
        if self.due.iter().any(|(_, v)| acts(v)) || !self.remove_first.is_empty() || !self.obsolete.is_empty()
        {
            DecisionReason::Containers
        } else if self.due.iter().any(|(_, v)| *v == ContainerDecision::Unhealthy) {
            DecisionReason::Unhealthy
        } else if self
            .due
            .iter()
            .all(|(_, v)| matches!(v, ContainerDecision::Runs | ContainerDecision::Ended { .. }))
        {
            DecisionReason::UpToDate
        } else {
            DecisionReason::Waits
        }
    }

    /// Returns the time of the next retry to remove a dead start.
    pub fn retry_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.unremoved.iter().map(|trouble| trouble.retry_at).filter(|at| *at > now).min()
    }
}

/// Determines the needs of all containers of a pod.
pub fn needs<'a>(work: &'a Work, facts: &'a PodFacts, spec: &'a PodSpec, now: Timestamp) -> Needs<'a> {
    let sandbox = facts.live_pause().map(|p| p.id.as_str());
    let history = |c: &ContainerSpec| facts.containers.get(&c.name).map_or(&[][..], Vec::as_slice);
    let at_home = |c: &Container| sandbox.is_some_and(|id| id == c.sandbox);
    let started = |c: &Container| matches!(c.state, State::Running { .. } | State::Exited(_));
    let ever_started = facts.containers.values().flatten().any(|c| at_home(c) && started(c));
    let apps: Vec<_> = spec
        .containers
        .iter()
        .map(|c| (c, decide(history(c), sandbox, Role::Main, spec.restart_policy, now)))
        .collect();
    let apps_ended = apps.iter().all(|(_, v)| matches!(v, ContainerDecision::Ended { .. }));
    // A start of an app container in these namespaces proves that all init containers are done.
    let app_started = spec.containers.iter().flat_map(history).any(|c| at_home(c) && started(c));
    let (turn, init_failed) = if apps_ended {
        (apps, false)
    } else {
        match init_turn(spec, &history, (sandbox, app_started), now) {
            InitTurn::Done(sidecars) => (sidecars.into_iter().chain(apps).collect(), false),
            InitTurn::Now(due) => (due, false),
            InitTurn::Failed => (Vec::new(), true),
        }
    };
    let mut needs = Needs {
        finished: apps_ended || init_failed,
        due: turn,
        ever_started,
        stop_first: Vec::new(),
        remove_first: Vec::new(),
        obsolete: Vec::new(),
        unremoved: Vec::new(),
    };
    for (name, starts) in &facts.containers {
        let known = spec.init_containers.iter().chain(&spec.containers).any(|c| c.name == *name);
        let makes =
            needs.due.iter().any(|(c, v)| c.name == *name && matches!(v, ContainerDecision::Make { .. }));
        sort_out(&mut needs, starts, known, makes);
    }
    let unremoved = |c: &Container| work.removal_failures.get(&c.id);
    needs.unremoved = needs.obsolete.iter().filter_map(|c| unremoved(c)).collect();
    needs.obsolete.retain(|c| unremoved(c).is_none_or(|trouble| trouble.retry_at <= now));
    needs
}

/// Sorts the past starts of one container by whether and when they are stopped and removed.
fn sort_out<'a>(needs: &mut Needs<'a>, starts: &'a [Container], known: bool, makes: bool) {
    let Some((current, older)) = starts.split_last() else { return };
    // After a new start the current one is the last; exactly one dead start is kept for its log.
    let mut keep = if makes { 0 } else { 1 };
    if makes && current.state == State::Created {
        needs.remove_first.push(current);
        keep = 1;
    }
    for old in older.iter().rev() {
        if old.is_running() {
            needs.stop_first.push(old);
            needs.remove_first.push(old);
        } else if keep > 0 && matches!(old.state, State::Exited(_)) && known {
            keep -= 1;
        } else {
            needs.obsolete.push(old);
        }
    }
    // A failed removal holds up nothing else of the pod: it goes last.
    if known && current.state == State::Dead {
        needs.obsolete.push(current);
    }
    if !known {
        needs.stop_first.extend(current.is_running().then_some(current));
        needs.remove_first.push(current);
    }
}

/// Returns role and policy of an init container: under Always one that succeeded is done; only a failure runs again. A
/// sidecar always runs again.
fn init_policy(spec: &PodSpec, init: &ContainerSpec) -> (Role, RestartPolicy) {
    match spec.restart_policy {
        _ if init.is_sidecar() => (Role::Main, RestartPolicy::Always),
        RestartPolicy::Always => (Role::Init, RestartPolicy::OnFailure),
        other => (Role::Init, other),
    }
}

/// True if its last start ended in a way that the policy does not restart.
pub fn stays_ended(spec: &PodSpec, facts: &PodFacts, name: &str) -> bool {
    let last = facts.containers.get(name).and_then(|starts| starts.last());
    let Some((last, State::Exited(end))) = last.map(|last| (last, &last.state)) else { return false };
    let init = spec.init_containers.iter().find(|init| init.name == name);
    let (role, policy) = init.map_or((Role::Main, spec.restart_policy), |init| init_policy(spec, init));
    !restarts(policy, succeeded(last, end, role))
}

/// Containers that are due, each with its decision.
type Due<'a> = Vec<(&'a ContainerSpec, ContainerDecision)>;

enum InitTurn<'a> {
    /// End of the init containers: the sidecars among them stay.
    Done(Due<'a>),
    /// The one whose turn it is, and the sidecars before it.
    Now(Due<'a>),
    Failed,
}

/// Decides on the init containers. `sandbox` is the live pause container, with true if an app container has started
/// there.
fn init_turn<'a, 'f>(
    spec: &'a PodSpec,
    history: &impl Fn(&ContainerSpec) -> &'f [Container],
    (sandbox, app_started): (Option<&str>, bool),
    now: Timestamp,
) -> InitTurn<'a> {
    let inits = &spec.init_containers;
    let decided_of = |init: &ContainerSpec| {
        let (role, policy) = init_policy(spec, init);
        decide(history(init), sandbox, role, policy, now)
    };
    // Checked first: once the pod has failed, the success of another init container is not repeated.
    let has_failed = |init: &ContainerSpec| decided_of(init) == ContainerDecision::Ended { success: false };
    if !app_started && inits.iter().any(has_failed) {
        return InitTurn::Failed;
    }
    let at_home = |c: &Container| sandbox.is_some_and(|id| id == c.sandbox);
    let is_here = |init: &ContainerSpec| history(init).iter().any(at_home);
    // A start in these namespaces proves that those before it have had their turn, whatever is left of them.
    let turn = if app_started { inits.len() } else { inits.iter().rposition(is_here).unwrap_or(0) };
    let mut due = Due::new();
    for (index, init) in inits.iter().enumerate() {
        let last = history(init).last();
        let decided = decided_of(init);
        let is_done = match (&decided, last) {
            _ if index < turn => true,
            _ if init.is_sidecar() => last.is_some_and(|last| at_home(last) && has_started(init, last)),
            (ContainerDecision::Ended { success: true }, Some(last)) => at_home(last),
            _ => false,
        };
        if init.is_sidecar() {
            due.push((init, decided));
        } else if !is_done {
            // Succeeded in former namespaces: once more, as in Kubernetes.
            let again = |last: &Container| ContainerDecision::Make {
                attempt: last.attempt + 1,
                backoff: last.backoff,
            };
            let former = last.filter(|_| matches!(decided, ContainerDecision::Ended { .. })).map(again);
            due.push((init, former.unwrap_or(decided)));
        }
        if !is_done {
            return InitTurn::Now(due);
        }
    }
    InitTurn::Done(due)
}

/// True if a sidecar has started, so that the next container may start: liveness does not matter, as in Kubernetes.
fn has_started(spec: &ContainerSpec, container: &Container) -> bool {
    container.is_running()
        && ProbeHealth::resumed(container.health, |kind| probe::render::has(spec, kind)).started
}

/// Plans to stop containers that failed a probe or their postStart hook and are not being stopped yet; reports those that
/// could not be stopped.
pub fn kills(work: &Work, spec: &PodSpec, facts: &PodFacts, now: Timestamp, decision: &mut Decision) {
    let Some(pause) = facts.live_pause() else { return };
    for container in spec.side_by_side() {
        let current = facts.containers.get(&container.name).and_then(|starts| starts.last());
        let current = current.filter(|c| c.is_running() && c.sandbox == pause.id);
        let Some((current, failed)) = current.and_then(|c| Some((c, c.failed_probe()?))) else { continue };
        let probe = match failed {
            ProbeKind::PostStart => &None,
            ProbeKind::Startup => &container.startup_probe,
            ProbeKind::Liveness | ProbeKind::Readiness => &container.liveness_probe,
        };
        let own = probe.as_ref().and_then(|probe| probe.termination_grace_period_seconds);
        let grace = own.unwrap_or(spec.termination_grace_period_seconds);
        let (name, title) = (&container.name, failed.title());
        let is_restarted = container.is_sidecar() || spec.restart_policy != RestartPolicy::Never;
        let again = if is_restarted { ", will be restarted" } else { "" };
        if let Some(trouble) = work.stop_failures.get(&current.id) {
            let message =
                format!("container {name} failed its {title} and can't be stopped: {}", trouble.message);
            decision.stuck = Some(message);
            if trouble.retry_at > now {
                schedule_retry(decision, trouble.retry_at);
                continue;
            }
        }
        if !work.is_stopping(&current.id) {
            decision.kills.push(Kill {
                target: Target::from(current),
                grace: std::time::Duration::from_secs(u64::from(grace)),
                message: format!("Container {name} failed {title}{again}"),
            });
        }
    }
}

/// Turns needs into steps; waits and pulls go into the decision.
pub fn steps(
    work: &Work,
    at: Placement<'_>,
    needs: &Needs<'_>,
    now: Timestamp,
    decision: &mut Decision,
) -> Vec<ContainerStep> {
    let mut steps = Vec::new();
    for trouble in &needs.unremoved {
        decision.stuck = Some(trouble.message.clone());
    }
    if let Some(at) = needs.retry_at(now) {
        schedule_retry(decision, at);
    }
    if needs.finished {
        return steps;
    }
    for (spec, next) in &needs.due {
        let slot = (at.binding.pod.uid.clone(), spec.name.clone());
        match next {
            ContainerDecision::Runs | ContainerDecision::Unhealthy | ContainerDecision::Ended { .. } => {}
            ContainerDecision::Removing => schedule_retry(decision, after(now, REMOVING_AGAIN)),
            ContainerDecision::BackOff { until, delay, why } => {
                let (delay, name) = (delay.as_secs(), &spec.name);
                let at = until.strftime("%Y-%m-%dT%H:%M:%SZ");
                let message =
                    format!("back-off {delay}s restarting failed container {name}, until {at}: {why}");
                wait(decision, &spec.name, "CrashLoopBackOff", message);
                schedule_retry(decision, *until);
            }
            ContainerDecision::Start { id, attempt } => {
                if !in_trouble(work, &slot, now, decision) {
                    still_in_trouble(work, &slot, now, decision);
                    steps.push(ContainerStep {
                        container: spec.name.clone(),
                        attempt: *attempt,
                        image_pulled: work.is_pulled(&slot, *attempt),
                        act: ContainerAct::Start(id.clone()),
                    });
                }
            }
            ContainerDecision::Make { attempt, backoff } => {
                if !may_make(work, &slot, (spec, *attempt), now, decision) {
                    continue;
                }
                still_in_trouble(work, &slot, now, decision);
                match render::container(at, spec, *attempt, *backoff) {
                    Ok(rendered) => steps.push(ContainerStep {
                        container: spec.name.clone(),
                        attempt: *attempt,
                        image_pulled: work.is_pulled(&slot, *attempt),
                        act: ContainerAct::Create(Box::new(rendered)),
                    }),
                    Err(why) => wait(decision, &spec.name, "CreateContainerConfigError", why),
                }
            }
        }
    }
    steps
}

/// True if no retry is pending and the image is present as far as known; else records the reason for the wait.
fn may_make(
    work: &Work,
    slot: &ContainerKey,
    start: (&ContainerSpec, u32),
    now: Timestamp,
    decision: &mut Decision,
) -> bool {
    let (spec, attempt) = start;
    let trouble = work.recent_failures.get(slot);
    if let Some(pulling) = work.pulling.get(slot) {
        match trouble {
            Some(trouble) => wait(decision, &spec.name, "ErrImagePull", trouble.message.clone()),
            None => {
                let progress = match pulling.progress.as_str() {
                    "" => String::new(),
                    progress => format!(": {progress}"),
                };
                let message = format!("pulling image {}{progress}", spec.image);
                wait(decision, &spec.name, "ContainerCreating", message);
            }
        }
        return false;
    }
    if in_trouble(work, slot, now, decision) {
        return false;
    }
    let policy = spec.effective_pull_policy();
    let pulled = work.is_pulled(slot, attempt);
    let pull = match policy {
        PullPolicy::Never => false,
        PullPolicy::Always => !pulled,
        PullPolicy::IfNotPresent => work.missing.contains(slot),
    };
    if pull {
        let (container, image) = (spec.name.clone(), spec.image.clone());
        decision.pulls.push(Pull { container, attempt, image, policy });
        wait(decision, &spec.name, "ContainerCreating", format!("pulling image {}", spec.image));
        still_in_trouble(work, slot, now, decision);
    }
    !pull
}

/// True if something of the container failed recently and its retry is not due; records the wait.
fn in_trouble(work: &Work, slot: &ContainerKey, now: Timestamp, decision: &mut Decision) -> bool {
    let Some(trouble) = work.recent_failures.get(slot).filter(|t| t.retry_at > now) else {
        return false;
    };
    let (reason, message) = pull_failure_text(trouble, now, decision);
    wait(decision, &slot.1, &reason, message);
    schedule_retry(decision, trouble.retry_at);
    true
}

/// Keeps showing the former failure while its retry has not succeeded yet.
fn still_in_trouble(work: &Work, slot: &ContainerKey, now: Timestamp, decision: &mut Decision) {
    // A container whose image has arrived since no longer waits for it.
    let over = |trouble: &&RecentFailure| trouble.reason == "ErrImagePull" && work.pulled.contains_key(slot);
    let Some(trouble) = work.recent_failures.get(slot).filter(|trouble| !over(trouble)) else { return };
    let (reason, message) = pull_failure_text(trouble, now, decision);
    wait(decision, &slot.1, &reason, message);
}

/// Returns Kubernetes' two names for one failed pull: first the failure, then the back-off.
fn pull_failure_text(trouble: &RecentFailure, now: Timestamp, decision: &mut Decision) -> (String, String) {
    let turns = after(trouble.at, ERR_IMAGE_PULL_SHOWN);
    if trouble.reason != "ErrImagePull" {
        return (trouble.reason.clone(), trouble.message.clone());
    }
    if trouble.failures == 1 && now < turns {
        schedule_retry(decision, turns);
        return (trouble.reason.clone(), trouble.message.clone());
    }
    ("ImagePullBackOff".to_owned(), format!("Back-off pulling image: {}", trouble.message))
}

fn after(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn wait(decision: &mut Decision, container: &str, reason: &str, message: String) {
    let state = WaitingState { reason: reason.to_owned(), message };
    decision.waiting.insert(container.to_owned(), state);
}

fn schedule_retry(decision: &mut Decision, at: Timestamp) {
    decision.next_at = Some(decision.next_at.map_or(at, |earlier| earlier.min(at)));
}
