//! The kernel through rtnetlink, in one network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use async_trait::async_trait;

use super::namespace::NetworkNamespace;
use super::socket::{Link, MainRoute, Socket};
use super::{
    Bridge, HARDWARE_PREFIX, HostEnd, Listener, Netlink, NetlinkError, PodLink, Port, Route, bridge,
    listeners, pod_link,
};

/// Links of this node, or of the network namespace that was opened.
#[derive(Debug)]
pub struct RealNetlink {
    pub(super) socket: Socket,
    pub(super) home: NetworkNamespace,
    /// Marks the links of this instance.
    pub(super) alias: String,
}

impl RealNetlink {
    /// Opens the node's own namespace. `instance` marks our links.
    pub fn open(instance: &str) -> Result<Self, NetlinkError> {
        Self::open_at(instance, Path::new("/proc/thread-self/ns/net"))
    }

    /// Opens the network namespace at `path`, such as `/var/run/netns/NAME`.
    pub fn open_at(instance: &str, path: &Path) -> Result<Self, NetlinkError> {
        let failed = |source| NetlinkError::Open { context: format!(" in {}", path.display()), source };
        let home = NetworkNamespace::at(path).map_err(failed)?;
        let socket = Socket::open_in(&home).map_err(failed)?;
        Ok(Self { socket, home, alias: format!("minik8s:{instance}") })
    }

    async fn default_route(&self) -> Result<Option<MainRoute>, NetlinkError> {
        let routes = self.socket.routes().await?;
        Ok(routes.into_iter().filter(|r| r.destination.prefix_len() == 0).min_by_key(|r| r.metric))
    }

    async fn link_of(&self, route: &MainRoute) -> Result<Option<Link>, NetlinkError> {
        let links = self.socket.links().await?;
        Ok(links.into_iter().find(|link| Some(link.index) == route.index))
    }
}

#[async_trait]
impl Netlink for RealNetlink {
    async fn ensure_bridge(&self, bridge: &Bridge) -> Result<bool, NetlinkError> {
        bridge::ensure(&self.socket, &self.home, bridge).await
    }

    async fn bridge_is_whole(&self, bridge: &Bridge) -> Result<bool, NetlinkError> {
        bridge::is_whole(&self.socket, &self.home, bridge).await
    }

    async fn remove_bridge(&self, name: &str) -> Result<bool, NetlinkError> {
        match self.socket.link(name).await? {
            None => Ok(false),
            Some(link) if !link.is_bridge => Err(NetlinkError::NotABridge(name.to_owned())),
            Some(link) => self.socket.delete_link(&link).await.map(|()| true),
        }
    }

    async fn ensure_pod_link(&self, link: &PodLink) -> Result<bool, NetlinkError> {
        pod_link::ensure(&self.socket, &self.home, &self.alias, link).await
    }

    async fn remove_link(&self, name: &str) -> Result<bool, NetlinkError> {
        match self.socket.link(name).await? {
            None => Ok(false),
            Some(link) => self.socket.delete_link(&link).await.map(|()| true),
        }
    }

    async fn list_pod_links(&self) -> Result<BTreeMap<String, HostEnd>, NetlinkError> {
        let links = self.socket.links().await?;
        let ours = |link: &&Link| {
            link.alias.as_deref() == Some(&self.alias) && !link.is_bridge && link.vxlan.is_none()
        };
        let end = |link: &Link| {
            let bridge = links.iter().find(|other| link.master == Some(other.index));
            let bridge = bridge.map(|bridge| bridge.name.clone());
            let Link { up, hairpin, mtu, has_ipv6, .. } = *link;
            let sender = (link.group != 0).then(|| link.group.into());
            HostEnd { bridge, up, hairpin, mtu, sender, has_ipv6 }
        };
        Ok(links.iter().filter(ours).map(|link| (link.name.clone(), end(link))).collect())
    }

    async fn list_routes(&self) -> Result<Vec<Route>, NetlinkError> {
        let links = self.socket.links().await?;
        let name_of = |index: Option<u32>| {
            let link = links.iter().find(|link| Some(link.index) == index);
            link.map(|link| link.name.clone()).unwrap_or_default()
        };
        let routes = self.socket.routes().await?;
        let route = |r: MainRoute| Route { destination: r.destination, interface: name_of(r.index) };
        Ok(routes.into_iter().map(route).collect())
    }

    async fn listeners(&self, named: &BTreeSet<Port>) -> Result<BTreeMap<Port, Listener>, NetlinkError> {
        let failed = |source| NetlinkError::Sockets { source };
        let (home, named) = (self.home.try_clone().map_err(failed)?, named.clone());
        let work = tokio::task::spawn_blocking(move || listeners::listeners(&home, &named));
        work.await.map_err(|e| failed(e.into()))?.map_err(failed)
    }

    async fn connections(&self, pid: i32, port: u16) -> Result<usize, NetlinkError> {
        let failed = |source| NetlinkError::Sockets { source };
        let work = tokio::task::spawn_blocking(move || listeners::connections(pid, port));
        work.await.map_err(|e| failed(e.into()))?.map_err(failed)
    }

    async fn node_address(&self) -> Result<Option<IpAddr>, NetlinkError> {
        let addresses = self.socket.addresses(None).await?;
        let default = self.default_route().await?;
        let source = default.as_ref().and_then(|route| route.source).or_else(|| {
            let index = default.as_ref().and_then(|route| route.index)?;
            addresses.iter().find(|(of, _)| *of == index).map(|(_, address)| address.addr())
        });
        // Skip our own links and Docker's bridge: others can't reach them.
        let links = self.socket.links().await?;
        let ours = |index: u32| {
            let is_ours = |link: &Link| link.is_bridge || link.hardware_address.starts_with(&HARDWARE_PREFIX);
            links.iter().any(|link| link.index == index && is_ours(link))
        };
        let others = || addresses.iter().filter(|(index, _)| !ours(*index)).map(|(_, a)| a.addr());
        let first = || others().find(|address| !address.is_loopback());
        Ok(source.or_else(first).map(IpAddr::V4))
    }

    async fn uplink_mtu(&self) -> Result<Option<u32>, NetlinkError> {
        let Some(route) = self.default_route().await? else { return Ok(None) };
        Ok(self.link_of(&route).await?.map(|link| link.mtu))
    }
}
