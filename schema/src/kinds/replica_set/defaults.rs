//! The effective spec: Kubernetes' defaults, and one spelling for equal meanings.

use super::{
    DEFAULT_PROGRESS_DEADLINE_SECONDS, IntOrPercent, LabelSelector, PodTemplate, ReplicaSetSpec,
    RollingUpdate, StrategyType,
};

/// Fills in what follows from other fields. Doing it twice changes nothing.
pub(super) fn fill(spec: &mut ReplicaSetSpec) {
    fill_workload(&mut spec.selector, &mut spec.template);
    fill_deadline(spec.min_ready_seconds, &mut spec.progress_deadline_seconds);
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

/// What every kind of workload has.
pub(in crate::kinds) fn fill_workload(selector: &mut LabelSelector, template: &mut PodTemplate) {
    selector.normalize();
    template.spec.fill_defaults();
}

/// Gives pods that need longer to count as available their time on top.
pub(in crate::kinds) fn fill_deadline(min_ready_seconds: u32, deadline_seconds: &mut u32) {
    if has_short_default_deadline(min_ready_seconds, *deadline_seconds) {
        *deadline_seconds = min_ready_seconds.saturating_add(DEFAULT_PROGRESS_DEADLINE_SECONDS);
    }
}

/// A ReplicaSet or DaemonSet of Kubernetes knows no deadline: the default one must leave it time to become ready.
pub(super) fn has_short_default_deadline(min_ready_seconds: u32, deadline_seconds: u32) -> bool {
    deadline_seconds == DEFAULT_PROGRESS_DEADLINE_SECONDS
        && min_ready_seconds >= DEFAULT_PROGRESS_DEADLINE_SECONDS
}

/// One spelling for equal amounts: `025%` is `25%`.
pub(in crate::kinds) fn plain(written: IntOrPercent) -> IntOrPercent {
    written.percent().map_or(written, |percent| IntOrPercent::Percent(format!("{percent}%")))
}
