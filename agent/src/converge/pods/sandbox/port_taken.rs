//! The error for a host port that can't be allocated.

use std::fmt;

use schema::kinds::pod::Protocol;

use crate::worlds::netlink::Port;

/// Range of ports allocated for `hostPort: 0`; below Linux's own ephemeral range (from 32768).
pub const PORTS: std::ops::RangeInclusive<u16> = 20_000..=32_000;

/// A host port that can't be allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortTaken {
    pub port: Port,
    pub by: Holder,
}

/// Holder of a host port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    Pod(String),
    /// A process of the node itself, with its name if that was found.
    Process(Option<String>),
    All,
}

impl fmt::Display for PortTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (protocol, port) = self.port;
        let protocol = match protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        let process = match &self.by {
            Holder::All => {
                return write!(f, "no {protocol} port from {} to {} is free", PORTS.start(), PORTS.end());
            }
            Holder::Pod(pod) => {
                return write!(f, "host port {port}/{protocol} is used by pod {pod} on this node");
            }
            Holder::Process(process) => process.as_deref().unwrap_or("a process"),
        };
        write!(
            f,
            "host port {port}/{protocol} is used on this node by {process}, which is not a pod; stop it, or choose another hostPort or node"
        )
    }
}
