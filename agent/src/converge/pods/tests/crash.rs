//! The agent dies after each single call of creating and deleting a pod; the next one must find
//! exactly one pod, or none, and nothing orphaned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::Ipv4Net;
use schema::control::{Driver, Nudge};
use schema::records::Binding;
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::reflector::{WorldPublisher, WorldReader};
use schema::world::{Versioned, World};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::super::{NoCredentials, PauseImage, PodsDeps, PodsLoop};
use super::{binding, spec, subnet};
use crate::converge::images::ImageBook;
use crate::worlds::docker::{DockerError, FakeDocker, Fault};
use crate::worlds::netlink::{Bridge, FakeNetlink, Netlink, NetlinkError, PodLink, Port, Route};
use crate::worlds::prober::FakeProber;

/// The fake kernel behind the fake engine's gate, so that a crash may come at its calls too.
struct Gated {
    kernel: FakeNetlink,
    docker: Arc<FakeDocker>,
}

impl Gated {
    async fn gate(&self, call: String) {
        let passed: Result<(), DockerError> = self.docker.gate(call, |_| Ok(())).await;
        passed.expect("no failures are scripted");
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
        let done = self.kernel.ensure_pod_link(link).await;
        self.gate(format!("link {}", link.host_name)).await;
        done
    }
    async fn remove_link(&self, name: &str) -> Result<bool, NetlinkError> {
        let done = self.kernel.remove_link(name).await;
        self.gate(format!("unlink {name}")).await;
        done
    }
    async fn list_pod_links(&self) -> Result<Vec<String>, NetlinkError> {
        self.kernel.list_pod_links().await
    }
    async fn list_routes(&self) -> Result<Vec<Route>, NetlinkError> {
        self.kernel.list_routes().await
    }
    async fn listeners(
        &self,
        named: &BTreeSet<Port>,
    ) -> Result<BTreeMap<Port, Option<String>>, NetlinkError> {
        self.kernel.listeners(named).await
    }
    async fn node_address(&self) -> Result<Option<std::net::IpAddr>, NetlinkError> {
        self.kernel.node_address().await
    }
    async fn uplink_mtu(&self) -> Result<Option<u32>, NetlinkError> {
        self.kernel.uplink_mtu().await
    }
}

pub(super) struct Rig {
    pub(super) docker: Arc<FakeDocker>,
    pub(super) prober: Arc<FakeProber>,
    pub(super) store: Arc<MemoryStore>,
    netlink: Arc<Gated>,
    state: tempfile::TempDir,
    world: World,
    publisher: WorldPublisher,
    reader: WorldReader,
}

impl Rig {
    pub(super) fn new() -> Self {
        let docker = Arc::new(FakeDocker::with_images(&["app:1"]));
        docker.engine().now = jiff::Timestamp::now();
        let netlink = Arc::new(Gated { kernel: FakeNetlink::default(), docker: Arc::clone(&docker) });
        let address: Ipv4Net = "10.244.3.1/24".parse().unwrap();
        let bridge = Bridge { name: "mk8s0".into(), address, mtu: 1500 };
        netlink.kernel.kernel().bridges.insert("mk8s0".into(), bridge);
        let mut world = World { synced: true, revision: 1, ..World::default() };
        world.subnets.insert("n1".into(), versioned(subnet()));
        world.settled.insert("n1".into(), versioned(schema::records::Settled::default()));
        let (publisher, reader) = WorldReader::channel(world.clone());
        Self {
            docker,
            prober: Arc::default(),
            store: Arc::new(MemoryStore::new()),
            netlink,
            state: tempfile::tempdir().unwrap(),
            world,
            publisher,
            reader,
        }
    }

    fn want(&mut self, wanted: bool) {
        self.want_pod(binding("web", spec(&["a", "b"])), wanted);
    }

    pub(super) fn want_pod(&mut self, web: Binding, wanted: bool) {
        let key = ("n1".to_owned(), web.pod.reference());
        if wanted {
            self.world.bindings.insert(key, versioned(web));
        } else {
            self.world.bindings.remove(&key);
        }
        self.world.revision += 1;
        self.publisher.publish(self.world.clone());
    }

    /// Runs an agent until `done`; it is killed then.
    pub(super) async fn agent_until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let (nudge, nudged) = Nudge::new();
        let (pod_table, _) = watch::channel(None);
        let events = CancellationToken::new();
        let the_loop = PodsLoop::new(PodsDeps {
            container_limits: Default::default(),
            node: "n1".into(),
            node_ip: "192.0.2.1".parse().unwrap(),
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
            world: self.reader.clone(),
            store: self.store.clone(),
            events: EventRecorder::spawn(self.store.clone(), "agent/n1", events.clone()),
            nudge,
            pod_table,
            credentials: Arc::new(NoCredentials),
            images: ImageBook::open(&self.state.path().join("agent")),
            files: files(self.state.path()),
        })
        .unwrap();
        let (last_run, _) = watch::channel(None);
        let driver = Driver::every(Duration::from_millis(50));
        let task = tokio::spawn(driver.run(the_loop, nudged, CancellationToken::new(), last_run));
        let waiting = async {
            while !done(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(100), waiting).await;
        task.abort();
        let _ = task.await;
        events.cancel();
        assert!(
            in_time.is_ok(),
            "not in time: {what}: {:?} {:?}",
            self.docker.running(),
            self.docker.engine().calls
        );
    }

    pub(super) fn complete(&self) -> bool {
        let running = self.docker.running();
        running.len() == 3 && running.values().all(|runs| *runs)
    }

    pub(super) fn empty(&self) -> bool {
        let folders = std::fs::read_dir(self.state.path().join("agent/pods")).map_or(0, Iterator::count);
        self.docker.running().is_empty() && self.netlink.kernel.kernel().links.is_empty() && folders == 0
    }

    fn crash_at(&self, call: usize) {
        let mut engine = self.docker.engine();
        engine.calls.clear();
        engine.fault = Some(Fault::Crash { call });
    }
}

fn versioned<T>(value: T) -> Arc<Versioned<T>> {
    Arc::new(Versioned { value, create_revision: 1, mod_revision: 1 })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_any_call_of_a_creation_the_next_agent_makes_exactly_one_pod() {
    let mut crashes = 0;
    for call in 1..30 {
        let mut rig = Rig::new();
        rig.crash_at(call);
        rig.want(true);
        rig.agent_until("crash or completion", |rig| rig.docker.has_crashed() || rig.complete()).await;
        let crashed = rig.docker.has_crashed();
        rig.docker.revive();
        rig.agent_until(&format!("whole after a crash at {call}"), Rig::complete).await;
        let names: Vec<String> = rig.docker.running().into_keys().collect();
        assert!(
            names.iter().all(|name| name.ends_with("_0")),
            "crash at {call} restarted something: {names:?}"
        );
        assert_eq!(rig.netlink.kernel.kernel().links.len(), 1, "crash at {call}");
        if !crashed {
            break;
        }
        crashes += 1;
    }
    // create ×3 (the first without its image), load, start ×3, link.
    assert_eq!(crashes, 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_any_call_of_a_deletion_the_next_agent_leaves_nothing() {
    let mut crashes = 0;
    for call in 1..30 {
        let mut rig = Rig::new();
        rig.want(true);
        rig.agent_until("complete", Rig::complete).await;
        rig.crash_at(call);
        rig.want(false);
        rig.agent_until("crash or end", |rig| rig.docker.has_crashed() || rig.empty()).await;
        let crashed = rig.docker.has_crashed();
        rig.docker.revive();
        rig.agent_until(&format!("nothing after a crash at {call}"), Rig::empty).await;
        if !crashed {
            break;
        }
        crashes += 1;
    }
    // stop ×2, remove ×3, unlink.
    assert_eq!(crashes, 6);
}

/// Files of nobody: no reconciler is there.
fn files(state_dir: &std::path::Path) -> Arc<crate::files::PodFiles> {
    let store = Arc::new(MemoryStore::new());
    let source = crate::worlds::blobs::Reconcilers::new(Vec::new(), store);
    let keys = crate::files::Keys::open(&state_dir.join("age-identity.txt")).expect("it can be made");
    Arc::new(crate::files::PodFiles::new(state_dir, Arc::new(source), keys))
}
