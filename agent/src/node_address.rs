//! The node's address, decided by the address loop, for everything that publishes it.
//!
//! A single decision makes the end of the tunnel, pods on the node's network and the agent's API move together, and
//! none of them with a flapping route. No I/O.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::sync::watch;

/// The current address; clones share it.
#[derive(Debug, Clone)]
pub struct NodeAddress(watch::Receiver<Option<IpAddr>>);

impl NodeAddress {
    /// Creates an address that starts as `first`, and its sender; `None` while the node has no address.
    pub fn channel(first: Option<IpAddr>) -> (watch::Sender<Option<IpAddr>>, Self) {
        let (sender, receiver) = watch::channel(first);
        (sender, Self(receiver))
    }

    /// The address, if the node has or had one.
    pub fn known(&self) -> Option<IpAddr> {
        *self.0.borrow()
    }

    /// The address, or loopback: a machine without any network still runs pods.
    pub fn or_loopback(&self) -> IpAddr {
        self.known().unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// The address or loopback, if it is IPv4.
    pub fn v4(&self) -> Option<Ipv4Addr> {
        match self.or_loopback() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }

    /// Receiver that is notified of changes.
    pub fn changes(&self) -> watch::Receiver<Option<IpAddr>> {
        self.0.clone()
    }
}

/// URL at which others reach a server of this node: at the node's address if it listens on every address, else at the
/// address it listens on.
pub fn api_url(listen: SocketAddr, node: IpAddr) -> String {
    let mut address = listen;
    if address.ip().is_unspecified() {
        address.set_ip(node);
    }
    format!("https://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with the node's address in any URL.
    #[test]
    fn an_api_that_listens_everywhere_is_where_the_node_is_and_any_other_where_it_was_set() {
        for (listen, node, url) in [
            ("0.0.0.0:7071", "192.0.2.1", "https://192.0.2.1:7071"),
            ("0.0.0.0:7071", "192.0.2.2", "https://192.0.2.2:7071"),
            ("[::]:7071", "192.0.2.2", "https://192.0.2.2:7071"),
            ("0.0.0.0:7071", "2001:db8::1", "https://[2001:db8::1]:7071"),
            ("127.0.0.1:7071", "192.0.2.2", "https://127.0.0.1:7071"),
            ("192.0.2.1:7071", "192.0.2.2", "https://192.0.2.1:7071"),
        ] {
            assert_eq!(api_url(listen.parse().unwrap(), node.parse().unwrap()), url, "{listen} on {node}");
        }
    }

    #[test]
    fn a_node_without_an_address_is_its_own_loopback_until_it_has_one() {
        let (sender, address) = NodeAddress::channel(None);
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!((address.known(), address.or_loopback()), (None, loopback));
        let given: IpAddr = [192, 0, 2, 1].into();
        sender.send_replace(Some(given));
        assert_eq!((address.known(), address.or_loopback()), (Some(given), given));
        sender.send_replace(Some("2001:db8::1".parse().unwrap()));
        assert_eq!(address.v4(), None);
    }
}
