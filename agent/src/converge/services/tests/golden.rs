//! Rule sets as text, one for each case. Chain names are replaced by their purpose.

use super::super::names::ChainRole;
use super::*;
use crate::packet_rules::chain::{ChainRef, Table};

/// The rules of the service `web`, with the chains in the order in which a packet passes them.
fn golden(record: &ServiceRecord) -> String {
    let rules = service_rules(&place(), &id("web"), record);
    let mut text = String::new();
    for (chain, rules) in [("services", &rules.services), ("nodeports", &rules.node_ports)] {
        rules.iter().for_each(|rule| text.push_str(&format!("{chain} {rule}\n")));
    }
    let mut names = Vec::new();
    for port in &record.ports {
        for (role, word) in [(ChainRole::External, "EXT"), (ChainRole::All, "SVC"), (ChainRole::Local, "SVL")]
        {
            let name = place().names.port_chain(role, &id("web"), port.port, port.protocol);
            names.push((name, format!("{word}:{}", port.port)));
        }
        for (at, number) in record.endpoints.iter().flat_map(|e| e.ports.iter().map(move |p| (e.address, p)))
        {
            let address = SocketAddrV4::new(at, *number);
            let name = place().names.endpoint_chain(&id("web"), port.port, port.protocol, address);
            names.push((name, format!("SEP:{address}")));
        }
    }
    for (name, label) in &names {
        let chain = ChainRef::new(Table::Nat, name);
        let rules = rules.chains.get(&chain).map(|chain| chain.rules.as_slice()).unwrap_or_default();
        rules.iter().for_each(|rule| text.push_str(&format!("{label} {rule}\n")));
    }
    let known: Vec<&String> = names.iter().map(|(name, _)| name).collect();
    assert!(rules.chains.keys().all(|chain| known.contains(&&chain.chain)), "{rules:?}");
    rules.refusals.iter().for_each(|rule| text.push_str(&format!("filter {rule}\n")));
    for (name, label) in names {
        text = text.replace(&name, &label);
    }
    text.replace("MK8S-MARK", "MARK").replace(" -m comment --comment", " #")
}

fn check(record: &ServiceRecord, expected: &str) {
    let text = golden(record);
    assert_eq!(text, expected, "\n{text}");
}

#[test]
fn one_endpoint() {
    let record = service(&["10.244.3.5:8080"]);
    check(
        &record,
        "\
services -d 10.96.0.5/32 -p tcp # \"default/web:80 cluster IP\" -m tcp --dport 80 -j SVC:80
SVC:80 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j MARK
SVC:80 -j SEP:10.244.3.5:8080
SEP:10.244.3.5:8080 -s 10.244.3.5/32 -j MARK
SEP:10.244.3.5:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.3.5:8080
",
    );
}

#[test]
fn three_endpoints_are_chosen_alike() {
    let record = service(&["10.244.3.5:8080", "10.244.3.6:8080", "10.244.4.7:8080"]);
    check(
        &record,
        "\
services -d 10.96.0.5/32 -p tcp # \"default/web:80 cluster IP\" -m tcp --dport 80 -j SVC:80
SVC:80 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j MARK
SVC:80 -m statistic --mode random --probability 0.33333333349 -j SEP:10.244.3.5:8080
SVC:80 -m statistic --mode random --probability 0.50000000000 -j SEP:10.244.3.6:8080
SVC:80 -j SEP:10.244.4.7:8080
SEP:10.244.3.5:8080 -s 10.244.3.5/32 -j MARK
SEP:10.244.3.5:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.3.5:8080
SEP:10.244.3.6:8080 -s 10.244.3.6/32 -j MARK
SEP:10.244.3.6:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.3.6:8080
SEP:10.244.4.7:8080 -s 10.244.4.7/32 -j MARK
SEP:10.244.4.7:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.4.7:8080
",
    );
}

#[test]
fn without_endpoints_clients_are_refused_at_once() {
    let record = ServiceRecord {
        ports: vec![port(Protocol::Tcp, 80, Some(30080))],
        external_ips: vec!["198.51.100.7".parse().unwrap()],
        ..service(&[])
    };
    check(
        &record,
        "\
filter -d 10.96.0.5/32 -p tcp # \"default/web:80 has no endpoints\" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
filter -d 198.51.100.7/32 -p tcp # \"default/web:80 has no endpoints\" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
filter ! -d 127.0.0.0/8 -p tcp # \"default/web:80 has no endpoints\" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with tcp-reset
",
    );
}

#[test]
fn a_headless_service_has_no_rules() {
    let record = ServiceRecord { cluster_ip: None, ..service(&["10.244.3.5:8080"]) };
    check(
        &record, "\
",
    );
}

#[test]
fn a_node_port_and_an_external_address() {
    let record = ServiceRecord {
        ports: vec![port(Protocol::Tcp, 80, Some(30080))],
        external_ips: vec!["198.51.100.7".parse().unwrap()],
        ..service(&["10.244.4.7:8080"])
    };
    check(
        &record,
        "\
services -d 10.96.0.5/32 -p tcp # \"default/web:80 cluster IP\" -m tcp --dport 80 -j SVC:80
services -d 198.51.100.7/32 -p tcp # \"default/web:80 external IP\" -m tcp --dport 80 -j EXT:80
nodeports -p tcp # \"default/web:80\" -m tcp --dport 30080 -j EXT:80
EXT:80 # \"default/web:80\" -j MARK
EXT:80 # \"default/web:80\" -j SVC:80
SVC:80 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j MARK
SVC:80 -j SEP:10.244.4.7:8080
SEP:10.244.4.7:8080 -s 10.244.4.7/32 -j MARK
SEP:10.244.4.7:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.4.7:8080
",
    );
}

#[test]
fn clients_from_outside_stay_on_their_node() {
    let record = ServiceRecord {
        ports: vec![port(Protocol::Tcp, 80, Some(30080))],
        external_local: true,
        ..service(&["10.244.3.5:8080", "10.244.4.7:8080"])
    };
    check(
        &record,
        "\
services -d 10.96.0.5/32 -p tcp # \"default/web:80 cluster IP\" -m tcp --dport 80 -j SVC:80
nodeports -p tcp # \"default/web:80\" -m tcp --dport 30080 -j EXT:80
EXT:80 -s 10.244.0.0/16 # \"default/web:80\" -j SVC:80
EXT:80 # \"default/web:80\" -m addrtype --src-type LOCAL -j MARK
EXT:80 # \"default/web:80\" -m addrtype --src-type LOCAL -j SVC:80
EXT:80 # \"default/web:80\" -j SVL:80
SVC:80 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j MARK
SVC:80 -m statistic --mode random --probability 0.50000000000 -j SEP:10.244.3.5:8080
SVC:80 -j SEP:10.244.4.7:8080
SVL:80 -j SEP:10.244.3.5:8080
SEP:10.244.3.5:8080 -s 10.244.3.5/32 -j MARK
SEP:10.244.3.5:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.3.5:8080
SEP:10.244.4.7:8080 -s 10.244.4.7/32 -j MARK
SEP:10.244.4.7:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.4.7:8080
",
    );
}

#[test]
fn clients_from_outside_are_dropped_where_no_endpoint_is() {
    let record = ServiceRecord {
        ports: vec![port(Protocol::Tcp, 80, Some(30080))],
        external_ips: vec!["198.51.100.7".parse().unwrap()],
        external_local: true,
        ..service(&["10.244.4.7:8080"])
    };
    check(
        &record,
        "\
services -d 10.96.0.5/32 -p tcp # \"default/web:80 cluster IP\" -m tcp --dport 80 -j SVC:80
services -d 198.51.100.7/32 -p tcp # \"default/web:80 external IP\" -m tcp --dport 80 -j EXT:80
nodeports -p tcp # \"default/web:80\" -m tcp --dport 30080 -j EXT:80
EXT:80 -s 10.244.0.0/16 # \"default/web:80\" -j SVC:80
EXT:80 # \"default/web:80\" -m addrtype --src-type LOCAL -j MARK
EXT:80 # \"default/web:80\" -m addrtype --src-type LOCAL -j SVC:80
SVC:80 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j MARK
SVC:80 -j SEP:10.244.4.7:8080
SEP:10.244.4.7:8080 -s 10.244.4.7/32 -j MARK
SEP:10.244.4.7:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.4.7:8080
filter -d 198.51.100.7/32 -p tcp # \"default/web:80 has no local endpoints\" -m tcp --dport 80 -j DROP
filter ! -d 127.0.0.0/8 -p tcp # \"default/web:80 has no local endpoints\" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j DROP
",
    );
}

#[test]
fn clients_from_inside_stay_on_their_node() {
    let record = ServiceRecord { internal_local: true, ..service(&["10.244.3.5:8080", "10.244.4.7:8080"]) };
    check(
        &record,
        "\
services -d 10.96.0.5/32 -p tcp # \"default/web:80 cluster IP\" -m tcp --dport 80 -j SVL:80
SVL:80 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j MARK
SVL:80 -j SEP:10.244.3.5:8080
SEP:10.244.3.5:8080 -s 10.244.3.5/32 -j MARK
SEP:10.244.3.5:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.3.5:8080
",
    );
}

#[test]
fn clients_from_inside_are_dropped_where_no_endpoint_is() {
    let record = ServiceRecord { internal_local: true, ..service(&["10.244.4.7:8080"]) };
    check(
        &record,
        "\
filter -d 10.96.0.5/32 -p tcp # \"default/web:80 has no local endpoints\" -m tcp --dport 80 -j DROP
",
    );
}

#[test]
fn both_policies_at_once() {
    let record = ServiceRecord {
        ports: vec![port(Protocol::Tcp, 80, Some(30080))],
        internal_local: true,
        external_local: true,
        ..service(&["10.244.3.5:8080", "10.244.4.7:8080"])
    };
    check(
        &record,
        "\
services -d 10.96.0.5/32 -p tcp # \"default/web:80 cluster IP\" -m tcp --dport 80 -j SVL:80
nodeports -p tcp # \"default/web:80\" -m tcp --dport 30080 -j EXT:80
EXT:80 -s 10.244.0.0/16 # \"default/web:80\" -j SVC:80
EXT:80 # \"default/web:80\" -m addrtype --src-type LOCAL -j MARK
EXT:80 # \"default/web:80\" -m addrtype --src-type LOCAL -j SVC:80
EXT:80 # \"default/web:80\" -j SVL:80
SVC:80 -m statistic --mode random --probability 0.50000000000 -j SEP:10.244.3.5:8080
SVC:80 -j SEP:10.244.4.7:8080
SVL:80 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j MARK
SVL:80 -j SEP:10.244.3.5:8080
SEP:10.244.3.5:8080 -s 10.244.3.5/32 -j MARK
SEP:10.244.3.5:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.3.5:8080
SEP:10.244.4.7:8080 -s 10.244.4.7/32 -j MARK
SEP:10.244.4.7:8080 -p tcp # \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.4.7:8080
",
    );
}

#[test]
fn a_client_stays_with_its_endpoint() {
    let record =
        ServiceRecord { affinity_seconds: Some(10800), ..service(&["10.244.3.5:8080", "10.244.4.7:8080"]) };
    check(
        &record,
        "\
services -d 10.96.0.5/32 -p tcp # \"default/web:80 cluster IP\" -m tcp --dport 80 -j SVC:80
SVC:80 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j MARK
SVC:80 -m recent --rcheck --seconds 10800 --reap --name SEP:10.244.3.5:8080 --mask 255.255.255.255 --rsource -j SEP:10.244.3.5:8080
SVC:80 -m recent --rcheck --seconds 10800 --reap --name SEP:10.244.4.7:8080 --mask 255.255.255.255 --rsource -j SEP:10.244.4.7:8080
SVC:80 -m statistic --mode random --probability 0.50000000000 -j SEP:10.244.3.5:8080
SVC:80 -j SEP:10.244.4.7:8080
SEP:10.244.3.5:8080 -s 10.244.3.5/32 -j MARK
SEP:10.244.3.5:8080 -p tcp # \"default/web:80\" -m recent --set --name SEP:10.244.3.5:8080 --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.244.3.5:8080
SEP:10.244.4.7:8080 -s 10.244.4.7/32 -j MARK
SEP:10.244.4.7:8080 -p tcp # \"default/web:80\" -m recent --set --name SEP:10.244.4.7:8080 --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.244.4.7:8080
",
    );
}

#[test]
fn udp_and_tcp_on_one_port_and_an_endpoint_without_the_second() {
    let record = {
        let mut record = service(&["10.244.3.5:8080", "10.244.4.7:8080"]);
        record.ports = vec![port(Protocol::Tcp, 53, None), port(Protocol::Udp, 53, Some(30053))];
        record.endpoints[0].ports = vec![5353, 5354];
        record.endpoints[1].ports = vec![5353, 0];
        record
    };
    check(
        &record,
        "\
services -d 10.96.0.5/32 -p tcp # \"default/web:53 cluster IP\" -m tcp --dport 53 -j SVC:53
services -d 10.96.0.5/32 -p udp # \"default/web:53 cluster IP\" -m udp --dport 53 -j SVC:53
nodeports -p udp # \"default/web:53\" -m udp --dport 30053 -j EXT:53
SVC:53 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 53 -j MARK
SVC:53 -m statistic --mode random --probability 0.50000000000 -j SEP:10.244.3.5:5353
SVC:53 -j SEP:10.244.4.7:5353
SEP:10.244.3.5:5353 -s 10.244.3.5/32 -j MARK
SEP:10.244.3.5:5353 -p tcp # \"default/web:53\" -m tcp -j DNAT --to-destination 10.244.3.5:5353
SEP:10.244.4.7:5353 -s 10.244.4.7/32 -j MARK
SEP:10.244.4.7:5353 -p tcp # \"default/web:53\" -m tcp -j DNAT --to-destination 10.244.4.7:5353
EXT:53 # \"default/web:53\" -j MARK
EXT:53 # \"default/web:53\" -j SVC:53
SVC:53 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p udp -m udp --dport 53 -j MARK
SVC:53 -j SEP:10.244.3.5:5354
SEP:10.244.3.5:5354 -s 10.244.3.5/32 -j MARK
SEP:10.244.3.5:5354 -p udp # \"default/web:53\" -m udp -j DNAT --to-destination 10.244.3.5:5354
",
    );
}

#[test]
fn the_chains_that_are_always_there() {
    let text = input(&observed(wanted(&[]), ""));
    let expected = "\
*filter
:MK8S-SERVICES - [0:0]
:MK8S-SVCFORWARD - [0:0]
-A MK8S-SVCFORWARD -m conntrack --ctstate NEW -j MK8S-SERVICES
-A MK8S-SVCFORWARD -s 10.244.0.0/16 -m conntrack --ctstate INVALID -j DROP
-A MK8S-SVCFORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A MK8S-SVCFORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-I INPUT 1 -m conntrack --ctstate NEW -j MK8S-SERVICES
-I OUTPUT 1 -m conntrack --ctstate NEW -j MK8S-SERVICES
-I FORWARD 1 -j MK8S-SVCFORWARD
COMMIT
*nat
:MK8S-MARK - [0:0]
:MK8S-MASQ - [0:0]
:MK8S-NODEPORTS - [0:0]
:MK8S-SERVICES - [0:0]
-A MK8S-MARK -j MARK --set-xmark 0x4000/0x4000
-A MK8S-MASQ -m mark ! --mark 0x4000/0x4000 -j RETURN
-A MK8S-MASQ -j MARK --set-xmark 0x4000/0x0
-A MK8S-MASQ -j MASQUERADE --random-fully
-A MK8S-SERVICES ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j MK8S-NODEPORTS
-I PREROUTING 1 -j MK8S-SERVICES
-I OUTPUT 1 -j MK8S-SERVICES
-I POSTROUTING 1 -j MK8S-MASQ
COMMIT
";
    assert_eq!(text, expected, "\n{text}");
    let plain = RenderContext { random_fully: false, ..place() };
    let fixed = DesiredRules::new(&plain, BTreeMap::new()).fixed;
    assert_eq!(fixed[&plain.names.masquerade].rules[2], "-j MASQUERADE");
}

#[test]
fn a_restarted_agent_adopts_what_is_there_and_one_endpoint_changes_three_chains() {
    let (before, after) = (service(&["10.244.3.5:8080"]), service(&["10.244.3.6:8080"]));
    let there = programmed(&[("web", &before)]);
    assert_eq!(input(&observed(wanted(&[("web", &before)]), &there)), "");
    let expected = "\
*nat
:MK8S-SEP-EDP4J3H7KW6OQ2SR - [0:0]
:MK8S-SEP-LZ6URQSPAEYJHJPC - [0:0]
:MK8S-SVC-DXNON4QYZIBCCX22 - [0:0]
-A MK8S-SEP-EDP4J3H7KW6OQ2SR -s 10.244.3.6/32 -j MK8S-MARK
-A MK8S-SEP-EDP4J3H7KW6OQ2SR -p tcp -m comment --comment \"default/web:80\" -m tcp -j DNAT --to-destination 10.244.3.6:8080
-A MK8S-SVC-DXNON4QYZIBCCX22 ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j MK8S-MARK
-A MK8S-SVC-DXNON4QYZIBCCX22 -j MK8S-SEP-EDP4J3H7KW6OQ2SR
-X MK8S-SEP-LZ6URQSPAEYJHJPC
COMMIT
";
    let text = input(&observed(wanted(&[("web", &after)]), &there));
    assert_eq!(text, expected, "\n{text}");
}

#[test]
fn what_stands_before_ours_and_lets_all_pass_is_overtaken() {
    let there = programmed(&[]);
    let behind = there
        .replace(
            "-A FORWARD -j MK8S-SVCFORWARD\n",
            "-A FORWARD -j MK8S-FORWARD\n-A FORWARD -j MK8S-SVCFORWARD\n",
        )
        .replace("-A POSTROUTING -j", "-A POSTROUTING -j MK8S-POSTROUTING\n-A POSTROUTING -j")
        .replace("-A OUTPUT -m", "-A OUTPUT -j DOCKER-USER\n-A OUTPUT -m");
    let expected = "\
*filter
-D FORWARD -j MK8S-SVCFORWARD
-I FORWARD 1 -j MK8S-SVCFORWARD
COMMIT
*nat
-D POSTROUTING -j MK8S-MASQ
-I POSTROUTING 1 -j MK8S-MASQ
COMMIT
";
    assert_eq!(input(&observed(wanted(&[]), &behind)), expected);
}

#[test]
fn a_stale_chain_goes_unless_a_rule_of_another_leads_there() {
    let (gone, held) = ("MK8S-SVC-AAAAAAAAAAAAAAAA", "MK8S-SEP-BBBBBBBBBBBBBBBB");
    let there = programmed(&[]);
    let stale = format!(":{gone} - [0:0]\n:{held} - [0:0]\n:THEIRS - [0:0]\n-A {gone} -j {held}\n");
    let stale = format!("{stale}-A {held} -j ACCEPT\n-A THEIRS -j {held}\n");
    let at = there.rfind("COMMIT").unwrap();
    let there = format!("{}{stale}{}", &there[..at], &there[at..]);
    let expected = format!("*nat\n:{held} - [0:0]\n:{gone} - [0:0]\n-X {gone}\nCOMMIT\n");
    assert_eq!(input(&observed(wanted(&[]), &there)), expected);
    let emptied =
        there.replace(&format!("-A {held} -j ACCEPT\n"), "").replace(&format!("-A {gone} -j {held}\n"), "");
    let emptied = emptied.replace(&format!(":{gone} - [0:0]\n"), "");
    assert_eq!(input(&observed(wanted(&[]), &emptied)), "", "what is held is emptied once");
    assert!(present(&there, &place().names).chains.contains_key(&ChainRef::new(Table::Nat, gone)));
}
