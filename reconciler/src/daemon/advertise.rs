//! Finds the address at which agents reach this reconciler's API. Queries the kernel's routes, and sends nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};

use schema::store::election::Standing;

use crate::config::ServeConfig;
use crate::git;

/// Port of etcd for a URL without one. Any would do: only the route matters.
const ETCD_PORT: u16 = 2379;
/// Remote addresses: reserved for documentation, so the route to them is the default route.
const FAR_AWAY: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// The candidate for election, with the address at which agents reach it.
pub(super) fn standing(config: &ServeConfig) -> Standing {
    let api = config.advertise.clone().or_else(|| {
        let own = published(config.listen, &config.etcd.endpoints, way_to)?;
        Some(format!("http://{}", SocketAddr::new(own, config.listen.port())))
    });
    match &api {
        Some(api) => tracing::info!(api, "agents get this address of the API while this one leads"),
        None => tracing::warn!(
            listen = %config.listen,
            "no address of the API is known that agents can use: they get no files and secrets while this \
             one leads; give --advertise"
        ),
    }
    Standing { id: config.name.clone(), api }
}

/// The address that other nodes can use. `way` returns this machine's own address on the route to another.
fn published(
    listen: SocketAddr,
    etcd: &[String],
    way: impl Fn(SocketAddr) -> Option<IpAddr>,
) -> Option<IpAddr> {
    let ways = || etcd.iter().filter_map(|url| etcd_at(url)).flat_map(resolved).filter_map(&way);
    let is_reached = |own: &IpAddr| listen.is_ipv6() || own.is_ipv4();
    if !listen.ip().is_unspecified() {
        // Agents may be on other machines if they share an etcd on another machine.
        let is_own = !listen.ip().is_loopback() || ways().all(|own| own.is_loopback());
        return is_own.then(|| listen.ip());
    }
    let (near, far): (Vec<IpAddr>, Vec<IpAddr>) = ways().filter(is_reached).partition(IpAddr::is_loopback);
    let default_route = || FAR_AWAY.iter().filter_map(|there| way(SocketAddr::new(*there, ETCD_PORT)));
    // An etcd on this machine tells nothing about the route of others.
    far.into_iter()
        .next()
        .or_else(|| default_route().find(|own| is_reached(own) && !own.is_loopback()))
        .or_else(|| near.into_iter().next())
}

fn etcd_at(url: &str) -> Option<(String, u16)> {
    let (host, port) = git::host_and_port(url);
    let port = port.map_or(Some(ETCD_PORT), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

fn resolved((host, port): (String, u16)) -> Vec<SocketAddr> {
    (host.as_str(), port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
}

/// This machine's own address on the route to `there`.
fn way_to(there: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(there).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routes of a machine at 10.0.0.5 and fd00::5 in its own networks, with a default route unless it is alone.
    fn way(alone: bool) -> impl Fn(SocketAddr) -> Option<IpAddr> {
        move |there| match there.ip() {
            ip if ip.is_loopback() => Some(ip),
            IpAddr::V4(ip) if ip.octets()[0] == 10 || !alone => Some("10.0.0.5".parse().unwrap()),
            IpAddr::V6(ip) if ip.segments()[0] == 0xfd00 => Some("fd00::5".parse().unwrap()),
            _ => None,
        }
    }

    #[test]
    fn what_others_cannot_use_is_not_published() {
        for (listen, etcd, alone, expected) in [
            ("0.0.0.0:7070", "http://127.0.0.1:2379", false, Some("10.0.0.5")),
            ("[::]:7070", "http://[::1]:2379", false, Some("10.0.0.5")),
            ("0.0.0.0:7070", "http://127.0.0.1:2379", true, Some("127.0.0.1")),
            ("0.0.0.0:7070", "http://10.0.0.9", true, Some("10.0.0.5")),
            ("0.0.0.0:7070", "http://192.0.2.7:2379,https://10.0.0.9:2379/", true, Some("10.0.0.5")),
            ("[::]:7070", "http://[fd00::9]:2379", true, Some("fd00::5")),
            ("0.0.0.0:7070", "http://[fd00::9]:2379", true, None),
            ("127.0.0.1:7070", "http://127.0.0.1:2379", false, Some("127.0.0.1")),
            ("127.0.0.1:7070", "http://10.0.0.9:2379", false, None),
            ("10.0.0.5:7070", "http://127.0.0.1:2379", false, Some("10.0.0.5")),
        ] {
            let etcd: Vec<String> = etcd.split(',').map(str::to_owned).collect();
            let found = published(listen.parse().unwrap(), &etcd, way(alone));
            assert_eq!(found, expected.map(|ip| ip.parse().unwrap()), "{listen} {etcd:?} alone: {alone}");
        }
    }

    #[test]
    fn a_url_has_a_host_with_or_without_port() {
        for (url, host, port) in [
            ("http://etcd.lan:2379", "etcd.lan", 2379),
            ("https://[fd00::9]", "fd00::9", 2379),
            ("https://[fd00::9]:99/x", "fd00::9", 99),
            ("http://user:pw@10.0.0.9:1", "10.0.0.9", 1),
        ] {
            assert_eq!(etcd_at(url), Some((host.to_owned(), port)), "{url}");
        }
        assert_eq!(etcd_at("http://"), None);
    }
}
