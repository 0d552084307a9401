//! `minik8s-agent run`: the wiring, as a table.
//!
//! First what must hold before anything starts, one function each, each failure one line; then the
//! loops with what they read and who wakes them. Nothing is taken down at the end: pods, links and
//! rules outlive the agent.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use jiff::Timestamp;
use schema::control::shutdown::Tasks;
use schema::control::{Driver, LastRun, Loop, Nudge, Nudged};
use schema::keys::prefix;
use schema::records::Subnet;
use schema::store::SharedStore;
use schema::store::etcd::LazyStore;
use schema::store::events::EventRecorder;
use schema::store::reflector::{self, SnapshotReader};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Api};
use crate::catalog::{self, Catalog, CatalogDisk, CatalogStore};
use crate::config::Config;
use crate::converge::dns::{self, DnsDeps, DnsLoop, NodeDns};
use crate::converge::gateway::{self, GatewayDeps, GatewayLoop};
use crate::converge::images::{ImageBook, ImagesDeps, ImagesLoop};
use crate::converge::network::mtu::pod_mtu;
use crate::converge::network::render::Names;
use crate::converge::network::{NetworkDeps, NetworkLoop, NetworkSettings, address_of_tunnel, changes};
use crate::converge::node::{HEARTBEAT_INTERVAL, NodeDeps, NodeLoop};
use crate::converge::pod_table::PodTable;
use crate::converge::pods::{PauseImage, PodsDeps, PodsLoop};
use crate::converge::services::{RulesWriter, ServicesDeps, ServicesLoop};
use crate::converge::usage::{self, UsageDeps, UsageLoop};
use crate::desired::{DesiredStore, Source};
use crate::files::{Keys, PodFiles};
use crate::instance_lock::{self, RUN_DIR};
use crate::node_address::NodeAddress;
use crate::standby::{self, Handover};
use crate::state_lock;
use crate::worlds::blobs::Reconcilers;
use crate::worlds::cgroups::RealCgroups;
use crate::worlds::disk::RealDisk;
use crate::worlds::docker::{Docker, RealDocker};
use crate::worlds::host::RealMachine;
use crate::worlds::iptables::{Iptables, RealIptables};
use crate::worlds::netlink::{Netlink, RealNetlink};
use crate::worlds::pause;
use crate::worlds::prober::RealProber;

/// How often containers are looked at when nothing is heard of them; Docker's events come at once.
const PODS_INTERVAL: Duration = Duration::from_secs(10);

/// How often the rules are looked at: a flush by someone else is healed in less than 5 s.
const NETWORK_INTERVAL: Duration = Duration::from_secs(3);

/// How often the gateway looks whether it listens and routes as it should; changes wake it.
const GATEWAY_INTERVAL: Duration = Duration::from_secs(60);

/// How often Docker's disk is looked at.
const IMAGES_INTERVAL: Duration = Duration::from_secs(60);

/// How long etcd may take to answer at the start.
const ETCD_PATIENCE: Duration = Duration::from_secs(2);

/// Longest wait after a failure of the network or node loop: rules are healed, and a heartbeat is
/// kept, within seconds after the cause is gone.
const FAILURE_MAX: Duration = Duration::from_secs(4);

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// One line that says what, where and what to do.
pub async fn run(config: Config) -> anyhow::Result<()> {
    require_root()?;
    crate::trees::require_openat2()?;
    // Held until the last task has ended.
    let lock = state_lock::take(&config.machine.agent_dir())?;
    let instance = match instance_lock::take(Path::new(RUN_DIR), &config.machine) {
        Ok(instance) => instance,
        Err(error) => {
            lock.undo();
            return Err(error.into());
        }
    };
    let ground = match prepare(&config).await {
        Ok(ground) => ground,
        Err(error) => {
            lock.undo();
            return Err(error);
        }
    };
    let mut tasks = Tasks::new();
    wire(&config, ground, &mut tasks)?;
    tracing::info!(node = %config.node, instance = %config.machine.instance, "the agent runs");
    tasks.run_until_signal().await?;
    tracing::info!("the agent stops; its pods go on");
    drop((instance, lock));
    Ok(())
}

/// What the loops stand on.
struct Ground {
    docker: Arc<dyn Docker>,
    netlink: Arc<RealNetlink>,
    iptables: Arc<dyn Iptables>,
    listener: TcpListener,
    store: Arc<LazyStore>,
    files: Arc<PodFiles>,
    /// As the disk knows it.
    subnet: Option<Subnet>,
    pod_mtu: u32,
    /// As far as it is known by now.
    node_ip: Option<IpAddr>,
}

/// What must hold before anything starts, cheapest first.
async fn prepare(config: &Config) -> anyhow::Result<Ground> {
    let docker = connect_docker(&config.machine.docker).await?;
    let netlink = Arc::new(RealNetlink::open(&config.machine.instance)?);
    let iptables: Arc<dyn Iptables> = Arc::new(RealIptables::new());
    iptables.save().await.context("cannot use iptables")?;
    let listener = bind(config).await?;
    let desired = DesiredStore::open(&config.machine.state_dir, &config.node)?;
    let store = open_store(config, desired.current().source).await?;
    load_pause_image(docker.as_ref()).await?;
    let keys = Keys::open_or_without(&config.age_identity);
    let source = Reconcilers::new(config.reconciler.clone(), Arc::clone(&store) as _);
    let files = PodFiles::new(&config.machine.state_dir, Arc::new(source), keys);
    Ok(Ground {
        node_ip: node_ip(config, netlink.as_ref()).await?,
        pod_mtu: pod_mtu(netlink.uplink_mtu().await?),
        subnet: desired.current().subnet.clone(),
        docker,
        netlink,
        iptables,
        listener,
        store,
        files: Arc::new(files),
    })
}

/// The loops: what each reads, and who wakes it.
fn wire(config: &Config, ground: Ground, tasks: &mut Tasks) -> anyhow::Result<()> {
    let Ground { docker, netlink, iptables, listener, store, files, subnet, pod_mtu, node_ip } = ground;
    let (addresses, address) = NodeAddress::channel(node_ip);
    wire_address(&address, &store, tasks);
    let store: SharedStore = store;
    let age_recipient = files.recipient().map(str::to_owned);
    let (instance, node) = (config.machine.instance.as_str(), config.node.as_str());
    let prefixes = vec![
        prefix::bindings_of(node),
        prefix::pod_status_of(node),
        prefix::SERVICES.to_owned(),
        prefix::ROUTES.to_owned(),
        prefix::NODES.to_owned(),
        prefix::SUBNETS.to_owned(),
        prefix::HEARTBEATS.to_owned(),
    ];
    let (snapshot, reflecting) = reflector::spawn(Arc::clone(&store), prefixes, tasks.token());
    tasks.adopt_critical("reflector", reflecting);
    let (subnets, subnet) = watch::channel(subnet);
    tasks.spawn_critical("subnet", follow_subnet(node.to_owned(), snapshot.clone(), subnets, tasks.token()));
    let (disk, known) = CatalogDisk::open(&config.machine.agent_dir());
    let store_of_catalog = CatalogStore::new(node, known);
    let (catalogs, catalog) = watch::channel(Arc::new(store_of_catalog.current().clone()));
    let following = catalog::follow(store_of_catalog, snapshot.clone(), catalogs, tasks.token());
    tasks.spawn_critical("catalog", following);
    tasks.spawn_critical("catalog to disk", catalog::keep(disk, catalog.clone(), tasks.token()));
    let events = EventRecorder::spawn(Arc::clone(&store), node, format!("agent/{node}"), tasks.token());
    let (rules, status) = watch::channel(None);
    let writer = RulesWriter::new(node, Arc::clone(&store));
    tasks.spawn_critical("rules status", writer.run(status, tasks.token()));
    let (programmed, rules_follow) = watch::channel(0);
    let services = ServicesLoop::new(ServicesDeps {
        node: node.to_owned(),
        address: address.clone(),
        instance: instance.to_owned(),
        iptables: Arc::clone(&iptables),
        subnet: subnet.clone(),
        catalog: catalog.clone(),
        events: events.clone(),
        status: rules,
        programmed,
    });
    let (nudge, nudged) = Nudge::new();
    drive(tasks, services, NETWORK_INTERVAL, nudged);
    nudge_on_change(tasks, "subnet to services", subnet.clone(), nudge.clone());
    nudge_on_change(tasks, "catalog to services", catalog.clone(), nudge.clone());
    nudge_on_change(tasks, "address to services", address.changes(), nudge.clone());
    let rules_changed = nudge;
    let handover = Handover::of(&config.machine.agent_dir());
    tasks.spawn_critical("standby", standby::keep(handover.clone(), tasks.token()));
    let known = Known { subnet: subnet.clone(), catalog: catalog.clone(), handover };
    let dns = wire_dns(config, Arc::clone(&netlink) as _, &known, tasks);
    let api = Api { docker: Arc::clone(&docker), instance: instance.to_owned() };
    tasks.spawn_critical("api", serve(listener, api, tasks.token()));

    let images = ImageBook::open(&config.machine.agent_dir());
    let (pod_tables, pod_table) = watch::channel::<PodTable>(None);
    let (nudge, nudged) = Nudge::new();
    nudge_on_change(tasks, "address to pods", address.changes(), nudge.clone());
    let mut pods = PodsLoop::new(PodsDeps {
        node: node.to_owned(),
        address: address.clone(),
        instance: instance.to_owned(),
        state_dir: config.machine.state_dir.clone(),
        mtu: pod_mtu,
        container_limits: config.container_limits,
        dns,
        docker: Arc::clone(&docker),
        netlink: Arc::clone(&netlink) as _,
        prober: Arc::new(RealProber::default()),
        pause_image: PauseImage { reference: pause::image_reference(), archive: Arc::new(pause::image_tar) },
        snapshot,
        store: Arc::clone(&store),
        events: events.clone(),
        nudge,
        pod_table: pod_tables,
        credentials: Arc::clone(&files) as _,
        images: Arc::clone(&images),
        files,
        catalog: catalog.clone(),
        programmed: rules_follow,
    })?;
    for (name, helper) in pods.take_helpers() {
        tasks.adopt_critical(name, helper);
    }
    drive(tasks, pods, PODS_INTERVAL, nudged);

    let usage = UsageLoop::new(UsageDeps {
        node: node.to_owned(),
        instance: instance.to_owned(),
        state_dir: config.machine.state_dir.clone(),
        docker: Arc::clone(&docker),
        cgroups: Arc::new(RealCgroups::new()),
        store: Arc::clone(&store),
    });
    let (_, never) = Nudge::new();
    drive(tasks, usage, usage::INTERVAL, never);
    let images = ImagesLoop::new(ImagesDeps {
        node: node.to_owned(),
        docker: Arc::clone(&docker),
        disk: Arc::new(RealDisk),
        book: images,
        thresholds: config.image_gc,
        events,
    });
    let (_, never) = Nudge::new();
    drive(tasks, images, IMAGES_INTERVAL, never);

    let machine = RealMachine::new(docker, address.clone());
    let (vteps, vtep) = watch::channel(None);
    let (nudge, nudged) = Nudge::new();
    let node_loop = NodeLoop::new(NodeDeps {
        node: node.to_owned(),
        listen: config.listen,
        address: address.clone(),
        age_recipient,
        store,
        machine: Arc::new(machine),
        subnet: subnet.clone(),
        vtep: vtep.clone(),
        since: Timestamp::now(),
    });
    drive(tasks, node_loop, HEARTBEAT_INTERVAL, nudged);
    nudge_on_change(tasks, "tunnel to node", vtep, nudge.clone());
    nudge_on_change(tasks, "address to node", address.changes(), nudge);

    let settings = NetworkSettings {
        node_ip: config.node_ip,
        vxlan: config.vxlan,
        tunnel_without_peers: config.dns.node_dns,
        ..NetworkSettings::new(instance, pod_mtu)
    };
    let (kernel, wakes_services) = (Arc::clone(&iptables), rules_changed.clone());
    let hearing = Arc::clone(&netlink);
    let network = NetworkLoop::new(
        settings,
        NetworkDeps {
            netlink: Arc::clone(&netlink) as _,
            tunnels: netlink,
            iptables,
            subnet: subnet.clone(),
            pods: pod_table.clone(),
            catalog: catalog.clone(),
            vtep: vteps,
            address: addresses,
            rules_changed,
        },
    );
    wire_gateway(node, known, tasks);
    let (nudge, nudged) = Nudge::new();
    drive(tasks, network, NETWORK_INTERVAL, nudged);
    nudge_on_change(tasks, "catalog to network", catalog, nudge.clone());
    nudge_on_change(tasks, "subnet to network", subnet, nudge.clone());
    nudge_on_change(tasks, "pods to network", pod_table, nudge.clone());
    wire_address_changes(&hearing, nudge.clone(), tasks);
    let waking = changes::watch(kernel, vec![wakes_services, nudge], tasks.token());
    tasks.spawn_critical("changes of packet rules", waking);
    Ok(())
}

/// What follows from the node's address beside the loops: etcd is reached from the new one.
fn wire_address(address: &NodeAddress, store: &Arc<LazyStore>, tasks: &mut Tasks) {
    let (mut changes, store, token) = (address.changes(), Arc::clone(store), tasks.token());
    let follow = async move {
        while changes.changed().await.is_ok() {
            store.reconnect();
        }
        // The writer ended; whoever watches over it ends the process.
        std::future::pending::<()>().await;
    };
    tasks.spawn_critical("address to etcd", async move {
        // Cancel-safe: nothing is held across the wait.
        token.run_until_cancelled(follow).await;
    });
}

/// Wakes the network loop when the kernel says that the node's address may be another one. Without it the loop
/// finds out by itself, a little later.
fn wire_address_changes(netlink: &RealNetlink, nudge: Nudge, tasks: &mut Tasks) {
    let opened = netlink.address_changes();
    let mut heard = match opened {
        Ok(heard) => heard,
        Err(error) => {
            tracing::warn!("{error}; another address of this node is noticed {NETWORK_INTERVAL:?} later");
            return;
        }
    };
    let token = tasks.token();
    let follow = async move {
        while heard.heard().await {
            nudge.nudge();
        }
        std::future::pending::<()>().await;
    };
    tasks.spawn_critical("addresses to network", async move {
        // Cancel-safe: nothing is held across the wait.
        token.run_until_cancelled(follow).await;
    });
}

/// What DNS and gateway follow from.
#[derive(Clone)]
pub(crate) struct Known {
    /// The node's range.
    pub(crate) subnet: watch::Receiver<Option<Subnet>>,
    /// What is known of the cluster.
    pub(crate) catalog: watch::Receiver<Arc<Catalog>>,
    /// Who answered before this process, and who will after it.
    pub(crate) handover: Handover,
}

/// The name server; what pods are told of it.
pub(crate) fn wire_dns(
    config: &Config,
    netlink: Arc<dyn Netlink>,
    known: &Known,
    tasks: &mut Tasks,
) -> watch::Receiver<NodeDns> {
    let Known { subnet, catalog, handover } = known.clone();
    let (settings, agent_dir) = (config.dns.clone(), config.machine.agent_dir());
    let domain = settings.domain.clone();
    let range = subnet.borrow().clone();
    let (zones, zone) = watch::channel(Arc::new(dns::first_zone(&domain, range.as_ref(), &catalog.borrow())));
    let following = dns::follow_zone(domain, subnet.clone(), catalog.clone(), zones, tasks.token());
    tasks.spawn_critical("zone", following);
    let (pods, for_pods) = watch::channel(settings.first_for_pods(range.as_ref(), &agent_dir));
    let (nudge, nudged) = Nudge::new();
    nudge_on_change(tasks, "subnet to dns", subnet.clone(), nudge.clone());
    if settings.node_dns {
        let (hosts, of_dns) = watch::channel(std::collections::BTreeSet::new());
        tasks.spawn_critical("hosts", dns::follow_hosts(catalog.clone(), hosts, tasks.token()));
        nudge_on_change(tasks, "hosts to dns", of_dns, nudge);
    }
    let instance = config.machine.instance.clone();
    let deps = DnsDeps { settings, instance, agent_dir, netlink, subnet, catalog, zone, pods, handover };
    drive(tasks, DnsLoop::new(deps), dns::INTERVAL, nudged);
    for_pods
}

/// The gateway: the loop that says where and by which table, and the server that does it.
pub(crate) fn wire_gateway(node: &str, known: Known, tasks: &mut Tasks) {
    let Known { subnet, catalog, handover } = known;
    let deps = GatewayDeps {
        node: node.to_owned(),
        port: gateway::PORT,
        limits: gateway::limits::Limits::default(),
        subnet: subnet.clone(),
        catalog: catalog.clone(),
        handover,
    };
    let (the_loop, serving) = GatewayLoop::new(deps, tasks.token());
    tasks.spawn_critical("gateway server", serving);
    let (nudge, nudged) = Nudge::new();
    drive(tasks, the_loop, GATEWAY_INTERVAL, nudged);
    nudge_on_change(tasks, "subnet to gateway", subnet, nudge.clone());
    nudge_on_change(tasks, "catalog to gateway", catalog, nudge);
}

/// Serves the read-only API. Streams that are followed end with the process, not the other way.
async fn serve(listener: TcpListener, api: Api, shutdown: CancellationToken) -> std::io::Result<()> {
    let serving = axum::serve(listener, api::router(api)).into_future();
    // Cancel-safe: all requests are reads.
    shutdown.run_until_cancelled(serving).await.unwrap_or(Ok(()))
}

/// Starts a loop with its driver.
fn drive<L: Loop>(tasks: &mut Tasks, the_loop: L, interval: Duration, nudged: Nudged) {
    let driver = Driver { backoff_max: FAILURE_MAX, ..Driver::every(interval) };
    let (last_run, _) = watch::channel::<Option<LastRun>>(None);
    let token = tasks.token();
    tasks.spawn_critical(the_loop.name(), driver.run(the_loop, nudged, token, last_run));
}

/// Wakes a loop whenever what it reads has changed.
fn nudge_on_change<T: Send + Sync + 'static>(
    tasks: &mut Tasks,
    name: &'static str,
    mut read: watch::Receiver<T>,
    nudge: Nudge,
) {
    let token = tasks.token();
    let follow = async move {
        while read.changed().await.is_ok() {
            nudge.nudge();
        }
        // The writer ended; whoever watches over it ends the process.
        std::future::pending::<()>().await;
    };
    tasks.spawn_critical(name, async move {
        // Cancel-safe: nothing is held across the wait.
        token.run_until_cancelled(follow).await;
    });
}

/// Publishes this node's range of pod addresses. One that is gone from etcd stays: the pods have it.
async fn follow_subnet(
    node: String,
    mut snapshot: SnapshotReader,
    subnets: watch::Sender<Option<Subnet>>,
    shutdown: CancellationToken,
) {
    let follow = async {
        loop {
            if let Some(subnet) = snapshot.current().subnets.get(&node) {
                subnets.send_if_modified(|there| {
                    let differs = there.as_ref() != Some(&subnet.value);
                    if differs {
                        *there = Some(subnet.value.clone());
                    }
                    differs
                });
            }
            snapshot.changed().await;
        }
    };
    // Cancel-safe: nothing is held across the wait.
    let _: Option<()> = shutdown.run_until_cancelled(follow).await;
}

fn require_root() -> anyhow::Result<()> {
    match nix::unistd::geteuid().is_root() {
        true => Ok(()),
        false => bail!("the agent makes links, rules and mounts and must run as root; start it with sudo"),
    }
}

async fn connect_docker(host: &str) -> anyhow::Result<Arc<dyn Docker>> {
    let docker = RealDocker::connect(host).await;
    let docker = docker.with_context(|| format!("cannot use Docker at {host}"))?;
    Ok(Arc::new(docker))
}

async fn bind(config: &Config) -> anyhow::Result<TcpListener> {
    TcpListener::bind(config.listen).await.map_err(|error| {
        anyhow!("cannot listen on {}: {error}; stop what uses it or give another --listen", config.listen)
    })
}

/// Without a desired state on disk there is nothing to do until etcd answers, and a wrong `--etcd`
/// is told at once. With it the agent heals its pods first and connects when it can.
async fn open_store(config: &Config, known: Source) -> anyhow::Result<Arc<LazyStore>> {
    let store = LazyStore::new(config.etcd.clone());
    match (store.connect(ETCD_PATIENCE).await, known) {
        (Ok(()), _) => {}
        (Err(error), Source::Unknown) => {
            bail!("{error}; check --etcd and that etcd runs (this node has no state of its own yet)")
        }
        (Err(error), _) => tracing::warn!("{error}; this node goes on from its own disk"),
    }
    Ok(Arc::new(store))
}

async fn load_pause_image(docker: &dyn Docker) -> anyhow::Result<()> {
    let reference = pause::image_reference();
    if docker.image(&reference).await.context("cannot look for the pause image")?.is_none() {
        docker.load(pause::image_tar()).await.context("cannot load the pause image into Docker")?;
        tracing::info!("loaded image {reference}");
    }
    Ok(())
}

/// The address before the network loop has looked: that of the tunnel which a former agent made, so that a
/// restart while the routes flap moves nothing.
async fn node_ip(config: &Config, netlink: &RealNetlink) -> anyhow::Result<Option<IpAddr>> {
    if config.node_ip.is_some() {
        return Ok(config.node_ip);
    }
    let tunnel = Names::of(&config.machine.instance).tunnel;
    match address_of_tunnel(netlink, &tunnel).await? {
        Some(address) => Ok(Some(address.into())),
        None => Ok(netlink.node_address().await?),
    }
}
