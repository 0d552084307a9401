//! Pods named in Git. An unchanged object costs no write: file, line and generation of the object are not part of
//! the pod. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use schema::keys::{Key, prefix};
use schema::kinds::Kind;
use schema::kinds::pod::PodSpec;
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{OwnerRef, PodInstance};
use schema::snapshot::{Snapshot, VersionedValue};

use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::{Precondition, Writes};
use crate::last_known::workload_kinds;

/// Plans the pod of a Pod object, which has the same name and owns itself. `present` is the pod that has the name
/// now.
pub(super) fn bare_pod(
    snapshot: &Snapshot,
    unreadable: &UnreadableKeys,
    (object, spec): (&Object, &Arc<PodSpec>),
    present: Option<(&NamespacedName, &Arc<VersionedValue<PodInstance>>)>,
    out: &mut Writes,
) {
    let commit = || object.provenance.commit.clone();
    let new = |id| instance(object, snapshot.cluster().defaults.apply_to(spec), id);
    let Some((id, present)) = present else {
        let id = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
        if !unreadable.pods.contains(&id) {
            let wanted = new(&id);
            out.put(Key::Pod(id), &wanted, Precondition::Absent, Reason::PodWanted { commit: commit() });
        }
        return;
    };
    if unreadable.pods.contains(id) {
        return;
    }
    let pod = &present.value;
    if !pod.is_bare() {
        let owner = format!("{}/{}", pod.owner.kind, pod.owner.name);
        out.note(Note::about_pod(&id.namespace, &id.name, NoteKind::NameTaken { owner }));
        return;
    }
    if is_as_wanted(pod, object) {
        return;
    }
    let (wanted, reason) = match pod.hash == object.hash {
        true => (instance(object, Arc::clone(&pod.spec), id), Reason::PodUpdated { commit: commit() }),
        false => (new(id), Reason::PodReplaced { commit: commit() }),
    };
    out.put(Key::Pod(id.clone()), &wanted, Precondition::ModRevision(present.mod_revision), reason);
}

/// True if the pod is what the object asks for. Compares in place: hashing a uid for each of 30,000 unchanged pods
/// would take most of the time that a plan has. The spec follows from the hash, except for default resources, which
/// a pod keeps from its creation, as with Kubernetes' LimitRange.
fn is_as_wanted(pod: &PodInstance, object: &Object) -> bool {
    pod.hash == object.hash
        && pod.owner.name == object.metadata.name
        && pod.labels == object.metadata.labels
        && pod.annotations == object.metadata.annotations
        && pod.commit == object.provenance.commit
        && pod.files == object.files
}

fn instance(object: &Object, spec: Arc<PodSpec>, id: &NamespacedName) -> PodInstance {
    let owner = OwnerRef { kind: Kind::Pod, name: object.metadata.name.clone() };
    PodInstance {
        namespace: id.namespace.clone(),
        name: id.name.clone(),
        uid: PodInstance::uid_of(&owner, id, &object.hash),
        hash: object.hash.clone(),
        labels: object.metadata.labels.clone(),
        annotations: object.metadata.annotations.clone(),
        owner,
        commit: object.provenance.commit.clone(),
        spec,
        files: object.files.clone(),
    }
}

// Unreadable values in etcd that affect workloads. Pure.

/// Unreadable values. They are not gone: what depends on them stays as it is.
pub(super) struct UnreadableKeys {
    pub(super) keys: Vec<Key>,
    pub(super) objects: BTreeSet<ObjectRef>,
    pub(super) pods: BTreeSet<NamespacedName>,
    /// Workloads with an unreadable pod or record.
    pub(super) workloads: BTreeSet<ObjectRef>,
}

impl UnreadableKeys {
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
