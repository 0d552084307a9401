//! Places for questions to upstream: as many as there may be files open, and no client has all of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

use schema::control::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::converge::clients::{Clients, Held, SHARE};

/// Of all places, one client may have a quarter; four times as many questions of it may wait for one.
const WAITING: usize = 4;

/// Who has which places. A client is an address: of a pod, or of the node for all that runs on it.
#[derive(Debug)]
pub(super) struct Shares {
    places: Arc<Semaphore>,
    /// Places that one client may have.
    most: usize,
    /// Of clients that have or want some.
    own: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    /// How many have or want some.
    known: Clients,
}

/// A place until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _place: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _known: Held,
}

impl Shares {
    /// Shares of `places` places.
    pub(super) fn of(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            most: (places / SHARE).max(1),
            own: Mutex::default(),
            known: Clients::sharing(places * WAITING),
        }
    }

    /// Waits for a place, first come first served; none at once if too many questions of this client wait.
    /// Those for a place of its own come first, so that they do not stand in the way of others.
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
        // Who has and wants nothing is forgotten.
        own.retain(|_, semaphore| semaphore.strong_count() > 0);
        let fresh = Arc::new(Semaphore::new(self.most));
        own.insert(client, Arc::downgrade(&fresh));
        fresh
    }
}
