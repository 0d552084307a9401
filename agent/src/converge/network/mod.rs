//! The network loop: the bridge, the tunnel to the other nodes and the rules of this instance.
//!
//! Reads the node's range of addresses, the table of pods, the other nodes, the kernel's links and rules;
//! decides in `plan.rs` and `tunnel.rs`; writes bridge, tunnel and rules, and publishes the node's address. It never empties what it did not make, and plans nothing
//! before range and pods are known, so a restarted agent adopts what is there.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Nudge, Observation};
use schema::records::{Subnet, Vtep};
use tokio::sync::watch;
use tokio::time::Instant;

mod act;
pub mod changes;
mod checksums;
pub mod mtu;
mod observe;
pub mod parse;
pub mod plan;
pub mod render;
pub mod restore;
pub mod spellings;
#[cfg(test)]
mod tests;
pub mod tunnel;

pub use act::Outcome;
pub use observe::address_of_tunnel;

use self::observe::Reading;
use self::parse::Words;
use self::plan::{NetworkPlan, Observed};
use self::render::Names;
use self::spellings::Spellings;
use self::tunnel::Origin;
use crate::catalog::Catalog;
use crate::converge::pod_table::PodTable;
use crate::worlds::iptables::Iptables;
use crate::worlds::netlink::{Netlink, Tunnels};

/// While the tunnel is about to move it is not looked at more often, whatever fails meanwhile.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(100);

/// What the loop is told once.
#[derive(Debug, Clone)]
pub struct NetworkSettings {
    /// Keeps several Minik8s on one machine apart.
    pub instance: String,
    /// Names of bridge and chains.
    pub names: Names,
    /// Largest packet of pods in bytes.
    pub pod_mtu: u32,
    /// The node's address; none: what its routes say, which may change.
    pub node_ip: Option<IpAddr>,
    /// How the tunnel between nodes is told from others.
    pub vxlan: Vxlan,
    /// The tunnel stands without other nodes too: systemd-resolved needs a link that is always up.
    pub tunnel_without_peers: bool,
}

/// What all nodes of a cluster have in common, and no two clusters on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    /// Number of the network.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
}

impl Default for Vxlan {
    /// The numbers of the kernel and of flannel.
    fn default() -> Self {
        Self { vni: 1, port: 8472 }
    }
}

impl NetworkSettings {
    /// The settings of an instance.
    pub fn new(instance: &str, pod_mtu: u32) -> Self {
        let (names, vxlan) = (Names::of(instance), Vxlan::default());
        Self {
            instance: instance.to_owned(),
            names,
            pod_mtu,
            node_ip: None,
            vxlan,
            tunnel_without_peers: false,
        }
    }
}

/// What the loop reads and writes.
pub struct NetworkDeps {
    /// The kernel's links.
    pub netlink: Arc<dyn Netlink>,
    /// The tunnel to the other nodes.
    pub tunnels: Arc<dyn Tunnels>,
    /// The kernel's rules.
    pub iptables: Arc<dyn Iptables>,
    /// The node's range of addresses.
    pub subnet: watch::Receiver<Option<Subnet>>,
    /// The node's pods.
    pub pods: watch::Receiver<PodTable>,
    /// The other nodes.
    pub catalog: watch::Receiver<Arc<Catalog>>,
    /// The end of the tunnel, once it stands, for the node's record.
    pub vtep: watch::Sender<Option<Vtep>>,
    /// The node's address, once it is settled; never written when the settings name one.
    pub address: watch::Sender<Option<IpAddr>>,
    /// Wakes whose jumps have to stand before ours.
    pub rules_changed: Nudge,
}

/// The loop.
pub struct NetworkLoop {
    settings: NetworkSettings,
    netlink: Arc<dyn Netlink>,
    tunnels: Arc<dyn Tunnels>,
    iptables: Arc<dyn Iptables>,
    subnet: watch::Receiver<Option<Subnet>>,
    pods: watch::Receiver<PodTable>,
    catalog: watch::Receiver<Arc<Catalog>>,
    vtep: watch::Sender<Option<Vtep>>,
    address: watch::Sender<Option<IpAddr>>,
    rules_changed: Nudge,
    /// Where the tunnel leaves from.
    origin: Origin,
    /// The rules as they were read last.
    reading: Option<Reading>,
    /// Somebody changed rules; they are read after this time.
    read_again: Option<Duration>,
    /// Why the tunnel is not as it should be, as told last.
    tunnel_failure: Option<String>,
    /// How often the tunnel's checksums may still be tried.
    checksum_trials: u8,
    /// Asked once: it can't change while we run.
    random_fully: Option<bool>,
    /// What was written, and how this iptables prints it.
    spellings: Spellings<Vec<Words>>,
}

impl NetworkLoop {
    /// A loop that has seen nothing yet.
    pub fn new(settings: NetworkSettings, deps: NetworkDeps) -> Self {
        let NetworkDeps { netlink, tunnels, iptables, subnet, pods, catalog, vtep, address, rules_changed } =
            deps;
        Self {
            settings,
            netlink,
            tunnels,
            iptables,
            subnet,
            pods,
            catalog,
            vtep,
            address,
            rules_changed,
            origin: Origin::default(),
            reading: None,
            read_again: None,
            tunnel_failure: None,
            checksum_trials: checksums::TRIALS_MAX,
            random_fully: None,
            spellings: Spellings::default(),
        }
    }
}

#[async_trait]
impl Loop for NetworkLoop {
    type Observed = Observed;
    type Plan = NetworkPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "network"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        // First: whoever tells others of this node needs no range and no pods for it.
        let local = self.follow_address().await;
        let Some(subnet) = self.subnet.borrow_and_update().clone() else {
            let why = "this node has no range of pod addresses yet; the nodes controller assigns one";
            return Ok(Observation::NotReady(why.to_owned()));
        };
        let Some(pods) = self.pods.borrow_and_update().clone() else {
            return Ok(Observation::NotReady("the pods of this node have not been listed yet".to_owned()));
        };
        self.look(&subnet, &pods, local).await.map(Observation::Ready)
    }

    fn plan(observed: &Observed, _now: Timestamp) -> NetworkPlan {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, plan: NetworkPlan) -> Outcome {
        self.carry_out(observed, &plan).await
    }

    async fn report(&mut self, _observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        for sentence in &outcome.done {
            tracing::info!("network: {sentence}");
        }
        for sentence in &outcome.tolerated {
            tracing::warn!("network: {sentence}");
        }
        match outcome.failed.is_empty() {
            true => {
                let moves = self.origin.held_back(Instant::now()).map(|(_, left)| left.max(LOOK_AGAIN_MIN));
                let soonest = moves.into_iter().chain(self.read_again).min();
                Ok(soonest.map_or(Next::Interval, Next::After))
            }
            false => Err(LoopError::message(outcome.failed.join("; "))),
        }
    }
}
