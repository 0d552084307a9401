//! Reports on this node's pods for [`StatusWriter`]: stored ones are read from the snapshot, changes of phase or
//! readiness are urgent.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;
use schema::store::reflector::SnapshotReader;
use schema::store::status_writer::{Report, StatusWriter, Stored};
use schema::store::{SharedStore, StoreError};

use super::statuses::Statuses;

/// Reports of this node on its pods.
pub struct PodStatuses {
    node: String,
    snapshot: SnapshotReader,
}

/// Creates a writer for the pods of `node`.
pub fn status_writer(
    node: String,
    store: SharedStore,
    snapshot: SnapshotReader,
) -> StatusWriter<PodStatuses> {
    StatusWriter::new(PodStatuses { node, snapshot }, store)
}

#[async_trait]
impl Report for PodStatuses {
    type Id = NamespacedName;
    type Value = PodStatus;
    type Newest = Statuses;

    fn key(&self, pod: &NamespacedName) -> Key {
        Key::PodStatus(self.node.clone(), pod.clone())
    }

    fn values(newest: &Statuses) -> BTreeMap<NamespacedName, Arc<PodStatus>> {
        newest.pods.clone()
    }

    fn is_complete(newest: &Statuses) -> bool {
        newest.complete
    }

    fn is_urgent(old: Option<&PodStatus>, new: Option<&PodStatus>) -> bool {
        match (old, new) {
            (Some(old), Some(new)) => {
                old.phase != new.phase || old.uid != new.uid || old.is_ready() != new.is_ready()
            }
            _ => true,
        }
    }

    async fn stored(&self, _: bool) -> Result<Option<Stored<NamespacedName, PodStatus>>, StoreError> {
        let snapshot = self.snapshot.current();
        Ok(Stored::of_node(&snapshot, &snapshot.pod_status, &self.node))
    }
}
