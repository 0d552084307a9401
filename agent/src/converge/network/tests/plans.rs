//! Decisions other than the rules' text: links, UDP, spellings; and the loop on fakes.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;

use Protocol::{Tcp, Udp};
use jiff::Timestamp;
use schema::control::{Loop as _, Next, Observation, Plan as _};
use schema::kinds::pod::{HostPortStatus, Protocol};
use schema::meta::NamespacedName;
use schema::records::Subnet;
use tokio::sync::watch;

use super::super::plan::plan;
use super::super::{NetworkLoop, NetworkSettings};
use super::*;
use crate::converge::shared::node_network::{PodNet, PodTable};
use crate::packet_rules::jumps::RuleReason;
use crate::packet_rules::testing::{BARE, after_restore};
use crate::worlds::iptables::{FakeIptables, StaleUdp};
use crate::worlds::netlink::FakeNetlink;

#[test]
fn udp_connections_are_forgotten_only_where_the_target_changes() {
    let chain = |rules: &str| format!("*nat\n:MK8S-HOSTPORT - [0:0]\n{rules}COMMIT\n");
    let rule = |port: u16, to: &str| {
        format!("-A MK8S-HOSTPORT -p udp -m udp --dport {port} -j DNAT --to-destination {to}\n")
    };
    let saved = chain(&[rule(1, "10.244.3.1:9"), rule(2, "10.244.3.2:9"), rule(3, "10.244.3.3:9")].concat());
    let model = model(&[
        (Udp, 1, "10.244.3.1", 9, "a/same"),
        (Udp, 2, "10.244.3.22", 9, "a/moved"),
        (Udp, 4, "10.244.3.4", 9, "a/new"),
        (Tcp, 5, "10.244.3.5", 9, "a/tcp"),
    ]);
    let stale = plan(&observed(model, &saved)).stale_udp;
    let expected = [(2, Some("10.244.3.2")), (3, Some("10.244.3.3")), (4, None)];
    let expected =
        expected.map(|(port, to)| StaleUdp { port, former_target: to.map(|a| a.parse().unwrap()) });
    assert_eq!(stale.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_port_that_two_pods_claim_goes_to_the_first() {
    let model = model(&[(Tcp, 80, "10.244.3.1", 1, "a/first"), (Tcp, 80, "10.244.3.2", 2, "a/second")]);
    assert_eq!(model.host_ports[&port_of(Tcp, 80)].pod, "a/first");
    let both = super::model(&[(Tcp, 80, "10.244.3.1", 1, "a/x"), (Udp, 80, "10.244.3.2", 2, "a/y")]);
    assert_eq!(both.host_ports.len(), 2, "one number of two protocols is two ports");
    let at = |address: Option<&str>| HostPort {
        address: address.map(|address| address.parse().unwrap()),
        ..port_of(Tcp, 80)
    };
    let assigned = |ports: &[HostPort]| {
        let pod = "10.244.3.1".parse().unwrap();
        assign_host_ports(ports.iter().map(|port| (*port, pod, 80, "a/x"))).into_keys().collect::<Vec<_>>()
    };
    let (one, other) = (at(Some("192.0.2.1")), at(Some("192.0.2.2")));
    assert_eq!(assigned(&[one, other]), [one, other]);
    assert_eq!(assigned(&[one, at(None)]), [one], "the second would take a part of the first");
    assert_eq!(assigned(&[at(None), other]), [at(None)]);
}

#[test]
fn every_change_says_why() {
    let saved = "*filter\n:MK8S-FORWARD - [0:0]\n-A MK8S-FORWARD -j DROP\nCOMMIT\n";
    let plan = plan(&observed(model(&[]), saved));
    let sentences: Vec<String> = plan.rules.iter().map(|(change, why)| format!("{change} {why}")).collect();
    assert!(sentences.contains(&"filter/MK8S-FORWARD differed".to_owned()), "{sentences:?}");
    assert!(sentences.contains(&"filter/FORWARD -j MK8S-FORWARD was missing".to_owned()), "{sentences:?}");
    assert!(plan.rules.iter().any(|(_, why)| *why == RuleReason::Missing));
}

struct Rig {
    netlink: Arc<FakeNetlink>,
    iptables: Arc<FakeIptables>,
    subnets: watch::Sender<Option<Subnet>>,
    tables: watch::Sender<PodTable>,
    network: NetworkLoop,
}

fn rig() -> Rig {
    let (netlink, iptables) = (Arc::new(FakeNetlink::default()), Arc::new(FakeIptables::default()));
    let (subnets, subnet) = watch::channel(None);
    let (tables, table) = watch::channel::<PodTable>(None);
    let settings = NetworkSettings { tunnel_without_peers: true, ..NetworkSettings::new("mk8s", 1450) };
    let network = network_loop(settings, netlink.clone(), iptables.clone(), subnet, table);
    Rig { netlink, iptables, subnets, tables, network }
}

fn subnet() -> Option<Subnet> {
    let (cidr, cluster_cidr) = ("10.244.3.0/24".parse().unwrap(), "10.244.0.0/16".parse().unwrap());
    Some(Subnet::new(cidr, cluster_cidr))
}

fn pod(uid: &str, port: u16) -> (String, PodNet) {
    let ports = vec![HostPortStatus { host_port: port, container_port: 80, ..HostPortStatus::default() }];
    let address = "10.244.3.5".parse().unwrap();
    (
        uid.to_owned(),
        PodNet {
            pod: NamespacedName::new("default", "web"),
            uid: uid.to_owned(),
            address,
            is_function: false,
            ports,
        },
    )
}

async fn run(rig: &mut Rig) -> Result<bool, String> {
    let observed = match rig.network.observe().await.map_err(|e| e.to_string())? {
        Observation::Ready(observed) => observed,
        Observation::NotReady(why) => return Err(why),
    };
    let plan = NetworkLoop::plan(&observed, Timestamp::now());
    let acts = !plan.is_empty();
    let outcome = rig.network.act(&observed, plan).await;
    rig.network.report(observed, outcome).await.map_err(|e| e.to_string())?;
    Ok(acts)
}

#[tokio::test]
async fn nothing_is_planned_before_range_and_pods_are_known() {
    let mut rig = rig();
    assert!(run(&mut rig).await.unwrap_err().contains("range"));
    rig.subnets.send_replace(subnet());
    assert!(run(&mut rig).await.unwrap_err().contains("listed"));
    assert!(rig.netlink.kernel().acts.is_empty() && rig.iptables.rules().restored.is_empty());
    rig.tables.send_replace(Some(Arc::new(BTreeMap::new())));
    assert_eq!(run(&mut rig).await, Ok(true));
    assert_eq!(rig.netlink.kernel().acts, ["ensure_bridge mk8s0", "ensure_tunnel mk8s.1"]);
}

/// Output of `iptables-save` after this input was restored to a kernel without rules.
fn as_saved(written: &str) -> String {
    let printed = written.replace("*filter\n", "*filter\n:FORWARD DROP [0:0]\n:INPUT ACCEPT [0:0]\n");
    let bases = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n";
    let mut printed = printed.replace("*nat\n", bases);
    for base in ["FORWARD", "INPUT", "PREROUTING", "OUTPUT", "POSTROUTING"] {
        printed = printed.replace(&format!("-I {base} 1"), &format!("-A {base}"));
    }
    printed
}

/// A rig whose kernel keeps restored rules, with one pod's port whose rules are in place.
async fn programmed_rig(generation: Option<u32>, apply: fn(&str, &str) -> String) -> Rig {
    let mut rig = rig();
    {
        let mut rules = rig.iptables.rules();
        (rules.generation, rules.saved, rules.apply) = (generation, BARE.to_owned(), Some(apply));
    }
    rig.subnets.send_replace(subnet());
    rig.tables.send_replace(Some(Arc::new(BTreeMap::from([pod("u1", 8080)]))));
    assert_eq!(run(&mut rig).await, Ok(true));
    rig
}

/// Restores as an iptables that prints the same rules without `-m tcp` and in the spelling of a port range.
fn respelled(there: &str, input: &str) -> String {
    after_restore(there, input).replace("-m tcp --dport 8080", "--dport 8080:8080")
}

// Seen red with a `learn` that learns nothing.
#[tokio::test(start_paused = true)]
async fn what_is_printed_in_another_spelling_is_written_once_more() {
    for generation in [Some(1), None] {
        let mut rig = programmed_rig(generation, respelled).await;
        assert_eq!(run(&mut rig).await, Ok(true), "it may be somebody's change");
        for _ in 0..3 {
            assert_eq!(run(&mut rig).await, Ok(false), "{:?}", rig.iptables.rules().restored);
            tokio::time::advance(Duration::from_secs(61)).await;
        }
        rig.tables.send_replace(Some(Arc::new(BTreeMap::from([pod("u1", 9090)]))));
        assert_eq!(run(&mut rig).await, Ok(true), "another port is another rule");
    }
}

// Seen red with the state before the write taken for a spelling (another target), and with empty chains taken for one
// (both flushes).
#[tokio::test(start_paused = true)]
async fn what_others_do_after_each_write_is_healed_each_time() {
    let without = |saved: &str, rules: &str| -> String {
        saved.lines().filter(|line| !line.starts_with(rules)).map(|line| format!("{line}\n")).collect()
    };
    for generation in [Some(1), None] {
        let mut rig = programmed_rig(generation, after_restore).await;
        let whole = rig.iptables.rules().saved.clone();
        for time in 1..=8 {
            for (what, changed) in [
                ("a flush of a chain", without(&whole, "-A MK8S-HOSTPORT ")),
                ("a flush of all", without(&whole, "-A ")),
                ("another target", whole.replace("10.244.3.5:80", "10.244.3.66:80")),
                ("another target once more", whole.replace("10.244.3.5:80", "10.244.3.66:80")),
            ] {
                assert_ne!(changed, whole, "{what} changes nothing");
                {
                    let mut rules = rig.iptables.rules();
                    rules.saved = changed;
                    rules.generation = rules.generation.map(|count| count + 1);
                }
                assert_eq!(run(&mut rig).await, Ok(true), "{what}, time {time}, {generation:?}");
                assert_eq!(rig.iptables.rules().saved, whole, "{what}, time {time}, {generation:?}");
                tokio::time::advance(Duration::from_secs(3)).await;
            }
        }
        assert!(rig.network.spellings.known().is_empty());
        assert_eq!(run(&mut rig).await, Ok(false));
    }
}

#[tokio::test]
async fn a_failed_step_hinders_no_other_and_is_reported() {
    let mut rig = rig();
    rig.subnets.send_replace(subnet());
    rig.tables.send_replace(Some(Arc::new(BTreeMap::new())));
    let Observation::Ready(observed) = rig.network.observe().await.unwrap() else { panic!("ready") };
    let plan = NetworkLoop::plan(&observed, Timestamp::now());
    rig.iptables.rules().refuse = Some("no room".into());
    let outcome = rig.network.act(&observed, plan).await;
    let error = rig.network.report(observed, outcome).await.unwrap_err().to_string();
    assert!(error.contains("no room") && error.contains("filter/MK8S-FORWARD was missing"), "{error}");
    assert_eq!(rig.netlink.kernel().acts, ["ensure_bridge mk8s0", "ensure_tunnel mk8s.1"]);
}

/// A replica of a function at this address.
fn function(last: u8) -> (String, PodNet) {
    let uid = format!("function-{last}");
    let address = [10, 244, 3, last].into();
    let pod = NamespacedName::new("default", &uid);
    (uid.clone(), PodNet { pod, uid, address, is_function: true, ports: Vec::new() })
}

fn sandboxed(rig: &Rig) -> Vec<u8> {
    rig.network.deps.sandboxed.borrow().iter().map(|address| address.octets()[3]).collect()
}

#[tokio::test]
async fn a_functions_pod_is_named_once_its_rules_stand_whatever_else_fails() {
    let mut rig = rig();
    rig.subnets.send_replace(subnet());
    rig.tables.send_replace(Some(Arc::new([function(7)].into())));
    run_refused(&mut rig).await;
    assert!(sandboxed(&rig).is_empty());
    rig.iptables.rules().refuse = None;
    rig.netlink.kernel().refuse_tunnels = Some("no vxlan here".into());
    for _ in 0..2 {
        assert_eq!(run(&mut rig).await, Ok(true));
        assert_eq!(sandboxed(&rig), [7], "the tunnel is none of its concern");
    }
    // The rules of a removed replica may go at any moment, so its address no longer counts.
    rig.tables.send_replace(Some(Arc::new([function(8)].into())));
    run_refused(&mut rig).await;
    assert!(sandboxed(&rig).is_empty());
}

#[tokio::test]
async fn a_build_is_let_in_once_its_rules_stand_and_for_that_index_alone() {
    let mut rig = rig();
    let (requests, confinement) = node_network::channel();
    rig.network.deps.builds = confinement;
    rig.subnets.send_replace(subnet());
    rig.tables.send_replace(Some(Arc::default()));
    let stands = || requests.in_place.borrow().clone();
    assert_eq!(run(&mut rig).await, Ok(true));
    assert_eq!(stands(), None, "none was asked for");
    let index = |port: u16| Some(Arc::new(BTreeSet::from([SocketAddrV4::new([10, 96, 0, 7].into(), port)])));
    requests.wanted.send_replace(index(1));
    run_refused(&mut rig).await;
    assert_eq!(stands(), None);
    rig.iptables.rules().refuse = None;
    assert_eq!(run(&mut rig).await, Ok(true));
    assert_eq!(stands(), index(1));
    requests.wanted.send_replace(index(2));
    run_refused(&mut rig).await;
    assert_eq!(stands(), None, "its rules may be those of the other index, or none");
}

/// Runs the loop while iptables rejects every rule.
async fn run_refused(rig: &mut Rig) {
    let Observation::Ready(observed) = rig.network.observe().await.unwrap() else { panic!("ready") };
    let plan = NetworkLoop::plan(&observed, Timestamp::now());
    assert!(!plan.rules.is_empty());
    rig.iptables.rules().refuse = Some("no room".into());
    let outcome = rig.network.act(&observed, plan).await;
    assert!(outcome.failed.iter().any(|failed| failed.contains("no room")), "{outcome:?}");
    let _ = rig.network.report(observed, outcome).await;
}

// Seen red without `tunnel_failure` in `plan`.
#[tokio::test]
async fn a_tunnel_that_cannot_be_looked_at_is_reported_once_and_hinders_no_rule() {
    let mut rig = rig();
    rig.subnets.send_replace(subnet());
    rig.tables.send_replace(Some(Arc::new(BTreeMap::new())));
    rig.netlink.kernel().refuse_tunnels = Some("no vxlan here".into());
    let mut reported = Vec::new();
    for _ in 0..3 {
        let Observation::Ready(observed) = rig.network.observe().await.unwrap() else { panic!("ready") };
        let plan = NetworkLoop::plan(&observed, Timestamp::now());
        reported.push(rig.network.act(&observed, plan).await.tolerated);
    }
    assert!(reported[0].len() == 1 && reported[0][0].contains("no vxlan here"), "{reported:?}");
    assert!(reported[1].is_empty() && reported[2].is_empty(), "{reported:?}");
    assert_eq!(rig.netlink.kernel().acts, ["ensure_bridge mk8s0"]);
    assert!(!rig.iptables.rules().restored.is_empty());
    rig.netlink.kernel().refuse_tunnels = None;
    assert_eq!(run(&mut rig).await, Ok(true));
    assert_eq!(rig.netlink.kernel().acts[1..], ["ensure_tunnel mk8s.1"]);
}

// Seen red with the failure of nft among `failed`, and without `frames_failure`.
#[tokio::test]
async fn without_nft_all_else_is_set_up_and_the_lack_is_reported_once() {
    let mut rig = rig();
    rig.subnets.send_replace(subnet());
    rig.tables.send_replace(Some(Arc::new(BTreeMap::new())));
    rig.iptables.rules().has_no_nft = true;
    let mut reported = Vec::new();
    for _ in 0..2 {
        let Observation::Ready(observed) = rig.network.observe().await.unwrap() else { panic!("ready") };
        let plan = NetworkLoop::plan(&observed, Timestamp::now());
        let outcome = rig.network.act(&observed, plan).await;
        assert!(outcome.failed.is_empty(), "{outcome:?}");
        reported.push(outcome.tolerated);
    }
    let why =
        "pods can send under the addresses of others: nft is not installed; install the package `nftables`";
    assert_eq!(reported, [vec![why.to_owned()], vec![]]);
    assert_eq!(rig.netlink.kernel().acts, ["ensure_bridge mk8s0", "ensure_tunnel mk8s.1"]);
    rig.iptables.rules().has_no_nft = false;
    assert_eq!(run(&mut rig).await, Ok(true));
    assert!(rig.iptables.rules().frames.is_some());
    rig.subnets.send_replace(Some(Subnet { cidr: "10.244.4.0/24".parse().unwrap(), ..subnet().unwrap() }));
    assert_eq!(run(&mut rig).await, Ok(true));
    assert!(rig.iptables.rules().frames.as_ref().unwrap().contains("10.244.4.2"), "the range of today");
}

// Seen red with `is_due` always true.
#[tokio::test(start_paused = true)]
async fn all_rules_are_read_again_only_when_somebody_changed_some_or_after_a_while() {
    let mut rig = rig();
    rig.subnets.send_replace(subnet());
    rig.tables.send_replace(Some(Arc::new(BTreeMap::new())));
    rig.iptables.rules().generation = Some(1);
    run(&mut rig).await.unwrap();
    run(&mut rig).await.unwrap();
    assert_eq!(rig.iptables.rules().saves, 2, "once more after what was written");
    // The fake keeps no rules, so the written ones are missing until the test adds them.
    let printed = as_saved(&rig.iptables.rules().restored[0]);
    rig.iptables.rules().saved.clone_from(&printed);
    for _ in 0..5 {
        assert_eq!(run(&mut rig).await, Ok(false));
        assert_eq!(rig.iptables.rules().saves, 3);
    }
    rig.iptables.rules().generation = Some(99);
    rig.iptables.rules().saved.clear();
    assert_eq!(run(&mut rig).await, Ok(true), "somebody flushed all");
    assert_eq!(rig.iptables.rules().saves, 4);
    rig.iptables.rules().saved = printed;
    for _ in 0..5 {
        assert_eq!(run(&mut rig).await, Ok(false));
        assert_eq!(rig.iptables.rules().saves, 5);
    }
    tokio::time::advance(Duration::from_secs(61)).await;
    run(&mut rig).await.unwrap();
    assert_eq!(rig.iptables.rules().saves, 6, "should the count be wrong");
}

// Seen red without `READ_SHARE`, and without `read_again` in `report`.
#[tokio::test(start_paused = true)]
async fn changes_without_end_are_read_at_a_bounded_share_and_none_waits_for_a_full_look() {
    let mut rig = programmed_rig(Some(1), after_restore).await;
    rig.iptables.rules().save_takes = Duration::from_millis(1_000);
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(run(&mut rig).await, Ok(false));
    let whole = rig.iptables.rules().saved.clone();
    rig.iptables.rules().saved = BARE.to_owned();
    rig.iptables.rules().generation = Some(99);
    let saves = rig.iptables.rules().saves;
    tokio::time::advance(Duration::from_millis(500)).await;
    let Observation::Ready(observed) = rig.network.observe().await.unwrap() else { panic!("ready") };
    let plan = NetworkLoop::plan(&observed, Timestamp::now());
    assert!(plan.is_empty() && rig.iptables.rules().saves == saves, "too soon to read again");
    let outcome = rig.network.act(&observed, plan).await;
    let next = rig.network.report(observed, outcome).await.unwrap();
    assert_eq!(next, Next::After(Duration::from_millis(1_500)));
    tokio::time::advance(Duration::from_millis(1_500)).await;
    assert_eq!(run(&mut rig).await, Ok(true));
    assert_eq!(rig.iptables.rules().saved, whole);
    assert_eq!(run(&mut rig).await, Ok(false), "what it wrote it reads at once");
}
