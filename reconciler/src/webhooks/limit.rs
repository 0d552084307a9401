//! Limits addresses that send wrong requests. Pure: the time is an argument. An address is never shut out, because
//! all webhooks of a large Git server come from few addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Number of wrong requests within [`WINDOW`] after which an address gets tighter limits.
pub const FAILURES_MAX: u32 = 10;
/// Time that a wrong request counts.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses remembered; beyond it, the one with the oldest window is forgotten.
const ADDRESSES_MAX: usize = 4_096;

/// Wrong requests by address: start of the window, and count.
#[derive(Debug, Default)]
pub struct Failures {
    by_address: BTreeMap<IpAddr, (Duration, u32)>,
}

impl Failures {
    /// Remaining time of tighter limits for this address, if any. `now` is the time since a fixed moment.
    pub fn tight_limits_left(&self, address: IpAddr, now: Duration) -> Option<Duration> {
        let (begun, _) =
            self.by_address.get(&network(address)?).filter(|(_, count)| *count >= FAILURES_MAX)?;
        (*begun + WINDOW).checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Counts a wrong request. True for the first in a window, which should be logged.
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

/// The IPv4 address or IPv6 /64 to count. `None` for loopback, which may be a reverse proxy that limits its clients
/// itself.
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
        let wait = |address: &str, now| failures.tight_limits_left(address.parse().unwrap(), now);
        assert_eq!(wait("192.0.2.1", START + Duration::from_secs(20)), Some(Duration::from_secs(40)));
        assert_eq!(wait("::ffff:192.0.2.1", START), Some(WINDOW));
        assert_eq!(wait("192.0.2.2", START), None);
        assert_eq!(wait("192.0.2.1", START + WINDOW), None);
        let failures = failed(FAILURES_MAX - 1, "192.0.2.1");
        assert!(failures.tight_limits_left("192.0.2.1".parse().unwrap(), START).is_none());
    }

    #[test]
    fn a_whole_network_of_ipv6_is_one_sender_and_loopback_is_none() {
        let failures = failed(FAILURES_MAX, "2001:db8::1");
        assert!(failures.tight_limits_left("2001:db8::ffff:2".parse().unwrap(), START).is_some());
        assert!(failures.tight_limits_left("2001:db8:0:1::1".parse().unwrap(), START).is_none());
        assert!(failed(100, "127.0.0.1").tight_limits_left("127.0.0.1".parse().unwrap(), START).is_none());
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
