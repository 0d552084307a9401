//! Effective spec: Kubernetes' defaults, and one spelling for equal meanings.

use super::{DaemonSetSpec, NodeByNode};
use crate::kinds::replica_set::{IntOrPercent, defaults};

/// Fills in fields that follow from other fields. Idempotent.
pub(super) fn fill(spec: &mut DaemonSetSpec) {
    defaults::fill_workload(&mut spec.selector, &mut spec.template);
    let written = spec.update_strategy.rolling_update.take().unwrap_or_default().max_unavailable;
    let max_unavailable = Some(written.map_or(IntOrPercent::Number(1), defaults::plain));
    // `maxSurge` can only be 0.
    spec.update_strategy.rolling_update = Some(NodeByNode { max_unavailable, max_surge: None });
}
