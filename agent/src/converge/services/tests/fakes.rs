//! The services loop on fakes: reads, writes and reports.

use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use schema::control::{Loop as _, Next, Observation, Plan as _};
use schema::keys::Key;
use schema::records::{RulesStatus, Subnet, Vtep};
use schema::snapshot::VersionedValue;
use schema::store::SharedStore;
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::status_writer::StatusWriter;
use schema::testing::{subnet, versioned};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::super::refused::{RETRY, Refusals};
use super::super::{ServicesDeps, ServicesLoop};
use super::*;
use crate::catalog::{Catalog, Peer};
use crate::converge::shared::control_plane::ControlPlane;
use crate::desired::StateOrigin;
use crate::node_address::NodeAddress;
use crate::packet_rules::reader::Repairs;
use crate::packet_rules::testing::after_restore;
use crate::worlds::iptables::{FakeIptables, UdpFlow};

pub(super) struct Rig {
    pub(super) iptables: Arc<FakeIptables>,
    catalogs: watch::Sender<Arc<Catalog>>,
    subnets: watch::Sender<Option<Subnet>>,
    status: watch::Receiver<Option<RulesStatus>>,
    programmed: watch::Receiver<i64>,
    pub(super) services: ServicesLoop,
    /// Services whose rejection was reported as new.
    news: Vec<String>,
    /// The last run's request for the next run.
    pub(super) next: Option<Next>,
}

pub(super) fn rig() -> Rig {
    let iptables = Arc::new(FakeIptables::default());
    iptables.rules().generation = Some(1);
    rig_on(iptables)
}

fn rig_on(iptables: Arc<FakeIptables>) -> Rig {
    let (catalogs, catalog) = watch::channel(Arc::default());
    let (subnets, subnet) = watch::channel(None);
    let (status, statuses) = watch::channel(None);
    let (programmed, newest) = watch::channel(0);
    let services = ServicesLoop::new(ServicesDeps {
        node: "here".to_owned(),
        address: NodeAddress::channel(Some([192, 0, 2, 1].into())).1,
        instance: "mk8s".to_owned(),
        iptables: Arc::clone(&iptables) as _,
        subnet,
        catalog,
        control: watch::channel(ControlPlane::default()).1,
        events: EventRecorder::disabled(),
        forbids_external_ips: false,
        status,
        programmed,
    });
    Rig {
        iptables,
        catalogs,
        subnets,
        status: statuses,
        programmed: newest,
        services,
        news: Vec::new(),
        next: None,
    }
}

impl Rig {
    pub(super) fn know(&self, known_from: StateOrigin, revision: i64, services: &[(&str, ServiceRecord)]) {
        let table = services.iter().map(|(name, record)| {
            let value = record.clone();
            (id(name), Arc::new(VersionedValue { value, create_revision: 1, mod_revision: revision }))
        });
        let catalog = Catalog { known_from, revision, services: table.collect(), ..Catalog::default() };
        self.catalogs.send_replace(Arc::new(catalog));
        let subnet = subnet("10.244.3.0/24");
        self.subnets.send_replace(Some(subnet));
    }

    /// State of a kernel after every restore so far.
    fn kernel(&self) -> String {
        let restored = self.iptables.rules().restored.clone();
        restored.iter().fold(BARE.to_owned(), |there, input| after_restore(&there, input))
    }

    /// Asserts that the kernel has the rules of exactly these services.
    fn stands(&self, services: &[(&str, &ServiceRecord)]) {
        assert_eq!(self.kernel(), programmed(services));
    }

    /// The reported status without its time.
    fn timeless(&self) -> Option<RulesStatus> {
        self.status.borrow().clone().map(|status| RulesStatus { programmed_at: None, ..status })
    }

    /// Runs the loop once: `Ok(true)` if there was something to do, or the reason why it could not run.
    pub(super) async fn run(&mut self) -> Result<bool, String> {
        let observed = match self.services.observe().await.map_err(|e| e.to_string())? {
            Observation::Ready(observed) => observed,
            Observation::NotReady(why) => return Err(why),
        };
        let plan = ServicesLoop::plan(&observed, Timestamp::now());
        let acts = !plan.is_empty();
        let outcome = self.services.act(&observed, plan).await;
        let news = outcome.refused.iter().filter(|refusal| refusal.is_news);
        self.news.extend(news.map(|refusal| refusal.service.to_string()));
        self.next = Some(self.services.report(observed, outcome).await.map_err(|e| e.to_string())?);
        Ok(acts)
    }
}

#[tokio::test]
async fn nothing_is_planned_before_range_and_services_are_known() {
    let mut rig = rig();
    assert!(rig.run().await.unwrap_err().contains("range"));
    rig.know(StateOrigin::Unknown, 0, &[]);
    assert!(rig.run().await.unwrap_err().contains("listed"));
    assert!(rig.iptables.rules().restored.is_empty());
    rig.know(StateOrigin::Disk, 0, &[("web", service(&["10.244.3.5:80"]))]);
    assert_eq!(rig.run().await, Ok(true), "what the disk knows is programmed");
    assert_eq!(*rig.status.borrow(), None, "but it has no revision to report");
}

/// Seen red without `withheld`: the service got the node's connections to its own port.
#[tokio::test]
async fn an_external_address_of_the_cluster_itself_is_never_programmed() {
    let mut rig = rig();
    let record = |addresses: &[&str]| ServiceRecord {
        external_ips: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        ..service(&["10.244.3.5:80"])
    };
    let free = record(&["198.51.100.7"]);
    let vtep = Vtep { address: [192, 0, 2, 3].into(), mac: String::new() };
    let peer = Peer {
        cidr: "10.244.4.0/24".parse().unwrap(),
        vtep,
        address: Some([192, 0, 2, 2].into()),
        absent_since: None,
    };
    // Of this node, of another of its links, of another node, of its tunnel, of pods, of DNS, of etcd, of a
    // reconciler; and one that is free.
    let taken = [
        "192.0.2.1",
        "127.0.0.1",
        "192.0.2.2",
        "192.0.2.3",
        "10.244.9.9",
        "10.96.0.10",
        "192.0.2.8",
        "192.0.2.9",
    ];
    let control = |port: u16, address: &str| vec![format!("http://{address}:{port}")];
    let control = ControlPlane::from_urls(&control(2379, "192.0.2.8"), &control(7070, "192.0.2.9"));
    rig.services.deps.control = watch::channel(control).1;
    let all: Vec<&str> = taken.into_iter().chain(["198.51.100.7"]).collect();
    rig.know(StateOrigin::Etcd, 1, &[("web", record(&all))]);
    rig.catalogs.send_modify(|catalog| {
        Arc::make_mut(catalog).peers.insert("there".to_owned(), peer);
    });
    assert_eq!(rig.run().await, Ok(true));
    rig.stands(&[("web", &free)]);
    // The node's own restrictions withhold the rest.
    rig.services.deps.forbids_external_ips = true;
    assert_eq!(rig.run().await, Ok(true));
    rig.stands(&[("web", &record(&[]))]);
}

// Seen red with `Reading::is_due` always true, and with `only_we` always false.
#[tokio::test(start_paused = true)]
async fn all_rules_are_read_once_and_then_only_when_others_change_some() {
    let mut rig = rig();
    let repairs = Counter::default();
    rig.services.repairs = Repairs::new(repairs.clone());
    rig.know(StateOrigin::Etcd, 5, &[("web", service(&["10.244.3.5:80"]))]);
    assert_eq!(rig.run().await, Ok(true));
    for revision in 6..10 {
        assert_eq!(rig.run().await, Ok(false));
        let endpoint = format!("10.244.3.{revision}:80");
        rig.know(StateOrigin::Etcd, revision, &[("web", service(&[&endpoint]))]);
        assert_eq!(rig.run().await, Ok(true));
    }
    assert_eq!((rig.iptables.rules().saves, repairs.get()), (1, 0));
    // Somebody else flushes everything.
    rig.iptables.rules().generation = Some(99);
    assert_eq!(rig.run().await, Ok(true));
    assert_eq!((rig.iptables.rules().saves, repairs.get()), (2, 1));
    let restored = rig.iptables.rules().restored.clone();
    let last = restored.last().unwrap();
    assert!(last.contains(":MK8S-SERVICES") && last.contains("10.244.3.9:80"), "{last}");
    assert!(restored[1].lines().count() < 12, "one endpoint is a small change: {}", restored[1]);
}

// Seen red with `may_wait` always false (the first half) and always true (the second).
#[tokio::test(start_paused = true)]
async fn a_change_of_services_does_not_wait_for_the_read_that_others_cause() {
    let mut rig = rig();
    rig.know(StateOrigin::Etcd, 5, &[("web", service(&["10.244.3.5:80"]))]);
    assert_eq!(rig.run().await, Ok(true));
    let saves = |rig: &Rig| rig.iptables.rules().saves;
    rig.iptables.rules().generation = Some(50);
    rig.know(StateOrigin::Etcd, 6, &[("web", service(&["10.244.3.6:80"]))]);
    assert_eq!(rig.run().await, Ok(true));
    assert_eq!((saves(&rig), rig.next), (1, Some(Next::After(Duration::ZERO))), "it is written first");
    assert!(rig.iptables.rules().restored.last().unwrap().contains("10.244.3.6:80"));
    // The fake reports a kernel without rules, so everything is written again.
    assert_eq!(rig.run().await, Ok(true));
    assert_eq!(saves(&rig), 2, "and read then");
    for revision in 7_u8..30 {
        rig.iptables.rules().generation = Some(100 + u32::from(revision));
        let endpoint = format!("10.244.3.{revision}:80");
        rig.know(StateOrigin::Etcd, i64::from(revision), &[("web", service(&[&endpoint]))]);
        rig.run().await.unwrap();
        tokio::time::advance(Duration::from_millis(200)).await;
    }
    assert!(
        saves(&rig) >= 5,
        "what others change is seen within a second, whatever changes: {}",
        saves(&rig)
    );
}

#[tokio::test]
async fn what_is_programmed_is_reported_and_what_is_not_is_reported_with_the_reason() {
    let mut rig = rig();
    rig.know(StateOrigin::Etcd, 5, &[]);
    rig.run().await.unwrap();
    assert_eq!((*rig.programmed.borrow(), rig.status.borrow().clone().unwrap().revision), (5, 5));
    rig.iptables.rules().refuse = Some("no room".into());
    rig.know(StateOrigin::Etcd, 6, &[("web", service(&["10.244.3.5:80"]))]);
    assert!(rig.run().await.unwrap_err().contains("no room"));
    let status = rig.status.borrow().clone().unwrap();
    assert!(status.revision == 5 && status.error.contains("no room"), "{status:?}");
    assert_eq!(*rig.programmed.borrow(), 5);
    rig.iptables.rules().refuse = None;
    rig.run().await.unwrap();
    let expected = RulesStatus { revision: 6, ..RulesStatus::default() };
    assert_eq!((*rig.programmed.borrow(), rig.timeless()), (6, Some(expected)));
}

// Seen red with the time of each run reported.
#[tokio::test]
async fn the_time_that_is_reported_is_that_at_which_the_rules_came_to_the_revision() {
    let mut rig = rig();
    let shown = |rig: &Rig| rig.status.borrow().clone().and_then(|status| status.programmed_at);
    rig.know(StateOrigin::Etcd, 5, &[]);
    let before = Timestamp::now();
    rig.run().await.unwrap();
    let first = shown(&rig).unwrap();
    assert!((before..=Timestamp::now()).contains(&first), "{first}");
    rig.iptables.rules().refuse = Some("no room".into());
    rig.know(StateOrigin::Etcd, 6, &[("web", service(&["10.244.3.5:80"]))]);
    rig.run().await.unwrap_err();
    assert_eq!(shown(&rig), Some(first), "nothing new is programmed");
    rig.iptables.rules().refuse = None;
    rig.run().await.unwrap();
    let second = shown(&rig).unwrap();
    assert!(second > first);
    rig.iptables.rules().generation = Some(99);
    assert_eq!(rig.run().await, Ok(true), "a flush is healed");
    assert_eq!(shown(&rig), Some(second), "what is healed is no news of the services");
}

fn at(last: u8, endpoint: &str) -> ServiceRecord {
    ServiceRecord { cluster_ip: Some(Ipv4Addr::new(10, 96, 0, last)), ..service(&[endpoint]) }
}

// Seen red with `owners` always empty, with only one owner per rejection, and without `forget_changed`.
#[tokio::test]
async fn services_that_iptables_refuses_keep_no_other_from_its_rules() {
    let mut rig = rig();
    let (web, bad, worse) = (at(5, "10.244.3.5:80"), at(6, "10.244.3.66:80"), at(7, "10.244.3.77:80"));
    rig.iptables.rules().refuse_lines = vec!["10.244.3.66:80".into(), "10.244.3.77:80".into()];
    rig.know(StateOrigin::Etcd, 7, &[("web", web.clone()), ("bad", bad.clone()), ("worse", worse.clone())]);
    assert_eq!(rig.run().await, Ok(true));
    assert_eq!(*rig.programmed.borrow(), 0, "nothing stands yet");
    assert_eq!(rig.news, ["default/bad", "default/worse"], "both in one round");
    assert_eq!(rig.run().await, Ok(true));
    rig.stands(&[("web", &web)]);
    let status = rig.status.borrow().clone().unwrap();
    assert_eq!((*rig.programmed.borrow(), status.revision), (7, 7));
    for (name, address) in [("default/bad", "10.244.3.66:80"), ("default/worse", "10.244.3.77:80")] {
        for part in ["failed: bad rule; the rule is -A MK8S-SEP-", address] {
            assert!(status.left_out[name].contains(part), "{part}: {status:?}");
        }
    }
    assert!(status.left_out.len() == 2 && status.error.is_empty(), "{status:?}");
    assert_eq!(rig.run().await, Ok(false), "they are not tried again at once");
    // First other services change, then the bad service's own record.
    rig.know(StateOrigin::Etcd, 8, &[("web", at(5, "10.244.3.7:80")), ("bad", bad.clone())]);
    assert_eq!(rig.run().await, Ok(true));
    let named: Vec<_> = rig.status.borrow().clone().unwrap().left_out.into_keys().collect();
    assert_eq!(named, ["default/bad"]);
    let mended = at(6, "10.244.3.8:80");
    rig.know(StateOrigin::Etcd, 9, &[("web", web.clone()), ("bad", mended.clone())]);
    assert_eq!(rig.run().await, Ok(true));
    rig.stands(&[("web", &web), ("bad", &mended)]);
    assert_eq!(rig.timeless(), Some(RulesStatus { revision: 9, ..RulesStatus::default() }));
    // Rejected once more: its former rules may lead to an address that no pod has.
    let kernel = rig.kernel();
    rig.iptables.rules().saved = kernel;
    rig.know(StateOrigin::Etcd, 10, &[("web", web.clone()), ("bad", bad)]);
    rig.run().await.unwrap();
    rig.run().await.unwrap();
    rig.stands(&[("web", &web)]);
    assert_eq!(rig.run().await, Ok(false));
}

// Seen red with the rejected input sent in parts again: one round for each bad service.
#[tokio::test]
async fn bad_services_of_several_transactions_are_left_out_in_three_rounds() {
    let mut rig = rig();
    rig.iptables.rules().saved = BARE.to_owned();
    rig.iptables.rules().apply = Some(after_restore);
    let records: Vec<(String, ServiceRecord)> =
        (1..=200_u8).map(|n| (format!("s{n:03}"), at(n, &format!("10.244.3.{n}:80")))).collect();
    let bad = [20, 90, 110, 170].map(|n| format!("10.244.3.{n}:80"));
    rig.iptables.rules().refuse_lines = bad.to_vec();
    let all: Vec<(&str, ServiceRecord)> = records.iter().map(|(n, r)| (n.as_str(), r.clone())).collect();
    rig.know(StateOrigin::Etcd, 7, &all);
    for _ in 0..3 {
        assert_eq!(rig.run().await, Ok(true));
    }
    let is_good =
        |(_, record): &&(&str, ServiceRecord)| !bad.contains(&format!("{}:80", record.endpoints[0].address));
    let good: Vec<(&str, &ServiceRecord)> = all.iter().filter(is_good).map(|(n, r)| (*n, r)).collect();
    assert_eq!(good.len(), 196);
    assert_eq!(rig.iptables.rules().saved, programmed(&good));
    assert_eq!(rig.run().await, Ok(false));
    assert_eq!(rig.status.borrow().clone().unwrap().left_out.len(), 4);
}

// Seen red with every rejection blamed on a service.
#[tokio::test(start_paused = true)]
async fn no_service_is_left_out_for_what_others_took_away() {
    let mut rig = rig();
    rig.iptables.rules().saved = BARE.to_owned();
    rig.iptables.rules().apply = Some(after_restore);
    rig.know(StateOrigin::Etcd, 5, &[("web", service(&["10.244.3.5:80"]))]);
    assert_eq!(rig.run().await, Ok(true));
    // The rules are flushed and deleted, and the input based on the rules known before jumps to a missing chain.
    {
        let mut rules = rig.iptables.rules();
        (rules.generation, rules.saved) = (Some(99), BARE.to_owned());
        rules.refuse_lines = vec!["10.244.3.6:80".into()];
    }
    let moved = service(&["10.244.3.6:80"]);
    rig.know(StateOrigin::Etcd, 6, &[("web", moved.clone())]);
    assert_eq!(rig.run().await, Ok(true));
    assert!(
        rig.news.is_empty() && rig.next == Some(Next::After(Duration::from_millis(100))),
        "{:?}",
        rig.next
    );
    assert_eq!(*rig.programmed.borrow(), 5);
    rig.iptables.rules().refuse_lines.clear();
    assert_eq!(rig.run().await, Ok(true));
    assert_eq!(rig.iptables.rules().saved, programmed(&[("web", &moved)]));
    let expected = RulesStatus { revision: 6, ..RulesStatus::default() };
    assert_eq!(rig.timeless(), Some(expected));
}

// Seen red with `leaves_out` always false.
#[tokio::test]
async fn a_restarted_agent_leaves_the_refused_service_out_and_touches_no_other() {
    let mut first = rig();
    let (web, bad) = (at(5, "10.244.3.5:80"), at(6, "10.244.3.66:80"));
    let services = [("web", web.clone()), ("bad", bad.clone())];
    first.iptables.rules().refuse_lines = vec!["10.244.3.66:80".into()];
    first.know(StateOrigin::Etcd, 7, &services);
    first.run().await.unwrap();
    first.run().await.unwrap();
    first.stands(&[("web", &web)]);
    let saved = first.kernel();
    let mut second = rig_on(Arc::clone(&first.iptables));
    second.iptables.rules().saved = saved;
    second.iptables.rules().restored.clear();
    second.know(StateOrigin::Etcd, 7, &services);
    assert_eq!(second.run().await, Ok(true), "it is tried");
    assert_eq!(second.run().await, Ok(false), "and then all is as it should be");
    assert!(second.iptables.rules().restored.is_empty());
    assert_eq!((*second.programmed.borrow(), second.news.as_slice()), (7, &["default/bad".to_owned()][..]));
    assert!(second.status.borrow().clone().unwrap().left_out.contains_key("default/bad"));
}

// Seen red with `is_due` always false, with every rejection as news, and without `put_back`.
#[tokio::test(start_paused = true)]
async fn a_refused_service_is_tried_again_each_minute_until_it_is_taken() {
    let mut rig = rig();
    let (web, bad) = (at(5, "10.244.3.5:80"), at(6, "10.244.3.66:80"));
    rig.iptables.rules().refuse_lines = vec!["10.244.3.66:80".into()];
    rig.know(StateOrigin::Etcd, 7, &[("web", web.clone()), ("bad", bad.clone())]);
    rig.run().await.unwrap();
    rig.run().await.unwrap();
    let shown = rig.status.borrow().clone();
    let kernel = rig.kernel();
    rig.iptables.rules().saved = kernel;
    for _ in 0..3 {
        tokio::time::advance(RETRY - Duration::from_secs(1)).await;
        assert_eq!(rig.run().await, Ok(false));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(rig.run().await, Ok(true), "tried again");
        assert_eq!(rig.run().await, Ok(false), "once");
        assert_eq!(*rig.status.borrow(), shown);
        assert_eq!(rig.news, ["default/bad"], "the same is reported once, whatever the line was");
    }
    // A rejection that names no rule fails the whole input: the retried service waits again, for the others' sake.
    rig.iptables.rules().refuse_lines = vec!["COMMIT".into()];
    tokio::time::advance(RETRY).await;
    assert!(rig.run().await.unwrap_err().contains("bad rule"));
    assert_eq!(rig.run().await, Ok(false));
    rig.iptables.rules().refuse_lines.clear();
    tokio::time::advance(RETRY).await;
    assert_eq!(rig.run().await, Ok(true));
    rig.stands(&[("web", &web), ("bad", &bad)]);
    assert_eq!(rig.timeless(), Some(RulesStatus { revision: 7, ..RulesStatus::default() }));
    tokio::time::advance(RETRY).await;
    let kernel = rig.kernel();
    rig.iptables.rules().saved = kernel;
    assert_eq!(rig.run().await, Ok(false));
}

// Seen red with 50 names in all, and with no limit of bytes.
#[test]
fn all_refused_services_are_named_as_far_as_a_value_has_room() {
    let record = versioned(service(&[]));
    let of = |count: usize, name: &str, why: &str| {
        let mut refusals = Refusals::default();
        for number in 0..count {
            let id = id(&format!("{name}{number:04}"));
            refusals.refuse(&id, Arc::clone(&record), why, tokio::time::Instant::now());
        }
        let (left_out, more) = refusals.named();
        let status = RulesStatus {
            revision: i64::MAX,
            programmed_at: Some(Timestamp::MAX),
            error: "e".repeat(8_000),
            left_out,
        };
        schema::codec::encode(&status).unwrap();
        let explained = status.left_out.values().filter(|why| *why != "see the events").count();
        (status.left_out.len(), explained, more)
    };
    assert_eq!(of(50, "web", &"no \"such\" table ".repeat(40)), (50, 50, 0));
    assert_eq!(of(800, "web", "no such table"), (800, 50, 0));
    assert_eq!(of(1_200, "web", "no such table"), (1_000, 50, 200));
    let (named, _, more) = of(1_000, &"w".repeat(59), &"\u{1}\u{1F980}".repeat(400));
    assert!(named > 500 && named + more == 1_000, "{named} of a worst case");
}

#[tokio::test]
async fn udp_clients_of_a_replaced_endpoint_start_anew_once_the_rules_stand() {
    let mut rig = rig();
    let dns =
        |endpoint: &str| ServiceRecord { ports: vec![port(Protocol::Udp, 53, None)], ..service(&[endpoint]) };
    let flow = |from: &str| UdpFlow { to: "10.96.0.5:53".parse().unwrap(), from: from.parse().unwrap() };
    rig.know(StateOrigin::Etcd, 5, &[("dns", dns("10.244.3.5:53"))]);
    rig.run().await.unwrap();
    rig.iptables.rules().flows.insert(flow("10.244.3.5:53"));
    rig.know(StateOrigin::Etcd, 6, &[("dns", dns("10.244.3.6:53"))]);
    rig.run().await.unwrap();
    assert_eq!(rig.iptables.rules().forgotten_flows, [flow("10.244.3.5:53")]);
    assert_eq!(rig.run().await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn what_is_printed_in_another_spelling_is_written_twice_and_then_known() {
    let mut rig = rig();
    rig.iptables.rules().generation = None;
    rig.know(StateOrigin::Etcd, 5, &[]);
    rig.run().await.unwrap();
    let printed = programmed(&[]).replace("0x4000/0x0", "0x4000/0x00000000");
    rig.iptables.rules().saved = printed;
    assert_eq!(rig.run().await, Ok(true), "it may be somebody's change");
    assert_eq!(rig.run().await, Ok(false), "it is this iptables");
    let changed = rig.iptables.rules().saved.replace("0x00000000", "0x1");
    rig.iptables.rules().saved = changed;
    assert_eq!(rig.run().await, Ok(true), "that is somebody's change");
}

// Seen red (the time alone) without the time that is stored.
#[tokio::test(start_paused = true)]
async fn the_status_is_written_when_it_changes_and_again_when_etcd_lost_it() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let (statuses, status) = watch::channel(None);
    let shutdown = CancellationToken::new();
    let writer = StatusWriter::for_key(Key::Rules("here".to_owned()), Arc::clone(&store));
    tokio::spawn(writer.run(status, shutdown.clone()));
    let key = Key::Rules("here".to_owned()).to_string();
    let stored = async |seconds: u64| {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let value = store.get(&key).await.unwrap();
        value.map(|value| schema::codec::decode::<RulesStatus>(&value.value).unwrap().revision)
    };
    assert_eq!(stored(5).await, None);
    for revision in 1..9 {
        statuses.send_replace(Some(RulesStatus { revision, ..RulesStatus::default() }));
    }
    assert_eq!(stored(2).await, Some(8));
    let _ = store.txn(Vec::new(), vec![schema::store::Op::delete(&key)]).await.unwrap();
    assert_eq!(stored(31).await, Some(8));
    // A restarted agent finds the rules in place, so the stored time stays for the same revision.
    let (then, now) = (Timestamp::UNIX_EPOCH, Timestamp::now());
    let at = |revision: i64, time: Timestamp| {
        Some(RulesStatus { revision, programmed_at: Some(time), ..RulesStatus::default() })
    };
    let time = async || {
        let value = store.get(&key).await.unwrap().unwrap().value;
        schema::codec::decode::<RulesStatus>(&value).unwrap().programmed_at
    };
    for (revision, shown, expected) in [(8, then, then), (8, now, then), (9, now, now), (8, then, then)] {
        statuses.send_replace(at(revision, shown));
        assert_eq!((stored(2).await, time().await), (Some(revision), Some(expected)));
    }
    let revision = store.get(&key).await.unwrap().unwrap().mod_revision;
    assert_eq!(stored(100).await, Some(8));
    assert_eq!(
        store.get(&key).await.unwrap().unwrap().mod_revision,
        revision,
        "written only when it changes"
    );
}
