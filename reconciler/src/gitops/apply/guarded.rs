//! Transactions of the leader.

use schema::store::election::Fence;
use schema::store::{Guard, Op, SharedStore, StoreError, TxnOutcome};

/// A guard on a key as it is now, readable or not.
pub(in crate::gitops) async fn guard_of_present(store: &SharedStore, key: &str) -> Result<Guard, StoreError> {
    let found = store.get(key).await?;
    Ok(found.map_or_else(
        || Guard::Absent(key.to_owned()),
        |item| Guard::ModRevision(item.key, item.mod_revision),
    ))
}

/// One transaction under the fence. `None`: it was not done, because something changed meanwhile
/// or another one leads.
pub(in crate::gitops) async fn guarded(
    store: &SharedStore,
    fence: Fence,
    guards: Vec<Guard>,
    ops: Vec<Op>,
) -> Result<Option<i64>, StoreError> {
    let guards = std::iter::once(fence.guard()).chain(guards).collect();
    match store.txn(guards, ops).await? {
        TxnOutcome::Committed(revision) => Ok(Some(revision)),
        TxnOutcome::Conflict => Ok(None),
    }
}
