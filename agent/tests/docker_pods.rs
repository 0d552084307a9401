//! The pod loop on a real engine. Fails where there is none.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

mod support;

use std::time::Duration;

use agent::worlds::docker::{DockerError, LogOptions};
use schema::kinds::pod::{
    Container, ContainerState, EmptyDirVolume, PodPhase, PodSecurityContext, RestartPolicy, StorageMedium,
    Volume, VolumeMount,
};
use support::{Node, docker, pod, shell};

#[tokio::test(flavor = "multi_thread")]
async fn two_containers_share_a_network_and_are_adopted_and_taken_down() {
    let mut node = Node::new().await;
    node.start().await;
    let loop_forever = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    node.bind(
        "web",
        pod(vec![shell("a", &format!("httpd -p 8080 -h /etc; {loop_forever}")), shell("b", loop_forever)]),
    );
    let took = node.until_ready("web").await;
    println!("first pod ready after {took:?}");
    assert!(node.exec("web", "b", "wget -qO- http://127.0.0.1:8080/passwd").contains("root"));
    let status = node.status("web").unwrap();
    assert_eq!(status.pod_ip.as_deref(), Some("10.99.1.2"));
    assert_eq!(node.exec("web", "b", "hostname"), "web");

    let before = docker(&["inspect", "-f", "{{.State.StartedAt}}", &node.container("web", "a")]);
    let containers = node.containers();
    node.start().await;
    node.until_ready("web").await;
    assert_eq!(node.containers(), containers);
    assert_eq!(docker(&["inspect", "-f", "{{.State.StartedAt}}", &node.container("web", "a")]), before);

    node.unbind("web");
    node.until_gone("web").await;
    assert!(node.containers().is_empty(), "{:?}", node.containers());
    assert!(node.netlink.kernel().links.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_and_a_removal_by_hand_are_healed_at_once() {
    let mut node = Node::new().await;
    node.start().await;
    node.bind("web", pod(vec![shell("a", "sleep 1000")]));
    node.until_ready("web").await;
    let forged = Forged::new(&node);
    docker(&["kill", &node.container("web", "a")]);
    node.until("web", "restarted", |s| {
        s.is_some_and(|s| s.is_ready() && s.container_statuses[0].restart_count == 1)
    })
    .await;
    let status = node.status("web").unwrap();
    assert_eq!(status.container_statuses[0].last_state.as_ref().map(|l| l.exit_code), Some(137));
    let old = node.container("web", "a");
    docker(&["rm", "-f", &old]);
    node.until("web", "made again", |s| {
        s.is_some_and(|s| s.is_ready() && matches!(s.container_statuses[0].state, ContainerState::Running(_)))
    })
    .await;
    // The whole pod is recreated when its namespaces are lost.
    let pause = node.container("web", "POD");
    let pause_id = docker(&["inspect", "-f", "{{.Id}}", &pause]);
    docker(&["kill", &pause]);
    node.until("web", "made anew", |s| {
        s.is_some_and(|s| s.is_ready() && s.pod_ip.as_deref() == Some("10.99.1.2"))
            && node.containers().get(&pause).is_some_and(|state| state == "running")
            && docker(&["inspect", "-f", "{{.Id}}", &pause]) != pause_id
    })
    .await;

    // Labels of an image are no labels of ours: this hook would fail at the end of the pod.
    assert_eq!(docker(&["inspect", "-f", "{{.State.Running}}", &forged.container]), "true");
    node.bind("guest", pod(vec![Container { image: forged.image.clone(), ..shell("a", "sleep 1000") }]));
    node.until_ready("guest").await;
    let format = "{{index .Config.Labels \"minik8s.io/pre-stop\"}}";
    assert_eq!(docker(&["inspect", "-f", format, &node.container("guest", "a")]), "");
    node.unbind("guest");
    node.until_gone("guest").await;
}

/// An image with the labels of a container of pod `web` and others of ours, and a container of it, as a step of a build
/// with such a Dockerfile.
struct Forged {
    image: String,
    container: String,
}

impl Forged {
    fn new(node: &Node) -> Self {
        let image = format!("{}-forged:1", node.instance);
        let changes = ["LABEL minik8s.io/attempt=999", "LABEL minik8s.io/pre-stop=hook"];
        let [attempt, hook] = changes.map(|change| ["--change", change]);
        let of = [&["commit"], &attempt[..], &hook[..], &[&node.container("web", "a"), &image]];
        docker(&of.concat());
        let container = docker(&["run", "-d", &image, "sleep", "1000"]);
        Self { image, container }
    }
}

impl Drop for Forged {
    fn drop(&mut self) {
        docker(&["rm", "-f", &self.container]);
        docker(&["rmi", "-f", &self.image]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_run_one_by_one_and_never_means_never() {
    let mut node = Node::new().await;
    node.start().await;
    let mut spec = pod(vec![shell("a", "exit 3")]);
    spec.restart_policy = RestartPolicy::Never;
    spec.init_containers = vec![shell("one", "true"), shell("two", "true")];
    node.bind("job", spec);
    node.until("job", "failed", |s| s.is_some_and(|s| s.phase == PodPhase::Failed)).await;
    let status = node.status("job").unwrap();
    let ContainerState::Terminated(end) = &status.container_statuses[0].state else { panic!("{status:#?}") };
    assert_eq!((end.exit_code, end.reason.as_str()), (3, "Error"));
    assert_eq!(status.init_container_statuses.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_user_volumes_and_environment_are_what_the_manifest_says() {
    let mut node = Node::new().await;
    node.start().await;
    let manifest = serde_json::json!({
        "terminationGracePeriodSeconds": 1,
        "volumes": [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
        ],
        "containers": [{
            "name": "a", "image": support::IMAGE, "command": ["sleep"], "args": ["$(HOW_LONG)"],
            "env": [
                {"name": "HOW_LONG", "value": "1000"},
                {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
            ],
            "workingDir": "/tmp",
            "resources": {"limits": {"cpu": "250m", "memory": "32Mi"}},
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1001, "readOnlyRootFilesystem": true,
                                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [
                {"name": "disk", "mountPath": "/disk"},
                {"name": "disk", "mountPath": "/part", "subPath": "deep/er"},
                {"name": "memory", "mountPath": "/memory"}
            ]
        }, {
            "name": "b", "image": support::IMAGE, "command": ["sleep", "1000"],
            "volumeMounts": [{"name": "disk", "mountPath": "/disk", "readOnly": true},
                             {"name": "memory", "mountPath": "/memory"}]
        }]
    });
    node.bind("full", serde_json::from_value(manifest).unwrap());
    node.until_ready("full").await;
    assert_eq!(
        node.exec("full", "a", "echo $WHO $ADDRESS $(id -u) $(id -g) $(pwd)"),
        "full 10.99.1.2 1000 1001 /tmp"
    );
    assert_eq!(node.exec("full", "a", "touch /x 2>/dev/null || echo refused"), "refused");
    assert_eq!(
        node.exec("full", "a", "grep -E 'NoNewPrivs|CapEff' /proc/self/status | tr -d '\\t\\n'"),
        "CapEff:0000000000000000NoNewPrivs:1"
    );
    // A thousandth less for each thousandth of the node's memory, 1 GiB in this test.
    assert_eq!(["a", "b"].map(|one| node.exec("full", one, "cat /proc/1/oom_score_adj")), ["969", "999"]);
    node.exec("full", "a", "echo one > /disk/one; echo two > /memory/two");
    assert_eq!(node.exec("full", "b", "cat /disk/one /memory/two | tr -d '\\n'; ls /disk/deep"), "onetwoer");
    // The folder was created for the subPath, and the user is not root.
    assert_eq!(node.exec("full", "a", "echo three > /part/three && cat /disk/deep/er/three"), "three");
    assert_eq!(node.exec("full", "b", "touch /disk/x 2>/dev/null || echo refused"), "refused");
    assert_eq!(
        node.exec("full", "b", "head -c 2000000 /dev/zero > /memory/big 2>/dev/null || echo full"),
        "full"
    );
    let limits = docker(&[
        "inspect",
        "-f",
        "{{.HostConfig.Memory}} {{.HostConfig.CpuQuota}} {{.HostConfig.CpuShares}}",
        &node.container("full", "a"),
    ]);
    assert_eq!(limits, format!("{} 25000 256", 32 << 20));
    node.unbind("full");
    node.until_gone("full").await;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let state = node.state.path().display().to_string();
    assert!(!mounts.contains(&state), "{mounts}");
    assert_eq!(std::fs::read_dir(node.state.path().join("agent/pods")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_image_says_what_to_do_and_holds_nobody_up() {
    let mut node = Node::new().await;
    node.start().await;
    let mut absent = shell("a", "sleep 1000");
    absent.image = "127.0.0.1:1/nothing:1".into();
    node.bind("absent", pod(vec![absent, shell("b", "sleep 1000")]));
    node.bind("fine", pod(vec![shell("a", "sleep 1000")]));
    node.until_ready("fine").await;
    node.until("absent", "ErrImagePull", |s| {
        s.is_some_and(|s| {
            matches!(&s.container_statuses[0].state, ContainerState::Waiting(w)
                if w.reason == "ErrImagePull" || w.reason == "ImagePullBackOff")
                && matches!(s.container_statuses[1].state, ContainerState::Running(_))
        })
    })
    .await;
    tokio::time::timeout(Duration::from_secs(5), async {
        node.unbind("absent");
        node.until_gone("absent").await;
    })
    .await
    .expect("a pod that waits for its image goes at once");
}

// Red without `chown` and setgid in `empty_dir`, and without `group_add` in the create body. Seen red without
// `open_to` in volumes.rs.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_and_processes_have_the_groups_of_the_security_context() {
    let mut node = Node::new().await;
    node.start().await;
    let mut spec = pod(vec![shell("a", "sleep 1000")]);
    let security = PodSecurityContext {
        run_as_user: Some(1000),
        run_as_group: Some(3000),
        fs_group: Some(2000),
        supplemental_groups: vec![4000],
        ..PodSecurityContext::default()
    };
    spec.security_context = Some(security.into());
    spec.volumes = ["disk", "memory"]
        .map(|name| {
            let medium = (name == "memory").then_some(StorageMedium::Memory);
            let empty_dir = Some(EmptyDirVolume { medium, ..EmptyDirVolume::default() });
            Volume { name: name.into(), empty_dir, ..Volume::default() }
        })
        .into();
    spec.containers[0].volume_mounts = [("disk", None), ("memory", None), ("disk", Some("deep/er"))]
        .map(|(name, sub_path)| VolumeMount {
            name: name.into(),
            mount_path: format!("/{}", if sub_path.is_some() { "part" } else { name }),
            sub_path: sub_path.map(str::to_owned),
            ..VolumeMount::default()
        })
        .into();
    node.bind("web", spec);
    node.until_ready("web").await;
    let mut groups: Vec<String> = node.exec("web", "a", "id -G").split(' ').map(str::to_owned).collect();
    groups.sort();
    assert_eq!(groups, ["2000", "3000", "4000"]);
    for volume in ["/disk", "/memory", "/part"] {
        let script = format!(
            "stat -c '%g %a' {volume}; touch {volume}/f; mkdir {volume}/d; stat -c '%u %g' {volume}/f {volume}/d"
        );
        assert_eq!(node.exec("web", "a", &script), "2000 2777\n1000 2000\n1000 2000", "{volume}");
    }
}

// Red with `v: false` in `RealDocker::remove`.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_an_image_declares_go_with_their_container() {
    let mut node = Node::new().await;
    let image = format!("{}-volume:1", node.instance);
    let cid = docker(&["create", support::IMAGE, "true"]);
    docker(&["commit", "-c", "VOLUME /data", &cid, &image]);
    docker(&["rm", &cid]);
    node.start().await;
    let mut container = shell("a", "echo x >/data/x; sleep 1000");
    container.image.clone_from(&image);
    node.bind("web", pod(vec![container]));
    node.until_ready("web").await;
    let volumes =
        |name: &str| docker(&["inspect", "-f", "{{range .Mounts}}{{.Name}} {{end}}", name]).trim().to_owned();
    let first = volumes(&node.container("web", "a"));
    assert_eq!(first.len(), 64, "an anonymous volume: {first}");
    // Two restarts: the start before the last is removed, and its volume with it.
    for restarts in [1, 2] {
        docker(&["kill", &node.container("web", "a")]);
        node.until("web", "restarted", |s| {
            s.is_some_and(|s| s.is_ready() && s.container_statuses[0].restart_count == restarts)
        })
        .await;
    }
    let last = volumes(&node.container("web", "a"));
    node.unbind("web");
    node.until_gone("web").await;
    let left = docker(&["volume", "ls", "-q"]);
    docker(&["rmi", &image]);
    assert!(!left.contains(&first) && !left.contains(&last), "{left}");
}

// Seen red without `healthcheck` in `create_body`: Docker ran it.
#[tokio::test(flavor = "multi_thread")]
async fn the_check_that_an_image_declares_is_not_run() {
    let mut node = Node::new().await;
    let image = format!("{}-health:1", node.instance);
    let cid = docker(&["create", support::IMAGE, "true"]);
    docker(&["commit", "-c", "HEALTHCHECK --interval=1s CMD touch /checked", &cid, &image]);
    docker(&["rm", &cid]);
    node.start().await;
    let mut container = shell("a", "sleep 1000");
    container.image.clone_from(&image);
    node.bind("web", pod(vec![container]));
    node.until_ready("web").await;
    let check =
        docker(&["inspect", "-f", "{{.Config.Healthcheck}} {{.State.Health}}", &node.container("web", "a")]);
    node.unbind("web");
    node.until_gone("web").await;
    docker(&["rmi", &image]);
    assert_eq!(check.trim(), "{[NONE] 1s 0s 0s 0s 0} <nil>");
}

// Seen red with the client library's own decoder: nothing of the bar arrived without a newline before the container
// ended, and the bytes 1 and 2 at the beginning were taken for a frame header.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_terminal_comes_as_it_was_written() {
    use futures::StreamExt as _;
    let mut node = Node::new().await;
    node.start().await;
    // Docker writes a log entry at each newline, and at 16 KiB without one.
    let bar = "printf '\\001\\002'; i=0; while [ $i -lt 2000 ]; do printf 'at %06d of it\\r' $i; i=$((i+1)); done; sleep 1000";
    let mut container = shell("a", bar);
    container.tty = true;
    node.bind("web", pod(vec![container]));
    node.until_ready("web").await;
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let mut log = node.docker.logs(&node.container("web", "a"), &options).await.unwrap();
    let mut got = Vec::new();
    while got.len() < 16 << 10 {
        let piece =
            tokio::time::timeout(Duration::from_secs(20), log.next()).await.expect("it comes at once");
        got.extend_from_slice(&piece.expect("it goes on").unwrap());
    }
    assert!(got.starts_with(b"\x01\x02at 000000 of it\rat 000001 of it\r"), "{:?}", &got[..64]);
    drop(log);
    let missing = node.docker.logs("no-such-container", &options).await;
    assert!(matches!(missing.err(), Some(DockerError::NotFound { .. })));
    let last = LogOptions { tail: Some(1), ..LogOptions::default() };
    let log = node.docker.logs(&node.container("web", "a"), &last).await.unwrap();
    let last: Vec<_> = log.map(Result::unwrap).collect().await;
    assert!(!last.is_empty(), "without following it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_ignore_the_signal_end_side_by_side() {
    let mut node = Node::new().await;
    node.start().await;
    let names = ["p0", "p1", "p2", "p3", "p4", "p5"];
    for name in names {
        let mut spec = pod(vec![shell("a", "trap '' TERM; while :; do sleep 1; done")]);
        spec.termination_grace_period_seconds = 5;
        node.bind(name, spec);
    }
    for name in names {
        node.until_ready(name).await;
    }
    let began = std::time::Instant::now();
    names.iter().for_each(|name| node.unbind(name));
    for name in names {
        node.until_gone(name).await;
    }
    let took = began.elapsed().as_secs_f32();
    println!("6 pods that ignore SIGTERM, grace 5 s: gone after {took:.1} s");
    // 30 s if done one after the other.
    assert!((5.0..12.0).contains(&took), "{took} s");
    assert!(node.containers().is_empty(), "{:?}", node.containers());
}
