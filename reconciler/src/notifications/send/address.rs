//! Addresses to which messages may be sent. A name is resolved once, and the connection goes to the addresses that were
//! checked, so that no second lookup leads elsewhere.

use std::io;
use std::net::{IpAddr, SocketAddr};

use reqwest::Url;
use schema::names::{embedded_address, is_link_local, is_public_address};
use tokio::net::lookup_host;

use crate::notifications::target::OwnAddresses;

/// Limits on the addresses of a target.
pub(super) struct Bounds<'b> {
    /// Allows loopback and private addresses, and those of pods and services.
    pub(super) allow_private: bool,
    /// Addresses of the cluster.
    pub(super) own: &'b OwnAddresses,
    /// Set if a secret would travel unencrypted: then no public address is allowed.
    pub(super) is_exposed: bool,
}

/// Resolves a host, a name or an address as in a URL, to the allowed ones of its addresses, in order.
///
/// # Errors
/// It cannot be resolved, or none of its addresses is allowed.
pub(super) async fn resolve(host: &str, port: u16, bounds: &Bounds<'_>) -> Result<Vec<SocketAddr>, String> {
    let found = look_up(host, port).await.map_err(|error| format!("cannot resolve {host}: {error}"))?;
    let mut etcd = Vec::new();
    for url in bounds.own.etcd.iter().filter_map(|url| Url::parse(url).ok()) {
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default());
        etcd.extend(look_up(host, port.unwrap_or_default()).await.unwrap_or_default());
    }
    bounds.allowed(host, found, &etcd)
}

async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(lookup_host((host.trim_matches(['[', ']']), port)).await?.collect())
}

impl Bounds<'_> {
    /// Returns the allowed ones of a host's addresses, or why there is none. `etcd` are the addresses of etcd.
    fn allowed(
        &self,
        host: &str,
        found: Vec<SocketAddr>,
        etcd: &[SocketAddr],
    ) -> Result<Vec<SocketAddr>, String> {
        let mut why = None;
        let mut allowed: Vec<SocketAddr> = found
            .into_iter()
            .filter(|address| match self.refusal(*address, etcd) {
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
    fn refusal(&self, to: SocketAddr, etcd: &[SocketAddr]) -> Option<&'static str> {
        let address = embedded_address(to.ip());
        let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        if is_link_local(address) || is_broadcast || address.is_unspecified() || address.is_multicast() {
            return Some("is link-local, a cloud's metadata, multicast or of no machine");
        }
        let is_own = matches!(address, IpAddr::V4(address) if self.own.ranges.iter().any(|range| range.contains(&address)));
        let is_public = is_public_address(address) && !is_own;
        // One at a loopback address may listen at other addresses of this machine, too.
        let is_etcd = |etcd: &SocketAddr| {
            let own = embedded_address(etcd.ip());
            etcd.port() == to.port() && (own == address || own.is_loopback() && !is_public)
        };
        if etcd.iter().any(is_etcd) {
            return Some("is etcd's");
        }
        match is_public {
            false if !self.allow_private => {
                Some("is loopback, private or the cluster's own; set allowPrivate if that is meant")
            }
            true if self.is_exposed => Some("is public, where a secret needs https://"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(etcd: &str) -> OwnAddresses {
        let ranges = vec!["30.0.0.0/16".parse().unwrap()];
        OwnAddresses { ranges, etcd: vec![etcd.to_owned()], ..OwnAddresses::default() }
    }

    fn refusal(address: &str, allow_private: bool, is_exposed: bool) -> Option<&'static str> {
        let bounds = Bounds { allow_private, own: &own(""), is_exposed };
        bounds.refusal(SocketAddr::new(address.parse().unwrap(), 443), &[])
    }

    #[test]
    fn only_public_addresses_are_reached_unless_private_ones_are_allowed() {
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
            "64:ff9b::1e00:707",
        ] {
            assert!(refusal(private, false, false).unwrap().contains("allowPrivate"), "{private}");
            assert_eq!(refusal(private, true, true), None, "{private}");
        }
        for public in ["1.1.1.1", "30.1.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert_eq!(refusal(public, false, false), None, "{public}");
            assert!(refusal(public, true, true).unwrap().contains("https://"), "{public}");
        }
        for never in [
            "0.0.0.0",
            "::",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "168.63.129.16",
            "fd00:ec2::254",
            "fe80::1",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
        ] {
            assert!(refusal(never, true, false).unwrap().contains("link-local"), "{never}");
        }
    }

    // Would fail if `allowPrivate`, which a commit sets, were enough to write to etcd.
    #[tokio::test]
    async fn etcd_is_never_reached() {
        for (etcd, host, port, part) in [
            ("http://127.0.0.1:7079", "127.0.0.1", 80, None),
            ("http://127.0.0.1:7079", "127.0.0.1", 7079, Some("etcd's")),
            ("http://127.0.0.1:7079", "[::ffff:127.0.0.1]", 7079, Some("etcd's")),
            ("http://localhost:7079", "10.0.0.5", 7079, Some("etcd's")),
            ("http://10.0.0.5:2379", "[::ffff:10.0.0.5]", 2379, Some("etcd's")),
            ("https://9.9.9.9", "9.9.9.9", 443, Some("etcd's")),
            ("http://10.0.0.5:2379", "10.0.0.6", 2379, None),
        ] {
            let own = own(etcd);
            let bounds = Bounds { allow_private: true, own: &own, is_exposed: false };
            let why = resolve(host, port, &bounds).await.err();
            let is_right = match part {
                Some(part) => why.as_ref().is_some_and(|why| why.contains(part)),
                None => why.is_none(),
            };
            assert!(is_right, "{host}:{port}: {why:?}");
        }
    }

    #[test]
    fn of_several_addresses_the_allowed_ones_are_used() {
        let own = own("");
        let bounds = Bounds { allow_private: false, own: &own, is_exposed: false };
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let mixed = addresses(&["9.9.9.9:443", "10.0.0.1:443", "1.1.1.1:443", "9.9.9.9:443"]);
        assert_eq!(bounds.allowed("h", mixed, &[]).unwrap(), addresses(&["1.1.1.1:443", "9.9.9.9:443"]));
        let why = bounds.allowed("h", addresses(&["10.0.0.1:443"]), &[]).unwrap_err();
        assert!(why.starts_with("nothing is sent to h: its address is loopback, private"), "{why}");
        assert_eq!(bounds.allowed("h", Vec::new(), &[]).unwrap_err(), "h has no address");
    }

    #[tokio::test]
    async fn an_address_in_a_url_and_a_name_are_checked_alike() {
        let own = own("");
        let bounds = Bounds { allow_private: false, own: &own, is_exposed: false };
        for host in ["127.0.0.1", "[::1]", "localhost"] {
            let why = resolve(host, 80, &bounds).await.unwrap_err();
            assert!(why.contains("allowPrivate"), "{host}: {why}");
        }
        let bounds = Bounds { allow_private: true, ..bounds };
        let found = resolve("[::1]", 80, &bounds).await.unwrap();
        assert_eq!(found, ["[::1]:80".parse::<SocketAddr>().unwrap()]);
    }
}
