//! Addresses to which messages may be sent. A name is resolved once, and the connection goes to the addresses that were
//! checked, so that no second lookup leads elsewhere.

use std::net::{IpAddr, SocketAddr};

use ipnet::Ipv4Net;
use schema::names::is_public_address;
use tokio::net::lookup_host;

/// Limits on the addresses of a target.
pub(super) struct Bounds<'b> {
    /// Allows loopback and private addresses, and those of pods and services.
    pub(super) allow_private: bool,
    /// Ranges of pods and services.
    pub(super) own_ranges: &'b [Ipv4Net],
    /// Set if a secret would travel unencrypted: then no address of the Internet is allowed.
    pub(super) is_exposed: bool,
}

/// Resolves a host, a name or an address as in a URL, to the allowed ones of its addresses, in order.
///
/// # Errors
/// It cannot be resolved, or none of its addresses is allowed.
pub(super) async fn resolve(host: &str, port: u16, bounds: &Bounds<'_>) -> Result<Vec<SocketAddr>, String> {
    let bare = host.trim_matches(['[', ']']);
    let found = match bare.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => {
            let found = lookup_host((bare, port)).await;
            found.map_err(|error| format!("cannot resolve {host}: {error}"))?.collect()
        }
    };
    bounds.allowed(host, found)
}

impl Bounds<'_> {
    /// Returns the allowed ones of a host's addresses, or why there is none.
    fn allowed(&self, host: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, String> {
        let mut why = None;
        let mut allowed: Vec<SocketAddr> = found
            .into_iter()
            .filter(|address| match self.refusal(address.ip()) {
                None => true,
                refusal => {
                    why = why.or(refusal);
                    false
                }
            })
            .collect();
        // The same set in another order needs no other client.
        allowed.sort();
        allowed.dedup();
        match why {
            Some(why) if allowed.is_empty() => Err(format!("nothing is sent to {host}: its address {why}")),
            None if allowed.is_empty() => Err(format!("{host} has no address")),
            _ => Ok(allowed),
        }
    }

    /// Returns the reason not to connect to an address.
    fn refusal(&self, address: IpAddr) -> Option<&'static str> {
        let address = address.to_canonical();
        let is_link_local = match address {
            IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        if is_link_local || address.is_unspecified() || address.is_multicast() {
            return Some("is link-local, multicast or of no machine");
        }
        let is_own = matches!(address, IpAddr::V4(address) if self.own_ranges.iter().any(|range| range.contains(&address)));
        match is_public_address(address) && !is_own {
            false if !self.allow_private => {
                Some("is loopback, private or the cluster's own; set allowPrivate if that is meant")
            }
            true if self.is_exposed => Some("is one of the Internet, where a secret needs https://"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(address: &str, allow_private: bool, is_exposed: bool) -> Option<&'static str> {
        let own_ranges = ["30.0.0.0/16".parse().unwrap()];
        Bounds { allow_private, own_ranges: &own_ranges, is_exposed }.refusal(address.parse().unwrap())
    }

    #[test]
    fn only_the_internet_is_reached_unless_private_addresses_are_allowed() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.1",
            "100.64.0.1",
            "30.0.7.7",
            "::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "::ffff:30.0.7.7",
        ] {
            assert!(refusal(private, false, false).unwrap().contains("allowPrivate"), "{private}");
            assert_eq!(refusal(private, true, true), None, "{private}");
        }
        for public in ["1.1.1.1", "30.1.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert_eq!(refusal(public, false, false), None, "{public}");
            assert!(refusal(public, true, true).unwrap().contains("https://"), "{public}");
        }
        for never in
            ["0.0.0.0", "::", "169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1"]
        {
            assert!(refusal(never, true, false).unwrap().contains("link-local"), "{never}");
        }
    }

    #[test]
    fn of_several_addresses_the_allowed_ones_are_used() {
        let bounds = Bounds { allow_private: false, own_ranges: &[], is_exposed: false };
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let mixed = addresses(&["9.9.9.9:443", "10.0.0.1:443", "1.1.1.1:443", "9.9.9.9:443"]);
        assert_eq!(bounds.allowed("h", mixed).unwrap(), addresses(&["1.1.1.1:443", "9.9.9.9:443"]));
        let why = bounds.allowed("h", addresses(&["10.0.0.1:443"])).unwrap_err();
        assert!(why.starts_with("nothing is sent to h: its address is loopback, private"), "{why}");
        assert_eq!(bounds.allowed("h", Vec::new()).unwrap_err(), "h has no address");
    }

    #[tokio::test]
    async fn an_address_in_a_url_and_a_name_are_checked_alike() {
        let bounds = Bounds { allow_private: false, own_ranges: &[], is_exposed: false };
        for host in ["127.0.0.1", "[::1]", "localhost"] {
            let why = resolve(host, 80, &bounds).await.unwrap_err();
            assert!(why.contains("allowPrivate"), "{host}: {why}");
        }
        let bounds = Bounds { allow_private: true, ..bounds };
        let found = resolve("[::1]", 80, &bounds).await.unwrap();
        assert_eq!(found, ["[::1]:80".parse::<SocketAddr>().unwrap()]);
    }
}
