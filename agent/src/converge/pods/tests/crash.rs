//! The agent dies at each call of creating and deleting a pod that has everything a pod may have, twice: before the
//! call takes effect, and after it but before its answer. The next agent must produce exactly the same state as an
//! undisturbed one: exactly one pod, or nothing, and no orphan.
//!
//! Counted are the changing calls of the engine and of the kernel's links, a preStop hook among them; mounts are
//! real.
//! Probes run over the network at their own times and are not counted.
//!
//! The creation is red when a container that was created but not started counts as running (`State::Created` in
//! machine.rs), the deletion when `plan_unwanted` in plan.rs leaves folders without containers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use ipnet::Ipv4Net;
use schema::control::Row;
use schema::kinds::pod::PodSpec;
use schema::records::Binding;
use schema::snapshot::Snapshot;
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::reflector::{SnapshotPublisher, SnapshotReader};
use schema::testing::{subnet, versioned};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::binding;
use crate::converge::pods::volume::folders;
use crate::converge::pods::{NodeMemory, PauseImage, PodsDeps, PodsLoop};
use crate::converge::shared::image_store::ImageBook;
use crate::converge::shared::node_network::{PodTable, SandboxedPods};
use crate::files::registry_logins::NoCredentials;
use crate::names;
use crate::node_address::NodeAddress;
use crate::worlds::docker::{DockerError, FakeDocker, Fault, Namespaces};
use crate::worlds::netlink::{
    Bridge, FakeNetlink, HostEnd, Listener, Netlink, NetlinkError, PodLink, Port, Route,
};
use crate::worlds::prober::FakeProber;

/// The fake kernel behind the fake engine's gate, so that a crash can also hit its calls.
struct Gated {
    kernel: FakeNetlink,
    docker: Arc<FakeDocker>,
}

impl Gated {
    /// Makes a changing call that a crash may prevent, or whose answer it may discard.
    async fn gate<T>(&self, call: String, effect: impl Future<Output = T>) -> T {
        let now = |effect| FutureExt::now_or_never(effect).expect("the fake kernel answers at once");
        let done: Result<T, DockerError> = self.docker.gate(call, |_| Ok(now(Box::pin(effect)))).await;
        done.expect("no failures are scripted")
    }
}

#[async_trait]
impl Netlink for Gated {
    async fn ensure_bridge(&self, bridge: &Bridge) -> Result<bool, NetlinkError> {
        self.kernel.ensure_bridge(bridge).await
    }
    async fn bridge_is_whole(&self, bridge: &Bridge) -> Result<bool, NetlinkError> {
        self.kernel.bridge_is_whole(bridge).await
    }
    async fn remove_bridge(&self, name: &str) -> Result<bool, NetlinkError> {
        self.kernel.remove_bridge(name).await
    }
    async fn ensure_pod_link(&self, link: &PodLink) -> Result<bool, NetlinkError> {
        self.gate(format!("link {}", link.host_name), self.kernel.ensure_pod_link(link)).await
    }
    async fn remove_link(&self, name: &str) -> Result<bool, NetlinkError> {
        self.gate(format!("unlink {name}"), self.kernel.remove_link(name)).await
    }
    async fn list_pod_links(&self) -> Result<BTreeMap<String, HostEnd>, NetlinkError> {
        self.kernel.list_pod_links().await
    }
    async fn list_routes(&self) -> Result<Vec<Route>, NetlinkError> {
        self.kernel.list_routes().await
    }
    async fn listeners(&self, named: &BTreeSet<Port>) -> Result<BTreeMap<Port, Listener>, NetlinkError> {
        self.kernel.listeners(named).await
    }
    async fn connections(&self, pid: i32, port: u16) -> Result<usize, NetlinkError> {
        self.kernel.connections(pid, port).await
    }
    async fn node_address(&self) -> Result<Option<std::net::IpAddr>, NetlinkError> {
        self.kernel.node_address().await
    }
    async fn uplink_mtu(&self) -> Result<Option<u32>, NetlinkError> {
        self.kernel.uplink_mtu().await
    }
}

pub(in crate::converge::pods) struct Rig {
    pub(in crate::converge::pods) docker: Arc<FakeDocker>,
    pub(in crate::converge::pods) prober: Arc<FakeProber>,
    pub(in crate::converge::pods) store: Arc<MemoryStore>,
    netlink: Arc<Gated>,
    /// Sandboxed pods of functions, as the network loop reports them.
    pub(in crate::converge::pods) sandboxed: watch::Sender<SandboxedPods>,
    /// Pod table for the network loop.
    pub(in crate::converge::pods) table: watch::Sender<PodTable>,
    state: tempfile::TempDir,
    snapshot: Snapshot,
    publisher: SnapshotPublisher,
    reader: SnapshotReader,
}

impl Rig {
    pub(in crate::converge::pods) fn new() -> Self {
        let docker = Arc::new(FakeDocker::with_images(&["app:1", "init:1"]));
        docker.engine().now = jiff::Timestamp::now();
        docker.engine().brief.insert("init:1".into());
        let netlink = Arc::new(Gated { kernel: FakeNetlink::default(), docker: Arc::clone(&docker) });
        let address: Ipv4Net = "10.244.3.1/24".parse().unwrap();
        let bridge = Bridge {
            name: "mk8s0".into(),
            address,
            vips: vec!["10.96.0.10".parse().unwrap()],
            services: "10.96.0.0/16".parse().unwrap(),
            mtu: 1500,
        };
        netlink.kernel.kernel().bridges.insert("mk8s0".into(), bridge);
        let mut snapshot = Snapshot { synced: true, revision: 1, ..Snapshot::default() };
        snapshot.subnets.insert("n1".into(), versioned(subnet("10.244.3.0/24")));
        snapshot.settled.insert("n1".into(), versioned(schema::records::SettledRecord::default()));
        let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
        Self {
            docker,
            prober: Arc::default(),
            store: Arc::new(MemoryStore::new()),
            netlink,
            sandboxed: watch::Sender::default(),
            table: watch::Sender::new(None),
            state: tempfile::tempdir().unwrap(),
            snapshot,
            publisher,
            reader,
        }
    }

    fn want(&mut self, wanted: bool) {
        self.want_pod(binding("web", everything()), wanted);
    }

    pub(in crate::converge::pods) fn want_pod(&mut self, web: Binding, wanted: bool) {
        let key = ("n1".to_owned(), web.pod.reference());
        if wanted {
            self.snapshot.bindings.insert(key, versioned(web));
        } else {
            self.snapshot.bindings.remove(&key);
        }
        self.snapshot.revision += 1;
        self.publisher.publish(self.snapshot.clone());
    }

    /// Removes every pod from the desired state, even while an agent runs.
    pub(in crate::converge::pods) fn unwant_all(&self) {
        let mut snapshot = self.snapshot.clone();
        snapshot.bindings.clear();
        snapshot.revision += 1;
        self.publisher.publish(snapshot);
    }

    /// Runs an agent until `done`; it is killed then.
    pub(in crate::converge::pods) async fn agent_until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let row = Row::every(Duration::from_millis(50));
        let ended = CancellationToken::new();
        let (events, writing) = EventRecorder::writing(self.store.clone(), "n1", "agent/n1", ended.clone());
        tokio::spawn(writing);
        let (the_loop, helpers) = PodsLoop::new(PodsDeps {
            container_limits: Default::default(),
            cpu: Default::default(),
            memory: NodeMemory { bytes: 1 << 30, oom_score_min: 0 },
            pod_security_floor: Default::default(),
            dns: watch::channel(Default::default()).1,
            node: "n1".into(),
            address: NodeAddress::channel(Some([192, 0, 2, 1].into())).1,
            instance: "mk8s".into(),
            state_dir: self.state.path().to_owned(),
            mtu: 1500,
            docker: self.docker.clone(),
            netlink: self.netlink.clone(),
            prober: self.prober.clone(),
            pause_image: PauseImage {
                reference: "pause:1".into(),
                archive: Arc::new(|| b"pause:1".to_vec()),
            },
            snapshot: self.reader.clone(),
            store: self.store.clone(),
            events,
            nudge: row.nudge(),
            pod_table: self.table.clone(),
            credentials: Arc::new(NoCredentials),
            peers: Arc::new(crate::worlds::peers::NoPeers),
            images: ImageBook::open(&self.state.path().join("agent")),
            files: files(self.state.path()),
            catalog: watch::channel(Arc::default()).1,
            programmed: watch::channel(0).1,
            sandboxed: self.sandboxed.subscribe(),
        })
        .unwrap();
        helpers.into_iter().for_each(|(_, helper)| drop(tokio::spawn(helper)));
        let (last_run, _) = watch::channel(None);
        let row = the_loop.wake(row);
        let task = tokio::spawn(row.run(the_loop, CancellationToken::new(), last_run));
        let waiting = async {
            while !done(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(100), waiting).await;
        task.abort();
        let _ = task.await;
        ended.cancel();
        assert!(
            in_time.is_ok(),
            "not in time: {what}: {:?} {:?}",
            self.docker.running(),
            self.docker.engine().calls
        );
    }

    pub(in crate::converge::pods) fn complete(&self) -> bool {
        let running = self.docker.running();
        let specs = self.snapshot.bindings.values().map(|binding| &binding.value.pod.spec);
        let wanted: usize = specs.map(|spec| 1 + spec.init_containers.len() + spec.containers.len()).sum();
        running.len() == wanted && running.iter().all(|(name, runs)| *runs || name.contains("_init_"))
    }

    pub(in crate::converge::pods) fn empty(&self) -> bool {
        let links = self.netlink.kernel.kernel().links.is_empty();
        self.docker.running().is_empty() && links && folders::folders(self.state.path()).is_empty()
    }

    pub(in crate::converge::pods) fn state_dir(&self) -> &std::path::Path {
        self.state.path()
    }

    pub(in crate::converge::pods) fn has_folder(&self, uid: &str) -> bool {
        folders::folders(self.state.path()).iter().any(|folder| folder == uid)
    }

    fn fault(&self, fault: Fault) {
        let mut engine = self.docker.engine();
        engine.calls.clear();
        engine.fault = Some(fault);
    }

    /// Returns how many calls began like this.
    pub(in crate::converge::pods) fn calls_of(&self, begin: &str) -> usize {
        self.calls().iter().filter(|call| call.starts_with(begin)).count()
    }

    fn calls(&self) -> Vec<String> {
        self.docker.engine().calls.iter().map(|call| call.0.clone()).collect()
    }

    /// Lists the whole state, without ids, pids and this test's folder, which differ between runs.
    fn everything_there_is(&self) -> BTreeSet<String> {
        let state = self.state.path().display().to_string();
        let (engine, kernel) = (self.docker.engine(), self.netlink.kernel.kernel());
        let name_of: BTreeMap<&str, &str> =
            engine.containers.values().map(|c| (c.row.id.as_str(), c.row.name.as_str())).collect();
        let containers = engine.containers.values().map(|c| {
            let mut new = c.new.clone();
            for (key, value) in &mut new.labels {
                if key == names::SANDBOX {
                    *value = name_of.get(value.as_str()).map_or("unknown", |name| *name).to_owned();
                }
            }
            if let Namespaces::Join { pause, .. } = &mut new.namespaces {
                *pause = name_of.get(pause.as_str()).map_or("unknown", |name| *name).to_owned();
            }
            let (state, code) = (c.row.state, c.details.exit_code);
            format!("container {} {state:?} {code} {new:?}", c.row.name)
        });
        let links =
            kernel.links.values().map(|link| format!("link {:?}", PodLink { pause_pid: 0, ..link.clone() }));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
        let mounts = mounts.into_iter().filter(|at| at.starts_with(&state)).map(|at| format!("mount {at}"));
        // Probe results are written at their own times.
        let books = |path: &String| path.ends_with("/probes.json") || path.ends_with("/probes.tmp");
        let files = files_below(self.state.path()).into_iter().filter(|path| !books(path));
        let files = files.map(|path| format!("file {path}"));
        containers.chain(links).chain(mounts).chain(files).map(|line| line.replace(&state, "STATE")).collect()
    }
}

/// Unmounts everything, also when the test fails.
impl Drop for Rig {
    fn drop(&mut self) {
        for uid in folders::folders(self.state.path()) {
            let _ = folders::remove_pod(self.state.path(), &uid);
        }
    }
}

fn files_below(folder: &std::path::Path) -> Vec<String> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        list.push(entry.path().display().to_string());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list.extend(files_below(&entry.path()));
        }
    }
    list
}

/// A pod with everything that can be created or mounted for one.
fn everything() -> PodSpec {
    let mounts = serde_json::json!([
        {"name": "disk", "mountPath": "/disk"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "disk", "mountPath": "/part", "subPath": "deep/er"}
    ]);
    let probe = serde_json::json!({"tcpSocket": {"port": 80}, "periodSeconds": 1});
    let pod = serde_json::json!({
        "terminationGracePeriodSeconds": 1,
        "volumes": [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
        ],
        "initContainers": [
            {"name": "side", "image": "app:1", "restartPolicy": "Always"},
            {"name": "init", "image": "init:1", "volumeMounts": mounts}
        ],
        "containers": [
            {"name": "a", "image": "app:1", "volumeMounts": mounts,
             "ports": [{"containerPort": 80, "hostPort": 8080}],
             "readinessProbe": probe, "livenessProbe": probe,
             "lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}},
            {"name": "b", "image": "app:1", "volumeMounts": mounts}
        ]
    });
    serde_json::from_value(pod).unwrap()
}

/// Runs an undisturbed agent; returns the resulting state and the calls.
async fn undisturbed() -> (BTreeSet<String>, Vec<String>) {
    let mut rig = Rig::new();
    rig.want(true);
    rig.agent_until("complete", Rig::complete).await;
    (rig.everything_there_is(), rig.calls())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_call_of_a_creation_the_next_agent_makes_the_same_pod() {
    let (whole, calls) = undisturbed().await;
    // create ×5, the first once more because its image was missing, load, start ×5, link.
    assert_eq!(calls.len(), 13, "{calls:?}");
    for call in 1..=calls.len() {
        for fault in [Fault::CrashBefore { call }, Fault::Crash { call }] {
            let mut rig = Rig::new();
            rig.fault(fault.clone());
            rig.want(true);
            rig.agent_until("the crash", |rig| rig.docker.has_crashed()).await;
            rig.docker.revive();
            rig.agent_until(&format!("whole after {fault:?}"), Rig::complete).await;
            assert_eq!(rig.everything_there_is(), whole, "{fault:?} of {calls:?}, then {:?}", rig.calls());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_call_of_a_deletion_the_next_agent_leaves_nothing() {
    // The hook, stop ×3, remove ×5, unlink.
    const CALLS: usize = 10;
    for call in 1..=CALLS + 1 {
        for fault in [Fault::CrashBefore { call }, Fault::Crash { call }] {
            let mut rig = Rig::new();
            let before = rig.everything_there_is();
            rig.want(true);
            rig.agent_until("complete", Rig::complete).await;
            rig.fault(fault.clone());
            rig.want(false);
            rig.agent_until("crash or end", |rig| rig.docker.has_crashed() || rig.empty()).await;
            // The hook may run again while the container runs: an agent does not know whether an earlier run ended.
            assert!(rig.calls().iter().any(|call| call.ends_with(" bye")) || call < 3, "{:?}", rig.calls());
            assert_eq!(rig.docker.has_crashed(), call <= CALLS, "{fault:?}: {:?}", rig.calls());
            rig.docker.revive();
            rig.agent_until(&format!("nothing after {fault:?}"), Rig::empty).await;
            let mut left = rig.everything_there_is();
            left.retain(|line| !before.contains(line) && !is_the_agents_own(line));
            assert!(left.is_empty(), "{fault:?}: {left:?}");
        }
    }
}

/// True for a line of an agent's state directory that exists without any pod.
fn is_the_agents_own(line: &str) -> bool {
    // The test's own file: the identity is next to the agent's folder.
    if line == "file STATE/age-identity.txt" {
        return true;
    }
    let Some(path) = line.strip_prefix("file STATE/agent") else { return false };
    let own = ["", "/pods", "/desired", "/desired/complete", "/desired/settled", "/subnet.json"];
    let books = ["/images.json", "/pulls.json", "/blobs"];
    own.contains(&path) || books.contains(&path)
}

/// Pod files without a reconciler to fetch from.
fn files(state_dir: &std::path::Path) -> Arc<crate::files::PodFiles> {
    let store = Arc::new(MemoryStore::new());
    let source = crate::worlds::blobs::Reconcilers::new(Vec::new(), store);
    let keys = crate::files::Keys::open(&state_dir.join("age-identity.txt")).expect("it can be made");
    Arc::new(crate::files::PodFiles::new(state_dir, Arc::new(source), keys))
}
