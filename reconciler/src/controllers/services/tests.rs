//! Tables for the services plan.

use jiff::{SignedDuration, Timestamp};
use schema::codec::decode;
use schema::condition::Condition;
use schema::keys::Key;
use schema::kinds::KindSpec;
use schema::kinds::dns::{DnsPath, DnsSpec, ServiceReference};
use schema::kinds::pod::{
    ContainerPort, ContainerState, ContainerStatus, PodPhase, PodSpec, PodStatus, PortReference, Protocol,
    RunningState, TerminatedState,
};
use schema::kinds::service::{ServicePort, ServiceSpec, ServiceType, TrafficPolicy};
use schema::meta::NamespacedName;
use schema::records::{PodInstance, RouteRecord, ServiceRecord};
use schema::snapshot::Snapshot;
use schema::testing::{SnapshotBuilder, at, condition, container, instance, object_of, pod_ref, spec};

use super::plan::plan;
use crate::controllers::testing::seen;
use crate::controllers::{Change, Writes};

fn service(ports: &[(&str, u16)]) -> ServiceSpec {
    let mut spec = ServiceSpec {
        selector: [("app".to_owned(), "web".to_owned())].into(),
        ports: ports.iter().map(|(name, port)| service_port(name, *port)).collect(),
        ..ServiceSpec::default()
    };
    spec.fill_defaults();
    spec
}

fn service_port(name: &str, port: u16) -> ServicePort {
    ServicePort {
        name: (!name.is_empty()).then(|| name.to_owned()),
        protocol: Protocol::Tcp,
        port,
        target_port: None,
        node_port: None,
    }
}

fn with_service(builder: SnapshotBuilder, name: &str, spec: ServiceSpec) -> SnapshotBuilder {
    builder.object(&object_of(name, spec))
}

/// Adds a pod `app: web` on a node.
fn with_pod(builder: SnapshotBuilder, name: &str, node: &str, ip: &str, ready: bool) -> SnapshotBuilder {
    with_instance(builder, &web(name), node, ip, ready)
}

fn with_instance(
    builder: SnapshotBuilder,
    pod: &PodInstance,
    node: &str,
    ip: &str,
    ready: bool,
) -> SnapshotBuilder {
    let message = if ready { "" } else { "containers with unready status: [main]" }.into();
    let condition = Condition { message, ..condition("Ready", ready, at(0)) };
    let status = PodStatus {
        uid: pod.uid.clone(),
        phase: PodPhase::Running,
        pod_ip: Some(ip.to_owned()),
        conditions: vec![condition],
        ..PodStatus::default()
    };
    builder.pod(pod).bound(node, pod).put(&Key::PodStatus(node.into(), pod_ref(&pod.name)), &status)
}

fn web(name: &str) -> PodInstance {
    let mut spec = spec(1, 1);
    let port = ContainerPort { name: Some("http".into()), container_port: 8080, ..ContainerPort::default() };
    spec.containers[0].ports.push(port);
    let mut pod = instance(name, spec);
    pod.labels.insert("app".into(), "web".into());
    pod
}

fn planned(builder: &SnapshotBuilder) -> Writes {
    plan(&seen(&builder.snapshot), at(0))
}

/// Record that the plan writes for a service.
fn written(plan: &Writes, name: &str) -> ServiceRecord {
    let write = plan.writes.iter().find(|w| w.key == Key::Service(pod_ref(name)));
    match &write.unwrap_or_else(|| panic!("nothing for {name}\n{plan}")).change {
        Change::Put(value) => decode(value).unwrap(),
        Change::Delete => panic!("{name} is removed"),
    }
}

/// The snapshot after the plan's writes.
fn applied(mut builder: SnapshotBuilder) -> SnapshotBuilder {
    let plan = planned(&builder);
    for write in &plan.writes {
        builder = match &write.change {
            Change::Put(value) => {
                let value: serde_json::Value = decode(value).unwrap();
                builder.put(&write.key, &value)
            }
            Change::Delete => builder.delete(&write.key),
        };
    }
    builder
}

fn address(snapshot: &Snapshot, name: &str) -> String {
    snapshot.services[&pod_ref(name)].value.cluster_ip.unwrap().to_string()
}

#[test]
fn a_service_gets_an_address_and_the_ready_pods_that_it_selects() {
    let builder = with_service(SnapshotBuilder::new().nodes(2), "web", service(&[("", 80)]));
    let builder = with_pod(builder, "a", "n1", "10.244.0.5", true);
    let builder = with_pod(builder, "b", "n2", "10.244.1.5", true);
    let builder = with_pod(builder, "c", "n2", "10.244.1.6", false);
    let record = written(&planned(&builder), "web");
    assert!(record.cluster_ip.unwrap().to_string().starts_with("10.96."), "{record:?}");
    let endpoints: Vec<_> = record.endpoints.iter().map(|e| format!("{}:{:?}", e.address, e.ports)).collect();
    assert_eq!(endpoints, ["10.244.0.5:[80]", "10.244.1.5:[80]"]);
    assert_eq!(record.left_out_count, 1);
    assert_eq!(record.left_out[0].why, "it is not ready: containers with unready status: [main]");
    assert!(planned(&applied(builder)).writes.is_empty(), "a second plan changes nothing");
}

/// Adds a pod whose container started at that second; its former start ended after that many milliseconds.
fn with_start(
    builder: SnapshotBuilder,
    pod: &PodInstance,
    second: i64,
    former: Option<i64>,
) -> SnapshotBuilder {
    let ip = format!("10.244.0.{}", pod.name.as_bytes()[0]);
    let builder = with_instance(builder, pod, "n1", &ip, true);
    let key = ("n1".to_owned(), pod_ref(&pod.name));
    let mut status = builder.snapshot.pod_status[&key].value.clone();
    status.hash.clone_from(&pod.hash);
    let running = ContainerState::Running(RunningState { started_at: at(second) });
    let last_state = former.map(|ran| TerminatedState {
        exit_code: 1,
        reason: "Error".into(),
        message: String::new(),
        started_at: Some(at(0)),
        finished_at: Some(at(0) + SignedDuration::from_millis(ran)),
    });
    let restart_count = u32::from(former.is_some());
    status.container_statuses =
        vec![ContainerStatus { restart_count, last_state, ..container("main", running) }];
    builder.put(&Key::PodStatus(key.0, key.1), &status)
}

#[test]
fn a_pod_that_may_end_again_at_its_start_gets_no_clients_while_others_serve() {
    let base = |spec: &ServiceSpec| with_service(SnapshotBuilder::new().nodes(1), "web", spec.clone());
    let other = |name: &str| {
        let mut pod = web(name);
        pod.hash = "other".into();
        pod
    };
    let probed = |name: &str| {
        let mut pod = web(name);
        let probe = serde_json::json!({"tcpSocket": {"port": 8080}});
        std::sync::Arc::make_mut(&mut pod.spec).containers[0].readiness_probe =
            Some(serde_json::from_value(probe).unwrap());
        pod
    };
    let open = ServiceSpec { publish_not_ready_addresses: true, ..service(&[("", 80)]) };
    let local = ServiceSpec { internal_traffic_policy: TrafficPolicy::Local, ..service(&[("", 80)]) };
    let names = |builder: &SnapshotBuilder, now: Timestamp| {
        let plan = plan(&seen(&builder.snapshot), now);
        let record = written(&plan, "web");
        let names: Vec<_> = record.endpoints.iter().filter_map(|one| one.pod.as_deref()).collect();
        assert_eq!(record.left_out.len(), usize::try_from(record.left_out_count).unwrap());
        (names.join(" "), record.left_out.first().map(|one| one.why.clone()), plan.again_at)
    };
    let why = "a pod of its template ended within 1 s of its start, and container main has no readinessProbe and has \
               run for less than 1 s since its start";
    let (of_all, later) = (service(&[("", 80)]), Some(at(101)));
    for (spec, pods, expected) in [
        (&of_all, vec![(web("a"), 0, None), (web("b"), 100, Some(400))], "a"),
        (&of_all, vec![(web("a"), 0, Some(400)), (web("b"), 100, None)], "a"),
        (&of_all, vec![(web("a"), 0, None), (web("b"), 100, Some(5000))], "a b"),
        (&of_all, vec![(web("a"), 0, None), (web("b"), 100, None)], "a b"),
        (&of_all, vec![(web("a"), 0, Some(400)), (other("b"), 100, None)], "a b"),
        (&of_all, vec![(probed("a"), 0, None), (probed("b"), 100, Some(400))], "a b"),
        (&of_all, vec![(web("a"), 100, None), (web("b"), 100, Some(400))], "a b"),
        (&open, vec![(web("a"), 0, None), (web("b"), 100, Some(400))], "a b"),
        (&local, vec![(web("a"), 0, None), (web("b"), 100, Some(400))], "a b"),
    ] {
        let start = |builder, (pod, second, former): &(PodInstance, i64, Option<i64>)| {
            with_start(builder, pod, *second, *former)
        };
        let builder = pods.iter().fold(base(spec), start);
        let (serving, left_out, again_at) = names(&builder, at(100));
        assert_eq!(serving, expected, "{pods:?}");
        if expected == "a" {
            assert_eq!((left_out.as_deref(), again_at), (Some(why), later), "{pods:?}");
        }
        assert_eq!(names(&builder, at(101)), ("a b".to_owned(), None, None), "a second later: {pods:?}");
        // A pod that clients reach already stays.
        let all = written(&plan(&seen(&builder.snapshot), at(101)), "web");
        let listed = builder.put(&Key::Service(pod_ref("web")), &all);
        let plan = plan(&seen(&listed.snapshot), at(100));
        assert!(plan.writes.is_empty(), "{plan}");
    }
}

// Seen red with any address taken: the traffic of a service went wherever a node said.
#[test]
fn a_pod_at_an_address_that_its_node_does_not_have_is_no_endpoint() {
    let on_host = |name: &str| {
        let mut pod = web(name);
        std::sync::Arc::make_mut(&mut pod.spec).host_network = true;
        pod
    };
    let builder = with_service(SnapshotBuilder::new().nodes(2), "web", service(&[("", 80)]));
    let builder = with_pod(builder, "a", "n1", "10.244.1.5", true);
    let builder = with_pod(builder, "b", "n1", "192.0.2.9", true);
    let builder = with_instance(builder, &on_host("c"), "n1", "192.0.2.1", true);
    let builder = with_instance(builder, &on_host("d"), "n1", "10.244.1.6", true);
    let record = written(&planned(&builder), "web");
    let endpoints: Vec<_> = record.endpoints.iter().filter_map(|endpoint| endpoint.pod.as_deref()).collect();
    assert_eq!(endpoints, ["c"]);
    let why: Vec<_> = record.left_out.iter().map(|one| format!("{}: {}", one.pod, one.why)).collect();
    assert_eq!(
        why,
        [
            "a: node n1 reports 10.244.1.5, which is not in that node's range 10.244.0.0/24",
            "b: node n1 reports 192.0.2.9, which is not in that node's range 10.244.0.0/24",
            "d: node n1 reports 10.244.1.6, which is not an address of that node",
        ]
    );
}

// Seen red with pods matched by the first label alone, and with pods of all namespaces.
#[test]
fn a_service_has_the_pods_of_its_own_namespace_that_have_all_its_labels() {
    let mut builder = SnapshotBuilder::default();
    let labels = |text: &str| -> Vec<(String, String)> {
        text.split(' ').map(|pair| pair.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect()
    };
    let pods = [
        ("default/a", "app=web"),
        ("default/b", "app=web tier=front"),
        ("default/c", "app=web tier=back"),
        ("default/d", "app=db tier=back"),
        ("other/e", "app=web tier=front"),
    ];
    for (name, of) in pods {
        let (namespace, name) = name.split_once('/').unwrap();
        let mut pod = PodInstance { labels: labels(of).into_iter().collect(), ..instance(name, spec(1, 1)) };
        pod.labels.insert("name".into(), name.into());
        builder = builder.put(&Key::Pod(NamespacedName::new(namespace, name)), &pod);
    }
    let wanted = [
        ("all", "app=web", "a b c"),
        ("front", "app=web tier=front", "b"),
        ("back", "tier=back", "c d"),
        // Each label alone matches more pods.
        ("both", "app=web tier=back", "c"),
        ("one", "name=c tier=back app=web", "c"),
        ("none", "app=web tier=none", ""),
        ("nowhere", "app=cache", ""),
    ];
    for (name, of, _) in wanted {
        let selector = labels(of).into_iter().collect();
        builder = with_service(builder, name, ServiceSpec { selector, ..service(&[("", 80)]) });
    }
    let plan = planned(&builder);
    for (name, _, expected) in wanted {
        let record = written(&plan, name);
        let found: Vec<&str> = record.left_out.iter().map(|out| out.pod.as_str()).collect();
        assert_eq!(found.join(" "), expected, "{name}");
    }
}

#[test]
fn a_named_target_port_is_looked_up_in_each_pod() {
    let mut spec = service(&[("web", 80)]);
    spec.ports[0].target_port = Some(PortReference::Name("http".into()));
    let builder = with_service(SnapshotBuilder::new().nodes(1), "web", spec.clone());
    let builder = with_pod(builder, "a", "n1", "10.244.0.5", true);
    assert_eq!(written(&planned(&builder), "web").endpoints[0].ports, [8080]);
    spec.ports[0].target_port = Some(PortReference::Name("grpc".into()));
    let builder = with_service(builder, "web", spec);
    let record = written(&planned(&builder), "web");
    assert!(record.endpoints.is_empty());
    assert!(record.left_out[0].why.contains("targetPort"), "{record:?}");
    // A sidecar serves as well as a main container; an init container has ended.
    let init = |name: &str, port: u16, restart: &str| {
        let text = format!(
            "{{\"name\": \"{name}\", \"image\": \"a\"{restart}, \"ports\": [{{\"name\": \"grpc\", \"containerPort\": {port}}}]}}"
        );
        serde_json::from_str(&text).unwrap()
    };
    let mut pod = web("b");
    let mut spec = PodSpec::clone(&pod.spec);
    spec.init_containers = vec![init("once", 1, ""), init("proxy", 9901, ", \"restartPolicy\": \"Always\"")];
    pod.spec = spec.into();
    let builder = with_instance(builder, &pod, "n1", "10.244.0.6", true);
    assert_eq!(written(&planned(&builder), "web").endpoints[0].ports, [9901]);
}

#[test]
fn addresses_stay_and_come_back_the_same_in_another_etcd() {
    let make = |names: &[&str]| {
        names.iter().fold(SnapshotBuilder::new().nodes(1), |builder, name| {
            with_service(builder, name, service(&[("", 80)]))
        })
    };
    let names: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let forward: Vec<&str> = names.iter().map(String::as_str).collect();
    let one = applied(make(&forward));
    let all: std::collections::BTreeSet<String> =
        forward.iter().map(|name| address(&one.snapshot, name)).collect();
    assert_eq!(all.len(), forward.len(), "no two have one address");
    // Filled again one by one, as another sync may do it.
    let mut other = SnapshotBuilder::new().nodes(1);
    for name in forward.iter().rev() {
        other = applied(with_service(other, name, service(&[("", 80)])));
    }
    for name in forward {
        assert_eq!(address(&one.snapshot, name), address(&other.snapshot, name), "{name}");
    }
}

#[test]
fn an_address_that_a_manifest_names_is_given_or_the_reason_reported() {
    let named = |text: &str| ServiceSpec { cluster_ip: Some(text.into()), ..service(&[("", 80)]) };
    let builder = applied(with_service(SnapshotBuilder::new().nodes(1), "web", named("10.96.0.20")));
    assert_eq!(address(&builder.snapshot, "web"), "10.96.0.20");
    for (text, why) in [
        ("10.96.0.20", "service default/web has it"),
        ("10.96.0.10", "reserved for DNS and gateway"),
        ("10.97.0.1", "outside of --service-cidr"),
    ] {
        let builder = with_service(
            with_service(SnapshotBuilder::new(), "web", named("10.96.0.20")),
            "zzz",
            named(text),
        );
        let plan = planned(&applied(builder));
        assert!(plan.writes.is_empty(), "{plan}");
        assert!(plan.to_string().contains(why), "{plan}");
    }
}

#[test]
fn node_ports_are_kept_given_and_never_given_twice() {
    let node_port = |wanted: Option<u16>| {
        let mut spec = service(&[("", 80)]);
        spec.kind = ServiceType::NodePort;
        spec.ports[0].node_port = wanted;
        spec
    };
    let builder = applied(with_service(SnapshotBuilder::new(), "any", node_port(None)));
    let given = builder.snapshot.services[&pod_ref("any")].value.ports[0].node_port.unwrap();
    assert!((30086..=32767).contains(&given), "{given}");
    let builder = with_service(builder, "named", node_port(Some(given)));
    let plan = planned(&builder);
    assert!(plan.to_string().contains("NodePortNotAllocated"), "{plan}");
    let builder = applied(with_service(builder, "named", node_port(Some(30001))));
    assert_eq!(builder.snapshot.services[&pod_ref("named")].value.ports[0].node_port, Some(30001));
}

// Seen red with the pod's `hostname` in every service.
#[test]
fn a_pod_has_its_host_name_in_the_service_of_its_subdomain_else_in_each() {
    let mut builder = SnapshotBuilder::new().nodes(1);
    for name in ["one", "two"] {
        builder = with_service(builder, name, service(&[("", 80)]));
    }
    let pods = [("a", Some("a"), None), ("b", Some("b"), Some("two")), ("c", None, Some("two"))];
    for (index, (name, hostname, subdomain)) in pods.into_iter().enumerate() {
        let mut pod = web(name);
        let spec = PodSpec {
            hostname: hostname.map(Into::into),
            subdomain: subdomain.map(Into::into),
            ..PodSpec::clone(&pod.spec)
        };
        pod.spec = spec.into();
        builder = with_instance(builder, &pod, "n1", &format!("10.244.0.{}", index + 2), true);
    }
    let plan = planned(&builder);
    for (service, wanted) in [("one", [Some("a"), None, None]), ("two", [Some("a"), Some("b"), None])] {
        let record = written(&plan, service);
        let names: Vec<_> = record.endpoints.iter().map(|endpoint| endpoint.hostname.as_deref()).collect();
        assert_eq!(names, wanted, "{service}");
    }
}

/// Addresses and ports behind a service.
fn behind(record: &ServiceRecord) -> Vec<String> {
    record.endpoints.iter().map(|e| format!("{}:{:?}", e.address, e.ports)).collect()
}

// Seen red with such a service left out of the plan: its record kept the address of the removed pod.
#[test]
fn a_service_whose_new_address_or_port_cannot_be_had_keeps_the_former_and_follows_its_pods() {
    let named = |address: Option<&str>, node_port: Option<u16>, kind: ServiceType| {
        let mut spec = ServiceSpec { cluster_ip: address.map(Into::into), kind, ..service(&[("", 80)]) };
        spec.ports[0].node_port = node_port;
        spec.ports[0].target_port = Some(PortReference::Name("http".into()));
        spec
    };
    let taken = named(Some("10.96.0.30"), Some(30_001), ServiceType::NodePort);
    let base = with_service(SnapshotBuilder::new().nodes(2), "taken", taken);
    let base = with_service(base, "web", named(Some("10.96.0.20"), Some(30_000), ServiceType::NodePort));
    let base = applied(with_pod(base, "old", "n1", "10.244.0.5", true));
    let former = base.snapshot.services[&pod_ref("web")].value.clone();
    assert_eq!(behind(&former), ["10.244.0.5:[8080]"]);
    for (address, node_port, why) in [
        ("10.97.0.1", 30_000, "outside of --service-cidr"),
        ("10.96.0.10", 30_000, "reserved for DNS and gateway"),
        ("10.96.0.30", 30_000, "service default/taken has it"),
        ("10.96.0.20", 30_001, "default/taken"),
        ("10.96.0.21", 30_001, "default/taken"),
    ] {
        let new = named(Some(address), Some(node_port), ServiceType::NodePort);
        let builder = with_service(base.clone(), "web", new);
        assert!(planned(&builder).writes.is_empty(), "{why}: {}", planned(&builder));
        let builder = with_pod(builder.delete(&Key::Pod(pod_ref("old"))), "new", "n2", "10.244.1.5", true);
        let plan = planned(&builder);
        assert!(plan.to_string().contains(why), "{plan}");
        let record = written(&plan, "web");
        assert_eq!(behind(&record), ["10.244.1.5:[8080]"]);
        // The rest of the record is unchanged: anything waiting for the new version keeps waiting.
        let endpoints = former.endpoints.clone();
        assert_eq!(ServiceRecord { endpoints, ..record }, former, "{why}");
        assert!(planned(&applied(builder)).writes.is_empty(), "a second plan changes nothing");
    }
}

// Seen red without a second round in `give_out`.
#[test]
fn what_a_service_holds_for_want_of_another_is_given_to_nobody() {
    let named = |address: &str, node_port: u16| {
        let mut spec = ServiceSpec { cluster_ip: Some(address.into()), ..service(&[("", 80)]) };
        (spec.kind, spec.ports[0].node_port) = (ServiceType::NodePort, Some(node_port));
        spec
    };
    let builder = applied(with_service(SnapshotBuilder::new(), "web", named("10.96.0.20", 30_000)));
    let builder = with_service(builder, "web", named("10.97.0.1", 30_000));
    for (address, node_port) in [("10.96.0.20", 30_001), ("10.96.0.21", 30_000)] {
        // One name sorts before it, the other after it.
        for name in ["early", "zzz"] {
            let plan = planned(&with_service(builder.clone(), name, named(address, node_port)));
            assert!(plan.writes.is_empty(), "{plan}");
            assert!(plan.to_string().contains("default/web"), "{plan}");
        }
    }
    // Swapping the addresses of two services never fails.
    let two = |a: &str, b: &str, builder: SnapshotBuilder| {
        with_service(with_service(builder, "a", named(a, 30_005)), "b", named(b, 30_006))
    };
    let builder = applied(two("10.96.0.40", "10.96.0.41", SnapshotBuilder::new()));
    let builder = applied(two("10.96.0.41", "10.96.0.40", builder));
    assert_eq!(
        (address(&builder.snapshot, "a"), address(&builder.snapshot, "b")),
        ("10.96.0.41".into(), "10.96.0.40".into())
    );
}

// Seen red without the former port number.
#[test]
fn a_held_port_that_the_manifest_has_no_more_leads_where_it_led() {
    let mut old = service(&[("a", 80), ("b", 81)]);
    old.ports[0].target_port = Some(PortReference::Number(9_000));
    let builder = with_service(SnapshotBuilder::new().nodes(2), "web", old);
    let builder = applied(with_pod(builder, "old", "n1", "10.244.0.5", true));
    let new = ServiceSpec { cluster_ip: Some("10.97.0.1".into()), ..service(&[("c", 82), ("b", 81)]) };
    let builder = with_service(builder, "web", new).delete(&Key::Pod(pod_ref("old")));
    let record = written(&planned(&with_pod(builder, "new", "n2", "10.244.1.5", true)), "web");
    assert_eq!(behind(&record), ["10.244.1.5:[9000, 81]"]);
}

#[test]
fn a_headless_service_has_no_address_and_one_without_selector_has_those_of_its_manifest() {
    let mut spec = service(&[("", 80)]);
    spec.cluster_ip = Some("None".into());
    let record = written(&planned(&with_service(SnapshotBuilder::new(), "web", spec)), "web");
    assert_eq!(record.cluster_ip, None);
    let mut spec = service(&[("", 80)]);
    spec.selector.clear();
    spec.addresses = vec!["192.0.2.7".into(), "192.0.2.6".into()];
    let record = written(&planned(&with_service(SnapshotBuilder::new(), "web", spec)), "web");
    let found: Vec<String> = record.endpoints.iter().map(|e| e.address.to_string()).collect();
    assert_eq!(found, ["192.0.2.6", "192.0.2.7"]);
}

#[test]
fn the_pods_of_a_node_that_is_away_are_left_out_unless_most_nodes_are() {
    let two = |nodes: u8| {
        let builder = with_service(SnapshotBuilder::new().nodes(nodes), "web", service(&[("", 80)]));
        let builder = with_pod(builder, "a", "n1", "10.244.0.5", true);
        with_pod(builder, "b", "n2", "10.244.1.5", true)
    };
    let away = two(3).delete(&Key::Heartbeat("n1".into()));
    let record = written(&planned(&away), "web");
    assert_eq!(record.endpoints.len(), 1);
    assert_eq!(record.left_out[0].why, "its node n1 is not ready");
    let most = two(3).delete(&Key::Heartbeat("n1".into())).delete(&Key::Heartbeat("n2".into()));
    assert_eq!(written(&planned(&most), "web").endpoints.len(), 2, "it is rather us who are cut off");
}

#[test]
fn a_removed_service_goes_and_one_that_cannot_be_read_stays() {
    let builder = applied(with_service(SnapshotBuilder::new(), "web", service(&[("", 80)])));
    let key = Key::Object(object_of("web", service(&[])).reference());
    let gone = builder.delete(&key);
    assert!(planned(&gone).to_string().starts_with("delete services/default/web"), "{}", planned(&gone));
    let builder = applied(with_service(SnapshotBuilder::new(), "web", service(&[("", 80)])));
    assert!(planned(&builder.garbage(&key)).writes.is_empty());
}

#[test]
fn paths_lead_to_ports_by_number_and_name_or_say_why_not() {
    let path = |path: &str, service: &str, port: PortReference| DnsPath {
        path: path.into(),
        service: Some(ServiceReference { name: service.into(), port }),
        ..DnsPath::default()
    };
    let dns = DnsSpec {
        host: "Shop.Example".into(),
        paths: vec![
            path("/", "web", PortReference::Name("http".into())),
            path("/api/v2", "web", PortReference::Number(80)),
            path("/old", "gone", PortReference::Number(80)),
            path("/x", "web", PortReference::Number(81)),
        ],
    };
    let object = object_of("shop", dns);
    let builder = with_service(SnapshotBuilder::new(), "web", service(&[("http", 80)]));
    let plan = planned(&builder.object(&object));
    let write = plan.writes.iter().find(|w| w.key == Key::Route(pod_ref("shop"))).unwrap();
    let Change::Put(value) = &write.change else { panic!("{plan}") };
    let route: RouteRecord = decode(value).unwrap();
    assert_eq!(route.host, "shop.example");
    let shown: Vec<String> = route
        .paths
        .iter()
        .map(|p| {
            format!("{} {} {}", p.path, p.in_words(), p.backends()[0].broken.clone().unwrap_or_default())
        })
        .collect();
    assert_eq!(
        shown,
        [
            "/api/v2 web:80 ",
            "/old gone:80 there is no service gone in namespace default",
            "/x web:81 service web has no port 81",
            "/ web:80 ",
        ]
    );
}

// Seen red with a path routed to an alias.
#[test]
fn an_alias_has_a_name_and_nothing_else_and_no_path_leads_there() {
    let alias = ServiceSpec {
        kind: ServiceType::ExternalName,
        external_name: Some("www.example.com".into()),
        ports: vec![service_port("http", 80)],
        ..ServiceSpec::default()
    };
    let builder = with_service(SnapshotBuilder::new().nodes(1), "outer", alias);
    let path = DnsPath {
        path: "/".into(),
        service: Some(ServiceReference { name: "outer".into(), port: PortReference::Number(80) }),
        ..DnsPath::default()
    };
    let host = DnsSpec { host: "outer.lan".into(), paths: vec![path] };
    let object = object_of("host", host);
    let builder = builder.object(&object);
    let plan = planned(&builder);
    let wanted = ServiceRecord { external_name: Some("www.example.com".into()), ..ServiceRecord::default() };
    assert_eq!(ServiceRecord { hash: String::new(), ..written(&plan, "outer") }, wanted);
    let route = plan.writes.iter().find(|w| w.key == Key::Route(pod_ref("host"))).unwrap();
    let Change::Put(value) = &route.change else { panic!("{plan}") };
    let route: RouteRecord = decode(value).unwrap();
    assert!(
        route.paths[0].backends()[0].broken.as_ref().is_some_and(|why| why.contains("ExternalName")),
        "{route:?}"
    );
}
