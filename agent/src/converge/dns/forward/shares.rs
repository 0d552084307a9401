//! Places for upstream questions, limited by open files and shared between clients.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

use schema::control::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::converge::clients::{Clients, Held, SHARE};

/// Questions that may wait for each place. One client may have a quarter of all places, and four times as many of
/// its questions may wait.
const WAITING: usize = 4;

/// Places in use per client. A client is an address: of a pod, or of the node for everything that runs on it.
#[derive(Debug)]
pub(super) struct Shares {
    places: Arc<Semaphore>,
    /// Maximum number of places for one client.
    most: usize,
    /// Places of each client that has or wants some.
    own: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    /// Number of questions per client that have or want a place.
    known: Clients,
}

/// A place, released when dropped.
#[derive(Debug)]
pub(super) struct Place {
    _place: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _known: Held,
}

impl Shares {
    /// Creates shares of `places` places.
    pub(super) fn of(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            most: (places / SHARE).max(1),
            own: Mutex::default(),
            known: Clients::sharing(places * WAITING),
        }
    }

    /// Waits for a place, first come first served; `None` immediately if too many questions of this client are
    /// waiting. The client's own limit is waited for first, so that its questions do not block others.
    pub(super) async fn place(&self, client: IpAddr) -> Option<Place> {
        let known = self.known.admit(client)?;
        let own = self.own_of(client).acquire_owned().await.ok()?;
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(Place { _place: place, _own: own, _known: known })
    }

    fn own_of(&self, client: IpAddr) -> Arc<Semaphore> {
        let mut own = lock(&self.own);
        if let Some(known) = own.get(&client).and_then(Weak::upgrade) {
            return known;
        }
        // Idle clients are forgotten.
        own.retain(|_, semaphore| semaphore.strong_count() > 0);
        let fresh = Arc::new(Semaphore::new(self.most));
        own.insert(client, Arc::downgrade(&fresh));
        fresh
    }
}
