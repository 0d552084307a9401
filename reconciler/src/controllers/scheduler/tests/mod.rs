//! Tables for the scheduler's plan and for what it explains.

use std::time::Instant;

use jiff::Timestamp;
use schema::keys::Key;
use schema::kinds::cluster::ClusterSpec;
use schema::kinds::pod::{Container, PodPhase, PodSpec, PodStatus};
use schema::quantity::Count;
use schema::records::{Binding, NodeRecord};
use schema::snapshot::Snapshot;
use schema::testing::{SnapshotBuilder, instance, node_record, pod_ref, spec};

use super::explain;
use crate::controllers::testing::{seen, settings, with_host_port};
use crate::controllers::{Change, Observed, Settings, Writes};

mod affinity;
mod filters;
mod leaving;
mod properties;
mod strategies;

const SPREAD: &str = "of the nodes that fit, it has the fewest pods of this owner, then the least requested";

/// Plans with the single source `main` configured, a minute into the term.
fn plan(snapshot: &Snapshot) -> Writes {
    super::plan::plan(&seen(snapshot), Timestamp::from_second(60).unwrap())
}

fn planned(snapshot: &Snapshot) -> String {
    plan(snapshot).to_string()
}

/// Bindings that a plan puts.
fn put_bindings(snapshot: &Snapshot) -> Vec<Binding> {
    let values = plan(snapshot).writes;
    let puts = values.iter().filter_map(|write| match &write.change {
        Change::Put(value) => Some(schema::codec::decode(value).unwrap()),
        Change::Delete => None,
    });
    puts.collect()
}

#[test]
fn bare_pods_spread_by_what_is_requested_and_then_by_name() {
    let builder = SnapshotBuilder::new().nodes(2);
    let builder = ["a", "b", "c"].iter().fold(builder, |w, name| w.pod(&instance(name, spec(100, 64))));
    assert_eq!(
        planned(&builder.snapshot),
        format!(
            "put bindings/n1/default/a if absent: bound to n1: {SPREAD}; it has 0 pods\n\
             put bindings/n2/default/b if absent: bound to n2: {SPREAD}; it has 0 pods\n\
             put bindings/n1/default/c if absent: bound to n1: {SPREAD}; it has 1 pod\n"
        )
    );
}

#[test]
fn a_binding_holds_the_pod_in_full() {
    let pod = instance("web", spec(100, 64));
    let builder = SnapshotBuilder::new().nodes(1).pod(&pod);
    let bindings = put_bindings(&builder.snapshot);
    let reason = format!("{SPREAD}; it has 0 pods");
    assert_eq!(bindings, [Binding { node: "n1".into(), pod, reason }]);
}

#[test]
fn what_is_bound_as_it_should_be_costs_no_write() {
    let pod = instance("web", spec(100, 64));
    let builder = SnapshotBuilder::new().nodes(2).pod(&pod).bound("n2", &pod);
    assert_eq!(planned(&builder.snapshot), "");
}

#[test]
fn a_pod_that_fits_nowhere_says_how_many_nodes_failed_which_filter() {
    let big = instance("big", spec(100, 2048));
    let fat = instance("fat", spec(100, 3584));
    let builder = SnapshotBuilder::new()
        .nodes(3)
        .delete(&Key::Heartbeat("n1".into()))
        .delete(&Key::Heartbeat("n2".into()))
        .pod(&fat)
        .bound("n3", &fat)
        .pod(&big);
    let why = "0/3 nodes fit: 2 not ready, 1 not enough memory (wants 2Gi, free 512Mi)";
    assert_eq!(planned(&builder.snapshot), format!("note Pod/default/big Unschedulable: {why}\n"));
    assert_eq!(explain(&builder.snapshot, &pod_ref("big")).as_deref(), Some(why));
    assert_eq!(explain(&builder.snapshot, &pod_ref("fat")), None, "a bound pod needs no explanation");
    assert_eq!(explain(&builder.snapshot, &pod_ref("none")), None);
}

/// Rejections of a pod with this spec on two nodes, of which `n2` is mostly occupied.
fn refused(spec_of_pod: PodSpec) -> String {
    let fat = instance("fat", with_host_port(spec(3000, 3000), 80));
    let builder =
        SnapshotBuilder::new().nodes(2).pod(&fat).bound("n2", &fat).pod(&instance("pod", spec_of_pod));
    explain(&builder.snapshot, &pod_ref("pod")).unwrap()
}

/// A container that needs this many GPUs.
fn gpu_user(count: u64) -> Container {
    let mut user = spec(1, 1).containers.remove(0);
    user.resources.limits.gpus = Some(Count { number: count });
    user
}

// Would fail with GPUs that are never taken, or never given back by a pod that ended. Seen red with a count of the free
// ones: Docker would give both pods the first.
#[test]
fn gpus_are_taken_until_the_pod_ends() {
    let with =
        |name: &str, count| instance(name, PodSpec { containers: vec![gpu_user(count)], ..spec(1, 1) });
    let (first, second) = (with("first", 2), with("second", 1));
    let record = NodeRecord { gpus: 4, ..node_record("n1") };
    let builder = SnapshotBuilder::new().nodes(1).put(&Key::Node("n1".into()), &record);
    let builder = builder.pod(&first).bound("n1", &first).pod(&second);
    assert_eq!(
        explain(&builder.snapshot, &pod_ref("second")).as_deref(),
        Some("0/1 nodes fit: 1 Insufficient nvidia.com/gpu (wants 1, free 0)")
    );
    let builder = builder.status("n1", &first, PodPhase::Succeeded);
    assert!(planned(&builder.snapshot).starts_with("put bindings/n1/default/second if absent"));
}

// Would fail with ports compared by their number alone, and with an address that clashes with no other use.
#[test]
fn a_host_port_is_free_at_another_address_unless_a_pod_has_all() {
    let at = |name: &str, address: Option<&str>| {
        let mut spec = with_host_port(spec(1, 1), 80);
        spec.containers[0].ports[0].host_ip = address.map(str::to_owned);
        instance(name, spec)
    };
    let why = |there: Option<&str>, wanted: Option<&str>| {
        let (there, wanted) = (at("there", there), at("wanted", wanted));
        let builder = SnapshotBuilder::new().nodes(1).pod(&there).bound("n1", &there).pod(&wanted);
        explain(&builder.snapshot, &pod_ref("wanted"))
    };
    let taken =
        |port: &str| Some(format!("0/1 nodes fit: 1 with host port {port} in use by pod default/there"));
    assert_eq!(
        why(Some("127.0.0.1"), Some("192.0.2.1")).as_deref(),
        Some("fits on n1, waits for the scheduler")
    );
    assert_eq!(why(Some("192.0.2.1"), Some("192.0.2.1")), taken("192.0.2.1:80/TCP"));
    assert_eq!(why(None, Some("192.0.2.1")), taken("192.0.2.1:80/TCP"));
    assert_eq!(why(Some("192.0.2.1"), None), taken("80/TCP"));
}

#[test]
fn every_filter_has_its_words() {
    let on = |node: &str, s: PodSpec| PodSpec { node_name: Some(node.into()), ..s };
    let select = |s: PodSpec| PodSpec { node_selector: [("disk".into(), "ssd".into())].into(), ..s };
    let table = [
        (on("n2", spec(2000, 1)), "1 other than nodeName n2, 1 not enough cpu (wants 2, free 1)"),
        (on("n9", spec(1, 1)), "2 other than nodeName n9"),
        (select(spec(1, 1)), "2 without the labels of nodeSelector (disk=ssd)"),
        (spec(9500, 1), "2 not enough cpu (wants 9500m, at most free 4)"),
        (spec(1, 8192), "2 not enough memory (wants 8Gi, at most free 4Gi)"),
        (
            PodSpec { containers: vec![gpu_user(2)], ..spec(1, 1) },
            "2 Insufficient nvidia.com/gpu (wants 2, at most free 0)",
        ),
        (
            on("n2", with_host_port(spec(1, 1), 80)),
            "1 other than nodeName n2, 1 with host port 80/TCP in use by pod default/fat",
        ),
    ];
    for (spec, why) in table {
        assert_eq!(refused(spec), format!("0/2 nodes fit: {why}"));
    }
}

// Would fail with the first of the failed filters.
#[test]
fn the_obstacle_of_a_pod_is_the_filter_that_most_nodes_fail() {
    let obstacle = |builder: &SnapshotBuilder, spec: &PodSpec| {
        let pod = instance("pod", spec.clone());
        super::Explainer::new(&builder.snapshot).obstacle(&pod)
    };
    let (big, small) = (spec(9_000, 1), spec(100, 1));
    let silent = |builder: SnapshotBuilder, node: &str| builder.delete(&Key::Heartbeat(node.into()));
    let one_silent = silent(SnapshotBuilder::new().nodes(3), "n1");
    let two_silent = silent(one_silent.clone(), "n2");
    assert_eq!(obstacle(&one_silent, &big), Some("Cpu"));
    assert_eq!(obstacle(&two_silent, &big), Some("NotReady"));
    assert_eq!(obstacle(&two_silent, &small), None, "it fits on the third");
    assert_eq!(obstacle(&SnapshotBuilder::new(), &small), Some("NoNodes"));
    let named = |node: &str| PodSpec { node_name: Some(node.into()), ..big.clone() };
    assert_eq!(obstacle(&SnapshotBuilder::new().nodes(3), &named("n2")), Some("Cpu"));
    assert_eq!(obstacle(&SnapshotBuilder::new().nodes(3), &named("n9")), Some("OtherNode"));
}

#[test]
fn nodes_without_range_or_room_for_more_pods_are_counted_too() {
    let mut full = node_record("full");
    full.max_pods = 0;
    let builder = SnapshotBuilder::new()
        .node(&full, "10.244.0.0/24")
        .node(&node_record("young"), "10.244.1.0/24")
        .delete(&Key::Subnet("young".into()))
        .pod(&instance("pod", spec(1, 1)));
    assert_eq!(
        explain(&builder.snapshot, &pod_ref("pod")).unwrap(),
        "0/2 nodes fit: 1 without a pod range yet, 1 with as many pods as allowed"
    );
    let nobody = SnapshotBuilder::new().pod(&instance("pod", spec(1, 1)));
    assert_eq!(
        explain(&nobody.snapshot, &pod_ref("pod")).unwrap(),
        "0/0 nodes fit: no node has registered yet; a node registers a few seconds after minik8s-agent starts on it"
    );
}

#[test]
fn requests_count_the_largest_init_container_and_fall_back_to_limits() {
    let mut pod = spec(1000, 64);
    let mut init = Container { name: "init".into(), ..Container::default() };
    init.resources.limits.cpu = Some("5".parse().unwrap());
    pod.init_containers.push(init);
    let builder = SnapshotBuilder::new().nodes(1).pod(&instance("pod", pod));
    assert_eq!(
        explain(&builder.snapshot, &pod_ref("pod")).unwrap(),
        "0/1 nodes fit: 1 not enough cpu (wants 5, free 4)"
    );
}

#[test]
fn host_network_takes_container_ports_and_port_zero_takes_none() {
    let mut on_host = spec(1, 1);
    on_host.host_network = true;
    on_host.containers[0].ports =
        vec![schema::kinds::pod::ContainerPort { container_port: 80, ..Default::default() }];
    let host = instance("host", on_host);
    let clash = instance("clash", with_host_port(spec(1, 1), 80));
    let any = instance("any", with_host_port(spec(1, 1), 0));
    let builder = SnapshotBuilder::new().nodes(1).pod(&host).bound("n1", &host).pod(&clash).pod(&any);
    let plan = planned(&builder.snapshot);
    assert!(plan.contains("put bindings/n1/default/any"), "{plan}");
    assert!(plan.contains("note Pod/default/clash Unschedulable: 0/1 nodes fit: 1 with host port 80/TCP"));
}

// Seen red with a `taken` that ignores statuses.
#[test]
fn a_port_that_a_node_gave_for_port_zero_is_taken_there() {
    use schema::kinds::pod::HostPortStatus;
    let any = instance("any", with_host_port(spec(1, 1), 0));
    let fixed = instance("fixed", with_host_port(spec(1, 1), 20_000));
    let given = HostPortStatus { host_port: 20_000, container_port: 80, ..HostPortStatus::default() };
    let status = PodStatus { uid: any.uid.clone(), host_ports: vec![given], ..PodStatus::default() };
    let builder = SnapshotBuilder::new()
        .nodes(2)
        .pod(&any)
        .bound("n1", &any)
        .put(&Key::PodStatus("n1".into(), any.reference()), &status)
        .pod(&fixed);
    assert!(planned(&builder.snapshot).starts_with("put bindings/n2/default/fixed if absent"));
    let alone = builder.delete(&Key::Heartbeat("n2".into()));
    let why = "0/2 nodes fit: 1 not ready, 1 with host port 20000/TCP in use by pod default/any";
    assert_eq!(explain(&alone.snapshot, &pod_ref("fixed")).as_deref(), Some(why));
}

// Seen red with `PodStatus::has_ended` by the phase alone.
#[test]
fn pods_that_ended_take_nothing() {
    let done = instance("done", spec(4000, 64));
    let builder =
        SnapshotBuilder::new().nodes(1).pod(&done).bound("n1", &done).pod(&instance("new", spec(4000, 64)));
    assert!(planned(&builder.snapshot).contains("Unschedulable"));
    let builder = builder.status("n1", &done, PodPhase::Succeeded);
    assert!(planned(&builder.snapshot).starts_with("put bindings/n1/default/new if absent"));
    // Removed and immediately wanted again: it runs again.
    let left = PodStatus {
        uid: done.uid.clone(),
        phase: PodPhase::Succeeded,
        reason: PodStatus::TERMINATING.into(),
        ..PodStatus::default()
    };
    let builder = builder.put(&Key::PodStatus("n1".into(), done.reference()), &left);
    assert!(planned(&builder.snapshot).contains("Unschedulable"));
}

#[test]
fn a_label_changes_the_binding_in_place_with_its_reason_kept() {
    let old = instance("web", spec(100, 64));
    let mut new = old.clone();
    new.labels.insert("tier".into(), "front".into());
    let builder = SnapshotBuilder::new().nodes(2).pod(&new).bound("n2", &old);
    let at = builder.snapshot.revision;
    assert_eq!(
        planned(&builder.snapshot),
        format!("put bindings/n2/default/web if at {at}: pod metadata changed, in place\n")
    );
    assert_eq!(put_bindings(&builder.snapshot)[0].reason, "a test");
}

#[test]
fn another_login_reaches_the_node_in_place() {
    use schema::content_refs::{BlobKind, BlobRef};
    let old = instance("web", spec(100, 64));
    let mut new = old.clone();
    let blob = BlobRef {
        digest: "0a".repeat(32),
        size: 1,
        kind: BlobKind::Secret,
        texts: Vec::new(),
        source: String::new(),
    };
    new.files.insert("secrets/login.age".to_owned(), blob);
    let builder = SnapshotBuilder::new().nodes(2).pod(&new).bound("n2", &old);
    assert_eq!(put_bindings(&builder.snapshot)[0].pod, new);
}

#[test]
fn a_new_version_takes_the_place_of_its_old_self() {
    let old = instance("web", with_host_port(spec(3000, 64), 80));
    let new = instance("web", with_host_port(spec(3500, 64), 80));
    let builder = SnapshotBuilder::new().nodes(2).pod(&new).bound("n2", &old);
    let at = builder.snapshot.revision;
    assert_eq!(
        planned(&builder.snapshot),
        format!("put bindings/n2/default/web if at {at}: replaces the previous pod on n2\n")
    );
}

#[test]
fn a_new_version_that_no_longer_fits_moves_in_one_transaction() {
    let old = instance("web", spec(1000, 64));
    let new = instance("web", spec(3000, 64));
    let neighbour = instance("zz", spec(2000, 64));
    let builder =
        SnapshotBuilder::new().nodes(2).pod(&neighbour).bound("n2", &neighbour).pod(&new).bound("n2", &old);
    let at = builder.snapshot.revision;
    let why = "moved from n2, where 1 not enough cpu (wants 3, free 1), to n1";
    assert_eq!(
        planned(&builder.snapshot),
        format!(
            "put bindings/n1/default/web if absent: {why}\n\
             + delete bindings/n2/default/web if at {at}: {why}\n"
        )
    );
}

#[test]
fn a_new_version_that_fits_nowhere_leaves_the_old_one_running() {
    let old = instance("web", spec(1000, 64));
    let new = instance("web", spec(9000, 64));
    let builder = SnapshotBuilder::new().nodes(1).pod(&new).bound("n1", &old);
    let why = "0/1 nodes fit: 1 not enough cpu (wants 9, free 3); the former pod keeps running on n1";
    assert_eq!(planned(&builder.snapshot), format!("note Pod/default/web Unschedulable: {why}\n"));
    assert_eq!(explain(&builder.snapshot, &pod_ref("web")).as_deref(), Some(why));
}

#[test]
fn new_versions_that_fit_in_place_come_before_pods_that_are_new_to_a_node() {
    let (old, new) = (instance("web", spec(3000, 64)), instance("web", spec(4000, 64)));
    let builder = SnapshotBuilder::new()
        .nodes(1)
        .pod(&instance("a-newcomer", spec(1000, 64)))
        .pod(&new)
        .bound("n1", &old);
    let plan = planned(&builder.snapshot);
    assert!(plan.starts_with("put bindings/n1/default/web if at"), "{plan}");
    assert!(plan.contains("note Pod/default/a-newcomer Unschedulable"), "{plan}");
}

#[test]
fn a_version_that_finds_room_where_another_moved_away_stays_on_its_node() {
    // Both run on n1 and grow; only one fits there, and only once the other is gone.
    let (old_a, new_a) = (instance("a", spec(1900, 64)), instance("a", spec(2200, 64)));
    let (old_b, new_b) = (instance("b", spec(1900, 64)), instance("b", spec(2300, 64)));
    let builder =
        SnapshotBuilder::new().nodes(2).pod(&new_a).bound("n1", &old_a).pod(&new_b).bound("n1", &old_b);
    let plan = planned(&builder.snapshot);
    assert!(plan.starts_with("put bindings/n2/default/a if absent: moved from n1"), "{plan}");
    assert!(plan.contains("put bindings/n1/default/b if at 10: replaces the previous pod on n1"), "{plan}");
    assert_eq!(plan.lines().count(), 3, "{plan}");
}

#[test]
fn a_pod_that_is_gone_loses_its_binding() {
    let builder = SnapshotBuilder::new().nodes(1).bound("n1", &instance("web", spec(1, 1)));
    let at = builder.snapshot.revision;
    assert_eq!(
        planned(&builder.snapshot),
        format!("delete bindings/n1/default/web if at {at}: the pod is gone\n")
    );
}

#[test]
fn a_pod_on_a_node_that_is_not_ready_stays_bound() {
    let pod = instance("web", spec(1, 1));
    let builder =
        SnapshotBuilder::new().nodes(2).pod(&pod).bound("n2", &pod).delete(&Key::Heartbeat("n2".into()));
    assert_eq!(planned(&builder.snapshot), "");
}

#[test]
fn of_two_bindings_the_first_by_name_stays_unless_the_other_node_reports_the_pod() {
    let pod = instance("web", spec(1, 1));
    let builder = SnapshotBuilder::new().nodes(3).pod(&pod).bound("n3", &pod).bound("n2", &pod);
    let at = builder.snapshot.revision;
    assert_eq!(
        planned(&builder.snapshot),
        format!(
            "delete bindings/n3/default/web if at {}: the pod is also bound to n2, and stays there\n",
            at - 1
        )
    );
    let builder = builder.status("n3", &pod, PodPhase::Running);
    assert_eq!(
        planned(&builder.snapshot),
        format!("delete bindings/n2/default/web if at {at}: the pod is also bound to n3, and stays there\n")
    );
}

#[test]
fn a_pod_with_several_bindings_takes_no_new_place_in_the_same_plan() {
    let (old, new) = (instance("web", spec(7, 7)), instance("web", spec(2000, 7)));
    let builder = SnapshotBuilder::new().nodes(2).pod(&new).bound("n1", &old).bound("n2", &new);
    let builder = builder.status("n1", &old, PodPhase::Running).delete(&Key::Heartbeat("n1".into()));
    // n1 stays for now; the new version will want n2, whose key is deleted here.
    let at = builder.snapshot.revision - 2;
    assert_eq!(
        planned(&builder.snapshot),
        format!("delete bindings/n2/default/web if at {at}: the pod is also bound to n1, and stays there\n")
    );
}

#[test]
fn a_pod_or_binding_that_cannot_be_read_is_neither_removed_nor_bound_twice() {
    let pod = instance("web", spec(1, 1));
    let pod_unreadable = SnapshotBuilder::new().nodes(2).bound("n1", &pod).garbage(&Key::Pod(pod_ref("web")));
    let plan_of_pod = plan(&pod_unreadable.snapshot);
    assert!(plan_of_pod.writes.is_empty(), "{plan_of_pod}");
    assert_eq!(plan_of_pod.notes.len(), 1);
    let binding = Key::Binding("n1".into(), pod_ref("web"));
    let binding_unreadable = SnapshotBuilder::new().nodes(2).pod(&pod).garbage(&binding);
    let plan_of_binding = plan(&binding_unreadable.snapshot);
    assert!(plan_of_binding.writes.is_empty(), "{plan_of_binding}");
    assert_eq!(plan_of_binding.notes.len(), 1);
}

#[test]
fn equal_worlds_give_equal_plans() {
    let builder = (0..20)
        .fold(SnapshotBuilder::new().nodes(3), |w, i| w.pod(&instance(&format!("p{i}"), spec(700, 64))));
    assert_eq!(planned(&builder.snapshot), planned(&builder.snapshot.clone()));
}

/// Run with `cargo test --release -p minik8s-reconciler --lib large_snapshot -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement: prints how long plans of a large snapshot take"]
fn plans_of_a_large_snapshot_take_less_than_a_tenth_of_a_second() {
    let mut builder = SnapshotBuilder::new();
    for i in 0..1000_u32 {
        let mut record = node_record(&format!("node-{i:04}"));
        (record.max_pods, record.cpu.millis, record.memory.bytes) = (110, 64_000, 256 << 30);
        builder = builder.node(&record, &format!("10.{}.{}.0/24", 100 + i / 256, i % 256));
    }
    let pods: Vec<_> = (0..30_000).map(|i| instance(&format!("pod-{i:05}"), spec(500, 512))).collect();
    let empty = pods.iter().fold(builder, |w, pod| w.pod(pod));
    let time = |what: &str, snapshot: &Snapshot| {
        let started = Instant::now();
        let plan = plan(snapshot);
        eprintln!(
            "{what}: {:?}, {} writes, {} notes",
            started.elapsed(),
            plan.writes.len(),
            plan.notes.len()
        );
    };
    time("nothing bound, 30,000 pods on 1,000 nodes", &empty.snapshot);
    let full =
        pods.iter().enumerate().fold(empty, |w, (i, pod)| w.bound(&format!("node-{:04}", i % 1000), pod));
    time("all bound, nothing to do", &full.snapshot);
    let huge: Vec<_> = (0..3000).map(|i| instance(&format!("zz-{i:05}"), spec(60_000, 512))).collect();
    let unfit = huge.iter().fold(full, |w, pod| w.pod(pod));
    time("all bound, 3,000 equal pods fit nowhere", &unfit.snapshot);
    let odd: Vec<_> = (0..3000).map(|i| instance(&format!("zy-{i:05}"), spec(60_000 + i, 512))).collect();
    let unfit = odd.iter().fold(unfit, |w, pod| w.pod(pod));
    time("all bound, 3,000 different pods fit nowhere", &unfit.snapshot);
    let apart = (0..1000).map(|i| affinity::lone(&format!("web-{i}")));
    let apart = apart.fold(unfit.clone(), |w, pod| w.pod(&pod));
    time("the same with 1,000 pods that exclude each other", &apart.snapshot);
    let started = Instant::now();
    let explainer = super::Explainer::new(&unfit.snapshot);
    eprintln!("explainer: {:?}", started.elapsed());
    assert!(explainer.explain(&pod_ref("zz-00000")).is_some());
}

mod settling {
    use schema::kinds::service::ServiceSpec;
    use schema::records::{ServiceRecord, SourceState};
    use schema::testing::{object, object_of, source_status};

    use super::*;

    /// A node, and a source in the given state.
    fn builder(state: SourceState) -> SnapshotBuilder {
        SnapshotBuilder::new().nodes(1).put(&Key::Source("main".into()), &source_status(state))
    }

    fn settles(builder: &SnapshotBuilder) -> bool {
        planned(&builder.snapshot).contains("put bindings/n1/settled if absent: etcd matches Git")
    }

    #[test]
    fn not_before_a_source_was_applied_whole() {
        assert!(!settles(&SnapshotBuilder::new().nodes(1)));
        assert!(!settles(&builder(SourceState::Pending)));
        // Objects of a quarantined file may be running without a record in this etcd.
        assert!(!settles(&builder(SourceState::Degraded)));
        assert!(settles(&builder(SourceState::Synced)));
    }

    // Seen red without `services_are_written`.
    #[test]
    fn not_before_services_and_routes_have_their_records() {
        let builder = builder(SourceState::Synced).object(&object_of("web", ServiceSpec::default()));
        assert!(!settles(&builder));
        assert!(settles(&builder.put(&Key::Service(pod_ref("web")), &ServiceRecord::default())));
    }

    #[test]
    fn not_before_each_configured_source_was_applied_and_no_other_holds_it_up() {
        let there = builder(SourceState::Synced).snapshot;
        let settles = |names: &[&str], snapshot: &Snapshot| {
            let sources = names.iter().map(|name| (*name).to_owned()).collect();
            let settings = Settings { sources, ..settings() };
            let seen = Observed { settings, ..seen(snapshot) };
            let plan = super::super::plan::plan(&seen, Timestamp::UNIX_EPOCH);
            plan.to_string().contains("bindings/n1/settled")
        };
        assert!(settles(&["main"], &there));
        assert!(!settles(&["main", "second"], &there), "the second was never read");
        let removed = builder(SourceState::Synced)
            .put(&Key::Source("second".into()), &source_status(SourceState::Failed));
        assert!(settles(&["main"], &removed.snapshot), "the second is configured no more");
        assert!(!settles(&["main", "second"], &removed.snapshot));
        assert!(!settles(&["main"], &builder(SourceState::Waiting).snapshot));
    }

    #[test]
    fn not_before_every_pod_has_a_node_and_then_once() {
        let there = builder(SourceState::Synced).object(&object("web", spec(100, 64)));
        assert!(!settles(&there), "the object has no pod yet");
        let there = there.pod(&instance("web", spec(100, 64)));
        assert!(!settles(&there), "the pod has no node yet");
        let there = there.bound("n1", &instance("web", spec(100, 64)));
        assert!(settles(&there));
        let there = there.put(&Key::Settled("n1".into()), &schema::records::SettledRecord::default());
        assert!(!settles(&there));
    }

    // A busy cluster always has some. Seen red while any write of either controller held it open.
    #[test]
    fn pods_that_are_removed_or_replaced_do_not_hold_it_up() {
        let pod = |name: &str| instance(name, spec(100, 64));
        let there = builder(SourceState::Synced)
            .pod(&pod("without-object"))
            .bound("n1", &pod("without-object"))
            .bound("n1", &pod("without-pod"))
            .object(&object("web", spec(1, 1)))
            .pod(&instance("web", spec(1, 1)));
        let old = schema::records::PodInstance { uid: "old".into(), ..pod("web") };
        assert!(settles(&there.bound("n1", &old)));
    }

    #[test]
    fn a_pod_that_fits_nowhere_does_not_hold_it_up() {
        let there = builder(SourceState::Synced).object(&object("huge", spec(100_000, 64)));
        assert!(settles(&there.pod(&instance("huge", spec(100_000, 64)))));
    }
}
