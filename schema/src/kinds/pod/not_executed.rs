//! Fields that are stored but have no effect yet: one table, to be emptied as the agent learns them.

use super::{DnsPolicy, PodSpec};
use crate::violation::{Findings, Path, rules};

/// A field of the pod, and whether this spec uses it.
type PodField = (&'static [&'static str], fn(&PodSpec) -> bool);

const POD_FIELDS: &[PodField] = &[
    (&["dnsPolicy"], |pod| pod.dns_policy != DnsPolicy::ClusterFirst),
    (&["dnsConfig"], |pod| pod.dns_config.is_some()),
];

/// Adds a note for each field that is used and not executed.
pub(super) fn note(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    for (field, _) in POD_FIELDS.iter().filter(|(_, is_used)| is_used(pod)) {
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
