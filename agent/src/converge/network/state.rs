//! What the network loop stands on, and what it keeps between runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use schema::control::Nudge;
use schema::records::{Subnet, Vtep};
use tokio::sync::watch;

use super::checksums::TRIALS_MAX;
use crate::catalog::Catalog;
use crate::converge::build_network::BuildConfinement;
use crate::converge::control_plane::ControlPlane;
use crate::converge::pod_table::{PodTable, SandboxedPods};
use crate::node_address::NodeAddress;
use crate::packet_rules::chain::ChainRef;
use crate::packet_rules::names::Names;
use crate::packet_rules::reader::RulesReader;
use crate::packet_rules::saved::{SavedRules, Words, saved_rules};
use crate::packet_rules::spellings::Spellings;
use crate::worlds::iptables::Iptables;
use crate::worlds::netlink::{Netlink, Tunnels};

/// Where agents' APIs listen by default.
const DEFAULT_API_PORT: u16 = 7071;

/// What does not change while the loop runs.
#[derive(Debug, Clone)]
pub struct NetworkSettings {
    pub names: Names,
    pub pod_mtu: u32,
    pub vxlan: Vxlan,
    /// Where the agents' APIs listen.
    pub api_port: u16,
    /// The tunnel stands without other nodes too: systemd-resolved needs a link that is always up.
    pub tunnel_without_peers: bool,
}

/// What all nodes of a cluster have in common, and no two clusters on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    pub vni: u32,
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
        Self { names, pod_mtu, vxlan, api_port: DEFAULT_API_PORT, tunnel_without_peers: false }
    }
}

/// What the loop reads and writes.
pub struct NetworkDeps {
    pub netlink: Arc<dyn Netlink>,
    pub tunnels: Arc<dyn Tunnels>,
    pub iptables: Arc<dyn Iptables>,
    pub subnet: watch::Receiver<Option<Subnet>>,
    pub pods: watch::Receiver<PodTable>,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub control: watch::Receiver<ControlPlane>,
    pub vtep: watch::Sender<Option<Vtep>>,
    /// Functions' pods whose rules stand.
    pub sandboxed: watch::Sender<SandboxedPods>,
    pub builds: BuildConfinement,
    pub address: NodeAddress,
    /// Wakes whose jumps have to stand before ours.
    pub rules_changed: Nudge,
}

/// The loop.
pub struct NetworkLoop {
    pub(super) settings: NetworkSettings,
    pub(super) deps: NetworkDeps,
    /// Our chains and the kernel's.
    pub(super) rules: RulesReader<SavedRules>,
    /// Why the tunnel is not as it should be, as logged last.
    pub(super) tunnel_failure: Option<String>,
    pub(super) checksum_trials: u8,
    pub(super) spellings: Spellings<Vec<Words>>,
}

impl NetworkLoop {
    /// A loop that has seen nothing yet.
    pub fn new(settings: NetworkSettings, deps: NetworkDeps) -> Self {
        let jumps = settings.names.jumps().into_iter().chain([settings.names.builds_jump()]);
        let bases: BTreeSet<ChainRef> = jumps.map(|jump| jump.base).collect();
        let ours: BTreeSet<ChainRef> = settings.names.chains().into_iter().cloned().collect();
        let parse =
            move |text: &str| saved_rules(text, |chain| bases.contains(chain) || ours.contains(chain));
        let rules = RulesReader::new(Arc::clone(&deps.iptables), parse);
        Self {
            rules,
            settings,
            deps,
            tunnel_failure: None,
            checksum_trials: TRIALS_MAX,
            spellings: Spellings::default(),
        }
    }
}
