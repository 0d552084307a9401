//! How large the packets of pods are. Pure.

/// Room that VXLAN needs in each packet, in bytes: pods' packets are that much smaller than the uplink's,
/// also on one node, so that a second node changes no running pod.
pub const VXLAN_OVERHEAD: u32 = 50;

/// Packet size of a node without a default route, in bytes: Ethernet's.
pub const DEFAULT_MTU: u32 = 1500;

/// Smallest packet size that IPv4 demands of a link, in bytes (RFC 791 says 68; hosts need 576).
pub const MTU_MIN: u32 = 576;

/// Largest packet of pods in bytes, by that of the default route's link if there is one.
pub fn pod_mtu(uplink: Option<u32>) -> u32 {
    uplink.unwrap_or(DEFAULT_MTU).saturating_sub(VXLAN_OVERHEAD).max(MTU_MIN)
}
