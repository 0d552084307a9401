//! Services and hosts on the way to a commit: what became of them, on the nodes too. Pure.

use schema::kinds::{Health, Resource};
use schema::meta::PodRef;
use schema::object::Object;
use schema::world::World;

use crate::gitops::health::health;
use crate::view::services::unprogrammed;

/// What a service or host waits for; none for one that is well, and for objects of other kinds. Nothing
/// of it fails for good: a service may come with another source.
pub(super) fn awaited(world: &World, object: &Object) -> Option<String> {
    let word = match &object.resource {
        Resource::Service(_) => "service",
        Resource::Dns(_) => "dns",
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
    let id = PodRef::new(&object.metadata.namespace, &object.metadata.name);
    match health(world, object) {
        Health::Progressing { why } | Health::Degraded { why } | Health::Unknown { why } => {
            Some(format!("{word} {id}: {why}"))
        }
        Health::Healthy | Health::NotRun if word == "service" => {
            unprogrammed(world, &id).map(|why| format!("{word} {id}: {why}"))
        }
        Health::Healthy | Health::NotRun => None,
    }
}
