//! Draining: a pod that must go waits until no node leads clients to it, and 5 s at most.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use schema::codec::encode;
use schema::control::Plan as _;
use schema::keys::Key;
use schema::records::{Endpoint, FunctionRecord, ProgrammedRules, Replica, ServiceRecord, Vtep};
use schema::snapshot::{Change, Snapshot};
use schema::store::memory::MemoryStore;
use schema::store::{Op, SharedStore};
use tokio::sync::watch;

use super::super::facts::{DRAIN_MAX, Drain, DrainReason};
use super::super::sandbox::drain::DrainBook;
use super::{at, binding, container, facts, pause, running, wants};
use crate::catalog::{Catalog, Peer};
use crate::converge::pods::facts::{Container, Observed};
use crate::converge::pods::plan::plan;
use crate::converge::pods::steps::{DecisionReason, PodTask};
use crate::desired::StateOrigin;
use crate::worlds::netlink::FakeNetlink;

struct Rig {
    kernel: Arc<FakeNetlink>,
    book: DrainBook,
    catalogs: watch::Sender<Arc<Catalog>>,
    programmed: watch::Sender<i64>,
    /// The fake behind `store`.
    memory: MemoryStore,
    store: SharedStore,
    snapshot: Snapshot,
    observed: Observed,
}

/// A pod of this node that runs at 10.244.3.2 and is not desired.
fn rig() -> Rig {
    let web = binding(
        "web",
        serde_json::from_value(serde_json::json!({"containers": [
            {"name": "web", "image": "app:1"},
        ]}))
        .unwrap(),
    );
    let mut observed = wants(&[]);
    let there = facts(&web, vec![pause(running(), "10.244.3.2")], vec![container("web", 0, running())]);
    observed.pods.insert(web.pod.uid, there);
    let (catalogs, catalog) = watch::channel(Arc::default());
    let (programmed, follow) = watch::channel(0);
    let memory = MemoryStore::new();
    let store: SharedStore = Arc::new(memory.clone());
    let kernel = Arc::new(FakeNetlink::default());
    let worlds = (Arc::clone(&kernel) as _, Arc::clone(&store));
    let book = DrainBook::new(&observed.node.node, catalog, follow, worlds);
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let (key, value) = (Key::Heartbeat("n9".to_owned()).to_string(), br#"{"since":"2026-01-01T00:00:00Z"}"#);
    let value = value.to_vec().into();
    snapshot.apply(&Change::Put { key, value, create_revision: 1, mod_revision: 1 });
    Rig { kernel, book, catalogs, programmed, memory, store, snapshot, observed }
}

impl Rig {
    /// Publishes services of this revision; one of them has our pod at `address`, if given.
    fn services(&self, revision: i64, address: Option<&str>) {
        let mut catalog = Catalog { revision, known_from: StateOrigin::Etcd, ..Catalog::default() };
        let mut record = ServiceRecord::default();
        if let Some(address) = address {
            record.endpoints.push(Endpoint {
                address: address.parse().unwrap(),
                ports: vec![80],
                node: Some(self.observed.node.node.clone()),
                pod: Some("web".to_owned()),
                hostname: None,
            });
        }
        let id = schema::meta::NamespacedName::new("default", "shop");
        let record =
            schema::snapshot::VersionedValue { value: record, create_revision: 1, mod_revision: revision };
        catalog.services.insert(id, Arc::new(record));
        for (peer, number) in [("n8", 8), ("n9", 9)] {
            let vtep = Vtep { address: [192, 0, 2, number].into(), mac: String::new() };
            let cidr = format!("10.244.{number}.0/24").parse().unwrap();
            let peer_is = Peer { cidr, vtep, address: None, absent_since: None };
            catalog.peers.insert(peer.to_owned(), peer_is);
        }
        self.catalogs.send_replace(Arc::new(catalog));
    }

    /// Publishes the functions as this node knows them, with or without our pod as a replica.
    fn functions(&self, is_replica: bool) {
        let mut catalog = Catalog { known_from: StateOrigin::Etcd, ..Catalog::default() };
        let (pod, node) = ("web".to_owned(), self.observed.node.node.clone());
        let replica = Replica { pod, node, address: "10.244.3.2:8080".parse().unwrap(), start: None };
        let replicas = is_replica.then_some(replica).into_iter().collect();
        let value = FunctionRecord { replicas, ..FunctionRecord::default() };
        let id = schema::meta::NamespacedName::new("default", "hello");
        catalog.functions.insert(id, schema::testing::versioned(value));
        self.catalogs.send_replace(Arc::new(catalog));
    }

    /// Writes what all live nodes have programmed, as the leader does.
    async fn everywhere(&self, revision: i64) {
        let value = encode(&ProgrammedRules { revision }).unwrap();
        let _ = self.store.txn(vec![], vec![Op::put(Key::Programmed, value)]).await.unwrap();
    }

    /// Creates an empty book on the same worlds.
    fn again(&self) -> DrainBook {
        let worlds = (Arc::clone(&self.kernel) as _, Arc::clone(&self.store));
        let (catalog, follow) = (self.catalogs.subscribe(), self.programmed.subscribe());
        DrainBook::new(&self.observed.node.node, catalog, follow, worlds)
    }

    async fn look(&mut self, seconds: i64) -> Option<DrainReason> {
        let Self { book, snapshot, observed, .. } = self;
        observed.draining = book.draining(&observed.pods, &observed.desired, snapshot, at(seconds)).await;
        observed.draining.values().next().map(|drain| drain.reason.clone())
    }
}

// Seen red in turn without `Listing::Gone`, without this node's rules and without those of the others.
#[tokio::test]
async fn a_pod_goes_when_the_services_and_then_all_nodes_have_let_it_go() {
    let mut rig = rig();
    rig.services(5, Some("10.244.3.2"));
    assert_eq!(rig.look(100).await, Some(DrainReason::Services));
    rig.services(7, None);
    rig.everywhere(8).await;
    assert_eq!(rig.look(101).await, Some(DrainReason::Nodes), "this node is behind");
    rig.programmed.send_replace(7);
    rig.everywhere(6).await;
    assert_eq!(rig.look(101).await, Some(DrainReason::Nodes), "another node is behind");
    rig.everywhere(7).await;
    assert_eq!(rig.look(102).await, None);
}

#[tokio::test]
async fn a_replica_of_a_function_goes_when_the_gateways_have_let_it_go_and_its_calls_have_ended() {
    let mut rig = rig();
    let facts = rig.observed.pods.values_mut().next().unwrap();
    facts.pauses[0] = Container { is_function: true, pid: 4711, ..facts.pauses[0].clone() };
    let calls = || Some(DrainReason::Calls(SignedDuration::from_secs(30)));
    rig.kernel.kernel().connections.insert(4711, 1);
    rig.functions(true);
    assert_eq!(rig.look(100).await, Some(DrainReason::Services));
    rig.functions(false);
    assert_eq!(rig.look(102).await, calls());
    assert_eq!(rig.look(129).await, calls(), "as long as it may take to end by itself");
    assert_eq!(rig.look(130).await, None);
    let mut rig = Rig { book: rig.again(), ..rig };
    rig.functions(true);
    assert_eq!(rig.look(200).await, Some(DrainReason::Services));
    rig.functions(false);
    rig.kernel.kernel().connections.clear();
    assert_eq!(rig.look(200).await, calls(), "other nodes' gateways have to learn of it");
    assert_eq!(rig.look(201).await, None);
}

#[tokio::test]
async fn a_pod_of_no_service_waits_for_nobody_nor_does_one_whose_name_another_has() {
    let mut rig = rig();
    rig.programmed.send_replace(9);
    rig.everywhere(9).await;
    assert_eq!(rig.look(100).await, None);
    rig.services(5, Some("10.244.3.77"));
    assert_eq!(rig.look(100).await, None);
}

// Seen red without `is_first`.
#[tokio::test]
async fn an_agent_that_comes_back_while_others_still_lead_to_a_pod_waits_for_them() {
    let mut rig = rig();
    rig.services(7, None);
    rig.programmed.send_replace(7);
    rig.everywhere(6).await;
    assert_eq!(rig.look(100).await, Some(DrainReason::Nodes));
    assert_eq!(rig.look(105).await, None, "its time is over");
}

// Seen red without the filter on `until` in the plan.
#[tokio::test]
async fn it_is_not_held_for_ever() {
    let mut rig = rig();
    let uid = rig.observed.pods.keys().next().unwrap().clone();
    rig.observed.draining.insert(uid.clone(), Drain { since: at(100), reason: DrainReason::Services });
    let decided = plan(&rig.observed, at(100));
    let decision = &decided.pods[&uid];
    assert!(decision.why == DecisionReason::Draining && decision.task.is_none(), "{decision:?}");
    let soon = Some(at(100) + SignedDuration::from_millis(100));
    assert_eq!((decision.next_at, decided.replan_at()), (soon, soon));
    let over = plan(&rig.observed, at(100) + DRAIN_MAX);
    assert!(matches!(over.pods[&uid].task, Some(PodTask::Down(_))));
}

#[tokio::test(start_paused = true)]
async fn while_the_rules_of_the_others_are_unknown_they_count_as_behind_until_the_time_is_over() {
    let mut rig = rig();
    rig.services(7, None);
    rig.programmed.send_replace(7);
    let behind = Some(DrainReason::Nodes);
    assert_eq!(rig.look(100).await, behind, "no leader has written them");
    rig.everywhere(7).await;
    // A single answer in time is enough.
    rig.memory.slow_gets(Duration::from_millis(400));
    assert_eq!(rig.look(100).await, None);
    rig.memory.slow_gets(Duration::from_secs(3));
    let begun = tokio::time::Instant::now();
    assert_eq!(rig.look(100).await, behind, "the store is slow");
    assert!(begun.elapsed() < Duration::from_secs(1), "the other pods of the node are held up");
    rig.memory.slow_gets(Duration::ZERO);
    rig.memory.refuse_everything(true);
    assert_eq!(rig.look(101).await, behind, "the store fails");
    rig.memory.refuse_everything(false);
    let garbage = Op::put(Key::Programmed, b"{".to_vec());
    let _ = rig.store.txn(vec![], vec![garbage]).await.unwrap();
    assert_eq!(rig.look(102).await, behind, "what it says can't be read");
    rig.memory.refuse_everything(true);
    assert_eq!(rig.look(105).await, None, "its time is over");
}

#[tokio::test]
async fn the_only_live_node_waits_for_its_own_rules_alone() {
    let mut rig = rig();
    rig.snapshot.apply(&Change::Delete { key: Key::Heartbeat("n9".to_owned()).to_string() });
    rig.services(7, None);
    rig.memory.refuse_everything(true);
    assert_eq!(rig.look(100).await, Some(DrainReason::Nodes));
    rig.programmed.send_replace(7);
    assert_eq!(rig.look(100).await, None);
}
