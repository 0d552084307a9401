//! The specification as a table of questions and answers.

use hickory_proto::rr::{LowerName, Name, RData, RecordType};
use schema::kinds::pod::Protocol;
use schema::meta::NamespacedName;
use schema::records::{Endpoint, RouteRecord, ServicePortRecord, ServiceRecord, Vtep};
use schema::testing::{subnet, versioned};

use super::{Answer, TTL, Zone, ZoneSettings};
use crate::catalog::{Catalog, Peer};
use crate::desired::StateOrigin;

fn port(name: Option<&str>, protocol: Protocol, port: u16) -> ServicePortRecord {
    ServicePortRecord { name: name.map(Into::into), protocol, port, node_port: None }
}

fn endpoint(address: &str, ports: &[u16], hostname: Option<&str>) -> Endpoint {
    let (address, hostname) = (address.parse().unwrap(), hostname.map(Into::into));
    Endpoint { address, ports: ports.to_vec(), node: None, pod: None, hostname }
}

fn catalog(services: Vec<(&str, &str, ServiceRecord)>, hosts: &[&str]) -> Catalog {
    let service = |(namespace, name, record)| (NamespacedName::new(namespace, name), versioned(record));
    let route = |(index, host): (usize, &&str)| {
        let record = RouteRecord { host: (*host).into(), ..RouteRecord::default() };
        (NamespacedName::new("default", format!("r{index}")), versioned(record))
    };
    Catalog {
        known_from: StateOrigin::Etcd,
        services: services.into_iter().map(service).collect(),
        routes: hosts.iter().enumerate().map(route).collect(),
        revision: 7,
        ..Catalog::default()
    }
}

fn example() -> Catalog {
    let web = ServiceRecord {
        cluster_ip: Some("10.96.0.20".parse().unwrap()),
        ports: vec![port(Some("http"), Protocol::Tcp, 80), port(None, Protocol::Tcp, 81)],
        endpoints: vec![endpoint("10.244.1.5", &[8080, 0], Some("web-0"))],
        ..ServiceRecord::default()
    };
    let db = ServiceRecord {
        ports: vec![port(Some("sql"), Protocol::Tcp, 5432), port(Some("gossip"), Protocol::Udp, 7946)],
        endpoints: vec![
            endpoint("10.244.1.6", &[5432, 7000], Some("db-0")),
            endpoint("10.244.2.6", &[5433, 0], Some("db-1")),
            endpoint("10.244.2.7", &[5432, 7000], None),
        ],
        ..ServiceRecord::default()
    };
    let none =
        ServiceRecord { ports: vec![port(Some("http"), Protocol::Tcp, 80)], ..ServiceRecord::default() };
    let outer = ServiceRecord { external_name: Some("www.example.com".into()), ..ServiceRecord::default() };
    let services = vec![
        ("default", "outer", outer),
        ("default", "web", web),
        ("prod", "db", db.clone()),
        ("default", "none", none),
        ("prod", "db2", db),
    ];
    let (cidr, mac) = ("10.244.1.0/24".parse().unwrap(), "0a:58:0a:f4:00:00".into());
    let vtep = Vtep { address: "192.0.2.12".parse().unwrap(), mac };
    let peer = Peer { cidr, vtep, address: Some("192.0.2.12".parse().unwrap()), absent_since: None };
    let peers = [("n2".to_owned(), peer)].into();
    let known =
        catalog(services, &["shop.example.com", "inner.cluster.local", "web.default.svc.cluster.local"]);
    Catalog { peers, own_address: Some("192.0.2.11".parse().unwrap()), ..known }
}

fn zone(catalog: &Catalog) -> Zone {
    let subnet = subnet("10.244.3.0/24");
    Zone::build(&ZoneSettings::new(&Name::from_ascii("cluster.local.").unwrap(), &subnet), catalog)
}

/// Formats the answer: sorted records, `NODATA owner`, `NXDOMAIN owner`, `SERVFAIL` or `elsewhere`.
fn ask(zone: &Zone, name: &str, kind: RecordType) -> Vec<String> {
    let name = LowerName::new(&Name::from_ascii(name).unwrap());
    let mut lines: Vec<String> = match zone.answer(&name, kind) {
        Answer::Found { answers, .. } => {
            answers.iter().map(|record| format!("{} {}", record.record_type(), record.data)).collect()
        }
        Answer::Synthesized(record) => vec![format!("{} {}", record.record_type(), record.data)],
        Answer::Alias { record, target } => {
            vec![format!("{} {} asks {target}", record.record_type(), record.data)]
        }
        Answer::NoData(soa) => vec![format!("NODATA {}", soa.name)],
        Answer::NoName(soa) => vec![format!("NXDOMAIN {}", soa.name)],
        Answer::Unknown => vec!["SERVFAIL".to_owned()],
        Answer::Elsewhere => vec!["elsewhere".to_owned()],
    };
    lines.sort();
    lines
}

// Seen red without the other nodes' addresses, with the service's port in headless SRV records, without empty names
// between a name and the zone, with hosts that win over services, and with aliases that are not names.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn every_record_of_the_specification_is_answered() {
    use RecordType::{A, AAAA, ANY, CNAME, NS, PTR, SOA, SRV, TXT};
    let zone = zone(&example());
    let soa = "SOA ns.dns.cluster.local. hostmaster.cluster.local. 7 7200 1800 86400 5";
    let nothing = "NXDOMAIN cluster.local.";
    let empty = "NODATA cluster.local.";
    let cases: &[(&str, RecordType, &[&str])] = &[
        // The schema version.
        ("dns-version.cluster.local.", TXT, &["TXT 1.1.0"]),
        ("cluster.local.", SOA, &[soa]),
        ("cluster.local.", NS, &["NS ns.dns.cluster.local."]),
        ("ns.dns.cluster.local.", A, &["A 10.96.0.10"]),
        ("cluster.local.", A, &[empty]),
        // A service with an address.
        ("web.default.svc.cluster.local.", A, &["A 10.96.0.20"]),
        ("WEB.Default.SVC.cluster.LOCAL.", A, &["A 10.96.0.20"]),
        ("web.default.svc.cluster.local.", AAAA, &[empty]),
        ("web.default.svc.cluster.local.", ANY, &["A 10.96.0.20"]),
        ("_http._tcp.web.default.svc.cluster.local.", SRV, &["SRV 0 100 80 web.default.svc.cluster.local."]),
        ("_http._udp.web.default.svc.cluster.local.", SRV, &[nothing]),
        ("_tcp.web.default.svc.cluster.local.", SRV, &[empty]),
        ("web-0.web.default.svc.cluster.local.", A, &[nothing]),
        ("20.0.96.10.in-addr.arpa.", PTR, &["PTR web.default.svc.cluster.local."]),
        ("10.0.96.10.in-addr.arpa.", PTR, &["PTR ns.dns.cluster.local."]),
        // A headless service.
        ("db.prod.svc.cluster.local.", A, &["A 10.244.1.6", "A 10.244.2.6", "A 10.244.2.7"]),
        ("db-0.db.prod.svc.cluster.local.", A, &["A 10.244.1.6"]),
        ("10-244-2-7.db.prod.svc.cluster.local.", A, &["A 10.244.2.7"]),
        ("db-7.db.prod.svc.cluster.local.", A, &[nothing]),
        (
            "_sql._tcp.db.prod.svc.cluster.local.",
            SRV,
            &[
                "SRV 0 100 5432 10-244-2-7.db.prod.svc.cluster.local.",
                "SRV 0 100 5432 db-0.db.prod.svc.cluster.local.",
                "SRV 0 100 5433 db-1.db.prod.svc.cluster.local.",
            ],
        ),
        (
            "_gossip._udp.db.prod.svc.cluster.local.",
            SRV,
            &[
                "SRV 0 100 7000 10-244-2-7.db.prod.svc.cluster.local.",
                "SRV 0 100 7000 db-0.db.prod.svc.cluster.local.",
            ],
        ),
        // Endpoints of two services have two names.
        (
            "6.1.244.10.in-addr.arpa.",
            PTR,
            &["PTR db-0.db.prod.svc.cluster.local.", "PTR db-0.db2.prod.svc.cluster.local."],
        ),
        ("5.1.244.10.in-addr.arpa.", PTR, &["NXDOMAIN 244.10.in-addr.arpa."]),
        ("20.0.96.10.in-addr.arpa.", TXT, &[empty]),
        ("99.0.96.10.in-addr.arpa.", PTR, &["NXDOMAIN 96.10.in-addr.arpa."]),
        ("96.10.in-addr.arpa.", PTR, &["NODATA 96.10.in-addr.arpa."]),
        ("10.in-addr.arpa.", PTR, &["elsewhere"]),
        ("1.0.0.127.in-addr.arpa.", PTR, &["elsewhere"]),
        // A service without a ready endpoint.
        ("none.default.svc.cluster.local.", A, &[nothing]),
        ("_http._tcp.none.default.svc.cluster.local.", SRV, &[nothing]),
        // An alias.
        ("outer.default.svc.cluster.local.", CNAME, &["CNAME www.example.com."]),
        ("outer.default.svc.cluster.local.", ANY, &["CNAME www.example.com."]),
        ("outer.default.svc.cluster.local.", A, &["CNAME www.example.com. asks www.example.com."]),
        ("Outer.default.svc.cluster.local.", AAAA, &["CNAME www.example.com. asks www.example.com."]),
        ("a.outer.default.svc.cluster.local.", A, &[nothing]),
        // Pods.
        ("10-244-1-5.default.pod.cluster.local.", A, &["A 10.244.1.5"]),
        ("10-244-1-5.default.pod.cluster.local.", AAAA, &[empty]),
        ("192-0-2-1.default.pod.cluster.local.", A, &[nothing]),
        ("192-0-2-11.default.pod.cluster.local.", A, &["A 192.0.2.11"]),
        ("192-0-2-12.prod.pod.cluster.local.", A, &["A 192.0.2.12"]),
        ("10-244-1.default.pod.cluster.local.", A, &[nothing]),
        ("10.244-1-5.default.pod.cluster.local.", A, &[nothing]),
        ("x.10-244-1-5.default.pod.cluster.local.", A, &[nothing]),
        ("default.pod.cluster.local.", A, &[empty]),
        ("pod.cluster.local.", A, &[empty]),
        // Names above an existing name exist; others do not.
        ("svc.cluster.local.", A, &[empty]),
        ("prod.svc.cluster.local.", A, &[empty]),
        ("elsewhere.svc.cluster.local.", A, &[nothing]),
        ("absent.default.svc.cluster.local.", A, &[nothing]),
        ("example.com.cluster.local.", A, &[nothing]),
        // Hosts of Dns objects.
        ("shop.example.com.", A, &["A 10.96.0.11"]),
        ("Shop.Example.com.", A, &["A 10.96.0.11"]),
        ("shop.example.com.", AAAA, &["NODATA shop.example.com."]),
        ("www.shop.example.com.", A, &["elsewhere"]),
        ("example.com.", A, &["elsewhere"]),
        ("inner.cluster.local.", A, &["A 10.96.0.11"]),
        ("inner.cluster.local.", AAAA, &[empty]),
        // Other names.
        ("cluster.local.example.com.", A, &["elsewhere"]),
        ("local.", A, &["elsewhere"]),
        (".", NS, &["elsewhere"]),
    ];
    let wrong: Vec<String> = cases
        .iter()
        .map(|(name, kind, wanted)| (name, kind, wanted, ask(&zone, name, *kind)))
        .filter(|(_, _, wanted, said)| said != *wanted)
        .map(|(name, kind, wanted, said)| format!("{name} {kind}: {said:?}, not {wanted:?}"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn service_records_bring_addresses_along_and_times_are_short() {
    let zone = zone(&example());
    let name = LowerName::new(&Name::from_ascii("_sql._tcp.db.prod.svc.cluster.local.").unwrap());
    let Answer::Found { answers, additionals } = zone.answer(&name, RecordType::SRV) else { panic!() };
    let addresses: Vec<String> =
        additionals.iter().map(|record| format!("{} {}", record.name, record.data)).collect();
    assert!(addresses.contains(&"db-1.db.prod.svc.cluster.local. 10.244.2.6".to_owned()), "{addresses:?}");
    assert_eq!(addresses.len(), 3);
    assert!(answers.iter().chain(&additionals).all(|record| record.ttl == TTL));
}

// Seen red with NXDOMAIN instead: resolvers would cache it, and pods would give up.
#[test]
fn before_anything_is_known_no_name_is_denied() {
    let zone = zone(&Catalog::default());
    assert_eq!(ask(&zone, "web.default.svc.cluster.local.", RecordType::A), ["SERVFAIL"]);
    assert_eq!(ask(&zone, "20.0.96.10.in-addr.arpa.", RecordType::PTR), ["SERVFAIL"]);
    assert_eq!(ask(&zone, "dns-version.cluster.local.", RecordType::TXT), ["TXT 1.1.0"]);
    assert_eq!(ask(&zone, "example.com.", RecordType::A), ["elsewhere"]);
    assert!(!zone.is_empty() && zone.len() < 10);
}

#[test]
fn large_services_have_all_their_endpoints() {
    let endpoints: Vec<Endpoint> =
        (0..3000u32).map(|n| endpoint(&format!("10.244.{}.{}", n / 250, n % 250), &[80], None)).collect();
    let ports = vec![port(Some("http"), Protocol::Tcp, 80)];
    let large = ServiceRecord { ports, endpoints, ..ServiceRecord::default() };
    let zone = zone(&catalog(vec![("default", "large", large)], &[]));
    assert_eq!(ask(&zone, "large.default.svc.cluster.local.", RecordType::A).len(), 3000);
    assert_eq!(ask(&zone, "_http._tcp.large.default.svc.cluster.local.", RecordType::SRV).len(), 3000);
}

// Seen red with the service's port in SRV records: two targets became one.
#[test]
fn addresses_that_come_twice_are_said_once() {
    let twice = vec![endpoint("10.244.1.1", &[80], Some("a")), endpoint("10.244.1.1", &[81], Some("a"))];
    let ports = vec![port(Some("http"), Protocol::Tcp, 80)];
    let record = ServiceRecord { ports, endpoints: twice, ..ServiceRecord::default() };
    let zone = zone(&catalog(vec![("default", "x", record)], &[]));
    assert_eq!(ask(&zone, "x.default.svc.cluster.local.", RecordType::A), ["A 10.244.1.1"]);
    assert_eq!(ask(&zone, "a.x.default.svc.cluster.local.", RecordType::A), ["A 10.244.1.1"]);
    let targets = ask(&zone, "_http._tcp.x.default.svc.cluster.local.", RecordType::SRV);
    assert_eq!(targets.len(), 2);
    let name = LowerName::new(&Name::from_ascii("a.x.default.svc.cluster.local.").unwrap());
    let Answer::Found { answers, .. } = zone.answer(&name, RecordType::A) else { panic!() };
    assert!(matches!(answers[0].data, RData::A(_)));
}
