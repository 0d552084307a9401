//! The inside of a container matches its manifest: limits, user and groups, capabilities, file systems, mounts,
//! variables, names, namespaces.
//!
//! In `agent/src/converge/pods/container/render.rs` the first story fails without `new.groups`, the second with
//! `read_only: false` in `mounts`. The third fails when `host_name` in `sandbox/render.rs` ignores `hostname`, and
//! without `NO_IPV6` in `agent/src/worlds/docker/body.rs`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use harness::{
    Change, Cluster, ClusterOptions, Context, IMAGE, PodView, Result, ensure, eventually, netns_of, secs,
};
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;

/// Runs `script` in a container and compares its whole output.
fn says(cluster: &Cluster, pod: &PodView, container: &str, script: &str, expected: &str) -> Result<()> {
    let said = cluster.node().docker.exec(pod.container(container)?, &["sh", "-c", script])?;
    ensure!(said.trim() == expected, "{container}: `{script}` says {said:?}, not {expected:?}");
    Ok(())
}

fn pushed(cluster: &Cluster, name: &str, text: &str) -> Result<()> {
    let text = text.replace("IMAGE", IMAGE).replace("HOST", &cluster.dir("host").to_string_lossy());
    cluster.repo.push(&[Change::write(format!("{name}.yaml"), text)], name).map(|_| ())
}

const LIMITS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: limits}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: both
    image: IMAGE
    command: [sleep, "100000"]
    resources: {requests: {cpu: 250m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}
  - name: none
    image: IMAGE
    command: [sleep, "100000"]
"#;

const SECURE: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: secure}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1000, runAsGroup: 1001, supplementalGroups: [2001, 2002], fsGroup: 3001}
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  containers:
  - name: plain
    image: IMAGE
    command: [sleep, "100000"]
    volumeMounts: [{name: disk, mountPath: /disk}, {name: memory, mountPath: /memory}]
  - name: closed
    image: IMAGE
    command: [sleep, "100000"]
    securityContext:
      runAsUser: 1500
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
    volumeMounts: [{name: memory, mountPath: /tmp}]
  - name: picked
    image: IMAGE
    command: [sleep, "100000"]
    securityContext: {runAsUser: 0, capabilities: {drop: [ALL], add: [NET_ADMIN, CHOWN]}}
  - name: added
    image: IMAGE
    command: [sleep, "100000"]
    securityContext: {runAsUser: 0, capabilities: {add: [SYS_TIME], drop: [MKNOD]}}
  - name: default
    image: IMAGE
    command: [sleep, "100000"]
    securityContext: {runAsUser: 0}
"#;

/// Capabilities as bit numbers.
const CHOWN: u64 = 1;
const NET_RAW: u64 = 1 << 13;
const NET_ADMIN: u64 = 1 << 12;
const SYS_TIME: u64 = 1 << 25;
const MKNOD: u64 = 1 << 27;

#[test]
fn limits_user_groups_and_capabilities_are_what_the_manifest_says() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        pushed(cluster, "limits", LIMITS)?;
        pushed(cluster, "secure", SECURE)?;
        limits(cluster)?;
        let pod = cluster.running("secure", &["added", "closed", "default", "picked", "plain"])?;
        users(cluster, &pod)?;
        capabilities(cluster, &pod)
    })
}

fn limits(cluster: &Cluster) -> Result<()> {
    let pod = cluster.running("limits", &["both", "none"])?;
    // cgroup v2 has other files, and a weight of 1 to 10,000 for shares of 2 to 262,144.
    let v1 = fs::exists("/sys/fs/cgroup/cpu/cpu.shares")?;
    let cgroup = "/sys/fs/cgroup";
    if v1 {
        let script = format!(
            "cat {cgroup}/cpu/cpu.cfs_quota_us {cgroup}/cpu/cpu.cfs_period_us {cgroup}/cpu/cpu.shares \
             {cgroup}/memory/memory.limit_in_bytes {cgroup}/memory/memory.memsw.limit_in_bytes 2>/dev/null | xargs"
        );
        let said = cluster.node().docker.exec(pod.container("both")?, &["sh", "-c", &script])?;
        let limit = 64 << 20;
        // Where the kernel counts no swap, the last file is missing.
        let all = format!("50000 100000 256 {limit}");
        ensure!(said.trim() == all || said.trim() == format!("{all} {limit}"), "{said}");
        says(
            cluster,
            &pod,
            "none",
            &format!("cat {cgroup}/cpu/cpu.cfs_quota_us {cgroup}/cpu/cpu.shares | xargs"),
            "-1 2",
        )
    } else {
        let script = format!("cat {cgroup}/cpu.max {cgroup}/memory.max | xargs");
        says(cluster, &pod, "both", &script, &format!("50000 100000 {}", 64 << 20))?;
        says(cluster, &pod, "none", &script, "max 100000 max")
    }
}

fn users(cluster: &Cluster, pod: &PodView) -> Result<()> {
    says(
        cluster,
        pod,
        "plain",
        "id -u; id -g; id -G | tr ' ' '\\n' | sort -n | xargs",
        "1000\n1001\n1001 2001 2002 3001",
    )?;
    says(cluster, pod, "closed", "id -u; id -g", "1500\n1001")?;
    // The group owns the volumes, can write there, and is inherited by new files.
    for volume in ["/disk", "/memory"] {
        says(cluster, pod, "plain", &format!("stat -c '%g %a' {volume}"), "3001 2777")?;
        let made = format!("touch {volume}/new && stat -c '%u %g' {volume}/new");
        says(cluster, pod, "plain", &made, "1000 3001")?;
    }
    let full = "head -c 2000000 /dev/zero 2>/dev/null > /memory/big || echo full; rm -f /memory/big";
    says(cluster, pod, "plain", full, "full")?;
    says(cluster, pod, "closed", "touch /x 2>/dev/null || echo refused", "refused")?;
    says(cluster, pod, "closed", "echo kept > /tmp/x && cat /tmp/x", "kept")
}

fn capabilities(cluster: &Cluster, pod: &PodView) -> Result<()> {
    let effective = |container: &str| -> Result<u64> {
        // Read from its first process: an exec has Docker's values.
        let pid = pod.container(container)?.pid;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).context("no CapEff")?;
        Ok(u64::from_str_radix(line.trim(), 16)?)
    };
    let default = effective("default")?;
    ensure!(default & MKNOD != 0 && default & (SYS_TIME | NET_RAW) == 0, "{default:x}");
    ensure!(effective("closed")? == 0 && effective("plain")? == 0);
    ensure!(effective("picked")? == NET_ADMIN | CHOWN, "{:x}", effective("picked")?);
    ensure!(effective("added")? == (default | SYS_TIME) & !MKNOD, "{:x}", effective("added")?);
    let flag = "grep NoNewPrivs /proc/1/status | tr -d '\\t'";
    says(cluster, pod, "closed", flag, "NoNewPrivs:1")?;
    says(cluster, pod, "plain", flag, "NoNewPrivs:0")?;
    says(cluster, pod, "picked", "grep CapEff /proc/self/status | tr -d '\\t'", "CapEff:0000000000001001")
}

const MOUNTS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: mounts}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: there, hostPath: {path: HOST/there, type: Directory}}
  - {name: made, hostPath: {path: HOST/made, type: DirectoryOrCreate}}
  - {name: file, hostPath: {path: HOST/file, type: File}}
  - {name: newfile, hostPath: {path: HOST/newfile, type: FileOrCreate}}
  - {name: any, hostPath: {path: HOST/any}}
  - {name: disk, emptyDir: {}}
  containers:
  - name: main
    image: IMAGE
    command: [sleep, "100000"]
    volumeMounts:
    - {name: there, mountPath: /there, readOnly: true}
    - {name: there, mountPath: /inner, subPath: inner}
    - {name: there, mountPath: /note, subPath: inner/note.txt}
    - {name: made, mountPath: /made}
    - {name: file, mountPath: /file}
    - {name: newfile, mountPath: /newfile}
    - {name: any, mountPath: /any}
    - {name: disk, mountPath: /disk}
  - name: other
    image: IMAGE
    command: [sleep, "100000"]
    volumeMounts:
    - {name: disk, mountPath: /part, subPath: a/b}
    - {name: disk, mountPath: /whole, readOnly: true}
"#;

const REFUSED: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: absent}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: absent, hostPath: {path: HOST/absent, type: Directory}}]
  containers:
  - {name: main, image: IMAGE, command: [sleep, "100000"], volumeMounts: [{name: absent, mountPath: /absent}]}
---
apiVersion: v1
kind: Pod
metadata: {name: nonroot}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true}
  containers:
  - {name: main, image: IMAGE, command: [sleep, "100000"]}
"#;

#[test]
fn mounts_are_what_the_manifest_says_and_what_it_cannot_have_is_refused() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let host = cluster.dir("host");
        fs::create_dir_all(host.join("there/inner"))?;
        fs::write(host.join("there/inner/note.txt"), "a note\n")?;
        fs::write(host.join("file"), "a file\n")?;
        pushed(cluster, "mounts", MOUNTS)?;
        pushed(cluster, "refused", REFUSED)?;
        let pod = cluster.running("mounts", &["main", "other"])?;
        let main = |script: &str, expected: &str| says(cluster, &pod, "main", script, expected);
        main("cat /there/inner/note.txt /inner/note.txt /note /file | xargs", "a note a note a note a file")?;
        main("touch /there/x 2>/dev/null || echo refused", "refused")?;
        main(
            "echo one > /inner/one; echo two > /made/two; echo three > /newfile; echo four > /any/four",
            "",
        )?;
        for (file, text) in
            [("there/inner/one", "one"), ("made/two", "two"), ("newfile", "three"), ("any/four", "four")]
        {
            let found = fs::read_to_string(host.join(file)).with_context(|| file.to_owned())?;
            ensure!(found.trim() == text, "{file}: {found:?}");
        }
        ensure!(fs::metadata(host.join("any"))?.permissions().mode() & 0o777 == 0o755);
        says(cluster, &pod, "other", "echo part > /part/x; cat /whole/a/b/x", "part")?;
        main("cat /disk/a/b/x", "part")?;
        says(cluster, &pod, "other", "touch /whole/y 2>/dev/null || echo refused", "refused")?;
        refused(cluster, "absent", "an existing directory")?;
        refused(cluster, "nonroot", "runAsNonRoot")
    })
}

/// The pod says why, and none of its containers ever ran.
fn refused(cluster: &Cluster, pod: &str, why: &str) -> Result<()> {
    let key = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", pod));
    eventually(&format!("{pod} says why it does not run"), secs(30), || {
        let status: PodStatus = cluster.etcd.value(&key)?;
        ensure!(format!("{status:?}").contains(why), "{status:?}");
        Ok(())
    })?;
    let ran =
        cluster.containers()?.into_iter().filter(|c| c.label("pod") == pod && c.label("container") == "main");
    let ran: Vec<_> = ran.filter(|c| !c.started_at.starts_with("0001")).map(|c| c.name).collect();
    ensure!(ran.is_empty(), "{ran:?}");
    Ok(())
}

const NAMES: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: names, labels: {app: letters}, annotations: {note: "a b"}}
spec:
  terminationGracePeriodSeconds: 0
  hostname: other-name
  shareProcessNamespace: true
  containers:
  - name: main
    image: IMAGE
    workingDir: /www
    command: [sh, -c, "echo $0 $1 > /tmp/args; pwd >> /tmp/args; exec sleep 100000"]
    args: ["$(GREETING)-1", "$$(GREETING) $(UNKNOWN)"]
    tty: true
    stdin: true
    env:
    - {name: WHO, value: you}
    - {name: GREETING, value: "hello $(WHO)"}
    - {name: F1, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: F2, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: F3, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: F4, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: F5, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['note']"}}}
    - {name: F6, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: F7, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: F8, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
  - name: other
    image: IMAGE
    command: [sleep, "123456"]
---
apiVersion: v1
kind: Pod
metadata: {name: hosted}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: IMAGE, command: [sleep, "100000"]}
"#;

#[test]
fn names_variables_and_namespaces_are_what_the_manifest_says() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        pushed(cluster, "names", NAMES)?;
        let pod = cluster.running("names", &["main", "other"])?;
        let uid = pod.pause.label("uid");
        let key = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", "names"));
        let status: PodStatus = eventually("it has a status", secs(20), || cluster.etcd.value(&key))?;
        let host_ip = status.host_ip.context("no hostIP")?;
        let fields =
            ["names", "default", uid, "letters", "a b", &cluster.node().name, pod.address()?, &host_ip];
        let script = "for n in 1 2 3 4 5 6 7 8; do eval echo \"\\$F$n\"; done";
        says(cluster, &pod, "main", script, &fields.join("\n"))?;
        says(cluster, &pod, "main", "cat /tmp/args", "hello you-1 $(GREETING) $(UNKNOWN)\n/www")?;
        says(cluster, &pod, "main", "hostname", "other-name")?;
        says(cluster, &pod, "other", "hostname; grep -c other-name /etc/hosts", "other-name\n1")?;
        // Packet rules are for IPv4: only the loopback has IPv6.
        if fs::exists("/proc/net/if_inet6")? {
            says(cluster, &pod, "main", "awk '{print $6}' /proc/net/if_inet6", "lo")?;
        }

        // Both see each other's processes, and the first of all is the pause container's.
        let processes = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '";
        let said = cluster.node().docker.exec(pod.container("main")?, &["sh", "-c", processes])?;
        ensure!(said.contains("sleep 123456") && said.contains("sleep 100000"), "{said}");
        let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid"));
        ensure!(of(pod.container("main")?.pid)? == of(pod.pause.pid)?);

        let docker = &cluster.node().docker;
        for (container, expected) in [("main", "true true"), ("other", "false false")] {
            let format = "{{.Config.Tty}} {{.Config.OpenStdin}}";
            let said = docker.run(&["inspect", "-f", format, &pod.container(container)?.id])?;
            ensure!(said.trim() == expected, "{container}: {said}");
        }
        let hosted = cluster.running("hosted", &["main"])?;
        ensure!(netns_of(hosted.container("main")?.pid)? == netns_of(std::process::id())?);
        let machine = fs::read_to_string("/proc/sys/kernel/hostname")?;
        says(cluster, &hosted, "main", "hostname", machine.trim())
    })
}
