//! A loaded manifest is a fixed point: writing it and loading it again changes nothing, and the defaults are filled
//! in
//! once.

use proptest::prelude::*;
use schema::kinds::autoscaler::{
    AverageValue, Behavior, HorizontalPodAutoscalerSpec, Metric, MetricTarget, MetricType, PolicyType,
    ResourceMetric, ResourceName, ScaleTarget, ScaleTargetKind, ScalingPolicy, ScalingRules, SelectPolicy,
    TargetType,
};
use schema::kinds::dns::{DnsPath, DnsSpec, ServiceReference};
use schema::kinds::pod::{Container, PodSpec, PortReference, Protocol};
use schema::kinds::replica_set::{
    IntOrPercent, LabelRequirement, LabelSelector, PodTemplate, ReplicaSetSpec, RollingUpdate,
    SelectorOperator, Strategy as Rollout, StrategyType, TemplateMeta,
};
use schema::kinds::service::{
    ClientIpConfig, ServicePort, ServiceSpec, ServiceType, SessionAffinity, SessionAffinityConfig,
    TrafficPolicy,
};
use schema::kinds::{KindSpec, Resource};
use schema::manifest::{DraftObject, load_file};
use schema::quantity::Share;
use serde_json::json;

/// Writes the spec as a JSON manifest.
fn write(resource: &Resource) -> Vec<u8> {
    let mut object = serde_json::to_value(resource).expect("a spec is JSON");
    object["apiVersion"] = json!(resource.kind().api_version());
    object["metadata"] = json!({"name": "web"});
    object.to_string().into_bytes()
}

fn read(bytes: &[u8]) -> DraftObject {
    let loaded = load_file("a.json", bytes);
    let text = String::from_utf8_lossy(bytes);
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.violations);
    DraftObject::clone(&loaded.documents.into_iter().next().expect("one document").object)
}

/// Asserts that loading is idempotent, and filling in the defaults too.
fn is_fixed<S: KindSpec + Into<Resource> + Clone + PartialEq + std::fmt::Debug>(spec: S) {
    let first = read(&write(&spec.clone().into()));
    let second = read(&write(&first.resource));
    assert_eq!(first, second);
    assert_eq!(first.hash(), second.hash());
    let mut filled = spec;
    filled.fill_defaults();
    let mut twice = filled.clone();
    twice.fill_defaults();
    assert_eq!(filled, twice);
    assert_eq!(first.resource, filled.into());
}

fn flag() -> impl Strategy<Value = bool> {
    any::<bool>()
}

fn services() -> impl Strategy<Value = ServiceSpec> {
    let port = (1u16..9999, prop::option::of(0u16..5), flag(), prop::option::of(30000u16..32767));
    (prop::collection::btree_map(1u16..9999, port, 1..4), flag(), flag(), prop::option::of(0u32..3), flag())
        .prop_map(|(ports, is_node, headless, affinity, local)| {
            let headless = headless && !is_node;
            let mut taken = std::collections::BTreeSet::new();
            let ports = ports.into_iter().map(|(number, (_, target, udp, node_port))| ServicePort {
                name: Some(format!("p{number}")),
                protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
                port: number,
                target_port: target.map(|target| match target {
                    0 => PortReference::Number(0),
                    1 => PortReference::Name(String::new()),
                    2 => PortReference::Name("http".to_owned()),
                    _ => PortReference::Number(8080),
                }),
                node_port: node_port
                    .filter(|port| is_node && taken.insert(*port))
                    .or(Some(0).filter(|_| udp)),
            });
            ServiceSpec {
                kind: if is_node { ServiceType::NodePort } else { ServiceType::ClusterIP },
                selector: [("app".to_owned(), "web".to_owned())].into(),
                ports: ports.collect(),
                cluster_ip: headless.then(|| "None".to_owned()).or(Some(String::new()).filter(|_| local)),
                session_affinity: if affinity.is_some() {
                    SessionAffinity::ClientIP
                } else {
                    SessionAffinity::None
                },
                session_affinity_config: affinity.filter(|seconds| *seconds > 0).map(|seconds| {
                    let timeout_seconds = (seconds > 1).then_some(seconds);
                    SessionAffinityConfig { client_ip: Some(ClientIpConfig { timeout_seconds }) }
                }),
                external_traffic_policy: if local && is_node {
                    TrafficPolicy::Local
                } else {
                    TrafficPolicy::Cluster
                },
                publish_not_ready_addresses: local,
                ..ServiceSpec::default()
            }
        })
}

fn amounts() -> impl Strategy<Value = Option<IntOrPercent>> {
    let amount = prop_oneof![
        (1u32..50).prop_map(IntOrPercent::Number),
        (1u32..100).prop_map(|percent| IntOrPercent::Percent(format!("{percent:03}%"))),
    ];
    prop::option::of(amount)
}

fn replica_sets() -> impl Strategy<Value = ReplicaSetSpec> {
    let update = prop::option::of((amounts(), amounts()));
    let values = prop::collection::vec(prop::sample::select(vec!["web", "api", "db"]), 1..4);
    (0u32..100, prop_oneof![0u32..120, 120u32..300], flag(), update, values, flag()).prop_map(
        |(replicas, min_ready_seconds, recreate, update, values, tagged)| {
            let mut values: Vec<String> = values.into_iter().map(str::to_owned).collect();
            let label = values[0].clone();
            values.reverse();
            let not_there = LabelRequirement {
                key: "old".to_owned(),
                operator: SelectorOperator::DoesNotExist,
                values: Vec::new(),
            };
            let among = LabelRequirement { key: "app".to_owned(), operator: SelectorOperator::In, values };
            let image = if tagged { "nginx:1.27" } else { "nginx" }.to_owned();
            let container = Container { name: "web".to_owned(), image, ..Container::default() };
            let rolling_update = update
                .filter(|_| !recreate)
                .map(|(max_surge, max_unavailable)| RollingUpdate { max_surge, max_unavailable });
            ReplicaSetSpec {
                replicas,
                selector: LabelSelector {
                    match_expressions: vec![not_there, among],
                    ..LabelSelector::default()
                },
                template: PodTemplate {
                    metadata: TemplateMeta {
                        labels: [("app".to_owned(), label)].into(),
                        ..TemplateMeta::default()
                    },
                    spec: PodSpec { containers: vec![container], ..PodSpec::default() },
                },
                min_ready_seconds,
                progress_deadline_seconds: recreate.then_some(min_ready_seconds + 1),
                paused: false,
                strategy: Rollout {
                    kind: if recreate { StrategyType::Recreate } else { StrategyType::RollingUpdate },
                    rolling_update,
                },
            }
        },
    )
}

fn rules() -> impl Strategy<Value = Option<ScalingRules>> {
    let policy = (flag(), 1u32..200, 1u32..=1800).prop_map(|(pods, value, period_seconds)| ScalingPolicy {
        kind: if pods { PolicyType::Pods } else { PolicyType::Percent },
        value,
        period_seconds,
    });
    let select = prop::option::of(prop::sample::select(vec![
        SelectPolicy::Max,
        SelectPolicy::Min,
        SelectPolicy::Disabled,
    ]));
    let window = prop::option::of(0u32..=3600);
    let tolerance = prop::option::of((0u64..3000).prop_map(|thousandths| Share { thousandths }));
    let rules = (window, select, tolerance, prop::collection::vec(policy, 0..3)).prop_map(
        |(stabilization_window_seconds, select_policy, tolerance, policies)| ScalingRules {
            stabilization_window_seconds,
            select_policy,
            tolerance,
            policies,
        },
    );
    prop::option::of(rules)
}

fn metrics() -> impl Strategy<Value = Metric> {
    (flag(), 1u32..500, 0u8..4).prop_map(|(cpu, number, form)| {
        let name = if cpu { ResourceName::Cpu } else { ResourceName::Memory };
        let target = match form {
            0 => MetricTarget {
                kind: TargetType::Utilization,
                average_utilization: Some(number),
                average_value: None,
            },
            form => MetricTarget {
                kind: TargetType::AverageValue,
                average_utilization: None,
                average_value: Some(match form {
                    1 => AverageValue(number.to_string()),
                    2 => AverageValue(format!("{number}m")),
                    _ => AverageValue(format!("{number}.5Mi")),
                }),
            },
        };
        Metric { kind: MetricType::Resource, resource: Some(ResourceMetric { name, target }) }
    })
}

fn autoscalers() -> impl Strategy<Value = HorizontalPodAutoscalerSpec> {
    let behavior = prop::option::of((rules(), rules()));
    (1u32..10, 0u32..10, flag(), prop::collection::vec(metrics(), 0..4), behavior).prop_map(
        |(min_replicas, more, is_pod, metrics, behavior)| HorizontalPodAutoscalerSpec {
            scale_target_ref: ScaleTarget {
                api_version: is_pod.then(|| "v1".to_owned()),
                kind: if is_pod { ScaleTargetKind::Pod } else { ScaleTargetKind::ReplicaSet },
                name: "web".to_owned(),
            },
            min_replicas,
            max_replicas: min_replicas + more,
            metrics,
            behavior: behavior.map(|(scale_up, scale_down)| Behavior { scale_up, scale_down }),
        },
    )
}

fn dns_objects() -> impl Strategy<Value = DnsSpec> {
    let path =
        ("[a-z0-9]{1,8}(/[A-Za-z0-9._~-]{0,3}[a-z])?", flag(), prop::option::of("/[a-z/]?"), 1u16..9999);
    let paths = prop::collection::btree_map("[a-z]{1,3}", path, 1..5);
    ("[a-z]([a-z0-9-]{0,8}[a-z])?(\\.[a-z]{2,5}){0,2}", paths)
        .prop_filter("a host of its own", |(host, _)| host != "localhost")
        .prop_map(|(host, paths)| DnsSpec {
            host,
            paths: paths
                .into_iter()
                .map(|(first, (rest, slash, rewrite, port))| DnsPath {
                    path: format!("/{first}/{rest}{}", if slash { "/" } else { "" }),
                    service: Some(ServiceReference {
                        name: first,
                        port: if slash {
                            PortReference::Name("http".to_owned())
                        } else {
                            PortReference::Number(port)
                        },
                    }),
                    backends: Vec::new(),
                    sticky: None,
                    rewrite: rewrite.filter(|rewrite| !rewrite.contains("//")),
                })
                .collect(),
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn services_are_fixed_points(spec in services()) {
        is_fixed(spec);
    }

    #[test]
    fn replica_sets_are_fixed_points(spec in replica_sets()) {
        is_fixed(spec);
    }

    #[test]
    fn autoscalers_are_fixed_points(spec in autoscalers()) {
        is_fixed(spec);
    }

    #[test]
    fn dns_objects_are_fixed_points(spec in dns_objects()) {
        is_fixed(spec);
    }
}
