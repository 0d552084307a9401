//! `services/<ns>/<name>`, `routes/<ns>/<name>` and `rules/<node>`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::{is_default, one};
use crate::kinds::Health;
use crate::kinds::dns::backend::is_one;
use crate::kinds::dns::{DnsSpec, Share, Sticky};
use crate::kinds::pod::Protocol;
use crate::kinds::service::{ServiceSpec, ServiceType};

/// A service as every node programs it: addresses given out, endpoints looked up. Written by the
/// services controller; the agents need nothing else of the Service object.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRecord {
    /// Hash of the object that it is of: who waits for a version knows that this is it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// Its address; none for a headless service.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<Ipv4Addr>,
    /// Further addresses at which nodes answer for it.
    #[serde(default, rename = "externalIPs", skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<Ipv4Addr>,
    /// The name that its own is an alias of: it has no address, no ports and no endpoints then.
    pub external_name: Option<String>,
    /// Its ports, in the order of the manifest.
    pub ports: Vec<ServicePortRecord>,
    /// What is behind it, sorted by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// Seconds for which a client stays with one endpoint; none: it does not.
    pub affinity_seconds: Option<u32>,
    /// Clients within the cluster are served by endpoints of their own node only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal_local: bool,
    /// Clients from outside are served by endpoints of the node that they asked, and seen with their
    /// own address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external_local: bool,
    /// Its selector matches pods, which are not all ready; what is out and why, at most 20 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Number of pods that the selector matches and that are no endpoints.
    #[serde(default, skip_serializing_if = "is_default")]
    pub left_out_count: u32,
}

/// What the record of another version says is not the health of this one.
fn of_version(wanted: &str, record: Option<&str>, health: Health) -> Health {
    match record {
        Some(hash) if hash != wanted => Health::Progressing {
            why: "the services controller has not taken this version in yet".to_owned(),
        },
        Some(_) | None => health,
    }
}

impl ServiceRecord {
    /// The health of a service whose object has this hash. One that selects nothing is well: its pods may come with
    /// another commit.
    pub fn health(record: Option<&Self>, spec: &ServiceSpec, hash: &str) -> Health {
        let none = Self::default();
        let health = record.unwrap_or(&none).health_by(spec);
        of_version(hash, record.map(|record| record.hash.as_str()), health)
    }

    /// As `health`, without a look at the version.
    fn health_by(&self, spec: &ServiceSpec) -> Health {
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

/// One port of a service.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePortRecord {
    /// Its name, for SRV records and Dns paths.
    pub name: Option<String>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Port of the service.
    pub port: u16,
    /// Port of every node.
    pub node_port: Option<u16>,
}

/// One address behind a service.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Its address: a pod's, a node's (host network), or one that the manifest gives.
    pub address: Ipv4Addr,
    /// Its port for each of the service's ports, in their order; 0 where it has none of that name.
    pub ports: Vec<u16>,
    /// Its node, if it is a pod.
    pub node: Option<String>,
    /// Its pod, in the service's namespace.
    pub pod: Option<String>,
    /// The pod's `hostname`, for `<hostname>.<service>`; none for a pod with another service's `subdomain`.
    pub hostname: Option<String>,
}

/// A pod that the selector matches and that is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its name.
    pub pod: String,
    /// Why, in a sentence.
    pub why: String,
}

/// A host and its paths, as every node's gateway and DNS serve them. Written by the services controller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRecord {
    /// Hash of the object that it is of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// The host name, lower case.
    pub host: String,
    /// Its paths, longest first.
    pub paths: Vec<PathRecord>,
}

impl RouteRecord {
    /// The health of a host whose object has this hash. It is healthy if it has a record and each of its paths leads
    /// somewhere: its address is each node's own.
    pub fn health(record: Option<&Self>, spec: &DnsSpec, hash: &str) -> Health {
        let Some(record) = record else {
            return Health::Progressing { why: format!("{} has no address yet", spec.host) };
        };
        let unrouted = record.paths.iter().find_map(|path| {
            let why = path.backends().iter().find_map(|backend| backend.broken.as_ref())?;
            Some(format!("{}: {why}", path.path))
        });
        let health = unrouted.map_or(Health::Healthy, |why| Health::Degraded { why });
        of_version(hash, Some(&record.hash), health)
    }
}

/// One path of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathRecord {
    /// Begins with `/`.
    pub path: String,
    /// Where it leads.
    #[serde(flatten)]
    pub leads: PathLeads,
    /// What takes the place of `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<String>,
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PathLeads {
    /// To several.
    Shared {
        /// In the order of the manifest.
        backends: Vec<BackendRecord>,
        /// What keeps clients at one of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sticky: Option<Sticky>,
    },
    /// To this one.
    One(BackendRecord),
}

/// What gets requests of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendRecord {
    /// What it is.
    #[serde(flatten)]
    pub to: BackendTarget,
    /// Its share among those with the same headers.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// Headers that its requests have, by their names in lower case.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Why it can take none, if so: the gateway answers 503 with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// A service or a function in the route's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BackendTarget {
    /// A service.
    Service {
        /// Its name.
        service: String,
        /// Number of its port.
        port: u16,
    },
    /// A function.
    Function {
        /// Its name.
        function: String,
    },
}

impl PathRecord {
    /// What gets its requests.
    pub fn backends(&self) -> &[BackendRecord] {
        match &self.leads {
            PathLeads::One(backend) => std::slice::from_ref(backend),
            PathLeads::Shared { backends, .. } => backends,
        }
    }

    /// What keeps clients at one of them.
    pub fn sticky(&self) -> Option<&Sticky> {
        match &self.leads {
            PathLeads::One(_) => None,
            PathLeads::Shared { sticky, .. } => sticky.as_ref(),
        }
    }

    /// Where it leads, in words.
    pub fn in_words(&self) -> String {
        let shares = self.backends().iter().map(|backend| {
            let to = match &backend.to {
                BackendTarget::Service { service, port } => format!("{service}:{port}"),
                BackendTarget::Function { function } => format!("function {function}"),
            };
            Share { to, weight: backend.weight, headers: &backend.headers }
        });
        Share::in_words(&shares.collect::<Vec<_>>())
    }
}

/// How far a node's rules are: what takes an endpoint down waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RulesStatus {
    /// Newest revision of `services/` that is programmed.
    pub revision: i64,
    /// When its rules came to that revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programmed_at: Option<Timestamp>,
    /// Why not everything could be programmed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// `namespace/name` of services that are left out until they change or a later try succeeds, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, String>,
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
            let leads = PathLeads::One(BackendRecord { to, weight: 1, headers: BTreeMap::new(), broken });
            let path = PathRecord { path: "/a".to_owned(), leads, rewrite: None };
            RouteRecord { paths: vec![path], ..RouteRecord::default() }
        };
        assert_eq!(RouteRecord::health(None, &spec, "").to_string(), "Progressing");
        assert_eq!(RouteRecord::health(Some(&record(None)), &spec, ""), Health::Healthy);
        let broken = RouteRecord::health(Some(&record(Some("no service web"))), &spec, "");
        assert_eq!(broken, Health::Degraded { why: "/a: no service web".to_owned() });
    }
}
