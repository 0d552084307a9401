//! Properties for any snapshot: no pod is bound against a filter, and no pod that fits waits.

use std::collections::BTreeSet;

use proptest::prelude::*;
use schema::kinds::cluster::SchedulerStrategy;
use schema::kinds::node::{NodeSpec, Taint};
use schema::kinds::pod::{TaintEffect, Toleration, TolerationOperator};
use schema::records::PodInstance;
use schema::testing::replica;

use super::strategies::{ALL, applied};
use super::*;

#[derive(Debug, Clone)]
struct ANode {
    cpu: u64,
    memory: u64,
    max_pods: u32,
    ready: bool,
    ssd: bool,
    wanted: NodeSpec,
}

#[derive(Debug, Clone)]
struct APod {
    owner: u8,
    spec: PodSpec,
}

fn taint() -> impl Strategy<Value = Vec<Taint>> {
    use TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    let effect = prop::sample::select(vec![NoSchedule, PreferNoSchedule, NoExecute]);
    let taint = effect.prop_map(|effect| Taint { key: "k".into(), value: None, effect });
    prop::collection::vec(taint, 0..2)
}

fn node() -> impl Strategy<Value = ANode> {
    let size = (0_u64..4000, 0_u64..4096, 0_u32..5);
    let flags = (prop::bool::weighted(0.8), any::<bool>());
    let wanted = (prop::bool::weighted(0.2), prop::bool::weighted(0.2), taint());
    (size, flags, wanted).prop_map(
        |((cpu, memory, max_pods), (ready, ssd), (unschedulable, drain, taints))| ANode {
            cpu,
            memory,
            max_pods,
            ready,
            ssd,
            wanted: NodeSpec { taints, unschedulable, drain, ..NodeSpec::default() },
        },
    )
}

fn pod() -> impl Strategy<Value = APod> {
    let size = (0_u64..1500, 0_u64..1500, prop::option::weighted(0.3, 1_u16..3));
    let place = (prop::option::weighted(0.2, 0_u8..5), prop::bool::weighted(0.2), any::<bool>());
    (0_u8..4, size, place).prop_map(|(owner, (cpu, memory, port), (node, ssd, tolerates))| {
        let mut spec = spec(cpu, memory);
        if let Some(port) = port {
            spec = with_host_port(spec, port);
        }
        spec.node_name = node.map(|node| format!("n{node}"));
        if ssd {
            spec.node_selector.insert("disk".into(), "ssd".into());
        }
        if tolerates {
            let (operator, effect) = (TolerationOperator::Exists, Some(TaintEffect::NoSchedule));
            let key = Some("k".into());
            spec.tolerations =
                vec![Toleration { key, operator, value: None, effect, toleration_seconds: None }];
        }
        APod { owner, spec }
    })
}

fn with_nodes(nodes: &[ANode]) -> SnapshotBuilder {
    let mut builder = SnapshotBuilder::new();
    for (number, node) in nodes.iter().enumerate() {
        let mut record = node_record(&format!("n{number}"));
        (record.cpu.millis, record.memory.bytes) = (node.cpu, node.memory << 20);
        record.max_pods = node.max_pods;
        if node.ssd {
            record.labels.insert("disk".into(), "ssd".into());
        }
        builder = builder.node(&record, &format!("10.244.{number}.0/24"));
        builder = builder.node_object(&record.name, node.wanted.clone());
        if !node.ready {
            builder = builder.delete(&Key::Heartbeat(record.name));
        }
    }
    builder
}

fn with_pods(builder: SnapshotBuilder, pods: &[APod], prefix: &str) -> SnapshotBuilder {
    pods.iter().enumerate().fold(builder, |builder, (number, pod)| {
        let name = format!("{prefix}{number}");
        builder.pod(&match pod.owner {
            0 => instance(&name, pod.spec.clone()),
            owner => replica(&format!("set-{owner}"), &name, pod.spec.clone()),
        })
    })
}

/// Resources in use on a node, counted independently of the scheduler's own sums.
fn used(snapshot: &Snapshot, node: &str) -> (u64, u64, u32, Vec<u16>) {
    let mut used = (0, 0, 0, Vec::new());
    for (_, binding) in snapshot.bindings_of(node) {
        let container = &binding.value.pod.spec.containers[0];
        used.0 += container.resources.requested_cpu().millis;
        used.1 += container.resources.requested_memory().bytes;
        used.2 += 1;
        used.3.extend(container.ports.iter().filter_map(|port| port.host_port));
    }
    used
}

/// True if a node accepts the pod, decided from the manifests alone.
fn is_allowed(snapshot: &Snapshot, name: &str, pod: &PodInstance) -> bool {
    let (record, wanted) = (&snapshot.nodes[name].value, snapshot.node_spec(name).unwrap());
    let is_named = pod.spec.node_name.as_deref() == Some(name);
    let blocks = |taint: &Taint| match taint.effect {
        TaintEffect::NoSchedule => !is_named && pod.spec.tolerations.is_empty(),
        TaintEffect::NoExecute => true,
        TaintEffect::PreferNoSchedule => false,
    };
    snapshot.node_is_ready(name)
        && (is_named || pod.spec.node_name.is_none() && !wanted.unschedulable && !wanted.drain)
        && !wanted.taints.iter().any(blocks)
        && pod.spec.node_selector.iter().all(|(key, value)| record.labels.get(key) == Some(value))
}

fn assert_within_bounds(snapshot: &Snapshot) {
    for (name, record) in &snapshot.nodes {
        let (cpu, memory, pods, mut ports) = used(snapshot, name);
        let record = &record.value;
        assert!(cpu <= record.cpu.millis && memory <= record.memory.bytes && pods <= record.max_pods);
        let all = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), all, "{name} gives a port twice");
    }
    for ((node, _), binding) in &snapshot.bindings {
        assert!(is_allowed(snapshot, node, &binding.value.pod), "{node} does not take {binding:?}");
    }
    let bound: BTreeSet<_> = snapshot.bindings.keys().map(|(_, pod)| pod).collect();
    for (id, pod) in snapshot.pods.iter().filter(|(id, _)| !bound.contains(id)) {
        for (name, record) in &snapshot.nodes {
            let (cpu, memory, pods, ports) = used(snapshot, name);
            let (record, container) = (&record.value, &pod.value.spec.containers[0]);
            let fits = cpu + container.resources.requested_cpu().millis <= record.cpu.millis
                && memory + container.resources.requested_memory().bytes <= record.memory.bytes
                && pods < record.max_pods
                && !container.ports.iter().any(|port| ports.contains(&port.host_port.unwrap()));
            assert!(!fits || !is_allowed(snapshot, name, &pod.value), "{id} fits on {name} and waits");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    // Seen red without each of `POD_FILTERS` but `node_name`, and with a queue that keeps full nodes out for good.
    #[test]
    fn no_pod_is_bound_against_a_filter_and_none_waits_that_fits(
        nodes in prop::collection::vec(node(), 0..5),
        first in prop::collection::vec(pod(), 0..15),
        second in prop::collection::vec(pod(), 0..15),
        (one, other) in (0..ALL.len(), 0..ALL.len()),
    ) {
        let cluster = |strategy: SchedulerStrategy| {
            ClusterSpec { scheduler_strategy: strategy, ..ClusterSpec::default() }
        };
        let builder = with_pods(with_nodes(&nodes).cluster(cluster(ALL[one])), &first, "p");
        let builder = applied(builder);
        assert_within_bounds(&builder.snapshot);
        let builder = applied(with_pods(builder, &second, "q").cluster(cluster(ALL[other])));
        assert_within_bounds(&builder.snapshot);
    }
}
