//! The tunnel: its plans, and nodes that reach each other through it on the real kernel.

use std::collections::{BTreeMap, BTreeSet};

use schema::records::Vtep;

use crate::catalog::Peer;
use crate::converge::network::tunnel::{TunnelState, TunnelStep, plan};
use crate::testing::TestNamespace;
use crate::worlds::netlink::{RealNetlink, Tunnel, TunnelEntry, Tunnels};

pub(super) fn tunnel(node: u8) -> Tunnel {
    Tunnel {
        name: "mk8s.1".into(),
        local: [192, 0, 2, node].into(),
        vni: 1,
        port: 8472,
        address: [10, 244, node, 0].into(),
        mtu: 1450,
    }
}

fn peer(node: u8) -> Peer {
    let mac = format!("0a:58:0a:f4:{node:02x}:00");
    Peer {
        cidr: format!("10.244.{node}.0/24").parse().unwrap(),
        vtep: Vtep { address: [192, 0, 2, node].into(), mac },
        address: None,
        absent_since: None,
    }
}

pub(super) fn entries(node: u8) -> [TunnelEntry; 3] {
    let hardware = [0x0a, 0x58, 10, 244, node, 0];
    [
        TunnelEntry::Neighbour([10, 244, node, 0].into(), hardware),
        TunnelEntry::Forwarding(hardware, [192, 0, 2, node].into()),
        TunnelEntry::Route(format!("10.244.{node}.0/24").parse().unwrap(), [10, 244, node, 0].into()),
    ]
}

pub(super) fn peers(nodes: &[u8]) -> Option<BTreeMap<String, Peer>> {
    Some(nodes.iter().map(|node| (format!("n{node}"), peer(*node))).collect())
}

pub(super) fn seen(nodes: &[u8], there: &[TunnelEntry]) -> TunnelState {
    let entries: BTreeSet<TunnelEntry> = there.iter().copied().collect();
    TunnelState {
        tunnel: tunnel(1),
        is_there: true,
        is_whole: true,
        is_always_wanted: false,
        needs_trial: false,
        entries,
        own: "10.244.1.0/24".parse().unwrap(),
        peers: peers(nodes),
    }
}

#[test]
fn each_node_has_three_entries_in_order_and_no_more() {
    let set = |entry: TunnelEntry, node: &str| TunnelStep::Set(entry, node.to_owned());
    let new: Vec<TunnelStep> = entries(2).map(|entry| set(entry, "n2")).into();
    assert_eq!(plan(&seen(&[2], &[])), new);
    assert_eq!(plan(&seen(&[2], &entries(2))), [], "what is there is left alone");
    assert_eq!(plan(&seen(&[2], &entries(2)[..2])), new[2..]);
    // Nothing of a removed node stays; the route goes first.
    let both: Vec<TunnelEntry> = entries(2).into_iter().chain(entries(3)).collect();
    let [neighbour, forwarding, route] = entries(3);
    assert_eq!(plan(&seen(&[2], &both)), [route, forwarding, neighbour].map(TunnelStep::Drop));
    // A recreated link has no entries.
    let fresh = TunnelState { is_whole: false, ..seen(&[2], &entries(2)) };
    assert_eq!(plan(&fresh), [vec![TunnelStep::Link(tunnel(1))], new].concat());
}

#[test]
fn a_node_with_another_address_or_hardware_address_takes_the_place_of_the_former() {
    let mut moved = seen(&[2], &entries(2));
    let Some(peer) = moved.peers.as_mut().and_then(|peers| peers.get_mut("n2")) else { unreachable!() };
    peer.vtep.address = [192, 0, 2, 77].into();
    let hardware = [0x0a, 0x58, 10, 244, 2, 0];
    let entry = TunnelEntry::Forwarding(hardware, [192, 0, 2, 77].into());
    assert_eq!(plan(&moved), [TunnelStep::Set(entry, "n2".into())], "set in its place, not taken away first");
    peer_with_mac(&mut moved, "no address");
    let gone: Vec<_> = entries(2).into_iter().rev().map(TunnelStep::Drop).collect();
    assert_eq!(plan(&moved), gone, "one that can't be read is of no use");
}

fn peer_with_mac(seen: &mut TunnelState, mac: &str) {
    for peer in seen.peers.iter_mut().flat_map(BTreeMap::values_mut) {
        mac.clone_into(&mut peer.vtep.mac);
    }
}

// Seen red without `is_ours`.
#[test]
fn a_node_that_claims_our_own_range_gets_nothing() {
    assert_eq!(plan(&seen(&[1], &[])), []);
}

// Seen red with `unwrap_or_default` for the peers: everything is removed.
#[test]
fn before_the_other_nodes_are_known_what_is_there_stays() {
    let unknown = TunnelState { peers: None, ..seen(&[], &entries(2)) };
    assert_eq!(plan(&unknown), []);
}

// Seen red with `is_wanted` always true.
#[test]
fn without_other_nodes_there_is_no_tunnel_unless_names_hang_on_it() {
    let absent = |nodes: Option<&[u8]>| TunnelState {
        is_there: false,
        is_whole: false,
        peers: nodes.and_then(peers),
        ..seen(&[], &[])
    };
    assert_eq!(plan(&absent(Some(&[]))), []);
    assert_eq!(plan(&absent(None)), [], "the other nodes are not known yet");
    assert_eq!(absent(Some(&[])).vtep().mac, "0a:58:0a:f4:01:00", "the others need it first");
    let made = TunnelStep::Link(tunnel(1));
    assert_eq!(plan(&absent(Some(&[2]))).first(), Some(&made));
    assert_eq!(plan(&TunnelState { is_always_wanted: true, ..absent(Some(&[])) }), [made]);
    assert_eq!(plan(&seen(&[], &entries(2))), [TunnelStep::Unlink("mk8s.1".into())]);
}

#[tokio::test]
async fn a_number_and_port_that_another_link_has_are_refused_with_the_remedy() {
    let node = TestNamespace::new();
    node.run("ip", &["addr", "add", "192.0.2.1/24", "dev", "lo"]);
    node.run("ip", &["link", "set", "lo", "up"]);
    node.run(
        "ip",
        &["link", "add", "lab.1", "type", "vxlan", "id", "1", "dstport", "8472", "local", "192.0.2.1"],
    );
    let netlink = RealNetlink::open_at("mk8s", &node.path()).unwrap();
    let error = netlink.ensure_tunnel(&tunnel(1)).await.unwrap_err().to_string();
    assert!(error.contains("VNI 1 at UDP port 8472") && error.contains("--vxlan-port"), "{error}");
}

/// Plans and carries out the steps on the kernel.
async fn carry_out(netlink: &RealNetlink, seen: &mut TunnelState) -> Vec<TunnelStep> {
    seen.is_there = netlink.tunnel_origin(&seen.tunnel.name).await.unwrap().is_some();
    seen.is_whole = netlink.tunnel_is_whole(&seen.tunnel).await.unwrap();
    seen.entries = netlink.tunnel_entries(&seen.tunnel.name).await.unwrap();
    let steps = plan(seen);
    for step in &steps {
        match step {
            TunnelStep::Link(tunnel) => drop(netlink.ensure_tunnel(tunnel).await.unwrap()),
            TunnelStep::Set(entry, _) => netlink.set_tunnel_entry("mk8s.1", *entry).await.unwrap(),
            TunnelStep::Drop(entry) => netlink.drop_tunnel_entry("mk8s.1", *entry).await.unwrap(),
            TunnelStep::Unlink(name) => assert!(netlink.remove_tunnel(name).await.unwrap()),
            TunnelStep::TryChecksums(_) => panic!("nothing is tried here"),
        }
    }
    steps
}

#[tokio::test]
async fn the_kernel_takes_the_steps_and_shows_what_they_made() {
    let node = TestNamespace::new();
    node.run("ip", &["addr", "add", "192.0.2.1/24", "dev", "lo"]);
    node.run("ip", &["link", "set", "lo", "up"]);
    let netlink = RealNetlink::open_at("mk8s", &node.path()).unwrap();
    let mut seen = seen(&[2, 3], &[]);
    assert_eq!(carry_out(&netlink, &mut seen).await.len(), 7);
    assert_eq!(carry_out(&netlink, &mut seen).await, [], "and that is all");
    let link = node.run("ip", &["-d", "link", "show", "mk8s.1"]);
    for part in
        ["vxlan id 1", "local 192.0.2.1", "dstport 8472", "nolearning", "mtu 1450", "0a:58:0a:f4:01:00"]
    {
        assert!(link.contains(part), "{part}: {link}");
    }
    let routes = node.run("ip", &["route"]);
    assert!(routes.contains("10.244.3.0/24 via 10.244.3.0 dev mk8s.1 proto static onlink"), "{routes}");
    let frames = node.run("bridge", &["fdb", "show", "dev", "mk8s.1"]);
    assert!(frames.contains("0a:58:0a:f4:02:00 dst 192.0.2.2 self permanent"), "{frames}");
    let neighbours = node.run("ip", &["neigh", "show", "dev", "mk8s.1"]);
    assert!(neighbours.contains("10.244.2.0 lladdr 0a:58:0a:f4:02:00 PERMANENT"), "{neighbours}");

    // A node with another address, a removed node, and an entry that somebody else added.
    seen.peers = peers(&[2]);
    let Some(moved) = seen.peers.as_mut().and_then(|peers| peers.get_mut("n2")) else { unreachable!() };
    moved.vtep.address = [192, 0, 2, 77].into();
    node.run("bridge", &["fdb", "append", "02:00:00:00:00:09", "dev", "mk8s.1", "dst", "192.0.2.9"]);
    let steps = carry_out(&netlink, &mut seen).await;
    assert_eq!(steps.len(), 5, "{steps:#?}");
    let frames = node.run("bridge", &["fdb", "show", "dev", "mk8s.1"]);
    assert_eq!(frames.trim(), "0a:58:0a:f4:02:00 dst 192.0.2.77 self permanent");
    assert!(!node.run("ip", &["route"]).contains("10.244.3.0"));

    // The node's own address changes: a new link, with every entry.
    seen.tunnel.local = [192, 0, 2, 8].into();
    node.run("ip", &["addr", "add", "192.0.2.8/24", "dev", "lo"]);
    assert_eq!(carry_out(&netlink, &mut seen).await.len(), 4);
    assert!(node.run("ip", &["-d", "link", "show", "mk8s.1"]).contains("local 192.0.2.8"));
    // The last other node leaves.
    seen.peers = peers(&[]);
    assert_eq!(carry_out(&netlink, &mut seen).await, [TunnelStep::Unlink("mk8s.1".into())]);
    assert_eq!(carry_out(&netlink, &mut seen).await, []);
    assert!(!netlink.remove_tunnel("mk8s.1").await.unwrap());
}

#[tokio::test]
async fn a_route_of_somebody_else_stays() {
    let node = TestNamespace::new();
    node.run("ip", &["addr", "add", "192.0.2.1/24", "dev", "lo"]);
    node.run("ip", &["link", "set", "lo", "up"]);
    node.run("ip", &["route", "add", "10.244.2.0/24", "dev", "lo"]);
    let netlink = RealNetlink::open_at("mk8s", &node.path()).unwrap();
    netlink.ensure_tunnel(&tunnel(1)).await.unwrap();
    let [.., route] = entries(2);
    let error = netlink.set_tunnel_entry("mk8s.1", route).await.unwrap_err().to_string();
    assert!(error.contains("10.244.2.0/24 is routed elsewhere"), "{error}");
    assert!(node.run("ip", &["route"]).contains("10.244.2.0/24 dev lo"));
}

#[tokio::test]
async fn a_link_of_somebody_else_is_not_touched() {
    let node = TestNamespace::new();
    node.run("ip", &["link", "add", "mk8s.1", "type", "vxlan", "id", "9", "dstport", "4789"]);
    let netlink = RealNetlink::open_at("mk8s", &node.path()).unwrap();
    let error = netlink.ensure_tunnel(&tunnel(1)).await.unwrap_err().to_string();
    assert!(error.starts_with("link mk8s.1 exists and is not a tunnel of this instance"), "{error}");
    assert!(!netlink.remove_tunnel("mk8s.1").await.unwrap());
    assert!(node.run("ip", &["-d", "link", "show", "mk8s.1"]).contains("vxlan id 9"));
}
