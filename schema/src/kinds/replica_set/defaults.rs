//! The effective spec: Kubernetes' defaults, and one spelling for equal meanings.

use super::{DEFAULT_PROGRESS_DEADLINE_SECONDS, IntOrPercent, ReplicaSetSpec, RollingUpdate, StrategyType};

/// Fills in what follows from other fields. Doing it twice changes nothing.
pub(super) fn fill(spec: &mut ReplicaSetSpec) {
    spec.selector.normalize();
    spec.template.spec.fill_defaults();
    if has_short_default_deadline(spec) {
        spec.progress_deadline_seconds =
            spec.min_ready_seconds.saturating_add(DEFAULT_PROGRESS_DEADLINE_SECONDS);
    }
    spec.strategy.rolling_update = match spec.strategy.kind {
        StrategyType::Recreate => None,
        StrategyType::RollingUpdate => {
            let RollingUpdate { max_surge, max_unavailable } =
                spec.strategy.rolling_update.take().unwrap_or_default();
            Some(RollingUpdate {
                max_surge: Some(filled(max_surge)),
                max_unavailable: Some(filled(max_unavailable)),
            })
        }
    };
}

/// A ReplicaSet of Kubernetes knows no deadline: the default one must leave it time to become ready.
pub(super) fn has_short_default_deadline(spec: &ReplicaSetSpec) -> bool {
    spec.progress_deadline_seconds == DEFAULT_PROGRESS_DEADLINE_SECONDS
        && spec.min_ready_seconds >= DEFAULT_PROGRESS_DEADLINE_SECONDS
}

fn filled(written: Option<IntOrPercent>) -> IntOrPercent {
    let written = written.unwrap_or_else(IntOrPercent::quarter);
    // `025%` is `25%`.
    written.percent().map_or(written, |percent| IntOrPercent::Percent(format!("{percent}%")))
}
