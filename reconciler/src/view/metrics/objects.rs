//! Metrics of objects: their number and health, and what their records say about them.

use std::collections::{BTreeMap, HashMap};

use schema::kinds::job::JobPhase;
use schema::kinds::{Health, Kind, Resource};
use schema::meta::NamespacedName;
use schema::metrics::{FamilyInfo, StateFamily};
use schema::records::{AutoscalerRecord, OutboxEntry};
use schema::snapshot::Snapshot;
use schema::snapshot::health::health;

use super::fill::fill;

static OBJECTS: [FamilyInfo; 2] = [
    FamilyInfo::gauge("minik8s_objects", "Objects from Git", &["kind"]),
    FamilyInfo::gauge(
        "minik8s_objects_unhealthy",
        "Degraded objects, which need someone's attention",
        &["kind"],
    ),
];
static WORKLOADS: [FamilyInfo; 4] = [
    FamilyInfo::gauge(
        "minik8s_workload_replicas_desired",
        "Pods that a workload should have, by its manifest or its autoscaler",
        &["kind", "namespace", "workload"],
    ),
    FamilyInfo::gauge(
        "minik8s_workload_replicas_ready",
        "Ready pods of a workload",
        &["kind", "namespace", "workload"],
    ),
    FamilyInfo::gauge(
        "minik8s_workload_replicas_updated",
        "Pods of a workload with the desired template",
        &["kind", "namespace", "workload"],
    ),
    FamilyInfo::gauge(
        "minik8s_rollout_failed",
        "1 if the rollout of a workload's desired template has failed, else 0",
        &["kind", "namespace", "workload"],
    ),
];
static AUTOSCALERS: [FamilyInfo; 4] = [
    FamilyInfo::gauge(
        "minik8s_autoscaler_replicas_desired",
        "Pods that an autoscaler decided on; the label workload has the name of the autoscaler",
        &["namespace", "workload"],
    ),
    FamilyInfo::gauge(
        "minik8s_autoscaler_replicas_current",
        "Pods of the autoscaler's target at its last evaluation",
        &["namespace", "workload"],
    ),
    FamilyInfo::gauge(
        "minik8s_autoscaler_replicas_min",
        "Lower bound of the autoscaler",
        &["namespace", "workload"],
    ),
    FamilyInfo::gauge(
        "minik8s_autoscaler_replicas_max",
        "Upper bound of the autoscaler",
        &["namespace", "workload"],
    ),
];
static SERVICES: [FamilyInfo; 1] = [FamilyInfo::gauge(
    "minik8s_service_endpoints",
    "Endpoints of a service; missing for an alias",
    &["namespace", "service"],
)];
static FUNCTIONS: [FamilyInfo; 3] = [
    FamilyInfo::gauge(
        "minik8s_function_replicas",
        "Replicas of a function that accept calls",
        &["namespace", "function"],
    ),
    FamilyInfo::gauge(
        "minik8s_function_calls_waiting",
        "Calls that wait for a replica, on all live nodes",
        &["namespace", "function"],
    ),
    FamilyInfo::gauge(
        "minik8s_function_calls_running",
        "Calls at a replica, on all live nodes",
        &["namespace", "function"],
    ),
];
static WORKFLOWS: [FamilyInfo; 1] = [FamilyInfo::gauge(
    "minik8s_workflow_runs",
    "Runs of a workflow that have not ended: Running, Waiting (for others to end)",
    &["namespace", "workflow", "state"],
)];
static JOBS: [FamilyInfo; 1] = [FamilyInfo::gauge(
    "minik8s_jobs",
    "Slurm jobs, by phase: Pending, Uploading, Submitting, Queued, Running, Suspended, Fetching, Succeeded, Failed, \
     Cancelled, Unknown, Deleting",
    &["namespace", "phase"],
)];
static NOTIFICATIONS: [FamilyInfo; 2] = [
    FamilyInfo::gauge(
        "minik8s_notifications_waiting",
        "Subjects whose newest message has not reached the target",
        &["target"],
    ),
    FamilyInfo::gauge(
        "minik8s_notifications_failing",
        "Subjects whose last delivery to the target failed",
        &["target"],
    ),
];

pub(super) fn families(snapshot: &Snapshot) -> Vec<StateFamily> {
    [
        objects(snapshot),
        workloads(snapshot),
        autoscalers(snapshot),
        services(snapshot),
        functions(snapshot),
        workflows(snapshot),
        jobs(snapshot),
        notifications(snapshot),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn objects(snapshot: &Snapshot) -> Vec<StateFamily> {
    let mut kinds: BTreeMap<Kind, (u64, u64)> = BTreeMap::new();
    for (id, object) in &snapshot.objects {
        let (all, degraded) = kinds.entry(id.kind).or_default();
        *all += 1;
        *degraded += u64::from(matches!(health(snapshot, &object.value), Health::Degraded { .. }));
    }
    let rows = kinds
        .iter()
        .map(|(kind, (all, degraded))| ([kind.as_str()], [*all, *degraded].map(|count| Some(count as f64))));
    fill(&OBJECTS, rows)
}

fn workloads(snapshot: &Snapshot) -> Vec<StateFamily> {
    let rows = snapshot.rollouts.iter().map(|(id, rollout)| {
        let (status, failed) = (&rollout.value.status, rollout.value.failure.is_some());
        let counts = [status.desired_replicas, status.ready_replicas, status.updated_replicas];
        let [desired, ready, updated] = counts.map(|count| Some(f64::from(count)));
        let labels = [id.kind.as_str(), id.namespace.as_str(), id.name.as_str()];
        (labels, [desired, ready, updated, Some(f64::from(failed))])
    });
    fill(&WORKLOADS, rows)
}

fn autoscalers(snapshot: &Snapshot) -> Vec<StateFamily> {
    let rows = snapshot.autoscalers.iter().map(|(id, record)| {
        let AutoscalerRecord { status, .. } = &record.value;
        let object = snapshot.objects.get(&id.of_kind(Kind::HorizontalPodAutoscaler));
        let bounds = object.and_then(|object| match &object.value.resource {
            Resource::HorizontalPodAutoscaler(spec) => Some((spec.min_replicas, spec.max_replicas)),
            _ => None,
        });
        let values = [
            Some(status.desired_replicas),
            Some(status.current_replicas),
            bounds.map(|(min, _)| min),
            bounds.map(|(_, max)| max),
        ];
        (labels(id), values.map(|count| count.map(f64::from)))
    });
    fill(&AUTOSCALERS, rows)
}

fn labels(id: &NamespacedName) -> [&str; 2] {
    [&id.namespace, &id.name]
}

fn services(snapshot: &Snapshot) -> Vec<StateFamily> {
    let own = snapshot.services.iter().filter(|(_, record)| record.value.external_name.is_none());
    fill(&SERVICES, own.map(|(id, record)| (labels(id), [Some(record.value.endpoints.len() as f64)])))
}

fn functions(snapshot: &Snapshot) -> Vec<StateFamily> {
    // By `namespace/name`. Nodes may report calls of functions that do not exist; these are not read.
    let mut calls: HashMap<&str, [u64; 2]> = HashMap::new();
    let living = snapshot.demand.iter().filter(|(node, _)| snapshot.node_is_ready(node));
    for (function, demand) in living.flat_map(|(_, demand)| &demand.value.functions) {
        let [waiting, running] = calls.entry(function).or_default();
        *waiting += u64::from(demand.waiting);
        *running += u64::from(demand.in_flight);
    }
    let rows = snapshot.functions.iter().map(|(id, record)| {
        let sums = calls.get(id.to_string().as_str()).copied().unwrap_or_default();
        let [waiting, running] = sums.map(|sum| Some(sum as f64));
        (labels(id), [Some(record.value.replicas.len() as f64), waiting, running])
    });
    fill(&FUNCTIONS, rows)
}

fn workflows(snapshot: &Snapshot) -> Vec<StateFamily> {
    let rows = snapshot.workflows.iter().flat_map(|(id, record)| {
        let states = [("Running", record.value.running), ("Waiting", record.value.waiting)];
        let [namespace, name] = labels(id);
        states.map(|(state, count)| ([namespace, name, state], [Some(f64::from(count))]))
    });
    fill(&WORKFLOWS, rows)
}

fn jobs(snapshot: &Snapshot) -> Vec<StateFamily> {
    let objects = snapshot.objects.keys().filter(|id| id.kind == Kind::Job);
    let mut phases: BTreeMap<(&str, &str), JobPhase> =
        objects.map(|id| ((id.namespace.as_str(), id.name.as_str()), JobPhase::Pending)).collect();
    for (place, order) in &snapshot.jobs {
        let report = snapshot.job_reports.get(place).filter(|report| report.value.uid == order.value.uid);
        let phase = report.map(|report| report.value.status.phase).unwrap_or_default();
        phases.insert((place.1.namespace.as_str(), place.1.name.as_str()), phase);
    }
    let mut counts: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for ((namespace, _), phase) in phases {
        *counts.entry((namespace, format!("{phase:?}"))).or_default() += 1;
    }
    let rows = counts
        .iter()
        .map(|((namespace, phase), count)| ([*namespace, phase.as_str()], [Some(*count as f64)]));
    fill(&JOBS, rows)
}

fn notifications(snapshot: &Snapshot) -> Vec<StateFamily> {
    let mut targets: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for ((target, _), entry) in &snapshot.outbox {
        let OutboxEntry { wanted, sent, error, .. } = &entry.value;
        let is_told = sent.as_ref().is_some_and(|sent| sent.message == *wanted);
        let [waiting, failing] = targets.entry(target).or_default();
        *waiting += u64::from(!is_told);
        *failing += u64::from(error.is_some());
    }
    let rows = targets.iter().map(|(target, counts)| ([*target], counts.map(|count| Some(count as f64))));
    fill(&NOTIFICATIONS, rows)
}
