use serde_json::{Value as Json, json};

use super::*;
use crate::kinds::pod::{HostPathVolume, Volume};
use PodSecurityLevel::{Baseline, Restricted};

/// A pod that meets the level `restricted`.
fn strict_pod() -> Json {
    let context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    json!({
        "securityContext": {"runAsNonRoot": true},
        "initContainers": [{"name": "i", "image": "i", "securityContext": context}],
        "containers": [{"name": "c", "image": "i", "securityContext": context}],
    })
}

/// Sets the value at a path such as `containers.0.securityContext.privileged`.
fn set(pod: &mut Json, path: &str, value: Json) {
    let at = path.split('.').fold(pod, |at, step| match step.parse::<usize>() {
        Ok(index) => &mut at[index],
        Err(_) => &mut at[step],
    });
    *at = value;
}

/// Returns what `security` forbids of a pod in `namespace`, without the paths.
fn forbidden(security: &PodSecurity, namespace: &str, pod: &PodSpec) -> Vec<String> {
    let findings = security.check("the Cluster object", namespace, pod, &Path::ROOT.field("spec"));
    let message = |message: String| message.split(": Forbidden").next().unwrap().to_owned();
    findings.into_iter().map(|finding| message(finding.message)).collect()
}

fn at_level(level: PodSecurityLevel) -> PodSecurity {
    PodSecurity { level, ..PodSecurity::default() }
}

/// Control, field, value, and the lowest level that refuses it.
type Row = (&'static str, &'static str, Json, Option<PodSecurityLevel>);

/// Controls of the Pod Security Standards as of Kubernetes 1.34, "Baseline". Their controls of other fields
/// (procMount, sysctls, AppArmor, SELinux, Windows) are met by every pod: Minik8s has none of these.
fn baseline_table() -> Vec<Row> {
    let http = |host: &str| json!({"httpGet": {"port": 80, "host": host}});
    let tcp = |host: &str| json!({"tcpSocket": {"port": 80, "host": host}});
    let port = |port: Json| json!([{"containerPort": 80, "hostPort": port}]);
    vec![
        ("Host Namespaces", "hostNetwork", json!(true), Some(Baseline)),
        ("Host Namespaces", "hostNetwork", json!(false), None),
        ("Host Namespaces", "hostPID", json!(true), Some(Baseline)),
        ("Host Namespaces", "hostIPC", json!(true), Some(Baseline)),
        ("Host Namespaces", "hostPID", json!(false), None),
        ("Host Namespaces", "hostIPC", json!(false), None),
        ("Privileged Containers", "containers.0.securityContext.privileged", json!(true), Some(Baseline)),
        ("Privileged Containers", "initContainers.0.securityContext.privileged", json!(true), Some(Baseline)),
        ("Privileged Containers", "containers.0.securityContext.privileged", json!(false), None),
        ("HostPath Volumes", "volumes", json!([{"name": "v", "hostPath": {"path": "/srv"}}]), Some(Baseline)),
        // In Kubernetes 0 is no port of the node, here it is any free one.
        ("Host Ports", "containers.0.ports", port(json!(8080)), Some(Baseline)),
        ("Host Ports", "containers.0.ports", port(json!(0)), Some(Baseline)),
        ("Host Ports", "containers.0.ports", port(json!(null)), None),
        ("Host Probes", "containers.0.livenessProbe", http("127.0.0.1"), Some(Baseline)),
        ("Host Probes", "containers.0.readinessProbe", http("169.254.169.254"), Some(Baseline)),
        ("Host Probes", "containers.0.startupProbe", tcp("localhost"), Some(Baseline)),
        ("Host Probes", "initContainers.0.livenessProbe", tcp("10.0.0.1"), Some(Baseline)),
        ("Host Probes", "containers.0.livenessProbe", http(""), None),
        ("Host Probes", "containers.0.readinessProbe", json!({"tcpSocket": {"port": 80}}), None),
        (
            "Lifecycle Hooks",
            "containers.0.lifecycle",
            json!({"postStart": http("127.0.0.1")}),
            Some(Baseline),
        ),
        ("Lifecycle Hooks", "containers.0.lifecycle", json!({"preStop": http("127.0.0.1")}), Some(Baseline)),
        ("Lifecycle Hooks", "containers.0.lifecycle", json!({"preStop": {"httpGet": {"port": 80}}}), None),
    ]
}

/// Controls of "Restricted".
fn restricted_table() -> Vec<Row> {
    let profile = || json!({"type": "RuntimeDefault"});
    vec![
        ("Volume Types", "volumes", json!([{"name": "v", "emptyDir": {}}]), None),
        ("Volume Types", "volumes", json!([{"name": "v", "configMap": {"name": "a"}}]), None),
        ("Volume Types", "volumes", json!([{"name": "v", "secret": {"secretName": "a"}}]), None),
        ("Volume Types", "volumes", json!([{"name": "v", "repo": {"path": "a"}}]), None),
        ("Volume Types", "volumes", json!([{"name": "v", "downwardAPI": {}}]), None),
        ("Volume Types", "volumes", json!([{"name": "v", "projected": {"sources": []}}]), None),
        (
            "Privilege Escalation",
            "containers.0.securityContext.allowPrivilegeEscalation",
            json!(true),
            Some(Restricted),
        ),
        (
            "Privilege Escalation",
            "initContainers.0.securityContext.allowPrivilegeEscalation",
            json!(null),
            Some(Restricted),
        ),
        ("Running as Non-root", "securityContext.runAsNonRoot", json!(null), Some(Restricted)),
        ("Running as Non-root", "securityContext.runAsNonRoot", json!(false), Some(Restricted)),
        ("Running as Non-root", "containers.0.securityContext.runAsNonRoot", json!(false), Some(Restricted)),
        ("Running as Non-root", "containers.0.securityContext.runAsNonRoot", json!(true), None),
        ("Running as Non-root user", "securityContext.runAsUser", json!(0), Some(Restricted)),
        ("Running as Non-root user", "securityContext.runAsUser", json!(1000), None),
        ("Running as Non-root user", "containers.0.securityContext.runAsUser", json!(0), Some(Restricted)),
        ("Running as Non-root user", "initContainers.0.securityContext.runAsUser", json!(1000), None),
        ("Seccomp", "containers.0.securityContext.seccompProfile", json!(null), Some(Restricted)),
        ("Seccomp", "securityContext.seccompProfile", profile(), None),
        ("Capabilities", "containers.0.securityContext.capabilities.drop", json!([]), Some(Restricted)),
        ("Capabilities", "initContainers.0.securityContext.capabilities", json!(null), Some(Restricted)),
        ("Capabilities", "containers.0.securityContext", json!(null), Some(Restricted)),
    ]
}

/// Would fail with a `PodCheck` that stops after the capabilities.
#[test]
fn each_control_of_the_standards_is_refused_from_its_level_on() {
    for (control, path, value, lowest) in baseline_table().into_iter().chain(restricted_table()) {
        let mut pod = strict_pod();
        set(&mut pod, path, value.clone());
        let pod: PodSpec = serde_json::from_value(pod).unwrap();
        for level in [PodSecurityLevel::Privileged, Baseline, Restricted] {
            let found = forbidden(&at_level(level), "default", &pod);
            let is_refused = lowest.is_some_and(|lowest| lowest <= level);
            assert_eq!(!found.is_empty(), is_refused, "{control}: {path}: {value} at {level:?}: {found:?}");
        }
    }
}

/// The standard's own lists. `NET_RAW`, which Docker gives by default, is on neither.
#[test]
fn only_the_capabilities_of_the_standards_may_be_added() {
    let baseline = [
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
    let forbid_privileged = PodSecurity { forbid_privileged: true, ..PodSecurity::default() };
    for name in crate::kinds::pod::CAPABILITIES {
        let mut pod = strict_pod();
        set(&mut pod, "containers.0.securityContext.capabilities.add", json!([name]));
        let pod: PodSpec = serde_json::from_value(pod).unwrap();
        let expected: &[&str] = match baseline.contains(&name) {
            true => &[],
            false => &["spec.containers[0].securityContext.capabilities.add[0]"],
        };
        assert_eq!(forbidden(&at_level(PodSecurityLevel::Privileged), "default", &pod), [""; 0], "{name}");
        assert_eq!(forbidden(&at_level(Baseline), "default", &pod), expected, "{name}");
        assert_eq!(forbidden(&forbid_privileged, "default", &pod), expected, "{name}");
        let is_allowed = forbidden(&at_level(Restricted), "default", &pod).is_empty();
        assert_eq!(is_allowed, name == "NET_BIND_SERVICE", "{name}");
    }
}

/// `Unconfined` is refused under `baseline`, and Minik8s gives it to nobody.
#[test]
fn no_other_seccomp_profile_can_be_written() {
    for kind in ["Unconfined", "Localhost"] {
        let profile = serde_json::from_value::<crate::kinds::pod::SeccompProfile>(json!({"type": kind}));
        assert!(profile.is_err(), "{kind}");
    }
}

/// Would fail without `hosts`: the node's loopback is asked though its network is forbidden.
#[test]
fn a_forbidden_host_network_forbids_the_hosts_of_probes_and_hooks() {
    let action = json!({"httpGet": {"port": 2379, "host": "127.0.0.1"}});
    let pod = json!({"containers": [
        {"name": "c", "image": "i", "livenessProbe": action, "lifecycle": {"preStop": action}},
    ]});
    let pod: PodSpec = serde_json::from_value(pod).unwrap();
    let security = PodSecurity { forbid_host_network: true, ..PodSecurity::default() };
    let container = "spec.containers[0]";
    assert_eq!(
        forbidden(&security, "default", &pod),
        [
            format!("{container}.livenessProbe.httpGet.host"),
            format!("{container}.lifecycle.preStop.httpGet.host")
        ]
    );
}

/// Would fail with fields that only the level forbids: a Cluster object from before they were there would allow them.
#[test]
fn the_nodes_processes_are_forbidden_with_its_network_and_with_privilege() {
    let pod = PodSpec { host_pid: true, host_ipc: true, ..PodSpec::default() };
    let network = PodSecurity { forbid_host_network: true, ..PodSecurity::default() };
    let privileged = PodSecurity { forbid_privileged: true, ..PodSecurity::default() };
    for security in [network, privileged] {
        assert_eq!(forbidden(&security, "default", &pod), ["spec.hostPID", "spec.hostIPC"]);
    }
    assert_eq!(forbidden(&PodSecurity::default(), "default", &pod), [""; 0]);
}

/// Would fail with an exemption from everything.
#[test]
fn the_level_spares_exempt_namespaces_and_the_other_fields_do_not() {
    let pod = PodSpec { host_network: true, ..PodSpec::default() };
    let exempt_namespaces = vec!["kube-tools".to_owned()];
    let level = PodSecurity { exempt_namespaces, ..at_level(Restricted) };
    assert_eq!(forbidden(&level, "kube-tools", &pod), [""; 0]);
    assert_eq!(forbidden(&level, "default", &pod), ["spec.hostNetwork"]);
    let both = PodSecurity { forbid_host_network: true, ..level };
    assert_eq!(forbidden(&both, "kube-tools", &pod), ["spec.hostNetwork"]);
}

#[test]
fn a_message_names_the_setting_and_whose_it_is() {
    let pod = serde_json::from_value(json!({"containers": [{"name": "c", "image": "i"}]})).unwrap();
    let found = &at_level(Restricted).check("this node", "default", &pod, &Path::ROOT.field("spec"))[0];
    assert_eq!(found.message, "spec.containers[0]: Forbidden: this node sets podSecurity.level: restricted");
    assert_eq!(found.help, "set `securityContext.allowPrivilegeEscalation: false`");
}

#[test]
fn a_forbidden_directory_is_reached_from_below_and_from_above_but_not_from_beside() {
    for path in ["/etc", "/etc/", "/etc/ssl", "//etc/./ssl", "/"] {
        assert!(host_paths_overlap(path, "/etc"), "{path}");
    }
    for path in ["/etcetera", "/srv", "/srv/etc"] {
        assert!(!host_paths_overlap(path, "/etc"), "{path}");
    }
    assert!(host_paths_overlap("/anything", "/"));
}

/// Would fail with paths compared as written: `/var/run/docker.sock` passes where `/run` is forbidden.
#[test]
fn a_directory_is_forbidden_and_allowed_by_each_of_its_usual_names() {
    for (forbidden, path) in [
        ("/run", "/var/run/docker.sock"),
        ("/run/docker.sock", "/var/run"),
        ("/var/run", "/run/docker.sock"),
        ("/var", "/var/run/docker.sock"),
        ("/run", "/var/lock/x"),
        ("/etc", "/var/run/../etc"),
        ("/usr/bin", "/bin"),
        ("/lib", "/usr/lib/modules"),
        ("/lib64", "/usr"),
        ("/sbin/init", "/usr/sbin"),
        ("/etc", "/proc/1/root/etc"),
        ("/etc", "/proc/self/cwd"),
        // It shows all of those.
        ("/etc", "/proc"),
        ("/etc", "//proc/./"),
    ] {
        assert!(host_paths_overlap(path, forbidden), "{path} where {forbidden} is forbidden");
    }
    for (forbidden, path) in [
        ("/run", "/var/runner"),
        ("/bin", "/usr/binary"),
        ("/lib", "/var/lib"),
        ("/etc", "/proc/sys"),
        ("/etc", "/sys"),
    ] {
        assert!(!host_paths_overlap(path, forbidden), "{path} where {forbidden} is forbidden");
    }
    for (allowed, path) in [
        ("/run/app", "/var/run/app/x"),
        ("/var/run/app", "/run/app"),
        ("/usr", "/lib/x"),
        ("/", "/proc/1/root"),
        ("/proc", "/proc"),
    ] {
        assert!(is_within(path, allowed), "{path} where {allowed} is allowed");
    }
    // Only by its name below `/var`.
    for (allowed, path) in
        [("/var", "/var/run/docker.sock"), ("/proc", "/proc/1/root"), ("/lib", "/usr/libexec")]
    {
        assert!(!is_within(path, allowed), "{path} where {allowed} is allowed");
    }
}

#[test]
fn only_what_lies_below_an_allowed_directory_is_allowed() {
    let reported = |path: &str, security: &PodSecurity| {
        let host_path = Some(HostPathVolume { path: path.to_owned(), kind: None });
        let volumes = vec![Volume { host_path, ..Volume::default() }];
        let pod = PodSpec { volumes, ..PodSpec::default() };
        let findings = security.check("the Cluster object", "default", &pod, &Path::ROOT.field("spec"));
        findings.into_iter().map(|finding| finding.message).collect::<Vec<_>>()
    };
    let list = |list: &[&str]| list.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let security = PodSecurity {
        allow_host_paths: list(&["/srv/", "/var/lib/app"]),
        forbid_host_paths: list(&["/srv/private"]),
        ..PodSecurity::default()
    };
    for path in ["/var/lib/app", "/srv/a", "//srv/./a", "/var/lib/app/x", "/etc/../srv/a", "/srv/a/../b"] {
        assert_eq!(reported(path, &security), [""; 0], "{path}");
    }
    for path in ["/", "/srvx", "/var/lib", "/var/lib/apple", "/srv/../etc", "/srv/a/../../etc", "/etc"] {
        assert!(
            reported(path, &security).iter().any(|reported| reported.contains("allowHostPaths")),
            "{path}"
        );
    }
    let [reported] = &reported("/srv/private/key", &security)[..] else { panic!("the deny list holds, too") };
    assert!(
        reported.contains("spec.volumes[0].hostPath.path") && reported.contains("forbidHostPaths"),
        "{reported}"
    );
}

// Would fail with a `container` that looks at no capability.
#[test]
fn each_forbidden_thing_is_reported_at_its_place() {
    let pod = json!({
        "hostNetwork": true,
        "containers": [{"name": "c", "image": "i", "securityContext": {
            "privileged": true, "capabilities": {"add": ["CHOWN", "SYS_PTRACE", "ALL"]},
        }}],
        "volumes": [{"name": "v", "hostPath": {"path": "/etc/ssl"}}],
    });
    let pod: PodSpec = serde_json::from_value(pod).unwrap();
    assert_eq!(forbidden(&PodSecurity::default(), "default", &pod), [""; 0]);
    let strict = PodSecurity {
        forbid_privileged: true,
        forbid_host_network: true,
        forbid_host_paths: vec!["/etc".to_owned()],
        ..PodSecurity::default()
    };
    assert_eq!(
        forbidden(&strict, "default", &pod),
        [
            "spec.hostNetwork",
            "spec.volumes[0].hostPath.path",
            "spec.containers[0].securityContext.privileged",
            "spec.containers[0].securityContext.capabilities.add[1]",
            "spec.containers[0].securityContext.capabilities.add[2]"
        ]
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
