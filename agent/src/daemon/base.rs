//! Constructors of the agent's loops from their shared dependencies.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schema::control::{Nudge, Row};
use schema::kinds::cluster::PodSecurity;
use schema::records::{NodeUsage, RulesStatus, Subnet, Vtep};
use schema::store::SharedStore;
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use schema::trust::TrustReader;
use tokio::sync::watch;

use crate::catalog::Catalog;
use crate::config::Config;
use crate::converge::address::AddressLoop;
use crate::converge::builds::plan::ImageReports;
use crate::converge::builds::{BuildsDeps, BuildsLoop};
use crate::converge::images::{ImagesDeps, ImagesLoop};
use crate::converge::network::{NetworkDeps, NetworkLoop, NetworkSettings};
use crate::converge::node::{NodeDeps, NodeLoop};
use crate::converge::pods::{Helper, NodeMemory, PauseImage, PodsDeps, PodsLoop};
use crate::converge::services::{ServicesDeps, ServicesLoop};
use crate::converge::shared::control_plane::ControlPlane;
use crate::converge::shared::image_store::ImageBook;
use crate::converge::shared::node_network::{
    BuildConfinement, BuildRequests, NodeDns, PodTable, SandboxedPods,
};
use crate::converge::shared::pulls::Pulls;
use crate::converge::slurm::{SlurmDeps, SlurmLoop};
use crate::converge::usage::{UsageDeps, UsageLoop};
use crate::desired::DiskError;
use crate::files::PodFiles;
use crate::locks::RUN_DIR;
use crate::metrics::Resources;
use crate::node_address::NodeAddress;
use crate::worlds::cgroups::RealCgroups;
use crate::worlds::docker::Docker;
use crate::worlds::host::{RealDisk, RealMachine, cpu};
use crate::worlds::iptables::Iptables;
use crate::worlds::netlink::RealNetlink;
use crate::worlds::pause;
use crate::worlds::peers::{Peers, PeersDeps};
use crate::worlds::prober::RealProber;
use crate::worlds::registry::ClusterRegistry;
use crate::worlds::ssh::RealSsh;

/// Interval at which the rules are checked: a flush by someone else is repaired in less than 5 s.
pub(super) const NETWORK_INTERVAL: Duration = Duration::from_secs(3);

/// Longest wait after a failure of the network or node loop: rules and heartbeat recover within seconds once the
/// cause is gone.
const FAILURE_MAX: Duration = Duration::from_secs(4);

/// Creates the row of a loop that runs every `interval`, with the agent's backoff.
pub(super) fn every(interval: Duration) -> Row {
    Row::every(interval).backoff_max(FAILURE_MAX)
}

/// Dependencies shared by all loops.
pub(super) struct LoopDeps<'c> {
    pub(super) config: &'c Config,
    pub(super) docker: Arc<dyn Docker>,
    pub(super) netlink: Arc<RealNetlink>,
    pub(super) iptables: Arc<dyn Iptables>,
    pub(super) store: SharedStore,
    pub(super) files: Arc<PodFiles>,
    pub(super) images: Arc<ImageBook>,
    pub(super) pod_mtu: u32,
    pub(super) memory: NodeMemory,
    pub(super) pod_security_floor: Arc<PodSecurity>,
    pub(super) address: NodeAddress,
    pub(super) subnet: watch::Receiver<Option<Subnet>>,
    pub(super) catalog: watch::Receiver<Arc<Catalog>>,
    pub(super) control: watch::Receiver<ControlPlane>,
    pub(super) snapshot: SnapshotReader,
    pub(super) events: EventRecorder,
    /// Own credentials for connections.
    pub(super) trust: TrustReader,
}

impl LoopDeps<'_> {
    fn node_name(&self) -> String {
        self.config.node.clone()
    }

    fn instance(&self) -> String {
        self.config.machine.instance.clone()
    }

    fn registry(&self) -> Arc<ClusterRegistry> {
        let (docker, files) = (Arc::clone(&self.docker), Arc::clone(&self.files));
        Arc::new(ClusterRegistry::new(docker, files, self.catalog.clone()))
    }

    pub(super) fn services(
        &self,
        status: watch::Sender<Option<RulesStatus>>,
        programmed: watch::Sender<i64>,
    ) -> ServicesLoop {
        ServicesLoop::new(ServicesDeps {
            node: self.node_name(),
            address: self.address.clone(),
            instance: self.instance(),
            iptables: Arc::clone(&self.iptables),
            subnet: self.subnet.clone(),
            catalog: self.catalog.clone(),
            control: self.control.clone(),
            events: self.events.clone(),
            forbids_external_ips: self.pod_security_floor.forbid_external_ips,
            status,
            programmed,
        })
    }

    pub(super) fn pods(
        &self,
        nudge: Nudge,
        dns: watch::Receiver<NodeDns>,
        pod_table: watch::Sender<PodTable>,
        (programmed, sandboxed): (watch::Receiver<i64>, watch::Receiver<SandboxedPods>),
    ) -> Result<(PodsLoop, Vec<Helper>), DiskError> {
        PodsLoop::new(PodsDeps {
            node: self.node_name(),
            address: self.address.clone(),
            instance: self.instance(),
            state_dir: self.config.machine.state_dir.clone(),
            mtu: self.pod_mtu,
            container_limits: self.config.container_limits,
            cpu: cpu(),
            memory: self.memory,
            pod_security_floor: Arc::clone(&self.pod_security_floor),
            dns,
            docker: Arc::clone(&self.docker),
            netlink: Arc::clone(&self.netlink) as _,
            prober: Arc::new(RealProber::default()),
            pause_image: PauseImage {
                reference: pause::image_reference(),
                archive: Arc::new(pause::image_tar),
            },
            snapshot: self.snapshot.clone(),
            store: Arc::clone(&self.store),
            events: self.events.clone(),
            nudge,
            pod_table,
            credentials: Arc::clone(&self.files) as _,
            peers: self.peers(),
            images: Arc::clone(&self.images),
            files: Arc::clone(&self.files),
            catalog: self.catalog.clone(),
            programmed,
            sandboxed,
        })
    }

    fn peers(&self) -> Arc<Peers> {
        Arc::new(Peers::new(PeersDeps {
            node: self.node_name(),
            docker: Arc::clone(&self.docker),
            snapshot: self.snapshot.clone(),
            catalog: self.catalog.clone(),
            registry: self.registry(),
            trust: Some(self.trust.clone()),
        }))
    }

    pub(super) fn usage(
        &self,
        records: watch::Sender<Option<NodeUsage>>,
        resources: watch::Sender<Option<Arc<Resources>>>,
    ) -> UsageLoop {
        UsageLoop::new(UsageDeps {
            instance: self.instance(),
            state_dir: self.config.machine.state_dir.clone(),
            docker: Arc::clone(&self.docker),
            cgroups: Arc::new(RealCgroups::new()),
            disk: Arc::new(RealDisk),
            memory_bytes: self.memory.bytes,
            records,
            resources,
        })
    }

    pub(super) fn builds(
        &self,
        nudge: Nudge,
        network: BuildRequests,
        reports: watch::Sender<Option<ImageReports>>,
    ) -> BuildsLoop {
        let deps = BuildsDeps {
            node: self.node_name(),
            state_dir: self.config.machine.state_dir.clone(),
            instance: self.instance(),
            retention: self.config.function_image_retention,
            limits: self.config.build_limits,
            mtu: self.pod_mtu,
            network,
            docker: Arc::clone(&self.docker),
            disk: Arc::new(RealDisk),
            registry: self.registry(),
            pulls: Pulls::new(Arc::clone(&self.docker), Arc::clone(&self.images), self.peers()),
            nudge,
            files: Arc::clone(&self.files),
            snapshot: self.snapshot.clone(),
            catalog: self.catalog.clone(),
            events: self.events.clone(),
        };
        BuildsLoop::new(deps, reports)
    }

    pub(super) fn slurm(
        &self,
        nudge: Nudge,
        reports: watch::Sender<Option<crate::converge::slurm::plan::ReportsByJob>>,
    ) -> SlurmLoop {
        let agent_dir = self.config.machine.agent_dir();
        let deps = SlurmDeps {
            node: self.node_name(),
            ssh: Arc::new(RealSsh::new(Path::new(RUN_DIR), &agent_dir)),
            files: Arc::clone(&self.files),
            snapshot: self.snapshot.clone(),
            events: self.events.clone(),
            nudge,
        };
        SlurmLoop::new(deps, &agent_dir, reports)
    }

    pub(super) fn images(&self) -> ImagesLoop {
        ImagesLoop::new(ImagesDeps {
            node: self.node_name(),
            docker: Arc::clone(&self.docker),
            disk: Arc::new(RealDisk),
            book: Arc::clone(&self.images),
            thresholds: self.config.image_gc,
            events: self.events.clone(),
        })
    }

    pub(super) fn node(
        &self,
        vtep: watch::Receiver<Option<Vtep>>,
        reported: watch::Receiver<bool>,
    ) -> NodeLoop {
        NodeLoop::new(NodeDeps {
            node: self.node_name(),
            listen: self.config.listen,
            functions_listen: self.config.functions_listen,
            address: self.address.clone(),
            age_recipient: self.files.recipient().map(str::to_owned),
            cluster_recipient: self.files.cluster_recipient(),
            store: Arc::clone(&self.store),
            machine: Arc::new(RealMachine::new(Arc::clone(&self.docker), self.address.clone())),
            subnet: self.subnet.clone(),
            vtep,
            reported,
            trust: self.trust.clone(),
            since: Timestamp::now(),
        })
    }

    pub(super) fn address(&self, addresses: watch::Sender<Option<IpAddr>>) -> AddressLoop {
        AddressLoop::new(Arc::clone(&self.netlink) as _, Arc::clone(&self.netlink) as _, addresses)
    }

    pub(super) fn network(
        &self,
        pods: watch::Receiver<PodTable>,
        (vtep, sandboxed, builds): (
            watch::Sender<Option<Vtep>>,
            watch::Sender<SandboxedPods>,
            BuildConfinement,
        ),
        rules_changed: Nudge,
    ) -> NetworkLoop {
        let deps = NetworkDeps {
            netlink: Arc::clone(&self.netlink) as _,
            tunnels: Arc::clone(&self.netlink) as _,
            iptables: Arc::clone(&self.iptables),
            subnet: self.subnet.clone(),
            pods,
            catalog: self.catalog.clone(),
            control: self.control.clone(),
            vtep,
            sandboxed,
            builds,
            address: self.address.clone(),
            rules_changed,
        };
        let settings = NetworkSettings {
            vxlan: self.config.vxlan,
            api_port: self.config.listen.port(),
            functions_port: self.config.functions_listen.port(),
            tunnel_without_peers: self.config.dns.node_dns,
            ..NetworkSettings::new(&self.config.machine.instance, self.pod_mtu)
        };
        NetworkLoop::new(settings, deps)
    }
}
