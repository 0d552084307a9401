//! Services and hosts on the way to a commit: what the services controller made of them. Pure.
//!
//! Reads the object and its record. A record carries no hash of the object that it is of, so one whose
//! ports or paths are others' is taken for that of the version before.

use std::collections::BTreeSet;

use schema::kinds::dns::DnsSpec;
use schema::kinds::service::ServiceSpec;
use schema::kinds::{Health, Resource};
use schema::meta::PodRef;
use schema::object::Object;
use schema::records::{RouteRecord, ServiceRecord};
use schema::world::World;

use super::short;

/// What a service or host waits for; none for one that is well, and for objects of other kinds. Nothing
/// of it fails for good: a service may come with another source.
pub(super) fn awaited(world: &World, object: &Object) -> Option<String> {
    let id = PodRef::new(&object.metadata.namespace, &object.metadata.name);
    let (word, health, is_taken_in) = match &object.resource {
        Resource::Service(spec) => {
            let record = world.services.get(&id).map(|found| &found.value);
            let health = spec.health(&record.map(ServiceRecord::status).unwrap_or_default());
            ("service", health, record.is_some_and(|record| is_service(record, spec)))
        }
        Resource::Dns(spec) => {
            let record = world.routes.get(&id).map(|found| &found.value);
            let health = spec.health(&record.map(RouteRecord::status).unwrap_or_default());
            ("dns", health, record.is_some_and(|record| is_host(record, spec)))
        }
        // Pods are looked at by themselves, settings are in force as soon as they are stored, and the
        // controllers of the other kinds bring their health.
        Resource::Pod(_)
        | Resource::Cluster(_)
        | Resource::Node(_)
        | Resource::Function(_)
        | Resource::ReplicaSet(_)
        | Resource::HorizontalPodAutoscaler(_)
        | Resource::Workflow(_)
        | Resource::Job(_) => return None,
    };
    let commit = short(&object.provenance.commit);
    match health {
        Health::Progressing { why } | Health::Degraded { why } | Health::Unknown { why } => {
            Some(format!("{word} {id}: {why}"))
        }
        Health::Healthy | Health::NotRun if is_taken_in => None,
        Health::Healthy | Health::NotRun => {
            Some(format!("{word} {id}: waiting for the services controller to take in commit {commit}"))
        }
    }
}

fn is_service(record: &ServiceRecord, spec: &ServiceSpec) -> bool {
    let known = record.ports.iter().map(|port| (&port.name, port.protocol, port.port));
    let wanted = spec.ports.iter().map(|port| (&port.name, port.protocol, port.port));
    known.eq(wanted) && record.cluster_ip.is_none() == spec.is_headless()
}

fn is_host(record: &RouteRecord, spec: &DnsSpec) -> bool {
    let known: BTreeSet<_> = record.paths.iter().map(|path| (&path.path, &path.service)).collect();
    let wanted: BTreeSet<_> = spec.paths.iter().map(|path| (&path.path, &path.service.name)).collect();
    known == wanted && record.host.eq_ignore_ascii_case(&spec.host)
}
