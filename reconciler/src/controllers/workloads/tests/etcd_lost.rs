//! Recovery of every workload's progress from the reconciler's disk after etcd was lost.

use jiff::SignedDuration;
use schema::keys::Key;
use schema::kinds::Resource;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;
use schema::records::{Quarantine, ScaleRecord, SourceState, SourceStatus};
use schema::testing::{object_of, source_status};

use crate::controllers::LastKnown;

use super::field::{Fate, Field, replica_set, rolling};

const BAD: &str = "web:bad";

fn running(replicas: u32) -> Field {
    let mut field = Field::new(rolling(replica_set(replicas, "web:1"), 1, 0));
    field.run(10);
    assert!(field.rollout().complete);
    field
}

// Seen red without `take_back`: all six pods of the new template come at once, and the old ones are unknown.
#[test]
fn a_rollout_goes_on_where_it_stood() {
    let mut field = running(6);
    field.push(rolling(replica_set(6, "web:2"), 1, 0), 2);
    field.run(5);
    let before = field.pods();
    assert!(before.values().any(|image| image == "web:1") && before.values().any(|image| image == "web:2"));
    field.lose_etcd();
    field.plan();
    assert_eq!(field.pods(), before);
    for _ in 0..40 {
        assert!((6..=7).contains(&field.pods().len()), "{:?}", field.pods());
        field.run(1);
    }
    assert_eq!(field.images(), ["web:2"; 6]);
    assert!(field.rollout().complete);
}

// Seen red with a `templates_of` that also returns the wanted template as the last good one.
#[test]
fn no_key_is_written_twice() {
    let mut field = running(3);
    let before = field.pods();
    field.lose_etcd();
    let plan = field.plan();
    let keys: std::collections::BTreeSet<_> = plan.writes.iter().map(|write| &write.key).collect();
    assert_eq!(keys.len(), plan.writes.len(), "etcd refuses such a transaction: {plan}");
    assert_eq!(field.pods(), before);
}

// Seen red without `last_rollout`: the bad template is tried again, and there is nothing to roll back to.
#[test]
fn a_failed_template_stays_failed_and_the_last_good_one_serves() {
    let mut field = running(3);
    field.fates.insert(BAD.to_owned(), Fate::Waits("ErrImagePull"));
    field.push(rolling(replica_set(3, BAD), 1, 0), 2);
    field.run(5);
    field.after(60);
    field.run(5);
    let (before, failure) = (field.pods(), field.rollout().failure);
    assert!(failure.is_some());
    field.lose_etcd();
    for _ in 0..10 {
        field.run(1);
        assert_eq!(field.pods(), before);
    }
    assert_eq!(field.rollout().failure, failure);
    assert_eq!(field.snapshot().templates.len(), 2, "the good one is in etcd again");
}

#[test]
fn a_scaled_workload_keeps_its_number_and_a_changed_one_rolls() {
    let mut field = running(2);
    let scale = ScaleRecord { replicas: 5, scaler: String::new() };
    field.builder = std::mem::take(&mut field.builder).put(&Key::Scale(Field::workload()), &scale);
    field.run(10);
    let before = field.pods();
    assert_eq!(before.len(), 5);
    field.lose_etcd();
    let scaler =
        serde_json::json!({"scaleTargetRef": {"kind": "ReplicaSet", "name": "web"}, "maxReplicas": 9});
    let scaler = Resource::HorizontalPodAutoscaler(serde_json::from_value(scaler).unwrap());
    field.builder = std::mem::take(&mut field.builder).object(&object_of("web", scaler));
    // A commit arrived while etcd was away: the running pods are replaced step by step.
    field.push(rolling(replica_set(2, "web:2"), 1, 0), 3);
    field.plan();
    assert_eq!(field.pods(), before);
    field.run(20);
    assert_eq!(field.images(), ["web:2"; 5]);
}

/// The file is a day old, and another template was rolled out in that day.
#[test]
fn a_file_older_than_what_runs_counts_for_nothing() {
    let mut field = running(3);
    field.keep();
    let old = field.last_known.clone();
    field.after(86_400);
    field.push(rolling(replica_set(3, "web:2"), 1, 0), 2);
    field.run(20);
    let (before, whole) = (field.pods(), field.snapshot().clone());
    field.lose_etcd();
    field.last_known = old;
    field.report_again(&whole);
    for _ in 0..4 {
        field.plan();
        assert!(field.images().iter().all(|image| image == "web:2"), "{:?}", field.pods());
    }
    assert_eq!(field.pods(), before);
}

/// A change within the last second before the loss does not make the file outdated.
#[test]
fn a_pod_that_was_made_a_moment_before_the_loss_leaves_the_file_in_force() {
    let mut field = running(3);
    field.fates.insert(BAD.to_owned(), Fate::Waits("ErrImagePull"));
    field.keep();
    let kept = field.last_known.clone();
    field.push(rolling(replica_set(3, BAD), 1, 0), 2);
    field.run(2);
    let whole = field.snapshot().clone();
    field.lose_etcd();
    field.last_known = kept;
    field.report_again(&whole);
    field.run(5);
    field.after(60);
    field.run(10);
    assert!(field.rollout().failure.is_some());
    assert_eq!(field.images(), ["web:1"; 3], "the file has the good template");
}

#[test]
fn a_workload_that_git_took_away_and_named_again_begins_anew() {
    let mut field = running(3);
    field.fates.insert(BAD.to_owned(), Fate::Waits("ErrImagePull"));
    field.push(rolling(replica_set(3, BAD), 1, 0), 2);
    field.run(5);
    field.after(60);
    field.run(5);
    assert!(field.rollout().failure.is_some());
    field.lose_etcd();
    let object = Key::Object(field.object.reference());
    let forgotten = |field: &mut Field| {
        let left = field.last_known.without_deleted(field.snapshot());
        left.inspect(|left| field.last_known = left.clone()).is_some()
    };
    // Git names the workload, but nothing was applied yet; then the file that names it is broken.
    field.builder = std::mem::take(&mut field.builder).delete(&object);
    assert!(!forgotten(&mut field));
    let broken = Quarantine {
        file: field.object.provenance.file.clone(),
        commit: String::new(),
        author: String::new(),
        violations: Vec::new(),
        violations_total: 1,
    };
    let status = |quarantined| SourceStatus { quarantined, ..source_status(SourceState::Degraded) };
    let key = Key::Source(field.object.provenance.source.clone());
    field.builder = std::mem::take(&mut field.builder).put(&key, &status(vec![broken.clone()]));
    assert!(!forgotten(&mut field));
    // Another file is broken, and this source no longer names the workload; a source not applied yet still may.
    let other = Quarantine { file: "other.yaml".to_owned(), ..broken };
    let unread =
        SourceStatus { name: "b".to_owned(), applied_commit: None, ..source_status(SourceState::Pending) };
    let second = Key::Source("b".to_owned());
    field.builder = std::mem::take(&mut field.builder).put(&key, &status(vec![other])).put(&second, &unread);
    assert!(!forgotten(&mut field));
    // That source is applied and does not name it: the workload is gone.
    let read = SourceStatus { name: "b".to_owned(), ..source_status(SourceState::Synced) };
    field.builder = std::mem::take(&mut field.builder).put(&second, &read);
    assert!(forgotten(&mut field) && !forgotten(&mut field));
    field.push(rolling(replica_set(3, BAD), 1, 0), 4);
    field.run(2);
    let rollout = field.rollout();
    assert!(rollout.failure.is_none() && rollout.good.is_none(), "{rollout:?}");
    assert!(field.images().iter().all(|image| image == BAD));
}

/// A pod added by a push while etcd is being refilled is younger than any file.
#[test]
fn a_pod_that_begins_after_the_loss_leaves_the_file_in_force() {
    let mut field = running(3);
    field.keep();
    let old = std::sync::Arc::new(field.last_known.clone());
    field.after(86_400);
    let whole = field.snapshot().clone();
    let ((node, _), status) = whole.pod_status.iter().next().unwrap();
    let added = NamespacedName::new("default", "web-0123abcd-9");
    let is_in_force = |began: i64| {
        let mut field = Field::new(rolling(replica_set(3, "web:1"), 1, 0));
        field.after(86_400);
        field.lose_etcd();
        let start_time = Some(field.now + SignedDuration::from_secs(began));
        let status = PodStatus { uid: "another".to_owned(), start_time, ..status.value.clone() };
        let key = Key::PodStatus(node.clone(), added.clone());
        let snapshot = std::mem::take(&mut field.builder).put(&key, &status).snapshot;
        std::sync::Arc::ptr_eq(&old, &old.without_outdated(&snapshot))
    };
    assert!(is_in_force(5));
    assert!(!is_in_force(-3600));
}

/// Covers an `evictAfterSeconds` above the deadline of the workload.
#[test]
fn a_template_does_not_fail_while_its_pods_wait_for_their_nodes() {
    let mut field = running(3);
    field.lose_etcd();
    field.last_known = LastKnown::default();
    field.waits_until = Some(field.now + SignedDuration::from_secs(300));
    for _ in 0..150 {
        field.plan();
        field.after(2);
        assert_eq!(field.rollout().failure, None);
    }
    // The nodes did not return: the pods start elsewhere, with the full deadline.
    field.waits_until = None;
    field.after(50);
    field.plan();
    assert_eq!(field.rollout().failure, None);
    field.run(3);
    assert!(field.rollout().complete);
}
