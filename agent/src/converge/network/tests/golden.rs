//! Rule sets as text, small enough to read.

use Protocol::{Tcp, Udp};

use super::super::plan::plan;
use super::super::render::{BuildRules, frame_rules, rules};
use super::*;
use crate::packet_rules::jumps::removal;
use crate::packet_rules::restore::restore_input;

fn input(observed: &Observed) -> String {
    let plan = plan(observed);
    let changes: Vec<_> = plan.rules.into_iter().map(|(change, _)| change).collect();
    restore_input(&changes)
}

// Would fail without the condition on the source: a neighbor could reach a port of the loopback.
#[test]
fn a_host_port_at_one_address_answers_only_there() {
    let mut model = model(&[(Udp, 53, "10.244.3.6", 53, "a/all")]);
    let target = model.host_ports.values().next().unwrap().clone();
    for address in ["192.0.2.1", "127.0.0.1"] {
        let port = HostPort { address: Some(address.parse().unwrap()), ..port_of(Tcp, 80) };
        model.host_ports.insert(port, target.clone());
    }
    let hostport = &rules(&model)[&model.names.hostport];
    let to = "-m comment --comment \"a/all\" -j DNAT --to-destination 10.244.3.6:53";
    let wanted = [
        format!("-d 127.0.0.1/32 -p tcp -m tcp --dport 80 -m addrtype --src-type LOCAL {to}"),
        format!("-d 192.0.2.1/32 -p tcp -m tcp --dport 80 {to}"),
        format!("-p udp -m udp --dport 53 {to}"),
    ];
    assert_eq!(*hostport, wanted);
}

#[test]
fn a_fresh_node_with_docker_and_three_host_ports() {
    let model = model(&[
        (Tcp, 8080, "10.244.3.5", 80, "default/web"),
        (Udp, 53, "10.244.3.6", 5353, "kube-system/dns"),
        (Tcp, 443, "10.244.3.5", 8443, "default/web"),
    ]);
    let golden = "\
*filter
:MK8S-FORWARD - [0:0]
:MK8S-INPUT - [0:0]
-A MK8S-FORWARD -i mk8s0 -j ACCEPT
-A MK8S-FORWARD -o mk8s0 -j ACCEPT
-A MK8S-INPUT -d 127.0.0.0/8 -i mk8s0 -m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP
-A MK8S-INPUT -d 10.96.0.10/32 -i mk8s0 -p udp -m udp --dport 53 -j ACCEPT
-A MK8S-INPUT -d 10.96.0.10/32 -i lo -p udp -m udp --dport 53 -j ACCEPT
-A MK8S-INPUT -d 10.96.0.10/32 -i mk8s0 -p tcp -m tcp --dport 53 -j ACCEPT
-A MK8S-INPUT -d 10.96.0.10/32 -i lo -p tcp -m tcp --dport 53 -j ACCEPT
-A MK8S-INPUT -d 10.96.0.11/32 -i mk8s0 -p tcp -m tcp --dport 80 -j ACCEPT
-A MK8S-INPUT -s 10.244.0.0/16 -d 10.96.0.11/32 ! -i lo -p tcp -m tcp --dport 80 -j DROP
-A MK8S-INPUT -s 10.244.0.0/16 -i mk8s0 -p tcp -m tcp --dport 8081 -j ACCEPT
-A MK8S-INPUT -s 10.244.0.0/16 -i mk8s.1 -p tcp -m tcp --dport 8081 -j ACCEPT
-A MK8S-INPUT -s 10.244.0.0/16 ! -i lo -p tcp -m tcp --dport 8081 -j DROP
-A MK8S-INPUT -d 10.96.0.10/32 -p udp -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable
-A MK8S-INPUT -d 10.96.0.10/32 -p tcp -m tcp --dport 53 -j REJECT --reject-with tcp-reset
-I FORWARD 1 -j MK8S-FORWARD
-I INPUT 1 -j MK8S-INPUT
COMMIT
*nat
:MK8S-HOSTPORT - [0:0]
:MK8S-POSTROUTING - [0:0]
-A MK8S-HOSTPORT -p tcp -m tcp --dport 443 -m comment --comment \"default/web\" -j DNAT --to-destination 10.244.3.5:8443
-A MK8S-HOSTPORT -p tcp -m tcp --dport 8080 -m comment --comment \"default/web\" -j DNAT --to-destination 10.244.3.5:80
-A MK8S-HOSTPORT -p udp -m udp --dport 53 -m comment --comment \"kube-system/dns\" -j DNAT --to-destination 10.244.3.6:5353
-A MK8S-POSTROUTING -s 10.244.3.0/24 ! -d 10.244.0.0/16 ! -o mk8s0 -j MASQUERADE --random-fully
-A MK8S-POSTROUTING -s 127.0.0.0/8 -o mk8s0 -j MASQUERADE --random-fully
-A MK8S-POSTROUTING -s 10.244.3.0/24 -o mk8s0 -m conntrack --ctstate DNAT -j MASQUERADE --random-fully
-I PREROUTING 1 -m addrtype --dst-type LOCAL -j MK8S-HOSTPORT
-I OUTPUT 1 -m addrtype --dst-type LOCAL -j MK8S-HOSTPORT
-I POSTROUTING 1 -j MK8S-POSTROUTING
COMMIT
";
    assert_eq!(input(&observed(model, DOCKERS_RULES)), golden);
}

// Seen red with rules of the sandbox after those that accept.
#[test]
fn functions_do_not_reach_what_governs_the_cluster() {
    let functions = BTreeSet::from(["10.244.3.9".parse().unwrap()]);
    let guarded = ["192.0.2.1:2379", "192.0.2.1:7071", "192.0.2.2:7071"];
    let guarded = guarded.map(|at| at.parse().unwrap()).into();
    let rules = rules(&Model { functions, guarded, ..model(&[]) });
    let names = Names::for_instance("mk8s");
    assert_eq!(
        rules[&names.sandbox],
        [
            "-d 169.254.169.254/32 -j DROP",
            "-d 192.0.2.1/32 -p tcp -m tcp --dport 2379 -j DROP",
            "-d 192.0.2.1/32 -p tcp -m tcp --dport 7071 -j DROP",
            "-d 192.0.2.2/32 -p tcp -m tcp --dport 7071 -j DROP",
            "-p tcp -m tcp --dport 2379 -m addrtype --dst-type LOCAL -j DROP",
            "-p tcp -m tcp --dport 7071 -m addrtype --dst-type LOCAL -j DROP",
        ]
    );
    let jump = "-s 10.244.3.9/32 -i mk8s0 -j MK8S-SANDBOX";
    assert_eq!(
        rules[&names.forward],
        [
            jump,
            "-i mk8s0 -j ACCEPT",
            "-d 10.244.3.9/32 ! -i mk8s.1 -o mk8s0 -p tcp -m tcp --dport 8080 -j DROP",
            "-o mk8s0 -j ACCEPT",
        ]
    );
    assert_eq!(rules[&names.input][1], jump, "before any leave, and after the node's loopback");
}

#[test]
fn builds_reach_the_world_the_index_and_dns_and_nothing_else_of_the_cluster_or_the_node() {
    let set = |all: &[&str]| all.iter().map(|at| at.parse().unwrap()).collect();
    let builds = BuildRules {
        services: "10.96.0.0/16".parse().unwrap(),
        nodes: ["192.0.2.2".parse().unwrap()].into(),
        index: set(&["10.96.0.7:3141"]),
    };
    let guarded = set(&["192.0.2.1:2379", "192.0.2.2:7071"]);
    let before = observed(model(&[]), DOCKERS_RULES);
    assert!(!input(&before).contains("mangle"), "a node that builds nothing needs no such table");
    let model = Model { guarded, builds: Some(builds), ..model(&[]) };
    let wanted = "*mangle\n:MK8S-BUILDS - [0:0]\n\
        -A MK8S-BUILDS -d 169.254.169.254/32 -j DROP\n\
        -A MK8S-BUILDS -d 192.0.2.1/32 -p tcp -m tcp --dport 2379 -j DROP\n\
        -A MK8S-BUILDS -d 192.0.2.2/32 -p tcp -m tcp --dport 7071 -j DROP\n\
        -A MK8S-BUILDS -p udp -m udp --dport 53 -m addrtype --dst-type LOCAL -j RETURN\n\
        -A MK8S-BUILDS -p tcp -m tcp --dport 53 -m addrtype --dst-type LOCAL -j RETURN\n\
        -A MK8S-BUILDS -d 10.96.0.7/32 -p tcp -m tcp --dport 3141 -j RETURN\n\
        -A MK8S-BUILDS -d 192.0.2.2/32 -j DROP\n\
        -A MK8S-BUILDS -d 10.244.0.0/16 -j DROP\n\
        -A MK8S-BUILDS -d 10.96.0.0/16 -j DROP\n\
        -A MK8S-BUILDS -m addrtype --dst-type LOCAL -j DROP\n\
        -I PREROUTING 1 -i mk8s-b0 -j MK8S-BUILDS\nCOMMIT\n";
    let written = input(&observed(model, DOCKERS_RULES));
    assert!(written.contains(wanted), "{written}");
}

/// State of a node with the rules above and one host port.
const ADOPTED: &str = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:MK8S-FORWARD - [0:0]
:MK8S-INPUT - [0:0]
-A INPUT -j MK8S-INPUT
-A FORWARD -j DOCKER-USER
-A FORWARD -j MK8S-FORWARD
-A MK8S-FORWARD -i mk8s0 -j ACCEPT
-A MK8S-FORWARD -o mk8s0 -j ACCEPT
-A MK8S-INPUT -d 127.0.0.0/8 -i mk8s0 -m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP
-A MK8S-INPUT -d 10.96.0.10/32 -i mk8s0 -p udp -m udp --dport 53 -j ACCEPT
-A MK8S-INPUT -d 10.96.0.10/32 -i lo -p udp -m udp --dport 53 -j ACCEPT
-A MK8S-INPUT -d 10.96.0.10/32 -i mk8s0 -p tcp -m tcp --dport 53 -j ACCEPT
-A MK8S-INPUT -d 10.96.0.10/32 -i lo -p tcp -m tcp --dport 53 -j ACCEPT
-A MK8S-INPUT -d 10.96.0.11/32 -i mk8s0 -p tcp -m tcp --dport 80 -j ACCEPT
-A MK8S-INPUT -s 10.244.0.0/16 -d 10.96.0.11/32 ! -i lo -p tcp -m tcp --dport 80 -j DROP
-A MK8S-INPUT -s 10.244.0.0/16 -i mk8s0 -p tcp -m tcp --dport 8081 -j ACCEPT
-A MK8S-INPUT -s 10.244.0.0/16 -i mk8s.1 -p tcp -m tcp --dport 8081 -j ACCEPT
-A MK8S-INPUT -s 10.244.0.0/16 ! -i lo -p tcp -m tcp --dport 8081 -j DROP
-A MK8S-INPUT -d 10.96.0.10/32 -p udp -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable
-A MK8S-INPUT -d 10.96.0.10/32 -p tcp -m tcp --dport 53 -j REJECT --reject-with tcp-reset
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:MK8S-HOSTPORT - [0:0]
:MK8S-POSTROUTING - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A PREROUTING -m addrtype --dst-type LOCAL -j MK8S-HOSTPORT
-A OUTPUT -m addrtype --dst-type LOCAL -j MK8S-HOSTPORT
-A POSTROUTING -j MK8S-POSTROUTING
-A MK8S-HOSTPORT -p tcp -m tcp --dport 8080 -m comment --comment \"default/web\" -j DNAT --to-destination 10.244.3.5:80
-A MK8S-POSTROUTING -s 10.244.3.0/24 ! -d 10.244.0.0/16 ! -o mk8s0 -j MASQUERADE --random-fully
-A MK8S-POSTROUTING -s 127.0.0.0/8 -o mk8s0 -j MASQUERADE --random-fully
-A MK8S-POSTROUTING -s 10.244.3.0/24 -o mk8s0 -m conntrack --ctstate DNAT -j MASQUERADE --random-fully
COMMIT
";

#[test]
fn a_restarted_agent_adopts_what_is_there() {
    let model = model(&[(Tcp, 8080, "10.244.3.5", 80, "default/web")]);
    assert_eq!(input(&observed(model, ADOPTED)), "");
}

#[test]
fn one_changed_port_writes_one_chain() {
    let model = model(&[(Tcp, 8080, "10.244.3.9", 80, "default/web")]);
    let golden = "\
*nat
:MK8S-HOSTPORT - [0:0]
-A MK8S-HOSTPORT -p tcp -m tcp --dport 8080 -m comment --comment \"default/web\" -j DNAT --to-destination 10.244.3.9:80
COMMIT
";
    assert_eq!(input(&observed(model, ADOPTED)), golden);
}

// Seen red with the rule for all pods in both, and without that of the host port's pod.
#[test]
fn only_where_nobody_looks_at_frames_within_the_bridge_clients_of_the_same_node_are_masqueraded() {
    let ports = [(Tcp, 8080, "10.244.3.5", 80, "default/web"), (Tcp, 8443, "10.244.3.5", 443, "default/web")];
    let of_node = |bridged_frames: bool| {
        let text = input(&observed(Model { bridged_frames, ..model(&ports) }, ""));
        let led = |line: &&str| line.contains("--ctstate DNAT");
        text.lines().filter(led).map(str::to_owned).collect::<Vec<_>>()
    };
    let all = "-A MK8S-POSTROUTING -s 10.244.3.0/24 -o mk8s0 -m conntrack --ctstate DNAT -j MASQUERADE --random-fully";
    assert_eq!(of_node(false), [all]);
    let itself = "-A MK8S-POSTROUTING -s 10.244.3.5/32 -d 10.244.3.5/32 -o mk8s0 -m conntrack --ctstate DNAT -j MASQUERADE --random-fully";
    assert_eq!(of_node(true), [itself]);
}

#[test]
fn a_node_without_random_fully_does_without() {
    let model = Model { random_fully: false, ..model(&[]) };
    let text = input(&observed(model, ""));
    assert!(text.contains("-s 127.0.0.0/8 -o mk8s0 -j MASQUERADE\n"), "{text}");
    assert!(!text.contains("random"), "{text}");
}

#[test]
fn a_jump_behind_a_rule_that_takes_all_is_brought_to_the_front() {
    let shadowed = ADOPTED.replace(
        "-A FORWARD -j MK8S-FORWARD\n",
        "-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n-A FORWARD -j MK8S-FORWARD\n",
    );
    let model = model(&[(Tcp, 8080, "10.244.3.5", 80, "default/web")]);
    let golden = "*filter\n-D FORWARD -j MK8S-FORWARD\n-I FORWARD 1 -j MK8S-FORWARD\nCOMMIT\n";
    assert_eq!(input(&observed(model, &shadowed)), golden);
}

#[test]
fn a_surplus_jump_goes_and_one_stays() {
    let twice = ADOPTED.replace(
        "-A POSTROUTING -j MK8S-POSTROUTING\n",
        "-A POSTROUTING -j MK8S-POSTROUTING\n-A POSTROUTING -s 10.0.0.0/8 -j MK8S-POSTROUTING\n",
    );
    let model = model(&[(Tcp, 8080, "10.244.3.5", 80, "default/web")]);
    let golden = "*nat\n-D POSTROUTING -s 10.0.0.0/8 -j MK8S-POSTROUTING\nCOMMIT\n";
    assert_eq!(input(&observed(model, &twice)), golden);
}

#[test]
fn an_instance_is_removed_jumps_first_and_nothing_else_is_named() {
    let observed = observed(model(&[]), ADOPTED);
    let golden = "\
*filter
:MK8S-FORWARD - [0:0]
:MK8S-INPUT - [0:0]
-D FORWARD -j MK8S-FORWARD
-D INPUT -j MK8S-INPUT
-X MK8S-FORWARD
-X MK8S-INPUT
COMMIT
*nat
:MK8S-HOSTPORT - [0:0]
:MK8S-POSTROUTING - [0:0]
-D OUTPUT -m addrtype --dst-type LOCAL -j MK8S-HOSTPORT
-D POSTROUTING -j MK8S-POSTROUTING
-D PREROUTING -m addrtype --dst-type LOCAL -j MK8S-HOSTPORT
-X MK8S-HOSTPORT
-X MK8S-POSTROUTING
COMMIT
";
    let ours = observed.model.names.chains().into_iter().cloned().collect();
    assert_eq!(restore_input(&removal(&ours, &observed.saved)), golden);
    assert_eq!(restore_input(&removal(&ours, &BTreeMap::new())), "");
}

#[test]
fn each_address_of_the_range_is_bound_to_its_link_and_its_hardware_address() {
    let golden = "\
add table bridge mk8s-senders
delete table bridge mk8s-senders
table bridge mk8s-senders {
	set pods {
		type devgroup . ether_addr . ipv4_addr
		elements = { 183763714 . 0a:58:0a:f4:03:02 . 10.244.3.2,
183763715 . 0a:58:0a:f4:03:03 . 10.244.3.3,
183763716 . 0a:58:0a:f4:03:04 . 10.244.3.4,
183763717 . 0a:58:0a:f4:03:05 . 10.244.3.5,
183763718 . 0a:58:0a:f4:03:06 . 10.244.3.6 }
	}
	chain prerouting {
		type filter hook prerouting priority -300; policy accept;
		iifgroup != 183763712-183763719 accept
		ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 drop
		iifgroup . ether saddr . ip saddr @pods accept
		iifgroup . ether saddr . arp saddr ip @pods iifgroup . arp saddr ether . arp saddr ip @pods accept
		drop
	}
	chain input {
		type filter hook input priority -300; policy accept;
		iifgroup 183763712-183763719 ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 drop
	}
}
";
    let range = "10.244.3.0/29".parse().unwrap();
    assert_eq!(frame_rules(&Names::for_instance("mk8s"), range), golden);
}
