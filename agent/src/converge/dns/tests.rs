//! Plans, and files on a real disk.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::sync::Arc;

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use schema::meta::NamespacedName;
use schema::records::{ClusterSettings, RouteRecord, ServiceRecord};
use schema::testing::{subnet, versioned};
use tokio::sync::watch;

use super::super::shared::node_network::ResolvConf;
use super::forward::Forwarder;
use super::host::{MachineFiles, link_config};
use super::listen;
use super::plan::{LinkConfig, NodeStep, Observed, ResolvedState, SavedFile, plan};
use super::resolv::{self, Machine};
use super::server::Handler;
use super::zone::{Zone, ZoneSettings};
use crate::catalog::Catalog;
use crate::desired::StateOrigin;
use crate::metrics::AgentMetrics;
use crate::worlds::netlink::FakeNetlink;

const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const OWN: &str = "nameserver 192.0.2.1\nsearch lan\n";

pub(super) fn seen(node_dns: bool) -> Observed {
    Observed {
        instance: "mk8s".into(),
        domain: "cluster.local".into(),
        address: Some(VIP),
        bound: Some(VIP),
        configured_upstreams: Vec::new(),
        current_upstreams: vec!["192.0.2.1:53".parse().unwrap()],
        machine: Machine { text: OWN.into(), ..Machine::default() },
        link: None,
        path: "/etc/resolv.conf".into(),
        former: None,
        node_dns,
        resolved: ResolvedState::NotQueried,
        hosts: BTreeSet::from(["shop.example.com".to_owned(), "in.cluster.local".to_owned()]),
    }
}

fn ours() -> String {
    resolv::render("mk8s", VIP, &ResolvConf::parse(OWN))
}

fn former() -> SavedFile {
    SavedFile { path: "/etc/resolv.conf".into(), link: None, text: OWN.into() }
}

#[test]
fn the_server_follows_the_range_and_upstreams_follow_the_machine() {
    assert!(schema::control::Plan::is_empty(&plan(&seen(false))));
    let at = |address, bound| plan(&Observed { address, bound, ..seen(false) }).bind;
    assert_eq!(at(None, None), None);
    assert_eq!(at(Some(VIP), None), Some(VIP));
    assert_eq!(at(Some(VIP), Some(Ipv4Addr::new(10, 97, 0, 10))), Some(VIP));
    let moved = Machine { text: "nameserver 192.0.2.9\n".into(), ..Machine::default() };
    let upstreams = plan(&Observed { machine: moved.clone(), ..seen(false) }).upstreams.unwrap();
    assert_eq!(upstreams, ["192.0.2.9:53".parse().unwrap()]);
    let configured_upstreams = vec!["192.0.2.1:53".parse().unwrap()];
    assert_eq!(
        plan(&Observed { machine: moved.clone(), configured_upstreams, ..seen(false) }).upstreams,
        None
    );
    // Seen red without `is_other`.
    let configured_upstreams = vec![SocketAddr::from((VIP, 53))];
    assert_eq!(
        plan(&Observed { machine: moved, configured_upstreams, ..seen(false) }).upstreams,
        Some(upstreams)
    );
}

#[test]
fn pods_get_no_server_that_only_the_machine_reaches() {
    let machine =
        Machine { text: "nameserver 127.0.0.1\nnameserver 192.0.2.1\n".into(), ..Machine::default() };
    let pods = plan(&Observed { machine, ..seen(false) }).pods;
    assert_eq!(pods.machine.nameservers, ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(pods.server, Some(VIP));
}

// Seen red with `written` ignored: our own file was kept as the machine's.
#[test]
fn the_machines_file_is_changed_once_and_comes_back() {
    let node = |observed: &Observed| plan(observed).node;
    let text = ours();
    let written = |node_dns, former: Option<SavedFile>| Observed {
        machine: Machine {
            text: text.clone(),
            former: former.as_ref().map(|f| f.text.clone()),
            resolved: None,
        },
        former,
        ..seen(node_dns)
    };
    // No change before the server listens.
    assert_eq!(node(&Observed { bound: None, ..seen(true) }), NodeStep::Nothing);
    assert_eq!(node(&seen(true)), NodeStep::Write { keep: Some(former()), text: text.clone() });
    // After a crash between the two steps, the same step follows.
    assert_eq!(
        node(&Observed { former: Some(former()), ..seen(true) }),
        NodeStep::Write { keep: Some(former()), text: text.clone() }
    );
    assert_eq!(node(&written(true, Some(former()))), NodeStep::Nothing);
    // The machine's former file is lost: nothing replaces it, and ours stays.
    assert_eq!(node(&written(true, None)), NodeStep::Nothing);
    let moved = Observed {
        address: Some(Ipv4Addr::new(10, 97, 0, 10)),
        bound: Some(Ipv4Addr::new(10, 97, 0, 10)),
        ..written(true, Some(former()))
    };
    assert!(matches!(node(&moved), NodeStep::Write { keep: None, .. }));
    // Switched off again.
    assert_eq!(node(&seen(false)), NodeStep::Nothing);
    assert_eq!(node(&written(false, Some(former()))), NodeStep::Restore(former()));
    assert_eq!(node(&Observed { former: Some(former()), ..seen(false) }), NodeStep::Forget);
    let NodeStep::Restore(rest) = node(&written(false, None)) else { panic!() };
    assert_eq!(rest.text, "nameserver 192.0.2.1\n");
}

#[test]
fn systemd_resolved_asks_for_the_zone_and_hosts_outside_of_it_only() {
    let domains = |list: &[&str]| list.iter().map(|d| (*d).to_owned()).collect::<BTreeSet<_>>();
    let wanted = LinkConfig {
        servers: vec![VIP.to_string()],
        domains: domains(&["~cluster.local", "~shop.example.com"]),
        ..LinkConfig::default()
    };
    let with = |node_dns, split: LinkConfig| {
        plan(&Observed { resolved: ResolvedState::Configured(split), ..seen(node_dns) }).node
    };
    assert_eq!(with(true, LinkConfig::default()), NodeStep::Split(wanted.clone()));
    assert_eq!(with(true, wanted.clone()), NodeStep::Nothing);
    let fewer = LinkConfig { domains: domains(&["~cluster.local"]), ..wanted.clone() };
    assert_eq!(with(true, fewer), NodeStep::Split(wanted.clone()));
    let asked_for_all = LinkConfig { switches: BTreeSet::from(["default-route"]), ..wanted.clone() };
    assert_eq!(with(true, asked_for_all), NodeStep::Split(wanted.clone()));
    assert_eq!(with(false, wanted), NodeStep::Unsplit);
    assert_eq!(with(false, LinkConfig::default()), NodeStep::Nothing);
}

#[tokio::test]
async fn a_machine_without_resolvectl_has_no_systemd_resolved_to_wait_for() {
    assert_eq!(link_config("/nowhere/resolvectl", "mk8s0").await, ResolvedState::NotQueried);
    assert!(matches!(link_config("false", "mk8s0").await, ResolvedState::Unresponsive(_)));
}

// Seen red with `Silent` taken for `NotAsked` (the file is written), and without the way back.
#[test]
fn while_systemd_resolved_says_nothing_nothing_is_changed() {
    let silent = || ResolvedState::Unresponsive("resolvectl does not answer".into());
    let says = || ResolvedState::Configured(LinkConfig::default());
    let ours = || Machine { text: ours(), former: Some(OWN.into()), resolved: Some(OWN.into()) };
    let wait = || NodeStep::Wait("resolvectl does not answer".into());
    for (what, seen, wanted) in [
        ("the stub", Observed { resolved: silent(), ..seen(true) }, wait()),
        (
            "written once for the stub",
            Observed { resolved: silent(), machine: ours(), former: Some(former()), ..seen(true) },
            wait(),
        ),
        (
            "written once for the stub, which answers now",
            Observed { resolved: says(), machine: ours(), former: Some(former()), ..seen(true) },
            NodeStep::Restore(former()),
        ),
        ("before we answer", Observed { resolved: silent(), bound: None, ..seen(true) }, NodeStep::Nothing),
        ("off", Observed { resolved: silent(), ..seen(false) }, NodeStep::Nothing),
        (
            "off, written once for the stub",
            Observed { resolved: silent(), machine: ours(), former: Some(former()), ..seen(false) },
            NodeStep::Restore(former()),
        ),
    ] {
        let plan = plan(&seen);
        assert_eq!(plan.node, wanted, "{what}");
        let has_steps = !schema::control::Plan::is_empty(&plan);
        assert!(has_steps || wanted == NodeStep::Nothing, "{what}");
    }
}

fn with_hosts(hosts: &[&str], revision: i64) -> Arc<Catalog> {
    let route = |host: &&str| {
        let value = RouteRecord { host: (*host).to_owned(), ..RouteRecord::default() };
        (NamespacedName::new("default", *host), versioned(value))
    };
    Arc::new(Catalog { routes: hosts.iter().map(route).collect(), revision, ..Catalog::default() })
}

// Seen red with every catalog passed on, and with only the first one.
#[tokio::test(start_paused = true)]
async fn only_other_hosts_or_settings_are_worth_a_look() {
    let (catalogs, catalog) = watch::channel(with_hosts(&[], 1));
    let (reads, mut read) = watch::channel(Default::default());
    let mut runtime = schema::control::Runtime::new();
    let row = schema::control::Row::when_woken().wake_on(catalog.clone()).rest(super::SPACING);
    runtime.follow("reads", row, super::publish_read(catalog, reads));
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let stopped = Box::pin(async move { stopped.await.unwrap() });
    let task = tokio::spawn(runtime.run_until(futures::stream::once(stopped)));
    let mut settings = ClusterSettings::default();
    settings.spec.dns.upstreams.push("192.0.2.9".to_owned());
    for (now, news) in [
        (with_hosts(&["shop.example.com"], 2), true),
        (with_hosts(&["shop.example.com"], 3), false),
        (with_hosts(&["shop.example.com", "b.example.com"], 4), true),
        (with_hosts(&[], 5), true),
        (Arc::new(Catalog { settings: settings.clone(), ..Catalog::default() }), true),
        (Arc::new(Catalog { settings, revision: 7, ..Catalog::default() }), false),
    ] {
        catalogs.send_replace(Arc::clone(&now));
        let changed = tokio::time::timeout(std::time::Duration::from_secs(60), read.changed()).await;
        assert_eq!(changed.is_ok(), news, "revision {}", now.revision);
        assert_eq!(*read.borrow_and_update(), (now.settings.spec.dns.clone(), super::hosts(&now)));
    }
    stop.send("stop").unwrap();
    task.await.unwrap().unwrap();
}

#[test]
fn the_former_file_comes_back_as_it_was_also_as_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (agent_dir, path) = (folder.path().join("agent"), folder.path().join("resolv.conf"));
    fs::create_dir(&agent_dir).unwrap();
    let target = folder.path().join("elsewhere.conf");
    fs::write(&target, OWN).unwrap();
    for linked in [false, true] {
        let _ = fs::remove_file(&path);
        match linked {
            true => symlink(&target, &path).unwrap(),
            false => fs::write(&path, OWN).unwrap(),
        }
        let files = MachineFiles::new(&agent_dir, &path);
        let (machine, _, link) = files.read();
        let keep = SavedFile { path: files.path(), link, text: machine.text };
        files.write(Some(&keep), &ours()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), ours());
        assert_eq!(fs::read_to_string(&target).unwrap(), OWN, "what the link led to stays");
        // As reset does, which knows only the agent's directory; another instance leaves the file alone.
        assert_eq!(MachineFiles::undo(&agent_dir, "other").unwrap(), None);
        assert_eq!(MachineFiles::undo(&agent_dir, "mk8s").unwrap(), Some(files.path()));
        assert_eq!(fs::read_to_string(&path).unwrap(), OWN);
        assert_eq!(path.is_symlink(), linked);
        assert_eq!(MachineFiles::undo(&agent_dir, "mk8s").unwrap(), None);
    }
}

// Seen red with an `admit` that rejects no client.
#[tokio::test]
async fn one_client_holds_a_quarter_of_all_connections_for_names() {
    use tokio::io::AsyncReadExt as _;
    let domain = Name::from_ascii("cluster.local.").unwrap();
    let zones = watch::channel(Arc::new(super::first_zone(&domain, None, &Catalog::default()))).1;
    let forwarders = watch::channel(Arc::new(Forwarder::new(Vec::new()))).1;
    let handler = Arc::new(Handler::new(zones, forwarders));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(listen::serve_tcp(listener, handler));
    let connect = async |from: [u8; 4]| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::from(from), 0).into()).unwrap();
        socket.connect(address).await.unwrap()
    };
    // A connection either ends immediately or waits for a question.
    let ends = async |stream: &mut tokio::net::TcpStream| {
        let read = stream.read_u8();
        tokio::time::timeout(std::time::Duration::from_millis(500), read).await.is_ok()
    };
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(connect([127, 0, 0, 1]).await);
    }
    let mut beyond = connect([127, 0, 0, 1]).await;
    assert!(ends(&mut beyond).await, "the 33rd");
    assert!(!ends(streams.last_mut().unwrap()).await, "the 32nd");
    assert!(!ends(&mut connect([127, 0, 0, 2]).await).await, "another client");
    server.abort();
}

/// A catalog with one service that has an address, and these aliases.
fn aliases(all: &[(&str, &str)]) -> Catalog {
    let record = |name: &str, value| (NamespacedName::new("default", name), versioned(value));
    let address = Some("10.96.0.20".parse().unwrap());
    let mut services = vec![record("web", ServiceRecord { cluster_ip: address, ..ServiceRecord::default() })];
    services.extend(all.iter().map(|(name, target)| {
        let external_name = Some((*target).to_owned());
        record(name, ServiceRecord { external_name, ..ServiceRecord::default() })
    }));
    Catalog { known_from: StateOrigin::Etcd, services: services.into_iter().collect(), ..Catalog::default() }
}

/// Starts an upstream that answers 192.0.2.1 to every question.
async fn upstream() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut buffer = [0; 2048];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let asked = Message::from_vec(&buffer[..length]).unwrap();
            let mut message = Message::response(asked.metadata.id, OpCode::Query);
            message.add_queries(asked.queries.clone());
            let data = RData::A(A::new(192, 0, 2, 1));
            message.add_answer(Record::from_rdata(asked.queries[0].name().clone(), 300, data));
            socket.send_to(&message.to_vec().unwrap(), from).await.unwrap();
        }
    });
    (address, task)
}

// Seen red with only the alias as the answer.
#[tokio::test]
async fn an_alias_comes_with_what_it_leads_to_here_or_elsewhere() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let inside = |name: &str| format!("{name}.default.svc.cluster.local");
    let (web, missing, one, two, outer) =
        (inside("web"), inside("missing"), inside("one"), inside("two"), inside("outer"));
    let catalog = aliases(&[
        ("outer", "www.example.com"),
        ("inner", &web),
        ("again", &outer),
        ("none", &missing),
        ("one", &two),
        ("two", &one),
    ]);
    let domain = Name::from_ascii("cluster.local.").unwrap();
    let subnet = subnet("10.244.3.0/24");
    let zone = Zone::build(&ZoneSettings::new(&domain, &subnet), &catalog);
    let (upstream, task) = upstream().await;
    let (zones, metrics) = (watch::channel(Arc::new(zone)).1, AgentMetrics::default());
    let mut forwarder = Forwarder::new(vec![upstream]);
    forwarder.outcomes = metrics.forwarded.clone();
    let mut handler = Handler::new(zones, watch::channel(Arc::new(forwarder)).1);
    handler.queries = metrics.dns.clone();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(listen::serve_tcp(listener, Arc::new(handler)));
    let ask = async |name: &str, kind: RecordType| {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii(inside(name) + ".").unwrap(), kind));
        let packet = message.to_vec().unwrap();
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_u16(packet.len().try_into().unwrap()).await.unwrap();
        stream.write_all(&packet).await.unwrap();
        let mut packet = vec![0; stream.read_u16().await.unwrap().into()];
        stream.read_exact(&mut packet).await.unwrap();
        let said = Message::from_vec(&packet).unwrap();
        let records = said.answers.iter().map(|record| format!("{} {}", record.record_type(), record.data));
        (said.metadata.response_code, records.collect::<Vec<_>>(), said.authorities.len())
    };
    let alias = |name: &str| format!("CNAME {name}.");
    let far = || vec![alias("www.example.com"), "A 192.0.2.1".to_owned()];
    let (fine, nothing) = (ResponseCode::NoError, ResponseCode::NXDomain);
    for (name, kind, wanted) in [
        ("outer", RecordType::A, (fine, far(), 0)),
        ("outer", RecordType::CNAME, (fine, vec![alias("www.example.com")], 0)),
        ("again", RecordType::A, (fine, [vec![alias(&outer)], far()].concat(), 0)),
        ("inner", RecordType::A, (fine, vec![alias(&web), "A 10.96.0.20".to_owned()], 0)),
        ("inner", RecordType::AAAA, (fine, vec![alias(&web)], 1)),
        ("none", RecordType::A, (nothing, vec![alias(&missing)], 1)),
    ] {
        assert_eq!(ask(name, kind).await, wanted, "{name} {kind}");
    }
    assert_eq!(ask("one", RecordType::A).await.0, ResponseCode::ServFail, "aliases of each other");
    let queries = |code: &str| metrics.value(&format!("minik8s_dns_queries_total{{code=\"{code}\"}}"));
    assert_eq!(["NOERROR", "NXDOMAIN", "SERVFAIL"].map(queries), [5.0, 1.0, 1.0]);
    assert_eq!(metrics.value("minik8s_dns_query_duration_seconds_count"), 7.0);
    let forwarded = metrics.value("minik8s_dns_forwarded_total{outcome=\"answered\"}");
    assert_eq!(forwarded, 1.0, "the cache answered the others");
    server.abort();
    task.abort();
}

// A documentation address, which no machine has.
#[tokio::test]
async fn the_server_listens_before_its_address_is_there_and_says_who_is_in_the_way() {
    let address = Ipv4Addr::new(192, 0, 2, 253);
    let first = listen::bind_at((address, 5353).into()).unwrap();
    let taken = listen::bind_at((address, 5353).into()).err().unwrap();
    let why = listen::explain(address, &taken, &FakeNetlink::default()).await;
    assert!(why.contains("192.0.2.253:53") && why.contains("bind-dynamic"), "{why}");
    drop(first);
    assert!(listen::bind_at((address, 5353).into()).is_ok());
}
