//! The checksums loop: what is decided, what is done on a fake, and a card that lies on the real kernel.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use schema::control::Plan as _;
use schema::records::Vtep;

use super::act::carry_out;
use super::plan::{Trial, plan as decide};
use super::*;
use crate::catalog::Peer;
use crate::desired::Source;
use crate::testing::TestNamespace;
use crate::worlds::netlink::{Checksums, FakeNetlink, Offload, RealNetlink, Tunnel, TunnelEntry};

fn at(node: u8) -> SocketAddr {
    (Ipv4Addr::new(10, 244, node, 0), 8472).into()
}

fn seen(nodes: &[u8], history: &History) -> Observed {
    Observed {
        offload: Offload { index: 7, is_on: true },
        is_left_off: false,
        peers: nodes.iter().map(|node| (at(*node), format!("n{node}"))).collect(),
        history: history.clone(),
        now: Instant::now().into_std(),
    }
}

/// Whom to ask.
fn plan(seen: &Observed) -> Trial {
    match decide(seen) {
        Step::Ask(trial) => trial,
        Step::Recover => panic!("nothing was left off"),
    }
}

fn asked(trial: &Trial) -> Vec<&str> {
    trial.0.values().map(String::as_str).collect()
}

#[test]
fn a_link_is_tried_until_somebody_answered_and_anew_when_it_is_made_anew() {
    let fresh = History::default();
    let trial = plan(&seen(&[2, 3, 4, 5], &fresh));
    assert_eq!(asked(&trial), ["n2", "n3", "n4"]);
    assert!(plan(&seen(&[], &fresh)).0.is_empty(), "alone");
    let off = Observed { offload: Offload { index: 7, is_on: false }, ..seen(&[2], &fresh) };
    assert!(plan(&off).0.is_empty(), "somebody switched it off");
    for verdict in [Verdict::Sound, Verdict::Computed("n2".into()), Verdict::Refused("no".into())] {
        let settled = fresh.after(7, &trial, &verdict, Instant::now().into_std());
        assert!(plan(&seen(&[2, 3, 4, 5, 6], &settled)).0.is_empty(), "{verdict:?}");
        let other = Observed { offload: Offload { index: 8, is_on: true }, ..seen(&[2], &settled) };
        assert_eq!(asked(&plan(&other)), ["n2"], "{verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_silent_is_asked_less_and_less_and_a_new_node_at_once() {
    let mut history = History::default();
    let mut waits = Vec::new();
    loop {
        let trial = plan(&seen(&[2], &history));
        if trial.0.is_empty() {
            break;
        }
        history = history.after(7, &trial, &Verdict::Silence, Instant::now().into_std());
        assert!(plan(&seen(&[2], &history)).0.is_empty(), "not at once again");
        let wait = history.not_before.unwrap() - Instant::now().into_std();
        waits.push(wait.as_secs());
        tokio::time::advance(wait).await;
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320]);
    let trial = plan(&seen(&[2, 3], &history));
    assert_eq!(asked(&trial), ["n2", "n3"]);
    history = history.after(7, &trial, &Verdict::Silence, Instant::now().into_std());
    assert_eq!(history.trials, 1, "from the start again");
}

/// What the loop does and says of a tunnel whose other nodes answer so.
async fn run(answering: &[(u8, bool)], lost: usize) -> (Verdict, Vec<String>, bool) {
    let netlink = Arc::new(FakeNetlink::default());
    let offload = Offload { index: 7, is_on: true };
    netlink.kernel().offload = Some(offload);
    netlink.kernel().answering = answering.iter().map(|(node, only)| (at(*node), *only)).collect();
    netlink.kernel().lost = lost;
    let trial = plan(&seen(&[2], &History::default()));
    let dir = tempfile::tempdir().unwrap();
    let deps = deps(netlink.clone(), netlink.clone(), dir.path());
    let verdict = carry_out(&deps, offload, &Step::Ask(trial)).await.unwrap();
    assert!(!deps.mark.exists());
    let kernel = netlink.kernel();
    (verdict, kernel.acts.clone(), kernel.offload.unwrap().is_on)
}

#[tokio::test]
async fn checksums_are_computed_only_where_nothing_else_gets_through() {
    let (knock, on, off) = ("knock 10.244.2.0", "offload on", "offload off");
    let (verdict, acts, is_on) = run(&[(2, false)], 0).await;
    assert_eq!((verdict, is_on), (Verdict::Sound, true));
    assert_eq!(acts, [knock]);
    let (verdict, acts, is_on) = run(&[(2, true)], 0).await;
    assert_eq!((verdict, is_on), (Verdict::Computed("n2".into()), false));
    assert_eq!(acts, [knock, off, knock, on, knock, off]);
    // Nobody answers either way: left as it was.
    let (verdict, acts, is_on) = run(&[], 0).await;
    assert_eq!((verdict, is_on), (Verdict::Silence, true));
    assert_eq!(acts, [knock, off, knock, on]);
    // Lost by chance.
    let (verdict, acts, is_on) = run(&[(2, false)], 1).await;
    assert_eq!((verdict, is_on), (Verdict::Sound, true));
    assert_eq!(acts, [knock, off, knock, on, knock]);
}

#[tokio::test]
async fn a_kernel_that_refuses_is_told_once() {
    let netlink = Arc::new(FakeNetlink::default());
    netlink.kernel().offload = Some(Offload { index: 7, is_on: true });
    netlink.kernel().refuse_offload = Some("not permitted".into());
    let dir = tempfile::tempdir().unwrap();
    let mut the_loop = ChecksumsLoop::new(deps(netlink.clone(), netlink.clone(), dir.path()));
    let tunnel = tunnel(1, [192, 0, 2, 1].into());
    netlink.ensure_tunnel(&tunnel).await.unwrap();
    for entry in entries(2) {
        netlink.set_tunnel_entry("mk8s.1", entry).await.unwrap();
    }
    let mut tried = 0;
    for _ in 0..3 {
        let Observation::Ready(seen) = the_loop.observe().await.unwrap() else { panic!("ready") };
        let trial = ChecksumsLoop::plan(&seen, Timestamp::now());
        tried += usize::from(!trial.is_empty());
        let outcome = the_loop.act(&seen, trial).await;
        the_loop.report(seen, outcome).await.unwrap();
    }
    assert_eq!(tried, 1);
}

// Seen red with a step that does nothing.
#[tokio::test]
async fn what_a_trial_switched_off_that_nobody_ended_is_on_again() {
    let (netlink, dir) = (Arc::new(FakeNetlink::default()), tempfile::tempdir().unwrap());
    netlink.kernel().offload = Some(Offload { index: 7, is_on: false });
    let mut the_loop = ChecksumsLoop::new(deps(netlink.clone(), netlink.clone(), dir.path()));
    let is_on = || netlink.kernel().offload.unwrap().is_on;
    assert_eq!(run_once(&mut the_loop).await, Verdict::Untried);
    assert!(!is_on(), "somebody's wish");
    std::fs::write(dir.path().join("mark"), "8").unwrap();
    assert_eq!(run_once(&mut the_loop).await, Verdict::Untried);
    assert!(!is_on(), "of another link");
    std::fs::write(dir.path().join("mark"), "7").unwrap();
    assert_eq!(run_once(&mut the_loop).await, Verdict::Recovered);
    assert!(is_on() && !dir.path().join("mark").exists());
}

#[tokio::test]
async fn a_kernel_that_refuses_what_a_trial_left_off_is_asked_ever_later() {
    let (netlink, dir) = (Arc::new(FakeNetlink::default()), tempfile::tempdir().unwrap());
    netlink.kernel().offload = Some(Offload { index: 7, is_on: false });
    std::fs::write(dir.path().join("mark"), "7").unwrap();
    let mut the_loop = ChecksumsLoop::new(deps(netlink.clone(), netlink.clone(), dir.path()));
    for refusal in [Some("not permitted".to_owned()), None] {
        netlink.kernel().refuse_offload.clone_from(&refusal);
        let Observation::Ready(seen) = the_loop.observe().await.unwrap() else { panic!("ready") };
        let step = ChecksumsLoop::plan(&seen, Timestamp::now());
        let outcome = the_loop.act(&seen, step).await;
        let reported = the_loop.report(seen, outcome).await;
        match refusal {
            Some(why) => assert!(reported.unwrap_err().to_string().contains(&why), "the driver backs off"),
            None => assert_eq!(reported.unwrap(), Next::After(Duration::ZERO)),
        }
        assert_eq!(dir.path().join("mark").exists(), !netlink.kernel().offload.unwrap().is_on);
    }
}

fn tunnel(node: u8, local: Ipv4Addr) -> Tunnel {
    let address = [10, 244, node, 0].into();
    Tunnel { name: "mk8s.1".into(), local, vni: 1, port: 8472, address, mtu: 1450 }
}

fn entries(node: u8) -> [TunnelEntry; 3] {
    let hardware = tunnel(node, [192, 0, 2, node].into()).hardware_address();
    [
        TunnelEntry::Neighbour([10, 244, node, 0].into(), hardware),
        TunnelEntry::Forwarding(hardware, [192, 0, 2, node].into()),
        TunnelEntry::Route(format!("10.244.{node}.0/24").parse().unwrap(), [10, 244, node, 0].into()),
    ]
}

fn deps(checksums: Arc<dyn Checksums>, tunnels: Arc<dyn Tunnels>, dir: &Path) -> ChecksumsDeps {
    let vtep = Vtep { address: [192, 0, 2, 2].into(), mac: "0a:58:0a:f4:02:00".into() };
    let cidr = "10.244.2.0/24".parse().unwrap();
    let peers = BTreeMap::from([("n2".to_owned(), Peer { cidr, vtep, address: None, absent_since: None })]);
    let catalog = Catalog { source: Source::Etcd, peers, ..Catalog::default() };
    let catalog = watch::channel(Arc::new(catalog)).1;
    ChecksumsDeps { checksums, tunnels, tunnel: "mk8s.1".into(), port: 8472, catalog, mark: dir.join("mark") }
}

/// Drops each first packet of a connection through the tunnel from node 1 to node 2 whose checksum was left
/// to the card: it holds the sum of the addresses, the protocol and the length alone. So does a card that
/// only says that it computes them.
fn lying_card(node: &TestNamespace) {
    let first_packet = 40;
    let sum = 0x0af4 + 0x0100 + 0x0af4 + 0x0200 + 6 + first_packet;
    // Headers of IP, UDP, VXLAN, Ethernet and IP: 70 bytes, and 16 more of TCP.
    let unfinished = format!("84&0xFFFF={sum:#x}");
    let rule =
        ["-A", "OUTPUT", "-p", "udp", "--dport", "8472", "-m", "u32", "--u32", &unfinished, "-j", "DROP"];
    node.run("iptables", &rule);
}

async fn run_once(the_loop: &mut ChecksumsLoop) -> Verdict {
    let Observation::Ready(seen) = the_loop.observe().await.unwrap() else { panic!("ready") };
    let trial = ChecksumsLoop::plan(&seen, Timestamp::now());
    let (_, _, verdict) = the_loop.act(&seen, trial).await;
    verdict
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
        let netlink = Arc::new(RealNetlink::open_at("mk8s", &node.path()).unwrap());
        let tunnel = tunnel(number, [192, 0, 2, number].into());
        netlink.ensure_tunnel(&tunnel).await.unwrap();
        for entry in entries(other) {
            netlink.set_tunnel_entry("mk8s.1", entry).await.unwrap();
        }
        opened.push((netlink, tunnel));
    }
    let (netlink, tunnel) = &opened[0];
    let offload = async || netlink.offload_of("mk8s.1").await.unwrap().unwrap().is_on;
    let dir = tempfile::tempdir().unwrap();
    let fresh = || ChecksumsLoop::new(deps(netlink.clone(), netlink.clone(), dir.path()));

    assert_eq!(run_once(&mut fresh()).await, Verdict::Sound);
    assert!(offload().await, "nothing is given away where it works");
    lying_card(&nodes[0]);
    assert!(!netlink.answers(at(2)).await, "the card lies");
    assert_eq!(run_once(&mut fresh()).await, Verdict::Computed("n2".into()));
    assert!(!offload().await && netlink.answers(at(2)).await);
    assert_eq!(run_once(&mut fresh()).await, Verdict::Untried, "a restarted agent leaves it so");
    // A link that is made anew is tried anew.
    netlink.remove_tunnel("mk8s.1").await.unwrap();
    netlink.ensure_tunnel(tunnel).await.unwrap();
    for entry in entries(2) {
        netlink.set_tunnel_entry("mk8s.1", entry).await.unwrap();
    }
    assert!(offload().await);
    assert_eq!(run_once(&mut fresh()).await, Verdict::Computed("n2".into()));
}
