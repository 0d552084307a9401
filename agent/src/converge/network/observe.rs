//! Reads what the network loop decides on: rules, bridge, links, and the pods of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use schema::control::{LoopError, error_chain};
use schema::records::{Subnet, dns_address, gateway_address};
use tokio::time::Instant;

use super::plan::{Observed, first_claims};
use super::render::{BuildRules, Model, gateway_of};
use super::state::NetworkLoop;
use super::tunnel::{self, AddressSeen, Origin, TunnelSeen};
use crate::converge::pod_table::PodNet;
use crate::desired::Source;
use crate::worlds::netlink::{Bridge, NetlinkError, Tunnel, Tunnels};

/// Where the tunnel that is there leaves from, if that is still an address of the node.
pub async fn address_of_tunnel(tunnels: &dyn Tunnels, name: &str) -> Result<Option<Ipv4Addr>, NetlinkError> {
    let Some(there) = tunnels.tunnel_origin(name).await? else { return Ok(None) };
    Ok(tunnels.has_address(there).await?.then_some(there))
}

impl NetworkLoop {
    pub(super) async fn look(
        &mut self,
        subnet: &Subnet,
        pods: &BTreeMap<String, PodNet>,
        local: Result<Option<Ipv4Addr>, NetlinkError>,
    ) -> Result<Observed, LoopError> {
        // A tunnel that can't be looked at is no reason to leave bridge and rules alone.
        let (tunnel, tunnel_failure) = match self.look_at_tunnel(subnet, local).await {
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
        let bridge_is_whole = bridge_is_whole.map_err(|e| LoopError::new("cannot look at the bridge", e))?;
        // They stand among the rules of all services.
        let saved = self.rules.read(false).await;
        let saved = saved.map_err(|e| LoopError::new("cannot read the packet rules", e))?;
        let spellings = self.spellings.known();
        Ok(Observed { model, bridge, bridge_is_whole, tunnel, tunnel_failure, saved, spellings })
    }

    /// Without an address of the node there is nowhere to send from.
    async fn look_at_tunnel(
        &mut self,
        subnet: &Subnet,
        local: Result<Option<Ipv4Addr>, NetlinkError>,
    ) -> Result<Option<TunnelSeen>, LoopError> {
        let failed = |error| LoopError::new("cannot look at the tunnel", error);
        let Some(local) = local.map_err(failed)?.filter(|address| !address.is_loopback()) else {
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
        let peers = (catalog.source != Source::Unknown).then(|| catalog.peers.clone());
        let is_always_wanted = self.settings.tunnel_without_peers;
        let is_alone = peers.as_ref().is_none_or(BTreeMap::is_empty);
        let is_untried = is_whole && !is_alone && self.is_untried(&tunnel.name).await.map_err(failed)?;
        Ok(Some(TunnelSeen {
            tunnel,
            is_there,
            is_whole,
            is_always_wanted,
            is_untried,
            entries,
            own: subnet.cidr,
            peers,
        }))
    }

    /// Whether the tunnel is still to be tried; it is not where the kernel computes already.
    async fn is_untried(&mut self, tunnel: &str) -> Result<bool, NetlinkError> {
        if self.checksum_trials > 0 && !self.deps.tunnels.offload_is_on(tunnel).await? {
            self.checksum_trials = 0;
        }
        Ok(self.checksum_trials > 0)
    }

    /// The node's IPv4 address, published at once: the report comes only once there is a range of pod
    /// addresses, and the node's record and connections need the address before.
    pub(super) async fn follow_address(&mut self) -> Result<Option<Ipv4Addr>, NetlinkError> {
        match self.settings.node_ip {
            Some(IpAddr::V4(address)) => return Ok(Some(address)),
            Some(IpAddr::V6(_)) => return Ok(None),
            None => {}
        }
        let seen = self.look_at_address().await?;
        let Some(settled) = self.settle(seen) else { return Ok(None) };
        let now = Some(IpAddr::V4(settled));
        if self.deps.address.send_if_modified(|there| std::mem::replace(there, now) != now) {
            tracing::info!(address = %settled, "network: the node has another address");
        }
        Ok(Some(settled))
    }

    /// The address to leave from; logs once why it is not another.
    fn settle(&mut self, seen: AddressSeen) -> Option<Ipv4Addr> {
        let now = Instant::now();
        let rival = |origin: &Origin| origin.held_back(now).map(|(rival, _)| rival);
        let before = rival(&self.origin);
        let address = self.origin.settle(seen, now);
        if let (Some(former), Some((to, left))) = (address, self.origin.held_back(now))
            && before != Some(to)
        {
            tracing::info!(%former, %to, ?left, "network: the tunnel moves if the routes still say so then");
        }
        address
    }

    async fn look_at_address(&mut self) -> Result<AddressSeen, NetlinkError> {
        // An agent that starts while the routes flap keeps the tunnel that is there.
        if self.origin.address().is_none()
            && let Some(there) = address_of_tunnel(&*self.deps.tunnels, &self.settings.names.tunnel).await?
        {
            self.origin.adopt(there);
        }
        let address = self.deps.netlink.node_address().await?.and_then(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        let keeps_former = match self.origin.address().filter(|former| Some(*former) != address) {
            Some(former) => self.deps.tunnels.has_address(former).await?,
            None => true,
        };
        Ok(AddressSeen { address, is_routed: self.deps.netlink.uplink_mtu().await?.is_some(), keeps_former })
    }

    /// What builds may reach.
    fn builds(&mut self, subnet: &Subnet) -> Option<BuildRules> {
        let index = self.deps.builds.wanted.borrow_and_update().clone()?;
        let catalog = self.deps.catalog.borrow_and_update().clone();
        let nodes = catalog.peers.values().filter_map(|peer| peer.address).collect();
        Some(BuildRules { services: subnet.service_cidr.trunc(), nodes, index: (*index).clone() })
    }

    /// What functions may not reach. Other agents listen where this one does, at their nodes' addresses.
    fn guarded(&mut self) -> BTreeSet<SocketAddrV4> {
        let control = self.deps.control.borrow_and_update().clone();
        let catalog = self.deps.catalog.borrow_and_update().clone();
        let nodes = catalog.peers.values().filter_map(|peer| peer.address).chain(catalog.own_address);
        let agents = nodes.map(|node| SocketAddrV4::new(node, self.settings.api_port));
        let all = agents.chain(control.etcd).chain(control.reconcilers);
        // Of the node's own no pod reaches loopback, and of another network nobody does.
        all.filter(|at| !at.ip().is_loopback()).collect()
    }

    async fn model(
        &mut self,
        subnet: &Subnet,
        pods: &BTreeMap<String, PodNet>,
        tunnel: Option<&TunnelSeen>,
    ) -> Result<Model, LoopError> {
        let random_fully = self.deps.iptables.has_random_fully().await;
        let random_fully =
            random_fully.map_err(|e| LoopError::new("cannot ask iptables for its version", e))?;
        let bridged_frames = self.deps.iptables.sees_bridged_frames().await;
        let names: Vec<(&PodNet, String)> = pods.values().map(|pod| (pod, pod.pod.to_string())).collect();
        let claims = names.iter().flat_map(|(pod, name)| {
            pod.ports.iter().map(move |port| {
                let key = (port.protocol, port.host_port);
                (key, pod.address, port.container_port, name.as_str())
            })
        });
        Ok(Model {
            names: self.settings.names.clone(),
            node_cidr: subnet.cidr,
            cluster_cidr: subnet.cluster_cidr,
            random_fully,
            bridged_frames,
            host_ports: first_claims(claims),
            dns: dns_address(subnet.service_cidr),
            gateway: gateway_address(subnet.service_cidr),
            functions: pods.values().filter(|pod| pod.is_function).map(|pod| pod.address).collect(),
            guarded: self.guarded(),
            builds: self.builds(subnet),
            tunnel_port: self.settings.vxlan.port,
            tunnel_senders: tunnel.and_then(|seen| seen.peers.as_ref().map(tunnel::senders)),
        })
    }
}
