//! Connections per client, limited so that one client alone can't take all of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use schema::control::lock;

/// Divisor for the share of all connections that one client may hold.
pub const SHARE_DIVISOR: usize = 4;

/// Connections by client. Clones share the counts.
#[derive(Debug, Clone)]
pub struct Clients {
    most: usize,
    held: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Clients {
    /// Lets each client hold `places` divided by [`SHARE_DIVISOR`], but at least one.
    pub fn sharing(places: usize) -> Self {
        Self { most: (places / SHARE_DIVISOR).max(1), held: Arc::default() }
    }

    /// Lets the node itself, where a proxy may stand for many clients, hold all places but one client's share.
    pub fn on_node(places: usize) -> Self {
        Self { most: places - places / SHARE_DIVISOR, held: Arc::default() }
    }

    /// Returns the maximum for each client.
    pub fn limit(&self) -> usize {
        self.most
    }

    /// Admits a connection of this client until the returned guard is dropped; `None` if the client holds its share.
    pub fn admit(&self, client: IpAddr) -> Option<ConnectionGuard> {
        let mut held = lock(&self.held);
        let count = held.entry(client).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(ConnectionGuard { client, all: Arc::clone(&self.held) })
    }
}

/// Guard of a client's connection.
#[derive(Debug)]
pub struct ConnectionGuard {
    client: IpAddr,
    all: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = lock(&self.all).entry(self.client) {
            *count.get_mut() -= 1;
            // Clients without connections are removed: the table is never larger than the number of connections.
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red without the comparison with `most`.
    #[test]
    fn a_client_holds_its_share_and_no_more_and_is_forgotten_when_it_is_gone() {
        let clients = Clients::sharing(8);
        let [one, two] = [IpAddr::from([10, 244, 1, 2]), IpAddr::from([10, 244, 1, 3])];
        let first = clients.admit(one).unwrap();
        let second = clients.admit(one).unwrap();
        assert!(clients.admit(one).is_none(), "a quarter of eight is two");
        assert!(clients.admit(two).is_some(), "others are not concerned");
        drop(first);
        assert!(clients.admit(one).is_some());
        drop(second);
        assert!(lock(&clients.held).is_empty());
        assert_eq!(Clients::sharing(2).limit(), 1);
    }
}
