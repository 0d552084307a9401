//! Notifications from the kernel of possible changes of the node's address.

use std::net::IpAddr;

use futures::channel::mpsc::UnboundedReceiver;
use futures::future::{BoxFuture, ready};
use futures::{FutureExt as _, StreamExt as _};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::sys::SocketAddr;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};

use super::{NetlinkError, RealNetlink};

/// Groups of messages to receive: addresses and routes of IPv4.
const GROUPS: [MulticastGroup; 2] = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv4Route];

/// Subscription to changes of addresses and default routes. Ends when dropped.
pub struct AddressChanges {
    /// Receives the messages; polled while someone waits for them.
    connection: BoxFuture<'static, ()>,
    messages: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    /// Keeps the socket open.
    _handle: Handle,
}

impl RealNetlink {
    /// Subscribes to changes from now on.
    pub fn address_changes(&self) -> Result<AddressChanges, NetlinkError> {
        let runtime = tokio::runtime::Handle::current();
        let opened = self.home.run(|| {
            let _entered = runtime.enter();
            new_multicast_connection(&GROUPS)
        });
        let failed = |source| NetlinkError::Open { context: " for changes of addresses".to_owned(), source };
        let (connection, handle, messages) = opened.map_err(failed)?;
        Ok(AddressChanges { connection: connection.boxed(), messages, _handle: handle })
    }
}

impl AddressChanges {
    /// Waits for a change; false if the subscription has ended. Cancel-safe.
    pub async fn next_change(&mut self) -> bool {
        let mut news = self.messages.by_ref().filter(|(message, _)| ready(concerns(&message.payload)));
        // Cancel-safe: messages that were not returned stay in the channel.
        tokio::select! {
            () = &mut self.connection => false,
            heard = news.next() => heard.is_some(),
        }
    }
}

/// True if the message may change the node's address. Of a busy machine's many routes only default routes do.
fn concerns(payload: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
    match payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
        ) => route.header.destination_prefix_length == 0,
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address),
        ) => {
            let is_loopback = |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Local(IpAddr::V4(own)) if own.is_loopback());
            !address.attributes.iter().any(is_loopback)
        }
        // Messages were lost; any change may have been among them.
        NetlinkPayload::Overrun(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::TestNamespace;

    // Seen red with every route treated as a change.
    #[tokio::test]
    async fn addresses_and_default_routes_are_heard_of_and_other_routes_are_not() {
        let node = TestNamespace::new();
        let netlink = RealNetlink::open_at("mk8s", &node.path()).unwrap();
        node.run("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
        node.run("ip", &["link", "set", "up0", "up"]);
        node.run("ip", &["link", "set", "up1", "up"]);
        let mut changes = netlink.address_changes().unwrap();
        let heard = async |changes: &mut AddressChanges, within: u64| {
            let mut any = false;
            while let Ok(open) =
                tokio::time::timeout(Duration::from_millis(within), changes.next_change()).await
            {
                assert!(open);
                any = true;
            }
            any
        };
        for (words, is_change) in [
            (["addr", "add", "192.0.2.1/24", "dev", "up0"].as_slice(), true),
            (&["route", "add", "198.51.100.0/24", "via", "192.0.2.9"], false),
            (&["route", "add", "default", "via", "192.0.2.9"], true),
            (&["route", "del", "198.51.100.0/24"], false),
            (&["route", "del", "default"], true),
            (&["addr", "del", "192.0.2.1/24", "dev", "up0"], true),
        ] {
            node.run("ip", words);
            assert_eq!(heard(&mut changes, 300).await, is_change, "{words:?}");
        }
    }
}
