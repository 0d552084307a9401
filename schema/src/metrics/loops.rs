//! Metrics of a daemon's loops, from the last run of each.

use super::family::{FamilyInfo, StateFamily, unix_seconds};
use crate::control::LoopRuns;

static RUNS: FamilyInfo = FamilyInfo::counter("minik8s_loop_runs", "Runs of a loop", &["loop"]);
static FAILURES: FamilyInfo =
    FamilyInfo::counter("minik8s_loop_failures", "Failed runs of a loop", &["loop"]);
static BUSY: FamilyInfo =
    FamilyInfo::counter("minik8s_loop_busy_seconds", "Time spent in the runs of a loop", &["loop"]);
static LAST_DURATION: FamilyInfo =
    FamilyInfo::gauge("minik8s_loop_last_run_duration_seconds", "Duration of a loop's last run", &["loop"]);
static LAST_SUCCESS: FamilyInfo = FamilyInfo::gauge(
    "minik8s_loop_last_success_timestamp_seconds",
    "End of the last run that did not fail, as Unix time; a run that was not ready to plan counts",
    &["loop"],
);

/// The families of [`loop_families`].
pub(super) static INFOS: [&FamilyInfo; 5] = [&RUNS, &FAILURES, &BUSY, &LAST_DURATION, &LAST_SUCCESS];

/// Returns runs, failures and durations of all loops. The label `loop` is the loop's name; `gitops/<source>` where
/// there is one for each source.
pub fn loop_families(runs: &LoopRuns) -> Vec<StateFamily> {
    let mut families: Vec<StateFamily> = INFOS.into_iter().map(StateFamily::new).collect();
    for status in runs.statuses() {
        let name = [status.name.as_str()];
        let success = status.last_success_at.map_or(0.0, unix_seconds);
        let values = [
            status.runs as f64,
            status.failures as f64,
            status.busy_ms as f64 / 1000.0,
            status.took_ms as f64 / 1000.0,
            success,
        ];
        for (family, value) in families.iter_mut().zip(values) {
            family.add(name, value);
        }
    }
    families
}
