//! Decides on every pod of the node, with a reason. Pure: containers, desired pods and time in, one [`PodsPlan`]
//! out, with every name, address, port and attempt in it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use jiff::{SignedDuration, Timestamp};
use schema::kinds::pod::{PodStatus, WaitingState};
use schema::meta::NamespacedName;
use schema::records::Binding;

use super::container::needs::{self, Needs};
use super::facts::{Container, DRAIN_CHECK, Drain, Observed, Placement, PodFacts, State};
use super::sandbox::allocate::AllocationPool;
use super::sandbox::name_files::NameFiles;
use super::status::statuses::{is_final, last_report_on};
use super::status::wanted;
use super::steps::{
    BringUp, ContainerStep, Decision, DecisionReason, LinkStep, PauseStep, PodTask, PodsPlan, TakeDown,
    Target,
};
use super::{probe, sandbox, volume};
use crate::desired::StateOrigin;
use crate::names;
use crate::worlds::netlink::{HostEnd, host_link_name};

/// Minimum life of a pause container: one that lived shorter is recreated only this long after its start.
const PAUSE_LIFE_MIN: SignedDuration = SignedDuration::from_secs(5);

/// Interval between checks for a host port that is in use.
const PORT_AGAIN: SignedDuration = SignedDuration::from_secs(2);

/// Returns the digests of the files that pods name, both wanted and existing pods.
fn named_files(observed: &Observed) -> BTreeSet<String> {
    let wanted = observed.desired.pods.values().flat_map(|binding| binding.pod.files.values());
    let present = observed.pods.values().flat_map(|facts| &facts.pauses).flat_map(|pause| &pause.files);
    wanted.map(|blob| blob.digest.clone()).chain(present.cloned()).collect()
}

/// Plans the whole node.
pub fn plan(observed: &Observed, now: Timestamp) -> PodsPlan {
    let mut plan = PodsPlan::default();
    if observed.desired.known_from == StateOrigin::Unknown {
        for (uid, facts) in &observed.pods {
            plan.pods
                .insert(uid.clone(), Decision::idle(reference(uid, facts), DecisionReason::DesiredUnknown));
        }
        return plan;
    }
    // An unreadable binding may name anything.
    if observed.sweep_is_due && observed.desired.unreadable.is_empty() {
        plan.sweep = Some(named_files(observed));
    }
    let wanted: BTreeMap<&str, &Binding> =
        observed.desired.pods.values().map(|binding| (binding.pod.uid.as_str(), binding)).collect();
    plan_unwanted(observed, &wanted, now, &mut plan);
    let mut pool = AllocationPool::from_observed(observed);
    for (uid, binding) in &wanted {
        let mut decision = plan_wanted(observed, binding, &mut pool, now);
        // Regardless of any task in progress: neither waits for it.
        if let Some(facts) = observed.pods.get(*uid) {
            // A probe asks whatever host its spec names.
            if observed.node.forbids(&binding.pod, facts.live_pause()).is_none() {
                plan.probes.extend(probe::render::targets(&observed.node, binding, facts));
                needs::kills(&observed.work, &binding.pod.spec, facts, now, &mut decision);
            }
            plan.final_statuses.extend(
                final_status(observed, binding, facts, &decision, now).map(|end| ((*uid).to_owned(), end)),
            );
        }
        plan.pods.insert((*uid).to_owned(), decision);
    }
    plan.last_address = pool.last_address();
    plan.remove_links = stray_links(observed, &wanted);
    if observed.desired.is_settled() && observed.desired.unreadable.is_empty() {
        let pulling = observed.work.pulling.keys();
        plan.cancel_pulls = pulling.filter(|(uid, _)| !wanted.contains_key(uid.as_str())).cloned().collect();
    }
    plan
}

/// Returns the final status of a pod that ended for good, unless it is saved already.
fn final_status(
    observed: &Observed,
    binding: &Binding,
    facts: &PodFacts,
    decision: &Decision,
    now: Timestamp,
) -> Option<PodStatus> {
    let uid = &binding.pod.uid;
    if decision.why != DecisionReason::Finished || observed.finished.contains_key(uid) {
        return None;
    }
    let seen = wanted::WantedPod { node: &observed.node, binding, facts, decision, lacks_image: false };
    let former = last_report_on(&observed.last_reported, &decision.pod, uid);
    // Some of its containers may have to be stopped before it has ended.
    Some(wanted::wanted_status(seen, former, now)).filter(is_final)
}

/// Returns the pod of these containers, or a display name for containers without one.
fn reference(uid: &str, facts: &PodFacts) -> NamespacedName {
    facts.pod.clone().unwrap_or_else(|| NamespacedName::new("", uid))
}

/// Plans existing pods that are not wanted, and their leftovers on disk.
fn plan_unwanted(
    observed: &Observed,
    wanted: &BTreeMap<&str, &Binding>,
    now: Timestamp,
    plan: &mut PodsPlan,
) {
    let work = &observed.work;
    for (uid, busy) in work.busy.iter().filter(|(uid, _)| !wanted.contains_key(uid.as_str())) {
        let mut decision = Decision::idle(busy.pod.clone(), DecisionReason::InFlight);
        decision.cancel = busy.up && reason_to_stay(observed, &busy.pod).is_none();
        plan.pods.insert(uid.clone(), decision);
    }
    for (uid, facts) in &observed.pods {
        if wanted.contains_key(uid.as_str()) || work.busy.contains_key(uid) {
            continue;
        }
        let pod = reference(uid, facts);
        let decision = match reason_to_stay(observed, &pod) {
            Some(why) => Decision::idle(pod, why),
            None => match observed.draining.get(uid).filter(|drain| drain.until() > now) {
                Some(drain) => draining(pod, drain, now),
                None => take_down(observed, uid, pod, down(observed, uid, facts), now),
            },
        };
        plan.pods.insert(uid.clone(), decision);
    }
    // With an unreadable binding the owner of a folder is unknown.
    if !observed.desired.unreadable.is_empty() || !observed.desired.is_settled() {
        return;
    }
    for uid in &observed.folders {
        if !wanted.contains_key(uid.as_str()) && !plan.pods.contains_key(uid) {
            let folder = TakeDown { folder: true, ..TakeDown::default() };
            let decision = take_down(observed, uid, NamespacedName::new("", uid), folder, now);
            plan.pods.insert(uid.clone(), decision);
        }
    }
}

/// Returns the reason why a pod that is not among the wanted ones stays anyway. A pod of its name with another uid
/// replaces it.
fn reason_to_stay(observed: &Observed, pod: &NamespacedName) -> Option<DecisionReason> {
    let desired = &observed.desired;
    if desired.unreadable.contains_key(pod) {
        Some(DecisionReason::Unreadable)
    } else if !desired.is_settled() && !desired.pods.contains_key(pod) {
        Some(DecisionReason::Unsettled)
    } else {
        None
    }
}

/// Checks again soon: the other nodes' progress wakes no loop.
fn draining(pod: NamespacedName, drain: &Drain, now: Timestamp) -> Decision {
    let soon = now.checked_add(DRAIN_CHECK).unwrap_or(now);
    Decision { next_at: Some(soon.min(drain.until())), ..Decision::idle(pod, DecisionReason::Draining) }
}

/// Takes an unwanted pod down, unless that failed a moment ago.
fn take_down(
    observed: &Observed,
    uid: &str,
    pod: NamespacedName,
    down: TakeDown,
    now: Timestamp,
) -> Decision {
    let mut decision = Decision::idle(pod, DecisionReason::NotDesired);
    match observed.work.removal_failure(uid).filter(|trouble| trouble.retry_at > now) {
        Some(trouble) => decision.next_at = Some(trouble.retry_at),
        None => decision.task = Some(PodTask::Down(down)),
    }
    decision
}

/// Returns everything of a pod, in the order of its removal.
fn down(observed: &Observed, uid: &str, facts: &PodFacts) -> TakeDown {
    let grace = facts.all().map(|c| c.grace).max().unwrap_or_default();
    TakeDown {
        remove: facts.all().map(Target::from).collect(),
        link: Some(host_link_name(&observed.node.instance, uid)),
        folder: true,
        // Everything must go: a leftover is trouble of the pod.
        obsolete: Vec::new(),
        ..stop_all(facts, Duration::from_secs(u64::from(grace)))
    }
}

/// Stops all that runs of a pod: its sidecars last, in reverse order.
fn stop_all(facts: &PodFacts, grace: Duration) -> TakeDown {
    let running = facts.containers.values().flatten().filter(|c| c.is_running());
    let (mut sidecars, others): (Vec<_>, Vec<_>) = running.partition(|c| c.sidecar.is_some());
    sidecars.sort_by_key(|sidecar| Reverse(sidecar.sidecar));
    let targets = |list: Vec<&Container>| list.into_iter().map(Target::from).collect();
    TakeDown { stop: targets(others), stop_last: targets(sidecars), grace, ..TakeDown::default() }
}

fn plan_wanted(
    observed: &Observed,
    binding: &Binding,
    pool: &mut AllocationPool,
    now: Timestamp,
) -> Decision {
    let pod = binding.pod.reference();
    let uid = &binding.pod.uid;
    let nothing = PodFacts::default();
    let facts = observed.pods.get(uid).unwrap_or(&nothing);
    let trouble = observed.work.recent_failures.get(&(uid.clone(), String::new()));
    let stuck = observed.work.removal_failure(uid).map(|trouble| trouble.message.clone());
    if observed.work.busy.contains_key(uid) {
        let decision = Decision { stuck, ..Decision::idle(pod, DecisionReason::InFlight) };
        let Some(trouble) = trouble else { return in_flight(observed, binding, facts, decision, now) };
        return all_wait(decision, binding, facts, &trouble.reason, &trouble.message);
    }
    let former = observed.pods.iter().any(|(other, facts)| other != uid && facts.pod.as_ref() == Some(&pod));
    let former_busy = observed.work.busy.iter().any(|(other, busy)| other != uid && busy.pod == pod);
    if former || former_busy {
        return Decision::idle(pod, DecisionReason::FormerPod);
    }
    if let Some(trouble) = trouble.filter(|trouble| trouble.retry_at > now) {
        let idle = Decision { stuck, ..Decision::idle(pod, DecisionReason::Waits) };
        let mut decision = all_wait(idle, binding, facts, &trouble.reason, &trouble.message);
        decision.next_at = Some(trouble.retry_at);
        return decision;
    }
    let needs = needs::needs(&observed.work, facts, &binding.pod.spec, now);
    let input = PodInput { observed, binding, facts, needs: &needs, now };
    if observed.finished.contains_key(uid) {
        // Regardless of any containers left.
        return plan_finished(input);
    }
    let mut decision = match facts.live_pause() {
        Some(pause) => plan_with_namespaces(input, pause),
        None => plan_without_namespaces(input, pool),
    };
    // The task is the next try, and may fail again.
    if matches!(decision.task, Some(PodTask::Up(_))) {
        decision.stuck = decision.stuck.or(stuck);
    }
    decision
}

/// Decides on a pod with a task in progress: its containers keep waiting for the same things.
fn in_flight(
    observed: &Observed,
    binding: &Binding,
    facts: &PodFacts,
    mut decision: Decision,
    now: Timestamp,
) -> Decision {
    let needs = needs::needs(&observed.work, facts, &binding.pod.spec, now);
    let (address, ports) = facts.live_pause().map_or((None, &[][..]), |pause| (pause.address, &pause.ports));
    let at = Placement { node: &observed.node, binding, address, ports };
    let mut idle = Decision::idle(decision.pod.clone(), DecisionReason::InFlight);
    needs::steps(&observed.work, at, &needs, now, &mut idle);
    (decision.waiting, decision.stuck) = (idle.waiting, idle.stuck);
    decision
}

/// A wanted pod with the input for its decision.
#[derive(Clone, Copy)]
struct PodInput<'a> {
    observed: &'a Observed,
    binding: &'a Binding,
    facts: &'a PodFacts,
    needs: &'a Needs<'a>,
    now: Timestamp,
}

/// Plans a pod that has its namespaces: creates and starts everything that is missing in them.
fn plan_with_namespaces(look: PodInput<'_>, pause: &Container) -> Decision {
    let PodInput { observed, binding, facts, needs, now } = look;
    let pod = &binding.pod;
    if needs.finished {
        return plan_finished(look);
    }
    let at = Placement { node: &observed.node, binding, address: pause.address, ports: &pause.ports };
    let forbidden = observed.node.forbids(pod, Some(pause));
    // What runs of a forbidden pod goes on as it is, with its link.
    let nothing = Needs::default();
    let needs: &Needs<'_> = if forbidden.is_some() { &nothing } else { needs };
    let mut decision = Decision::idle(pod.reference(), needs.why());
    if let Some(why) = forbidden {
        decision = all_wait(decision, binding, facts, "CreateContainerConfigError", &why);
        decision.why = DecisionReason::Forbidden(why);
    }
    let steps = needs::steps(&observed.work, at, needs, now, &mut decision);
    let pause_step = match pause.state {
        State::Running { .. } => PauseStep::Runs(pause.id.clone()),
        _ => PauseStep::Start(pause.id.clone()),
    };
    let fresh = matches!(pause_step, PauseStep::Start(_)) || !needs.ever_started;
    let link = (link_needs_repair(observed, &pod.uid, pause.address) || (fresh && !steps.is_empty()))
        .then(|| link_step(observed, binding, pause.address))
        .flatten();
    let starts_pause = matches!(pause_step, PauseStep::Start(_));
    if steps.is_empty() && needs.obsolete.is_empty() && needs.remove_first.is_empty() {
        if link.is_none() && !starts_pause {
            return decision;
        }
        decision.why = if starts_pause { DecisionReason::Containers } else { DecisionReason::LinkIncomplete };
    }
    let down = TakeDown {
        remove: needs.remove_first.iter().map(|c| Target::from(*c)).collect(),
        stop: needs.stop_first.iter().map(|c| Target::from(*c)).collect(),
        grace: grace(binding),
        ..TakeDown::default()
    };
    decision.task = Some(PodTask::Up(Box::new(BringUp {
        down: with_dead_pauses(down, facts, Some(pause)),
        pause: pause_step,
        address: pause.address,
        ports: pause.ports.clone(),
        link,
        name_files: name_files(at, &steps),
        volumes: if steps.is_empty() { Vec::new() } else { volume::render::volumes(at) },
        pod: Arc::new(pod.clone()),
        containers: steps,
        obsolete: needs.obsolete.iter().map(|c| Target::from(*c)).collect(),
    })));
    decision
}

/// Plans a pod without namespaces: everything of it that still runs is stopped, and it is built again.
fn plan_without_namespaces(look: PodInput<'_>, pool: &mut AllocationPool) -> Decision {
    let PodInput { observed, binding, facts, needs, now } = look;
    let pod = &binding.pod;
    if needs.finished {
        return plan_finished(look);
    }
    if let Some(why) = observed.node.forbids(pod, None) {
        let decision = Decision::idle(pod.reference(), DecisionReason::Forbidden(why.clone()));
        return all_wait(decision, binding, facts, "CreateContainerConfigError", &why);
    }
    let mut decision = Decision::idle(
        pod.reference(),
        if facts.all().next().is_none() { DecisionReason::New } else { DecisionReason::PauseGone },
    );
    let down = TakeDown {
        remove: needs.remove_first.iter().map(|c| Target::from(*c)).collect(),
        ..stop_all(facts, grace(binding))
    };
    if let Some(until) = rebuild_allowed_at(facts, now).filter(|until| *until > now) {
        decision.why = DecisionReason::PauseEndedEarly;
        decision.next_at = Some(until);
        let message = decision.why.to_string();
        return all_wait(decision, binding, facts, "ContainerCreating", &message);
    }
    let former = facts.pauses.last();
    // A pod that does not get everything holds only what it held before.
    let before = pool.clone();
    pool.release(former.and_then(|p| p.address).map(|a| a.addr()), former.map_or(&[], |p| &p.ports));
    let address = match allocate(observed, binding, former, pool) {
        Ok(address) => address,
        Err(why) => {
            *pool = before;
            let message = why.to_string();
            decision.why = why;
            return all_wait(decision, binding, facts, "ContainerCreating", &message);
        }
    };
    // Its own containers may still listen: they are stopped first.
    let listens = pod.spec.host_network && down.stops().next().is_some();
    let of = (&decision.pod, &*pod.spec);
    // If somebody removed the pause container, only its last report is left.
    let reported = last_report_on(&observed.last_reported, &decision.pod, &binding.pod.uid);
    let reported = reported.map_or(&[][..], |status| &status.host_ports);
    let ports = match pool.ports(of, former.map_or(reported, |p| &p.ports), listens) {
        Ok(ports) => ports,
        Err(taken) => {
            *pool = before;
            // The end of a process of the node wakes no loop.
            decision.next_at = now.checked_add(PORT_AGAIN).ok();
            decision.why = DecisionReason::PortTaken(taken);
            let message = decision.why.to_string();
            return all_wait(decision, binding, facts, "HostPortConflict", &message);
        }
    };
    let at = Placement { node: &observed.node, binding, address, ports: &ports };
    let steps = needs::steps(&observed.work, at, needs, now, &mut decision);
    decision.task = Some(PodTask::Up(Box::new(BringUp {
        down: with_dead_pauses(down, facts, None),
        pause: PauseStep::Create(Box::new(sandbox::render::pause(at))),
        address,
        link: link_step(observed, binding, address),
        name_files: name_files(at, &steps),
        volumes: volume::render::volumes(at),
        pod: Arc::new(pod.clone()),
        containers: steps,
        obsolete: needs.obsolete.iter().map(|c| Target::from(*c)).collect(),
        ports,
    })));
    decision
}

fn name_files(at: Placement<'_>, steps: &[ContainerStep]) -> Option<NameFiles> {
    if steps.is_empty() { None } else { NameFiles::for_placement(at) }
}

/// Returns the time from which a pod whose pause container ended may be built again: one that ends as soon as it
/// starts must not be recreated in a loop.
fn rebuild_allowed_at(facts: &PodFacts, now: Timestamp) -> Option<Timestamp> {
    let State::Exited(end) = &facts.pauses.last()?.state else { return None };
    // A start in the future means that the clock was set back: it says nothing.
    let started_at = end.started_at.filter(|at| *at <= now)?;
    started_at.checked_add(PAUSE_LIFE_MIN).ok()
}

/// Plans a pod whose containers all ended for good: the pause container goes with its link, so that address and
/// host ports are free, as Kubernetes stops such a sandbox. Decrypted secrets and volumes in memory go too. The
/// ended containers stay for their logs.
fn plan_finished(look: PodInput<'_>) -> Decision {
    let PodInput { observed, binding, facts, needs, now } = look;
    let pauses = facts.pauses.iter().filter(|p| p.state != State::Removing);
    let down = TakeDown {
        remove: needs.remove_first.iter().copied().chain(pauses).map(Target::from).collect(),
        link: facts.live_pause().map(|_| host_link_name(&observed.node.instance, &binding.pod.uid)),
        unmount: true,
        obsolete: needs.obsolete.iter().map(|c| Target::from(*c)).collect(),
        // Sidecars, and containers that joined an older pause container and end with it; the policy restarts none.
        ..stop_all(facts, grace(binding))
    };
    let is_empty = down.stops().next().is_none() && down.remove.is_empty() && down.obsolete.is_empty();
    let task = (!is_empty).then_some(PodTask::Down(down));
    Decision {
        task,
        next_at: needs.retry_at(now),
        ..Decision::idle(binding.pod.reference(), DecisionReason::Finished)
    }
}

fn grace(binding: &Binding) -> Duration {
    Duration::from_secs(u64::from(binding.pod.spec.termination_grace_period_seconds))
}

/// Removes dead pause containers first: their name is needed.
fn with_dead_pauses(mut down: TakeDown, facts: &PodFacts, live: Option<&Container>) -> TakeDown {
    let dead = facts.pauses.iter().filter(|p| live.is_none_or(|live| live.id != p.id));
    down.remove.extend(dead.map(Target::from));
    down
}

fn allocate(
    observed: &Observed,
    binding: &Binding,
    former: Option<&Container>,
    pool: &mut AllocationPool,
) -> Result<Option<Ipv4Net>, DecisionReason> {
    if binding.pod.spec.host_network {
        return Ok(None);
    }
    let subnet = observed.desired.subnet.as_ref().ok_or(DecisionReason::NoSubnet)?;
    let preferred = former.and_then(|p| p.address).map(|a| a.addr());
    pool.address(subnet.cidr, preferred).map(Some).ok_or(DecisionReason::NoFreeAddress)
}

fn link_step(observed: &Observed, binding: &Binding, address: Option<Ipv4Net>) -> Option<LinkStep> {
    let address = address?;
    let gateway = u32::from(address.network()) + 1;
    Some(LinkStep {
        host_name: host_link_name(&observed.node.instance, &binding.pod.uid),
        bridge: names::bridge_name(&observed.node.instance),
        address,
        gateway: gateway.into(),
        mtu: observed.node.mtu,
    })
}

/// True if the link of a running pod is missing, its host end is not as it should be, or this agent has not checked
/// its inner end yet.
fn link_needs_repair(observed: &Observed, uid: &str, address: Option<Ipv4Net>) -> bool {
    let Some(links) = &observed.links else { return false };
    let bridge = names::bridge_name(&observed.node.instance);
    let end = links.get(&host_link_name(&observed.node.instance, uid));
    let address = address.map(|address| address.addr());
    let is_whole = |end: &HostEnd| end.is_whole(&bridge, observed.node.mtu, address);
    !observed.work.linked.contains(uid) || !end.is_some_and(is_whole)
}

/// Lets all containers wait except those that ended for good. The reason is the last failure, even while it is
/// being retried, or the decision's.
fn all_wait(
    mut decision: Decision,
    binding: &Binding,
    facts: &PodFacts,
    reason: &str,
    message: &str,
) -> Decision {
    let spec = &binding.pod.spec;
    let names = spec.init_containers.iter().chain(&spec.containers).map(|c| &c.name);
    for name in names.filter(|name| !needs::stays_ended(spec, facts, name)) {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        decision.waiting.insert(name.clone(), WaitingState { reason, message });
    }
    decision
}

/// Returns host ends whose pod is neither wanted nor present nor has a task in progress.
fn stray_links(observed: &Observed, wanted: &BTreeMap<&str, &Binding>) -> Vec<String> {
    // With an unreadable binding the owner of a link is unknown.
    let Some(links) = &observed.links else { return Vec::new() };
    if !observed.desired.unreadable.is_empty() {
        return Vec::new();
    }
    let uids = wanted.keys().copied().chain(observed.pods.keys().map(String::as_str));
    let uids = uids.chain(observed.work.busy.keys().map(String::as_str));
    let known: BTreeSet<String> = uids.map(|uid| host_link_name(&observed.node.instance, uid)).collect();
    links.keys().filter(|link| !known.contains(*link)).cloned().collect()
}
