//! `minik8s-agent run`: a table of the agent's loops, with their inputs and wake-ups.
//!
//! Nothing is taken down at the end: pods, links and rules outlive the agent.

mod base;
mod parts;
mod prepare;
pub mod serve_standby;

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schema::control::{Nudge, Row, Runtime};
use schema::keys::{Key, prefix};
use schema::store::SharedStore;
use schema::store::etcd::LazyStore;
use schema::store::reflector;
use tokio::sync::watch;
use tokio::time::sleep;

use self::base::{LoopDeps, NETWORK_INTERVAL, every};
use self::parts::{
    drive_address, follow_catalog, follow_subnet, start_writer, wake_on_addresses, wire_gateways,
    wire_images, wire_pods, wire_slurm, write_events,
};
use self::prepare::{StartupResources, prepare, require_root};
use super::converge::shared::image_store::ImageBook;
use super::converge::shared::node_network;
use super::converge::shared::node_network::SandboxedPods;
use super::locks;
use super::locks::RUN_DIR;
use super::packet_rules::reader;
use crate::api::{self, Api};
use crate::cluster::ClusterAddresses;
use crate::config::Config;
use crate::converge::node::HEARTBEAT_INTERVAL;
use crate::converge::pods::NodeMemory;
use crate::converge::trust::{NodeTrust, TrustLoop};
use crate::converge::{trust, usage};
use crate::files::identity_loop::IdentityLoop;
use crate::metrics::METRICS;
use crate::node_address::NodeAddress;
use crate::standby::{self, Handover};
use crate::worlds::host::memory_bytes;
pub(crate) use parts::{NamesDeps, wire_dns, wire_gateway};

/// Interval at which the loaded cluster identity is checked; settings changes wake the loop.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(60);

/// Runs the agent until SIGTERM or SIGINT.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let began = Instant::now();
    require_root()?;
    crate::trees::require_openat2()?;
    // Held until the last task has ended.
    let lock = locks::take(&config.machine.agent_dir())?;
    let instance = match locks::take_instance_lock(Path::new(RUN_DIR), &config.machine) {
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
    let mut runtime = wire(&config, ground)?;
    runtime.report_to_service_manager();
    tracing::info!(node = config.node, instance = config.machine.instance, took = ?began.elapsed(), "agent started");
    runtime.run_until_signal().await?;
    tracing::info!("agent stopping, pods keep running");
    drop((instance, lock));
    Ok(())
}

/// Builds the table of loops.
fn wire(config: &Config, ground: StartupResources) -> anyhow::Result<Runtime> {
    let StartupResources { docker, netlink, iptables, listener, store, files, subnet, pod_mtu, .. } = ground;
    let StartupResources { node_ip, oom_score_min, pod_security_floor, node_trust, trust, .. } = ground;
    let (node, agent_dir) = (config.node.clone(), config.machine.agent_dir());
    let mut runtime = Runtime::new();
    let token = runtime.token();

    // Inputs: the node's address and range, the cluster.
    let (addresses, address) = NodeAddress::channel(node_ip);
    let (store, cluster) = wire_trust(&mut runtime, node_trust, store, &address);
    let (snapshot, reflecting) = reflector::reflect(Arc::clone(&store), prefixes(&node), token.clone());
    runtime.task("reflector", reflecting);
    let events = write_events(&mut runtime, &node, &store);
    let subnet = follow_subnet(&mut runtime, &node, subnet, &snapshot);
    let catalog = follow_catalog(&mut runtime, &agent_dir, &node, &files, &snapshot);

    // Reports about the node besides its pods.
    let rules = start_writer(&mut runtime, "rules status", Key::Rules(node.clone()), &store);
    let records = start_writer(&mut runtime, "usage record", Key::Usage(node), &store);

    // The loops.
    let (programmed, rules_follow) = watch::channel(0);
    let (pod_tables, pod_table) = watch::channel(None);
    let (sandboxes, sandboxed) = watch::channel(SandboxedPods::default());
    let ((vteps, vtep), (figures, resources)) = (watch::channel(None), watch::channel(None));
    let handover = Handover::for_agent(&agent_dir);
    runtime.task("standby", standby::keep(handover.clone(), token.clone()));
    let names = NamesDeps { subnet: subnet.clone(), catalog: catalog.clone(), handover };
    let dns = wire_dns(&mut runtime, config, Arc::clone(&netlink) as _, &names);
    let control = wire_gateways(&mut runtime, config, names, (&store, cluster), (&files, &trust));
    let base = LoopDeps {
        config,
        docker,
        netlink,
        iptables,
        store,
        files,
        images: ImageBook::open(&agent_dir),
        pod_mtu,
        memory: NodeMemory { bytes: memory_bytes(), oom_score_min },
        pod_security_floor,
        address,
        subnet,
        catalog,
        control,
        snapshot,
        events,
        trust: trust.clone(),
    };
    let row = every(NETWORK_INTERVAL).wake_on(base.subnet.clone()).wake_on(base.catalog.clone());
    let row = row.wake_on(base.address.changes());
    let wake_services = row.nudge();
    runtime.drive(row, base.services(rules, programmed));

    let reported = wire_pods(&mut runtime, &base, dns, pod_tables, (rules_follow, sandboxed))?;

    runtime.drive(every(usage::INTERVAL), base.usage(records, figures));
    let (build_requests, confinement) = node_network::channel();
    wire_images(&mut runtime, &base, build_requests);
    let row = every(IDENTITY_INTERVAL).wake_on(base.catalog.clone());
    runtime.drive(row, IdentityLoop::new(Arc::clone(&base.files), base.catalog.clone()));
    let jobs = wire_slurm(&mut runtime, &base);

    let row = every(HEARTBEAT_INTERVAL).wake_on(vtep.clone()).wake_on(base.address.changes());
    let row = row.wake_on(reported.clone()).wake_on(base.files.cluster_recipient());
    runtime.drive(row, base.node(vtep, reported));
    drive_address(&mut runtime, &base, addresses);
    let row = every(NETWORK_INTERVAL).wake_on(base.catalog.clone()).wake_on(base.subnet.clone());
    let row =
        row.wake_on(pod_table.clone()).wake_on(base.control.clone()).wake_on(confinement.wanted.clone());
    let row = wake_on_addresses(row.wake_on(base.address.changes()), &base.netlink);
    let wakes = vec![wake_services.clone(), row.nudge()];
    runtime.drive(row, base.network(pod_table, (vteps, sandboxes, confinement), wake_services));
    let watched = reader::on_change(Arc::clone(&base.iptables), wakes, token.clone());
    runtime.task("changes of packet rules", watched);

    let (instance, state_dir) = (config.machine.instance.clone(), config.machine.state_dir.clone());
    let api = Api { docker: base.docker, instance, state_dir, loops: runtime.runs(), resources, jobs };
    runtime.task("api", api::serve(listener, api, trust, token));
    Ok(runtime)
}

/// Shortest time between two wake-ups of the trust loop by denied calls.
const DENIAL_GAP: Duration = Duration::from_secs(5);

/// Wires the trust loop, and connects to etcd again when its addresses or the node's have changed. Returns the store,
/// with its requests counted, and the addresses of the cluster.
fn wire_trust(
    runtime: &mut Runtime,
    trust: NodeTrust,
    store: Arc<LazyStore>,
    address: &NodeAddress,
) -> (SharedStore, watch::Receiver<ClusterAddresses>) {
    let etcd = Arc::clone(&store);
    let at_change = Row::when_woken().wake_on(address.changes()).wait_for_first_change();
    runtime.follow("address to etcd", at_change, move || etcd.reconnect());
    let (etcd, cluster) = (Arc::clone(&store), trust.addresses());
    let (at_change, known) = (Row::when_woken().wake_on(cluster.clone()), cluster.clone());
    runtime.follow("addresses of etcd", at_change, move || {
        etcd.set_endpoints(known.borrow().etcd.clone());
    });
    let row = Row::every(trust::INTERVAL).may_take(trust::MAY_TAKE).wake_by(denials(Arc::clone(&store)));
    let etcd = Some(Arc::clone(&store));
    let store = METRICS.store.metered(store);
    runtime.drive(row, TrustLoop::new(trust, Arc::clone(&store), etcd));
    (store, cluster)
}

/// Wakes the trust loop when etcd denies this node a call, at most every few seconds: the loop's own calls count, too.
fn denials(store: Arc<LazyStore>) -> impl FnOnce(Nudge) -> Pin<Box<dyn Future<Output = Infallible> + Send>> {
    move |nudge| {
        Box::pin(async move {
            loop {
                store.denied().await;
                nudge.nudge();
                sleep(DENIAL_GAP).await;
            }
        })
    }
}

/// Prefixes of etcd that the agent reads.
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
