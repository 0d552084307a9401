//! Fields that are stored but have no effect yet: one table, to be emptied as the agent learns them.

use super::{DnsPolicy, PodSpec};
use crate::violation::{Findings, Path, rules};

/// A field of the pod, and whether this spec uses it.
type PodField = (&'static [&'static str], fn(&PodSpec) -> bool);

const POD_FIELDS: &[PodField] = &[
    (&["imagePullSecrets"], |pod| !pod.image_pull_secrets.is_empty()),
    (&["dnsPolicy"], |pod| pod.dns_policy != DnsPolicy::ClusterFirst),
    (&["dnsConfig"], |pod| pod.dns_config.is_some()),
];

/// Adds a note for each field that is used and not executed.
pub(super) fn note(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    for (field, _) in POD_FIELDS.iter().filter(|(_, is_used)| is_used(pod)) {
        add(field, at, findings);
    }
    let volumes = at.field("volumes");
    for (index, volume) in pod.volumes.iter().enumerate() {
        let here = volumes.index(index);
        if volume.repo.is_some() {
            add(&["repo"], &here, findings);
        }
        if volume.secret.is_some() {
            add(&["secret"], &here, findings);
        }
    }
    for (field, containers) in [("initContainers", &pod.init_containers), ("containers", &pod.containers)] {
        let list = at.field(field);
        for (index, container) in containers.iter().enumerate() {
            let here = list.index(index);
            let env = here.field("env");
            for (index, variable) in container.env.iter().enumerate() {
                if variable.value_from.as_ref().is_some_and(|source| source.secret_key_ref.is_some()) {
                    add(&["valueFrom", "secretKeyRef"], &env.index(index), findings);
                }
            }
        }
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
