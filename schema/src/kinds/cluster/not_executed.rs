//! Settings that are stored but have no effect yet: one table, to be emptied as they come into force.

use super::{ClusterDns, ClusterSpec, Defaults, FunctionDefaults, NodePolicy, SchedulerStrategy, Slurm};
use crate::violation::{Findings, Path, rules};

/// A setting, and whether this object asks for something else than its default.
type Setting = (&'static [&'static str], fn(&ClusterSpec) -> bool);

/// `prune` and `podSecurity` are in force.
const SETTINGS: &[Setting] = &[
    (&["schedulerStrategy"], |cluster| cluster.scheduler_strategy != SchedulerStrategy::default()),
    (&["registry"], |cluster| cluster.registry.is_some()),
    (&["dns"], |cluster| cluster.dns != ClusterDns::default()),
    (&["defaults", "resources"], |cluster| !cluster.defaults.resources.is_empty()),
    (&["defaults", "progressDeadlineSeconds"], |cluster| {
        cluster.defaults.progress_deadline_seconds != Defaults::default().progress_deadline_seconds
    }),
    (&["nodes", "evictAfterSeconds"], |cluster| cluster.nodes != NodePolicy::default()),
    (&["functions"], |cluster| cluster.functions != FunctionDefaults::default()),
    (&["slurm"], |cluster| cluster.slurm != Slurm::default()),
];

/// Adds a note for each setting that is changed and not in force.
pub(super) fn note(cluster: &ClusterSpec, at: &Path<'_>, findings: &mut Findings) {
    for (field, _) in SETTINGS.iter().filter(|(_, is_used)| is_used(cluster)) {
        add(field, at, findings);
    }
}

fn add(field: &[&str], at: &Path<'_>, findings: &mut Findings) {
    match field {
        [] => {
            findings.add(&rules::NOT_EXECUTED_YET, at, "stored, but without effect in this version").on_key();
        }
        [first, rest @ ..] => add(rest, &at.field(first), findings),
    }
}
