//! Folds observations and decisions into `status/<node>/pods/…`, for pods that are wanted or still exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use tokio::sync::watch;

use super::facts::{Observed, PodFacts, Uid};
use super::status::statuses::{Statuses, is_final, last_report_on};
use super::status::terminating::{Termination, terminating_status};
use super::status::wanted;
use super::steps::{DecisionReason, PodTask, PodsPlan};
use crate::converge::shared::node_network::{PodNet, PodTable};
use crate::desired::StateOrigin;

/// True if some status is the final report on a pod of which nothing is left: its key is removed next.
pub fn has_final_reports(statuses: &Statuses, observed: &Observed) -> bool {
    let is_gone = |uid: &str| !observed.pods.contains_key(uid) && !observed.work.busy.contains_key(uid);
    statuses.pods.values().any(|status| status.is_terminating() && is_gone(&status.uid))
}

/// Returns the statuses after this run; `own` are those after the previous run, if this agent made it.
pub fn fold(observed: &Observed, plan: &PodsPlan, own: &Statuses, now: Timestamp) -> Statuses {
    let node = &observed.node;
    let nothing = PodFacts::default();
    let last = |pod: &NamespacedName, uid: &str| last_report_on(&observed.last_reported, pod, uid);
    let complete = observed.desired.known_from == StateOrigin::Etcd;
    let mut statuses = Statuses { complete, is_listed: true, ..Statuses::default() };
    for (uid, facts) in &observed.pods {
        let Some(pod) = &facts.pod else { continue };
        let stays =
            |why: &DecisionReason| matches!(why, DecisionReason::Unreadable | DecisionReason::Unsettled);
        let stays = plan.pods.get(uid).is_none_or(|d| stays(&d.why));
        if observed.desired.known_from == StateOrigin::Unknown || stays {
            // Nothing is known about the pod, so nothing new is reported.
            if let Some(status) = last(pod, uid) {
                statuses.pods.insert(pod.clone(), Arc::new(status.clone()));
            }
            continue;
        }
        let status = terminating_status(Termination::new(observed, uid, facts), last(pod, uid), now);
        statuses.pods.insert(pod.clone(), Arc::new(status));
    }
    // Containers are gone, folder or link not yet.
    for (uid, busy) in &observed.work.busy {
        if !observed.pods.contains_key(uid)
            && let Some(former) = last(&busy.pod, uid)
        {
            let status = terminating_status(Termination::new(observed, uid, &nothing), Some(former), now);
            statuses.pods.insert(busy.pod.clone(), Arc::new(status));
        }
    }
    // Gone before its end was reported: that becomes its final report, once.
    let desired = &observed.desired;
    let is_known = desired.known_from != StateOrigin::Unknown && desired.is_settled();
    for (pod, former) in own.pods.iter().filter(|(_, former)| is_known && !is_final(former)) {
        let is_wanted = desired.pods.contains_key(pod) || desired.unreadable.contains_key(pod);
        if is_wanted || statuses.pods.contains_key(pod) {
            continue;
        }
        let status = terminating_status(Termination::new(observed, &former.uid, &nothing), Some(former), now);
        statuses.pods.insert(pod.clone(), Arc::new(status));
    }
    for (pod, binding) in &observed.desired.pods {
        let uid = &binding.pod.uid;
        let Some(decision) = plan.pods.get(uid) else { continue };
        if let Some(end) = observed.finished.get(uid) {
            // Whatever happened to its containers since.
            statuses.pods.insert(pod.clone(), Arc::clone(end));
            continue;
        }
        let facts = observed.pods.get(uid).unwrap_or(&nothing);
        let work = &observed.work;
        let mut without_image = work.pulling.keys().chain(&work.missing);
        let lacks_image = !decision.pulls.is_empty() || without_image.any(|(of, _)| of == uid);
        let seen = wanted::WantedPod { node, binding, facts, decision, lacks_image };
        let mut status = wanted::wanted_status(seen, last(pod, uid), now);
        if decision.why == DecisionReason::FormerPod {
            let former = observed
                .pods
                .iter()
                .filter(|(other, facts)| *other != uid && facts.pod.as_ref() == Some(pod));
            if let Some(trouble) = former.filter_map(|(uid, _)| observed.work.removal_failure(uid)).next() {
                status.message = format!("{}, which can't be removed: {}", status.message, trouble.message);
            }
        }
        statuses.pods.insert(pod.clone(), Arc::new(status));
    }
    statuses
}

/// Returns the function pods that are about to run: their rules are written while their containers are created.
pub fn starting(observed: &Observed, plan: &PodsPlan) -> BTreeMap<Uid, PodNet> {
    let functions = observed.desired.pods.values().map(|binding| &binding.pod);
    let functions = functions.filter(|pod| pod.owner.kind == Kind::Function);
    let starting = functions.filter_map(|pod| {
        let uid = &pod.uid;
        let planned = match plan.pods.get(uid).and_then(|decision| decision.task.as_ref()) {
            Some(PodTask::Up(up)) => up.address.map(|address| address.addr()),
            Some(PodTask::Down(_)) | None => None,
        };
        let busy = observed.work.busy.get(uid).filter(|busy| busy.up).and_then(|busy| busy.address);
        let (pod, address) = (pod.reference(), planned.or(busy)?);
        Some((uid.clone(), PodNet { pod, uid: uid.clone(), address, is_function: true, ports: Vec::new() }))
    });
    starting.collect()
}

/// Publishes the pods that run or are about to, for the network loop; wakes it only if they changed.
pub fn publish(
    pods: &BTreeMap<Uid, PodFacts>,
    starting: BTreeMap<Uid, PodNet>,
    table: &watch::Sender<PodTable>,
) {
    let running = pods.iter().filter_map(|(uid, facts)| {
        let pause = facts.live_pause().filter(|p| p.is_running())?;
        let net = PodNet {
            pod: facts.pod.clone()?,
            uid: uid.clone(),
            address: pause.address?.addr(),
            is_function: pause.is_function,
            ports: pause.ports.clone(),
        };
        Some((uid.clone(), net))
    });
    let mut next = starting;
    next.extend(running);
    schema::control::publish(table, Some(Arc::new(next)));
}
