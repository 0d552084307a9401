//! Preconditions for starting the agent, a function each; each failure is one line.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use jiff::Timestamp;
use schema::control::{close_state_dir, error_chain, spare_from_oom_killer};
use schema::kinds::cluster::PodSecurity;
use schema::manifest::load_pod_security;
use schema::records::Subnet;
use schema::store::StoreError;
use schema::store::etcd::LazyStore;
use schema::trust::TrustReader;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::cluster::ClusterAddresses;
use crate::config::Config;
use crate::converge::address::tunnel_address;
use crate::converge::network::tunnel::pod_mtu;
use crate::converge::trust::{NodeTrust, TrustSettings};
use crate::desired::{DesiredStore, StateOrigin, known_subnet};
use crate::files::{Keys, PodFiles};
use crate::metrics::METRICS;
use crate::packet_rules::chain::Names;
use crate::worlds::admission::RealAdmission;
use crate::worlds::blobs::Reconcilers;
use crate::worlds::docker::{Docker, RealDocker};
use crate::worlds::iptables::{Iptables, RealIptables};
use crate::worlds::netlink::{Netlink, RealNetlink};
use crate::worlds::pause;

/// Longest wait for etcd at startup.
const ETCD_PATIENCE: Duration = Duration::from_secs(2);

/// Longest wait for a renewed certificate at startup: pods wait for it.
const RENEW_PATIENCE: Duration = Duration::from_secs(5);

/// Resources that the loops are built on.
pub(super) struct StartupResources {
    pub(super) docker: Arc<dyn Docker>,
    pub(super) netlink: Arc<RealNetlink>,
    pub(super) iptables: Arc<dyn Iptables>,
    pub(super) listener: TcpListener,
    pub(super) store: Arc<LazyStore>,
    pub(super) files: Arc<PodFiles>,
    /// The subnet recorded on disk.
    pub(super) subnet: Option<Subnet>,
    pub(super) pod_mtu: u32,
    /// The node's address; `None` while unknown.
    pub(super) node_ip: Option<IpAddr>,
    /// Least `oom_score_adj` that may be set on this machine.
    pub(super) oom_score_min: i64,
    /// The node's own restrictions on pods.
    pub(super) pod_security_floor: Arc<PodSecurity>,
    pub(super) node_trust: NodeTrust,
    /// Own credentials for connections.
    pub(super) trust: TrustReader,
}

/// Checks the preconditions, cheapest first.
pub(super) async fn prepare(config: &Config) -> anyhow::Result<StartupResources> {
    let pod_security_floor =
        Arc::new(config.pod_security.as_deref().map_or_else(|| Ok(PodSecurity::default()), pod_security)?);
    let mut node_trust = open_trust(config)?;
    let docker = connect_docker(&config.machine.docker).await?;
    let oom_score_min = spare_from_oom_killer();
    close_own_dir(config, docker.as_ref()).await?;
    let netlink = Arc::new(RealNetlink::open(&config.machine.instance)?);
    let iptables: Arc<dyn Iptables> = Arc::new(RealIptables::new());
    iptables.save().await.context("cannot use iptables")?;
    let listener = bind(config).await?;
    let desired = DesiredStore::open(&config.machine.state_dir, &config.node)?;
    let store = open_store(config, &mut node_trust, desired.current().known_from).await?;
    load_pause_image(docker.as_ref()).await?;
    let keys = Keys::open_or_without(&config.age_identity);
    let metered = METRICS.store.metered(Arc::clone(&store) as _);
    let trust = node_trust.reader();
    let source = Reconcilers::following(node_trust.addresses(), trust.clone(), metered);
    let files = PodFiles::new(&config.machine.state_dir, Arc::new(source), keys);
    Ok(StartupResources {
        node_ip: node_ip(config, netlink.as_ref()).await?,
        pod_mtu: pod_mtu(netlink.uplink_mtu().await?),
        subnet: desired.current().subnet.clone(),
        docker,
        netlink,
        iptables,
        listener,
        store,
        files: Arc::new(files),
        oom_score_min,
        pod_security_floor,
        node_trust,
        trust,
    })
}

/// Reads the node's own restrictions on pods. A file that can't be read in full keeps the agent from starting: without
/// it the node would create what it forbids.
fn pod_security(file: &Path) -> anyhow::Result<PodSecurity> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read --pod-security {}", file.display()))?;
    load_pod_security(&file.display().to_string(), &text).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow!("--pod-security: {}", errors.join("; "))
    })
}

/// Closes the state directory to other users, except that users of containers pass through it where they are others
/// on the node, too.
async fn close_own_dir(config: &Config, docker: &dyn Docker) -> anyhow::Result<()> {
    let passable = docker.remaps_users().await.context("cannot read Docker's security options")?;
    let root = &config.machine.state_dir;
    if let Err(error) = close_state_dir(root, &["agent"], Some(passable)) {
        tracing::warn!(dir = %root.display(), %error, "state directory not closed to other users; set its mode to 0700");
    }
    Ok(())
}

pub(super) fn require_root() -> anyhow::Result<()> {
    match nix::unistd::geteuid().is_root() {
        true => Ok(()),
        false => bail!("the agent creates links, rules and mounts and must run as root; start it with sudo"),
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

/// Loads what this node got when it joined.
fn open_trust(config: &Config) -> anyhow::Result<NodeTrust> {
    let agent_dir = config.machine.agent_dir();
    if !config.machine.pki().is_filled() && known_subnet(&agent_dir).is_some() {
        bail!(
            "this node has run before, but has no certificate, as in earlier versions; run 'minik8s token create --node \
             {}' on a reconciler, and the command that it prints here: containers, rules and names stay",
            config.node
        );
    }
    let settings = TrustSettings {
        node: config.node.clone(),
        dir: config.machine.pki(),
        given: config.given.clone(),
        known: config.known.clone(),
        used: config.addresses(),
        file: ClusterAddresses::file(&agent_dir),
    };
    Ok(NodeTrust::open(settings, Arc::new(RealAdmission))?)
}

/// Opens etcd, with a renewed certificate if the former has ended or etcd refuses this node. Without desired state on
/// disk an unreachable etcd is an error: there is nothing to do, and `--etcd` may be wrong. With it the agent heals its
/// pods first and connects when it can.
async fn open_store(
    config: &Config,
    trust: &mut NodeTrust,
    known: StateOrigin,
) -> anyhow::Result<Arc<LazyStore>> {
    let is_ended = trust.has_ended(Timestamp::now())?;
    if is_ended {
        renew(trust, "it has ended").await;
    }
    let store = LazyStore::new(config.etcd.clone());
    store.set_endpoints(trust.addresses().borrow().etcd.clone());
    let mut connected = store.connect(ETCD_PATIENCE).await;
    if matches!(connected, Err(StoreError::Denied { .. })) && !is_ended {
        renew(trust, "etcd refuses this node").await;
        store.set_endpoints(trust.addresses().borrow().etcd.clone());
        connected = store.connect(ETCD_PATIENCE).await;
    }
    match (connected, known) {
        (Ok(()), _) => {}
        (Err(error), StateOrigin::Unknown) => {
            bail!("{error}; check --etcd and that etcd runs (this node has no state of its own yet)")
        }
        (Err(error), _) => tracing::warn!(%error, "etcd not reached; this node continues from its own disk"),
    }
    Ok(Arc::new(store))
}

/// Renews the certificate. If no reconciler does so soon, the trust loop tries again.
async fn renew(trust: &mut NodeTrust, reason: &str) {
    match timeout(RENEW_PATIENCE, trust.renew()).await {
        Ok(Ok(())) => tracing::info!(reason, "certificate renewed"),
        Ok(Err(error)) => tracing::warn!(reason, error = error_chain(&error), "certificate not renewed"),
        Err(_) => tracing::warn!(reason, waited = ?RENEW_PATIENCE, "certificate not renewed; no answer"),
    }
}

async fn load_pause_image(docker: &dyn Docker) -> anyhow::Result<()> {
    let reference = pause::image_reference();
    if docker.image(&reference).await.context("cannot look for the pause image")?.is_none() {
        docker.load(pause::image_tar()).await.context("cannot load the pause image into Docker")?;
        tracing::info!(image = reference, "pause image loaded");
    }
    Ok(())
}

/// Returns the address to start with: the configured one, else the local address of the tunnel that a former agent
/// made, so that a restart while routes flap moves nothing, else one from the kernel.
async fn node_ip(config: &Config, netlink: &RealNetlink) -> anyhow::Result<Option<IpAddr>> {
    if config.node_ip.is_some() {
        return Ok(config.node_ip);
    }
    let tunnel = Names::for_instance(&config.machine.instance).tunnel;
    match tunnel_address(netlink, &tunnel).await? {
        Some(address) => Ok(Some(address.into())),
        None => Ok(netlink.node_address().await?),
    }
}
