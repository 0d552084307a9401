//! Endpoints of a service: ready pods that its selector matches, or the addresses in its manifest.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use jiff::Timestamp;
use schema::condition::ConditionStatus;
use schema::kinds::pod::{PodSpec, PodStatus, PortReference, Protocol, UnsteadyContainer};
use schema::kinds::service::{ServicePort, ServiceSpec, TrafficPolicy};
use schema::meta::{NamespacedName, matches_service_selector};
use schema::records::{Endpoint, LEFT_OUT_MAX, LeftOutPod, PodInstance};
use schema::snapshot::{BoundPod, Snapshot};

use schema::snapshot::most_nodes_away;

/// Endpoints of a service, and the pods left out with the reason.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ServiceEndpoints {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) left_out: Vec<LeftOutPod>,
    pub(super) left_out_count: u32,
}

/// A namespace and a label in it.
type NamespacedLabel<'a> = (&'a str, &'a str, &'a str);

/// Pods of a snapshot by the labels that services ask for. Heartbeats count unless most nodes are away.
pub(super) struct EndpointLookup<'a> {
    snapshot: &'a Snapshot,
    bound: HashMap<&'a NamespacedName, BoundPod<'a>>,
    trust_heartbeats: bool,
    /// Sorted by name. A service inspects only the pods of its rarest label: all pods for each of 1,000 services
    /// would take a second.
    pods: HashMap<NamespacedLabel<'a>, Vec<(&'a NamespacedName, &'a PodInstance)>>,
    starting: StartingPods<'a>,
}

/// Pods of a crashing template that have just started.
type StartingPods<'a> = HashMap<&'a NamespacedName, UnsteadyContainer<'a>>;

impl<'a> EndpointLookup<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        services: &'a BTreeMap<NamespacedName, &'a ServiceSpec>,
        now: Timestamp,
    ) -> Self {
        let mut pods: HashMap<NamespacedLabel<'a>, Vec<_>> = HashMap::new();
        for (service, spec) in services {
            for (key, value) in &spec.selector {
                pods.entry((service.namespace.as_str(), key, value)).or_default();
            }
        }
        for (id, pod) in &snapshot.pods {
            for (key, value) in &pod.value.labels {
                if let Some(labelled) = pods.get_mut(&(id.namespace.as_str(), key.as_str(), value.as_str())) {
                    labelled.push((id, &pod.value));
                }
            }
        }
        let bound = snapshot.bound_by_pod();
        let trust_heartbeats = most_nodes_away(snapshot).is_none();
        Self { snapshot, bound, trust_heartbeats, pods, starting: starting_pods(snapshot, now) }
    }

    /// Returns the time from which the endpoints may differ if nothing changes before.
    pub(super) fn changes_at(&self) -> Option<Timestamp> {
        self.starting.values().map(|starting| starting.steady_at).min()
    }

    /// Returns the pods that a service selects, sorted by name.
    fn selected(
        &self,
        service: &'a NamespacedName,
        spec: &'a ServiceSpec,
    ) -> Vec<(&'a NamespacedName, &'a PodInstance)> {
        let of_label = |(key, value): (&'a String, &'a String)| {
            self.pods.get(&(service.namespace.as_str(), key.as_str(), value.as_str()))
        };
        let rarest = spec.selector.iter().filter_map(of_label).min_by_key(|pods| pods.len());
        let pods = rarest.into_iter().flatten();
        pods.filter(|(_, pod)| matches_service_selector(&spec.selector, &pod.labels)).copied().collect()
    }

    pub(super) fn endpoints_of(
        &self,
        service: &'a NamespacedName,
        spec: &'a ServiceSpec,
    ) -> ServiceEndpoints {
        let mut behind = ServiceEndpoints::default();
        if spec.selector.is_empty() || spec.alias_target().is_some() {
            behind.endpoints = manifest_endpoints(spec);
            return behind;
        }
        let (mut left_out, mut starting) = (Vec::new(), Vec::new());
        let present = self.snapshot.services.get(service).map_or(&[][..], |record| &record.value.endpoints);
        // A pod that ended has left them.
        let is_listed = |endpoint: &Endpoint| present.iter().any(|listed| listed.pod == endpoint.pod);
        let has_substitutes = any_endpoint_will_do(spec);
        for (id, pod) in self.selected(service, spec) {
            match self.endpoint(id, pod, service, spec) {
                Ok(endpoint) => {
                    match self.starting.get(id).filter(|_| has_substitutes && !is_listed(&endpoint)) {
                        None => behind.endpoints.push(endpoint),
                        Some(container) => starting.push((endpoint, id, container)),
                    }
                }
                Err(None) => {}
                Err(Some(why)) => left_out.push((id, why)),
            }
        }
        if behind.endpoints.is_empty() {
            // A pod that may end again is better than none.
            behind.endpoints.extend(starting.into_iter().map(|(endpoint, ..)| endpoint));
        } else {
            left_out.extend(starting.into_iter().map(|(_, id, container)| {
                (id, format!("a pod of its template ended within 1 s of its start, and {container}"))
            }));
            left_out.sort();
        }
        behind.left_out_count = u32::try_from(left_out.len()).unwrap_or(u32::MAX);
        let shown = left_out.into_iter().take(LEFT_OUT_MAX);
        behind.left_out = shown.map(|(id, why)| LeftOutPod { pod: id.name.clone(), why }).collect();
        behind.endpoints.sort_by(|a, b| (a.address, &a.pod).cmp(&(b.address, &b.pod)));
        behind
    }

    /// Returns the endpoint of a pod, or why it has none; `Err(None)` for a pod that ended for good.
    fn endpoint(
        &self,
        id: &NamespacedName,
        pod: &PodInstance,
        service: &NamespacedName,
        spec: &ServiceSpec,
    ) -> Result<Endpoint, Option<String>> {
        let no = |why: &str| Err(Some(why.to_owned()));
        let Some(bound) = self.bound.get(id).filter(|bound| bound.binding.value.pod.uid == pod.uid) else {
            return no("it has no node yet");
        };
        let node = &bound.binding.value.node;
        let Some(status) = bound.status_of(&pod.uid) else {
            return no("its node has not started it yet");
        };
        if status.has_ended() {
            return Err(None);
        }
        let Some(IpAddr::V4(address)) = status.pod_ip.as_deref().and_then(|ip| ip.parse().ok()) else {
            return no("it has no address yet");
        };
        // The address is the node's word.
        let Some(record) = self.snapshot.nodes.get(node) else {
            return Err(Some(format!("its node {node} is not registered")));
        };
        let range = self.snapshot.subnets.get(node).map(|subnet| &subnet.value);
        record.value.check_pod_address(address, range, pod.spec.host_network).map_err(Some)?;
        if !status.is_ready() && !spec.publish_not_ready_addresses {
            return Err(Some(why_unready(status)));
        }
        if self.trust_heartbeats && !self.snapshot.node_is_ready(node) {
            return Err(Some(format!("its node {node} is not ready")));
        }
        let ports: Vec<u16> = spec.ports.iter().map(|port| target(port, Some(&pod.spec))).collect();
        if !ports.is_empty() && ports.iter().all(|port| *port == 0) {
            return no("no container has a port with the name in targetPort");
        }
        Ok(Endpoint {
            address,
            ports,
            node: Some(node.clone()),
            pod: Some(id.name.clone()),
            hostname: hostname(&pod.spec, &service.name),
        })
    }
}

/// True if every client of the service can use any of its endpoints: it connects to the service's address, and no node
/// sends it to its own pods only.
fn any_endpoint_will_do(spec: &ServiceSpec) -> bool {
    let is_local =
        [spec.internal_traffic_policy, spec.external_traffic_policy].contains(&TrafficPolicy::Local);
    !spec.is_headless() && !is_local && !spec.publish_not_ready_addresses
}

/// Returns the pods that may end again a moment after this start: their own former start or that of another pod of the
/// same template did, and no readiness probe shows that this one is better.
fn starting_pods(snapshot: &Snapshot, now: Timestamp) -> StartingPods<'_> {
    let reported = || snapshot.pod_status.iter().map(|((_, id), record)| (id, &record.value));
    let crashed = reported().filter(|(_, status)| !status.is_terminating() && status.has_ended_at_start());
    let crashing: HashSet<(&str, &str)> =
        crashed.map(|(id, status)| (id.namespace.as_str(), status.hash.as_str())).collect();
    if crashing.is_empty() {
        return StartingPods::new();
    }
    let starting = reported().filter_map(|(id, status)| {
        let pod = &snapshot.pods.get(id)?.value;
        let is_like_them = pod.uid == status.uid && crashing.contains(&(&*id.namespace, &*status.hash));
        Some((id, status.starting_container(&pod.spec, now).filter(|_| is_like_them)?))
    });
    starting.collect()
}

/// Returns the name of a pod in a service. As in Kubernetes, a pod with a `subdomain` has one only in the service
/// of that name. A pod without one has its name in every service that leads to it, which is more than Kubernetes
/// gives.
fn hostname(pod: &PodSpec, service: &str) -> Option<String> {
    let elsewhere = pod.subdomain.as_deref().is_some_and(|subdomain| subdomain != service);
    pod.hostname.clone().filter(|_| !elsewhere)
}

/// Returns the addresses of a service without selector.
fn manifest_endpoints(spec: &ServiceSpec) -> Vec<Endpoint> {
    let mut addresses: Vec<Ipv4Addr> = spec.addresses.iter().filter_map(|text| text.parse().ok()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let ports: Vec<u16> = spec.ports.iter().map(|port| target(port, None)).collect();
    let endpoint =
        |address| Endpoint { address, ports: ports.clone(), node: None, pod: None, hostname: None };
    addresses.into_iter().map(endpoint).collect()
}

/// Returns the port of an endpoint; 0 if the pod has none of that name.
fn target(port: &ServicePort, pod: Option<&PodSpec>) -> u16 {
    match &port.target_port {
        None => port.port,
        Some(PortReference::Number(number)) => *number,
        Some(PortReference::Name(name)) => {
            pod.and_then(|pod| named_port(pod, name, port.protocol)).unwrap_or_default()
        }
    }
}

fn named_port(pod: &PodSpec, name: &str, protocol: Protocol) -> Option<u16> {
    let mut ports = pod.side_by_side().flat_map(|container| &container.ports);
    let port = ports.find(|port| port.name.as_deref() == Some(name) && port.protocol == protocol)?;
    Some(port.container_port)
}

fn why_unready(status: &PodStatus) -> String {
    let ready = status.conditions.iter().find(|c| c.kind == "Ready" && c.status != ConditionStatus::True);
    let words = ready.map(|c| if c.message.is_empty() { &c.reason } else { &c.message });
    match words.filter(|words| !words.is_empty()) {
        Some(words) => format!("it is not ready: {words}"),
        None => "it is not ready".to_owned(),
    }
}
