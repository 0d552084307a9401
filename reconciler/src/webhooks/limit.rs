//! How many wrong requests an address may send before it gets less room. Pure: the time is an argument. An address is
//! never shut out: all hooks of a large Git server come from few addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Wrong requests of one address within [`WINDOW`], after which its requests get less room.
pub const FAILURES_MAX: u32 = 10;
/// How long a wrong request counts.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Addresses remembered; when there are more, the one with the oldest window is forgotten.
const ADDRESSES_MAX: usize = 4_096;

/// Wrong requests by address: when the window of an address began, and how many came in it.
#[derive(Debug, Default)]
pub struct Failures {
    by_address: BTreeMap<IpAddr, (Duration, u32)>,
}

impl Failures {
    /// How long requests of this address still get less room, if they do. `now` counts from any fixed moment.
    pub fn narrow(&self, address: IpAddr, now: Duration) -> Option<Duration> {
        let (begun, _) =
            self.by_address.get(&network(address)?).filter(|(_, count)| *count >= FAILURES_MAX)?;
        (*begun + WINDOW).checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Counts a wrong request. True for the first of a window, which is worth a line in the log.
    pub fn count(&mut self, address: IpAddr, now: Duration) -> bool {
        let Some(network) = network(address) else { return true };
        let known = self.by_address.remove(&network).filter(|(begun, _)| *begun + WINDOW > now);
        if known.is_none() && self.by_address.len() >= ADDRESSES_MAX {
            let oldest = self.by_address.iter().min_by_key(|(_, (begun, _))| *begun);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.by_address.remove(&oldest);
            }
        }
        let (begun, count) = known.unwrap_or((now, 0));
        self.by_address.insert(network, (begun, count.saturating_add(1)));
        count == 0
    }
}

/// An IPv4 address or a /64 of IPv6. Loopback is none: it may be a reverse proxy, which limits its clients itself.
fn network(address: IpAddr) -> Option<IpAddr> {
    match address.to_canonical() {
        address if address.is_loopback() => None,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Some(IpAddr::from([a, b, c, d, 0, 0, 0, 0]))
        }
        address => Some(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000);

    fn failed(times: u32, address: &str) -> Failures {
        let mut failures = Failures::default();
        for _ in 0..times {
            failures.count(address.parse().unwrap(), START);
        }
        failures
    }

    #[test]
    fn who_fails_too_often_gets_less_room_for_a_while_and_others_do_not() {
        let failures = failed(FAILURES_MAX, "192.0.2.1");
        let wait = |address: &str, now| failures.narrow(address.parse().unwrap(), now);
        assert_eq!(wait("192.0.2.1", START + Duration::from_secs(20)), Some(Duration::from_secs(40)));
        assert_eq!(wait("::ffff:192.0.2.1", START), Some(WINDOW));
        assert_eq!(wait("192.0.2.2", START), None);
        assert_eq!(wait("192.0.2.1", START + WINDOW), None);
        let failures = failed(FAILURES_MAX - 1, "192.0.2.1");
        assert!(failures.narrow("192.0.2.1".parse().unwrap(), START).is_none());
    }

    #[test]
    fn a_whole_network_of_ipv6_is_one_sender_and_loopback_is_none() {
        let failures = failed(FAILURES_MAX, "2001:db8::1");
        assert!(failures.narrow("2001:db8::ffff:2".parse().unwrap(), START).is_some());
        assert!(failures.narrow("2001:db8:0:1::1".parse().unwrap(), START).is_none());
        assert!(failed(100, "127.0.0.1").narrow("127.0.0.1".parse().unwrap(), START).is_none());
    }

    #[test]
    fn no_more_addresses_are_remembered_than_the_limit() {
        let mut failures = Failures::default();
        for n in 0..u32::try_from(ADDRESSES_MAX).unwrap() + 10 {
            failures.count(IpAddr::from(n.to_be_bytes()), START + Duration::from_millis(n.into()));
        }
        assert_eq!(failures.by_address.len(), ADDRESSES_MAX);
    }
}
