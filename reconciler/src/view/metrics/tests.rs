//! Samples of small snapshots, and the bounds of labels.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use schema::kinds::job::{JobPhase, JobSpec, JobStatus};
use schema::kinds::node::NodeSpec;
use schema::kinds::pod::{ContainerState, PodPhase, PodStatus, RunningState, TerminatedState};
use schema::kinds::{Kind, Resource};
use schema::records::{
    Endpoint, EtcdMember, FunctionDemand, FunctionRecord, HeldPrune, JobOrder, JobReport, NodeDemand,
    Quarantine, Replica, Revision, ServiceRecord, SourceState, SourceStatus, Timeline, Verdict,
    WorkflowRecord,
};
use serde_json::json;

use super::*;
use crate::view::HookCounts;
use crate::view::testing::*;

type Sample<'a> = (&'a str, f64);

/// Checks the samples of families: values of the labels, joined by commas, and the value.
#[track_caller]
fn check(families: &[StateFamily], wanted: &[(&str, &[Sample<'_>])]) {
    for (name, wanted) in wanted {
        let family = families.iter().find(|family| family.info.name == *name).expect("the family is there");
        let found: Vec<(String, f64)> =
            family.samples.iter().map(|(labels, value)| (labels.join(","), *value)).collect();
        let found: Vec<Sample<'_>> = found.iter().map(|(labels, value)| (labels.as_str(), *value)).collect();
        assert_eq!(found, *wanted, "{name}");
    }
}

fn put_commits(snapshot: &mut Snapshot) {
    let timeline = Timeline {
        seen_at: at(0),
        seen_by: None,
        read: None,
        checked: None,
        planned: None,
        applied: Some(400),
        bound: None,
        ready: Some(900),
        programmed: None,
        decided: None,
        pods: 0,
        slowest: Vec::new(),
    };
    let newest = Timeline {
        read: Some(120),
        checked: Some(130),
        applied: Some(150),
        bound: Some(145),
        ready: None,
        ..timeline.clone()
    };
    let verdict = Verdict::Degraded { why: "1 file could not be applied".to_owned() };
    let before = Revision { timeline: Some(timeline), ..revision(1, C1) };
    let newest = Revision { timeline: Some(newest), verdict, ..revision(2, C2) };
    for revision in [before, newest] {
        snapshot.revisions.insert(("main".to_owned(), revision.sequence), versioned(revision));
    }
    let file = Quarantine {
        file: "apps/db.yaml".to_owned(),
        commit: C3.to_owned(),
        author: "Ada <ada@example.org>".to_owned(),
        violations: Vec::new(),
        violations_total: 1,
    };
    let held = HeldPrune {
        commit: C3.to_owned(),
        why: "too many".to_owned(),
        deletes: 4,
        owned: 7,
        since: 0,
        objects: Vec::new(),
    };
    let status = SourceStatus {
        state: SourceState::Degraded,
        quarantined: vec![file],
        held_prune: Some(held),
        waiting_total: 3,
        objects: 7,
        ..source(C3, C2, 2)
    };
    put_source(snapshot, status);
}

#[test]
fn a_source_has_its_numbers_and_each_step_of_the_newest_commit_that_has_it() {
    let mut snapshot = snapshot();
    put_commits(&mut snapshot);
    check(
        &state_families(&snapshot),
        &[
            ("minik8s_source_applied_timestamp_seconds", &[("main", 1_767_225_660.0)]),
            ("minik8s_source_in_sync", &[("main", 0.0)]),
            ("minik8s_source_quarantined_files", &[("main", 1.0)]),
            ("minik8s_source_held_deletes", &[("main", 4.0)]),
            ("minik8s_source_waiting_objects", &[("main", 3.0)]),
            ("minik8s_source_objects", &[("main", 7.0)]),
            ("minik8s_source_revision", &[("main", 2.0)]),
            ("minik8s_source_state", &[("main,Degraded", 1.0)]),
            ("minik8s_commit_verdict", &[("main,Degraded", 1.0)]),
            (
                "minik8s_commit_phase_seconds",
                &[
                    ("main,apply", 0.02),
                    ("main,bind", 0.0),
                    ("main,check", 0.01),
                    ("main,read", 0.12),
                    ("main,ready", 0.5),
                ],
            ),
        ],
    );
    put_source(&mut snapshot, source(C2, C2, 2));
    check(
        &state_families(&snapshot),
        &[("minik8s_source_in_sync", &[("main", 1.0)]), ("minik8s_source_state", &[("main,Synced", 1.0)])],
    );
}

fn ended(reason: &str) -> PodStatus {
    let state = ContainerState::Terminated(TerminatedState {
        exit_code: 0,
        reason: reason.to_owned(),
        message: String::new(),
        started_at: None,
        finished_at: None,
    });
    PodStatus {
        phase: PodPhase::Succeeded,
        container_statuses: vec![container("app", state)],
        ..PodStatus::default()
    }
}

/// Status of a pod whose init container is in this state.
fn initializing(state: ContainerState) -> PodStatus {
    let init = vec![container("setup", state)];
    PodStatus { init_container_statuses: init, ..pod_waiting("PodInitializing", "") }
}

fn runs() -> ContainerState {
    ContainerState::Running(RunningState { started_at: at(62) })
}

/// Bare pods in all phases, on a live node and on a silent one, and two without a node.
fn put_pods(snapshot: &mut Snapshot) {
    put_node(snapshot, "n2");
    snapshot.heartbeats.remove("n2");
    put_pod(snapshot, "web", running());
    let mut crash = pod_waiting("CrashLoopBackOff", "back-off 10s");
    crash.container_statuses[0].restart_count = 3;
    put_pod(snapshot, "crash", crash);
    let mut odd = pod_waiting("no\"} 1\nsuch_metric 2", "");
    odd.container_statuses[0].restart_count = 1;
    put_pod(snapshot, "odd", odd);
    put_pod(snapshot, "done", ended("Completed"));
    put_pod(snapshot, "init", initializing(runs()));
    for (name, status) in [("lost", running()), ("over", ended("Completed"))] {
        let object = put_object(snapshot, name, C2);
        let lost = put_instance(snapshot, &object);
        bind(snapshot, &lost, "n2");
        report(snapshot, &lost, "n2", status);
    }
    for (name, cpu) in [("big", 9_000), ("small", 100)] {
        put_instance(snapshot, &object_of(name, spec(cpu, 64)));
    }
}

#[test]
fn pods_are_counted_by_phase_and_reason_as_they_are_listed() {
    let mut snapshot = snapshot();
    put_pods(&mut snapshot);
    check(
        &state_families(&snapshot),
        &[
            (
                "minik8s_pods",
                &[
                    ("default,Pending,", 2.0),
                    ("default,Pending,CrashLoopBackOff", 1.0),
                    ("default,Pending,Other", 1.0),
                    ("default,Pending,PodInitializing", 1.0),
                    ("default,Running,", 1.0),
                    ("default,Succeeded,Completed", 1.0),
                    ("default,Unknown,NodeLost", 2.0),
                ],
            ),
            ("minik8s_pods_unready", &[("default", 6.0)]),
            ("minik8s_pods_pending", &[("Cpu", 1.0), ("Waiting", 1.0)]),
            ("minik8s_pod_restarts", &[("Pod,default,", 4.0)]),
            ("minik8s_pod_restarts_max", &[("Pod,default,", 3.0)]),
        ],
    );
}

#[test]
fn a_word_that_a_node_makes_up_is_no_reason() {
    let waits = |reason: &str| pod_waiting(reason, "").container_statuses[0].state.clone();
    for (status, wanted) in [
        (PodStatus { reason: "a-secret".to_owned(), ..running() }, "Running,Other"),
        (ended("a-secret"), "Succeeded,Other"),
        (ended(""), "Succeeded,Error"),
        (initializing(waits("a-secret")), "Pending,Other"),
        (initializing(waits("ErrImagePull")), "Pending,ErrImagePull"),
        (PodStatus { reason: PodStatus::TERMINATING.to_owned(), ..running() }, "Running,Terminating"),
    ] {
        let mut snapshot = snapshot();
        put_pod(&mut snapshot, "web", status);
        let labels = format!("default,{wanted}");
        check(&state_families(&snapshot), &[("minik8s_pods", &[(labels.as_str(), 1.0)])]);
    }
}

fn put_nodes(snapshot: &mut Snapshot) {
    put_node(snapshot, "n2");
    snapshot.heartbeats.remove("n2");
    let cordoned = object_of("n2", NodeSpec { unschedulable: true, ..NodeSpec::default() });
    snapshot.objects.insert(cordoned.reference(), versioned(cordoned));
    let pod = instance("web", spec(500, 64));
    snapshot.pods.insert(pod.reference(), versioned(pod.clone()));
    bind(snapshot, &pod, "n1");
}

#[test]
fn a_node_has_its_state_its_room_and_what_is_taken_of_it() {
    let mut snapshot = snapshot();
    put_nodes(&mut snapshot);
    let gib = f64::from(1 << 30);
    check(
        &state_families(&snapshot),
        &[
            ("minik8s_node_ready", &[("n1", 1.0), ("n2", 0.0)]),
            ("minik8s_node_unschedulable", &[("n1", 0.0), ("n2", 1.0)]),
            ("minik8s_node_allocatable_cpu_cores", &[("n1", 2.0), ("n2", 2.0)]),
            ("minik8s_node_allocatable_memory_bytes", &[("n1", 4.0 * gib), ("n2", 4.0 * gib)]),
            ("minik8s_node_requested_cpu_cores", &[("n1", 0.5), ("n2", 0.0)]),
            ("minik8s_node_requested_memory_bytes", &[("n1", gib / 16.0), ("n2", 0.0)]),
            ("minik8s_node_pods", &[("n1", 1.0), ("n2", 0.0)]),
        ],
    );
}

/// A workload whose rollout failed, and its autoscaler.
fn put_workload(snapshot: &mut Snapshot) {
    let set = json!({"replicas": 3, "selector": {}, "template": {"spec": {"containers": []}}});
    let set = object_of("set", Resource::ReplicaSet(serde_json::from_value(set).unwrap()));
    let hpa =
        json!({"scaleTargetRef": {"kind": "ReplicaSet", "name": "set"}, "minReplicas": 2, "maxReplicas": 9});
    let hpa = object_of("hpa", Resource::HorizontalPodAutoscaler(serde_json::from_value(hpa).unwrap()));
    let rollout = json!({"objectHash": "", "commit": C2, "wanted": "b", "good": "a", "startedAt": at(60),
        "progressedAt": at(60), "best": {"updated": 0, "available": 0, "old": 0},
        "failure": {"at": at(90), "reason": "ProgressDeadlineExceeded", "message": "no pod starts"},
        "status": {"observedGeneration": 1, "desiredReplicas": 3, "readyReplicas": 2, "updatedReplicas": 1,
            "conditions": [{"type": "Progressing", "status": "False", "message": "no pod starts",
                "lastTransitionTime": at(90)}]}});
    let record = json!({"observedGeneration": 1, "target": set.reference(), "decidedAt": at(60),
        "status": {"currentReplicas": 3, "desiredReplicas": 4}});
    snapshot.rollouts.insert(set.reference(), versioned(serde_json::from_value(rollout).unwrap()));
    snapshot.autoscalers.insert(pod_ref("hpa"), versioned(serde_json::from_value(record).unwrap()));
    for object in [set, hpa] {
        snapshot.objects.insert(object.reference(), versioned(object));
    }
}

#[test]
fn workloads_have_their_numbers_and_degraded_objects_are_counted() {
    let mut snapshot = snapshot();
    put_workload(&mut snapshot);
    let set = "ReplicaSet,default,set";
    check(
        &state_families(&snapshot),
        &[
            ("minik8s_workload_replicas_desired", &[(set, 3.0)]),
            ("minik8s_workload_replicas_ready", &[(set, 2.0)]),
            ("minik8s_workload_replicas_updated", &[(set, 1.0)]),
            ("minik8s_rollout_failed", &[(set, 1.0)]),
            ("minik8s_autoscaler_replicas_desired", &[("default,hpa", 4.0)]),
            ("minik8s_autoscaler_replicas_current", &[("default,hpa", 3.0)]),
            ("minik8s_autoscaler_replicas_min", &[("default,hpa", 2.0)]),
            ("minik8s_autoscaler_replicas_max", &[("default,hpa", 9.0)]),
            ("minik8s_objects", &[("ReplicaSet", 1.0), ("HorizontalPodAutoscaler", 1.0)]),
            ("minik8s_objects_unhealthy", &[("ReplicaSet", 1.0), ("HorizontalPodAutoscaler", 0.0)]),
        ],
    );
}

/// A service and an alias, a function with calls, a workflow, two jobs and three subjects of notifications.
fn put_others(snapshot: &mut Snapshot) {
    let address = Ipv4Addr::new(10, 244, 0, 5);
    let endpoint = Endpoint { address, ports: vec![80], node: None, pod: None, hostname: None };
    let service = ServiceRecord { endpoints: vec![endpoint], ..ServiceRecord::default() };
    let alias = ServiceRecord { external_name: Some("example.org".to_owned()), ..ServiceRecord::default() };
    snapshot.services.insert(pod_ref("web"), versioned(service));
    snapshot.services.insert(pod_ref("alias"), versioned(alias));
    let address = "10.244.0.6:8080".parse().unwrap();
    let replica = Replica { pod: "hello-0".to_owned(), node: "n1".to_owned(), address, start: None };
    let function = FunctionRecord { replicas: vec![replica], ..FunctionRecord::default() };
    snapshot.functions.insert(pod_ref("hello"), versioned(function));
    let calls = FunctionDemand { waiting: 2, in_flight: 3, ..FunctionDemand::default() };
    let demand = NodeDemand {
        at: None,
        since: at(0),
        functions: ["default/hello", "default/made-up"].map(|name| (name.to_owned(), calls)).into(),
        beats: Default::default(),
        failures: Default::default(),
    };
    for node in ["n1", "silent"] {
        snapshot.demand.insert(node.to_owned(), versioned(demand.clone()));
    }
    let workflow = WorkflowRecord { running: 2, waiting: 1, ..WorkflowRecord::default() };
    snapshot.workflows.insert(pod_ref("flow"), versioned(workflow));
    put_jobs(snapshot);
    let wanted = json!({"event": "node", "state": "failure", "title": "n1 is lost"});
    let told = json!({"message": wanted, "id": "1", "at": at(1)});
    for (target, subject, sent, error) in [
        ("chat", "nodes", &told, None),
        ("chat", "etcd", &json!(null), Some("refused")),
        ("mail", "nodes", &told, None),
    ] {
        let entry = json!({"target": target, "subject": subject, "wanted": wanted, "sequence": 1, "since": at(0),
            "sent": sent, "error": error});
        let key = (target.to_owned(), subject.to_owned());
        snapshot.outbox.insert(key, versioned(serde_json::from_value(entry).unwrap()));
    }
}

/// Two jobs, of which one has ended on node `n1`.
fn put_jobs(snapshot: &mut Snapshot) {
    for name in ["new", "old"] {
        let job = object_of(name, JobSpec::default());
        snapshot.objects.insert(job.reference(), versioned(job));
    }
    let order = JobOrder {
        uid: "u1".to_owned(),
        hash: String::new(),
        spec: JobSpec::default(),
        files: Default::default(),
        created_at: at(0),
        dependency: Default::default(),
        reached: true,
        former: Vec::new(),
        deleting: false,
    };
    let status = JobStatus { phase: JobPhase::Succeeded, ..JobStatus::default() };
    let report = JobReport { uid: "u1".to_owned(), status, ..JobReport::default() };
    let place = ("n1".to_owned(), pod_ref("old"));
    snapshot.jobs.insert(place.clone(), versioned(order));
    snapshot.job_reports.insert(place, versioned(report));
}

#[test]
fn services_functions_workflows_jobs_and_notifications_have_their_numbers() {
    let mut snapshot = snapshot();
    put_others(&mut snapshot);
    check(
        &state_families(&snapshot),
        &[
            ("minik8s_service_endpoints", &[("default,web", 1.0)]),
            ("minik8s_function_replicas", &[("default,hello", 1.0)]),
            ("minik8s_function_calls_waiting", &[("default,hello", 2.0)]),
            ("minik8s_function_calls_running", &[("default,hello", 3.0)]),
            ("minik8s_workflow_runs", &[("default,flow,Running", 2.0), ("default,flow,Waiting", 1.0)]),
            ("minik8s_jobs", &[("default,Pending", 1.0), ("default,Succeeded", 1.0)]),
            ("minik8s_notifications_waiting", &[("chat", 1.0), ("mail", 0.0)]),
            ("minik8s_notifications_failing", &[("chat", 1.0), ("mail", 0.0)]),
        ],
    );
}

fn etcd() -> UpkeepState {
    let member = |id: &str, size_bytes| EtcdMember { id: id.to_owned(), size_bytes, ..EtcdMember::default() };
    let full = EtcdMember { quota_bytes: Some(100), alarms: vec!["NOSPACE".to_owned()], ..member("a", 10) };
    let silent = EtcdMember { error: Some("connection refused".to_owned()), ..member("b", 30) };
    UpkeepState { members: vec![full, silent], ..UpkeepState::default() }
}

#[test]
fn a_reconciler_tells_who_leads_and_how_it_sees_etcd() {
    let hooks = Some(HookCounts { accepted: 2, too_large: 1, ..HookCounts::default() });
    let mut etcd = etcd();
    let own = OwnState { leads: true, etcd: &etcd, hooks };
    let families = own_families(&own);
    let outcomes = [
        ("accepted", 2.0),
        ("duplicate", 0.0),
        ("ignored", 0.0),
        ("refused", 0.0),
        ("too_large", 1.0),
        ("busy", 0.0),
        ("slow", 0.0),
    ];
    check(
        &families,
        &[
            ("minik8s_leader", &[("", 1.0)]),
            ("minik8s_etcd_up", &[("", 1.0)]),
            ("minik8s_etcd_members", &[("answering", 1.0), ("silent", 1.0)]),
            ("minik8s_etcd_database_bytes", &[("", 30.0)]),
            ("minik8s_etcd_quota_bytes", &[("", 100.0)]),
            ("minik8s_etcd_alarms", &[("", 1.0)]),
            ("minik8s_webhook_requests", &outcomes),
        ],
    );
    etcd.members.remove(0);
    let families = own_families(&OwnState { leads: false, etcd: &etcd, hooks: None });
    check(&families, &[("minik8s_leader", &[("", 0.0)]), ("minik8s_etcd_up", &[("", 0.0)])]);
    let unknown = own_families(&OwnState { leads: false, etcd: &UpkeepState::default(), hooks: None });
    check(
        &unknown,
        &[("minik8s_etcd_up", &[]), ("minik8s_etcd_members", &[]), ("minik8s_webhook_requests", &[])],
    );
}

#[test]
fn every_family_has_samples_and_no_two_have_the_same_labels() {
    let mut snapshot = snapshot();
    for put in [put_commits, put_pods, put_nodes, put_workload, put_others] {
        put(&mut snapshot);
    }
    let etcd = etcd();
    let own = OwnState { leads: true, etcd: &etcd, hooks: Some(HookCounts::default()) };
    let families: Vec<StateFamily> = [own_families(&own), state_families(&snapshot)].concat();
    let names: BTreeSet<&str> = families.iter().map(|family| family.info.name).collect();
    assert_eq!(names.len(), families.len(), "a family is there twice");
    let described = [own_infos(), state_infos()].concat();
    assert_eq!(described, families.iter().map(|family| family.info).collect::<Vec<_>>());
    for StateFamily { info, samples } in &families {
        assert!(!samples.is_empty(), "{} has no sample", info.name);
        let labels: BTreeSet<_> = samples.iter().map(|(labels, _)| labels).collect();
        assert_eq!(labels.len(), samples.len(), "{} has the same labels twice", info.name);
        assert!(labels.iter().all(|labels| labels.len() == info.labels.len()), "{}", info.name);
    }
}

/// A snapshot of 50 workloads with this many ready pods each, on five nodes.
fn with_replicas(count: usize) -> Snapshot {
    let mut snapshot = snapshot();
    let nodes = ["n1", "n2", "n3", "n4", "n5"];
    nodes.iter().for_each(|node| put_node(&mut snapshot, node));
    let rollout = json!({"objectHash": "", "commit": C2, "wanted": "b", "startedAt": at(60), "progressedAt": at(60),
        "best": {"updated": 0, "available": 0, "old": 0}, "status": {"desiredReplicas": count}});
    for workload in 0..50 {
        let name = format!("web-{workload}");
        let id = pod_ref(&name).of_kind(Kind::ReplicaSet);
        snapshot.rollouts.insert(id, versioned(serde_json::from_value(rollout.clone()).unwrap()));
        for number in 0..count {
            let pod = replica(&name, &format!("{name}-0123abcd-{number}"), spec(1, 1));
            let node = nodes[number % nodes.len()];
            snapshot.pods.insert(pod.reference(), versioned(pod.clone()));
            bind(&mut snapshot, &pod, node);
            report(&mut snapshot, &pod, node, running());
        }
    }
    snapshot
}

// Would fail with a series for each pod.
#[test]
fn series_grow_with_workloads_and_not_with_pods() {
    let series = |snapshot: &Snapshot| -> usize {
        state_families(snapshot).iter().map(|family| family.samples.len()).sum()
    };
    let (few, many) = (series(&with_replicas(5)), series(&with_replicas(20)));
    assert_eq!(few, many);
    // Six for each of 50 workloads, and those of the nodes and the source.
    assert!((300..400).contains(&many), "{many}");
}
