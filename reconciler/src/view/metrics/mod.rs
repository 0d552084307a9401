//! Metrics read from state at each scrape: those of the cluster from the snapshot, and those of this reconciler. Pure.
//!
//! Only the leader exports those of the cluster, because two reconcilers would count everything twice. Labels are
//! names from Git, nodes, and words of enums; what a node or a container may write freely becomes `Other`. Series of
//! the cluster do not grow with pods, and each table is read once.

mod commits;
mod fill;
mod nodes;
mod objects;
mod own;
mod pods;
#[cfg(test)]
mod tests;

use schema::metrics::{FamilyInfo, StateFamily};
use schema::snapshot::Snapshot;

pub use own::{OwnState, own_families};

use crate::upkeep::UpkeepState;

/// Returns the families of the cluster, also those without samples.
pub fn state_families(snapshot: &Snapshot) -> Vec<StateFamily> {
    [
        commits::families(snapshot),
        pods::families(snapshot),
        objects::families(snapshot),
        nodes::families(snapshot),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the descriptions of the families of the cluster.
pub fn state_infos() -> Vec<&'static FamilyInfo> {
    infos(&state_families(&Snapshot::default()))
}

/// Returns the descriptions of the families of [`own_families`].
pub fn own_infos() -> Vec<&'static FamilyInfo> {
    let etcd = UpkeepState::default();
    infos(&own_families(&OwnState { leads: false, etcd: &etcd, hooks: None }))
}

fn infos(families: &[StateFamily]) -> Vec<&'static FamilyInfo> {
    families.iter().map(|family| family.info).collect()
}
