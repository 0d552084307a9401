//! Timelines from changes of the snapshot.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::keys::Key;
use schema::kinds::pod::{PodMilestones, PodStatus};
use schema::object::Object;
use schema::records::{Endpoint, PodInstance, ProgrammedRules, Revision, ServiceRecord, Timeline, Verdict};
use schema::snapshot::Snapshot;
use schema::testing::{COMMIT, at, binding, instance_of, object, pod_ref, pod_spec, revision, running};

use super::plan::{SeenCommits, Timelines, plan};

fn ms(milliseconds: i64) -> Timestamp {
    at(0) + SignedDuration::from_millis(milliseconds)
}

/// A snapshot that goes on, and what was seen of it.
#[derive(Default)]
struct World {
    snapshot: Snapshot,
    seen: SeenCommits,
}

impl World {
    /// Changes the snapshot at this time, and returns the plan.
    fn change(&mut self, milliseconds: i64, change: impl FnOnce(&mut Snapshot, i64)) -> Timelines {
        let revision = self.snapshot.revision + 1;
        change(&mut self.snapshot, revision);
        self.snapshot.revision = revision;
        let out = plan(&Arc::new(self.snapshot.clone()), &self.seen, ms(milliseconds));
        self.seen = out.seen.clone();
        out
    }

    fn bind(&mut self, milliseconds: i64, pod: &PodInstance) {
        let key = Key::Binding("n1".to_owned(), pod.reference());
        self.change(milliseconds, |snapshot, at| snapshot.put(&key, &binding("n1", pod), at));
    }

    fn report(&mut self, milliseconds: i64, pod: &PodInstance) {
        let milestones = PodMilestones {
            received: Some(ms(1_000_000)),
            image: Some(ms(1_000_040)),
            created: Some(ms(1_000_100)),
            started: Some(ms(1_000_300)),
            ready: Some(ms(1_000_310)),
        };
        let status = PodStatus { uid: pod.uid.clone(), milestones, ..running() };
        let key = Key::PodStatus("n1".to_owned(), pod.reference());
        self.change(milliseconds, |snapshot, at| snapshot.put(&key, &status, at));
    }

    fn write(&mut self, milliseconds: i64, revision: &Revision) -> Timelines {
        let key = Key::Revision(revision.source.clone(), revision.sequence);
        self.change(milliseconds, |snapshot, at| snapshot.put(&key, revision, at))
    }
}

fn web(name: &str) -> (Object, PodInstance) {
    let object = object(name, pod_spec(&["main"]));
    let pod = instance_of(&object);
    (object, pod)
}

fn put(world: &mut World, milliseconds: i64, object: &Object) {
    let key = Key::Object(object.reference());
    world.change(milliseconds, |snapshot, at| snapshot.put(&key, object, at));
}

/// A commit that was seen at 0 and applied at 150.
fn applied() -> Revision {
    let timeline = Timeline {
        seen_at: ms(0),
        seen_by: None,
        read: Some(100),
        checked: Some(110),
        planned: Some(120),
        applied: Some(150),
        bound: None,
        ready: None,
        programmed: None,
        decided: None,
        pods: 0,
        slowest: Vec::new(),
    };
    Revision { timeline: Some(timeline), ..revision(1, COMMIT) }
}

fn decided(milliseconds: i64) -> Revision {
    Revision { verdict: Verdict::Good, decided_at: Some(ms(milliseconds)), ..applied() }
}

// Seen red with pods that are followed only once their revision is there.
#[test]
fn a_pod_bound_before_its_revision_is_written_counts_and_the_services_nodes_are_waited_for() {
    let mut world = World::default();
    world.change(0, |_, _| {});
    let (object, pod) = web("web");
    put(&mut world, 140, &object);
    world.bind(145, &pod);
    assert!(world.write(155, &applied()).completed.is_empty());
    world.report(700, &pod);
    let endpoint = Endpoint {
        address: "10.244.0.5".parse().unwrap(),
        ports: vec![80],
        node: Some("n1".to_owned()),
        pod: Some("web".to_owned()),
        hostname: None,
    };
    let service = ServiceRecord { endpoints: vec![endpoint], ..ServiceRecord::default() };
    world.change(710, |snapshot, at| snapshot.put(&Key::Service(pod_ref("web")), &service, at));
    let at_service = world.snapshot.revision;
    let waits = world.write(1_000, &decided(1_000));
    assert!(waits.completed.is_empty() && waits.again_at == Some(ms(6_000)), "{waits:?}");
    let rules = |revision| ProgrammedRules { revision };
    let early =
        world.change(1_100, |snapshot, at| snapshot.put(&Key::Programmed, &rules(at_service - 1), at));
    assert!(early.completed.is_empty(), "{early:?}");
    let done = world.change(1_200, |snapshot, at| snapshot.put(&Key::Programmed, &rules(at_service), at));
    let [(revision, _)] = done.completed.as_slice() else { panic!("{done:?}") };
    let shown = revision.timeline.clone().unwrap();
    let totals = (shown.applied, shown.bound, shown.ready, shown.programmed, shown.decided, shown.pods);
    assert_eq!(totals, (Some(150), Some(145), Some(700), Some(1_200), Some(1_000), 1));
    let [one] = shown.slowest.as_slice() else { panic!("{shown:?}") };
    assert_eq!((one.pod.as_str(), one.object.as_str()), ("default/web", "Pod/default/web"));
    let on_node = (one.image, one.created, one.started, one.ready);
    assert_eq!(on_node, (Some(40), Some(60), Some(200), Some(10)), "by the node's own clock");
    assert!(world.write(1_300, revision).completed.is_empty(), "once");
}

#[test]
fn nodes_that_do_not_follow_are_waited_for_only_so_long() {
    let mut world = World::default();
    world.change(0, |_, _| {});
    let (object, pod) = web("web");
    put(&mut world, 1, &object);
    world.bind(2, &pod);
    let endpoint = |pod: &str| Endpoint {
        address: "10.244.0.5".parse().unwrap(),
        ports: vec![80],
        node: None,
        pod: Some(pod.to_owned()),
        hostname: None,
    };
    world.report(3, &pod);
    let service = ServiceRecord { endpoints: vec![endpoint("web")], ..ServiceRecord::default() };
    world.change(4, |snapshot, at| snapshot.put(&Key::Service(pod_ref("any")), &service, at));
    assert!(world.write(1_000, &decided(1_000)).completed.is_empty());
    let late = world.change(6_000, |_, _| {});
    let timeline = late.completed[0].0.timeline.clone().unwrap();
    assert_eq!((timeline.programmed, timeline.ready, timeline.pods), (None, Some(3), 1));
}

#[test]
fn an_endpoint_of_the_former_pod_of_the_same_name_does_not_count() {
    let mut world = World::default();
    world.change(0, |_, _| {});
    let (object, pod) = web("web");
    put(&mut world, 1, &object);
    world.bind(2, &pod);
    let endpoint = Endpoint {
        address: "10.244.0.4".parse().unwrap(),
        ports: vec![80],
        node: None,
        pod: Some("web".to_owned()),
        hostname: None,
    };
    let service = ServiceRecord { endpoints: vec![endpoint], ..ServiceRecord::default() };
    world.change(3, |snapshot, at| snapshot.put(&Key::Service(pod_ref("any")), &service, at));
    let rules = ProgrammedRules { revision: i64::MAX };
    world.change(4, |snapshot, at| snapshot.put(&Key::Programmed, &rules, at));
    world.report(5, &pod);
    let done = world.write(1_000, &decided(1_000));
    let timeline = done.completed[0].0.timeline.clone().unwrap();
    assert_eq!((timeline.programmed, timeline.ready), (None, Some(5)));
}

// Seen red with the time of the first snapshot for what it holds.
#[test]
fn a_new_leader_makes_up_no_times() {
    let mut world = World::default();
    let (object, pod) = web("web");
    world.snapshot.put(&Key::Object(object.reference()), &object, 1);
    world.snapshot.put(&Key::Binding("n1".to_owned(), pod.reference()), &binding("n1", &pod), 1);
    world.write(200, &applied());
    world.report(300, &pod);
    let done = world.write(1_000, &decided(1_000));
    let timeline = done.completed[0].0.timeline.clone().unwrap();
    assert_eq!((timeline.bound, timeline.ready, timeline.pods), (None, Some(300), 1), "{timeline:?}");
}

// Seen red with every change of a binding taken for a new pod.
#[test]
fn a_changed_label_is_no_new_pod() {
    let mut world = World::default();
    let (object, pod) = web("web");
    world.snapshot.put(&Key::Object(object.reference()), &object, 1);
    world.snapshot.put(&Key::Binding("n1".to_owned(), pod.reference()), &binding("n1", &pod), 1);
    world.change(0, |_, _| {});
    world.write(200, &applied());
    let labelled = PodInstance { labels: [("a".to_owned(), "b".to_owned())].into(), ..pod };
    world.bind(210, &labelled);
    world.report(300, &labelled);
    let done = world.write(1_000, &decided(1_000));
    let timeline = done.completed[0].0.timeline.clone().unwrap();
    assert_eq!((timeline.bound, timeline.ready, timeline.pods), (None, None, 0), "{timeline:?}");
}

#[test]
fn only_the_slowest_pods_are_named() {
    let mut world = World::default();
    world.change(0, |_, _| {});
    for number in 0..60 {
        let (object, pod) = web(&format!("web-{number}"));
        put(&mut world, 1, &object);
        world.bind(2, &pod);
        world.report(100 + number, &pod);
    }
    let done = world.write(1_000, &decided(1_000));
    let timeline = done.completed[0].0.timeline.clone().unwrap();
    assert_eq!((timeline.pods, timeline.slowest.len()), (60, 50));
    assert_eq!(timeline.slowest[0].pod, "default/web-59");
    assert!(schema::codec::encode(&done.completed[0].0).is_ok(), "it fits under its key");
}
