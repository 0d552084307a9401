//! The trial of the tunnel's checksums: the nodes it connects to, its effects on a fake, and a card that falsely
//! reports checksum offload on the real kernel.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use schema::control::{Loop as _, Observation};
use schema::testing::subnet;
use tokio::sync::watch;

use super::super::state::{TRIALS_MAX, TrialResult, try_checksums};
use super::tunnel::{entries, peers, seen, tunnel};
use crate::catalog::Catalog;
use crate::converge::network::tunnel::{TunnelState, TunnelStep, plan};
use crate::converge::network::{NetworkDeps, NetworkLoop, NetworkSettings};
use crate::desired::StateOrigin;
use crate::node_address::NodeAddress;
use crate::testing::TestNamespace;
use crate::worlds::iptables::FakeIptables;
use crate::worlds::netlink::{FakeNetlink, RealNetlink, Tunnels};

fn at(node: u8) -> SocketAddr {
    ([10, 244, node, 0], 8472).into()
}

fn asked(nodes: &[u8]) -> BTreeMap<SocketAddr, String> {
    nodes.iter().map(|node| (at(*node), format!("n{node}"))).collect()
}

#[test]
fn a_whole_tunnel_is_tried_with_the_nodes_that_it_leads_to() {
    let untried = |nodes, there: &[_]| TunnelState { needs_trial: true, ..seen(nodes, there) };
    let both: Vec<_> = entries(2).into_iter().chain(entries(3)).collect();
    let trial = |nodes| vec![TunnelStep::TryChecksums(asked(nodes))];
    assert_eq!(plan(&untried(&[2, 3], &both)), trial(&[2, 3]));
    assert_eq!(plan(&untried(&[], &[])), [TunnelStep::Unlink("mk8s.1".into())], "alone");
    assert_eq!(plan(&seen(&[2, 3], &both)), [], "already tried");
    let steps = plan(&untried(&[2, 3], &entries(2)));
    assert_eq!(steps[3..], trial(&[2]), "node 3 has no route yet");
    let mut one_is_away = untried(&[2, 3], &both);
    one_is_away.peers.as_mut().unwrap().get_mut("n2").unwrap().absent_since = Some(jiff::Timestamp::now());
    assert_eq!(plan(&one_is_away), trial(&[3]));
    let fresh = TunnelState { is_whole: false, ..untried(&[2], &entries(2)) };
    assert!(!plan(&fresh).iter().any(|step| matches!(step, TunnelStep::TryChecksums(_))));
}

/// Runs a trial on a tunnel whose other nodes answer like this. Returns its result, its acts and the final setting.
async fn run(answering: &[(u8, bool)], lost: usize) -> (TrialResult, Vec<String>, bool) {
    let netlink = FakeNetlink::default();
    netlink.kernel().offload_is_on = true;
    netlink.kernel().answering = answering.iter().map(|(node, only)| (at(*node), *only)).collect();
    netlink.kernel().lost = lost;
    let found = try_checksums(&netlink, "mk8s.1", &asked(&[2])).await.unwrap();
    let kernel = netlink.kernel();
    (found, kernel.acts.clone(), kernel.offload_is_on)
}

#[tokio::test]
async fn checksums_are_computed_only_where_nothing_else_gets_through() {
    let (knock, on, off) = ("knock 10.244.2.0", "offload on", "offload off");
    let (found, acts, is_on) = run(&[(2, false)], 0).await;
    assert_eq!((found, is_on), (TrialResult::Sound, true));
    assert_eq!(acts, [knock]);
    let (found, acts, is_on) = run(&[(2, true)], 0).await;
    assert_eq!((found, is_on), (TrialResult::Computed("n2".into()), false));
    assert_eq!(acts, [knock, off, knock, on, knock, off]);
    // No node answers either way: the offload stays as it was.
    let (found, acts, is_on) = run(&[], 0).await;
    assert_eq!((found, is_on), (TrialResult::Silence, true));
    assert_eq!(acts, [knock, off, knock, on]);
    // A packet lost by chance.
    let (found, acts, is_on) = run(&[(2, false)], 1).await;
    assert_eq!((found, is_on), (TrialResult::Sound, true));
    assert_eq!(acts, [knock, off, knock, on, knock]);
}

/// Returns the number of trials of a loop and its reports. Halfway, its tunnel vanishes and is recreated with this
/// offload setting.
async fn tries_of_a_loop(netlink: &Arc<FakeNetlink>, on_when_made: bool) -> (usize, Vec<String>) {
    netlink.kernel().addresses.insert([192, 0, 2, 1].into());
    let subnet = subnet("10.244.1.0/24");
    let catalog = Catalog {
        known_from: StateOrigin::Etcd,
        peers: peers(&[2]).unwrap_or_default(),
        ..Catalog::default()
    };
    let mut network = NetworkLoop::new(
        NetworkSettings::new("mk8s", 1450),
        NetworkDeps {
            netlink: netlink.clone(),
            tunnels: netlink.clone(),
            iptables: Arc::new(FakeIptables::default()),
            subnet: watch::channel(Some(subnet)).1,
            pods: watch::channel(Some(Arc::default())).1,
            catalog: watch::channel(Arc::new(catalog)).1,
            control: watch::channel(Default::default()).1,
            vtep: watch::Sender::new(None),
            sandboxed: watch::Sender::default(),
            builds: crate::converge::shared::node_network::channel().1,
            address: NodeAddress::channel(Some([192, 0, 2, 1].into())).1,
            rules_changed: schema::control::Nudge::new().0,
        },
    );
    let (mut tried, mut said) = (0, Vec::new());
    for run in 0..4 * TRIALS_MAX {
        if run == 2 * TRIALS_MAX {
            netlink.kernel().tunnels.clear();
            netlink.kernel().offload_is_on |= on_when_made;
        }
        let Observation::Ready(observed) = network.observe().await.unwrap() else { panic!("ready") };
        let plan = NetworkLoop::plan(&observed, jiff::Timestamp::now());
        tried += plan.tunnel.iter().filter(|step| matches!(step, TunnelStep::TryChecksums(_))).count();
        let outcome = network.act(&observed, plan).await;
        said.extend(outcome.tolerated.clone());
        network.report(observed, outcome).await.unwrap();
    }
    (tried, said)
}

// Seen red without the count of trials, and without resetting it for a new link.
#[tokio::test]
async fn a_loop_tries_until_a_node_answered_or_often_enough() {
    let netlink = Arc::new(FakeNetlink::default());
    netlink.kernel().offload_is_on = true;
    let (tried, said) = tries_of_a_loop(&netlink, true).await;
    assert_eq!((tried, said.len()), (2 * usize::from(TRIALS_MAX), 0), "each link, for a while");
    netlink.kernel().answering.insert(at(2), true);
    let (tried, said) = tries_of_a_loop(&netlink, false).await;
    assert!(
        tried == 1 && said.len() == 1 && said[0].contains("reaches node n2 only with checksums"),
        "{said:?}"
    );
    assert_eq!(tries_of_a_loop(&netlink, false).await, (0, Vec::new()), "what is off already is left alone");
    netlink.kernel().offload_is_on = true;
    netlink.kernel().answering.clear();
    netlink.kernel().refuse_offload = Some("not permitted".into());
    let (tried, said) = tries_of_a_loop(&netlink, true).await;
    assert!(tried == 2 && said.len() == 2 && said[0].contains("not permitted"), "{said:?}");
}

/// Drops the first packet of every connection through the tunnel from node 1 to node 2 whose checksum was left to the
/// card: such a checksum covers only the addresses, the protocol and the length. This is what a card sends that
/// claims
/// checksum offload but does not compute it.
fn lying_card(node: &TestNamespace) {
    let first_packet = 40;
    let sum = 0x0af4 + 0x0100 + 0x0af4 + 0x0200 + 6 + first_packet;
    // Headers of IP, UDP, VXLAN, Ethernet and IP: 70 bytes, plus 16 bytes of TCP.
    let unfinished = format!("84&0xFFFF={sum:#x}");
    let rule =
        ["-A", "OUTPUT", "-p", "udp", "--dport", "8472", "-m", "u32", "--u32", &unfinished, "-j", "DROP"];
    node.run("iptables", &rule);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_that_only_says_it_computes_them_is_found_out_on_the_real_kernel() {
    let nodes = [TestNamespace::new(), TestNamespace::new()];
    let far = nodes[1].path();
    let far = far.to_str().unwrap();
    nodes[0].run("ip", &["link", "add", "uplink", "type", "veth", "peer", "name", "uplink", "netns", far]);
    let mut opened = Vec::new();
    for (node, number, other) in [(&nodes[0], 1, 2), (&nodes[1], 2, 1)] {
        node.run("ip", &["addr", "add", &format!("192.0.2.{number}/24"), "dev", "uplink"]);
        node.run("ip", &["link", "set", "uplink", "up"]);
        let netlink = RealNetlink::open_at("mk8s", &node.path()).unwrap();
        netlink.ensure_tunnel(&tunnel(number)).await.unwrap();
        for entry in entries(other) {
            netlink.set_tunnel_entry("mk8s.1", entry).await.unwrap();
        }
        opened.push(netlink);
    }
    let netlink = &opened[0];
    let is_on = async || netlink.offload_is_on("mk8s.1").await.unwrap();
    let tried = async || try_checksums(netlink, "mk8s.1", &asked(&[2])).await.unwrap();

    assert_eq!(tried().await, TrialResult::Sound);
    assert!(is_on().await, "nothing is given away where it works");
    lying_card(&nodes[0]);
    assert!(!netlink.answers(at(2)).await, "the card lies");
    assert_eq!(tried().await, TrialResult::Computed("n2".into()));
    assert!(!is_on().await && netlink.answers(at(2)).await);
    // A recreated link has the card's checksums again.
    netlink.remove_tunnel("mk8s.1").await.unwrap();
    netlink.ensure_tunnel(&tunnel(1)).await.unwrap();
    for entry in entries(2) {
        netlink.set_tunnel_entry("mk8s.1", entry).await.unwrap();
    }
    assert!(is_on().await);
    assert_eq!(tried().await, TrialResult::Computed("n2".into()));
}
