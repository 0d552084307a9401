//! Counting, naming, adopting, and rollouts of a broken template.

use std::collections::BTreeMap;

use schema::keys::Key;
use schema::kinds::cluster::{ClusterSpec, WorkloadDefaults};
use schema::kinds::daemon_set::DaemonSetSpec;
use schema::kinds::replica_set::ReplicaSetSpec;
use schema::kinds::{Health, Kind};
use schema::records::EventType;
use schema::snapshot::health::{deadline_seconds, health};
use schema::testing::{instance, object_of, pod_ref, spec};

use super::field::{Fate, Field, replica_set, rolling};

const BAD: &str = "web:bad";

/// A replica set of `replicas` running pods of `web:1`.
fn settled(replicas: u32) -> Field {
    let mut field = Field::new(replica_set(replicas, "web:1"));
    field.run(10);
    assert_eq!(field.rollout().status.available_replicas, replicas);
    assert!(field.rollout().complete);
    assert!(field.plan().writes.is_empty(), "a workload that is as it should be costs no write");
    field
}

fn bad(field: &mut Field, reason: &'static str) {
    field.fates.insert(BAD.to_owned(), Fate::Waits(reason));
}

#[test]
fn pods_come_in_batches_that_double_and_are_numbered_from_zero() {
    let mut field = Field::new(replica_set(8, "web:1"));
    let made: Vec<usize> = (0..5)
        .map(|_| {
            let before = field.pods().len();
            field.plan();
            field.pods().len() - before
        })
        .collect();
    assert_eq!(made, [1, 2, 4, 1, 0]);
    let hash = field.rollout().wanted[..8].to_owned();
    let names: Vec<String> = (0..8).map(|number| format!("web-{hash}-{number}")).collect();
    assert_eq!(field.pods().into_keys().collect::<Vec<_>>(), names);
}

#[test]
fn scaling_changes_the_number_alone() {
    let mut field = settled(4);
    let before = field.pods();
    field.push(replica_set(2, "web:1"), 2);
    field.run(2);
    let after = field.pods();
    assert_eq!(after.len(), 2);
    assert!(after.keys().all(|name| before.contains_key(name)));
    field.push(replica_set(0, "web:1"), 3);
    field.run(2);
    assert!(field.pods().is_empty());
    field.push(replica_set(3, "web:1"), 4);
    field.run(4);
    assert_eq!(field.pods().len(), 3);
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
}

/// Seen red without the traces of `Names`.
#[test]
fn a_number_is_given_again_only_when_no_node_has_a_trace_of_it() {
    let mut field = settled(2);
    let first = field.pods().into_keys().next().unwrap();
    // The record is gone, as after a manual write; the pod's binding and report remain.
    let node = field.node_of(&first);
    let status = field.snapshot().pod_status[&(node.clone(), pod_ref(&first))].value.clone();
    let mut ended = status;
    ended.reason = schema::kinds::pod::PodStatus::TERMINATING.to_owned();
    let key = Key::PodStatus(node, pod_ref(&first));
    field.builder = std::mem::take(&mut field.builder).put(&key, &ended);
    field.forget_pods(&[first.clone()].into());
    field.plan();
    assert!(!field.pods().contains_key(&first), "{:?}", field.pods());
    assert_eq!(field.pods().len(), 2);
}

/// Seen red without `runs_without_record`.
#[test]
fn what_runs_is_taken_in_again_when_its_record_is_lost() {
    let mut field = settled(5);
    let before = field.pods();
    field.forget_pods(&before.keys().take(4).cloned().collect());
    for _ in 0..4 {
        field.plan();
    }
    assert_eq!(field.pods(), before);
}

#[test]
fn a_pod_that_git_names_is_never_taken() {
    let mut field = Field::new(replica_set(2, "web:1"));
    field.plan();
    let hash = field.rollout().wanted[..8].to_owned();
    let named = format!("web-{hash}-1");
    let (key, pod) = (Key::Pod(pod_ref(&named)), instance(&named, spec(1, 1)));
    field.builder = std::mem::take(&mut field.builder)
        .put(&key, &pod)
        .object(&schema::testing::object(&named, spec(1, 1)));
    field.run(4);
    assert_eq!(field.snapshot().pods[&pod_ref(&named)].value.owner.name, named);
    assert!(field.pods().contains_key(&format!("web-{hash}-2")));
}

/// Seen red with the deadline counted from the start alone: the rollout fails while it makes progress.
#[test]
fn a_template_that_does_not_work_goes_and_the_last_good_one_serves() {
    let mut field = settled(4);
    bad(&mut field, "ErrImagePull");
    field.push(rolling(replica_set(4, BAD), 1, 0), 2);
    field.run(10);
    assert_eq!(field.images(), ["web:1", "web:1", "web:1", "web:1", BAD], "no old pod goes for a bad one");
    let Health::Progressing { why } = health(field.snapshot(), &field.object) else {
        panic!("not under way")
    };
    assert!(why.contains("pod web-") && why.contains("ErrImagePull"), "{why}");
    field.after(60);
    let writes = field.plan().writes;
    let record = writes.iter().find(|write| matches!(write.key, Key::Rollout(_))).unwrap();
    let event = (record.reason.event_type(), record.reason.event_reason());
    assert_eq!(event, (EventType::Warning, Some("RolloutFailed")), "{record}");
    field.run(5);
    assert_eq!(field.images(), ["web:1"; 4]);
    let rollout = field.rollout();
    let failure = rollout.failure.clone().unwrap();
    assert_eq!(failure.reason, "ErrImagePull");
    let Health::Degraded { why } = health(field.snapshot(), &field.object) else { panic!("{rollout:?}") };
    assert!(why.contains("serves again"), "{why}");

    // A commit elsewhere changes nothing; a commit that touches the workload tries again.
    field.run(50);
    assert_eq!(field.rollout().failure, Some(failure));
    field.push(rolling(replica_set(4, BAD), 1, 0), 3);
    field.run(3);
    assert!(field.images().contains(&BAD.to_owned()));
    field.push(replica_set(4, "web:3"), 4);
    field.run(20);
    assert_eq!(field.images(), ["web:3"; 4]);
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
    assert_eq!(field.snapshot().templates.len(), 1, "what is not needed is not kept");
}

/// Seen red with 120 s for every workload.
#[test]
fn a_workload_that_names_no_deadline_has_the_one_of_the_cluster() {
    let mut field = settled(2);
    let defaults = WorkloadDefaults { progress_deadline_seconds: 30, ..WorkloadDefaults::default() };
    let cluster = ClusterSpec { defaults, ..ClusterSpec::default() };
    field.builder = std::mem::take(&mut field.builder).cluster(cluster);
    let of = |image: &str, min_ready_seconds: u32| ReplicaSetSpec {
        min_ready_seconds,
        progress_deadline_seconds: None,
        ..replica_set(2, image)
    };
    // A default deadline leaves pods the time to become ready.
    for (min_ready_seconds, deadline) in [(0, 30), (29, 30), (30, 60), (300, 330)] {
        field.push(of("web:1", min_ready_seconds), 2);
        assert_eq!(deadline_seconds(field.snapshot(), &field.object), deadline);
    }
    bad(&mut field, "ErrImagePull");
    field.push(of(BAD, 0), 3);
    field.run(2);
    assert_eq!(field.rollout().failure, None);
    field.after(30);
    field.run(2);
    assert!(field.rollout().failure.is_some());
}

/// Seen red without the template in etcd.
#[test]
fn the_last_good_template_runs_even_when_all_its_pods_are_lost_during_a_bad_rollout() {
    let mut field = settled(3);
    bad(&mut field, "CrashLoopBackOff");
    field.push(rolling(replica_set(3, BAD), 1, 0), 2);
    field.run(3);
    field.after(60);
    field.run(1);
    let all = field.pods().into_keys().collect();
    field.forget_pods(&all);
    let snapshot = field.snapshot().clone();
    for (node, pod) in snapshot.pod_status.keys() {
        field.builder = std::mem::take(&mut field.builder).delete(&Key::PodStatus(node.clone(), pod.clone()));
    }
    field.run(6);
    assert_eq!(field.images(), ["web:1"; 3]);
}

#[test]
fn the_first_template_has_nothing_to_go_back_to_and_heals_when_it_can() {
    let mut field = Field::new(replica_set(2, BAD));
    bad(&mut field, "ImagePullBackOff");
    field.run(5);
    field.after(60);
    field.run(2);
    assert_eq!(field.images(), [BAD, BAD]);
    assert!(matches!(health(field.snapshot(), &field.object), Health::Degraded { .. }));
    field.fates.clear();
    field.run(3);
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
    assert_eq!(field.rollout().failure, None);
}

#[test]
fn a_paused_workload_keeps_its_template_and_its_number() {
    let mut field = settled(3);
    let mut paused = replica_set(3, "web:2");
    paused.paused = true;
    field.push(paused.clone(), 2);
    field.run(5);
    assert_eq!(field.images(), ["web:1"; 3]);
    assert_eq!(health(field.snapshot(), &field.object), Health::Healthy);
    paused.replicas = 5;
    field.push(paused.clone(), 3);
    field.run(5);
    assert_eq!(field.images(), ["web:1"; 5]);
    paused.paused = false;
    field.push(paused, 4);
    field.run(20);
    assert_eq!(field.images(), ["web:2"; 5]);
}

#[test]
fn pods_count_as_available_only_after_their_time() {
    let mut set = rolling(replica_set(2, "web:1"), 1, 0);
    set.min_ready_seconds = 30;
    let mut field = Field::new(set);
    field.run(3);
    let rollout = field.rollout();
    assert_eq!((rollout.status.ready_replicas, rollout.status.available_replicas), (2, 0));
    let again = field.plan().again_at.unwrap();
    assert!(again > field.now && again.duration_since(field.now).as_secs() <= 30, "{again}");
    field.after(30);
    field.run(1);
    assert!(field.rollout().complete);
}

/// Kubernetes tells the pods of such workloads apart by a label of its own; here each pod names its owner.
#[test]
fn workloads_with_the_same_selector_and_labels_keep_their_own_pods() {
    let mut set = replica_set(2, "web:1");
    set.selector.match_labels = set.template.metadata.labels.clone();
    let daemon = DaemonSetSpec {
        selector: set.selector.clone(),
        template: set.template.clone(),
        ..DaemonSetSpec::default()
    };
    let mut field = Field::new(set.clone());
    let more = ReplicaSetSpec { replicas: 3, ..set.clone() };
    for other in [object_of("api", more), object_of("web", daemon)] {
        field.builder = std::mem::take(&mut field.builder).put(&Key::Object(other.reference()), &other);
    }
    let owned = |field: &Field| {
        let mut pods: BTreeMap<(Kind, String), Vec<String>> = BTreeMap::new();
        for pod in field.snapshot().pods.values().map(|pod| &pod.value) {
            let image = pod.spec.containers[0].image.clone();
            pods.entry((pod.owner.kind, pod.owner.name.clone())).or_default().push(image);
        }
        pods.into_values().collect::<Vec<_>>()
    };
    field.run(12);
    // In order of kind and name: ReplicaSet api, ReplicaSet web, DaemonSet web.
    assert_eq!(owned(&field), [vec!["web:1"; 3], vec!["web:1"; 2], vec!["web:1"; 3]]);
    assert!(field.plan().writes.is_empty(), "nobody counts or ends the pods of another");
    let mut next = ReplicaSetSpec { replicas: 1, ..set };
    next.template.spec.containers[0].image = "web:2".to_owned();
    field.push(next, 2);
    field.run(12);
    assert_eq!(owned(&field), [vec!["web:1"; 3], vec!["web:2"], vec!["web:1"; 3]]);
    assert!(field.plan().writes.is_empty());
}

#[test]
fn a_removed_replica_set_takes_all_that_is_its_own_along() {
    let mut field = settled(3);
    let key = Key::Object(Field::workload());
    field.builder = std::mem::take(&mut field.builder).delete(&key);
    field.plan();
    let snapshot = field.snapshot();
    assert!(snapshot.pods.is_empty() && snapshot.rollouts.is_empty() && snapshot.templates.is_empty());
}

#[test]
fn a_record_that_cannot_be_read_stops_the_workload_and_removes_nothing() {
    let mut field = settled(3);
    let before = field.pods();
    field.builder = std::mem::take(&mut field.builder).garbage(&Key::Rollout(Field::workload()));
    field.push(replica_set(1, "web:2"), 2);
    field.run(3);
    assert_eq!(field.pods(), before);
}
