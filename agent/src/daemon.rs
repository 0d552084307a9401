//! `minik8s-agent run`: the wiring, as a table of loops with what they read and what wakes them.
//!
//! Nothing is taken down at the end: pods, links and rules outlive the agent.

mod base;
mod names;
mod prepare;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use schema::control::{Row, Runtime};
use schema::keys::{Key, prefix};
use schema::snapshot::Snapshot;
use schema::store::SharedStore;
use schema::store::events::EventRecorder;
use schema::store::reflector::{self, SnapshotReader};
use schema::store::status_writer::{Reported, StatusWriter};
use tokio::sync::watch;

use self::base::Base;
pub(crate) use self::names::{Known, wire_dns, wire_functions, wire_gateway};
use self::prepare::{Ground, prepare, require_root};
use crate::api::{self, Api};
use crate::catalog::{self, Catalog, CatalogDisk, CatalogStore};
use crate::config::Config;
use crate::converge::build_network::{self, BuildRequests};
use crate::converge::builds::NodeImages;
use crate::converge::control_plane::{self, ControlPlane};
use crate::converge::image_book::ImageBook;
use crate::converge::node::HEARTBEAT_INTERVAL;
use crate::converge::node_dns::NodeDns;
use crate::converge::pod_table::{PodTable, SandboxedPods};
use crate::converge::pods::{Statuses, publish_reported};
use crate::converge::slurm::{JobFiles, JobReports};
use crate::converge::usage;
use crate::desired;
use crate::files::PodFiles;
use crate::files::identity_loop::IdentityLoop;
use crate::locks::instance_lock::{self, RUN_DIR};
use crate::locks::state_lock;
use crate::node_address::NodeAddress;
use crate::packet_rules::wake;
use crate::standby::{self, Handover};
use crate::worlds::netlink::RealNetlink;

/// How often containers are looked at when nothing is heard of them; Docker's events come at once.
const PODS_INTERVAL: Duration = Duration::from_secs(10);

/// How often the rules are looked at: a flush by someone else is healed in less than 5 s.
const NETWORK_INTERVAL: Duration = Duration::from_secs(3);

/// How often Docker's disk is looked at.
const IMAGES_INTERVAL: Duration = Duration::from_secs(60);

/// How often it is looked whether the cluster's identity is here; the settings wake the loop.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(60);

/// How often it is looked which images of functions are here; orders wake the loop.
const BUILDS_INTERVAL: Duration = Duration::from_secs(15);

/// How often Slurm jobs are looked at; orders and steps that are done wake the loop.
const SLURM_INTERVAL: Duration = Duration::from_secs(30);

/// Longest wait after a failure of the network or node loop: rules are healed, and a heartbeat is
/// kept, within seconds after the cause is gone.
const FAILURE_MAX: Duration = Duration::from_secs(4);

/// Runs the agent until SIGTERM or SIGINT.
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
    let runtime = wire(&config, ground)?;
    tracing::info!(node = %config.node, instance = %config.machine.instance, "the agent runs");
    runtime.run_until_signal().await?;
    tracing::info!("the agent stops; its pods go on");
    drop((instance, lock));
    Ok(())
}

/// A loop of the agent.
fn every(interval: Duration) -> Row {
    Row::every(interval).backoff_max(FAILURE_MAX)
}

/// What is known of the cluster: from the disk at first, then from etcd.
fn follow_catalog(
    runtime: &mut Runtime,
    agent_dir: &Path,
    node: &str,
    files: &PodFiles,
    snapshot: &SnapshotReader,
) -> watch::Receiver<Arc<Catalog>> {
    let (disk, known) = CatalogDisk::open(agent_dir);
    let (catalogs, catalog) = watch::channel(Arc::new(known.clone().unwrap_or_default()));
    if let Some(known) = &known {
        files.follow(&known.settings);
    }
    let publish = catalog::publish(CatalogStore::new(node, known), snapshot.clone(), catalogs);
    runtime.follow("catalog", Row::every(catalog::PEER_CHECK).wake_on(snapshot.clone()), publish);
    let row = Row::when_woken().wake_on(catalog.clone()).rest(catalog::SPACING).last_at_end();
    runtime.follow_blocking("catalog to disk", row, catalog::keep(disk, catalog.clone()));
    catalog
}

/// The table.
fn wire(config: &Config, ground: Ground) -> anyhow::Result<Runtime> {
    let Ground { docker, netlink, iptables, listener, store, files, subnet, pod_mtu, node_ip } = ground;
    let (node, agent_dir) = (config.node.clone(), config.machine.agent_dir());
    let mut runtime = Runtime::new();
    let token = runtime.token();

    // What is known: the node's address and range, the cluster.
    let (addresses, address) = NodeAddress::channel(node_ip);
    let etcd = Arc::clone(&store);
    let at_change = Row::when_woken().wake_on(address.changes()).first_at_change();
    runtime.follow("address to etcd", at_change, move || etcd.reconnect());
    let store = store as SharedStore;
    let (snapshot, reflecting) = reflector::spawn(Arc::clone(&store), prefixes(&node), token.clone());
    runtime.adopt("reflector", reflecting);
    let events = EventRecorder::spawn(Arc::clone(&store), &node, format!("agent/{node}"), token.clone());
    let (subnets, subnet) = watch::channel(subnet);
    let publish = desired::publish_subnet(node.clone(), snapshot.clone(), subnets);
    runtime.follow("subnet", Row::when_woken().wake_on(snapshot.clone()), publish);
    let catalog = follow_catalog(&mut runtime, &agent_dir, &node, &files, &snapshot);

    // What is reported of the node beside its pods.
    let rules = written_to(&mut runtime, "rules status", Key::Rules(node.clone()), &store);
    let records = written_to(&mut runtime, "usage record", Key::Usage(node), &store);

    // The loops.
    let (programmed, rules_follow) = watch::channel(0);
    let (pod_tables, pod_table) = watch::channel(None);
    let (sandboxes, sandboxed) = watch::channel(SandboxedPods::default());
    let (vteps, vtep) = watch::channel(None);
    let handover = Handover::of(&agent_dir);
    runtime.task("standby", standby::keep(handover.clone(), token.clone()));
    let known = Known { subnet: subnet.clone(), catalog: catalog.clone(), handover };
    let dns = wire_dns(&mut runtime, config, Arc::clone(&netlink) as _, &known);
    let control = wire_gateways(&mut runtime, config, known, &store, &files);
    let base = Base {
        config,
        docker,
        netlink,
        iptables,
        store,
        files,
        images: ImageBook::open(&agent_dir),
        pod_mtu,
        address,
        subnet,
        catalog,
        control,
        snapshot,
        events,
    };
    let row = every(NETWORK_INTERVAL).wake_on(base.subnet.clone()).wake_on(base.catalog.clone());
    let row = row.wake_on(base.address.changes());
    let wake_services = row.nudge();
    runtime.drive(row, base.services(rules, programmed));

    let reported = wire_pods(&mut runtime, &base, dns, pod_tables, (rules_follow, sandboxed))?;

    runtime.drive(every(usage::INTERVAL), base.usage(records));
    let (build_requests, confinement) = build_network::channel();
    wire_images(&mut runtime, &base, build_requests);
    let row = every(IDENTITY_INTERVAL).wake_on(base.catalog.clone());
    runtime.drive(row, IdentityLoop::new(Arc::clone(&base.files), base.catalog.clone()));
    let jobs = wire_slurm(&mut runtime, &base);

    let row = every(HEARTBEAT_INTERVAL).wake_on(vtep.clone()).wake_on(base.address.changes());
    let row = row.wake_on(reported.clone()).wake_on(base.files.cluster_recipient());
    runtime.drive(row, base.node(vtep, reported));
    let row = every(NETWORK_INTERVAL).wake_on(base.catalog.clone()).wake_on(base.subnet.clone());
    let row =
        row.wake_on(pod_table.clone()).wake_on(base.control.clone()).wake_on(confinement.wanted.clone());
    let row = wake_on_addresses(row, &base.netlink);
    let wakes = vec![wake_services.clone(), row.nudge()];
    runtime.drive(row, base.network(pod_table, (vteps, sandboxes, confinement), addresses, wake_services));
    let watched = wake::on_change(Arc::clone(&base.iptables), wakes, token.clone());
    runtime.task("changes of packet rules", watched);

    let instance = config.machine.instance.clone();
    let state_dir = config.machine.state_dir.clone();
    let api = Api { docker: base.docker, instance, state_dir, loops: runtime.runs(), jobs };
    runtime.task("api", api::serve(listener, api, token));
    Ok(runtime)
}

/// The pods loop with its helpers; whether etcd has what runs here.
fn wire_pods(
    runtime: &mut Runtime,
    base: &Base<'_>,
    dns: watch::Receiver<NodeDns>,
    pod_tables: watch::Sender<PodTable>,
    rules: (watch::Receiver<i64>, watch::Receiver<SandboxedPods>),
) -> anyhow::Result<watch::Receiver<bool>> {
    let row = every(PODS_INTERVAL).wake_on(base.address.changes());
    let (pods, helpers) = base.pods(row.nudge(), dns, pod_tables, rules)?;
    helpers.into_iter().for_each(|(name, helper)| runtime.task(name, helper));
    let reported = follow_reported(runtime, &base.config.node, pods.statuses(), &base.snapshot);
    runtime.drive(row, pods);
    Ok(reported)
}

/// Images: what is removed of them, the loop that builds those of functions, and what is reported of them.
fn wire_images(runtime: &mut Runtime, base: &Base<'_>, network: BuildRequests) {
    runtime.drive(every(IMAGES_INTERVAL), base.images());
    let (reports, built) = watch::channel(None);
    let images = NodeImages { node: base.config.node.clone(), snapshot: base.snapshot.clone() };
    let writer = StatusWriter::new(images, Arc::clone(&base.store));
    runtime.task("image statuses", writer.run(built, runtime.token()));
    let is_work = |before: &Snapshot, now: &Snapshot| !before.builds.ptr_eq(&now.builds);
    let row = every(BUILDS_INTERVAL).wake_if(base.snapshot.clone(), Duration::ZERO, is_work);
    runtime.drive(row, base.builds(network, reports));
}

/// Slurm jobs: the loop that sees to them, and what is reported of them.
fn wire_slurm(runtime: &mut Runtime, base: &Base<'_>) -> JobFiles {
    let (reports, reported) = watch::channel(None);
    let jobs = JobReports { node: base.config.node.clone(), snapshot: base.snapshot.clone() };
    let writer = StatusWriter::new(jobs, Arc::clone(&base.store));
    runtime.task("job reports", writer.run(reported, runtime.token()));
    let is_work = |before: &Snapshot, now: &Snapshot| {
        !before.jobs.ptr_eq(&now.jobs) || !before.settled.ptr_eq(&now.settled)
    };
    let row = every(SLURM_INTERVAL).wake_if(base.snapshot.clone(), Duration::ZERO, is_work);
    let slurm = base.slurm(row.nudge(), reports);
    let files = slurm.job_files();
    runtime.drive(row, slurm);
    files
}

/// Whether etcd has what runs here.
fn follow_reported(
    runtime: &mut Runtime,
    node: &str,
    statuses: watch::Receiver<Statuses>,
    snapshot: &SnapshotReader,
) -> watch::Receiver<bool> {
    let (reports, reported) = watch::channel(false);
    let row = Row::when_woken().wake_on(statuses.clone()).wake_on(snapshot.clone());
    let publish = publish_reported(node.to_owned(), statuses, snapshot.clone(), reports);
    runtime.follow("reported pods", row, publish);
    reported
}

/// What is sent here is written to the key.
fn written_to<V: Reported>(
    runtime: &mut Runtime,
    name: &'static str,
    key: Key,
    store: &SharedStore,
) -> watch::Sender<Option<V>> {
    let (values, newest) = watch::channel(None);
    let writer = StatusWriter::of_key(key, Arc::clone(store));
    runtime.task(name, writer.run(newest, runtime.token()));
    values
}

/// The gateways of functions and hosts; where etcd and the reconcilers are.
fn wire_gateways(
    runtime: &mut Runtime,
    config: &Config,
    known: Known,
    store: &SharedStore,
    files: &Arc<PodFiles>,
) -> watch::Receiver<ControlPlane> {
    let urls = (config.etcd.endpoints.clone(), config.reconciler.clone());
    let (controls, control) = watch::channel(ControlPlane::of_urls(&urls.0, &urls.1));
    let publish = control_plane::publish(urls, Arc::clone(store), controls, runtime.token());
    runtime.follow_async("control plane", Row::every(control_plane::INTERVAL), publish);
    let demand = written_to(runtime, "demand record", Key::Demand(config.node.clone()), store);
    let reads = (Arc::clone(files), control.clone());
    let functions = wire_functions(runtime, config.functions_listen, known.clone(), demand, reads);
    wire_gateway(runtime, &config.node, known, functions);
    control
}

/// What the agent reads of etcd.
fn prefixes(node: &str) -> Vec<String> {
    vec![
        prefix::bindings_of(node),
        prefix::pod_status_of(node),
        prefix::node_images_of(node),
        prefix::job_reports_of(node),
        prefix::work_of(node),
        prefix::FUNCTIONS.to_owned(),
        prefix::SERVICES.to_owned(),
        prefix::ROUTES.to_owned(),
        prefix::SETTINGS.to_owned(),
        prefix::NODES.to_owned(),
        prefix::SUBNETS.to_owned(),
        prefix::HEARTBEATS.to_owned(),
    ]
}

/// Wakes the network loop when the kernel says that the node's address may be another one. Without it the
/// loop finds out by itself, a little later.
fn wake_on_addresses(row: Row, netlink: &RealNetlink) -> Row {
    match netlink.address_changes() {
        Ok(mut heard) => row.wake_by(|nudge| async move {
            while heard.heard().await {
                nudge.nudge();
            }
            std::future::pending::<()>().await;
        }),
        Err(error) => {
            tracing::warn!("{error}; another address of this node is noticed {NETWORK_INTERVAL:?} later");
            row
        }
    }
}
