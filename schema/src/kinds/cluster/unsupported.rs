//! Settings that this version does not act on: refused unless they have their default. One table, to be
//! emptied as they come into force.

use super::ClusterSpec;
use crate::violation::{Findings, Path, rules};

/// A setting, and whether this object asks for something else than its default.
type Setting = (&'static [&'static str], fn(&ClusterSpec) -> bool);

const SETTINGS: &[Setting] = &[(&["registry"], |cluster| cluster.registry.is_some())];

/// Adds an error for each such setting that is not its default.
pub(super) fn refuse(cluster: &ClusterSpec, at: &Path<'_>, findings: &mut Findings) {
    for (field, _) in SETTINGS.iter().filter(|(_, is_used)| is_used(cluster)) {
        add(field, at, findings);
    }
}

fn add(field: &[&str], at: &Path<'_>, findings: &mut Findings) {
    match field {
        [] => {
            let message = "not supported by this version";
            findings.add(&rules::UNSUPPORTED_SETTING, at, message).on_key().help("remove it");
        }
        [first, rest @ ..] => add(rest, &at.field(first), findings),
    }
}
