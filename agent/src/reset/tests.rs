//! Reset on the real kernel, in the test's own network namespace, with a scripted engine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nix::mount::{MsFlags, mount};

use super::*;
use crate::testing::{TestNamespace, own_container};
use crate::worlds::docker::{FakeDocker, Fault};
use crate::worlds::netlink::{Bridge, PodLink, host_link_name};

fn machine(state_dir: &Path) -> MachineConfig {
    let docker = "unix:///var/run/docker.sock".to_owned();
    MachineConfig { state_dir: state_dir.to_owned(), instance: "mk8s".into(), docker }
}

fn tables(node: &TestNamespace) -> String {
    node.run("nft", &["list", "tables", "bridge"])
}

#[tokio::test]
async fn links_bridge_and_rules_are_as_before_and_a_second_reset_finds_nothing() {
    let mut node = TestNamespace::new();
    let netlink = RealNetlink::open_at("mk8s", &node.path()).unwrap();
    let iptables = RealIptables::at(node.path());
    // Rules of others on this machine; one of their chains gets a jump into ours below.
    node.run("iptables", &["-A", "FORWARD", "-s", "198.51.100.1/32", "-j", "DROP"]);
    node.run("iptables", &["-t", "nat", "-N", "THEIRS"]);
    node.run("iptables", &["-t", "nat", "-A", "POSTROUTING", "-j", "THEIRS"]);
    let before = (node.run("ip", &["link"]), rules(&node), tables(&node));

    let bridge = Bridge {
        name: "mk8s0".into(),
        address: "10.244.0.1/24".parse().unwrap(),
        vips: vec!["10.96.0.10".parse().unwrap()],
        services: "10.96.0.0/16".parse().unwrap(),
        mtu: 1450,
    };
    netlink.ensure_bridge(&bridge).await.unwrap();
    let link = PodLink {
        pause_pid: node.pod(),
        pause_id: None,
        host_name: host_link_name("mk8s", "u"),
        bridge: "mk8s0".into(),
        address: "10.244.0.2/24".parse().unwrap(),
        gateway: "10.244.0.1".parse().unwrap(),
        mtu: 1450,
    };
    netlink.ensure_pod_link(&link).await.unwrap();
    let input = "*filter\n:MK8S-FORWARD - [0:0]\n:MK8S-INPUT - [0:0]\n-A MK8S-FORWARD -i mk8s0 -j ACCEPT\n\
                 -I FORWARD 1 -j MK8S-FORWARD\n-I INPUT 1 -j MK8S-INPUT\nCOMMIT\n\
                 *nat\n:MK8S-HOSTPORT - [0:0]\n-A THEIRS -m addrtype --dst-type LOCAL -j MK8S-HOSTPORT\nCOMMIT\n";
    iptables.restore(input).await.unwrap();
    iptables.change_frame_tables("table bridge mk8s-senders {}").await.unwrap();

    let machine = machine(Path::new("/nonexistent"));
    let mut removed = ResetOutcome::default();
    remove_network(&machine, &netlink, &iptables, &mut removed).await;
    assert!(removed.failures.is_empty(), "{removed:?}");
    assert_eq!((node.run("ip", &["link"]), rules(&node), tables(&node)), before);
    let mut again = ResetOutcome::default();
    remove_network(&machine, &netlink, &iptables, &mut again).await;
    assert!(again.lines.is_empty() && again.failures.is_empty(), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_container_that_docker_removes_already_is_waited_for() {
    let machine = machine(Path::new("/nonexistent"));
    for (call, ends) in [(1, true), (2, true), (2, false)] {
        let docker = FakeDocker::with_images(&["app:1"]);
        let new = own_container("app:1", "web", "u", "a", 0);
        let id = docker.create(&new).await.unwrap();
        docker.start(&id).await.unwrap();
        // One of the two calls, stop and remove, comes while the container is being removed.
        let call = docker.engine().calls.len() + call;
        docker.engine().fault =
            Some(Fault::Fail { call, error: DockerError::BeingRemoved { id: id.clone() } });
        let mut removed = ResetOutcome::default();
        let goes = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if ends {
                docker.engine().containers.remove(&id);
            }
        };
        tokio::join!(remove_containers(&machine, &docker, &mut removed), goes);
        assert_eq!(removed.failures.is_empty(), ends, "{removed:?}");
        assert_eq!(removed.lines == [format!("container {}", new.name)], ends, "{removed:?}");
    }
}

fn rules(node: &TestNamespace) -> Vec<String> {
    let text = node.run("iptables-save", &[]);
    let of_chains =
        |line: &&str| line.starts_with('-') || line.starts_with(":MK8S") || line.starts_with(":THEIRS");
    text.lines().filter(of_chains).map(str::to_owned).collect()
}

#[test]
fn what_a_mount_shows_is_not_deleted() {
    assert!(nix::unistd::geteuid().is_root(), "this test mounts and must run as root");
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().join("precious");
    let agent_dir = dir.path().join("state/agent");
    let volume = agent_dir.join("pods/uid/a volume");
    fs::create_dir_all(&host).unwrap();
    fs::create_dir_all(&volume).unwrap();
    fs::write(host.join("file"), "kept").unwrap();
    let keys = crate::files::Keys::open(&agent_dir.join(crate::config::AGE_IDENTITY)).unwrap();
    let none = None::<&str>;
    mount(Some(&host), &volume, none, MsFlags::MS_BIND, none).unwrap();
    mount(Some("tmpfs"), &volume, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    let mut removed = ResetOutcome::default();
    files::remove(&machine(&dir.path().join("state")), &mut removed);
    assert!(removed.failures.is_empty(), "{removed:?}");
    assert_eq!(fs::read_to_string(host.join("file")).unwrap(), "kept");
    assert!(!dir.path().join("state").exists(), "the empty state directory goes too");
    let recipient = keys.recipient().unwrap();
    assert!(removed.lines.iter().any(|line| line.contains(recipient)), "{removed:?}");
    let mut again = ResetOutcome::default();
    files::remove(&machine(&dir.path().join("state")), &mut again);
    assert!(again.lines.is_empty(), "{again:?}");
}

#[test]
fn an_agent_that_runs_is_not_pulled_away() {
    let dir = tempfile::tempdir().unwrap();
    let machine = machine(dir.path());
    let agent = locks::take(&machine.agent_dir()).unwrap();
    assert!(lock(&machine).unwrap_err().to_string().contains("another agent runs"));
    drop(agent);
    assert!(lock(&machine).unwrap().is_some());
}

#[test]
fn the_pause_container_goes_last() {
    let labelled = |name: &str| BTreeMap::from([("minik8s.io/container".to_owned(), name.to_owned())]);
    let container = |name: &str| ListedContainer {
        id: name.into(),
        name: name.into(),
        image: String::new(),
        image_id: String::new(),
        created_at: jiff::Timestamp::UNIX_EPOCH,
        state: EngineState::Running,
        labels: labelled(name),
    };
    assert!(is_pause(&container("POD")) && !is_pause(&container("web")));
}
