//! Hosts and paths: which port of which service each path leads to.

use schema::kinds::dns::{DnsPath, DnsSpec};
use schema::kinds::pod::PortReference;
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{PathRecord, RouteRecord};
use schema::snapshot::Snapshot;

/// The record of a Dns object.
pub(super) fn route(snapshot: &Snapshot, id: &NamespacedName, spec: &DnsSpec) -> RouteRecord {
    let mut paths: Vec<PathRecord> = spec.paths.iter().map(|path| resolve(snapshot, id, path)).collect();
    paths.sort_by(|a, b| (b.path.len(), &a.path).cmp(&(a.path.len(), &b.path)));
    RouteRecord { hash: String::new(), host: spec.host.to_ascii_lowercase(), paths }
}

fn resolve(snapshot: &Snapshot, id: &NamespacedName, path: &DnsPath) -> PathRecord {
    let (service, wanted) = (&path.service.name, &path.service.port);
    let object = ObjectRef { kind: Kind::Service, namespace: id.namespace.clone(), name: service.clone() };
    let found = match snapshot.objects.get(&object).map(|object| &object.value.resource) {
        Some(Resource::Service(spec)) if spec.alias_of().is_some() => {
            Err(format!("service {service} is of type ExternalName: no path leads there"))
        }
        Some(Resource::Service(spec)) => {
            let mut ports = spec.ports.iter();
            let port = ports.find(|port| match wanted {
                PortReference::Number(number) => port.port == *number,
                PortReference::Name(name) => port.name.as_ref() == Some(name),
            });
            port.map(|port| port.port)
                .ok_or_else(|| format!("service {service} has no port {}", word(wanted)))
        }
        _ => Err(format!("there is no service {service} in namespace {}", id.namespace)),
    };
    let number = match wanted {
        PortReference::Number(number) => *number,
        PortReference::Name(_) => 0,
    };
    let (port, broken) = match found {
        Ok(port) => (port, None),
        Err(why) => (number, Some(why)),
    };
    PathRecord {
        path: path.path.clone(),
        service: service.clone(),
        port,
        rewrite: path.rewrite.clone(),
        broken,
    }
}

fn word(port: &PortReference) -> String {
    match port {
        PortReference::Number(number) => number.to_string(),
        PortReference::Name(name) => name.clone(),
    }
}
