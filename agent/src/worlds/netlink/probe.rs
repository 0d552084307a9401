//! Can this kernel make the links that pods need? Tried in a network namespace that vanishes.

use rtnetlink::{LinkBridge, LinkVeth, LinkVxlan};

use super::NetlinkError;
use super::namespace::NetworkNamespace;
use super::socket::Socket;

/// Number of the VXLAN that is tried; any does.
const PROBE_VNI: u32 = 1;

/// Each kind of link, and whether the kernel makes one. Nothing is left behind, except that the
/// kernel may have loaded a module.
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
