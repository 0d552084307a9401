//! Settings that no pod of the cluster may use. Nothing is forbidden by default.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::pod::{PodSpec, SecurityContext};
use crate::violation::{Findings, Path, rules};

/// Settings that no pod of the cluster may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct PodSecurity {
    /// Forbids `securityContext.privileged: true`, and added capabilities that give equivalent access to the node:
    /// `ALL`, `DAC_READ_SEARCH`, `SYS_ADMIN`, `SYS_MODULE`, `SYS_PTRACE`, `SYS_RAWIO`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forbid_privileged: bool,
    /// Forbids `hostNetwork: true`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forbid_host_network: bool,
    /// Forbids hostPath volumes at or below these directories of the node, and at directories above, from which
    /// they can be reached: `/` forbids every hostPath volume.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbid_host_paths: Vec<String>,
    /// Restricts hostPath volumes to these directories of the node and below, if set. Nodes follow no symbolic link
    /// that leads out of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_host_paths: Vec<String>,
}

/// Capabilities that let a container escape its bounds: mounts, modules, files by handle, ports and memory of the
/// machine, other processes.
const PRIVILEGED_EQUIVALENTS: [&str; 6] =
    ["ALL", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO"];

impl PodSecurity {
    /// Adds an error for each forbidden setting of the pod at the path `at`.
    pub fn check(&self, pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
        if self.forbid_host_network && pod.host_network {
            let message = "Forbidden: the Cluster object sets podSecurity.forbidHostNetwork";
            findings.add(&rules::FORBIDDEN_BY_CLUSTER, &at.field("hostNetwork"), message);
        }
        let volumes = at.field("volumes");
        for (index, volume) in pod.volumes.iter().enumerate() {
            let Some(path) = volume.host_path.as_ref().map(|host_path| host_path.path.as_str()) else {
                continue;
            };
            let here = volumes.index(index);
            let here = here.field("hostPath");
            if let Some(prefix) = self.forbid_host_paths.iter().find(|prefix| overlap(path, prefix)) {
                let message = format!(
                    "Forbidden: `{path}`: the Cluster object sets podSecurity.forbidHostPaths: {prefix}"
                );
                findings.add(&rules::FORBIDDEN_BY_CLUSTER, &here.field("path"), message);
            }
            let allowed = &self.allow_host_paths;
            if !allowed.is_empty() && !allowed.iter().any(|prefix| is_within(path, prefix)) {
                let message = format!(
                    "Forbidden: `{path}`: the Cluster object sets podSecurity.allowHostPaths: {}",
                    allowed.join(", ")
                );
                findings.add(&rules::FORBIDDEN_BY_CLUSTER, &here.field("path"), message);
            }
        }
        if !self.forbid_privileged {
            return;
        }
        for (field, containers) in [("initContainers", &pod.init_containers), ("containers", &pod.containers)]
        {
            let list = at.field(field);
            for (index, container) in containers.iter().enumerate() {
                if let Some(context) = &container.security_context {
                    unprivileged(context, &list.index(index).field("securityContext"), findings);
                }
            }
        }
    }
}

impl PodSecurity {
    /// Returns the directory of `allowHostPaths` that has the path of a hostPath volume at or below it, and the path from
    /// there; the outermost of several. `None` for a path in none of them, and where one of them is `/`.
    pub fn allowed_directory(&self, path: &str) -> Option<(&str, String)> {
        let within = self.allow_host_paths.iter().filter(|directory| is_within(path, directory));
        let outermost = within.min_by_key(|directory| components(directory).len())?;
        let depth = components(outermost).len();
        (depth > 0).then(|| (outermost.as_str(), components(path)[depth..].join("/")))
    }
}

/// Adds an error for each setting that makes a container privileged or equivalent.
fn unprivileged(context: &SecurityContext, at: &Path<'_>, findings: &mut Findings) {
    if context.privileged == Some(true) {
        let message = "Forbidden: the Cluster object sets podSecurity.forbidPrivileged";
        findings.add(&rules::FORBIDDEN_BY_CLUSTER, &at.field("privileged"), message);
    }
    let added = context.capabilities.as_ref().map_or(&[][..], |capabilities| &capabilities.add);
    let capabilities = at.field("capabilities");
    let list = capabilities.field("add");
    for (index, name) in added.iter().enumerate() {
        if PRIVILEGED_EQUIVALENTS.contains(&name.as_str()) {
            let message = format!(
                "Forbidden: `{name}` is equivalent to privileged, and the Cluster object sets podSecurity.forbidPrivileged"
            );
            findings.add(&rules::FORBIDDEN_BY_CLUSTER, &list.index(index), message);
        }
    }
}

/// True if one path is at, below or above the other.
fn overlap(path: &str, forbidden: &str) -> bool {
    is_within(path, forbidden) || is_within(forbidden, path)
}

/// True if a path is the directory or below it, compared part by part as written. Symbolic links are not resolved:
/// the agent mounts their target on the node, which is not known here.
fn is_within(path: &str, directory: &str) -> bool {
    components(path).starts_with(&components(directory))
}

/// Splits an absolute path into parts, without empty parts and `.`, and with `..` resolved.
fn components(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            // The parent of the root is the root.
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::pod::{Capabilities, Container, HostPathVolume, Volume};

    #[test]
    fn a_forbidden_directory_is_reached_from_below_and_from_above_but_not_from_beside() {
        for path in ["/etc", "/etc/", "/etc/ssl", "//etc/./ssl", "/"] {
            assert!(overlap(path, "/etc"), "{path}");
        }
        for path in ["/etcetera", "/srv", "/srv/etc"] {
            assert!(!overlap(path, "/etc"), "{path}");
        }
        assert!(overlap("/anything", "/"));
    }

    #[test]
    fn only_what_lies_below_an_allowed_directory_is_allowed() {
        let reported = |path: &str, security: &PodSecurity| {
            let host_path = Some(HostPathVolume { path: path.to_owned(), kind: None });
            let volumes = vec![Volume { host_path, ..Volume::default() }];
            let mut findings = Findings::default();
            security.check(
                &PodSpec { volumes, ..PodSpec::default() },
                &Path::ROOT.field("spec"),
                &mut findings,
            );
            findings.into_vec().into_iter().map(|finding| finding.message).collect::<Vec<_>>()
        };
        let list = |list: &[&str]| list.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        let security = PodSecurity {
            allow_host_paths: list(&["/srv/", "/var/lib/app"]),
            forbid_host_paths: list(&["/srv/private"]),
            ..PodSecurity::default()
        };
        for path in ["/var/lib/app", "/srv/a", "//srv/./a", "/var/lib/app/x", "/etc/../srv/a", "/srv/a/../b"]
        {
            assert_eq!(reported(path, &security), [""; 0], "{path}");
        }
        for path in ["/", "/srvx", "/var/lib", "/var/lib/apple", "/srv/../etc", "/srv/a/../../etc", "/etc"] {
            assert!(
                reported(path, &security).iter().any(|reported| reported.contains("allowHostPaths")),
                "{path}"
            );
        }
        let [reported] = &reported("/srv/private/key", &security)[..] else {
            panic!("the deny list holds, too")
        };
        assert!(
            reported.contains("spec.volumes[0].hostPath.path") && reported.contains("forbidHostPaths"),
            "{reported}"
        );
    }

    #[test]
    fn a_path_is_opened_from_the_outermost_directory_that_allows_it() {
        let of = |allowed: &[&str], path: &str| {
            let allow_host_paths = allowed.iter().map(|path| (*path).to_owned()).collect();
            let security = PodSecurity { allow_host_paths, ..PodSecurity::default() };
            security.allowed_directory(path).map(|(directory, rest)| format!("{directory} {rest}"))
        };
        assert_eq!(of(&["/srv/a", "/srv/"], "//srv/./a/../b/c").as_deref(), Some("/srv/ b/c"));
        assert_eq!(of(&["/data", "/srv/a"], "/srv/a").as_deref(), Some("/srv/a "));
        for allowed in [&["/srv"][..], &["/"], &["/srv", "/"], &[]] {
            assert_eq!(of(allowed, "/srvx/a"), None, "{allowed:?}");
        }
    }

    // Seen red with an `unprivileged` that looks at no capability.
    #[test]
    fn each_forbidden_thing_is_reported_at_its_place() {
        let add = ["NET_ADMIN", "SYS_PTRACE", "ALL"].map(str::to_owned).to_vec();
        let capabilities = Some(Capabilities { add, ..Capabilities::default() });
        let privileged =
            SecurityContext { privileged: Some(true), capabilities, ..SecurityContext::default() };
        let privileged = Box::new(privileged);
        let pod = PodSpec {
            host_network: true,
            containers: vec![Container { security_context: Some(privileged), ..Container::default() }],
            volumes: vec![Volume {
                host_path: Some(HostPathVolume { path: "/etc/ssl".to_owned(), kind: None }),
                ..Volume::default()
            }],
            ..PodSpec::default()
        };
        let reported = |security: &PodSecurity| -> Vec<String> {
            let mut findings = Findings::default();
            security.check(&pod, &Path::ROOT.field("spec"), &mut findings);
            let message = |message: String| message.split(": Forbidden").next().unwrap().to_owned();
            findings.into_vec().into_iter().map(|finding| message(finding.message)).collect()
        };
        assert_eq!(reported(&PodSecurity::default()), Vec::<String>::new());
        let strict = PodSecurity {
            forbid_privileged: true,
            forbid_host_network: true,
            forbid_host_paths: vec!["/etc".to_owned()],
            allow_host_paths: Vec::new(),
        };
        assert_eq!(
            reported(&strict),
            [
                "spec.hostNetwork",
                "spec.volumes[0].hostPath.path",
                "spec.containers[0].securityContext.privileged",
                "spec.containers[0].securityContext.capabilities.add[1]",
                "spec.containers[0].securityContext.capabilities.add[2]"
            ]
        );
    }
}
