//! Checks of a daemon set beyond the schema, in Kubernetes' wording where people search for it.

use super::DaemonSetSpec;
use crate::kinds::Kind;
use crate::kinds::replica_set::IntOrPercent;
use crate::kinds::replica_set::validate::{Shared, percent};
use crate::violation::{Findings, Path, rules};

/// Checks a spec as written, before defaults, at the path `at`.
pub(super) fn validate(spec: &DaemonSetSpec, at: &Path<'_>, findings: &mut Findings) {
    let shared = Shared {
        kind: Kind::DaemonSet,
        selector: &spec.selector,
        template: &spec.template,
        min_ready_seconds: spec.min_ready_seconds,
        progress_deadline_seconds: spec.progress_deadline_seconds,
    };
    shared.validate_template(at, findings);
    update_strategy(spec, &at.field("updateStrategy"), findings);
    shared.validate_times(at, findings);
}

fn update_strategy(spec: &DaemonSetSpec, at: &Path<'_>, findings: &mut Findings) {
    let Some(update) = &spec.update_strategy.rolling_update else { return };
    let here = at.field("rollingUpdate");
    let (unavailable, surge) = (here.field("maxUnavailable"), here.field("maxSurge"));
    let share = percent(update.max_unavailable.as_ref(), &unavailable, findings);
    if share.is_some_and(|percent| percent > 100) {
        findings.add(&rules::ROLLOUT, &unavailable, "Invalid value: must not be greater than 100%");
    }
    let is = |amount: &Option<IntOrPercent>, number: fn(u32) -> bool| {
        amount.as_ref().and_then(|amount| amount.of(100, true)).is_some_and(number)
    };
    if is(&update.max_unavailable, |pods| pods == 0) {
        findings
            .add(&rules::ROLLOUT, &unavailable, "Invalid value: cannot be 0 when `maxSurge` is 0")
            .help("no pod could ever be replaced");
    }
    percent(update.max_surge.as_ref(), &surge, findings);
    if is(&update.max_surge, |pods| pods > 0) {
        findings
            .add(
                &rules::ROLLOUT,
                &surge,
                "Invalid value: must be 0: a node never has two pods of a DaemonSet",
            )
            .help("remove it, and say with maxUnavailable how many nodes are updated at once");
    }
}
