//! Links in memory, for tests of the loops: the same names, and errors on request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use schema::control::lock;

use super::{
    Bridge, HostEnd, Listener, Netlink, NetlinkError, PodLink, Port, Route, Tunnel, TunnelEntry, Tunnels,
};

/// State of the fake kernel.
#[derive(Debug, Default)]
pub struct FakeKernel {
    pub bridges: BTreeMap<String, Bridge>,
    pub tunnels: BTreeMap<String, (Tunnel, BTreeSet<TunnelEntry>)>,
    pub links: BTreeMap<String, PodLink>,
    /// Links that [`Netlink::list_pod_links`] returns although no [`PodLink`] made them.
    pub strays: BTreeSet<String>,
    pub routes: Vec<Route>,
    pub listeners: BTreeMap<Port, Listener>,
    /// Connections to a port of a pod, by the process that holds its namespaces.
    pub connections: BTreeMap<i32, usize>,
    pub addresses: BTreeSet<Ipv4Addr>,
    /// Error text of all calls, if set.
    pub refuse: Option<String>,
    /// Error text of reads of tunnels, if set.
    pub refuse_tunnels: Option<String>,
    pub offload_is_on: bool,
    pub refuse_offload: Option<String>,
    /// Addresses that answer TCP; true if only with checksums computed by the kernel.
    pub answering: BTreeMap<SocketAddr, bool>,
    /// Number of attempts that go unanswered, at any address.
    pub lost: usize,
    /// Changing acts in order: `ensure_pod_link mk8sv…`.
    pub acts: Vec<String>,
}

/// A kernel in memory.
#[derive(Debug, Default)]
pub struct FakeNetlink(Mutex<FakeKernel>);

impl FakeNetlink {
    /// The state, to inspect and change.
    pub fn kernel(&self) -> MutexGuard<'_, FakeKernel> {
        lock(&self.0)
    }

    fn allowed(&self, act: &'static str, link: &str) -> Result<MutexGuard<'_, FakeKernel>, NetlinkError> {
        let kernel = self.kernel();
        match &kernel.refuse {
            Some(message) => {
                Err(NetlinkError::Request { act, link: link.to_owned(), message: message.clone() })
            }
            None => Ok(kernel),
        }
    }
}

#[async_trait]
impl Netlink for FakeNetlink {
    async fn ensure_bridge(&self, bridge: &Bridge) -> Result<bool, NetlinkError> {
        let mut kernel = self.allowed("ensure", &bridge.name)?;
        if kernel.bridges.get(&bridge.name) == Some(bridge) {
            return Ok(false);
        }
        kernel.bridges.insert(bridge.name.clone(), bridge.clone());
        kernel.acts.push(format!("ensure_bridge {}", bridge.name));
        Ok(true)
    }

    async fn bridge_is_whole(&self, bridge: &Bridge) -> Result<bool, NetlinkError> {
        Ok(self.allowed("look up", &bridge.name)?.bridges.get(&bridge.name) == Some(bridge))
    }

    async fn remove_bridge(&self, name: &str) -> Result<bool, NetlinkError> {
        let mut kernel = self.allowed("remove", name)?;
        let was_there = kernel.bridges.remove(name).is_some();
        if was_there {
            kernel.acts.push(format!("remove_bridge {name}"));
        }
        Ok(was_there)
    }

    async fn ensure_pod_link(&self, link: &PodLink) -> Result<bool, NetlinkError> {
        let mut kernel = self.allowed("ensure", &link.host_name)?;
        if !kernel.bridges.contains_key(&link.bridge) {
            return Err(NetlinkError::NoBridge(link.bridge.clone()));
        }
        if kernel.links.get(&link.host_name) == Some(link) {
            return Ok(false);
        }
        kernel.links.insert(link.host_name.clone(), link.clone());
        kernel.acts.push(format!("ensure_pod_link {}", link.host_name));
        Ok(true)
    }

    async fn remove_link(&self, name: &str) -> Result<bool, NetlinkError> {
        let mut kernel = self.allowed("remove", name)?;
        let was_there = kernel.links.remove(name).is_some() | kernel.strays.remove(name);
        if was_there {
            kernel.acts.push(format!("remove_link {name}"));
        }
        Ok(was_there)
    }

    async fn list_pod_links(&self) -> Result<BTreeMap<String, HostEnd>, NetlinkError> {
        let kernel = self.allowed("list", "links")?;
        let mut ends: BTreeMap<String, HostEnd> =
            kernel.strays.iter().map(|name| (name.clone(), HostEnd::default())).collect();
        for (name, link) in &kernel.links {
            let bridge = Some(link.bridge.clone()).filter(|bridge| kernel.bridges.contains_key(bridge));
            let (mtu, sender) = (link.mtu, Some(link.address.addr()));
            let end = HostEnd { bridge, up: true, hairpin: true, mtu, sender, has_ipv6: false };
            ends.insert(name.clone(), end);
        }
        Ok(ends)
    }

    async fn list_routes(&self) -> Result<Vec<Route>, NetlinkError> {
        Ok(self.allowed("list", "routes")?.routes.clone())
    }

    async fn listeners(&self, _named: &BTreeSet<Port>) -> Result<BTreeMap<Port, Listener>, NetlinkError> {
        Ok(self.allowed("list", "sockets")?.listeners.clone())
    }

    async fn connections(&self, pid: i32, _port: u16) -> Result<usize, NetlinkError> {
        Ok(self.allowed("list", "sockets")?.connections.get(&pid).copied().unwrap_or_default())
    }

    async fn node_address(&self) -> Result<Option<IpAddr>, NetlinkError> {
        Ok(Some(Ipv4Addr::new(192, 0, 2, 1).into()))
    }

    async fn uplink_mtu(&self) -> Result<Option<u32>, NetlinkError> {
        Ok(Some(1500))
    }
}

#[async_trait]
impl Tunnels for FakeNetlink {
    async fn has_address(&self, address: Ipv4Addr) -> Result<bool, NetlinkError> {
        Ok(self.allowed("list", "addresses")?.addresses.contains(&address))
    }

    async fn ensure_tunnel(&self, tunnel: &Tunnel) -> Result<bool, NetlinkError> {
        let mut kernel = self.allowed("ensure", &tunnel.name)?;
        if kernel.tunnels.get(&tunnel.name).is_some_and(|(there, _)| there == tunnel) {
            return Ok(false);
        }
        kernel.tunnels.insert(tunnel.name.clone(), (tunnel.clone(), BTreeSet::new()));
        kernel.acts.push(format!("ensure_tunnel {}", tunnel.name));
        Ok(true)
    }

    async fn tunnel_is_whole(&self, tunnel: &Tunnel) -> Result<bool, NetlinkError> {
        let kernel = self.allowed("look up", &tunnel.name)?;
        if let Some(message) = kernel.refuse_tunnels.clone() {
            return Err(NetlinkError::Request { act: "look up", link: tunnel.name.clone(), message });
        }
        Ok(kernel.tunnels.get(&tunnel.name).is_some_and(|(there, _)| there == tunnel))
    }

    async fn tunnel_origin(&self, name: &str) -> Result<Option<Ipv4Addr>, NetlinkError> {
        Ok(self.allowed("look up", name)?.tunnels.get(name).map(|(tunnel, _)| tunnel.local))
    }

    async fn remove_tunnel(&self, name: &str) -> Result<bool, NetlinkError> {
        Ok(self.allowed("remove", name)?.tunnels.remove(name).is_some())
    }

    async fn tunnel_entries(&self, name: &str) -> Result<BTreeSet<TunnelEntry>, NetlinkError> {
        let kernel = self.allowed("list", name)?;
        Ok(kernel.tunnels.get(name).map(|(_, entries)| entries.clone()).unwrap_or_default())
    }

    async fn set_tunnel_entry(&self, name: &str, entry: TunnelEntry) -> Result<(), NetlinkError> {
        let mut kernel = self.allowed("set an entry of", name)?;
        let (_, entries) =
            kernel.tunnels.get_mut(name).ok_or_else(|| NetlinkError::NoTunnel(name.to_owned()))?;
        entries.retain(|there| !there.has_key_of(&entry));
        entries.insert(entry);
        kernel.acts.push(format!("set {entry}"));
        Ok(())
    }

    async fn drop_tunnel_entry(&self, name: &str, entry: TunnelEntry) -> Result<(), NetlinkError> {
        let mut kernel = self.allowed("remove an entry from", name)?;
        if kernel.tunnels.get_mut(name).is_some_and(|(_, entries)| entries.remove(&entry)) {
            kernel.acts.push(format!("drop {entry}"));
        }
        Ok(())
    }

    async fn offload_is_on(&self, tunnel: &str) -> Result<bool, NetlinkError> {
        Ok(self.allowed("look at", tunnel)?.offload_is_on)
    }

    async fn set_offload(&self, tunnel: &str, on: bool) -> Result<(), NetlinkError> {
        let mut kernel = self.allowed("set", tunnel)?;
        if let Some(message) = kernel.refuse_offload.clone() {
            return Err(NetlinkError::Request { act: "set", link: tunnel.to_owned(), message });
        }
        kernel.offload_is_on = on;
        kernel.acts.push(format!("offload {}", if on { "on" } else { "off" }));
        Ok(())
    }

    async fn answers(&self, at: SocketAddr) -> bool {
        let mut kernel = self.kernel();
        kernel.acts.push(format!("knock {}", at.ip()));
        if let Some(left) = kernel.lost.checked_sub(1) {
            kernel.lost = left;
            return false;
        }
        kernel.answering.get(&at).is_some_and(|only_computed| !(kernel.offload_is_on && *only_computed))
    }
}
