//! Settings that pods of the cluster may not use. Nothing is forbidden by default.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::codec::is_default;
use crate::kinds::pod::{Container, PodSpec, SecurityContext};
use crate::kinds::service::ServiceSpec;
use crate::names::{DNS_LABEL, is_dns_label};
use crate::violation::{Finding, Findings, Path, rules};

/// Settings that pods of the cluster may not use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct PodSecurity {
    /// Level of Kubernetes' Pod Security Standards that every pod must meet.
    #[serde(skip_serializing_if = "is_default")]
    pub level: PodSecurityLevel,
    /// Namespaces to which `level` does not apply. The other fields apply to all namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exempt_namespaces: Vec<String>,
    /// Forbids `securityContext.privileged: true`, `hostPID: true`, `hostIPC: true`, and added capabilities other than
    /// those that the level `baseline` allows: `AUDIT_WRITE`, `CHOWN`, `DAC_OVERRIDE`, `FOWNER`, `FSETID`, `KILL`, `MKNOD`,
    /// `NET_BIND_SERVICE`, `SETFCAP`, `SETGID`, `SETPCAP`, `SETUID`, `SYS_CHROOT`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forbid_privileged: bool,
    /// Forbids `hostNetwork: true`, `hostPID: true`, `hostIPC: true`, and a `host` of probes and hooks: the node
    /// connects to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forbid_host_network: bool,
    /// Forbids hostPath volumes at or below these directories of the node, and at directories above, from which
    /// they can be reached, `/proc` among them: `/` forbids every hostPath volume. `/run` is also `/var/run`, and
    /// `/usr/lib` also `/lib`. Nodes forbid also what leads there by a symbolic link.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbid_host_paths: Vec<String>,
    /// Restricts hostPath volumes to these directories of the node and below, if set. Nodes follow no symbolic link
    /// that leads out of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_host_paths: Vec<String>,
    /// Forbids `externalIPs` of services.
    #[serde(rename = "forbidExternalIPs", skip_serializing_if = "std::ops::Not::not")]
    pub forbid_external_ips: bool,
}

/// Level of Kubernetes' Pod Security Standards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PodSecurityLevel {
    /// Anything.
    #[default]
    Privileged,
    /// No known way to gain control of the node: no privileged containers, host network, processes or IPC of the node,
    /// host ports, hosts of probes and hostPath volumes, and only the capabilities of Docker's default set except `NET_RAW`.
    Baseline,
    /// As `baseline`; and no root, no gain of privileges, Docker's default seccomp profile, and no capability but
    /// `NET_BIND_SERVICE`.
    Restricted,
}

/// Limit on the settings as JSON: the status of a source holds those that its commit replaced.
const BYTES_MAX: usize = 8 * 1024;

/// Capabilities that the level `baseline` lets containers add. Docker's default set has `NET_RAW` as well, which forges
/// packets, and which the standard therefore leaves out.
const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The capability that the level `restricted` lets containers add.
const RESTRICTED_CAPABILITY: &str = "NET_BIND_SERVICE";

/// The setting of the level `restricted`, for messages.
const RESTRICTED: &str = "level: restricted";

impl PodSecurity {
    /// Checks the settings themselves.
    pub fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |text| text.len());
        if bytes > BYTES_MAX {
            let message = format!("Invalid value: takes {bytes} bytes as JSON; at most {BYTES_MAX}");
            findings.add(&rules::OUT_OF_RANGE, at, message).on_key();
        }
        let namespaces = at.field("exemptNamespaces");
        for (index, namespace) in self.exempt_namespaces.iter().enumerate() {
            if !is_dns_label(namespace) {
                let message = format!("Invalid value: `{namespace}`: {DNS_LABEL}");
                findings.add(&rules::INVALID_NAME, &namespaces.index(index), message);
            }
        }
        let lists =
            [("forbidHostPaths", &self.forbid_host_paths), ("allowHostPaths", &self.allow_host_paths)];
        for (field, prefixes) in lists {
            let list = at.field(field);
            for (index, prefix) in prefixes.iter().enumerate() {
                if !prefix.starts_with('/') || prefix.split('/').any(|part| part == "..") {
                    let message = format!("Invalid value: `{prefix}`: must be an absolute path without '..'");
                    findings.add(&rules::INVALID_PATH, &list.index(index), message);
                }
            }
        }
    }

    /// Returns an error for each forbidden setting of a pod in `namespace`, at the path `at`. `owner` names the object or
    /// machine with these settings, as in "the Cluster object".
    pub fn check(&self, owner: &str, namespace: &str, pod: &PodSpec, at: &Path<'_>) -> Vec<Finding> {
        let findings = &mut Findings::default();
        let is_exempt = self.exempt_namespaces.iter().any(|exempt| exempt == namespace);
        let level = if is_exempt { PodSecurityLevel::Privileged } else { self.level };
        let mut check = PodCheck { security: self, level, owner, findings };
        check.host_namespaces(pod, at);
        check.volumes(pod, at);
        check.of_pod(pod, &at.field("securityContext"));
        for (field, containers) in [("initContainers", &pod.init_containers), ("containers", &pod.containers)]
        {
            let list = at.field(field);
            for (index, container) in containers.iter().enumerate() {
                check.container(pod, container, &list.index(index));
            }
        }
        std::mem::take(findings).into_vec()
    }

    /// Adds an error if the service takes addresses that are forbidden. `owner` is as in [`Self::check`].
    pub fn check_service(&self, owner: &str, service: &ServiceSpec, at: &Path<'_>, findings: &mut Findings) {
        if self.forbid_external_ips && !service.external_ips.is_empty() {
            let message = format!("Forbidden: {owner} sets podSecurity.forbidExternalIPs");
            findings.add(&rules::FORBIDDEN_BY_CLUSTER, &at.field("externalIPs"), message).on_key();
        }
    }

    /// Returns the directory of `allowHostPaths` that has the path of a hostPath volume at or below it, and the path from
    /// there; the outermost of several. `None` for a path in none of them, and where one of them is `/`.
    pub fn allowed_directory(&self, path: &str) -> Option<(&str, String)> {
        let within = self.allow_host_paths.iter().filter(|directory| is_within(path, directory));
        let outermost = within.min_by_key(|directory| components(directory, &ROOT_LINKS).len())?;
        let depth = components(outermost, &ROOT_LINKS).len();
        (depth > 0).then(|| (outermost.as_str(), components(path, &ROOT_LINKS)[depth..].join("/")))
    }
}

/// A check of one pod.
struct PodCheck<'a> {
    security: &'a PodSecurity,
    /// Level in the pod's namespace.
    level: PodSecurityLevel,
    owner: &'a str,
    findings: &'a mut Findings,
}

impl PodCheck<'_> {
    /// Reports the value at `at`, which the field `setting` of podSecurity forbids.
    fn forbid(&mut self, at: &Path<'_>, setting: &str) {
        let message = format!("Forbidden: {} sets podSecurity.{setting}", self.owner);
        self.findings.add(&rules::FORBIDDEN_BY_CLUSTER, at, message);
    }

    /// Returns the setting that forbids what `baseline` forbids: `own`, a field for this alone, or the level.
    fn baseline(&self, own: Option<&'static str>) -> Option<&'static str> {
        own.or(match self.level {
            PodSecurityLevel::Privileged => None,
            PodSecurityLevel::Baseline => Some("level: baseline"),
            PodSecurityLevel::Restricted => Some(RESTRICTED),
        })
    }

    fn is_restricted(&self) -> bool {
        self.level == PodSecurityLevel::Restricted
    }

    /// Reports a setting that the level `restricted` requires, with its remedy.
    fn require(&mut self, at: &Path<'_>, help: &str) {
        let message = format!("Forbidden: {} sets podSecurity.{RESTRICTED}", self.owner);
        self.findings.add(&rules::FORBIDDEN_BY_CLUSTER, at, message).on_key().help(help);
    }

    /// Returns the setting that forbids the node's network.
    fn no_host_network(&self) -> Option<&'static str> {
        self.baseline(self.security.forbid_host_network.then_some("forbidHostNetwork"))
    }

    /// Checks the three namespaces of the node, which are one control of the standards. A pod that sees every process
    /// of the node, or their shared memory, can take some of them over, so this counts as privileged.
    fn host_namespaces(&mut self, pod: &PodSpec, at: &Path<'_>) {
        if let Some(setting) = self.no_host_network().filter(|_| pod.host_network) {
            self.forbid(&at.field("hostNetwork"), setting);
        }
        let privileged = self.security.forbid_privileged.then_some("forbidPrivileged");
        let Some(setting) = self.no_host_network().or(privileged) else { return };
        for (field, _) in
            [("hostPID", pod.host_pid), ("hostIPC", pod.host_ipc)].iter().filter(|(_, uses)| *uses)
        {
            self.forbid(&at.field(field), setting);
        }
    }

    /// Checks the hosts of probes and hooks: the node connects to them, from its own network.
    fn hosts(&mut self, container: &Container, at: &Path<'_>) {
        let Some(setting) = self.no_host_network() else { return };
        let is_set = |host: &Option<String>| host.as_ref().is_some_and(|host| !host.is_empty());
        let probes = [
            ("livenessProbe", &container.liveness_probe),
            ("readinessProbe", &container.readiness_probe),
            ("startupProbe", &container.startup_probe),
        ];
        for (field, probe) in probes {
            let Some(probe) = probe else { continue };
            let here = at.field(field);
            if probe.http_get.as_ref().is_some_and(|action| is_set(&action.host)) {
                self.forbid(&here.field("httpGet").field("host"), setting);
            }
            if probe.tcp_socket.as_ref().is_some_and(|action| is_set(&action.host)) {
                self.forbid(&here.field("tcpSocket").field("host"), setting);
            }
        }
        let Some(lifecycle) = &container.lifecycle else { return };
        let here = at.field("lifecycle");
        for (field, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
            let http_get = hook.as_ref().and_then(|hook| hook.http_get.as_ref());
            if http_get.is_some_and(|action| is_set(&action.host)) {
                self.forbid(&here.field(field).field("httpGet").field("host"), setting);
            }
        }
    }

    fn volumes(&mut self, pod: &PodSpec, at: &Path<'_>) {
        let volumes = at.field("volumes");
        for (index, volume) in pod.volumes.iter().enumerate() {
            let Some(path) = volume.host_path.as_ref().map(|host_path| host_path.path.as_str()) else {
                continue;
            };
            let here = volumes.index(index);
            let here = here.field("hostPath");
            if let Some(setting) = self.baseline(None) {
                self.forbid(&here, setting);
            }
            let here = here.field("path");
            let PodSecurity { forbid_host_paths, allow_host_paths: allowed, .. } = self.security;
            if let Some(prefix) = forbid_host_paths.iter().find(|prefix| host_paths_overlap(path, prefix)) {
                self.forbid(&here, &format!("forbidHostPaths: {prefix}"));
            }
            if !allowed.is_empty() && !allowed.iter().any(|prefix| is_within(path, prefix)) {
                self.forbid(&here, &format!("allowHostPaths: {}", allowed.join(", ")));
            }
        }
    }

    fn of_pod(&mut self, pod: &PodSpec, at: &Path<'_>) {
        let Some(context) = pod.security_context.as_ref().filter(|_| self.is_restricted()) else { return };
        if context.run_as_non_root == Some(false) {
            self.require(&at.field("runAsNonRoot"), "set `runAsNonRoot: true`");
        }
        if context.run_as_user == Some(0) {
            self.require(&at.field("runAsUser"), "set another user; 0 is root");
        }
    }

    fn container(&mut self, pod: &PodSpec, container: &Container, at: &Path<'_>) {
        let ports = at.field("ports");
        for (index, port) in container.ports.iter().enumerate() {
            // On the host's network each port is a host port.
            let takes_one = port.host_port.is_some() && !pod.host_network;
            if let Some(setting) = self.baseline(None).filter(|_| takes_one) {
                self.forbid(&ports.index(index).field("hostPort"), setting);
            }
        }
        self.hosts(container, at);
        let none = SecurityContext::default();
        let context = container.security_context.as_deref().unwrap_or(&none);
        let here = at.field("securityContext");
        if let Some(setting) = self.baseline(self.security.forbid_privileged.then_some("forbidPrivileged")) {
            if context.privileged == Some(true) {
                self.forbid(&here.field("privileged"), setting);
            }
            self.capabilities(context, &here, setting);
        }
        if self.is_restricted() {
            // At the container if it has no security context: the path must exist.
            let here = if container.security_context.is_some() { here } else { *at };
            self.restricted(pod, context, &here);
        }
    }

    fn capabilities(&mut self, context: &SecurityContext, at: &Path<'_>, setting: &str) {
        let added = context.capabilities.as_ref().map_or(&[][..], |capabilities| &capabilities.add);
        let capabilities = at.field("capabilities");
        let list = capabilities.field("add");
        for (index, name) in added.iter().enumerate() {
            if !BASELINE_CAPABILITIES.contains(&name.as_str()) {
                self.forbid(&list.index(index), setting);
            } else if self.is_restricted() && name != RESTRICTED_CAPABILITY {
                self.forbid(&list.index(index), RESTRICTED);
            }
        }
    }

    /// Checks what `restricted` requires of a container.
    fn restricted(&mut self, pod: &PodSpec, context: &SecurityContext, at: &Path<'_>) {
        let of_pod = pod.security_context.as_deref();
        if context.allow_privilege_escalation != Some(false) {
            self.require(at, "set `securityContext.allowPrivilegeEscalation: false`");
        }
        let drops_all =
            context.capabilities.as_ref().is_some_and(|set| set.drop.iter().any(|name| name == "ALL"));
        if !drops_all {
            self.require(at, "set `securityContext.capabilities.drop: [ALL]`");
        }
        let non_root = context.run_as_non_root.or(of_pod.and_then(|pod| pod.run_as_non_root));
        if non_root != Some(true) {
            self.require(at, "set `securityContext.runAsNonRoot: true`");
        }
        if context.run_as_user == Some(0) {
            self.require(at, "set another `securityContext.runAsUser`; 0 is root");
        }
        if context.seccomp_profile.or(of_pod.and_then(|pod| pod.seccomp_profile)).is_none() {
            self.require(at, "set `securityContext.seccompProfile: {type: RuntimeDefault}`");
        }
    }
}

/// True if a path of the node is at, below or above a forbidden directory, as written or once the links of the root
/// directory are followed. `/proc` counts as above all directories. Both paths are absolute.
pub fn host_paths_overlap(path: &str, forbidden: &str) -> bool {
    let [path, forbidden] =
        [path, forbidden].map(|path| [components(path, &[]), components(path, &ROOT_LINKS)]);
    let reaches = |one: &Vec<&str>, other: &Vec<&str>| one.starts_with(other) || other.starts_with(one);
    path.iter().any(|path| {
        let leads_anywhere = *path == ["proc"] || leaves_its_place(path);
        leads_anywhere || forbidden.iter().any(|forbidden| reaches(path, forbidden))
    })
}

/// True if a path is the directory or below it once the links of the root directory are followed. Other symbolic links
/// are on the node and not known here.
fn is_within(path: &str, directory: &str) -> bool {
    let [path, directory] = [path, directory].map(|path| components(path, &ROOT_LINKS));
    path.starts_with(&directory) && (directory.is_empty() || !leaves_its_place(&path))
}

/// Links that Linux distributions have by convention: those of the merged `/usr` and of `/run`.
const ROOT_LINKS: [(&[&str], &[&str]); 8] = [
    (&["bin"], &["usr", "bin"]),
    (&["sbin"], &["usr", "sbin"]),
    (&["lib"], &["usr", "lib"]),
    (&["lib32"], &["usr", "lib32"]),
    (&["lib64"], &["usr", "lib64"]),
    (&["libx32"], &["usr", "libx32"]),
    (&["var", "run"], &["run"]),
    (&["var", "lock"], &["run", "lock"]),
];

/// True for a path in the folder of a process, whose `root` and `cwd` lead anywhere on the node. Nothing outside
/// `/proc` does: the links of `/sys` and `/dev` are resolved in the container, and the engine lets it open no disk.
fn leaves_its_place(path: &[&str]) -> bool {
    let is_process =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_digit()) || matches!(name, "self" | "thread-self");
    matches!(path, ["proc", process, ..] if is_process(process))
}

/// Splits an absolute path into parts, without empty parts and `.`, with `..` resolved and `links` followed in the order
/// in which the kernel would.
fn components<'p>(path: &'p str, links: &[(&[&'p str], &[&'p str])]) -> Vec<&'p str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            // The parent of the root is the root.
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
        if let Some((_, target)) = links.iter().find(|(link, _)| *link == parts) {
            parts = target.to_vec();
        }
    }
    parts
}

#[cfg(test)]
#[path = "pod_security_tests.rs"]
mod tests;
