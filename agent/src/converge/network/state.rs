//! Dependencies of the network loop, and its state between runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use ipnet::Ipv4Net;
use schema::control::Nudge;
use schema::records::{Subnet, Vtep};
use tokio::sync::watch;

use super::render::Model;
use crate::catalog::Catalog;
use crate::converge::shared::control_plane::ControlPlane;
use crate::converge::shared::node_network::{BuildConfinement, PodTable, SandboxedPods};
use crate::metrics::METRICS;
use crate::node_address::NodeAddress;
use crate::packet_rules::chain::{ChainRef, Names};
use crate::packet_rules::reader::{Repairs, RulesReader};
use crate::packet_rules::saved::{SavedRules, Spellings, Words, saved_rules};
use crate::worlds::iptables::Iptables;
use crate::worlds::netlink::{Netlink, NetlinkError, Tunnels};

/// Default port of agents' APIs.
const DEFAULT_API_PORT: u16 = 7071;
/// Default port at which functions are called.
const DEFAULT_FUNCTIONS_PORT: u16 = 8081;

/// Settings that do not change while the loop runs.
#[derive(Debug, Clone)]
pub struct NetworkSettings {
    pub names: Names,
    pub pod_mtu: u32,
    pub vxlan: Vxlan,
    /// Port of the agents' APIs.
    pub api_port: u16,
    /// Port at which functions are called on this node.
    pub functions_port: u16,
    /// Set if the tunnel exists even without other nodes: systemd-resolved needs a link that is always up.
    pub tunnel_without_peers: bool,
}

/// VXLAN numbers: the same on all nodes of a cluster, different for two clusters on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    pub vni: u32,
    pub port: u16,
}

impl Default for Vxlan {
    /// Returns the defaults of the kernel and of flannel.
    fn default() -> Self {
        Self { vni: 1, port: 8472 }
    }
}

impl NetworkSettings {
    /// Returns the settings of an instance.
    pub fn new(instance: &str, pod_mtu: u32) -> Self {
        let (names, vxlan) = (Names::for_instance(instance), Vxlan::default());
        let (api_port, functions_port) = (DEFAULT_API_PORT, DEFAULT_FUNCTIONS_PORT);
        Self { names, pod_mtu, vxlan, api_port, functions_port, tunnel_without_peers: false }
    }
}

/// Inputs and outputs of the loop.
pub struct NetworkDeps {
    pub netlink: Arc<dyn Netlink>,
    pub tunnels: Arc<dyn Tunnels>,
    pub iptables: Arc<dyn Iptables>,
    pub subnet: watch::Receiver<Option<Subnet>>,
    pub pods: watch::Receiver<PodTable>,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub control: watch::Receiver<ControlPlane>,
    pub vtep: watch::Sender<Option<Vtep>>,
    /// Functions' pods with rules in place.
    pub sandboxed: watch::Sender<SandboxedPods>,
    pub builds: BuildConfinement,
    pub address: NodeAddress,
    /// Wakes the loop whose jumps must come before ours.
    pub rules_changed: Nudge,
}

/// Table for frames as this agent wrote it.
pub(super) struct WrittenFrames {
    /// Range from which the table follows.
    pub(super) node_cidr: Ipv4Net,
    /// Text that `nft` printed afterwards; each version spells rules in its own way.
    pub(super) printed: String,
    /// Kernel's count for that text.
    pub(super) generation: Option<u32>,
}

/// Loop that manages the node's network.
pub struct NetworkLoop {
    pub(super) settings: NetworkSettings,
    pub(super) deps: NetworkDeps,
    /// Reader of our chains and the kernel's.
    pub(super) rules: RulesReader<SavedRules>,
    pub(super) repairs: Repairs<Model>,
    /// Last logged reason why the tunnel is not as desired.
    pub(super) tunnel_failure: Option<String>,
    pub(super) checksum_trials: u8,
    /// Table for frames that this agent wrote; `None` after a failure.
    pub(super) frames: Option<WrittenFrames>,
    /// Last logged reason why the frames of pods are not checked.
    pub(super) frames_failure: Option<String>,
    pub(super) spellings: Spellings<Vec<Words>>,
}

impl NetworkLoop {
    /// Creates a loop that has not observed anything yet.
    pub fn new(settings: NetworkSettings, deps: NetworkDeps) -> Self {
        let jumps = settings.names.jumps().into_iter().chain([settings.names.builds_jump()]);
        let bases: BTreeSet<ChainRef> = jumps.map(|jump| jump.base).collect();
        let ours: BTreeSet<ChainRef> = settings.names.chains().into_iter().cloned().collect();
        let parse =
            move |text: &str| saved_rules(text, |chain| bases.contains(chain) || ours.contains(chain));
        let rules = RulesReader::new(Arc::clone(&deps.iptables), parse);
        Self {
            rules,
            repairs: Repairs::new(METRICS.repairs.clone()),
            settings,
            deps,
            tunnel_failure: None,
            checksum_trials: TRIALS_MAX,
            frames: None,
            frames_failure: None,
            spellings: Spellings::default(),
        }
    }
}

// Tests a new tunnel for TCP connectivity, with the first node that answers.
//
// Some network cards and hypervisors claim to compute checksums within a tunnel and do not: DNS and ping work
// across nodes, but every connection hangs. The kernel then computes them instead.
// nodes, and every connection hangs. The kernel computes them then.

/// Trials of one link while no node answers, 1.6 s each; then its checksums stay as they are. When nodes start
/// together, the first has its tunnel before another can answer.
pub(super) const TRIALS_MAX: u8 = 5;

/// Result of a trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TrialResult {
    Sound,
    /// TCP reaches this node only with the kernel's checksums, which stay on.
    Computed(String),
    Silence,
}

/// Tries the card's checksums, then the kernel's, then the card's again, so that a randomly lost packet costs no
/// throughput.
pub(super) async fn try_checksums(
    tunnels: &dyn Tunnels,
    tunnel: &str,
    asked: &BTreeMap<SocketAddr, String>,
) -> Result<TrialResult, NetlinkError> {
    if first_answer(tunnels, asked.keys()).await.is_some() {
        return Ok(TrialResult::Sound);
    }
    tunnels.set_offload(tunnel, false).await?;
    let reached = first_answer(tunnels, asked.keys()).await;
    tunnels.set_offload(tunnel, true).await?;
    let Some(reached) = reached else { return Ok(TrialResult::Silence) };
    if tunnels.answers(reached).await {
        return Ok(TrialResult::Sound);
    }
    tunnels.set_offload(tunnel, false).await?;
    Ok(TrialResult::Computed(asked[&reached].clone()))
}

async fn first_answer(tunnels: &dyn Tunnels, asked: impl Iterator<Item = &SocketAddr>) -> Option<SocketAddr> {
    let ask = async |at: SocketAddr| tunnels.answers(at).await.then_some(at);
    let mut answers: FuturesUnordered<_> = asked.map(|at| ask(*at)).collect();
    while let Some(answer) = answers.next().await {
        if answer.is_some() {
            return answer;
        }
    }
    None
}
