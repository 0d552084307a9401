//! Decides whether another address is the node's. Pure: the time is an argument.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use schema::control::Plan;

/// How long another address must be the node's own before the tunnel moves to it while the former is still
/// there: a new link costs a moment without any way to other nodes, and a route that flaps comes back.
pub(super) const STEADY: Duration = Duration::from_secs(2);

/// The node's address, at which its tunnel leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) address: Option<Ipv4Addr>,
    /// What the routes say instead, since when.
    pub(super) rival: Option<(Ipv4Addr, Instant)>,
    /// The tunnel moves to the rival when it has been the node's own for long enough.
    pub(super) moves_in_time: bool,
}

/// What the node's routes and links say of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressSeen {
    /// By the routes; some other address where there is no default route.
    pub(super) address: Option<Ipv4Addr>,
    pub(super) is_routed: bool,
    pub(super) keeps_former: bool,
}

impl Origin {
    /// The address that the tunnel will move to unless something changes, and when at the latest it should
    /// be looked again.
    pub(super) fn held_back(&self, now: Instant) -> Option<(Ipv4Addr, Duration)> {
        let (rival, since) = self.rival.filter(|_| self.moves_in_time)?;
        Some((rival, STEADY.saturating_sub(now.saturating_duration_since(since))))
    }

    /// The address from now on. A former one that is gone is replaced at once, if the routes say by which.
    pub(super) fn settle(&mut self, seen: AddressSeen, now: Instant) -> Option<Ipv4Addr> {
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
        self.moves_in_time = seen.is_routed == seen.keeps_former;
        if moves {
            *self = Self { address: Some(other), ..Self::default() };
        }
        self.address
    }
}

/// What the loop saw, and when.
pub struct Observed {
    pub(super) seen: AddressSeen,
    pub(super) before: Origin,
    pub(super) at: Instant,
}

/// The address from now on.
#[derive(Debug)]
pub struct AddressPlan {
    pub(super) origin: Origin,
    moves: bool,
    /// Another address that would be taken after this time, seen for the first time.
    pub(super) rival: Option<(Ipv4Addr, Duration)>,
}

impl Plan for AddressPlan {
    fn is_empty(&self) -> bool {
        !self.moves
    }
}

/// Which address is the node's from now on.
pub(super) fn plan(observed: &Observed) -> AddressPlan {
    let mut origin = observed.before.clone();
    origin.settle(observed.seen, observed.at);
    let moves = origin.address != observed.before.address;
    let is_new = |(rival, _): &(Ipv4Addr, Duration)| {
        observed.before.held_back(observed.at).map(|(before, _)| before) != Some(*rival)
    };
    AddressPlan { rival: origin.held_back(observed.at).filter(is_new), moves, origin }
}

pub(super) fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}
