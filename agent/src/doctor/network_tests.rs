//! The doctor's findings about the node's network.

use std::collections::BTreeMap;

use schema::kinds::pod::Protocol;

use super::network_judge::judge;
use super::network_probe::{Links, NetworkFacts};
use super::tests::config;
use super::{Check, Level, Ranges};
use crate::worlds::netlink::{Device, Listener, Route};

fn ranges() -> Ranges {
    Ranges { cluster: "10.244.0.0/16".parse().unwrap(), service: "10.96.0.0/16".parse().unwrap() }
}

fn device(name: &str, mtu: u32, address: &str, vxlan: Option<(u32, u16)>) -> Device {
    let addresses = address.split_whitespace().map(|text| text.parse().unwrap()).collect();
    Device { name: name.into(), mtu, addresses, vxlan }
}

fn route(destination: &str, interface: &str) -> Route {
    Route { destination: destination.parse().unwrap(), interface: interface.into() }
}

fn links() -> Links {
    Links {
        devices: vec![device("lo", 65536, "127.0.0.1/8", None), device("eth0", 1500, "192.0.2.2/24", None)],
        uplinks: vec!["eth0".into()],
        routes: vec![route("0.0.0.0/0", "eth0"), route("192.0.2.0/24", "eth0")],
        listeners: BTreeMap::new(),
    }
}

pub(super) fn healthy() -> NetworkFacts {
    let free = |name, at: &str| (name, at.to_owned(), Ok(()));
    NetworkFacts {
        is_answered: false,
        rules: Ok(vec![("match tcp", Ok(())), ("match recent", Ok(()))]),
        links: Ok(links()),
        fronts: vec![free("dns", "10.96.0.10:53"), free("gateway", "10.96.0.11:80")],
        rp_filter: BTreeMap::from([("eth0".into(), 1)]),
        connections: Some((12, 262_144)),
        local_ports: Some((32_768, 60_999)),
        reserved_ports: vec![],
    }
}

fn troubles(seen: &NetworkFacts, is_answered: bool) -> Vec<Check> {
    let checks = judge(&config(), ranges(), &NetworkFacts { is_answered, ..seen.clone() });
    for check in &checks {
        assert!(!check.to_string().contains('\n'), "{check}");
        assert_eq!(check.level == Level::Ok, check.remedy.is_empty(), "{check}");
    }
    checks.into_iter().filter(|check| check.level != Level::Ok).collect()
}

#[test]
fn a_healthy_network_has_nothing_to_repair() {
    assert_eq!(troubles(&healthy(), false), []);
}

/// A healthy network except for the links changed by `change`.
fn with(change: impl FnOnce(&mut Links)) -> NetworkFacts {
    let mut links = links();
    change(&mut links);
    NetworkFacts { links: Ok(links), ..healthy() }
}

// Seen red with `MTU_MIN` alone.
#[test]
fn each_trouble_of_the_network_is_reported_with_a_remedy() {
    use Level::{Fail, Warn};
    let refused = |name| Ok(vec![("match tcp", Ok(())), (name, Err("no such match".to_owned()))]);
    let taken = |name, at: &str| vec![(name, at.to_owned(), Err("in use: nginx (process 7)".to_owned()))];
    let process = || Listener { process: Some("nfsd (process 9)".into()), loopback: false };
    let cases: Vec<(NetworkFacts, &str, Level, &str)> = vec![
        (NetworkFacts { rules: refused("match statistic"), ..healthy() }, "match statistic", Fail, "no such"),
        (NetworkFacts { rules: refused("match recent"), ..healthy() }, "match recent", Warn, "no such match"),
        (NetworkFacts { rules: Err("no".into()), ..healthy() }, "packet rules", Fail, "no"),
        (NetworkFacts { links: Err("no".into()), ..healthy() }, "links", Fail, "no"),
        (NetworkFacts { connections: Some((9, 4096)), ..healthy() }, "conntrack table", Warn, "9 of 4096"),
        (NetworkFacts { connections: Some((90_000, 100_000)), ..healthy() }, "conntrack table", Warn, "soon"),
        (
            NetworkFacts { rp_filter: [("eth0".into(), 1), ("eth1".into(), 0)].into(), ..healthy() },
            "rp_filter",
            Warn,
            "strict at eth0",
        ),
        (
            NetworkFacts { fronts: taken("dns", "10.96.0.10:53"), ..healthy() },
            "dns",
            Fail,
            "nginx (process 7)",
        ),
        (NetworkFacts { fronts: taken("gateway", "x:80"), ..healthy() }, "gateway", Fail, "nginx"),
        (NetworkFacts { local_ports: Some((1024, 65_535)), ..healthy() }, "node ports", Warn, "1024-65535"),
        (NetworkFacts { local_ports: None, ..healthy() }, "node ports", Warn, "can't be read"),
        (with(|l| l.uplinks.clear()), "mtu", Warn, "pods get 1450"),
        (with(|l| l.devices[1].mtu = 600), "mtu", Fail, "eth0 has 600"),
        (with(|l| l.devices.push(device("mk8s0", 8950, "", None))), "mtu of links", Warn, "8950 where 1450"),
        (
            with(|l| l.devices.push(device("flannel.1", 1450, "", Some((1, 8472))))),
            "vxlan port",
            Warn,
            "flannel.1 has VNI 1",
        ),
        (
            with(|l| l.devices.push(device("cilium", 1450, "", Some((2, 8472))))),
            "vxlan port",
            Warn,
            "cilium uses UDP port 8472 too",
        ),
        (with(|l| l.devices.push(device("mk8s.1", 1450, "", None))), "vxlan port", Warn, "is not a VXLAN"),
        (
            with(|l| drop(l.listeners.insert((Protocol::Udp, 8472), process()))),
            "vxlan port",
            Warn,
            "in use by nfsd (process 9)",
        ),
        (with(|l| l.routes.push(route("10.244.7.0/24", "eth1"))), "pod addresses", Fail, "through eth1"),
        (
            with(|l| l.devices.push(device("cni0", 1500, "10.244.1.1/24", None))),
            "pod addresses",
            Fail,
            "the addresses of cni0",
        ),
        (with(|l| l.routes.push(route("10.96.0.0/12", "tun0"))), "service addresses", Fail, "through tun0"),
    ];
    for (seen, name, level, found) in cases {
        let troubles = troubles(&seen, false);
        let reported: Vec<_> = troubles.iter().map(|check| (check.name, check.level)).collect();
        assert_eq!(reported, [(name, level)], "{found}");
        assert!(troubles[0].found.contains(found), "{}", troubles[0]);
    }
    let both = Ranges { service: "10.244.128.0/17".parse().unwrap(), ..ranges() };
    let checks = judge(&config(), both, &healthy());
    let meets = |check: &&Check| check.name == "service addresses" && check.level == Fail;
    assert!(checks.iter().any(|check| meets(&check)), "{checks:?}");
}

// Seen red without the tunnel's name in `ours` of `range`: the routes to other nodes' pods are a conflict.
#[test]
fn what_a_running_agent_made_is_no_trouble() {
    let mut seen = with(|links| {
        links.devices.push(device("mk8s0", 1450, "10.244.3.1/24 10.96.0.10/32 10.96.0.11/32", None));
        links.devices.push(device("mk8s.1", 1450, "10.244.3.0/32", Some((1, 8472))));
        links.listeners.insert((Protocol::Udp, 8472), Listener::default());
        links.routes.extend([
            route("10.244.3.0/24", "mk8s0"),
            route("10.96.0.0/16", "mk8s0"),
            route("10.244.4.0/24", "mk8s.1"),
        ]);
    });
    seen.fronts = vec![("dns", "10.96.0.10:53".into(), Err("in use".into()))];
    assert_eq!(troubles(&seen, true), []);
    seen.local_ports = Some((1024, 65_535));
    seen.reserved_ports = vec![(30_000, 32_767)];
    assert_eq!(troubles(&seen, true), [], "reserved ports are not given out");
}
