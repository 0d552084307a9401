//! An etcd that was lost knows again where each workload stood, from the disk of the reconciler.

use schema::keys::Key;
use schema::kinds::Resource;
use schema::kinds::pod::PodSpec;
use schema::object::Object;
use schema::records::ScaleRecord;

use crate::controllers::testing::object;

use super::field::{Fate, Field, replica_set, rolling};

const BAD: &str = "web:bad";

fn running(replicas: u32) -> Field {
    let mut field = Field::new(rolling(replica_set(replicas, "web:1"), 1, 0));
    field.run(10);
    assert!(field.rollout().complete);
    field
}

// Seen red without `take_back`: all six pods of the new template come at once, and the old ones are not known.
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

// Seen red with `templates_of` that gives the wanted template as the last good one, too.
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

// Seen red without `last_rollout`: the bad template is tried again, and there is nothing to go back to.
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
    let scaler = Object { resource: scaler, ..object("web", PodSpec::default()) };
    field.builder = std::mem::take(&mut field.builder).put(&Key::Object(scaler.reference()), &scaler);
    // A commit came while etcd was away: what runs is replaced step by step.
    field.push(rolling(replica_set(2, "web:2"), 1, 0), 3);
    field.plan();
    assert_eq!(field.pods(), before);
    field.run(20);
    assert_eq!(field.images(), ["web:2"; 5]);
}
