//! A rtnetlink socket: the agent's requests, each with a time limit, errors translated once.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use futures::TryStreamExt;
use ipnet::Ipv4Net;
use nix::errno::Errno;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoVxlan,
    LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType,
};
use rtnetlink::{Handle, LinkBridgePort, LinkUnspec, RouteMessageBuilder};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::NetlinkError;
use super::namespace::NetworkNamespace;

/// Longest wait for an answer. The kernel answers within microseconds, unless it hangs.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Index of the loopback link, the first link of every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// A link of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) up: bool,
    /// Index of the bridge that the link is a port of.
    pub(super) master: Option<u32>,
    /// Peer of an end of a veth pair: its index, in its own namespace.
    pub(super) peer: Option<u32>,
    pub(super) mtu: u32,
    pub(super) alias: Option<String>,
    pub(super) hardware_address: Vec<u8>,
    pub(super) is_bridge: bool,
    /// Link-local groups that a bridge forwards like any other address, one bit each (`group_fwd_mask`).
    pub(super) forwarded_groups: u16,
    /// True for a bridge port whose frames may leave through the port they came in by.
    pub(super) hairpin: bool,
    pub(super) group: u32,
    /// True if IPv6 or the acceptance of router advertisements is on.
    pub(super) has_ipv6: bool,
    pub(super) vxlan: Option<Vxlan>,
}

/// Properties of a tunnel that can't be changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Vxlan {
    pub(super) vni: u32,
    pub(super) port: u16,
    pub(super) local: Option<Ipv4Addr>,
    pub(super) learning: bool,
}

/// An IPv4 route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MainRoute {
    pub(super) destination: Ipv4Net,
    pub(super) gateway: Option<Ipv4Addr>,
    pub(super) index: Option<u32>,
    pub(super) source: Option<Ipv4Addr>,
    pub(super) metric: u32,
}

/// A socket in one network namespace. Closed when dropped.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) handle: Handle,
    /// Held during a list: the kernel runs one at a time per socket, and returns EBUSY for a second.
    listing: Mutex<()>,
    /// Task that sends and receives; ends with the socket.
    _connection: JoinSet<()>,
}

impl Socket {
    /// Opens a socket in `namespace`.
    pub(super) fn open_in(namespace: &NetworkNamespace) -> io::Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let (connection, handle, _messages) = namespace.run(|| {
            let _entered = runtime.enter();
            rtnetlink::new_connection()
        })?;
        let mut task = JoinSet::new();
        task.spawn(connection);
        Ok(Self { handle, listing: Mutex::default(), _connection: task })
    }

    pub(super) async fn link(&self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut answer = Box::pin(self.handle.link().get().match_name(name).execute());
        match bounded(answer.try_next()).await {
            Ok(message) => Ok(message.as_ref().map(parse_link)),
            Err(RequestFailure::Kernel(error)) if error == Errno::ENODEV as i32 => Ok(None),
            Err(refused) => Err(refused.into_error("look up", name)),
        }
    }

    pub(super) async fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let messages: Vec<LinkMessage> =
            self.list("links", || self.handle.link().get().execute().try_collect()).await?;
        Ok(messages.iter().map(parse_link).collect())
    }

    /// Runs a list request. `execute` sends it, so it is called only when no other list is in progress.
    pub(super) async fn list<T, R>(&self, what: &str, execute: impl FnOnce() -> R) -> Result<T, NetlinkError>
    where
        R: Future<Output = Result<T, rtnetlink::Error>>,
    {
        let _alone = self.listing.lock().await;
        send_request("list", what, execute()).await
    }

    pub(super) async fn add_link(&self, name: &str, message: LinkMessage) -> Result<(), NetlinkError> {
        self.try_add_link(message).await.map_err(|refused| refused.into_error("create", name))
    }

    /// Like [`Socket::add_link`], but keeps the kernel's error number.
    pub(super) async fn try_add_link(&self, message: LinkMessage) -> Result<(), RequestFailure> {
        bounded(self.handle.link().add(message).execute()).await
    }

    pub(super) async fn change_link(
        &self,
        act: &'static str,
        name: &str,
        message: LinkMessage,
    ) -> Result<(), NetlinkError> {
        send_request(act, name, self.handle.link().change(message).execute()).await
    }

    /// Allows frames to leave through the port they came in by.
    pub(super) async fn set_hairpin(&self, link: &Link) -> Result<(), NetlinkError> {
        let message = LinkBridgePort::new(link.index).hairpin(true).build();
        send_request("set hairpin of", &link.name, self.handle.link().set_port(message).execute()).await
    }

    pub(super) async fn set_loopback_up(&self) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(LOOPBACK_INDEX).up().build();
        self.change_link("set up", "lo", message).await
    }

    /// Removes a link; no error if it is already gone.
    pub(super) async fn delete_link(&self, link: &Link) -> Result<(), NetlinkError> {
        match bounded(self.handle.link().del(link.index).execute()).await {
            Err(RequestFailure::Kernel(error)) if error == Errno::ENODEV as i32 => Ok(()),
            other => other.map_err(|refused| refused.into_error("delete", &link.name)),
        }
    }

    /// Lists IPv4 addresses of a link, or of all links, with the index of the link.
    pub(super) async fn addresses(&self, index: Option<u32>) -> Result<Vec<(u32, Ipv4Net)>, NetlinkError> {
        let messages: Vec<AddressMessage> =
            self.list("addresses", || self.handle.address().get().execute().try_collect()).await?;
        let of_link = |message: &AddressMessage| index.is_none_or(|index| message.header.index == index);
        Ok(messages.iter().filter(|m| of_link(m)).filter_map(address_of).collect())
    }

    /// Adds an address to a link; no error if it exists.
    pub(super) async fn add_address(&self, link: &Link, address: Ipv4Net) -> Result<(), NetlinkError> {
        let request = self.handle.address().add(link.index, IpAddr::V4(address.addr()), address.prefix_len());
        tolerate_existing("give an address to", &link.name, request.execute()).await
    }

    pub(super) async fn delete_address(&self, link: &Link, address: Ipv4Net) -> Result<(), NetlinkError> {
        let messages: Vec<AddressMessage> =
            self.list("addresses", || self.handle.address().get().execute().try_collect()).await?;
        let found = messages.into_iter().find(|m| address_of(m) == Some((link.index, address)));
        let Some(message) = found else { return Ok(()) };
        send_request("remove an address from", &link.name, self.handle.address().del(message).execute()).await
    }

    /// Lists the IPv4 routes of the main table.
    pub(super) async fn routes(&self) -> Result<Vec<MainRoute>, NetlinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        let messages: Vec<RouteMessage> =
            self.list("routes", || self.handle.route().get(message).execute().try_collect()).await?;
        Ok(messages.iter().filter_map(route_of).collect())
    }

    /// True if this is a permanent neighbour of the link.
    pub(super) async fn has_neighbour(
        &self,
        index: u32,
        address: Ipv4Addr,
        hardware: [u8; 6],
    ) -> Result<bool, NetlinkError> {
        let request =
            || self.handle.neighbours().get().set_address_family(AddressFamily::Inet).execute().try_collect();
        let there: Vec<NeighbourMessage> = self.list("neighbours", request).await?;
        let wanted = [
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
            NeighbourAttribute::LinkLayerAddress(hardware.to_vec()),
        ];
        Ok(there.iter().filter(|message| message.header.ifindex == index).any(|message| {
            message.header.state == NeighbourState::Permanent
                && wanted.iter().all(|attribute| message.attributes.contains(attribute))
        }))
    }

    /// Sets a permanent neighbour of a link, replacing another of the same address.
    pub(super) async fn set_neighbour(
        &self,
        name: &str,
        index: u32,
        address: Ipv4Addr,
        hardware: [u8; 6],
    ) -> Result<(), NetlinkError> {
        let request = self.handle.neighbours().add(index, address.into());
        let request = request.link_layer_address(&hardware).replace();
        send_request("set a neighbour of", name, request.execute()).await
    }

    /// Adds a default route through `gateway`; no error if it exists.
    pub(super) async fn add_default_route(&self, link: &Link, gateway: Ipv4Addr) -> Result<(), NetlinkError> {
        let message =
            RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).output_interface(link.index).build();
        tolerate_existing("route through", &link.name, self.handle.route().add(message).execute()).await
    }

    /// Adds a route to `range` over a link, with the address `source`.
    pub(super) async fn add_link_route(
        &self,
        link: &Link,
        range: Ipv4Net,
        source: Ipv4Addr,
    ) -> Result<(), NetlinkError> {
        let message = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(range.network(), range.prefix_len())
            .output_interface(link.index)
            .scope(RouteScope::Link)
            .pref_source(source)
            .build();
        send_request("route over", &link.name, self.handle.route().add(message).execute()).await
    }
}

pub(super) enum RequestFailure {
    /// The kernel's error number.
    Kernel(i32),
    Other(String),
    Timeout,
}

impl RequestFailure {
    pub(super) fn into_error(self, act: &'static str, link: &str) -> NetlinkError {
        let message = match self {
            RequestFailure::Timeout => {
                let seconds = ANSWER_MAX.as_secs();
                return NetlinkError::Timeout { act, link: link.to_owned(), seconds };
            }
            RequestFailure::Kernel(number) => Errno::from_raw(number).desc().to_owned(),
            RequestFailure::Other(message) => message,
        };
        NetlinkError::Request { act, link: link.to_owned(), message }
    }
}

pub(super) async fn bounded<T>(
    request: impl Future<Output = Result<T, rtnetlink::Error>>,
) -> Result<T, RequestFailure> {
    match tokio::time::timeout(ANSWER_MAX, request).await {
        Ok(Ok(answer)) => Ok(answer),
        // The kernel's error numbers are negative.
        Ok(Err(rtnetlink::Error::NetlinkError(error))) => Err(RequestFailure::Kernel(-error.raw_code())),
        Ok(Err(error)) => Err(RequestFailure::Other(error.to_string())),
        Err(_) => Err(RequestFailure::Timeout),
    }
}

pub(super) async fn send_request<T>(
    act: &'static str,
    link: &str,
    request: impl Future<Output = Result<T, rtnetlink::Error>>,
) -> Result<T, NetlinkError> {
    bounded(request).await.map_err(|refused| refused.into_error(act, link))
}

async fn tolerate_existing(
    act: &'static str,
    link: &str,
    request: impl Future<Output = Result<(), rtnetlink::Error>>,
) -> Result<(), NetlinkError> {
    match bounded(request).await {
        Err(RequestFailure::Kernel(error)) if error == Errno::EEXIST as i32 => Ok(()),
        other => other.map_err(|refused| refused.into_error(act, link)),
    }
}

fn parse_link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        ..Link::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Controller(index) => link.master = Some(*index),
            LinkAttribute::Link(index) => link.peer = Some(*index),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::Address(address) => link.hardware_address.clone_from(address),
            LinkAttribute::Group(group) => link.group = *group,
            LinkAttribute::AfSpecUnspec(families) => link.has_ipv6 = families.iter().any(has_ipv6),
            LinkAttribute::LinkInfo(infos) => {
                link.vxlan = infos.iter().find_map(|info| match info {
                    LinkInfo::Data(InfoData::Vxlan(data)) => Some(vxlan_of(data)),
                    _ => None,
                });
                link.forwarded_groups = infos.iter().find_map(forwarded_groups).unwrap_or_default();
                link.is_bridge = infos.iter().any(|i| matches!(i, LinkInfo::Kind(InfoKind::Bridge)));
                link.hairpin = infos.iter().any(|info| match info {
                    LinkInfo::PortData(InfoPortData::BridgePort(port)) => {
                        port.contains(&InfoBridgePort::HairpinMode(true))
                    }
                    _ => false,
                });
            }
            _ => {}
        }
    }
    link
}

fn forwarded_groups(info: &LinkInfo) -> Option<u16> {
    let LinkInfo::Data(InfoData::Bridge(settings)) = info else { return None };
    settings.iter().find_map(|setting| match setting {
        InfoBridge::GroupFwdMask(mask) => Some(*mask),
        _ => None,
    })
}

fn has_ipv6(family: &AfSpecUnspec) -> bool {
    let AfSpecUnspec::Inet6(attributes) = family else { return false };
    let is_on = |attribute: &AfSpecInet6| matches!(attribute, AfSpecInet6::DevConf(conf) if conf.disable_ipv6 == 0 || conf.accept_ra != 0);
    attributes.iter().any(is_on)
}

fn vxlan_of(data: &[InfoVxlan]) -> Vxlan {
    let mut vxlan = Vxlan::default();
    for info in data {
        match info {
            InfoVxlan::Id(vni) => vxlan.vni = *vni,
            InfoVxlan::Port(port) => vxlan.port = *port,
            InfoVxlan::Local(local) => vxlan.local = Some(*local),
            InfoVxlan::Learning(learning) => vxlan.learning = *learning,
            _ => {}
        }
    }
    vxlan
}

fn address_of(message: &AddressMessage) -> Option<(u32, Ipv4Net)> {
    // `Local` is the link's own address; on a point-to-point link `Address` is the peer's.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
        _ => None,
    })?;
    Some((message.header.index, Ipv4Net::new(local, message.header.prefix_len).ok()?))
}

fn route_of(message: &RouteMessage) -> Option<MainRoute> {
    if message.header.table != RouteHeader::RT_TABLE_MAIN || message.header.kind != RouteType::Unicast {
        return None;
    }
    let mut destination = Ipv4Addr::UNSPECIFIED;
    let (mut gateway, mut index, mut source, mut metric) = (None, None, None, 0);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => destination = *address,
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => gateway = Some(*address),
            RouteAttribute::PrefSource(RouteAddress::Inet(address)) => source = Some(*address),
            RouteAttribute::Oif(oif) => index = Some(*oif),
            RouteAttribute::Priority(priority) => metric = *priority,
            _ => {}
        }
    }
    let destination = Ipv4Net::new(destination, message.header.destination_prefix_length).ok()?;
    Some(MainRoute { destination, gateway, index, source, metric })
}
