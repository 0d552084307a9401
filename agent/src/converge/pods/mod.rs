//! The pods loop: converges this node's containers to its bindings.
//!
//! Reads Docker, links, folders and [`DesiredState`]; `plan.rs` decides for the whole node; each pod has its own task,
//! so that a slow pull or stop holds up no other pod; writes `status/<node>/pods/…`.

pub mod fetch;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Nudge, Observation, Row, lock};
use schema::kinds::cluster::PodSecurity;
use schema::kinds::pod::PodStatus;
use schema::quantity::Cpu;
use schema::records::dns_address;
use schema::snapshot::Snapshot;
use schema::store::SharedStore;
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::shared::image_store::ImageBook;
use super::shared::node_network::{NodeDns, PodNet, PodTable, SandboxedPods};
use super::shared::pulls::Pulls;
use crate::catalog::Catalog;
use crate::desired::{DesiredState, DesiredStore, DiskError, ETCD_GRACE, StateOrigin};
use crate::files::PodFiles;
use crate::node_address::NodeAddress;
use crate::worlds::docker::Docker;
use crate::worlds::netlink::Netlink;
use crate::worlds::peers::ImageSource;
use crate::worlds::prober::Prober;
use schema::control::publish;

pub mod act;
pub mod container;
pub mod facts;
pub mod observe;
pub mod plan;
pub mod probe;
pub mod report;
pub mod sandbox;
pub mod status;
pub mod steps;
pub mod supervisor;
#[cfg(test)]
mod tests;
pub mod volume;
pub mod worker;

pub use crate::files::registry_logins::Credentials;
#[cfg(any(test, feature = "fakes"))]
pub use crate::files::registry_logins::NoCredentials;
pub use facts::{ContainerLimits, NodeFacts, NodeMemory, Observed};
pub use status::statuses::{Statuses, publish_reported};
pub use steps::PodsPlan;
pub use worker::PauseArchive;

use self::facts::{PodFacts, Uid};
use self::observe::ContainerObserver;
use self::probe::perform::ActionRunner;
use self::probe::runner::ProbeRunner;
use self::status::statuses::{FINAL_REPORT_MAX, FinalReports, last_reported};
use self::supervisor::Supervisor;
use self::worker::Worker;
use probe::health_store::HealthBook;
use probe::machine::Targets;
use sandbox::drain::DrainBook;
use status::statuses::FinishedBook;

/// Maximum number of pods created concurrently: more are not faster on Docker, and hold each other up.
const CREATIONS: usize = 4;

/// Maximum number of containers stopped concurrently: a stop mostly waits, up to its grace period, and a pod with a
/// long one must not hold up the others. More than two for each pod of a full node.
const STOPS: usize = 256;

#[derive(Clone)]
pub struct PauseImage {
    pub reference: String,
    pub archive: PauseArchive,
}

/// Dependencies of the loop.
pub struct PodsDeps {
    pub node: String,
    pub address: NodeAddress,
    pub instance: String,
    pub state_dir: PathBuf,
    pub mtu: u32,
    pub container_limits: ContainerLimits,
    pub cpu: Cpu,
    pub memory: NodeMemory,
    /// Restrictions on the pods that this node creates.
    pub pod_security_floor: Arc<PodSecurity>,
    pub dns: watch::Receiver<NodeDns>,
    pub docker: Arc<dyn Docker>,
    pub netlink: Arc<dyn Netlink>,
    pub prober: Arc<dyn Prober>,
    pub pause_image: PauseImage,
    pub snapshot: SnapshotReader,
    pub store: SharedStore,
    pub events: EventRecorder,
    pub nudge: Nudge,
    pub pod_table: watch::Sender<PodTable>,
    pub credentials: Arc<dyn Credentials>,
    pub images: Arc<ImageBook>,
    /// Source of function images.
    pub peers: Arc<dyn ImageSource>,
    pub files: Arc<PodFiles>,
    /// Services, to find out who may still route clients to a leaving pod.
    pub catalog: watch::Receiver<Arc<Catalog>>,
    /// Newest revision of etcd that this node's rules reflect.
    pub programmed: watch::Receiver<i64>,
    /// Function pods whose rules are in place.
    pub sandboxed: watch::Receiver<SandboxedPods>,
}

/// A named task that runs next to the loop: without it the loop would run without input or without reports.
pub type Helper = (&'static str, BoxFuture<'static, ()>);

/// The loop. Dropping it aborts its tasks; the next one continues from the existing state.
pub struct PodsLoop {
    node: Arc<NodeFacts>,
    desired: Arc<Mutex<DesiredStore>>,
    snapshot: SnapshotReader,
    /// Snapshot that the current run was planned on.
    planned_on: Snapshot,
    nudge: Nudge,
    observer: ContainerObserver,
    netlink: Arc<dyn Netlink>,
    address: NodeAddress,
    dns: watch::Receiver<NodeDns>,
    catalog: watch::Receiver<Arc<Catalog>>,
    worker: Worker,
    supervisor: Supervisor,
    book: HealthBook,
    probes: watch::Sender<Arc<Targets>>,
    pod_table: watch::Sender<PodTable>,
    /// Function pods that this run starts to create, or found being created.
    starting: BTreeMap<Uid, PodNet>,
    statuses: watch::Sender<Statuses>,
    images: Arc<ImageBook>,
    finished: FinishedBook,
    last_words: FinalReports,
    drains: DrainBook,
    started: Instant,
    _guard: DropGuard,
}

impl PodsDeps {
    fn node_facts(&self) -> NodeFacts {
        NodeFacts {
            node: self.node.clone(),
            node_ip: self.address.or_loopback(),
            instance: self.instance.clone(),
            state_dir: self.state_dir.clone(),
            pause_image: self.pause_image.reference.clone(),
            mtu: self.mtu,
            container_limits: self.container_limits,
            cpu: self.cpu,
            memory: self.memory,
            pod_security: self.catalog.borrow().settings.spec.pod_security.clone(),
            pod_security_floor: Arc::clone(&self.pod_security_floor),
            dns: self.dns.borrow().clone(),
        }
    }
}

impl PodsLoop {
    /// Creates the loop and its helpers, which end when it is dropped: probes and the writers of its reports. Reads
    /// the disk.
    pub fn new(deps: PodsDeps) -> Result<(Self, Vec<Helper>), DiskError> {
        let desired = DesiredStore::open(&deps.state_dir, &deps.node)?;
        let shutdown = CancellationToken::new();
        let node = Arc::new(deps.node_facts());
        let worlds = (Arc::clone(&deps.netlink), Arc::clone(&deps.store));
        let drains = DrainBook::new(&deps.node, deps.catalog.clone(), deps.programmed, worlds);
        let (statuses, newest) = watch::channel(Statuses::default());
        let writer = status::statuses::status_writer(deps.node, deps.store, deps.snapshot.clone());
        let asker = ActionRunner { docker: Arc::clone(&deps.docker), prober: deps.prober };
        let book = HealthBook::open(&node.state_dir, deps.nudge.clone());
        let (probes, wanted) = watch::channel(Arc::default());
        let runner = ProbeRunner::new(asker.clone(), book.clone(), deps.events.clone());
        let helpers = vec![
            ("pod statuses", writer.run(newest, shutdown.clone()).boxed()),
            ("probe results", book.clone().run(shutdown.clone()).boxed()),
            ("probes", runner.run(wanted, shutdown.clone()).boxed()),
        ];
        let supervisor = Supervisor::new(deps.nudge.clone());
        let worker = Worker {
            actions: asker,
            docker: Arc::clone(&deps.docker),
            netlink: Arc::clone(&deps.netlink),
            node: Arc::clone(&node),
            sandboxed: deps.sandboxed,
            pause_archive: deps.pause_image.archive,
            reporter: supervisor.reporter(),
            events: deps.events,
            files: deps.files,
            creations: Arc::new(Semaphore::new(CREATIONS)),
            stops: Arc::new(Semaphore::new(STOPS)),
            pulls: Pulls::new(deps.docker.clone(), Arc::clone(&deps.images), deps.peers),
            credentials: deps.credentials,
        };
        let pods = Self {
            node,
            desired: Arc::new(Mutex::new(desired)),
            snapshot: deps.snapshot,
            planned_on: Snapshot::default(),
            nudge: deps.nudge,
            observer: ContainerObserver::new(deps.docker, deps.instance),
            netlink: deps.netlink,
            address: deps.address,
            dns: deps.dns,
            catalog: deps.catalog,
            worker,
            supervisor,
            book,
            probes,
            pod_table: deps.pod_table,
            starting: BTreeMap::new(),
            statuses,
            images: deps.images,
            finished: FinishedBook::default(),
            last_words: FinalReports::default(),
            drains,
            started: Instant::now(),
            _guard: shutdown.drop_guard(),
        };
        Ok((pods, helpers))
    }

    /// Adds the loop's wake-up sources to its row: etcd, the moment from which it does without etcd, its containers.
    pub fn wake(&self, row: Row) -> Row {
        let row = row.wake_if(self.snapshot.clone(), Duration::ZERO, is_news).wake_by(observe::at_grace);
        let events = self.worker.events.clone();
        self.observer.wake(row, move |draft| events.record(draft))
    }

    /// Returns the newest statuses, as they are, or will be, in etcd.
    pub fn statuses(&self) -> watch::Receiver<Statuses> {
        self.statuses.subscribe()
    }

    /// Saves how pods ended before anything of them is removed: without the file nothing is removed.
    async fn save_final_statuses(&mut self, plan: &mut PodsPlan) {
        for (uid, status) in std::mem::take(&mut plan.final_statuses) {
            let Err(error) = self.finished.keep(&self.node, status).await else { continue };
            let Some(decision) = plan.pods.get_mut(&uid) else { continue };
            tracing::error!(pod = %decision.pod, %error, "end of the pod not saved; its containers stay");
            decision.task = None;
        }
    }

    fn desired(&self) -> MutexGuard<'_, DesiredStore> {
        lock(&self.desired)
    }

    /// Returns the policy in force. From the snapshot that the pods come from, because the catalog may be a moment
    /// older; without one in etcd, the last known.
    fn pod_security(&self, snapshot: &Snapshot) -> PodSecurity {
        match snapshot.settings.get(&()) {
            Some(settings) => settings.value.spec.pod_security.clone(),
            None => self.catalog.borrow().settings.spec.pod_security.clone(),
        }
    }

    /// Saves the desired state before it is acted on. If the disk rejects it the former state stays in force;
    /// returns false then, unless the current run was planned on the former state.
    async fn save_desired(&self) -> bool {
        let snapshot = self.planned_on.clone();
        if self.desired().is_taken(&snapshot) {
            return true;
        }
        let planned_on_former = self.desired().is_unsaved(&snapshot);
        let store = Arc::clone(&self.desired);
        let take = move || lock(&store).take(&snapshot);
        let saved = match tokio::task::spawn_blocking(take).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::error!(%error, "desired state not saved; the former one stays in force");
                false
            }
            // Fails only when the runtime shuts down: do nothing then.
            Err(_) => return false,
        };
        if saved == planned_on_former {
            self.nudge.nudge();
        }
        saved || planned_on_former
    }
}

#[async_trait]
impl Loop for PodsLoop {
    type Observed = Observed;
    type Plan = PodsPlan;
    /// `None` if nothing was done.
    type Outcome = Option<PodsPlan>;

    fn name(&self) -> &'static str {
        "pods"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let left = ETCD_GRACE.saturating_sub(self.started.elapsed());
        if !self.snapshot.current().synced && left > Duration::ZERO {
            return Ok(Observation::NotReady("waiting for etcd's first list".to_owned()));
        }
        // Before the listing: a task that ends after this nudges the loop, and the next run handles it.
        let mut work = self.supervisor.take_reports().clone();
        let folders = {
            let node = Arc::clone(&self.node);
            tokio::task::spawn_blocking(move || volume::folders::folders(&node.state_dir))
        };
        let netlink = Arc::clone(&self.netlink);
        let snapshot = self.snapshot.current();
        let desired = self.desired().read(&snapshot);
        self.planned_on.clone_from(&snapshot);
        let (links, folders, pods) =
            futures::join!(netlink.list_pod_links(), folders, self.observer.observe());
        let mut pods = pods?;
        // After the listing: the exits of containers missing from it are known by now.
        work.exit_statuses.clone_from(&self.supervisor.take_reports().exit_statuses);
        let (snapshot, kept) = (self.snapshot.current(), self.book.kept());
        let finished = self.finished.update(&self.node, &desired, &snapshot).await;
        observe::fill_health(&mut pods, &kept, |pod| {
            let status = snapshot.pod_status.get(&(self.node.node.clone(), pod.clone()))?;
            let PodStatus { init_container_statuses, container_statuses, .. } = &status.value;
            Some(init_container_statuses.iter().chain(container_statuses).cloned().collect())
        });
        observe::fill_failing(&mut pods, &self.book.failing());
        if let Err(error) = &links {
            tracing::warn!(%error, "links of pods not listed");
        }
        let listeners = match sandbox::allocate::ports_to_allocate(&desired, &pods) {
            None => BTreeMap::new(),
            Some(named) => self.netlink.listeners(&named).await.unwrap_or_else(|error| {
                // A port too many is better than no pod at all.
                tracing::warn!(%error, "ports used by the node itself not listed");
                BTreeMap::new()
            }),
        };
        let mut dns = self.dns.borrow().clone();
        // A node's first range arrives here before the name server learns of it.
        dns.server = dns.server.or(desired.subnet.as_ref().map(|subnet| dns_address(subnet.service_cidr)));
        let draining = self.drains.draining(&pods, &desired, &snapshot, Timestamp::now()).await;
        Ok(Observation::Ready(Observed {
            listeners,
            draining,
            finished,
            last_reported: last_reported(&self.statuses.borrow(), &snapshot, &self.node.node),
            node: NodeFacts {
                dns,
                node_ip: self.address.or_loopback(),
                pod_security: self.pod_security(&snapshot),
                ..(*self.node).clone()
            },
            desired,
            pods,
            links: links.ok(),
            folders: folders.unwrap_or_default().into_iter().collect(),
            sweep_is_due: self.worker.files.is_sweep_due(),
            work,
        }))
    }

    fn plan(observed: &Observed, now: Timestamp) -> PodsPlan {
        plan::plan(observed, now)
    }

    async fn act(&mut self, observed: &Observed, mut plan: PodsPlan) -> Option<PodsPlan> {
        if !self.save_desired().await {
            return None;
        }
        self.images.set_wanted(wanted_images(&observed.desired));
        publish(&self.probes, Arc::new(std::mem::take(&mut plan.probes)));
        self.save_final_statuses(&mut plan).await;
        let there = observed.pods.values().flat_map(PodFacts::all).map(|c| c.id.as_str()).collect();
        self.book.keep_only(&there);
        self.supervisor.forget_containers_but(&there);
        self.starting = report::starting(observed, &plan);
        let unwritten = act::write_name_files(&mut plan).await;
        act::begin(&self.worker, &mut self.supervisor, &mut plan, observed, unwritten);
        if observed.desired.known_from != StateOrigin::Unknown {
            self.supervisor.forget_all_but(|uid| {
                observed.pods.contains_key(uid)
                    || observed.work.busy.contains_key(uid)
                    || plan.pods.contains_key(uid)
            });
        }
        if let Some(named) = plan.sweep.take() {
            self.supervisor.spawn(self.worker.files.sweep(named));
        }
        Some(plan)
    }

    async fn report(&mut self, observed: Observed, plan: Option<PodsPlan>) -> Result<Next, LoopError> {
        report::publish(&observed.pods, std::mem::take(&mut self.starting), &self.pod_table);
        let Some(plan) = plan else { return Ok(Next::Interval) };
        let now = Timestamp::now();
        let mut statuses = report::fold(&observed, &plan, &self.statuses.borrow(), now);
        let snapshot = self.snapshot.current();
        self.last_words.keep(&mut statuses, &self.statuses.borrow(), &snapshot, &self.node.node);
        let last_words = report::has_final_reports(&statuses, &observed).then_some(FINAL_REPORT_MAX);
        publish(&self.statuses, statuses);
        // No decision: the current report is withdrawn then, and nothing else wakes the loop for that.
        Ok(last_words.map_or(Next::Interval, Next::After))
    }
}

/// True if the snapshots differ in more than this loop's own reports. The last report on a pod counts: once it is shown
/// it is withdrawn.
fn is_news(before: &Snapshot, now: &Snapshot) -> bool {
    let but_reports = Snapshot { pod_status: before.pod_status.clone(), ..now.clone() };
    !but_reports.is_same_for_plans(before)
        || now.pod_status.values().any(|status| status.value.is_terminating())
}

/// Returns the images of all wanted pods; `None` if the wanted pods are not known.
fn wanted_images(desired: &DesiredState) -> Option<BTreeSet<String>> {
    if !desired.is_settled() || !desired.unreadable.is_empty() {
        return None;
    }
    let specs = desired.pods.values().map(|binding| &binding.pod.spec);
    let containers = specs.flat_map(|spec| spec.init_containers.iter().chain(&spec.containers));
    Some(containers.map(|container| container.image.clone()).collect())
}
