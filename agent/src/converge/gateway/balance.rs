//! Choice of the endpoint for a request: the one with the fewest requests in flight, then the least recently used.
//! An endpoint that just failed to accept a connection comes last. State is kept by address, so that a new table
//! changes nothing for endpoints in both. `Book` is pure; [`Balancer`] is its lock.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use schema::control::lock;

/// Time for which an endpoint that did not accept a connection comes last: about twice the connect timeout, so that
/// a dead node costs few requests their 2 s.
pub const SHUNNED: Duration = Duration::from_secs(5);

/// State of each endpoint.
#[derive(Debug, Default)]
struct Book {
    endpoints: HashMap<SocketAddr, EndpointLoad>,
    /// Number of picks.
    turn: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct EndpointLoad {
    in_flight: u32,
    /// [`Book::turn`] at the last pick.
    picked: u64,
    shunned_until: Option<Instant>,
}

impl Book {
    /// Picks the endpoint for the next request and counts it as in flight; not `except` if there is another.
    fn pick(
        &mut self,
        endpoints: &[SocketAddr],
        except: Option<SocketAddr>,
        now: impl Fn() -> Instant,
    ) -> Option<SocketAddr> {
        let rank = |address: &SocketAddr| {
            let entry = self.endpoints.get(address).copied().unwrap_or_default();
            let shunned = entry.shunned_until.is_some_and(|until| now() < until);
            (Some(*address) == except, shunned, entry.in_flight, entry.picked)
        };
        let picked = *endpoints.iter().min_by_key(|address| rank(address))?;
        self.turn += 1;
        let entry = self.endpoints.entry(picked).or_default();
        entry.in_flight += 1;
        entry.picked = self.turn;
        Some(picked)
    }

    fn ended(&mut self, address: SocketAddr) {
        if let Some(entry) = self.endpoints.get_mut(&address) {
            entry.in_flight = entry.in_flight.saturating_sub(1);
        }
    }

    fn shun(&mut self, address: SocketAddr, until: Instant) {
        self.endpoints.entry(address).or_default().shunned_until = Some(until);
    }

    /// Forgets endpoints that are no longer wanted and have nothing in flight.
    fn retain(&mut self, wanted: &BTreeSet<SocketAddr>) {
        self.endpoints.retain(|address, entry| entry.in_flight > 0 || wanted.contains(address));
    }
}

/// Endpoint balancer, shared by all requests.
#[derive(Debug, Clone, Default)]
pub struct Balancer(Arc<Mutex<Book>>);

impl Balancer {
    /// Picks the endpoint for the next request; not `except` if there is another. `None` if `endpoints` is empty.
    pub fn pick(&self, endpoints: &[SocketAddr], except: Option<SocketAddr>) -> Option<InFlight> {
        let address = self.book().pick(endpoints, except, Instant::now)?;
        Some(InFlight { address, balancer: self.clone() })
    }

    /// Marks an endpoint that did not accept a connection, or is gone: others are preferred for [`SHUNNED`].
    pub fn shun(&self, address: SocketAddr) {
        self.book().shun(address, Instant::now() + SHUNNED);
    }

    /// Forgets endpoints that no table has.
    pub fn retain(&self, wanted: &BTreeSet<SocketAddr>) {
        self.book().retain(wanted);
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Each change is complete before anything can panic.
        lock(&self.0)
    }
}

/// A request in flight at an endpoint, until dropped.
#[derive(Debug)]
pub struct InFlight {
    address: SocketAddr,
    balancer: Balancer,
}

impl InFlight {
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.balancer.book().ended(self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|host| SocketAddr::from(([10, 244, 0, host], 80))).collect()
    }

    // Seen red without `entry.picked` in `rank`.
    #[test]
    fn one_after_the_other_goes_round() {
        let (mut book, now) = (Book::default(), Instant::now());
        let all = endpoints(3);
        let mut seen: HashMap<SocketAddr, u32> = HashMap::new();
        for _ in 0..9 {
            let picked = book.pick(&all, None, || now).unwrap();
            book.ended(picked);
            *seen.entry(picked).or_default() += 1;
        }
        assert!(all.iter().all(|address| seen[address] == 3), "{seen:?}");
    }

    // Seen red without `entry.in_flight` in `rank`.
    #[test]
    fn who_is_slow_gets_less() {
        let (mut book, now) = (Book::default(), Instant::now());
        let all = endpoints(2);
        let slow = book.pick(&all, None, || now).unwrap();
        for _ in 0..5 {
            let picked = book.pick(&all, None, || now).unwrap();
            assert_ne!(picked, slow);
            book.ended(picked);
        }
        book.ended(slow);
        assert_eq!(book.pick(&all, None, || now), Some(slow), "the other one was asked last");
    }

    // Seen red without `shunned` in `rank`.
    #[test]
    fn who_refused_comes_last_for_a_while_and_is_still_better_than_nobody() {
        let (mut book, now) = (Book::default(), Instant::now());
        let all = endpoints(2);
        book.shun(all[0], now + SHUNNED);
        for _ in 0..3 {
            assert_eq!(book.pick(&all, None, || now), Some(all[1]));
        }
        assert_eq!(book.pick(&all, Some(all[1]), || now), Some(all[0]));
        assert_eq!(book.pick(&all[..1], Some(all[0]), || now), Some(all[0]));
        assert_eq!(book.pick(&[], None, || now), None);
        book.ended(all[0]);
        book.ended(all[0]);
        assert_eq!(book.pick(&all, None, || now + SHUNNED), Some(all[0]), "its time is over");
    }

    // Seen red without `entry.in_flight > 0` in `retain`.
    #[test]
    fn a_new_table_keeps_the_counts_of_who_stays_and_of_who_is_busy() {
        let balancer = Balancer::default();
        let all = endpoints(3);
        let busy = balancer.pick(&all[..1], None).unwrap();
        drop(balancer.pick(&all[1..2], None));
        drop(balancer.pick(&all[2..], None));
        balancer.retain(&BTreeSet::from([all[2]]));
        let known = |at: usize| balancer.book().endpoints.contains_key(&all[at]);
        assert!(known(0) && !known(1) && known(2));
        drop(busy);
        balancer.retain(&BTreeSet::new());
        assert!(!known(0) && !known(2));
    }
}
