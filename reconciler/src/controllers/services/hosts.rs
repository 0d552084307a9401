//! Hosts and paths: resolves each path to a port of a service, or to a function.

use schema::kinds::dns::{DnsBackend, DnsPath, DnsSpec};
use schema::kinds::pod::PortReference;
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{BackendRecord, BackendTarget, PathRecord, PathTarget, RouteRecord};
use schema::snapshot::Snapshot;

/// Returns the record of a Dns object.
pub(super) fn route(snapshot: &Snapshot, id: &NamespacedName, spec: &DnsSpec) -> RouteRecord {
    let mut paths: Vec<PathRecord> = spec.paths.iter().map(|path| resolve(snapshot, id, path)).collect();
    paths.sort_by(|a, b| (b.path.len(), &a.path).cmp(&(a.path.len(), &b.path)));
    RouteRecord { hash: String::new(), host: spec.host.to_ascii_lowercase(), paths }
}

fn resolve(snapshot: &Snapshot, id: &NamespacedName, path: &DnsPath) -> PathRecord {
    let leads = match &path.service {
        Some(only) => {
            let (service, port) = (Some(only.name.clone()), Some(only.port.clone()));
            let only = DnsBackend { service, port, weight: 1, ..DnsBackend::default() };
            PathTarget::One(backend(snapshot, id, &only))
        }
        None => PathTarget::Shared {
            backends: path.backends.iter().map(|one| backend(snapshot, id, one)).collect(),
            sticky: path.sticky.clone(),
        },
    };
    PathRecord { path: path.path.clone(), leads, rewrite: path.rewrite.clone() }
}

fn backend(snapshot: &Snapshot, id: &NamespacedName, wanted: &DnsBackend) -> BackendRecord {
    let (to, broken) = match &wanted.function {
        Some(function) => function_target(snapshot, id, function),
        None => service_target(snapshot, id, wanted),
    };
    BackendRecord { to, weight: wanted.weight, headers: wanted.headers.clone(), broken }
}

fn function_target(snapshot: &Snapshot, id: &NamespacedName, name: &str) -> (BackendTarget, Option<String>) {
    let object = ObjectRef { kind: Kind::Function, namespace: id.namespace.clone(), name: name.to_owned() };
    let is_there = snapshot.objects.contains_key(&object);
    let why = || format!("there is no function {name} in namespace {}", id.namespace);
    (BackendTarget::Function { function: name.to_owned() }, (!is_there).then(why))
}

fn service_target(
    snapshot: &Snapshot,
    id: &NamespacedName,
    backend: &DnsBackend,
) -> (BackendTarget, Option<String>) {
    // Validation of the object ensures that it names both.
    let service = backend.service.clone().unwrap_or_default();
    let wanted = backend.port.clone().unwrap_or(PortReference::Number(0));
    let object = ObjectRef { kind: Kind::Service, namespace: id.namespace.clone(), name: service.clone() };
    let found = match snapshot.objects.get(&object).map(|object| &object.value.resource) {
        Some(Resource::Service(spec)) if spec.alias_target().is_some() => {
            Err(format!("service {service} is of type ExternalName: paths can't route to it"))
        }
        Some(Resource::Service(spec)) => {
            let mut ports = spec.ports.iter();
            let port = ports.find(|port| match &wanted {
                PortReference::Number(number) => port.port == *number,
                PortReference::Name(name) => port.name.as_ref() == Some(name),
            });
            port.map(|port| port.port)
                .ok_or_else(|| format!("service {service} has no port {}", port_text(&wanted)))
        }
        _ => Err(format!("there is no service {service} in namespace {}", id.namespace)),
    };
    let number = match wanted {
        PortReference::Number(number) => number,
        PortReference::Name(_) => 0,
    };
    let (port, broken) = match found {
        Ok(port) => (port, None),
        Err(why) => (number, Some(why)),
    };
    (BackendTarget::Service { service, port }, broken)
}

fn port_text(port: &PortReference) -> String {
    match port {
        PortReference::Number(number) => number.to_string(),
        PortReference::Name(name) => name.clone(),
    }
}
