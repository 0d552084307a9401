//! Decides which pods should exist. Reads `objects/` and `pods/`, writes `pods/`.
//!
//! A bare Pod object is one pod of the same name that owns itself. An unchanged object costs no
//! write: file, line and generation of the object are not part of the pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use schema::keys::{Key, prefix};
use schema::kinds::pod::PodSpec;
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{OwnerRef, PodInstance};
use schema::snapshot::Snapshot;

use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::{Expect, Writes};

/// What should be written below `pods/`.
pub(in crate::controllers) fn plan(snapshot: &Snapshot) -> Writes {
    let unreadable = Unreadable::of(snapshot);
    let mut out = Writes::default();
    // Removals first: what they free is free for the others.
    for (id, pod) in &snapshot.pods {
        let bare = pod.value.owner.kind == Kind::Pod;
        if bare && !has_object(snapshot, id) && !unreadable.objects.contains(id) {
            out.delete(Key::Pod(id.clone()), pod.mod_revision, Reason::OwnerGone);
        }
    }
    for object in snapshot.objects.values() {
        // Other kinds are stored, not run yet.
        if let Resource::Pod(spec) = &object.value.resource {
            bare_pod(snapshot, &unreadable, &object.value, spec, &mut out);
        }
    }
    for key in &unreadable.keys {
        out.note(Note::about_key(key, NoteKind::Unreadable { key: key.to_string() }));
    }
    out
}

/// Values that can't be read. They are not gone: what hangs on them stays as it is.
struct Unreadable {
    keys: Vec<Key>,
    objects: BTreeSet<NamespacedName>,
    pods: BTreeSet<NamespacedName>,
}

impl Unreadable {
    fn of(snapshot: &Snapshot) -> Self {
        let below = |text: &&String| text.starts_with(prefix::OBJECTS) || text.starts_with(prefix::PODS);
        let keys: Vec<Key> =
            snapshot.malformed.keys().filter(below).filter_map(|text| text.parse().ok()).collect();
        let mut objects = BTreeSet::new();
        let mut pods = BTreeSet::new();
        for key in &keys {
            match key {
                Key::Object(object) if object.kind == Kind::Pod => {
                    objects.insert(NamespacedName::new(&object.namespace, &object.name));
                }
                Key::Pod(pod) => {
                    pods.insert(pod.clone());
                }
                _ => {}
            }
        }
        Self { keys, objects, pods }
    }
}

fn has_object(snapshot: &Snapshot, pod: &NamespacedName) -> bool {
    let id = ObjectRef { kind: Kind::Pod, namespace: pod.namespace.clone(), name: pod.name.clone() };
    snapshot.objects.contains_key(&id)
}

fn bare_pod(
    snapshot: &Snapshot,
    unreadable: &Unreadable,
    object: &Object,
    spec: &Arc<PodSpec>,
    out: &mut Writes,
) {
    let id = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    if unreadable.pods.contains(&id) {
        return;
    }
    let commit = object.provenance.commit.clone();
    let new = || instance(object, snapshot.cluster().defaults.of_pod(spec), &id);
    let Some(present) = snapshot.pods.get(&id) else {
        let wanted = new();
        out.put(Key::Pod(id), &wanted, Expect::Absent, Reason::PodWanted { commit });
        return;
    };
    let pod = &present.value;
    if pod.owner.kind != Kind::Pod {
        let owner = format!("{}/{}", pod.owner.kind, pod.owner.name);
        out.note(Note::about_pod(&id.namespace, &id.name, NoteKind::NameTaken { owner }));
        return;
    }
    if is_as_wanted(pod, object) {
        return;
    }
    let (wanted, reason) = match pod.hash == object.hash {
        true => (instance(object, Arc::clone(&pod.spec), &id), Reason::PodUpdated { commit }),
        false => (new(), Reason::PodReplaced { commit }),
    };
    out.put(Key::Pod(id), &wanted, Expect::ModRevision(present.mod_revision), reason);
}

/// The pod is what the object asks for. Compares in place: hashing a uid for each of 30,000
/// unchanged pods would take most of the time that a plan has. The spec follows from the hash, but for default
/// resources, which a pod keeps as they were when it was made, as with Kubernetes' LimitRange.
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
