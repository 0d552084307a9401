//! Views of services, their endpoints and the hosts of Dns objects: addresses, endpoints, pods left out with the
//! reason, and the nodes that programmed them.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use schema::kinds::pod::Protocol;
use schema::kinds::service::ServiceSpec;
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, StringMap};
use schema::object::Object;
use schema::records::{LeftOutPod, RulesStatus};
use schema::snapshot::Snapshot;
use schema::violation::plural;
use serde::{Deserialize, Serialize};

use super::EventView;
use super::age::age;
use super::objects::Selection;
use super::rows::{Common, Rows, find};

#[cfg(test)]
mod tests;

pub const PROGRAMMED: &str = "programmed";
/// State of rules that lack the newest change.
pub const BEHIND: &str = "behind";
/// State of the rules of a node that has not reported any.
pub const NOTHING_YET: &str = "nothing yet";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceView {
    pub namespace: String,
    pub name: String,
    /// ClusterIP, NodePort or ExternalName.
    #[serde(rename = "type")]
    pub kind: String,
    /// Cluster address; the text `None` for a headless service, empty until assigned.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<Ipv4Addr>,
    /// Name that the service is an alias of; empty for other types.
    #[serde(default)]
    pub external_name: String,
    /// Ports as `80/TCP`, or with a node port as `80:30080/TCP`.
    pub ports: Vec<String>,
    /// Number of endpoints.
    pub ready: usize,
    /// Number of pods that match the selector but are no endpoints.
    pub left_out: u32,
    /// Healthy, Progressing, Degraded or Unknown.
    pub health: String,
    pub note: String,
    /// Time since the object was first applied; empty if not known.
    pub age: String,
    pub labels: StringMap,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceDetail {
    #[serde(flatten)]
    pub row: ServiceView,
    /// Labels that select its pods.
    pub selector: StringMap,
    pub endpoints: Vec<EndpointView>,
    /// Pods that match the selector but are no endpoints, with the reason; at most 20 of them.
    pub not_ready: Vec<LeftOutPod>,
    pub nodes: Vec<NodeRules>,
    /// Manifest that defines it: `services/web.yaml:1 of source main`.
    pub set_by: String,
    pub commit: String,
    pub annotations: StringMap,
    pub events: Vec<EventView>,
}

impl ServiceDetail {
    /// True if the service has no endpoints because no pod has the labels of its selector.
    pub fn selects_nobody(&self) -> bool {
        !self.selector.is_empty()
            && self.row.external_name.is_empty()
            && self.endpoints.is_empty()
            && self.not_ready.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndpointView {
    /// Address and port, for each of the service's ports.
    pub addresses: Vec<String>,
    /// Pod of the endpoint; empty for an address from the manifest.
    pub pod: String,
    pub node: String,
}

/// State of a service's rules on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRules {
    pub node: String,
    /// `programmed`, `behind`, `nothing yet`, or what failed.
    pub state: String,
    /// Time of the node's last rule update; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programmed_at: Option<Timestamp>,
    /// Time since `programmed_at`; empty if there is none.
    #[serde(default)]
    pub age: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndpointsView {
    pub namespace: String,
    pub name: String,
    pub endpoints: Vec<String>,
    pub age: String,
}

/// A host of a Dns object in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RouteView {
    pub namespace: String,
    pub name: String,
    pub host: String,
    /// Paths as `/shop -> shop:80`, longest first.
    pub paths: Vec<String>,
    /// Healthy, Progressing or Degraded.
    pub health: String,
    pub note: String,
    pub age: String,
}

pub fn services(snapshot: &Snapshot, which: &Selection<'_>, now: Timestamp) -> Vec<ServiceView> {
    let rows = Rows::new(snapshot, now);
    rows.chosen(Kind::Service, which)
        .filter_map(|object| match &object.resource {
            Resource::Service(spec) => Some(row(&rows, object, spec)),
            _ => None,
        })
        .collect()
}

pub fn service(
    snapshot: &Snapshot,
    id: &NamespacedName,
    events: Vec<EventView>,
    now: Timestamp,
) -> Option<ServiceDetail> {
    let object = find(snapshot, Kind::Service, id)?;
    let Resource::Service(spec) = &object.resource else { return None };
    let stored = snapshot.services.get(id);
    let record = stored.map(|stored| stored.value.clone()).unwrap_or_default();
    let from = &object.provenance;
    Some(ServiceDetail {
        row: row(&Rows::new(snapshot, now), object, spec),
        selector: spec.selector.clone(),
        endpoints: record
            .endpoints
            .iter()
            .map(|endpoint| EndpointView {
                addresses: endpoint
                    .ports
                    .iter()
                    .filter(|port| **port != 0)
                    .map(|port| format!("{}:{port}", endpoint.address))
                    .collect(),
                pod: endpoint.pod.clone().unwrap_or_default(),
                node: endpoint.node.clone().unwrap_or_default(),
            })
            .collect(),
        not_ready: record.left_out.clone(),
        nodes: match (record.cluster_ip, stored) {
            (Some(_), Some(stored)) => node_rules(snapshot, id, stored.mod_revision, now),
            _ => Vec::new(),
        },
        set_by: from.set_by(),
        commit: from.commit_by(),
        annotations: object.metadata.annotations.clone(),
        events,
    })
}

/// First live node that has not programmed the newest record of a service, with the reason.
pub(super) fn unprogrammed_node(snapshot: &Snapshot, service: &NamespacedName) -> Option<String> {
    let stored = snapshot.services.get(service).filter(|stored| stored.value.cluster_ip.is_some())?;
    let nodes = node_rules(snapshot, service, stored.mod_revision, Timestamp::UNIX_EPOCH).into_iter();
    let mut behind = nodes.filter(|rules| rules.state != PROGRAMMED && snapshot.node_is_ready(&rules.node));
    behind.next().map(|rules| format!("node {}: rules {}", rules.node, rules.state))
}

/// State of each node's rules for a service record of that revision.
fn node_rules(
    snapshot: &Snapshot,
    service: &NamespacedName,
    revision: i64,
    now: Timestamp,
) -> Vec<NodeRules> {
    let left_out = |rules: &RulesStatus| {
        let why = rules.left_out.get(&service.to_string())?;
        Some(format!("left out, retried when it changes or after a minute: {why}"))
    };
    rules_of_nodes(snapshot, left_out, revision, now)
}

/// State of each node's rules for all services.
pub fn all_rules(snapshot: &Snapshot, now: Timestamp) -> Vec<NodeRules> {
    let newest = snapshot.services.values().map(|service| service.mod_revision).max().unwrap_or(0);
    let left_out = |rules: &RulesStatus| match rules.left_out.len() {
        0 => None,
        count => Some(format!("left out: {}", plural(count, "service"))),
    };
    rules_of_nodes(snapshot, left_out, newest, now)
}

fn rules_of_nodes(
    snapshot: &Snapshot,
    left_out: impl Fn(&RulesStatus) -> Option<String>,
    revision: i64,
    now: Timestamp,
) -> Vec<NodeRules> {
    let state = |node: &String| match snapshot.rules.get(node).map(|rules| &rules.value) {
        None => NOTHING_YET.to_owned(),
        Some(rules) if !rules.error.is_empty() => rules.error.clone(),
        Some(rules) => match left_out(rules) {
            Some(why) => why,
            None if rules.revision >= revision => PROGRAMMED.to_owned(),
            None => BEHIND.to_owned(),
        },
    };
    let rules = |node: &String| {
        let programmed_at = snapshot.rules.get(node).and_then(|rules| rules.value.programmed_at);
        let age = programmed_at.map(|then| age(then, now)).unwrap_or_default();
        NodeRules { node: node.clone(), state: state(node), programmed_at, age }
    };
    snapshot.nodes.keys().map(rules).collect()
}

pub fn endpoints(snapshot: &Snapshot, which: &Selection<'_>, now: Timestamp) -> Vec<EndpointsView> {
    let rows = Rows::new(snapshot, now);
    rows.chosen(Kind::Service, which)
        .map(|object| {
            let id = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
            let record = snapshot.services.get(&id);
            let endpoints = record.map(|record| record.value.endpoints.as_slice()).unwrap_or_default();
            let first = |ports: &[u16]| ports.iter().find(|port| **port != 0).copied();
            let shown = endpoints.iter().map(|endpoint| match first(&endpoint.ports) {
                Some(port) => format!("{}:{port}", endpoint.address),
                None => endpoint.address.to_string(),
            });
            EndpointsView {
                namespace: id.namespace,
                name: id.name,
                endpoints: shown.collect(),
                age: rows.age(object),
            }
        })
        .collect()
}

pub fn routes(snapshot: &Snapshot, which: &Selection<'_>, now: Timestamp) -> Vec<RouteView> {
    let rows = Rows::new(snapshot, now);
    let mut all = Vec::new();
    for object in rows.chosen(Kind::Dns, which) {
        let Resource::Dns(spec) = &object.resource else { continue };
        let Common { id, health, note, age, .. } = rows.common(object);
        let record = snapshot.routes.get(&id).map(|found| &found.value);
        let paths = record.map(|record| record.paths.as_slice()).unwrap_or_default();
        all.push(RouteView {
            namespace: id.namespace,
            name: id.name,
            host: spec.host.clone(),
            paths: paths.iter().map(|path| format!("{} -> {}", path.path, path.in_words())).collect(),
            health,
            note,
            age,
        });
    }
    all
}

fn row(rows: &Rows<'_>, object: &Object, spec: &ServiceSpec) -> ServiceView {
    let Common { id, health, note, age, labels } = rows.common(object);
    let record = rows.snapshot.services.get(&id).map(|found| &found.value);
    let cluster_ip = match record.and_then(|record| record.cluster_ip) {
        Some(address) => address.to_string(),
        None if spec.is_headless() => "None".to_owned(),
        None => String::new(),
    };
    let node_port = |port: u16, at: usize| {
        record.and_then(|record| record.ports.get(at).filter(|known| known.port == port)?.node_port)
    };
    let ports = spec.ports.iter().enumerate().map(|(at, port)| match node_port(port.port, at) {
        Some(node_port) => format!("{}:{node_port}/{}", port.port, word(port.protocol)),
        None => format!("{}/{}", port.port, word(port.protocol)),
    });
    let external_name = spec.alias_target().unwrap_or_default().to_owned();
    ServiceView {
        namespace: id.namespace,
        name: id.name,
        kind: format!("{:?}", spec.kind),
        cluster_ip,
        external_ips: record.map(|record| record.external_ips.clone()).unwrap_or_default(),
        external_name,
        ports: ports.collect(),
        ready: record.map_or(0, |record| record.endpoints.len()),
        left_out: record.map_or(0, |record| record.left_out_count),
        health,
        note,
        age,
        labels,
    }
}

fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    }
}
