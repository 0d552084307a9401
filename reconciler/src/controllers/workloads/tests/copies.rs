//! Copies of a pod from Git, created for an autoscaler.

use std::sync::Arc;

use schema::keys::Key;
use schema::kinds::pod::{PodSpec, RestartPolicy};
use schema::kinds::{Health, Resource};
use schema::meta::NamespacedName;
use schema::records::{PodInstance, ScaleRecord};
use schema::snapshot::health::health;
use schema::testing::{object_of, spec};

use super::field::{Fate, Field, status};

fn pod(image: &str) -> Resource {
    let mut spec = spec(10, 1);
    spec.containers[0].image = image.to_owned();
    Resource::Pod(Arc::new(spec))
}

/// The pod `web`, alone.
fn alone() -> Field {
    let mut field = Field::new(pod("web:1"));
    field.run(3);
    assert_eq!(field.images(), ["web:1"]);
    field
}

fn scale(field: &mut Field, replicas: u32) {
    let record = ScaleRecord { replicas, scaler: String::new() };
    let key = Key::Scale(field.object.reference());
    field.builder = std::mem::take(&mut field.builder).put(&key, &record);
    field.run(8);
}

fn bare(field: &Field) -> PodInstance {
    field.snapshot().pods[&NamespacedName::new("default", "web")].value.clone()
}

#[test]
fn the_pod_itself_is_one_of_the_number_and_the_last_to_stay() {
    let mut field = alone();
    assert!(field.snapshot().rollouts.is_empty(), "a pod alone has no rollout");
    let itself = bare(&field);
    scale(&mut field, 4);
    let names: Vec<String> = field.pods().into_keys().collect();
    let numbers = names[1..].iter().map(|name| {
        assert_eq!(PodInstance::workload_in_name(name), Some("web"), "{name}");
        name.rsplit('-').next().unwrap()
    });
    assert_eq!((names[0].as_str(), numbers.collect::<Vec<_>>()), ("web", vec!["0", "1", "2"]));
    scale(&mut field, 2);
    assert_eq!(field.images(), ["web:1"; 2]);
    scale(&mut field, 1);
    assert_eq!(field.pods().into_keys().collect::<Vec<_>>(), ["web"]);
    assert_eq!(bare(&field), itself);
    assert!(field.snapshot().rollouts.is_empty() && field.snapshot().templates.is_empty());
}

#[test]
fn copies_are_like_the_pod_and_are_rolled_with_it() {
    let mut field = alone();
    field.object.metadata.labels.insert("app".to_owned(), "web".to_owned());
    field.push(pod("web:1"), 2);
    scale(&mut field, 5);
    assert!(field.snapshot().pods.values().all(|pod| pod.value.labels["app"] == "web"));
    field.push(pod("web:2"), 3);
    for _ in 0..20 {
        field.run(1);
        let copies = field.pods().len() - 1;
        assert!((3..=5).contains(&copies), "{:?}", field.pods());
    }
    assert_eq!(field.images(), ["web:2"; 5]);
    // Labels and annotations are also updated in place on copies.
    let uids = |field: &Field| {
        let pods = field.snapshot().pods.values();
        pods.map(|pod| pod.value.uid.clone()).collect::<Vec<_>>()
    };
    let before = uids(&field);
    field.object.metadata.labels.insert("app".to_owned(), "shop".to_owned());
    field.object.metadata.annotations.insert("team".to_owned(), "blue".to_owned());
    field.push(pod("web:2"), 4);
    field.run(3);
    let has_both = |pod: &PodInstance| {
        pod.labels["app"] == "shop" && pod.annotations.get("team").is_some_and(|t| t == "blue")
    };
    assert!(field.snapshot().pods.values().all(|pod| has_both(&pod.value)));
    assert_eq!(uids(&field), before);
    assert!(field.plan().writes.is_empty());
}

#[test]
fn copies_go_back_to_the_last_good_template() {
    let mut field = alone();
    scale(&mut field, 3);
    field.fates.insert("web:bad".to_owned(), Fate::Waits("ErrImagePull"));
    field.push(pod("web:bad"), 2);
    field.run(5);
    field.after(i64::from(field.snapshot().cluster().defaults.progress_deadline_seconds));
    field.run(10);
    assert_eq!(field.images(), ["web:1", "web:1", "web:bad"]);
    field.push(pod("web:3"), 3);
    field.run(15);
    assert_eq!(field.images(), ["web:3"; 3]);
}

#[test]
fn the_pod_is_healthy_once_its_copies_are() {
    let is = |field: &Field| health(field.snapshot(), &field.object);
    let mut field = alone();
    assert_eq!(is(&field), Health::Healthy);
    field.fates.insert("web:bad".to_owned(), Fate::Waits("ErrImagePull"));
    scale(&mut field, 3);
    assert_eq!(is(&field), Health::Healthy);
    // Git's own pod runs, but no copy of this image does.
    field.push(pod("web:bad"), 2);
    field.run(5);
    let (itself, node) = (bare(&field), field.node_of("web"));
    let status = status(&itself, Fate::Ready, field.now);
    let builder = std::mem::take(&mut field.builder);
    field.builder = builder.bound(&node, &itself).put(&Key::PodStatus(node, itself.reference()), &status);
    field.run(2);
    assert!(matches!(is(&field), Health::Progressing { .. }), "{:?}", is(&field));
    field.after(i64::from(field.snapshot().cluster().defaults.progress_deadline_seconds));
    field.run(10);
    assert!(matches!(is(&field), Health::Degraded { .. }), "{:?}", is(&field));
}

#[test]
fn a_pod_that_serves_is_not_called_broken_for_want_of_room_for_copies() {
    let mut field = alone();
    // Copies of the same image do not start.
    field.fates.insert("web:1".to_owned(), Fate::Waits("Unschedulable"));
    scale(&mut field, 3);
    field.after(i64::from(field.snapshot().cluster().defaults.progress_deadline_seconds));
    field.run(3);
    assert!(field.rollout().failure.is_some());
    let health = health(field.snapshot(), &field.object);
    assert!(matches!(health, Health::Progressing { .. }), "{health:?}");
}

#[test]
fn a_pod_that_ends_by_itself_has_no_copies() {
    let Resource::Pod(spec) = pod("web:1") else { unreachable!() };
    let spec = PodSpec { restart_policy: RestartPolicy::OnFailure, ..Arc::unwrap_or_clone(spec) };
    let mut field = Field::new(Resource::Pod(Arc::new(spec)));
    scale(&mut field, 3);
    assert_eq!(field.pods().into_keys().collect::<Vec<_>>(), ["web"]);
}

#[test]
fn without_the_pod_or_its_autoscaler_copies_go() {
    let mut field = alone();
    scale(&mut field, 3);
    let gone = Key::Scale(field.object.reference());
    field.builder = std::mem::take(&mut field.builder).delete(&gone);
    field.run(3);
    assert_eq!(field.images(), ["web:1"]);
    scale(&mut field, 3);
    let gone = Key::Object(field.object.reference());
    field.builder = std::mem::take(&mut field.builder).delete(&gone);
    field.run(3);
    assert!(field.pods().is_empty() && field.snapshot().rollouts.is_empty());
}

#[test]
fn copies_are_known_again_when_etcd_was_lost() {
    let mut field = alone();
    scale(&mut field, 4);
    let before = field.pods();
    field.lose_etcd();
    let scaler = serde_json::json!({"scaleTargetRef": {"kind": "Pod", "name": "web"}, "maxReplicas": 9});
    let scaler = Resource::HorizontalPodAutoscaler(serde_json::from_value(scaler).unwrap());
    field.builder = std::mem::take(&mut field.builder).object(&object_of("web", scaler));
    field.run(5);
    assert_eq!(field.pods(), before);
}

#[test]
fn a_copy_that_cannot_be_read_stops_them_all() {
    let mut field = alone();
    scale(&mut field, 3);
    let copy = field.pods().into_keys().next_back().unwrap();
    let key = Key::Pod(NamespacedName::new("default", &copy));
    field.builder = std::mem::take(&mut field.builder).put(&key, &"not a pod");
    let before = field.pods();
    scale(&mut field, 1);
    assert_eq!(field.pods(), before);
}
