//! How many connections each client holds: one alone must not take all that there may be.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use schema::control::lock;

/// Of all places, the share that one client may hold.
pub const SHARE: usize = 4;

/// Connections by client. Clones count together.
#[derive(Debug, Clone)]
pub struct Clients {
    most: usize,
    held: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Clients {
    /// Each client may hold a [`SHARE`] of `places`, and always one.
    pub fn sharing(places: usize) -> Self {
        Self { most: (places / SHARE).max(1), held: Arc::default() }
    }

    /// How many each may hold.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A place for a connection of this client until it is dropped; none if it holds its share.
    pub fn admit(&self, client: IpAddr) -> Option<Held> {
        let mut held = lock(&self.held);
        let count = held.entry(client).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Held { client, all: Arc::clone(&self.held) })
    }
}

/// A client's place.
#[derive(Debug)]
pub struct Held {
    client: IpAddr,
    all: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = lock(&self.all).entry(self.client) {
            *count.get_mut() -= 1;
            // Who holds nothing is forgotten: the table is never larger than the places.
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
        assert_eq!(Clients::sharing(2).most(), 1);
    }
}
