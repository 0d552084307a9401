//! Tests that this kernel can make the links that pods need, in a temporary network namespace.

use rtnetlink::{LinkBridge, LinkVeth, LinkVxlan};

use super::NetlinkError;
use super::namespace::NetworkNamespace;
use super::socket::Socket;

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
