//! Unreadable values in etcd that affect workloads. Pure.

use std::collections::BTreeSet;

use schema::keys::{Key, prefix};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::PodInstance;
use schema::snapshot::Snapshot;

use crate::controllers::last_known::workload_kinds;

/// Unreadable values. They are not gone: what depends on them stays as it is.
pub(super) struct Unreadable {
    pub(super) keys: Vec<Key>,
    pub(super) objects: BTreeSet<ObjectRef>,
    pub(super) pods: BTreeSet<NamespacedName>,
    /// Workloads with an unreadable pod or record.
    pub(super) workloads: BTreeSet<ObjectRef>,
}

impl Unreadable {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let prefixes = [prefix::OBJECTS, prefix::PODS, prefix::ROLLOUTS, prefix::TEMPLATES, prefix::SCALE];
        let below = |text: &&String| prefixes.iter().any(|prefix| text.starts_with(prefix));
        let keys: Vec<Key> =
            snapshot.malformed.keys().filter(below).filter_map(|text| text.parse().ok()).collect();
        let (mut objects, mut pods, mut workloads) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for key in &keys {
            match key {
                Key::Object(object) => {
                    objects.insert(object.clone());
                }
                Key::Pod(pod) => {
                    pods.insert(pod.clone());
                    // The record would name the owner; the pod's name does as well.
                    let owner = PodInstance::workload_in_name(&pod.name);
                    for kind in workload_kinds() {
                        workloads.extend(owner.map(|name| ObjectRef {
                            kind,
                            namespace: pod.namespace.clone(),
                            name: name.to_owned(),
                        }));
                    }
                }
                Key::Rollout(workload) | Key::Template(workload, _) | Key::Scale(workload) => {
                    workloads.insert(workload.clone());
                }
                _ => {}
            }
        }
        Self { keys, objects, pods, workloads }
    }
}
