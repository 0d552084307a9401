//! Fields that the rows of all kinds with a view have in common.

use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef, StringMap};
use schema::object::Object;
use schema::snapshot::Snapshot;
use schema::snapshot::health::health;

use super::age::AppliedAt;
use super::objects::Selection;

/// Makes the rows of objects. Holds what they share, read once.
pub(super) struct Rows<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) now: Timestamp,
    applied: AppliedAt<'a>,
}

/// Fields that every row has.
pub(super) struct Common {
    pub(super) id: NamespacedName,
    /// Healthy, Progressing, Degraded or Unknown.
    pub(super) health: String,
    /// Reason that the object is not healthy; else empty.
    pub(super) note: String,
    /// Time since the object was first applied; empty if not known.
    pub(super) age: String,
    pub(super) labels: StringMap,
}

impl<'a> Rows<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        Self { snapshot, now, applied: AppliedAt::new(snapshot) }
    }

    /// Returns the selected objects of a kind.
    pub(super) fn chosen(
        &self,
        kind: Kind,
        which: &'a Selection<'a>,
    ) -> impl Iterator<Item = &'a Object> + use<'a> {
        let all = self.snapshot.objects.iter().map(|(id, found)| (id, &found.value));
        let chosen = all.filter(move |(id, object)| id.kind == kind && which.matches(id, object));
        chosen.map(|(_, object)| object)
    }

    pub(super) fn common(&self, object: &Object) -> Common {
        let health = health(self.snapshot, object);
        Common {
            id: NamespacedName::new(&object.metadata.namespace, &object.metadata.name),
            note: health.why().unwrap_or_default().to_owned(),
            health: health.to_string(),
            age: self.age(object),
            labels: object.metadata.labels.clone(),
        }
    }

    /// Returns the time since the object was first applied; empty if not known.
    pub(super) fn age(&self, object: &Object) -> String {
        self.applied.age(object, self.now)
    }
}

/// Finds the object of a page.
pub(super) fn find<'a>(snapshot: &'a Snapshot, kind: Kind, id: &NamespacedName) -> Option<&'a Object> {
    let key = ObjectRef { kind, namespace: id.namespace.clone(), name: id.name.clone() };
    Some(&snapshot.objects.get(&key)?.value)
}
