//! Fields that are stored but have no effect yet: one table, to be emptied as the agent learns them.

use super::{DnsPolicy, PodSpec};
use crate::violation::{Findings, Path, rules};

/// A field of the pod, and whether this spec uses it.
type PodField = (&'static [&'static str], fn(&PodSpec) -> bool);

/// A field of a container.
type ContainerField = (&'static [&'static str], fn(&super::Container) -> bool);

const POD_FIELDS: &[PodField] = &[
    (&["dnsPolicy"], |pod| pod.dns_policy != DnsPolicy::ClusterFirst),
    (&["dnsConfig"], |pod| pod.dns_config.is_some()),
    (&["securityContext", "fsGroup"], |pod| {
        pod.security_context.as_ref().is_some_and(|context| context.fs_group.is_some())
    }),
    (&["securityContext", "supplementalGroups"], |pod| {
        pod.security_context.as_ref().is_some_and(|context| !context.supplemental_groups.is_empty())
    }),
];

const CONTAINER_FIELDS: &[ContainerField] = &[
    (&["livenessProbe"], |container| container.liveness_probe.is_some()),
    (&["readinessProbe"], |container| container.readiness_probe.is_some()),
    (&["startupProbe"], |container| container.startup_probe.is_some()),
    (&["lifecycle", "preStop"], |container| {
        container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some())
    }),
];

/// Adds a note for each field that is used and not executed.
pub(super) fn note(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    for (field, _) in POD_FIELDS.iter().filter(|(_, is_used)| is_used(pod)) {
        add(field, at, findings);
    }
    for (field, containers) in [("initContainers", &pod.init_containers), ("containers", &pod.containers)] {
        let list = at.field(field);
        for (index, container) in containers.iter().enumerate() {
            let here = list.index(index);
            for (field, _) in CONTAINER_FIELDS.iter().filter(|(_, is_used)| is_used(container)) {
                add(field, &here, findings);
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
