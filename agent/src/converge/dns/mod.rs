//! The DNS loop: a name server on every node, for the cluster's names and, through upstream servers, all others.
//!
//! Reads the node's range, the catalog, `resolv.conf`; decides in `plan.rs`; listens, and changes the machine's own
//! resolver if configured to. `zone/` holds the answers, `server.rs` sends them.

mod act;
mod forward;
pub mod host;
mod listen;
pub mod plan;
pub mod resolv;
#[cfg(test)]
mod resolved_tests;
mod server;
#[cfg(test)]
mod tests;
pub mod zone;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::rr::Name;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::kinds::cluster::{ClusterDns, DEFAULT_ZONE};
use schema::records::{Subnet, dns_address};
use tokio::sync::watch;

use self::forward::Forwarder;
use self::host::MachineFiles;
use self::listen::Running;
use self::plan::{DnsPlan, Observed};
use self::server::Handler;
use self::zone::{Zone, ZoneSettings};
use super::shared::node_network::NodeDns;
use crate::catalog::Catalog;
use crate::standby::Handover;
use crate::worlds::netlink::Netlink;
use plan::ResolvedState;
use schema::control::publish;

pub use act::Outcome;

/// Interval at which `resolv.conf` is read and a failed bind is retried.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// Minimum interval between two builds of the zone: endpoints may change many times a second.
pub const SPACING: Duration = Duration::from_millis(50);

/// Settings of the loop, fixed at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsSettings {
    /// Zone; `None` for the Cluster object's.
    pub domain: Option<Name>,
    /// Upstream servers; if empty, the Cluster object's, else those of `resolv_conf`.
    pub upstream: Vec<SocketAddr>,
    /// Set if the machine's own resolver should know the cluster's names.
    pub node_dns: bool,
    pub resolv_conf: PathBuf,
}

impl DnsSettings {
    /// Returns the zone in effect.
    pub fn domain(&self, cluster: &ClusterDns) -> Name {
        let of_cluster = || Name::from_ascii(format!("{}.", cluster.zone)).ok();
        let default = || Name::from_labels(DEFAULT_ZONE.split('.')).expect("the default is a name");
        self.domain.clone().or_else(of_cluster).unwrap_or_else(default)
    }

    /// Returns the zone in effect without the trailing dot, as resolvers expect it.
    pub fn domain_text(&self, cluster: &ClusterDns) -> String {
        self.domain(cluster).to_ascii().trim_end_matches('.').to_owned()
    }

    /// Returns the configured upstream servers; empty for those of `resolv_conf`.
    pub fn upstream(&self, cluster: &ClusterDns) -> Vec<SocketAddr> {
        let of_cluster =
            || cluster.upstream_addresses().into_iter().map(|ip| SocketAddr::new(ip, resolv::PORT));
        if self.upstream.is_empty() { of_cluster().collect() } else { self.upstream.clone() }
    }

    /// Returns the DNS configuration for pods while the agent is still starting.
    pub fn first_for_pods(&self, subnet: Option<&Subnet>, agent_dir: &Path, cluster: &ClusterDns) -> NodeDns {
        let machine = MachineFiles::new(agent_dir, &self.resolv_conf).read().0;
        let server = subnet.map(|subnet| dns_address(subnet.service_cidr));
        plan::for_pods(&self.domain_text(cluster), server, &machine)
    }
}

/// Checks that port 53 is available at this address, which no link needs to have yet.
///
/// # Errors
/// The kernel's, `AddrInUse` if another program listens on the port there or at all addresses.
pub fn can_listen(address: std::net::Ipv4Addr) -> std::io::Result<()> {
    listen::bind_at((address, resolv::PORT).into()).map(drop)
}

/// Dependencies of the loop.
pub struct DnsDeps {
    pub settings: DnsSettings,
    pub instance: String,
    /// Directory of the saved copy of `resolv.conf`.
    pub agent_dir: PathBuf,
    /// Finds the process that listens on a port.
    pub netlink: Arc<dyn Netlink>,
    pub subnet: watch::Receiver<Option<Subnet>>,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub zone: watch::Receiver<Arc<Zone>>,
    pub pods: watch::Sender<NodeDns>,
    /// Sockets inherited from the previous process, and those for the next one.
    pub handover: Handover,
}

/// The DNS loop. Dropping it stops the server.
pub struct DnsLoop {
    deps: DnsDeps,
    files: MachineFiles,
    forwarders: watch::Sender<Arc<Forwarder>>,
    running: Option<Running>,
    /// Set once this process has queried systemd-resolved for configuration to undo.
    has_queried_resolved: bool,
}

impl DnsLoop {
    /// Creates a loop that is not listening yet.
    pub fn new(deps: DnsDeps) -> Self {
        let files = MachineFiles::new(&deps.agent_dir, &deps.settings.resolv_conf);
        let (forwarders, _) = watch::channel(Arc::new(Forwarder::new(Vec::new())));
        Self { deps, files, forwarders, running: None, has_queried_resolved: false }
    }
}

#[async_trait]
impl Loop for DnsLoop {
    type Observed = Observed;
    type Plan = DnsPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "dns"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        Ok(Observation::Ready(self.read_inputs().await))
    }

    fn plan(observed: &Observed, _now: Timestamp) -> DnsPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, plan: DnsPlan) -> Outcome {
        self.carry_out(observed, plan).await
    }

    async fn report(&mut self, _observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        match outcome.failed.is_empty() {
            true if outcome.is_bound && self.deps.settings.node_dns => Ok(Next::After(Duration::ZERO)),
            true => Ok(Next::Interval),
            false => Err(LoopError::message(outcome.failed.join("; "))),
        }
    }
}

/// Creates a step that builds the zone from the current catalog.
pub fn publish_zone(
    settings: DnsSettings,
    subnet: watch::Receiver<Option<Subnet>>,
    catalog: watch::Receiver<Arc<Catalog>>,
    zones: watch::Sender<Arc<Zone>>,
) -> impl Fn() + Send + Sync {
    move || {
        let known = Arc::clone(&catalog.borrow());
        let range = subnet.borrow().clone();
        if let Some(range) = range {
            let domain = settings.domain(&known.settings.spec.dns);
            zones.send_replace(Arc::new(Zone::build(&ZoneSettings::new(&domain, &range), &known)));
        }
    }
}

/// Creates a step that publishes the part of the catalog that the loop reads, settings and hosts of Dns objects,
/// when it changes. The catalog itself changes with every endpoint, which need not wake the loop.
pub fn publish_read(
    catalog: watch::Receiver<Arc<Catalog>>,
    published: watch::Sender<(ClusterDns, BTreeSet<String>)>,
) -> impl FnMut() + Send {
    move || {
        let known = Arc::clone(&catalog.borrow());
        publish(&published, (known.settings.spec.dns.clone(), hosts(&known)));
    }
}

/// Builds the zone used before anything is known: no name of the cluster is denied.
pub fn first_zone(domain: &Name, subnet: Option<&Subnet>, catalog: &Catalog) -> Zone {
    let unknown = Subnet::new(ipnet::Ipv4Net::default(), ipnet::Ipv4Net::default());
    let known = subnet.map_or_else(Catalog::default, |_| catalog.clone());
    Zone::build(&ZoneSettings::new(domain, subnet.unwrap_or(&unknown)), &known)
}

fn hosts(catalog: &Catalog) -> BTreeSet<String> {
    catalog.routes.values().map(|route| route.value.host.clone()).collect()
}

// Observes the inputs of the DNS loop: the node's range, `resolv.conf`, systemd-resolved, our server.

impl DnsLoop {
    async fn read_inputs(&mut self) -> Observed {
        let subnet = self.deps.subnet.borrow_and_update().clone();
        let catalog = Arc::clone(&self.deps.catalog.borrow_and_update());
        let (hosts, cluster) = (hosts(&catalog), &catalog.settings.spec.dns);
        let (machine, former, link) = self.files.read();
        let node_dns = self.deps.settings.node_dns;
        let bound = self.running.as_ref().and_then(|running| running.address());
        // Without the flag one answer is enough: leftovers of a former agent are undone once.
        let has_use = if node_dns { bound.is_some() } else { !self.has_queried_resolved };
        let former_link = former.as_ref().and_then(|former| former.link.as_deref());
        let resolved = match has_use && resolv::uses_resolved(&machine, link.as_deref(), former_link) {
            true => host::link_config(host::RESOLVECTL, &host::link(&self.deps.instance)).await,
            false => ResolvedState::NotQueried,
        };
        let address = subnet.map(|subnet| dns_address(subnet.service_cidr));
        // Without our address, ownership of the configured servers is unknown.
        self.has_queried_resolved |= address.is_some() && !matches!(resolved, ResolvedState::Unresponsive(_));
        Observed {
            instance: self.deps.instance.clone(),
            domain: self.deps.settings.domain_text(cluster),
            address,
            bound,
            configured_upstreams: self.deps.settings.upstream(cluster),
            current_upstreams: self.forwarders.borrow().upstreams().to_vec(),
            machine,
            link,
            path: self.files.path(),
            former,
            node_dns,
            resolved,
            hosts,
        }
    }
}
