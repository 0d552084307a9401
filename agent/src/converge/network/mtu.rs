//! Packet size of pods. Pure.

/// Room that VXLAN needs in each packet, in bytes: pods' packets are that much smaller than the uplink's, even with
/// a single node, so that adding a second changes no running pod.
pub const VXLAN_OVERHEAD: u32 = 50;

/// Packet size of a node without a default route, in bytes: Ethernet's.
pub const DEFAULT_MTU: u32 = 1500;

/// Smallest packet size of pods, in bytes (RFC 791 requires 68 of an IPv4 link; hosts need 576).
pub const MTU_MIN: u32 = 576;

/// Returns the largest packet size of pods in bytes, derived from the default route's link if there is one.
pub fn pod_mtu(uplink: Option<u32>) -> u32 {
    uplink.unwrap_or(DEFAULT_MTU).saturating_sub(VXLAN_OVERHEAD).max(MTU_MIN)
}
