//! Effective spec: Kubernetes' defaults, and one spelling for equal meanings.

use super::{IntOrPercent, LabelSelector, PodTemplate, ReplicaSetSpec, RollingUpdate, StrategyType};

/// Fills in fields that follow from other fields. Idempotent.
pub(super) fn fill(spec: &mut ReplicaSetSpec) {
    fill_workload(&mut spec.selector, &mut spec.template);
    spec.strategy.rolling_update = match spec.strategy.kind {
        StrategyType::Recreate => None,
        StrategyType::RollingUpdate => {
            let RollingUpdate { max_surge, max_unavailable } =
                spec.strategy.rolling_update.take().unwrap_or_default();
            Some(RollingUpdate {
                max_surge: Some(plain(max_surge.unwrap_or_else(IntOrPercent::quarter))),
                max_unavailable: Some(plain(max_unavailable.unwrap_or_else(IntOrPercent::quarter))),
            })
        }
    };
}

/// Fills in the fields that every kind of workload has.
pub(in crate::kinds) fn fill_workload(selector: &mut LabelSelector, template: &mut PodTemplate) {
    selector.normalize();
    template.spec.fill_defaults();
}

/// Normalizes equal amounts: `025%` becomes `25%`.
pub(in crate::kinds) fn plain(written: IntOrPercent) -> IntOrPercent {
    written.percent().map_or(written, |percent| IntOrPercent::Percent(format!("{percent}%")))
}
