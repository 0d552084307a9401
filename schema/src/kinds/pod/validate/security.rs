//! Checks of users, groups, capabilities and privilege.

use super::super::{Container, PodSpec, SecurityContext};
use crate::document::nearest::nearest;
use crate::violation::{Findings, Path, rules};

/// Linux capabilities without `CAP_`, as of 6.18 (capabilities(7)); `ALL` is Docker's word for all of them.
pub(crate) const CAPABILITIES: [&str; 42] = [
    "ALL",
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

/// Maximum user and group id that Kubernetes accepts.
const ID_MAX: i64 = 2_147_483_647;

/// Checks the pod's security settings and each container's.
pub(super) fn validate(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    if let Some(context) = &pod.security_context {
        let here = at.field("securityContext");
        id(context.run_as_user, &here.field("runAsUser"), findings);
        id(context.run_as_group, &here.field("runAsGroup"), findings);
        id(context.fs_group, &here.field("fsGroup"), findings);
        let groups = here.field("supplementalGroups");
        for (index, group) in context.supplemental_groups.iter().enumerate() {
            id(Some(*group), &groups.index(index), findings);
        }
        if context.run_as_non_root == Some(true) && context.run_as_user == Some(0) {
            non_root_as_root(&here.field("runAsUser"), findings);
        }
    }
    for (field, containers) in [("initContainers", &pod.init_containers), ("containers", &pod.containers)] {
        let list = at.field(field);
        for (index, container) in containers.iter().enumerate() {
            let here = list.index(index);
            one(pod, container, &here.field("securityContext"), findings);
        }
    }
}

fn one(pod: &PodSpec, container: &Container, at: &Path<'_>, findings: &mut Findings) {
    let Some(context) = &container.security_context else { return };
    id(context.run_as_user, &at.field("runAsUser"), findings);
    id(context.run_as_group, &at.field("runAsGroup"), findings);
    // The container's own settings win; missing ones are those of the pod. A contradiction in the pod's own
    // settings is reported once, at the pod.
    let of_pod = pod.security_context.as_ref();
    let non_root = context.run_as_non_root.or(of_pod.and_then(|pod| pod.run_as_non_root));
    let user = context.run_as_user.or(of_pod.and_then(|pod| pod.run_as_user));
    let own = context.run_as_non_root.is_some() || context.run_as_user.is_some();
    if own && non_root == Some(true) && user == Some(0) {
        let field = if context.run_as_user.is_some() { "runAsUser" } else { "runAsNonRoot" };
        non_root_as_root(&at.field(field), findings);
    }
    privilege(context, at, findings);
    let Some(capabilities) = &context.capabilities else { return };
    let here = at.field("capabilities");
    for (field, names) in [("add", &capabilities.add), ("drop", &capabilities.drop)] {
        let list = here.field(field);
        for (index, name) in names.iter().enumerate() {
            capability(name, &list.index(index), findings);
        }
    }
}

fn privilege(context: &SecurityContext, at: &Path<'_>, findings: &mut Findings) {
    if context.allow_privilege_escalation != Some(false) {
        return;
    }
    let here = at.field("allowPrivilegeEscalation");
    if context.privileged == Some(true) {
        let message =
            "Invalid value: cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        findings.add(&rules::SECURITY, &here, message);
    }
    let adds_admin =
        context.capabilities.as_ref().is_some_and(|set| set.add.iter().any(|name| name == "SYS_ADMIN"));
    if adds_admin {
        let message =
            "Invalid value: cannot set `allowPrivilegeEscalation` to false and `capabilities.add` SYS_ADMIN";
        findings.add(&rules::SECURITY, &here, message);
    }
}

fn capability(name: &str, at: &Path<'_>, findings: &mut Findings) {
    if CAPABILITIES.contains(&name) {
        return;
    }
    let help = nearest(name, CAPABILITIES)
        .map_or_else(|| "capabilities(7) lists them".to_owned(), |known| format!("did you mean `{known}`?"));
    findings.add(&rules::CAPABILITY, at, format!("Unsupported value: `{name}`")).help(help);
}

fn id(id: Option<i64>, at: &Path<'_>, findings: &mut Findings) {
    if let Some(id) = id.filter(|id| !(0..=ID_MAX).contains(id)) {
        let message = format!("Invalid value: {id}: must be between 0 and {ID_MAX}, inclusive");
        findings.add(&rules::OUT_OF_RANGE, at, message);
    }
}

fn non_root_as_root(at: &Path<'_>, findings: &mut Findings) {
    findings
        .add(&rules::SECURITY, at, "Invalid value: `runAsNonRoot` is true and the user is 0, which is root")
        .help("the container could never start");
}
