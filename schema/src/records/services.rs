//! `services/<ns>/<name>`, `routes/<ns>/<name>`, `rules/<node>` and `programmed`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::{is_default, one};
use crate::kinds::Health;
use crate::kinds::dns::{BackendShare, DnsSpec, StickyKey, is_one};
use crate::kinds::pod::Protocol;
use crate::kinds::service::{ServiceSpec, ServiceType};

/// A service as every node programs it, with addresses allocated and endpoints resolved. Written by the services
/// controller; agents need nothing else of the Service object.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRecord {
    /// Hash of the object that this record describes, so that waiting code recognizes its version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// Cluster IP; `None` for a headless service.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<Ipv4Addr>,
    /// Further addresses at which nodes answer for it.
    #[serde(default, rename = "externalIPs", skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<Ipv4Addr>,
    /// Target of an alias: such a service has no address, ports or endpoints.
    pub external_name: Option<String>,
    /// Ports, in the order of the manifest.
    pub ports: Vec<ServicePortRecord>,
    /// Endpoints, sorted by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// Seconds for which a client stays with an endpoint; `None` if it does not.
    pub affinity_seconds: Option<u32>,
    /// True if clients within the cluster only reach endpoints of their own node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal_local: bool,
    /// True if external clients only reach endpoints of the node that they contact, which see the clients' own
    /// addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external_local: bool,
    /// Selected pods that are not endpoints because they are not ready, with the reason; at most 20 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutPod>,
    /// Number of selected pods that are not endpoints.
    #[serde(default, skip_serializing_if = "is_default")]
    pub left_out_count: u32,
}

/// Overrides the health if the record describes another version.
fn progressing_unless_current(wanted: &str, record: Option<&str>, health: Health) -> Health {
    match record {
        Some(hash) if hash != wanted => Health::Progressing {
            why: "the services controller has not processed this version yet".to_owned(),
        },
        Some(_) | None => health,
    }
}

impl ServiceRecord {
    /// Returns the health of a service whose object has this hash. A service that selects nothing is healthy: its
    /// pods may come with another commit.
    pub fn health(record: Option<&Self>, spec: &ServiceSpec, hash: &str) -> Health {
        let none = Self::default();
        let health = record.unwrap_or(&none).health_of_any_version(spec);
        progressing_unless_current(hash, record.map(|record| record.hash.as_str()), health)
    }

    /// Returns the health regardless of the version.
    fn health_of_any_version(&self, spec: &ServiceSpec) -> Health {
        let progressing = |why: String| Health::Progressing { why };
        if spec.has_cluster_ip() && self.cluster_ip.is_none() {
            return progressing("no cluster IP yet".to_owned());
        }
        let node_ports = self.ports.iter().filter(|port| port.node_port.is_some()).count();
        if spec.kind == ServiceType::NodePort && node_ports < spec.ports.len() {
            return progressing(format!("{node_ports} of {} node ports", spec.ports.len()));
        }
        if self.endpoints.is_empty() && self.left_out_count > 0 && !spec.publish_not_ready_addresses {
            return progressing(format!("none of {} pods is ready", self.left_out_count));
        }
        Health::Healthy
    }
}

/// Most entries of [`ServiceRecord::left_out`].
pub const LEFT_OUT_MAX: usize = 20;

/// A port of a service.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePortRecord {
    /// Name, for SRV records and Dns paths.
    pub name: Option<String>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Port of the service.
    pub port: u16,
    /// Port on every node.
    pub node_port: Option<u16>,
}

/// An address behind a service.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Address: a pod's, a node's (host network), or one from the manifest.
    pub address: Ipv4Addr,
    /// Target port for each of the service's ports, in their order; 0 if the pod has none of that name.
    pub ports: Vec<u16>,
    /// Node of the pod, if it is a pod.
    pub node: Option<String>,
    /// Name of the pod, in the service's namespace.
    pub pod: Option<String>,
    /// The pod's `hostname`, for `<hostname>.<service>`; `None` for a pod with another service's `subdomain`.
    pub hostname: Option<String>,
}

/// A selected pod that is not an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOutPod {
    /// Name of the pod.
    pub pod: String,
    /// Reason, in a sentence.
    pub why: String,
}

/// A host and its paths, as served by every node's gateway and DNS. Written by the services controller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRecord {
    /// Hash of the object that this record describes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// Host name in lower case.
    pub host: String,
    /// Paths, longest first.
    pub paths: Vec<PathRecord>,
}

impl RouteRecord {
    /// Returns the health of a host whose object has this hash. Healthy if it has a record and each of its paths
    /// leads somewhere: its address is each node's own.
    pub fn health(record: Option<&Self>, spec: &DnsSpec, hash: &str) -> Health {
        let Some(record) = record else {
            return Health::Progressing { why: format!("{} has no address yet", spec.host) };
        };
        let unrouted = record.paths.iter().find_map(|path| {
            let why = path.backends().iter().find_map(|backend| backend.broken.as_ref())?;
            Some(format!("{}: {why}", path.path))
        });
        let health = unrouted.map_or(Health::Healthy, |why| Health::Degraded { why });
        progressing_unless_current(hash, Some(&record.hash), health)
    }
}

/// A path of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathRecord {
    /// Path, beginning with `/`.
    pub path: String,
    /// Target of the path.
    #[serde(flatten)]
    pub leads: PathTarget,
    /// Replacement for `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<String>,
}

/// Target of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PathTarget {
    /// Several backends.
    Shared {
        /// Backends in the order of the manifest.
        backends: Vec<BackendRecord>,
        /// Stickiness of clients to a backend.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sticky: Option<StickyKey>,
    },
    /// A single backend.
    One(BackendRecord),
}

/// Recipient of a path's requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendRecord {
    /// Service or function.
    #[serde(flatten)]
    pub to: BackendTarget,
    /// Share among the backends with the same headers.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// Headers that its requests must have, by name in lower case.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Reason why it can't take requests, if so: the gateway answers 503 with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// A service or a function in the route's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BackendTarget {
    /// A service.
    Service {
        /// Name of the service.
        service: String,
        /// Number of the service's port.
        port: u16,
    },
    /// A function.
    Function {
        /// Name of the function.
        function: String,
    },
}

impl PathRecord {
    /// Returns the backends of the path.
    pub fn backends(&self) -> &[BackendRecord] {
        match &self.leads {
            PathTarget::One(backend) => std::slice::from_ref(backend),
            PathTarget::Shared { backends, .. } => backends,
        }
    }

    /// Returns the stickiness of clients to a backend.
    pub fn sticky(&self) -> Option<&StickyKey> {
        match &self.leads {
            PathTarget::One(_) => None,
            PathTarget::Shared { sticky, .. } => sticky.as_ref(),
        }
    }

    /// Describes the target in words.
    pub fn in_words(&self) -> String {
        let shares = self.backends().iter().map(|backend| {
            let to = match &backend.to {
                BackendTarget::Service { service, port } => format!("{service}:{port}"),
                BackendTarget::Function { function } => format!("function {function}"),
            };
            BackendShare { target: to, weight: backend.weight, headers: &backend.headers }
        });
        BackendShare::in_words(&shares.collect::<Vec<_>>())
    }
}

/// State of a node's rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RulesStatus {
    /// Newest revision of `services/` that is programmed.
    pub revision: i64,
    /// Time at which the rules reached that revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programmed_at: Option<Timestamp>,
    /// Error that kept some rules from being programmed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// `namespace/name` of services left out until they change or a retry succeeds, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, String>,
}

/// Rules of all live nodes: the end of a pod that was an endpoint waits for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgrammedRules {
    /// Smallest revision that a live node reports in its [`RulesStatus`].
    pub revision: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_healthy_with_an_address_and_no_pod_that_is_not_ready() {
        let mut spec = ServiceSpec::default();
        let health =
            |record: &ServiceRecord, spec: &ServiceSpec| ServiceRecord::health(Some(record), spec, "");
        let mut record = ServiceRecord::default();
        assert_eq!(ServiceRecord::health(None, &spec, "").to_string(), "Progressing");
        assert_eq!(health(&record, &spec).to_string(), "Progressing");
        record.cluster_ip = Some(Ipv4Addr::new(10, 96, 0, 20));
        assert_eq!(health(&record, &spec), Health::Healthy);
        record.left_out_count = 2;
        let none_ready = Health::Progressing { why: "none of 2 pods is ready".to_owned() };
        assert_eq!(health(&record, &spec), none_ready);
        let all = ServiceSpec { publish_not_ready_addresses: true, ..spec.clone() };
        assert_eq!(health(&record, &all), Health::Healthy);
        let address = Ipv4Addr::new(10, 244, 0, 2);
        record.endpoints =
            vec![Endpoint { address, ports: Vec::new(), node: None, pod: None, hostname: None }];
        assert_eq!(health(&record, &spec), Health::Healthy);
        assert_eq!(ServiceRecord::health(Some(&record), &spec, "other").to_string(), "Progressing");
        spec.cluster_ip = Some(crate::kinds::service::HEADLESS.to_owned());
        assert_eq!(ServiceRecord::health(None, &spec, ""), Health::Healthy);
        let alias = ServiceSpec { kind: ServiceType::ExternalName, ..ServiceSpec::default() };
        assert_eq!(ServiceRecord::health(None, &alias, ""), Health::Healthy);
    }

    #[test]
    fn a_host_is_healthy_when_it_is_known_and_all_its_paths_lead_somewhere() {
        let spec = DnsSpec { host: "shop.example".to_owned(), paths: Vec::new() };
        let record = |broken: Option<&str>| {
            let to = BackendTarget::Service { service: "web".to_owned(), port: 80 };
            let broken = broken.map(str::to_owned);
            let leads = PathTarget::One(BackendRecord { to, weight: 1, headers: BTreeMap::new(), broken });
            let path = PathRecord { path: "/a".to_owned(), leads, rewrite: None };
            RouteRecord { paths: vec![path], ..RouteRecord::default() }
        };
        assert_eq!(RouteRecord::health(None, &spec, "").to_string(), "Progressing");
        assert_eq!(RouteRecord::health(Some(&record(None)), &spec, ""), Health::Healthy);
        let broken = RouteRecord::health(Some(&record(Some("no service web"))), &spec, "");
        assert_eq!(broken, Health::Degraded { why: "/a: no service web".to_owned() });
    }
}
