//! Survey of the machine's links, and a namespace for trials: for the doctor.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use ipnet::Ipv4Net;
use rtnetlink::{LinkBridge, LinkVeth, LinkVxlan};

use super::namespace::NetworkNamespace;
use super::socket::Socket;
use super::{NetlinkError, RealNetlink};

/// A link of the node, as far as conflicts need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub mtu: u32,
    pub addresses: Vec<Ipv4Net>,
    /// VNI and UDP port of a VXLAN.
    pub vxlan: Option<(u32, u16)>,
}

impl RealNetlink {
    /// Lists all links.
    pub async fn devices(&self) -> Result<Vec<Device>, NetlinkError> {
        let addresses = self.socket.addresses(None).await?;
        let links = self.socket.links().await?;
        let of = |index: u32| addresses.iter().filter(move |(on, _)| *on == index).map(|(_, a)| *a);
        let device = |link: super::socket::Link| Device {
            addresses: of(link.index).collect(),
            vxlan: link.vxlan.map(|vxlan| (vxlan.vni, vxlan.port)),
            name: link.name,
            mtu: link.mtu,
        };
        Ok(links.into_iter().map(device).collect())
    }

    /// Names of the links of all default routes, the preferred one first.
    pub async fn uplinks(&self) -> Result<Vec<String>, NetlinkError> {
        let mut routes = self.socket.routes().await?;
        routes.retain(|route| route.destination.prefix_len() == 0);
        routes.sort_by_key(|route| route.metric);
        let links = self.socket.links().await?;
        let name = |index: Option<u32>| links.iter().find(|link| Some(link.index) == index);
        Ok(routes.iter().filter_map(|route| Some(name(route.index)?.name.clone())).collect())
    }
}

/// A new network namespace, which vanishes when dropped.
#[derive(Debug)]
pub struct ScratchNamespace(NetworkNamespace);

impl ScratchNamespace {
    pub fn new() -> io::Result<Self> {
        NetworkNamespace::fresh().map(Self)
    }

    /// Path of the namespace, valid for every program of this machine while this lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.file().as_raw_fd()).into()
    }
}

// Tests that this kernel can make the links that pods need, in a temporary network namespace.

/// VNI of the trial VXLAN; any would do.
const PROBE_VNI: u32 = 1;

/// Tries each kind of link. Leaves nothing behind, except that the kernel may have loaded a module.
pub async fn probe_features() -> Result<Vec<(&'static str, Result<(), NetlinkError>)>, NetlinkError> {
    let failed = |source| NetlinkError::Open { context: " in a new network namespace".to_owned(), source };
    let namespace = NetworkNamespace::fresh().map_err(failed)?;
    let socket = Socket::open_in(&namespace).map_err(failed)?;
    let vxlan = LinkVxlan::new("probe2", PROBE_VNI).build();
    Ok(vec![
        ("veth", socket.add_link("probe0", LinkVeth::new("probe0", "probe0p").build()).await),
        ("bridge", socket.add_link("probe1", LinkBridge::new("probe1").build()).await),
        ("vxlan", socket.add_link("probe2", vxlan).await),
    ])
}
