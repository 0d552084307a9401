//! Services and hosts on the way to a commit: what became of them, on the nodes too. Pure.

use schema::kinds::{Health, Kind, Resource};
use schema::meta::NamespacedName;
use schema::object::Object;
use schema::records::{RouteRecord, ServiceRecord};
use schema::snapshot::Snapshot;

use crate::view::services::unprogrammed;

/// What a service or host waits for; none for one that is well, and for objects of other kinds. Nothing
/// of it fails for good: a service may come with another source.
pub(super) fn awaited(snapshot: &Snapshot, object: &Object) -> Option<String> {
    let id = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    let (word, health) = match &object.resource {
        Resource::Service(spec) => {
            let record = snapshot.services.get(&id).map(|found| &found.value);
            ("service", ServiceRecord::health(record, spec, &object.hash))
        }
        Resource::Dns(spec) => {
            let record = snapshot.routes.get(&id).map(|found| &found.value);
            ("dns", RouteRecord::health(record, spec, &object.hash))
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
    match health {
        Health::Progressing { why } | Health::Degraded { why } | Health::Unknown { why } => {
            Some(format!("{word} {id}: {why}"))
        }
        // A host has no rules of its own.
        Health::Healthy | Health::NotRun => unprogrammed(snapshot, &id)
            .filter(|_| object.kind() == Kind::Service)
            .map(|why| format!("{word} {id}: {why}")),
    }
}
