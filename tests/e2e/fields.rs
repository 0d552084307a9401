//! Fields that real manifests have, on a real node: sidecars from their start to their end, postStart hooks, names,
//! ports and processes of the node, files and variables of the pod itself, capabilities.

use std::fs;

use harness::{
    Change, Cluster, ClusterOptions, ContainerView, Context, Daemon, Happened, IMAGE, PodView, Result,
    Timeline, Where, ensure, eventually, run, secs,
};
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;

use crate::services::{programmed, service};

/// `migrate` succeeds only if the proxy serves already. The end of `main` takes so long that a proxy which is stopped
/// at the same time is told before it.
const SHOP: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: shop, labels: {app: shop}}
spec:
  terminationGracePeriodSeconds: 20
  initContainers:
  - name: proxy
    image: IMAGE
    restartPolicy: Always
    command: [sh, -c, "trap 'exit 0' TERM; echo proxied > /www/index.html; httpd -f -p 8081 -h /www & wait"]
    ports: [{name: admin, containerPort: 8081}]
    startupProbe: {tcpSocket: {port: 8081}, periodSeconds: 1, timeoutSeconds: 10}
  - name: migrate
    image: IMAGE
    command: [sh, -c, "wget -q -O - http://127.0.0.1:8081/ | grep -x proxied"]
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, "trap 'sleep 1; exit 0' TERM; while :; do sleep 1000 & wait $!; done"]
"#;

const JOB: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: job}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 20
  initContainers:
  - name: proxy
    image: IMAGE
    restartPolicy: Always
    command: [sh, -c, "trap 'exit 0' TERM; httpd -f -p 8081 -h /www & wait"]
    startupProbe: {tcpSocket: {port: 8081}, periodSeconds: 1, timeoutSeconds: 10}
  containers:
  - {name: main, image: IMAGE, command: ["true"]}
"#;

const HOOKS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: hooks}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: shared, emptyDir: {}}]
  containers:
  - name: good
    image: IMAGE
    command: [sleep, "100000"]
    volumeMounts: [{name: shared, mountPath: /shared}]
    lifecycle: {postStart: {exec: {command: [sh, -c, "echo began > /shared/hook"]}}}
    readinessProbe: {exec: {command: [test, -e, /shared/hook]}, periodSeconds: 1, timeoutSeconds: 10}
  - name: bad
    image: IMAGE
    command: [sleep, "100000"]
    lifecycle: {postStart: {exec: {command: [sh, -c, "exit 1"]}}}
"#;

/// Pod with one port number at two addresses of the node, each for another container.
const NODE: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: node}
spec:
  terminationGracePeriodSeconds: 0
  hostPID: true
  hostIPC: true
  volumes: [{name: later, hostPath: {path: LATER, type: Directory}}]
  hostAliases: [{ip: 10.9.8.7, hostnames: [old.example, older.example]}]
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, "echo loopback > /www/index.html; exec httpd -f -p 8080 -h /www"]
    ports: [{containerPort: 8080, hostPort: 18080, hostIP: 127.0.0.1}]
    volumeMounts: [{name: later, mountPath: /later, mountPropagation: HostToContainer}]
  - name: outer
    image: IMAGE
    command: [sh, -c, "echo outer > /www/index.html; exec httpd -f -p 8081 -h /www"]
    ports: [{containerPort: 8081, hostPort: 18080, hostIP: ADDRESS}]
"#;

/// Pod whose containers ask a gRPC server of the node, one for a service that it does not have.
const ASKING: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: asking}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: IMAGE
    command: [sleep, "100000"]
    readinessProbe: {grpc: {port: 18079}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 10}
  - name: other
    image: IMAGE
    command: [sleep, "100000"]
    readinessProbe: {grpc: {port: 18079, service: nobody}, periodSeconds: 1, timeoutSeconds: 10}
"#;

const FILES: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: default}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: "hello, files\n", other: unused}
---
apiVersion: v1
kind: Pod
metadata: {name: files, labels: {app: files, tier: web}}
spec:
  terminationGracePeriodSeconds: 0
  serviceAccountName: reader
  volumes:
  - name: all
    projected:
      sources:
      - configMap: {name: settings, items: [{key: greeting, path: texts/greeting}]}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
  - name: own
    downwardAPI:
      items:
      - {path: labels, fieldRef: {fieldPath: metadata.labels}}
      - {path: name, fieldRef: {fieldPath: metadata.name}}
      - {path: memory, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}
  - {name: disk, emptyDir: {}}
  containers:
  - name: main
    image: IMAGE
    command: [sleep, "100000"]
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}
    env:
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: CORES, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: MILLICORES, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
    volumeMounts:
    - {name: all, mountPath: /all}
    - {name: own, mountPath: /own}
    - {name: disk, mountPath: /mine, subPathExpr: logs/$(POD_NAME)}
    - {name: disk, mountPath: /disk}
    securityContext: {capabilities: {drop: [all], add: [cap_net_bind_service]}}
"#;

/// Bit of the only capability that is left.
const NET_BIND_SERVICE: u64 = 1 << 10;

#[test]
fn fields_of_real_manifests_do_what_they_say() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(1), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let address = cluster.node().address()?.to_owned();
        // As the mounts of a machine are: what is mounted later in there appears in the container.
        let later = cluster.slot().dir().join("later").display().to_string();
        fs::create_dir(&later)?;
        on_node(cluster, &["mount", "-t", "tmpfs", "tmpfs", &later])?;
        on_node(cluster, &["mount", "--make-shared", &later])?;
        let manifests = [
            ("shop", SHOP),
            ("job", JOB),
            ("hooks", HOOKS),
            ("node", NODE),
            ("asking", ASKING),
            ("files", FILES),
        ];
        let written = manifests.map(|(name, text)| {
            Change::write(
                format!("{name}.yaml"),
                text.replace("IMAGE", IMAGE).replace("ADDRESS", &address).replace("LATER", &later),
            )
        });
        let admin = service("admin", "app: shop", "{port: 80, targetPort: admin}", "");
        let commit = cluster.repo.push(&[&written[..], &[admin]].concat(), "Open")?;
        let source = cluster.applied(&commit)?;
        ensure!(source.quarantined.is_empty(), "{source:?}");

        let shop = restarted_sidecar(cluster)?;
        ended_job(cluster)?;
        hooks(cluster)?;
        of_the_node(cluster, &address, &later)?;
        asked(cluster)?;
        let files = cluster.running("files", &["main"])?;
        files_and_variables(cluster, &files)?;
        capabilities(cluster, &files)?;
        ended_sidecar(cluster, &shop, &timeline)
    })
}

/// Returns the starts of a container that Docker still has.
fn starts(cluster: &Cluster, pod: &str, container: &str) -> Result<Vec<ContainerView>> {
    let mut all = cluster.containers()?;
    all.retain(|one| (one.label("pod"), one.label("container")) == (pod, container));
    Ok(all)
}

/// The sidecar serves before the next container starts, through its service, and again after its death, which touches
/// no other container.
fn restarted_sidecar(cluster: &Cluster) -> Result<PodView> {
    let before = cluster.running("shop", &["main", "proxy"])?;
    let migrate = starts(cluster, "shop", "migrate")?;
    let only = migrate.first().filter(|_| migrate.len() == 1).context("migrate did not run once")?;
    ensure!(!only.running && only.exit_code == 0 && only.label("attempt") == "0", "{only:?}");
    let admin = programmed(cluster, "admin", 1)?;
    answers(cluster, &admin, 80, "proxied")?;

    let proxy = before.container("proxy")?;
    cluster.node().docker.run(&["kill", &proxy.id])?;
    let after = eventually("another proxy", secs(40), || {
        let pod = cluster.pod("shop")?;
        ensure!(pod.container("proxy")?.id != proxy.id, "it is the former one");
        ensure!(pod.containers.len() == 2, "{:?}", pod.containers.keys());
        Ok(pod)
    })?;
    answers(cluster, &admin, 80, "proxied")?;
    ensure!(after.pause == before.pause && after.container("main")? == before.container("main")?);
    ensure!(starts(cluster, "shop", "migrate")? == migrate, "migrate ran again");
    Ok(after)
}

fn answers(cluster: &Cluster, host: &str, port: u16, text: &str) -> Result<()> {
    eventually(&format!("{host}:{port} says {text}"), secs(40), || {
        let (code, body) = cluster.get_from_node(host, port, "/")?;
        ensure!(code == 200 && body.trim() == text, "{code} {body}");
        Ok(())
    })
}

/// A sidecar does not keep a pod that has ended.
fn ended_job(cluster: &Cluster) -> Result<()> {
    eventually("the job has ended", secs(40), || {
        for container in ["main", "proxy"] {
            let all = starts(cluster, "job", container)?;
            let once = all.first().filter(|_| all.len() == 1).with_context(|| format!("{all:?}"))?;
            ensure!(!once.running && once.exit_code == 0, "{once:?}");
            ensure!(!once.started_at.starts_with("0001"), "{container} was not started");
        }
        let all = cluster.containers()?;
        let left: Vec<_> = all.iter().filter(|one| one.label("pod") == "job" && one.running).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

/// A hook that succeeds comes before readiness; one that fails ends its container, which is never ready.
fn hooks(cluster: &Cluster) -> Result<()> {
    let key = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", "hooks"));
    eventually("the container with the bad hook is started again", secs(40), || {
        let bad = starts(cluster, "hooks", "bad")?;
        ensure!(bad.iter().any(|one| one.label("attempt") != "0"), "{bad:?}");
        Ok(())
    })?;
    eventually("only the container with the good hook is ready", secs(40), || {
        let status: PodStatus = cluster.etcd.value(&key)?;
        let ready = status.container_statuses.iter().filter(|one| one.ready).map(|one| &*one.name);
        ensure!(ready.eq(["good"]) && !status.is_ready(), "{status:?}");
        Ok(())
    })?;
    let good = starts(cluster, "hooks", "good")?;
    let only = good.first().filter(|_| good.len() == 1).with_context(|| format!("{good:?}"))?;
    let said = cluster.node().docker.exec(only, &["cat", "/shared/hook"])?;
    ensure!(said == "began\n", "{said:?}");
    Ok(())
}

/// The node's addresses, processes, and names for others.
fn of_the_node(cluster: &Cluster, address: &str, later: &str) -> Result<()> {
    let pod = cluster.running("node", &["main", "outer"])?;
    answers(cluster, "127.0.0.1", 18_080, "loopback")?;
    answers(cluster, address, 18_080, "outer")?;
    reads(cluster, &pod, &["grep", "^10.9.8.7", "/etc/hosts"], "10.9.8.7\told.example\tolder.example\n")?;
    reads(cluster, &pod, &["cat", "/proc/1/comm"], &fs::read_to_string("/proc/1/comm")?)?;
    let pid = pod.container("main")?.pid;
    for space in ["pid", "ipc"] {
        let own = fs::read_link(format!("/proc/{pid}/ns/{space}"))?;
        ensure!(own == fs::read_link(format!("/proc/self/ns/{space}"))?, "{space} is not the node's");
    }
    let disk = format!("{later}/disk");
    on_node(cluster, &["mkdir", &disk])?;
    on_node(cluster, &["mount", "-t", "tmpfs", "tmpfs", &disk])?;
    on_node(cluster, &["touch", &format!("{disk}/mounted")])?;
    reads(cluster, &pod, &["ls", "/later/disk"], "mounted\n")
}

fn on_node(cluster: &Cluster, words: &[&str]) -> Result<()> {
    let command = cluster.node().command(words);
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    run(words[0], &words[1..]).map(drop)
}

/// A container is ready while the server says that it serves, as etcd says of itself.
fn asked(cluster: &Cluster) -> Result<()> {
    let key = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", "asking"));
    let ready = |expected: &[&str]| {
        eventually(&format!("{expected:?} of the containers are ready"), secs(40), || {
            let status: PodStatus = cluster.etcd.value(&key)?;
            let ready = status.container_statuses.iter().filter(|one| one.ready).map(|one| &*one.name);
            ensure!(status.container_statuses.len() == 2 && ready.eq(expected.iter().copied()), "{status:?}");
            Ok(())
        })
    };
    ready(&[])?;
    let data = cluster.slot().dir().join("health");
    let (data, peer) = (format!("--data-dir={}", data.display()), "http://127.0.0.1:18078");
    let command = cluster.node().command(&[
        "etcd",
        "--name=health",
        &data,
        "--listen-client-urls=http://0.0.0.0:18079",
        "--advertise-client-urls=http://127.0.0.1:18079",
        &format!("--listen-peer-urls={peer}"),
        &format!("--initial-advertise-peer-urls={peer}"),
        &format!("--initial-cluster=health={peer}"),
    ]);
    let mut server = Daemon::new("health", cluster.slot().dir(), command);
    server.start()?;
    ready(&["main"])?;
    server.kill()?;
    ready(&[])
}

/// Runs a command in the container `main` and compares its whole output, byte by byte.
fn reads(cluster: &Cluster, pod: &PodView, command: &[&str], expected: &str) -> Result<()> {
    let said = cluster.exec(pod, "main", command)?;
    ensure!(said == expected, "{command:?} says {said:?}, not {expected:?}");
    Ok(())
}

fn files_and_variables(cluster: &Cluster, pod: &PodView) -> Result<()> {
    for (file, text) in [
        ("/all/texts/greeting", "hello, files\n"),
        ("/all/name", "files"),
        ("/own/labels", "app=\"files\"\ntier=\"web\""),
        ("/own/name", "files"),
        ("/own/memory", "64"),
    ] {
        reads(cluster, pod, &["cat", file], text)?;
    }
    reads(cluster, pod, &["ls", "/all"], "name\ntexts\n")?;
    let variables = "echo \"$POD_NAME $CORES $MILLICORES\"";
    reads(cluster, pod, &["sh", "-c", variables], "files 1 500\n")?;
    let written = "echo mine > /mine/log && cat /disk/logs/files/log";
    reads(cluster, pod, &["sh", "-c", written], "mine\n")
}

/// Names in any case and with their prefix mean the kernel's.
fn capabilities(cluster: &Cluster, pod: &PodView) -> Result<()> {
    let main = pod.container("main")?;
    let format = "{{json .HostConfig.CapDrop}} {{json .HostConfig.CapAdd}}";
    let said = cluster.node().docker.run(&["inspect", "-f", format, &main.id])?;
    // Some versions of Docker add the prefix.
    let said = said.replace("CAP_", "");
    ensure!(said.trim() == r#"["ALL"] ["NET_BIND_SERVICE"]"#, "{said}");
    let status = fs::read_to_string(format!("/proc/{}/status", main.pid))?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).context("no CapEff")?;
    let effective = u64::from_str_radix(line.trim(), 16)?;
    ensure!(effective == NET_BIND_SERVICE, "{effective:x}");
    Ok(())
}

/// The sidecar is told to end only when the main container has ended.
fn ended_sidecar(cluster: &Cluster, shop: &PodView, timeline: &Timeline) -> Result<()> {
    cluster.push(&[Change::remove("shop.yaml")], "Close")?;
    cluster.gone("shop")?;
    let moments = timeline.moments()?;
    let at = |container: &str, happened: Happened| -> Result<i64> {
        let id = &shop.container(container)?.id;
        let found = moments.iter().find(|moment| moment.id == *id && moment.happened == happened);
        Ok(found.with_context(|| format!("no {happened:?} of {container}"))?.at_nanos)
    };
    let (main, proxy) = (at("main", Happened::Ended)?, at("proxy", Happened::Signalled)?);
    ensure!(main < proxy, "the proxy was told {} ns before the end of main", main - proxy);
    Ok(())
}
