//! A pod loop on the real Docker, under its own instance name, with everything removed at the end.
// A panic is how a test fails.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::converge::pods::{
    ContainerLimits, NoCredentials, NodeMemory, PauseImage, PodsDeps, PodsLoop, Statuses,
};
use agent::converge::shared::image_store::ImageBook;
use agent::node_address::NodeAddress;
use agent::worlds::docker::{Docker, RealDocker};
use agent::worlds::netlink::{Bridge, FakeNetlink, Netlink};
use agent::worlds::pause;
use jiff::{SignedDuration, Timestamp};
use schema::control::Row;
use schema::kinds::pod::{Container, PodPhase, PodSpec, PodStatus};
use schema::meta::NamespacedName;
use schema::records::{PodInstance, SettledRecord, Subnet};
use schema::snapshot::Snapshot;
use schema::store::SharedStore;
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::reflector::{SnapshotPublisher, SnapshotReader};
use schema::testing::{authority, binding, enroll, instance, versioned};
use schema::trust::TrustDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[path = "../../../schema/tests/support/ports.rs"]
pub mod ports;

pub const SOCKET: &str = "/var/run/docker.sock";
pub const NODE: &str = "n1";
pub const IMAGE: &str = "minik8s-test/busybox:2";

/// A node that belongs to one test.
pub struct Node {
    pub instance: String,
    pub docker: Arc<dyn Docker>,
    pub netlink: Arc<FakeNetlink>,
    pub store: SharedStore,
    pub state: tempfile::TempDir,
    snapshot: Snapshot,
    publisher: SnapshotPublisher,
    reader: SnapshotReader,
    running: Option<Running>,
    /// Limits and log settings of every container.
    pub container_limits: ContainerLimits,
}

struct Running {
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    statuses: watch::Receiver<Statuses>,
}

/// Removes every container of the instance, even if the test panics.
impl Drop for Node {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.task.abort();
            running.shutdown.cancel();
        }
        // Containers from the last requests may still appear, so the list must be empty twice in a row.
        let mut quiet = 0;
        for _ in 0..40 {
            quiet = if self.remove_all() { 0 } else { quiet + 1 };
            if quiet == 2 {
                break;
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        let mounted = format!(
            "grep -o ' {}[^ ]*' /proc/self/mountinfo | sort -r | xargs -r umount -l",
            self.state.path().display()
        );
        let _ = Command::new("sh").arg("-c").arg(mounted).output();
    }
}

impl Node {
    /// Removes all containers of the instance; true if there were any.
    fn remove_all(&self) -> bool {
        let filter = format!("label=minik8s.io/instance={}", self.instance);
        let Ok(ids) = Command::new("docker").args(["ps", "-aq", "--filter", &filter]).output() else {
            return false;
        };
        let ids = String::from_utf8_lossy(&ids.stdout).into_owned();
        if ids.trim().is_empty() {
            return false;
        }
        let _ = Command::new("docker").args(["rm", "-f", "-v"]).args(ids.split_whitespace()).output();
        true
    }

    /// Creates a node with an image made of busybox, and a bridge that exists only in memory.
    pub async fn new() -> Self {
        ensure_image();
        let instance = format!("t{:05x}", rand::random::<u32>() & 0xf_ffff);
        let docker: Arc<dyn Docker> = Arc::new(RealDocker::connect(SOCKET).await.expect("Docker answers"));
        let netlink = Arc::new(FakeNetlink::default());
        let subnet = Subnet::new("10.99.1.0/24".parse().unwrap(), "10.99.0.0/16".parse().unwrap());
        let bridge = Bridge {
            name: format!("{instance}0"),
            address: "10.99.1.1/24".parse().unwrap(),
            vips: Vec::new(),
            services: "10.98.0.0/16".parse().unwrap(),
            mtu: 1500,
        };
        netlink.ensure_bridge(&bridge).await.unwrap();
        let mut snapshot = Snapshot { synced: true, revision: 1, ..Snapshot::default() };
        snapshot.subnets.insert(NODE.into(), versioned(subnet));
        snapshot.settled.insert(NODE.into(), versioned(SettledRecord::default()));
        let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
        let state = tempfile::tempdir().unwrap();
        let store: SharedStore = Arc::new(MemoryStore::new());
        Self {
            instance,
            docker,
            netlink,
            store,
            state,
            snapshot,
            publisher,
            reader,
            running: None,
            container_limits: ContainerLimits::default(),
        }
    }

    /// Starts the loop, after ending a former one.
    pub async fn start(&mut self) {
        self.kill().await;
        let row = Row::every(Duration::from_secs(10));
        let (pod_table, _) = watch::channel(None);
        let (the_loop, helpers) = PodsLoop::new(PodsDeps {
            node: NODE.into(),
            address: NodeAddress::channel(Some([192, 0, 2, 1].into())).1,
            instance: self.instance.clone(),
            state_dir: self.state.path().to_owned(),
            mtu: 1500,
            container_limits: self.container_limits,
            memory: NodeMemory { bytes: 1 << 30, oom_score_min: 0 },
            cpu: schema::quantity::Cpu { millis: 2000 },
            pod_security_floor: Default::default(),
            dns: watch::channel(Default::default()).1,
            docker: Arc::clone(&self.docker),
            netlink: self.netlink.clone(),
            prober: Arc::new(agent::worlds::prober::RealProber::default()),
            pause_image: PauseImage {
                reference: pause::image_reference(),
                archive: Arc::new(pause::image_tar),
            },
            snapshot: self.reader.clone(),
            store: Arc::clone(&self.store),
            events: EventRecorder::disabled(),
            nudge: row.nudge(),
            pod_table,
            credentials: Arc::new(NoCredentials),
            peers: Arc::new(agent::worlds::peers::NoPeers),
            images: ImageBook::open(&self.state.path().join("agent")),
            files: files(self.state.path()),
            catalog: watch::channel(Arc::default()).1,
            programmed: watch::channel(0).1,
            sandboxed: watch::channel(Arc::default()).1,
        })
        .unwrap();
        helpers.into_iter().for_each(|(_, helper)| drop(tokio::spawn(helper)));
        let statuses = the_loop.statuses();
        let shutdown = CancellationToken::new();
        let (last_run, _) = watch::channel(None);
        let row = the_loop.wake(row);
        let task = tokio::spawn(row.run(the_loop, shutdown.clone(), last_run));
        self.running = Some(Running { shutdown, task, statuses });
    }

    /// Ends the loop immediately, as killing the agent would.
    pub async fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.task.abort();
            let _ = running.task.await;
            running.shutdown.cancel();
        }
    }

    /// Binds a pod to this node.
    pub fn bind(&mut self, name: &str, spec: PodSpec) -> String {
        let labels = [("app".to_owned(), name.to_owned())].into();
        let pod = PodInstance { labels, ..instance(name, spec) };
        let uid = pod.uid.clone();
        let key = (NODE.to_owned(), pod.reference());
        self.snapshot.bindings.insert(key, versioned(binding(NODE, &pod)));
        self.publish();
        uid
    }

    /// Unbinds a pod from this node.
    pub fn unbind(&mut self, name: &str) {
        self.snapshot.bindings.remove(&(NODE.to_owned(), NamespacedName::new("default", name)));
        self.publish();
    }

    fn publish(&mut self) {
        self.snapshot.revision += 1;
        self.publisher.publish(self.snapshot.clone());
    }

    /// Newest status of a pod.
    pub fn status(&self, name: &str) -> Option<PodStatus> {
        let statuses = self.running.as_ref()?.statuses.borrow().clone();
        statuses.pods.get(&NamespacedName::new("default", name)).map(|s| (**s).clone())
    }

    /// Waits until the pod's status satisfies `holds`; at most 30 s.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(Option<&PodStatus>) -> bool,
    ) -> Duration {
        let began = Instant::now();
        let mut statuses = self.running.as_ref().expect("started").statuses.clone();
        loop {
            let status = self.status(name);
            if holds(status.as_ref()) {
                return began.elapsed();
            }
            let left = Duration::from_secs(30).saturating_sub(began.elapsed());
            assert!(left > Duration::ZERO, "not in time: {what}\n{status:#?}\n{:#?}", self.containers());
            let _ = tokio::time::timeout(left, statuses.changed()).await;
        }
    }

    /// Waits until the pod runs and is ready.
    pub async fn until_ready(&self, name: &str) -> Duration {
        self.until(name, "ready", |s| s.is_some_and(|s| s.phase == PodPhase::Running && s.is_ready())).await
    }

    /// Waits until there is no container of the pod and no status.
    pub async fn until_gone(&self, name: &str) -> Duration {
        self.until(name, "gone", |s| s.is_none()).await
    }

    /// Container names and states from `docker ps`.
    pub fn containers(&self) -> BTreeMap<String, String> {
        let filter = format!("label=minik8s.io/instance={}", self.instance);
        let out = docker(&["ps", "-a", "--filter", &filter, "--format", "{{.Names}} {{.State}}"]);
        out.lines().filter_map(|l| l.split_once(' ')).map(|(n, s)| (n.to_owned(), s.to_owned())).collect()
    }

    /// Docker's name of a container's current start.
    pub fn container(&self, name: &str, container: &str) -> String {
        let prefix = format!("{}_{container}_{name}_default_", self.instance);
        let attempt = |n: &str| n.rsplit('_').next().and_then(|a| a.parse::<u32>().ok()).unwrap_or_default();
        self.containers()
            .into_keys()
            .filter(|n| n.starts_with(&prefix))
            .max_by_key(|n| attempt(n))
            .unwrap_or_else(|| panic!("no container {prefix}: {:?}", self.containers()))
    }

    /// Runs a script in a container and returns its output.
    pub fn exec(&self, name: &str, container: &str, script: &str) -> String {
        docker(&["exec", &self.container(name, container), "sh", "-c", script])
    }
}

/// Runs the docker command and returns its output.
pub fn docker(args: &[&str]) -> String {
    let out = Command::new("docker").args(args).output().expect("docker runs");
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    assert!(out.status.success(), "docker {args:?}: {}{text}", String::from_utf8_lossy(&out.stderr));
    text
}

/// A container that runs a shell script.
pub fn shell(name: &str, script: &str) -> Container {
    Container {
        name: name.into(),
        image: IMAGE.into(),
        command: vec!["/bin/sh".into(), "-c".into(), script.into()],
        ..Container::default()
    }
}

/// A pod of these containers with a short grace period.
pub fn pod(containers: Vec<Container>) -> PodSpec {
    PodSpec { containers, termination_grace_period_seconds: 1, ..PodSpec::default() }
}

/// Makes a state directory that of a node which has joined a cluster.
pub fn join(state_dir: &Path, node: &str) {
    let dir = TrustDir::new(state_dir.join("agent/pki"));
    let validity = (Timestamp::now(), SignedDuration::from_hours(12));
    enroll(&dir, &authority(), &format!("node-{node}"), validity);
}

pub fn ensure_image() {
    let there = Command::new("docker").args(["image", "inspect", IMAGE]).output().expect("docker runs");
    if there.status.success() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let make = |path: &Path| {
        format!(
            "set -e; cd {}; mkdir -p bin etc tmp root; cp $(command -v busybox) bin/busybox; \
             for a in $(bin/busybox --list); do [ $a = busybox ] || ln -sf busybox bin/$a; done; \
             echo root:x:0:0:root:/root:/bin/sh > etc/passwd; tar c . | docker import - {IMAGE}",
            path.display()
        )
    };
    let out = Command::new("sh").arg("-c").arg(make(folder.path())).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Pod files without a reconciler to fetch from.
fn files(state_dir: &Path) -> Arc<agent::files::PodFiles> {
    let store = Arc::new(MemoryStore::new());
    let source = agent::worlds::blobs::Reconcilers::new(Vec::new(), store);
    let keys = agent::files::Keys::open(&state_dir.join("age-identity.txt")).expect("it can be made");
    Arc::new(agent::files::PodFiles::new(state_dir, Arc::new(source), keys))
}
