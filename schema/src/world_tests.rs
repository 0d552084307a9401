//! The world takes changes in, finds bindings either way, and is quick at it.

use super::*;
use crate::keys::prefix;
use crate::kinds::Kind;
use crate::kinds::pod::PodSpec;
use crate::meta::StringMap;
use crate::records::OwnerRef;

fn binding(node: &str, pod: &PodRef) -> Binding {
    let instance = PodInstance {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: "0".repeat(32),
        hash: "h".into(),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        annotations: StringMap::new(),
        owner: OwnerRef { kind: Kind::Pod, name: pod.name.clone() },
        commit: "c".repeat(40),
        spec: PodSpec::default().into(),
        files: crate::files::Files::new(),
    };
    Binding { node: node.to_owned(), pod: instance, reason: "least pods".into() }
}

fn bind(world: &mut World, node: &str, pod: &PodRef) {
    let key = Key::Binding(node.to_owned(), pod.clone());
    world.put(&key, &binding(node, pod), 1);
}

fn unbind(world: &mut World, node: &str, pod: &PodRef) {
    let key = Key::Binding(node.to_owned(), pod.clone()).to_string();
    world.apply(&Change::Delete { key });
}

fn node_of<'a>(world: &'a World, pod: &PodRef) -> Option<&'a str> {
    world.binding_of(pod).map(|binding| binding.value.node.as_str())
}

#[test]
fn a_binding_is_found_by_its_pod_on_whatever_node() {
    let (web, db) = (PodRef::new("default", "web"), PodRef::new("default", "db"));
    let mut world = World::default();
    bind(&mut world, "n2", &web);
    assert_eq!((node_of(&world, &web), node_of(&world, &db)), (Some("n2"), None));
    // Moved: bound twice for a moment, then on the other only.
    bind(&mut world, "n1", &web);
    assert_eq!(node_of(&world, &web), Some("n1"));
    unbind(&mut world, "n1", &web);
    assert_eq!(node_of(&world, &web), Some("n2"));
    unbind(&mut world, "n2", &web);
    assert_eq!(node_of(&world, &web), None);
}

#[test]
fn a_name_that_begins_like_another_is_not_mistaken_for_it() {
    let mut world = World::default();
    bind(&mut world, "n1", &PodRef::new("default", "web-2"));
    assert_eq!(node_of(&world, &PodRef::new("default", "web")), None);
}

#[test]
fn a_binding_that_became_unreadable_is_no_binding() {
    let web = PodRef::new("default", "web");
    let mut world = World::default();
    bind(&mut world, "n1", &web);
    let key = Key::Binding("n1".into(), web.clone()).to_string();
    world.apply(&Change::Put { key: key.clone(), value: "][".into(), create_revision: 1, mod_revision: 2 });
    assert_eq!(node_of(&world, &web), None);
    assert!(world.malformed.contains_key(&key));
}

#[test]
fn bindings_put_into_the_table_by_hand_are_found_too() {
    let web = PodRef::new("default", "web");
    let mut world = World::default();
    let versioned = Versioned { value: binding("n1", &web), create_revision: 1, mod_revision: 1 };
    world.bindings.insert(("n1".into(), web.clone()), Arc::new(versioned));
    assert_eq!(node_of(&world, &web), Some("n1"));
}

#[test]
fn the_bindings_of_a_node_are_its_own_only() {
    let mut world = World::default();
    for (node, pod) in [("n1", "a"), ("n1", "b"), ("n10", "c"), ("n0", "d")] {
        bind(&mut world, node, &PodRef::new("default", pod));
    }
    let names: Vec<&str> = world.bindings_of("n1").map(|(pod, _)| pod.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(world.pod_status_of("n1").count(), 0);
}

#[test]
fn a_clone_does_not_follow_its_original() {
    let mut world = World::default();
    bind(&mut world, "n1", &PodRef::new("default", "a"));
    let before = world.clone();
    bind(&mut world, "n1", &PodRef::new("default", "b"));
    assert_eq!((before.bindings.len(), world.bindings.len()), (1, 2));
}

#[test]
fn strangers_below_our_root_are_passed_over() {
    let mut world = World::default();
    let key = format!("{}n1/nowhere/a/b", prefix::STATUS);
    world.apply(&Change::Put { key, value: "{}".into(), create_revision: 1, mod_revision: 1 });
    assert_eq!(world, World::default());
}

/// Prints; asserts nothing about time: `cargo test -p minik8s-schema --all-features -- --ignored 30_000 --nocapture`.
#[test]
#[ignore = "a measurement"]
fn measure_30_000_bindings() {
    let pods: Vec<(String, PodRef)> = (0..30_000)
        .map(|n| (format!("node-{:04}", n % 1_000), PodRef::new("default", format!("pod-{n:05}"))))
        .collect();
    let changes: Vec<Change> = pods
        .iter()
        .map(|(node, pod)| Change::Put {
            key: Key::Binding(node.clone(), pod.clone()).to_string(),
            value: encode(&binding(node, pod)).unwrap().into(),
            create_revision: 1,
            mod_revision: 1,
        })
        .collect();
    let mut world = World::default();
    let started = std::time::Instant::now();
    for change in &changes {
        world.apply(change);
    }
    println!("apply 30,000 bindings: {:?}", started.elapsed());
    let started = std::time::Instant::now();
    assert!(pods.iter().all(|(_, pod)| world.binding_of(pod).is_some()));
    println!("binding_of 30,000 times: {:?}", started.elapsed());
    let started = std::time::Instant::now();
    let clones: Vec<World> = (0..1_000).map(|_| world.clone()).collect();
    println!("{} clones: {:?}", clones.len(), started.elapsed());
}

/// Seen red with `usage` among the tables that `plans_as` compares.
#[test]
fn usage_and_revisions_change_no_plan_and_everything_else_does() {
    use crate::records::NodeUsage;
    let mut world = World { synced: true, ..World::default() };
    let pod = PodRef::new("default", "web");
    world.put(&Key::Binding("n1".into(), pod.clone()), &binding("n1", &pod), 1);
    let before = world.clone();
    let at = jiff::Timestamp::UNIX_EPOCH;
    let usage = NodeUsage {
        at,
        window_seconds: 15,
        cpu: 1,
        memory: 2,
        pods: Default::default(),
        left_out: String::new(),
    };
    world.put(&Key::Usage("n1".into()), &usage, 2);
    assert_eq!(world.usage["n1"].value, usage);
    assert!(world.plans_as(&before));
    world.put(&Key::Binding("n1".into(), pod.clone()), &binding("n1", &pod), 3);
    assert!(!world.plans_as(&before));
}
