//! Metrics of pods, as numbers: no series has the name of a pod.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use schema::kinds::Kind;
use schema::kinds::pod::{PodPhase, PodSpec, PodStatus};
use schema::metrics::{FamilyInfo, StateFamily};
use schema::records::PodInstance;
use schema::snapshot::{BoundPod, Snapshot};

use super::fill::fill;
use crate::controllers::scheduler::Explainer;
use crate::view::pods::restarts;
use crate::view::pods::status::{phase, reported_word};

static PODS: [FamilyInfo; 1] = [FamilyInfo::gauge(
    "minik8s_pods",
    "Desired pods, by phase and reason as in `get pods`: the reason is empty if the phase says all, and Other if it is \
     none of Minik8s's own",
    &["namespace", "phase", "reason"],
)];
static UNREADY: [FamilyInfo; 1] = [FamilyInfo::gauge(
    "minik8s_pods_unready",
    "Desired pods that are neither ready nor completed",
    &["namespace"],
)];
static RESTARTS: [FamilyInfo; 2] = [
    FamilyInfo::gauge(
        "minik8s_pod_restarts",
        "Restarts of the containers of a workload's present pods; the bare pods of a namespace count together, \
         without a name",
        &["kind", "namespace", "workload"],
    ),
    FamilyInfo::gauge(
        "minik8s_pod_restarts_max",
        "Largest number of restarts among a workload's present pods; the bare pods of a namespace count together, \
         without a name",
        &["kind", "namespace", "workload"],
    ),
];
static PENDING: [FamilyInfo; 1] = [FamilyInfo::gauge(
    "minik8s_pods_pending",
    "Desired pods without a node, by the scheduler's filter that refuses most nodes: NotReady, NoSubnet, Cordoned, \
     Draining, Taint, SelectorMismatch, NodeAffinity, TooManyPods, Cpu, Memory, Gpu, HostPort, PodAntiAffinity, \
     PodAffinity, OtherNode if no other does; NoNodes; \
     Waiting if a node fits",
    &["reason"],
)];

/// Reasons that agents report, and the words of kubectl that stand for several of them.
const REASONS: [&str; 21] = [
    "Completed",
    "ContainerCreating",
    "ContainerStatusUnknown",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "Error",
    "FailedKillPod",
    "HostPortConflict",
    "ImagePullBackOff",
    "InvalidImageName",
    "NoPodAddress",
    "NotReady",
    "OOMKilled",
    "PodInitializing",
    "RunContainerError",
    "StartError",
    PodStatus::TERMINATING,
    "WaitingForFormerPod",
];
/// Reason of a pod whose node has no heartbeat.
const NODE_LOST: &str = "NodeLost";
/// Reason that is none of Minik8s's own.
const OTHER: &str = "Other";

/// Numbers of desired pods.
#[derive(Default)]
struct Tally<'a> {
    /// By namespace, phase and reason.
    states: BTreeMap<(&'a str, &'static str, &'static str), u64>,
    /// By namespace.
    unready: BTreeMap<&'a str, u64>,
    /// By workload: of all of its pods, and the most of one.
    restarts: BTreeMap<(Kind, &'a str, &'a str), [u64; 2]>,
    /// By reason.
    pending: BTreeMap<&'static str, u64>,
}

pub(super) fn families(snapshot: &Snapshot) -> Vec<StateFamily> {
    let Tally { states, unready, restarts, pending } = Tally::count(snapshot);
    let states = states
        .iter()
        .map(|((namespace, phase, reason), count)| ([*namespace, *phase, *reason], [Some(*count as f64)]));
    let unready = unready.iter().map(|(namespace, count)| ([*namespace], [Some(*count as f64)]));
    let restarts = restarts.iter().map(|((kind, namespace, name), counts)| {
        ([kind.as_str(), *namespace, *name], counts.map(|count| Some(count as f64)))
    });
    let pending = pending.iter().map(|(reason, count)| ([*reason], [Some(*count as f64)]));
    [fill(&PODS, states), fill(&UNREADY, unready), fill(&RESTARTS, restarts), fill(&PENDING, pending)]
        .into_iter()
        .flatten()
        .collect()
}

impl<'a> Tally<'a> {
    /// Counts all pods in one walk. Only pods without a node need the load of every node.
    fn count(snapshot: &'a Snapshot) -> Self {
        let mut tally = Self::default();
        let bound = snapshot.bound_by_pod();
        let explainer: OnceCell<Explainer<'a>> = OnceCell::new();
        for (id, pod) in &snapshot.pods {
            let pod = &pod.value;
            let bound = bound.get(id).filter(|bound| bound.binding.value.pod.uid == pod.uid);
            if bound.is_none() {
                let explainer = explainer.get_or_init(|| Explainer::new(snapshot));
                *tally.pending.entry(explainer.obstacle(pod).unwrap_or("Waiting")).or_default() += 1;
            }
            tally.add(snapshot, pod, bound);
        }
        tally
    }

    fn add(&mut self, snapshot: &Snapshot, pod: &'a PodInstance, bound: Option<&BoundPod<'a>>) {
        let status = bound.and_then(|bound| bound.status_of(&pod.uid));
        let is_lost = bound.is_some_and(|bound| !snapshot.node_is_ready(bound.node()));
        let (phase_word, reason) = match status {
            _ if is_lost => (phase(PodPhase::Unknown), NODE_LOST),
            Some(status) => (phase(status.phase), reason(status, &pod.spec)),
            None => (phase(PodPhase::Pending), ""),
        };
        let is_completed =
            |status: &PodStatus| status.phase == PodPhase::Succeeded && !status.is_terminating();
        let is_well = status.is_some_and(|status| is_completed(status) || (!is_lost && status.is_ready()));
        let namespace = pod.namespace.as_str();
        *self.states.entry((namespace, phase_word, reason)).or_default() += 1;
        *self.unready.entry(namespace).or_default() += u64::from(!is_well);
        let workload = if pod.owner.kind == Kind::Pod { "" } else { pod.owner.name.as_str() };
        let count = u64::from(restarts(status));
        let [all, most] = self.restarts.entry((pod.owner.kind, namespace, workload)).or_default();
        *all += count;
        *most = count.max(*most);
    }
}

/// Returns the reason of a phase; empty if there is none. Nodes may report any word.
fn reason(status: &PodStatus, spec: &PodSpec) -> &'static str {
    let reported = reported_word(status, spec);
    let word = match reported.strip_prefix("Init:") {
        // The number of init containers that are done.
        Some(done) if done.starts_with(|c: char| c.is_ascii_digit()) => "PodInitializing",
        Some(word) => word,
        None => reported.as_str(),
    };
    match word {
        word if word == phase(status.phase) => "",
        word if word.starts_with("ExitCode:") => "Error",
        word => REASONS.into_iter().find(|known| *known == word).unwrap_or(OTHER),
    }
}
