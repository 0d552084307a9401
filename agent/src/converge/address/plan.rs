//! Decides whether the node's address changes. Pure: the time is an argument.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use schema::control::Plan;

/// Time for which another address must be the node's own before the tunnel moves to it while the former still
/// exists: a new link costs a moment without any route to other nodes, and a route that flaps comes back.
pub(super) const STEADY: Duration = Duration::from_secs(2);

/// The node's address, from which its tunnel leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AddressState {
    pub(super) address: Option<Ipv4Addr>,
    /// Different address named by the routes, and since when.
    pub(super) rival: Option<(Ipv4Addr, Instant)>,
    /// True if the tunnel moves to the rival once that has been the node's own for long enough.
    pub(super) will_move: bool,
}

/// Address information from the node's routes and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressFacts {
    /// Address according to the routes; some other address if there is no default route.
    pub(super) address: Option<Ipv4Addr>,
    pub(super) is_routed: bool,
    pub(super) keeps_former: bool,
}

impl AddressState {
    /// Returns the address that the tunnel will move to unless something changes, and the maximum time until the
    /// next observation.
    pub(super) fn pending_move(&self, now: Instant) -> Option<(Ipv4Addr, Duration)> {
        let (rival, since) = self.rival.filter(|_| self.will_move)?;
        Some((rival, STEADY.saturating_sub(now.saturating_duration_since(since))))
    }

    /// Updates and returns the address. A former one that is gone is replaced immediately if the routes name its
    /// successor.
    pub(super) fn update(&mut self, seen: AddressFacts, now: Instant) -> Option<Ipv4Addr> {
        let Some(other) = seen.address.filter(|_| self.address != seen.address) else {
            *self = Self { address: self.address, ..Self::default() };
            return self.address;
        };
        let since = self.rival.filter(|(rival, _)| *rival == other).map_or(now, |(_, since)| since);
        self.rival = Some((other, since));
        let steady = now.duration_since(since) >= STEADY;
        let moves = match (self.address, seen.is_routed, seen.keeps_former) {
            (None, _, _) | (Some(_), true, false) => true,
            (Some(_), false, true) => false,
            (Some(_), true, true) | (Some(_), false, false) => steady,
        };
        self.will_move = seen.is_routed == seen.keeps_former;
        if moves {
            *self = Self { address: Some(other), ..Self::default() };
        }
        self.address
    }
}

/// Observed state of the address loop.
pub struct Observed {
    pub(super) seen: AddressFacts,
    pub(super) before: AddressState,
    pub(super) at: Instant,
}

/// Plan of the address loop.
#[derive(Debug)]
pub struct AddressPlan {
    pub(super) origin: AddressState,
    moves: bool,
    /// Another address that would be taken after this time, found for the first time.
    pub(super) rival: Option<(Ipv4Addr, Duration)>,
}

impl Plan for AddressPlan {
    fn is_empty(&self) -> bool {
        !self.moves
    }
}

/// Plans the node's address.
pub(super) fn plan(observed: &Observed) -> AddressPlan {
    let mut origin = observed.before.clone();
    origin.update(observed.seen, observed.at);
    let moves = origin.address != observed.before.address;
    let is_new = |(rival, _): &(Ipv4Addr, Duration)| {
        observed.before.pending_move(observed.at).map(|(before, _)| before) != Some(*rival)
    };
    AddressPlan { rival: origin.pending_move(observed.at).filter(is_new), moves, origin }
}

pub(super) fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}
