//! The routing table: maps a host and a path to endpoints. Pure.
//!
//! Built once per change of the catalog; each request takes one lookup.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;

use schema::kinds::pod::Protocol;
use schema::meta::NamespacedName;
use schema::records::{BackendRecord, BackendTarget, Endpoint, PathRecord, ServicePortRecord, ServiceRecord};

use super::shares::{Backend, Destination, Shares};
use crate::catalog::Catalog;
use crate::desired::StateOrigin;
use crate::http::path::{normalized, rest_behind};

/// Routing table of hosts and paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Set once the catalog has been listed: before that, an unknown host is not an error of the client.
    known: bool,
    hosts: BTreeMap<String, Vec<Route>>,
}

/// A path of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Normalized path without a trailing slash, so that `/` is empty.
    prefix: String,
    rewrite: Option<String>,
    pub shares: Shares,
}

/// Reason why no path was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    /// This node has not learned any routes yet.
    Unknown,
    Host,
    Path,
}

impl Table {
    /// Builds the table of a catalog for the gateway of `node`.
    pub fn from_catalog(catalog: &Catalog, node: &str) -> Self {
        let mut hosts: BTreeMap<String, Vec<Route>> = BTreeMap::new();
        for (id, record) in &catalog.routes {
            let routes = hosts.entry(name(&record.value.host).into_owned()).or_default();
            for path in &record.value.paths {
                let route = route(catalog, node, id, path);
                // Two objects with the same path of one host: the first by name wins, on every node.
                if !routes.iter().any(|there| there.prefix == route.prefix) {
                    routes.push(route);
                }
            }
        }
        for routes in hosts.values_mut() {
            routes.sort_by(|a, b| (b.prefix.len(), &a.prefix).cmp(&(a.prefix.len(), &b.prefix)));
        }
        Self { known: catalog.known_from != StateOrigin::Unknown, hosts }
    }

    /// Finds the longest path of `host` that is equal to `path`, which is normalized, or a parent of it.
    pub fn find(&self, host: &str, path: &str) -> Result<&Route, NotFound> {
        if !self.known {
            return Err(NotFound::Unknown);
        }
        let routes = self.hosts.get(&*name(host)).ok_or(NotFound::Host)?;
        routes.iter().find(|route| rest_behind(&route.prefix, path).is_some()).ok_or(NotFound::Path)
    }

    /// Returns the endpoints of all paths.
    pub fn endpoints(&self) -> BTreeSet<SocketAddr> {
        let routes = self.hosts.values().flatten();
        let endpoints = routes.flat_map(|route| route.shares.leads()).filter_map(|leads| match leads {
            Destination::Endpoints(endpoints) => Some(endpoints.iter().copied()),
            Destination::Function(_) | Destination::Unavailable(_) => None,
        });
        endpoints.flatten().collect()
    }

    /// Returns the keys under which `Turns` keeps the positions of all paths.
    pub fn turns(&self) -> BTreeSet<Arc<str>> {
        self.hosts.values().flatten().flat_map(|route| route.shares.keys()).collect()
    }

    /// Returns the number of hosts and of paths.
    pub fn size(&self) -> (usize, usize) {
        (self.hosts.len(), self.hosts.values().map(Vec::len).sum())
    }
}

impl Route {
    /// Returns the rewritten path if it differs. `path` is normalized and without the query.
    pub fn rewritten(&self, path: &str) -> Option<String> {
        let (rewrite, rest) = (self.rewrite.as_ref()?, rest_behind(&self.prefix, path)?);
        let both = format!("{}{rest}", rewrite.trim_end_matches('/'));
        // The rest may begin with an encoded separator.
        Some(if both.starts_with('/') { both } else { format!("/{both}") })
    }
}

/// Normalizes a host for comparison: lower case, no port, no trailing dot.
fn name(host: &str) -> Cow<'_, str> {
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => name.to_ascii_lowercase().into(),
        false => name.into(),
    }
}

fn route(catalog: &Catalog, node: &str, id: &NamespacedName, path: &PathRecord) -> Route {
    let backends = path.backends().iter().map(|backend| Backend {
        weight: backend.weight,
        headers: backend.headers.clone(),
        leads: leads(catalog, node, id, backend),
    });
    let key = format!("{id} {}", path.path);
    let shares = Shares::new(&key, backends.collect(), path.sticky().cloned());
    // A path that is not valid stays as it is, and no request has it.
    let normal = normalized(&path.path).unwrap_or(Cow::Borrowed(&path.path));
    let prefix = normal.trim_end_matches('/').to_owned();
    Route { prefix, rewrite: path.rewrite.clone(), shares }
}

fn leads(catalog: &Catalog, node: &str, id: &NamespacedName, backend: &BackendRecord) -> Destination {
    if let Some(why) = &backend.broken {
        return Destination::Unavailable(why.clone());
    }
    match &backend.to {
        BackendTarget::Service { service, port } => {
            let service = NamespacedName::new(id.namespace.as_str(), service.as_str());
            leads_to_service(catalog, node, &service, *port)
        }
        BackendTarget::Function { function } => {
            Destination::Function(NamespacedName::new(id.namespace.as_str(), function.as_str()))
        }
    }
}

fn leads_to_service(catalog: &Catalog, node: &str, service: &NamespacedName, port: u16) -> Destination {
    let said = format!("service {service}");
    let Some(record) = catalog.services.get(service).map(|versioned| &versioned.value) else {
        return Destination::Unavailable(format!("this node does not know {said}"));
    };
    let wanted =
        |(_, found): &(usize, &ServicePortRecord)| found.port == port && found.protocol == Protocol::Tcp;
    let Some((index, _)) = record.ports.iter().enumerate().find(wanted) else {
        return Destination::Unavailable(format!("{said} has no TCP port {port}"));
    };
    let mut local = record.endpoints.iter().filter(|e| !record.internal_local || is_on(e, node)).peekable();
    if local.peek().is_none() {
        return Destination::Unavailable(none_ready(&said, record));
    }
    let endpoints: BTreeSet<SocketAddr> = local
        .filter_map(|endpoint| match endpoint.ports.get(index) {
            Some(port) if *port != 0 => Some(SocketAddrV4::new(endpoint.address, *port).into()),
            _ => None,
        })
        .collect();
    match endpoints.is_empty() {
        true => Destination::Unavailable(format!("no endpoint of {said} has its port {port}")),
        false => Destination::Endpoints(endpoints.into_iter().collect()),
    }
}

fn is_on(endpoint: &Endpoint, node: &str) -> bool {
    endpoint.node.as_deref() == Some(node)
}

fn none_ready(said: &str, record: &ServiceRecord) -> String {
    if !record.endpoints.is_empty() {
        return format!("{said} has no ready endpoint on this node, and internalTrafficPolicy is Local");
    }
    match record.left_out.first() {
        Some(out) => format!("{said} has no ready endpoint: pod {} is out, {}", out.pod, out.why),
        None => format!("{said} has no endpoint"),
    }
}

/// True if two catalogs yield the same table: none of its inputs has changed.
pub fn yields_same_table(a: &Catalog, b: &Catalog) -> bool {
    a.known_from == b.known_from && a.services.ptr_eq(&b.services) && a.routes.ptr_eq(&b.routes)
}
