//! Progress of a commit, as a table of snapshots.

use schema::kinds::function::ImageState;
use schema::kinds::pod::{ContainerState, PodPhase, PodStatus, RunningState};
use schema::kinds::{Kind, Resource};
use schema::records::{
    ChangeCounts, FunctionImage, FunctionRecord, HeldPrune, Quarantine, SourceError, SourceErrorKind,
    SourceState, WaitingObject,
};
use schema::violation::{Severity, Violation};

use super::*;
use crate::view::testing::*;

fn good() -> Snapshot {
    let mut snapshot = snapshot();
    put_pod(&mut snapshot, "web", running());
    snapshot
}

fn with_source(change: impl FnOnce(&mut SourceStatus)) -> Snapshot {
    let mut snapshot = good();
    let mut status = snapshot.sources["main"].value.clone();
    change(&mut status);
    put_source(&mut snapshot, status);
    snapshot
}

fn quarantine(commit: &str) -> Quarantine {
    Quarantine {
        file: "apps/db.yaml".to_owned(),
        commit: commit.to_owned(),
        author: "Ada <ada@example.org>".to_owned(),
        violations: vec![Violation {
            file: "apps/db.yaml".to_owned(),
            line: 7,
            column: 3,
            severity: Severity::Error,
            rule: "unknown-field".to_owned(),
            message: "`imagee` is not a field of a container".to_owned(),
            help: "write `image`".to_owned(),
            object: None,
        }],
        violations_total: 1,
    }
}

#[track_caller]
fn check(snapshot: &Snapshot, commit: Option<&str>, flags: &str, why: &str) {
    let state = wait_state(snapshot, commit, at(100));
    let shown: String = [(state.synced, 's'), (state.healthy, 'h'), (state.failed, 'f')]
        .into_iter()
        .map(|(holds, letter)| if holds { letter } else { '-' })
        .collect();
    assert_eq!((shown.as_str(), state.why.as_str()), (flags, why));
}

#[test]
fn the_applied_commit_with_ready_pods_is_healthy() {
    check(&good(), Some(C2), "sh-", "");
    check(&good(), Some(&C2[..7]), "sh-", "");
    check(&good(), None, "sh-", "");
}

#[test]
fn an_older_applied_commit_counts_as_reached() {
    check(&good(), Some(C1), "sh-", "");
}

#[test]
fn a_commit_that_is_seen_but_not_applied_is_waited_for() {
    let snapshot = with_source(|s| s.observed_commit = Some(C3.to_owned()));
    check(&snapshot, Some(C3), "---", "source main: commit 3333333 is fetched and being applied");
    check(&snapshot, None, "---", "source main: commit 3333333 is fetched and being applied");
    check(&snapshot, Some(C2), "sh-", "");
}

#[test]
fn a_commit_that_nobody_has_seen_names_what_is_seen() {
    check(
        &good(),
        Some(C3),
        "---",
        "commit 3333333 is not fetched yet (source main: newest commit 2222222); is it pushed?",
    );
    // Six digits are too few to stand for a commit.
    check(
        &good(),
        Some(&C2[..6]),
        "---",
        "commit 222222 is not fetched yet (source main: newest commit 2222222); is it pushed?",
    );
}

#[test]
fn an_unread_etcd_and_no_source_are_waited_for() {
    check(&Snapshot::default(), None, "---", "the reconciler is starting: it has not read etcd yet");
    let snapshot = Snapshot { synced: true, ..Snapshot::default() };
    check(&snapshot, None, "---", "the reconciler is starting: it has fetched no repository yet");
}

#[test]
fn errors_that_wait_for_a_person_fail_and_others_wait() {
    for (kind, flags) in [
        (SourceErrorKind::RemoteUnreachable, "---"),
        (SourceErrorKind::ApplyFailed, "---"),
        (SourceErrorKind::PathNotFound, "--f"),
        (SourceErrorKind::Empty, "--f"),
    ] {
        let snapshot = with_source(|s| {
            s.observed_commit = Some(C3.to_owned());
            s.error = Some(SourceError { kind, message: "no good".to_owned(), since: at(90) });
        });
        check(&snapshot, Some(C3), flags, &format!("source main: {kind:?}: no good"));
        check(&snapshot, Some(C2), "sh-", "");
    }
}

#[test]
fn a_quarantined_file_fails_its_own_commit_but_not_the_one_before() {
    let mut snapshot = with_source(|s| {
        s.state = SourceState::Degraded;
        s.observed_commit = Some(C3.to_owned());
        s.applied_commit = Some(C3.to_owned());
        s.revision = 3;
        s.quarantined = vec![quarantine(C3)];
    });
    snapshot.revisions.insert(("main".to_owned(), 3), versioned(revision(3, C3)));
    let why = "source main: quarantined: apps/db.yaml:7:3: error[unknown-field]: \
               `imagee` is not a field of a container (write `image`)";
    check(&snapshot, Some(C3), "s-f", why);
    check(&snapshot, None, "s-f", why);
    check(&snapshot, Some(C2), "sh-", "");
}

// Seen red without `missing` in the state: synced, without a reason.
#[test]
fn what_of_a_synced_commit_is_not_applied_is_reported_beside_it() {
    let in_source = |change: &dyn Fn(&mut SourceStatus)| {
        let snapshot = with_source(|status| change(status));
        [C2, C1].map(|commit| wait_state(&snapshot, Some(commit), at(100)).missing)
    };
    let files = |status: &mut SourceStatus| {
        let other = Quarantine { file: "apps/web.yaml".to_owned(), ..quarantine(C2) };
        status.quarantined = vec![quarantine(C2), other];
    };
    let first = "source main: quarantined: apps/db.yaml:7:3: error[unknown-field]: `imagee` is not a field of a \
                 container (write `image`); and 1 more file";
    assert_eq!(in_source(&files), [Some(first.to_owned()), None]);
    let waits = |status: &mut SourceStatus| {
        let object = |name: &str| ObjectRef {
            kind: Kind::Pod,
            namespace: "default".to_owned(),
            name: name.to_owned(),
        };
        let why = "it is not ready".to_owned();
        status.waiting = vec![WaitingObject { object: object("web"), on: object("db"), why, since: None }];
    };
    let [newest, before] = in_source(&waits);
    assert_eq!((newest.is_some(), before), (true, None), "{newest:?}");
    // A failed pod is not part of a commit that is not applied.
    assert_eq!(in_source(&|_| ()), [None, None]);
}

#[test]
fn a_file_that_was_broken_before_is_still_broken_in_the_commit_after() {
    let mut snapshot = with_source(|s| {
        s.state = SourceState::Degraded;
        s.applied_commit = Some(C3.to_owned());
        s.observed_commit = Some(C3.to_owned());
        s.revision = 3;
        s.quarantined = vec![quarantine(C1)];
    });
    snapshot.revisions.insert(("main".to_owned(), 3), versioned(revision(3, C3)));
    for commit in [C1, C2, C3] {
        assert!(wait_state(&snapshot, Some(commit), at(100)).failed, "{commit}");
    }
}

#[test]
fn what_cannot_be_read_is_not_taken_for_healthy() {
    let mut snapshot = good();
    snapshot.malformed.insert("/minik8s/objects/Pod/default/db".to_owned(), "no JSON".into());
    check(&snapshot, Some(C2), "s--", "etcd's /minik8s/objects/Pod/default/db can't be read: no JSON");
}

#[test]
fn a_held_prune_fails_the_commit_that_asked_for_it() {
    let snapshot = with_source(|s| {
        s.held_prune = Some(HeldPrune {
            commit: C2.to_owned(),
            why: "push the trailer".to_owned(),
            deletes: 12,
            owned: 12,
            since: 0,
            objects: Vec::new(),
        });
    });
    check(&snapshot, Some(C2), "s-f", "source main: prune of 12 objects is held: push the trailer");
}

#[test]
fn a_bad_verdict_fails_its_commit() {
    let mut snapshot = good();
    let bad = Verdict::Bad { why: "web did not become ready in 120s".to_owned() };
    snapshot
        .revisions
        .insert(("main".to_owned(), 2), versioned(Revision { verdict: bad, ..revision(2, C2) }));
    check(&snapshot, Some(C2), "s-f", "source main: commit 2222222: web did not become ready in 120s");
}

#[test]
fn each_stage_of_a_pod_is_named() {
    let mut snapshot = snapshot();
    let object = put_object(&mut snapshot, "web", C2);
    check(&snapshot, Some(C2), "s--", "pod default/web: waiting for the workloads controller to create it");

    let instance = put_instance(&mut snapshot, &object);
    check(&snapshot, Some(C2), "s--", "pod default/web: Pending: fits on n1, waits for the scheduler");

    bind(&mut snapshot, &instance, "n1");
    check(&snapshot, Some(C2), "s--", "pod default/web: Pending: node n1 has not reported on it yet");

    report(&mut snapshot, &instance, "n1", pod_waiting("ErrImagePull", "no such image web:1"));
    check(&snapshot, Some(C2), "s--", "pod default/web: ErrImagePull: container app: no such image web:1");

    report(&mut snapshot, &instance, "n1", running());
    check(&snapshot, Some(C2), "sh-", "");

    snapshot.heartbeats.remove("n1");
    check(
        &snapshot,
        Some(C2),
        "s--",
        "pod default/web: NodeLost: node n1 has no heartbeat; last seen: Running",
    );
}

#[test]
fn a_ready_pod_of_another_version_is_not_healthy() {
    let mut snapshot = good();
    let mut object = snapshot.objects.values().next().map(|o| o.value.clone()).unwrap();
    object.hash = "another".to_owned();
    snapshot.objects.insert(object.reference(), versioned(object.clone()));
    let why = "pod default/web: waiting for the workloads controller to process commit 2222222";
    check(&snapshot, Some(C2), "s--", why);

    let instance = put_instance(&mut snapshot, &object);
    let why = "pod default/web: Pending: fits on n1, waits for the scheduler; \
               the former pod keeps running on n1";
    check(&snapshot, Some(C2), "s--", why);

    bind(&mut snapshot, &instance, "n1");
    let why = "pod default/web: ContainerCreating: waiting for its previous version on node n1 to stop";
    check(&snapshot, Some(C2), "s--", why);
}

#[test]
fn a_pod_that_ended_well_is_healthy_and_one_that_ended_badly_fails() {
    let mut snapshot = snapshot();
    // Wanted again while its node is still removing it. Seen red without the check of `Terminating`.
    for phase in [PodPhase::Succeeded, PodPhase::Failed] {
        let reason = PodStatus::TERMINATING.to_owned();
        put_pod(&mut snapshot, "once", PodStatus { phase, reason, ..PodStatus::default() });
        let why = "pod default/once: Terminating: the pod is Terminating, not ready";
        check(&snapshot, Some(C2), "s--", why);
    }
    put_pod(&mut snapshot, "once", PodStatus { phase: PodPhase::Succeeded, ..PodStatus::default() });
    check(&snapshot, Some(C2), "sh-", "");
    let broken =
        PodStatus { phase: PodPhase::Failed, message: "exit code 3".to_owned(), ..PodStatus::default() };
    put_pod(&mut snapshot, "once", broken);
    check(&snapshot, Some(C2), "s-f", "pod default/once: Failed: exit code 3");
}

#[test]
fn a_removed_pod_is_waited_for_on_a_living_node_only() {
    let mut snapshot = good();
    snapshot.objects.clear();
    snapshot.pods.clear();
    let why = "pod default/web: Terminating: node n1 is stopping it";
    let counted = |delete: u64| {
        let mut snapshot = snapshot.clone();
        let counts = ChangeCounts { delete, ..ChangeCounts::default() };
        snapshot.revisions.insert(("main".to_owned(), 2), versioned(Revision { counts, ..revision(2, C2) }));
        snapshot
    };
    check(&counted(1), Some(C2), "s--", why);
    let waits = ChangeCounts { waiting: 1, ..ChangeCounts::default() };
    let mut later = snapshot.clone();
    later.revisions.insert(("main".to_owned(), 2), versioned(Revision { counts: waits, ..revision(2, C2) }));
    check(&later, Some(C2), "s--", why);
    // Seen red without the check of the counts.
    check(&counted(0), Some(C2), "sh-", "");
    let removing = |kind: Kind, namespace: &str, name: &str| {
        let counts = ChangeCounts { delete: 1, ..ChangeCounts::default() };
        let removed = vec![ObjectRef { kind, namespace: namespace.to_owned(), name: name.to_owned() }];
        let mut snapshot = snapshot.clone();
        let removal = Revision { counts, removed, ..revision(2, C2) };
        snapshot.revisions.insert(("main".to_owned(), 2), versioned(removal));
        snapshot
    };
    // Seen red with a wait for every removal.
    check(&removing(Kind::Pod, "default", "web"), Some(C2), "s--", why);
    check(&removing(Kind::HorizontalPodAutoscaler, "default", "web"), Some(C2), "s--", why);
    check(&removing(Kind::HorizontalPodAutoscaler, "other", "web"), Some(C2), "sh-", "");
    check(&removing(Kind::Pod, "default", "other"), Some(C2), "sh-", "");
    // Seen red with the pod's own name alone.
    let mut copied = removing(Kind::Pod, "default", "web");
    copied.bindings = Default::default();
    let place = ("n1".to_owned(), NamespacedName::new("default", "web"));
    let status = copied.pod_status.remove(&place).expect("the pod runs on n1");
    copied.pod_status.insert((place.0, NamespacedName::new("default", "web-0123abcd-1")), status);
    check(&copied, Some(C2), "s--", "pod default/web-0123abcd-1: Terminating: node n1 is stopping it");
    check(&counted(0), None, "s--", why);
    snapshot.revisions.clear();
    check(&snapshot, Some(C2), "s--", why);
    snapshot.heartbeats.remove("n1");
    check(&snapshot, Some(C2), "sh-", "");
}

#[test]
fn what_has_failed_ends_the_wait_whatever_else_is_on_its_way() {
    let mut snapshot = snapshot();
    put_object(&mut snapshot, "early", C2);
    let broken =
        PodStatus { phase: PodPhase::Failed, message: "exit code 3".to_owned(), ..PodStatus::default() };
    let once = put_pod(&mut snapshot, "once", broken);
    let why = "pod default/once: Failed: exit code 3";
    check(&snapshot, Some(C2), "s-f", why);
    // So does a failed object that others of the commit wait for.
    let pod =
        |name: &str| ObjectRef { kind: Kind::Pod, namespace: "default".to_owned(), name: name.to_owned() };
    let waits = |of: &str, on: &str| {
        let mut status = snapshot.sources["main"].value.clone();
        let why = "it is not ready".to_owned();
        status.waiting = vec![WaitingObject { object: pod(of), on: pod(on), why, since: None }];
        status.waiting_total = 1;
        let mut snapshot = snapshot.clone();
        put_source(&mut snapshot, status);
        snapshot
    };
    check(&waits("later", "once"), Some(C2), "s-f", why);
    // Its own next version is still to come.
    let next = waits("once", "early");
    check(&next, None, "s--", "source main: Pod/default/once waits for Pod/default/early: it is not ready");
    // A pod that its node reports no longer is not known to have failed.
    snapshot.pod_status.remove(&("n1".to_owned(), once.reference()));
    let why = "pod default/early: waiting for the workloads controller to create it";
    check(&snapshot, Some(C2), "s--", why);
}

// Seen red without the check of `unsteady`: healthy immediately.
#[test]
fn a_container_without_a_readiness_probe_counts_when_it_has_run_for_a_while() {
    let shown = |restarts: u32, ran: i64| {
        let mut status = running();
        let container = &mut status.container_statuses[0];
        container.restart_count = restarts;
        container.state = ContainerState::Running(RunningState { started_at: at(100 - ran) });
        let mut snapshot = snapshot();
        put_pod(&mut snapshot, "web", status);
        wait_state(&snapshot, None, at(100)).healthy
    };
    let table = [(0, 0, false), (0, 1, true), (1, 1, false), (1, 9, false), (1, 10, true), (1, -50, true)];
    for (restarts, ran, healthy) in table {
        assert_eq!(shown(restarts, ran), healthy, "{restarts} restarts, {ran} s");
    }
}

#[test]
fn a_named_commit_is_healthy_with_its_own_objects() {
    let mut snapshot = good();
    put_object(&mut snapshot, "other", C1);
    check(&snapshot, Some(C2), "sh-", "");
    check(&snapshot, None, "s--", "pod default/other: waiting for the workloads controller to create it");
    check(&snapshot, Some(C1), "s--", "pod default/other: waiting for the workloads controller to create it");
}

// Seen red with workloads alone: the wait lasted until its timeout.
#[test]
fn a_function_that_cannot_be_built_is_not_waited_for() {
    let mut snapshot = good();
    put_resource(&mut snapshot, "hello", Kind::Function, serde_json::json!({"source": "functions/hello"}));
    let mut said = |state: ImageState| {
        let reference = "minik8s.local/function:0".to_owned();
        let image = FunctionImage { reference, id: None, state, nodes: Vec::new(), registry: None };
        let record = FunctionRecord { hash: hash(), images: vec![image], ..FunctionRecord::default() };
        snapshot.functions.insert(NamespacedName::new("default", "hello"), versioned(record));
        let state = wait_state(&snapshot, Some(C2), at(100));
        (state.healthy, state.failed, state.why)
    };
    let building = said(ImageState::Building { node: "n1".to_owned() });
    assert_eq!(building, (false, false, "function default/hello: node n1 is building the image".to_owned()));
    let failed = said(ImageState::Failed { why: "no such package".to_owned() });
    let why = "function default/hello: the image can't be built: no such package".to_owned();
    assert_eq!(failed, (false, true, why));
}

#[test]
fn a_pod_that_a_live_workload_takes_away_is_not_waited_for() {
    let mut snapshot = snapshot();
    let object = put_object(&mut snapshot, "set-0a1b2c3d-4", C2);
    let instance = put_instance(&mut snapshot, &object);
    bind(&mut snapshot, &instance, "n1");
    report(&mut snapshot, &instance, "n1", running());
    snapshot.objects.clear();
    snapshot.pods.clear();
    snapshot.revisions.clear();
    check(&snapshot, Some(C2), "s--", "pod default/set-0a1b2c3d-4: Terminating: node n1 is stopping it");
    let pod = serde_json::json!({"metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "app", "image": "x"}]}});
    let spec = serde_json::json!({"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": pod});
    put_resource(&mut snapshot, "set", Kind::ReplicaSet, spec);
    check(&snapshot, Some(C2), "s--", "replicaset default/set: its pods are not created yet");
    let of_workload = |condition: serde_json::Value| {
        let status = serde_json::json!({"observedGeneration": 1, "desiredReplicas": 1, "replicas": 1,
            "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1, "conditions": [condition]});
        let at = "2026-01-01T00:00:00Z";
        let rollout = serde_json::json!({"objectHash": "", "commit": C2, "wanted": "0a1b2c3d", "startedAt": at,
            "progressedAt": at, "best": {"updated": 1, "available": 1, "old": 0}, "status": status});
        versioned(serde_json::from_value(rollout).unwrap())
    };
    let condition = |status: &str| {
        serde_json::json!({"type": "Progressing", "status": status, "reason": "ErrImagePull",
            "message": "no such image", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let workload =
        ObjectRef { kind: Kind::ReplicaSet, namespace: "default".to_owned(), name: "set".to_owned() };
    snapshot.rollouts.insert(workload.clone(), of_workload(condition("True")));
    check(&snapshot, Some(C2), "sh-", "");
    // A failed rollout does not recover by itself.
    snapshot.rollouts.insert(workload, of_workload(condition("False")));
    check(&snapshot, Some(C2), "s-f", "replicaset default/set: no such image");
}

fn put_resource(snapshot: &mut Snapshot, name: &str, kind: Kind, spec: serde_json::Value) {
    let mut object = put_object(&mut Snapshot::default(), name, C2);
    object.resource = Resource::from_json(kind, spec).unwrap();
    snapshot.objects.insert(object.reference(), versioned(object));
}

fn put_service(snapshot: &mut Snapshot, record: Option<serde_json::Value>) {
    let spec = serde_json::json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
    put_resource(snapshot, "web", Kind::Service, spec);
    let record = record.map(|record| versioned(serde_json::from_value(record).unwrap()));
    snapshot.services.extend(record.map(|record| (NamespacedName::new("default", "web"), record)));
    let rules = serde_json::json!({"revision": 1_000_000});
    snapshot.rules.insert("n1".to_owned(), versioned(serde_json::from_value(rules).unwrap()));
}

/// Hash of every object in these tests.
fn hash() -> String {
    put_object(&mut Snapshot::default(), "any", C2).hash
}

#[test]
fn a_service_is_waited_for_until_it_has_an_address_and_a_pod() {
    let shown = |record, why: &str| {
        let mut snapshot = good();
        put_service(&mut snapshot, record);
        check(&snapshot, Some(C2), if why.is_empty() { "sh-" } else { "s--" }, why);
    };
    shown(None, "service default/web: no cluster IP yet");
    let with = |hash: &str, left_out: u32| {
        let ports = serde_json::json!([{"protocol": "TCP", "port": 80}]);
        Some(serde_json::json!({
            "hash": hash, "clusterIP": "10.96.0.20", "ports": ports, "leftOutCount": left_out
        }))
    };
    shown(with(&hash(), 2), "service default/web: none of 2 pods is ready");
    let old = "service default/web: the services controller has not processed this version yet";
    shown(with("of the version before", 0), old);
    shown(with(&hash(), 0), "");
    // A live node must have its rules programmed; a lost one is not waited for.
    let mut snapshot = good();
    put_service(&mut snapshot, with(&hash(), 0));
    let rules = serde_json::json!({"revision": 1_000_000, "leftOut": {"default/web": "bad rule"}});
    snapshot.rules.insert("n1".to_owned(), versioned(serde_json::from_value(rules).unwrap()));
    let why =
        "service default/web: node n1: rules left out, retried when it changes or after a minute: bad rule";
    check(&snapshot, Some(C2), "s--", why);
    snapshot.rules.remove("n1");
    check(&snapshot, Some(C2), "s--", "service default/web: node n1: rules nothing yet");
}

#[test]
fn what_is_wrong_with_a_pod_is_reported_before_its_service() {
    let mut snapshot = snapshot();
    let failed =
        PodStatus { phase: PodPhase::Failed, message: "exit code 3".to_owned(), ..PodStatus::default() };
    put_pod(&mut snapshot, "web", failed);
    put_service(&mut snapshot, None);
    check(&snapshot, Some(C2), "s-f", "pod default/web: Failed: exit code 3");
}

#[test]
fn a_host_is_waited_for_until_all_its_paths_lead_somewhere() {
    let shown = |record: Option<serde_json::Value>, why: &str| {
        let mut snapshot = good();
        let path = serde_json::json!({"path": "/", "service": {"name": "web", "port": 80}});
        let spec = serde_json::json!({"host": "shop.example", "paths": [path]});
        put_resource(&mut snapshot, "shop", Kind::Dns, spec);
        let record = record.map(|record| versioned(serde_json::from_value(record).unwrap()));
        snapshot.routes.extend(record.map(|record| (NamespacedName::new("default", "shop"), record)));
        check(&snapshot, Some(C2), if why.is_empty() { "sh-" } else { "s--" }, why);
    };
    shown(None, "dns default/shop: shop.example has no address yet");
    let with = |hash: &str, broken: Option<&str>| {
        let path = serde_json::json!({"path": "/", "service": "web", "port": 80, "broken": broken});
        Some(serde_json::json!({"hash": hash, "host": "shop.example", "paths": [path]}))
    };
    shown(
        with(&hash(), Some("service web has no port 80")),
        "dns default/shop: /: service web has no port 80",
    );
    let old = "dns default/shop: the services controller has not processed this version yet";
    shown(with("of the version before", None), old);
    shown(with(&hash(), None), "");
}
