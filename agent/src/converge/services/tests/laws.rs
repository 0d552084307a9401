//! Laws for the rules of arbitrary services: no jump leads nowhere, no chain is forgotten, no other program's rule is
//! touched, and the written rules are the wanted ones.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::plan::stale_flows;
use super::super::render::{UdpFront, UdpServing};
use super::*;
use crate::packet_rules::chain::ChainRef;
use crate::packet_rules::jumps::removal;
use crate::packet_rules::saved::{flag_value, saved_rules};
use crate::worlds::iptables::UdpFlow;

/// Removes duplicates of a port and protocol, which no service has.
fn distinct(ports: Vec<(bool, u16, Option<u16>)>) -> impl Iterator<Item = ((bool, u16), Option<u16>)> {
    let ports = ports.into_iter().map(|(tcp, number, node)| ((tcp, number), node));
    ports.collect::<BTreeMap<_, _>>().into_iter()
}

fn any_service() -> impl Strategy<Value = ServiceRecord> {
    let ports = vec((any::<bool>(), 1_u16..4, option::of(30_000_u16..30_004)), 1..4);
    let endpoints = vec((3_u8..5, 1_u8..6, vec(0_u16..3, 3)), 0..5);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), option::of(1_u32..20));
    let cluster_ip = option::weighted(0.9, 1_u8..9);
    (ports, endpoints, flags, cluster_ip).prop_map(|(ports, endpoints, flags, cluster_ip)| {
        let (internal_local, external_local, external_ip, affinity_seconds) = flags;
        let protocol = |tcp| if tcp { Protocol::Tcp } else { Protocol::Udp };
        let endpoints = endpoints.into_iter().map(|(node, host, ports)| Endpoint {
            address: Ipv4Addr::new(10, 244, node, host),
            ports,
            ..endpoint(if node == 3 { "10.244.3.1:1" } else { "10.244.4.1:1" })
        });
        ServiceRecord {
            cluster_ip: cluster_ip.map(|host| Ipv4Addr::new(10, 96, 0, host)),
            external_ips: external_ip.then(|| Ipv4Addr::new(198, 51, 100, 1)).into_iter().collect(),
            ports: distinct(ports).map(|((tcp, number), node)| port(protocol(tcp), number, node)).collect(),
            endpoints: endpoints.collect(),
            affinity_seconds,
            internal_local,
            external_local,
            ..ServiceRecord::default()
        }
    })
}

pub(super) fn any_cluster() -> impl Strategy<Value = DesiredRules> {
    vec(any_service(), 0..5).prop_map(|records| {
        let names: Vec<String> = (0..records.len()).map(|at| format!("s{at}")).collect();
        let pairs: Vec<(&str, &ServiceRecord)> = names.iter().map(String::as_str).zip(&records).collect();
        wanted(&pairs)
    })
}

/// Rules of others: Docker, a kube-proxy, another instance, an administrator.
pub(super) const OTHERS: &str = "\
*filter
:INPUT - [0:0]
:FORWARD - [0:0]
:OUTPUT - [0:0]
:DOCKER-USER - [0:0]
:MK8SB-SERVICES - [0:0]
-A INPUT -j MK8SB-SERVICES
-A FORWARD -j DOCKER-USER
-A DOCKER-USER -j RETURN
COMMIT
*nat
:PREROUTING - [0:0]
:OUTPUT - [0:0]
:POSTROUTING - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:MK8SB-SVC-AAAAAAAAAAAAAAAA - [0:0]
:MK8S-HOSTPORT - [0:0]
-A PREROUTING -j MK8S-HOSTPORT
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j RETURN
-A MK8SB-SVC-AAAAAAAAAAAAAAAA -j RETURN
COMMIT
";

fn of_others(text: &str) -> BTreeSet<String> {
    let names = place().names;
    let saved = saved_rules(text, |chain| !names.is_ours(chain));
    let mut rules = BTreeSet::new();
    for (chain, there) in saved {
        rules.insert(chain.to_string());
        for rule in there {
            let to = flag_value(&rule, "-j").map(|to| ChainRef::new(chain.table, to));
            if !to.is_some_and(|to| names.is_ours(&to)) {
                rules.insert(format!("{chain} {}", rule.join(" ")));
            }
        }
    }
    rules
}

fn check_whole(text: &str) {
    let names = place().names;
    let ours = saved_rules(text, |chain| names.is_ours(chain));
    let mut reached: BTreeSet<ChainRef> = BTreeSet::new();
    let targets = ["ACCEPT", "DROP", "REJECT", "RETURN", "MARK", "MASQUERADE", "DNAT"];
    for (chain, rules) in saved_rules(text, |_| true) {
        for rule in &rules {
            let target = flag_value(rule, "-j").unwrap_or_else(|| panic!("{chain} {rule:?} does nothing"));
            let to = ChainRef::new(chain.table, target);
            let known = targets.contains(&target) || text.contains(&format!(":{target} "));
            assert!(known, "{chain} {rule:?} leads nowhere");
            reached.insert(to);
        }
        if names.is_ours(&chain) {
            assert!(chain.chain.len() <= 28, "{chain}");
            let dnats = rules.iter().filter(|rule| flag_value(rule, "-j") == Some("DNAT")).count();
            assert_eq!(dnats, usize::from(chain.chain.contains("-SEP-")), "{chain} {rules:?}");
        }
    }
    // Only packets to a service are marked.
    for chain in ours.keys().filter(|chain| **chain != names.mark) {
        assert!(reached.contains(chain), "no rule leads to {chain} in\n{text}");
    }
}

proptest! {
    // Seen red without `plan_removals`, with the chain of local endpoints always made, and with
    // `all_used` always true.
    #[test]
    fn rules_are_whole_and_nobody_elses_change(first in any_cluster(), second in any_cluster()) {
        let mut there = OTHERS.to_owned();
        for wanted in [first, second] {
            let observed = observed(wanted, &there);
            there = after_restore(&there, &input(&observed));
            check_whole(&there);
            prop_assert_eq!(of_others(&there), of_others(OTHERS));
            let again = seen(DesiredRules::clone(&observed.wanted), present(&there, &place().names));
            prop_assert_eq!(input(&again), "");
        }
        let saved = saved_rules(&there, |_| true);
        let names = place().names;
        let ours = saved.keys().filter(|chain| names.is_ours(chain)).cloned().collect();
        let cleaned = after_restore(&there, &restore_input(&removal(&ours, &saved)));
        prop_assert_eq!(cleaned, after_restore(OTHERS, ""));
    }
}

#[test]
fn an_endpoint_is_chosen_as_often_as_any_other() {
    for count in [1_u16, 2, 5, 20, 100, 1000] {
        let addresses: Vec<String> =
            (0..count).map(|n| format!("10.244.{}.{}:80", 4 + n / 250, 1 + n % 250)).collect();
        let texts: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let rules = service_rules(&place(), &id("web"), &service(&texts));
        let chain = rules.chains.iter().find(|(chain, _)| chain.chain.contains("-SVC-")).unwrap().1;
        let (mut left, mut chosen) = (1.0_f64, Vec::new());
        for rule in &chain.rules[1..] {
            let probability = rule.split(' ').skip_while(|word| *word != "--probability").nth(1);
            let probability: f64 = probability.map_or(1.0, |text| text.parse().unwrap());
            chosen.push(left * probability);
            left *= 1.0 - probability;
        }
        assert_eq!(chosen.len(), usize::from(count));
        let fair = 1.0 / f64::from(count);
        assert!(chosen.iter().all(|share| (share / fair - 1.0).abs() < 1e-5), "{count}: {chosen:?}");
    }
}

#[test]
fn only_udp_clients_that_lead_where_nobody_serves_start_anew() {
    let at = |text: &str| text.parse::<SocketAddrV4>().unwrap();
    let flow = |to: &str, from: &str| UdpFlow { to: at(to), from: at(from) };
    let serving = UdpServing::from([
        (UdpFront::Address(at("10.96.0.5:53")), BTreeSet::from([at("10.244.3.5:5353")])),
        (UdpFront::NodePort(30_053), BTreeSet::from([at("10.244.3.5:5353")])),
        (UdpFront::NodePort(30_054), BTreeSet::new()),
        (UdpFront::Address(at("10.96.0.6:53")), BTreeSet::new()),
    ]);
    let stale = [
        flow("10.96.0.5:53", "10.244.3.9:5353"),
        flow("10.96.0.5:53", "10.244.3.5:5354"),
        flow("10.96.0.5:53", "10.96.0.5:53"),
        flow("192.0.2.1:30053", "192.0.2.1:30053"),
        flow("192.0.2.1:30054", "10.244.3.5:5353"),
        flow("10.96.0.6:53", "10.244.3.5:5353"),
    ];
    let good = [
        flow("10.96.0.5:53", "10.244.3.5:5353"),
        flow("192.0.2.1:30053", "10.244.3.5:5353"),
        flow("203.0.113.9:30054", "203.0.113.9:30054"),
        flow("203.0.113.9:30053", "203.0.113.9:30053"),
        flow("10.96.0.7:53", "10.244.3.9:5353"),
    ];
    let found = stale_flows(&stale.into_iter().chain(good).collect(), &serving, Some([192, 0, 2, 1].into()));
    assert_eq!(BTreeSet::from_iter(found), BTreeSet::from(stale));
}

// Seen red with the node's address left out of the settled state.
#[test]
fn udp_is_looked_at_after_a_start_and_a_change_and_what_is_gone_is_served_by_nobody() {
    let mut udp = service(&["10.244.3.5:53"]);
    udp.ports = vec![port(Protocol::Udp, 53, None)];
    let settled = seen(wanted(&[("dns", &udp)]), ExistingRules::default());
    assert_eq!(plan(&settled).udp, None);
    let started = Observed { udp_settled: None, ..settled.clone() };
    assert_eq!(plan(&started).udp.as_ref(), Some(&*settled.wanted.udp));
    // A flow that passed through to the address was a stranger's; now it predates the service.
    let moved = Observed { node: Some([192, 0, 2, 2].into()), ..settled.clone() };
    assert_eq!(plan(&moved).udp.as_ref(), Some(&*settled.wanted.udp), "the node has another address");
    let looked = Observed { udp_settled: Some(moved.udp()), ..moved };
    assert_eq!(plan(&looked).udp, None, "and it has been looked at");
    let removed = Observed { wanted: Arc::new(wanted(&[])), ..settled.clone() };
    let front = UdpFront::Address("10.96.0.5:53".parse().unwrap());
    assert_eq!(plan(&removed).udp, Some(UdpServing::from([(front, BTreeSet::new())])));
    let other_tcp = service(&["10.244.3.9:80"]);
    let tcp = Observed { wanted: Arc::new(wanted(&[("dns", &udp), ("web", &other_tcp)])), ..settled };
    assert_eq!(plan(&tcp).udp, None, "TCP is left alone");
}
