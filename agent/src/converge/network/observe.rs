//! Observes the inputs of the network loop: rules, bridge, links, and the pods of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use schema::control::{LoopError, error_chain};
use schema::records::{Subnet, dns_address, gateway_address};

use super::plan::{Observed, assign_host_ports};
use super::render::{BuildRules, Model, gateway_of};
use super::state::NetworkLoop;
use super::tunnel::{self, TunnelState};
use crate::converge::shared::node_network::PodNet;
use crate::desired::StateOrigin;
use crate::worlds::netlink::{Bridge, NetlinkError, Tunnel};

impl NetworkLoop {
    pub(super) async fn read_inputs(
        &mut self,
        subnet: &Subnet,
        pods: &BTreeMap<String, PodNet>,
    ) -> Result<Observed, LoopError> {
        // A tunnel that can't be inspected is no reason to neglect bridge and rules.
        let (tunnel, tunnel_failure) = match self.read_tunnel(subnet).await {
            Ok(tunnel) => (tunnel, None),
            Err(error) => (None, Some(error_chain(&error))),
        };
        let model = self.model(subnet, pods, tunnel.as_ref()).await?;
        let bridge = Bridge {
            name: model.names.bridge.clone(),
            address: gateway_of(subnet.cidr),
            vips: vec![dns_address(subnet.service_cidr), gateway_address(subnet.service_cidr)],
            services: subnet.service_cidr.trunc(),
            mtu: self.settings.pod_mtu,
        };
        let bridge_is_whole = self.deps.netlink.bridge_is_whole(&bridge).await;
        let bridge_is_whole = bridge_is_whole.map_err(|e| LoopError::new("cannot inspect the bridge", e))?;
        let frames_are_right = self.frames_are_right(&model).await;
        // Our rules are among those of all services, which are expensive to read.
        let saved = self.rules.read(false).await;
        let saved = saved.map_err(|e| LoopError::new("cannot read the packet rules", e))?;
        let spellings = self.spellings.known();
        Ok(Observed {
            model,
            bridge,
            bridge_is_whole,
            frames_are_right,
            tunnel,
            tunnel_failure,
            saved,
            spellings,
        })
    }

    /// True if the table for frames is still the one that this agent wrote. Listed only when the kernel's count says
    /// that others have changed rules.
    async fn frames_are_right(&mut self, model: &Model) -> bool {
        let generation = self.deps.iptables.generation().await;
        let Some(written) = &mut self.frames else { return false };
        if written.node_cidr != model.node_cidr {
            return false;
        }
        if generation.is_none() || written.generation != generation {
            let there = self.deps.iptables.frame_table(&model.names.senders).await;
            if there.ok().flatten().as_ref() != Some(&written.printed) {
                return false;
            }
            written.generation = generation;
        }
        true
    }

    /// Inspects the tunnel; `None` if the node has no address to send from.
    async fn read_tunnel(&mut self, subnet: &Subnet) -> Result<Option<TunnelState>, LoopError> {
        let failed = |error| LoopError::new("cannot inspect the tunnel", error);
        let Some(local) = self.deps.address.v4().filter(|address| !address.is_loopback()) else {
            return Ok(None);
        };
        let tunnel = Tunnel {
            name: self.settings.names.tunnel.clone(),
            local,
            vni: self.settings.vxlan.vni,
            port: self.settings.vxlan.port,
            address: subnet.cidr.network(),
            mtu: self.settings.pod_mtu,
        };
        let is_there = self.deps.tunnels.tunnel_origin(&tunnel.name).await.map_err(failed)?.is_some();
        let is_whole = self.deps.tunnels.tunnel_is_whole(&tunnel).await.map_err(failed)?;
        let entries = self.deps.tunnels.tunnel_entries(&tunnel.name).await.map_err(failed)?;
        let catalog = self.deps.catalog.borrow_and_update().clone();
        let peers = (catalog.known_from != StateOrigin::Unknown).then(|| catalog.peers.clone());
        let is_always_wanted = self.settings.tunnel_without_peers;
        let is_alone = peers.as_ref().is_none_or(BTreeMap::is_empty);
        let is_untried = is_whole && !is_alone && self.needs_trial(&tunnel.name).await.map_err(failed)?;
        Ok(Some(TunnelState {
            tunnel,
            is_there,
            is_whole,
            is_always_wanted,
            needs_trial: is_untried,
            entries,
            own: subnet.cidr,
            peers,
        }))
    }

    /// True if the tunnel still needs a trial; false if the kernel already computes checksums.
    async fn needs_trial(&mut self, tunnel: &str) -> Result<bool, NetlinkError> {
        if self.checksum_trials > 0 && !self.deps.tunnels.offload_is_on(tunnel).await? {
            self.checksum_trials = 0;
        }
        Ok(self.checksum_trials > 0)
    }

    /// Returns the rules for builds.
    fn builds(&mut self, subnet: &Subnet) -> Option<BuildRules> {
        let index = self.deps.builds.wanted.borrow_and_update().clone()?;
        let catalog = self.deps.catalog.borrow_and_update().clone();
        let nodes = catalog.peers.values().filter_map(|peer| peer.address).collect();
        Some(BuildRules { services: subnet.service_cidr.trunc(), nodes, index: (*index).clone() })
    }

    /// Returns the addresses that functions must not reach. Other agents listen on the same port as this one, at
    /// their nodes' addresses.
    fn guarded(&mut self) -> BTreeSet<SocketAddrV4> {
        let control = self.deps.control.borrow_and_update().clone();
        let catalog = self.deps.catalog.borrow_and_update().clone();
        let nodes = catalog.peers.values().filter_map(|peer| peer.address).chain(catalog.own_address);
        let agents = nodes.map(|node| SocketAddrV4::new(node, self.settings.api_port));
        let all = agents.chain(control.etcd).chain(control.reconcilers);
        // Pods can't reach the node's loopback, and nobody reaches another machine's.
        all.filter(|at| !at.ip().is_loopback()).collect()
    }

    async fn model(
        &mut self,
        subnet: &Subnet,
        pods: &BTreeMap<String, PodNet>,
        tunnel: Option<&TunnelState>,
    ) -> Result<Model, LoopError> {
        let random_fully = self.deps.iptables.has_random_fully().await;
        let random_fully =
            random_fully.map_err(|e| LoopError::new("cannot ask iptables for its version", e))?;
        let bridged_frames = self.deps.iptables.sees_bridged_frames().await;
        let names: Vec<(&PodNet, String)> = pods.values().map(|pod| (pod, pod.pod.to_string())).collect();
        let wanted = names.iter().flat_map(|(pod, name)| {
            pod.ports.iter().map(move |port| (port.port(), pod.address, port.container_port, name.as_str()))
        });
        Ok(Model {
            names: self.settings.names.clone(),
            node_cidr: subnet.cidr,
            cluster_cidr: subnet.cluster_cidr,
            random_fully,
            bridged_frames,
            host_ports: assign_host_ports(wanted),
            dns: dns_address(subnet.service_cidr),
            gateway: gateway_address(subnet.service_cidr),
            functions_port: self.settings.functions_port,
            functions: pods.values().filter(|pod| pod.is_function).map(|pod| pod.address).collect(),
            guarded: self.guarded(),
            builds: self.builds(subnet),
            tunnel_port: self.settings.vxlan.port,
            tunnel_senders: tunnel.and_then(|seen| seen.peers.as_ref().map(tunnel::senders)),
        })
    }
}
