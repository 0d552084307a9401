//! Loops of the agent with their own dependencies: reports, writers to etcd, wake-ups.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schema::control::{Row, Runtime};
use schema::keys::Key;
use schema::records::{NodeDemand, Subnet};
use schema::snapshot::Snapshot;
use schema::store::SharedStore;
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use schema::store::status_writer::{ReportedValue, StatusWriter};
use schema::trust::TrustReader;
use tokio::sync::watch;

use super::base::{LoopDeps, NETWORK_INTERVAL, every};
use crate::catalog::{Catalog, CatalogDisk, CatalogStore};
use crate::cluster::ClusterAddresses;
use crate::config::Config;
use crate::converge::builds::NodeImages;
use crate::converge::dns::{DnsDeps, DnsLoop};
use crate::converge::functions::{FunctionsDeps, FunctionsLoop};
use crate::converge::gateway::{GatewayDeps, GatewayLoop};
use crate::converge::pods::{Statuses, publish_reported};
use crate::converge::shared::control_plane::ControlPlane;
use crate::converge::shared::node_network::{BuildRequests, NodeDns, PodTable, SandboxedPods};
use crate::converge::shared::{FunctionCalls, control_plane};
use crate::converge::slurm::{JobFiles, JobReports};
use crate::converge::{dns, functions, gateway};
use crate::files::PodFiles;
use crate::standby::Handover;
use crate::worlds::netlink::{Netlink, RealNetlink};
use crate::{catalog, desired};

/// Interval at which containers are listed without an event; Docker's events wake the loop immediately.
const PODS_INTERVAL: Duration = Duration::from_secs(10);

/// Interval at which Docker's disk usage is checked.
const IMAGES_INTERVAL: Duration = Duration::from_secs(60);

/// Interval at which the function images on this node are checked; orders wake the loop.
const BUILDS_INTERVAL: Duration = Duration::from_secs(15);

/// Interval at which Slurm jobs are checked; orders and completed steps wake the loop.
const SLURM_INTERVAL: Duration = Duration::from_secs(30);

/// Longest run of a loop that removes images, one after the other: each may take Docker two minutes on a slow disk.
const REMOVALS_MAX: Duration = Duration::from_secs(3_600);

/// Follows the catalog: from disk at first, then from etcd.
pub(super) fn follow_catalog(
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
    let row = Row::when_woken().wake_on(catalog.clone()).rest(catalog::SPACING).run_at_shutdown();
    runtime.follow_blocking("catalog to disk", row, catalog::keep(disk, catalog.clone()));
    catalog
}

/// Wires the pods loop and its helpers; the receiver is true once an etcd that does not know the node has the
/// status of every pod that runs here.
pub(super) fn wire_pods(
    runtime: &mut Runtime,
    base: &LoopDeps<'_>,
    dns: watch::Receiver<NodeDns>,
    pod_tables: watch::Sender<PodTable>,
    rules: (watch::Receiver<i64>, watch::Receiver<SandboxedPods>),
) -> anyhow::Result<watch::Receiver<bool>> {
    let row = every(PODS_INTERVAL).wake_on(base.address.changes());
    let (pods, helpers) = base.pods(row.nudge(), dns, pod_tables, rules)?;
    helpers.into_iter().for_each(|(name, helper)| runtime.task(name, helper));
    let reported = follow_reported(runtime, &base.config.node, pods.statuses(), &base.snapshot);
    runtime.drive(pods.wake(row), pods);
    Ok(reported)
}

/// Wires image removal, builds of function images, and reports of images.
pub(super) fn wire_images(runtime: &mut Runtime, base: &LoopDeps<'_>, network: BuildRequests) {
    runtime.drive(every(IMAGES_INTERVAL).may_take(REMOVALS_MAX), base.images());
    let (reports, built) = watch::channel(None);
    let images = NodeImages { node: base.config.node.clone(), snapshot: base.snapshot.clone() };
    let writer = StatusWriter::new(images, Arc::clone(&base.store));
    runtime.task("image statuses", writer.run(built, runtime.token()));
    let is_work = |before: &Snapshot, now: &Snapshot| !before.builds.ptr_eq(&now.builds);
    let row = every(BUILDS_INTERVAL).may_take(REMOVALS_MAX);
    let row = row.wake_if(base.snapshot.clone(), Duration::ZERO, is_work);
    let builds = base.builds(row.nudge(), network, reports);
    runtime.drive(row, builds);
}

/// Wires the Slurm loop and its job reports; returns access to the files of jobs.
pub(super) fn wire_slurm(runtime: &mut Runtime, base: &LoopDeps<'_>) -> JobFiles {
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

/// Follows the reported statuses: true once an etcd that does not know the node has the status of every pod that
/// runs here.
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

/// Starts a writer of `key`: values sent to the returned channel are written to etcd.
pub(super) fn start_writer<V: ReportedValue>(
    runtime: &mut Runtime,
    name: &'static str,
    key: Key,
    store: &SharedStore,
) -> watch::Sender<Option<V>> {
    let (values, newest) = watch::channel(None);
    let writer = StatusWriter::for_key(key, Arc::clone(store));
    runtime.task(name, writer.run(newest, runtime.token()));
    values
}

/// Wires the gateways of functions and hosts; returns the addresses of etcd and the reconcilers.
pub(super) fn wire_gateways(
    runtime: &mut Runtime,
    config: &Config,
    names: NamesDeps,
    (store, addresses): (&SharedStore, watch::Receiver<ClusterAddresses>),
    (files, trust): (&Arc<PodFiles>, &TrustReader),
) -> watch::Receiver<ControlPlane> {
    let first = ControlPlane::from_addresses(&addresses.borrow());
    let (controls, control) = watch::channel(first);
    let row = Row::every(control_plane::INTERVAL).wake_on(addresses.clone());
    let publish = control_plane::publish(addresses, Arc::clone(store), controls, runtime.token());
    runtime.follow_async("control plane", row, publish);
    let demand = start_writer(runtime, "demand record", Key::Demand(config.node.clone()), store);
    let functions =
        wire_functions(runtime, config, names.clone(), demand, (Arc::clone(files), trust.clone()));
    wire_gateway(runtime, &config.node, names, functions);
    control
}

/// Starts the event writer, which runs until shutdown.
pub(super) fn write_events(runtime: &mut Runtime, node: &str, store: &SharedStore) -> EventRecorder {
    let reporter = format!("agent/{node}");
    let (events, writing) = EventRecorder::writing(Arc::clone(store), node, reporter, runtime.token());
    runtime.task("events", writing);
    events
}

/// Follows the range of pod addresses: from disk at first, then from etcd.
pub(super) fn follow_subnet(
    runtime: &mut Runtime,
    node: &str,
    first: Option<Subnet>,
    snapshot: &SnapshotReader,
) -> watch::Receiver<Option<Subnet>> {
    let (subnets, subnet) = watch::channel(first);
    let publish = desired::publish_subnet(node.to_owned(), snapshot.clone(), subnets);
    runtime.follow("subnet", Row::when_woken().wake_on(snapshot.clone()), publish);
    subnet
}

/// Drives the address loop, unless an address is configured.
pub(super) fn drive_address(
    runtime: &mut Runtime,
    base: &LoopDeps<'_>,
    addresses: watch::Sender<Option<IpAddr>>,
) {
    if base.config.node_ip.is_none() {
        let row = wake_on_addresses(every(NETWORK_INTERVAL), &base.netlink);
        runtime.drive(row, base.address(addresses));
    }
}

/// Wakes a loop when the kernel reports a changed address: the node's or the bridge's. Without these reports the
/// loop notices at its next interval.
pub(super) fn wake_on_addresses(row: Row, netlink: &RealNetlink) -> Row {
    match netlink.address_changes() {
        Ok(mut heard) => row.wake_by(|nudge| async move {
            while heard.next_change().await {
                nudge.nudge();
            }
            std::future::pending().await
        }),
        Err(error) => {
            tracing::warn!(%error, delay = ?NETWORK_INTERVAL, "changes of addresses not reported by the kernel; they are noticed later");
            row
        }
    }
}

// Rows of the DNS and gateway loops, used by the agent and by the standby.

/// Interval at which the gateway checks its listeners and routes; changes wake it.
const GATEWAY_INTERVAL: Duration = Duration::from_secs(60);

/// Interval at which calls are counted while there are any.
const DEMAND_INTERVAL: Duration = Duration::from_secs(1);

/// Inputs of DNS and gateway.
#[derive(Clone)]
pub(crate) struct NamesDeps {
    pub(crate) subnet: watch::Receiver<Option<Subnet>>,
    pub(crate) catalog: watch::Receiver<Arc<Catalog>>,
    pub(crate) handover: Handover,
}

/// Wires the name server; returns the DNS settings of pods.
pub(crate) fn wire_dns(
    runtime: &mut Runtime,
    config: &Config,
    netlink: Arc<dyn Netlink>,
    names: &NamesDeps,
) -> watch::Receiver<NodeDns> {
    let NamesDeps { subnet, catalog, handover } = names.clone();
    let (settings, agent_dir) = (config.dns.clone(), config.machine.agent_dir());
    let range = subnet.borrow().clone();
    let at_first = Arc::clone(&catalog.borrow());
    let cluster = &at_first.settings.spec.dns;
    let first = dns::first_zone(&settings.domain(cluster), range.as_ref(), &at_first);
    let (zones, zone) = watch::channel(Arc::new(first));
    let row = Row::when_woken().wake_on(subnet.clone()).wake_on(catalog.clone()).rest(dns::SPACING);
    let publish = dns::publish_zone(settings.clone(), subnet.clone(), catalog.clone(), zones);
    runtime.follow_blocking("zone", row, publish);

    let (pods, for_pods) = watch::channel(settings.first_for_pods(range.as_ref(), &agent_dir, cluster));
    let (reads, of_catalog) = watch::channel(Default::default());
    let follows = Row::when_woken().wake_on(catalog.clone()).rest(dns::SPACING);
    runtime.follow("dns settings and hosts", follows, dns::publish_read(catalog.clone(), reads));
    let row = every(dns::INTERVAL).wake_on(subnet.clone()).wake_on(of_catalog);
    let instance = config.machine.instance.clone();
    let deps = DnsDeps { settings, instance, agent_dir, netlink, subnet, catalog, zone, pods, handover };
    runtime.drive(row, DnsLoop::new(deps));
    for_pods
}

/// Wires the functions gateway: its loop, its server and its reports of calls.
pub(crate) fn wire_functions(
    runtime: &mut Runtime,
    config: &Config,
    names: NamesDeps,
    demand: watch::Sender<Option<NodeDemand>>,
    (files, trust): (Arc<PodFiles>, TrustReader),
) -> Arc<dyn FunctionCalls> {
    let NamesDeps { subnet, catalog, handover } = names;
    let calls = functions::Calls::new(Timestamp::now());
    let row = Row::every(DEMAND_INTERVAL).wake_on(calls.changed());
    runtime.follow("calls of functions", row, functions::publish_demand(calls.clone(), demand));
    let row = every(GATEWAY_INTERVAL).wake_on(subnet.clone()).wake_on(catalog.clone());
    let (listen, hosts) = (config.functions_listen, config.hosts.clone());
    let deps = FunctionsDeps { listen, subnet, catalog, calls, files, handover, trust, hosts };
    let (the_loop, serving) = FunctionsLoop::new(deps, runtime.token());
    runtime.task("functions server", serving);
    let functions = Arc::new(the_loop.functions());
    runtime.drive(row, the_loop);
    functions
}

/// Wires the gateway: the loop that sets its address and routing table, and the server.
pub(crate) fn wire_gateway(
    runtime: &mut Runtime,
    node: &str,
    names: NamesDeps,
    functions: Arc<dyn FunctionCalls>,
) {
    let NamesDeps { subnet, catalog, handover } = names;
    let row = every(GATEWAY_INTERVAL).wake_on(subnet.clone()).wake_on(catalog.clone());
    let (node, port, limits) = (node.to_owned(), gateway::PORT, crate::http::server::Limits::default());
    let deps = GatewayDeps { node, port, limits, subnet, catalog, functions, handover };
    let (the_loop, serving) = GatewayLoop::new(deps, runtime.token());
    runtime.task("gateway server", serving);
    runtime.drive(row, the_loop);
}
