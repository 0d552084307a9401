//! The controllers together on an in-memory store: real shells, real reflector, real fences.
//!
//! Assertions read the store, never a shell's own report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use schema::codec::{decode, encode};
use schema::control::{Loop, Observation};
use schema::keys::{Key, ROOT, prefix};
use schema::kinds::pod::PodSpec;
use schema::object::Object;
use schema::records::{Binding, PodInstance, Subnet};
use schema::store::election::{Fence, FenceReader};
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::reflector::{self, SnapshotReader};
use schema::store::{Op, Store, TxnOutcome};
use schema::testing::{
    binding, heartbeat, instance, node_record, object, object_key, pod_ref, spec, take_lead,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::nodes::Nodes;
use super::scheduler::{Scheduler, explain};
use super::testing::settings;
use super::workloads::Workloads;
use super::{Controller, Deps, LastKnown, Observed, Shell, Writes};

/// Rounds within which everything must settle.
const ROUNDS_MAX: usize = 30;

/// Last known state for an etcd that was never lost.
fn no_last_known() -> watch::Receiver<Arc<LastKnown>> {
    watch::channel(Arc::default()).1
}

/// A reconciler's controllers.
struct Reconciler {
    workloads: Shell<Workloads>,
    scheduler: Shell<Scheduler>,
    nodes: Shell<Nodes>,
}

struct Sim {
    store: MemoryStore,
    snapshot: SnapshotReader,
    reconciler: Reconciler,
    _reflector: tokio::task::JoinHandle<()>,
}

/// Runs a controller once and returns its plan; `None` if it was not ready.
async fn run<C: Controller>(shell: &mut Shell<C>) -> Option<Writes> {
    match shell.observe().await {
        Ok(Observation::Ready(seen)) => {
            let plan = Shell::<C>::plan(&seen, jiff::Timestamp::UNIX_EPOCH);
            let planned = plan.clone();
            finish(shell, seen, plan).await;
            Some(planned)
        }
        Ok(Observation::NotReady(_)) | Err(_) => None,
    }
}

async fn finish<C: Controller>(shell: &mut Shell<C>, seen: Observed, plan: Writes) {
    let outcome = shell.act(&seen, plan).await;
    // An error comes from the store; the next run makes up for it.
    let _ = shell.report(seen, outcome).await;
}

impl Sim {
    async fn new() -> Self {
        let store = MemoryStore::new();
        let shared = Arc::new(store.clone());
        let (snapshot, reflecting) =
            reflector::reflect(shared, vec![ROOT.to_owned()], CancellationToken::new());
        let fence = take_lead(&store).await;
        let reconciler = Reconciler::new(&store, &snapshot, fence);
        Self { store, snapshot, reconciler, _reflector: tokio::spawn(reflecting) }
    }

    /// A simulation with `count` beating nodes `n1`, `n2`, ….
    async fn with_nodes(count: u8) -> Self {
        let sim = Self::new().await;
        for i in 1..=count {
            let name = format!("n{i}");
            sim.put(&Key::Node(name.clone()), &node_record(&name)).await;
            sim.put(&Key::Heartbeat(name), &heartbeat()).await;
        }
        sim
    }

    /// Elects another process, which starts without any memory.
    async fn change_leader(&mut self) {
        let fence = take_lead(&self.store).await;
        self.reconciler = Reconciler::new(&self.store, &self.snapshot, fence);
    }

    async fn put<T: Serialize>(&self, key: &Key, value: &T) {
        commit(&self.store, Op::put(key, encode(value).unwrap())).await;
    }

    async fn delete(&self, key: &Key) {
        commit(&self.store, Op::delete(key)).await;
    }

    async fn push(&self, object: &Object) {
        self.put(&object_key(&object.metadata.name), object).await;
    }

    /// Waits until the snapshot holds everything in the store.
    async fn catch_up(&mut self) {
        let newest = self.store.revision();
        let snapshot = &mut self.snapshot;
        let reached = async {
            while !snapshot.current().synced || snapshot.current().revision < newest {
                snapshot.changed().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reached).await.expect("the snapshot catches up");
    }

    /// Runs all controllers until none has anything left to write.
    async fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.catch_up().await;
            let plans = [
                run(&mut self.reconciler.nodes).await,
                run(&mut self.reconciler.workloads).await,
                run(&mut self.reconciler.scheduler).await,
            ];
            if plans.iter().all(|plan| plan.as_ref().is_some_and(|plan| plan.writes.is_empty())) {
                return;
            }
        }
        panic!("no rest after {ROUNDS_MAX} rounds");
    }

    async fn all<T: DeserializeOwned>(&self, below: &str) -> BTreeMap<String, T> {
        let items = self.store.list(below).await.unwrap().items;
        let short = |key: &str| key.strip_prefix(below).unwrap().to_owned();
        items.iter().map(|item| (short(&item.key), decode(&item.value).unwrap())).collect()
    }

    async fn bindings(&self) -> BTreeMap<String, Binding> {
        self.all(prefix::BINDINGS).await
    }

    async fn bound(&self) -> Vec<String> {
        self.bindings().await.into_keys().collect()
    }
}

impl Reconciler {
    fn new(store: &MemoryStore, snapshot: &SnapshotReader, fence: Fence) -> Self {
        let deps = Deps {
            store: Arc::new(store.clone()),
            snapshot: snapshot.clone(),
            fence: FenceReader::fixed(Some(fence)),
            last_known: no_last_known(),
            events: EventRecorder::disabled(),
            settings: settings(),
        };
        Self {
            workloads: Shell::new(deps.clone()),
            scheduler: Shell::new(deps.clone()),
            nodes: Shell::new(deps),
        }
    }
}

async fn commit(store: &MemoryStore, op: Op) {
    assert!(matches!(store.txn(vec![], vec![op]).await.unwrap(), TxnOutcome::Committed(_)));
}

#[tokio::test(start_paused = true)]
async fn an_object_becomes_a_pod_with_a_node_and_goes_again() {
    let mut sim = Sim::with_nodes(2).await;
    sim.push(&object("web", spec(100, 64))).await;
    sim.settle().await;
    let subnets: BTreeMap<String, Subnet> = sim.all(prefix::SUBNETS).await;
    let ranges: Vec<String> = subnets.values().map(|subnet| subnet.cidr.to_string()).collect();
    assert_eq!(ranges, ["10.244.0.0/24", "10.244.1.0/24"]);
    let pods: BTreeMap<String, PodInstance> = sim.all(prefix::PODS).await;
    assert_eq!(pods["default/web"], instance("web", spec(100, 64)));
    assert_eq!(sim.bindings().await["n1/default/web"].pod, instance("web", spec(100, 64)));

    sim.delete(&object_key("web")).await;
    sim.settle().await;
    assert!(sim.bound().await.is_empty());
    assert!(sim.all::<PodInstance>(prefix::PODS).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn at_rest_nothing_is_written() {
    let mut sim = Sim::with_nodes(2).await;
    sim.push(&object("web", spec(100, 64))).await;
    sim.settle().await;
    let revision = sim.store.revision();
    sim.settle().await;
    sim.change_leader().await;
    sim.settle().await;
    assert_eq!(sim.store.revision(), revision + 2, "only the leader key went and came");
}

#[tokio::test(start_paused = true)]
async fn a_label_reaches_the_binding_with_the_uid_kept_and_an_image_with_the_node_kept() {
    let mut sim = Sim::with_nodes(2).await;
    sim.push(&object("web", spec(100, 64))).await;
    sim.settle().await;
    let before = sim.bindings().await["n1/default/web"].clone();

    let mut labelled = object("web", spec(100, 64));
    labelled.metadata.labels.insert("tier".into(), "front".into());
    sim.push(&labelled).await;
    sim.settle().await;
    let after = sim.bindings().await["n1/default/web"].clone();
    assert_eq!(after.pod.labels["tier"], "front");
    assert_eq!(after.pod.uid, before.pod.uid);
    assert_eq!(after.reason, before.reason);

    let mut image = spec(100, 64);
    image.containers[0].image = "busybox:2".into();
    sim.push(&object("web", image)).await;
    sim.settle().await;
    assert_eq!(sim.bound().await, ["n1/default/web"]);
    let replaced = sim.bindings().await["n1/default/web"].clone();
    assert_ne!(replaced.pod.uid, before.pod.uid);
    assert_eq!(replaced.pod.spec.containers[0].image, "busybox:2");
}

#[tokio::test(start_paused = true)]
async fn an_etcd_that_was_lost_is_filled_again_under_the_same_fence() {
    let mut sim = Sim::with_nodes(2).await;
    sim.push(&object("web", spec(100, 64))).await;
    sim.settle().await;
    let fence = sim.store.get(&Key::Leader.to_string()).await.unwrap().unwrap().create_revision;

    sim.store.lose_everything();
    assert_eq!(take_lead(&sim.store).await.create_revision, fence, "a new etcd counts from 1");
    sim.put(&Key::Node("n1".into()), &node_record("n1")).await;
    sim.put(&Key::Heartbeat("n1".into()), &heartbeat()).await;
    sim.push(&object("web", spec(100, 64))).await;
    while sim.snapshot.current().revision != sim.store.revision() {
        sim.snapshot.changed().await;
    }
    for _ in 0..2 {
        run(&mut sim.reconciler.nodes).await;
        run(&mut sim.reconciler.workloads).await;
        run(&mut sim.reconciler.scheduler).await;
    }
    sim.settle().await;
    assert_eq!(sim.bound().await, ["n1/default/web"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_moved_writes_nothing_below_pods_and_bindings() {
    let mut sim = Sim::with_nodes(1).await;
    sim.push(&object("web", spec(100, 64))).await;
    sim.settle().await;
    let revision = sim.store.revision();
    let mut moved = object("web", spec(100, 64));
    moved.provenance.file = "elsewhere.yaml".into();
    sim.push(&moved).await;
    sim.settle().await;
    assert_eq!(sim.store.revision(), revision + 1, "only the object itself");
}

#[tokio::test(start_paused = true)]
async fn of_duplicate_bindings_one_survives() {
    let mut sim = Sim::with_nodes(3).await;
    sim.push(&object("web", spec(100, 64))).await;
    sim.settle().await;
    for node in ["n2", "n3"] {
        let binding = binding(node, &instance("web", spec(100, 64)));
        sim.put(&Key::Binding(node.into(), pod_ref("web")), &binding).await;
    }
    assert_eq!(sim.bound().await.len(), 3);
    sim.settle().await;
    assert_eq!(sim.bound().await, ["n1/default/web"]);
}

#[tokio::test(start_paused = true)]
async fn who_lost_the_lead_between_plan_and_act_writes_nothing() {
    let mut sim = Sim::with_nodes(1).await;
    sim.push(&object("web", spec(100, 64))).await;
    sim.catch_up().await;
    let mut old = Shell::<Workloads>::new(Deps {
        store: Arc::new(sim.store.clone()),
        snapshot: sim.snapshot.clone(),
        // Keeps believing that it leads, like a process that was stopped past the end of its lease.
        fence: FenceReader::fixed(Some(take_lead(&sim.store).await)),
        last_known: no_last_known(),
        events: EventRecorder::disabled(),
        settings: settings(),
    });
    sim.catch_up().await;
    let Ok(Observation::Ready(seen)) = old.observe().await else { panic!("leads") };
    let plan = Shell::<Workloads>::plan(&seen, jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(plan.writes.len(), 1);
    sim.change_leader().await;
    let revision = sim.store.revision();
    let outcome = old.act(&seen, plan).await;
    assert_eq!(sim.store.revision(), revision);
    assert!(old.report(seen, outcome).await.is_err(), "it says that it lost the lead");
    sim.settle().await;
    assert_eq!(sim.bound().await, ["n1/default/web"]);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_does_not_plan() {
    let sim = Sim::with_nodes(1).await;
    let mut follower = Shell::<Workloads>::new(Deps {
        store: Arc::new(sim.store.clone()),
        snapshot: sim.snapshot.clone(),
        fence: FenceReader::fixed(None),
        last_known: no_last_known(),
        events: EventRecorder::disabled(),
        settings: settings(),
    });
    assert!(matches!(follower.observe().await, Ok(Observation::NotReady(_))));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_planned_on_a_snapshot_older_than_ones_own_writes() {
    let mut sim = Sim::with_nodes(2).await;
    sim.push(&object("web", spec(100, 64))).await;
    sim.settle().await;
    // A reader whose snapshot stands still, as behind a hanging watch.
    let (publisher, stale) = SnapshotReader::channel((*sim.snapshot.current()).clone());
    let mut shell = Shell::<Workloads>::new(Deps {
        store: Arc::new(sim.store.clone()),
        snapshot: stale,
        fence: FenceReader::fixed(Some(take_lead(&sim.store).await)),
        last_known: no_last_known(),
        events: EventRecorder::disabled(),
        settings: settings(),
    });
    assert!(matches!(shell.observe().await, Ok(Observation::NotReady(_))), "older than its own election");
    sim.push(&object("new", spec(100, 64))).await;
    sim.catch_up().await;
    publisher.publish((*sim.snapshot.current()).clone());
    assert_eq!(run(&mut shell).await.unwrap().writes.len(), 1);
    assert!(matches!(shell.observe().await, Ok(Observation::NotReady(_))), "older than its own write");
    sim.catch_up().await;
    publisher.publish((*sim.snapshot.current()).clone());
    assert!(run(&mut shell).await.unwrap().writes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_key_that_moved_on_holds_up_no_other() {
    let mut sim = Sim::with_nodes(1).await;
    for i in 0..300 {
        sim.push(&object(&format!("p{i:03}"), spec(1, 1))).await;
    }
    sim.catch_up().await;
    let shell = &mut sim.reconciler.workloads;
    let Ok(Observation::Ready(seen)) = shell.observe().await else { panic!("leads") };
    let plan = Shell::<Workloads>::plan(&seen, jiff::Timestamp::UNIX_EPOCH);
    let taken = instance("p150", spec(1, 1));
    commit(&sim.store, Op::put(Key::Pod(pod_ref("p150")), encode(&taken).unwrap())).await;
    let before = sim.store.revision();
    finish(shell, seen, plan).await;
    assert_eq!(sim.all::<PodInstance>(prefix::PODS).await.len(), 300);
    assert!(sim.store.revision() - before < 20, "batches, not single writes");
}

#[tokio::test(start_paused = true)]
async fn pods_that_fit_nowhere_wait_for_room() {
    let mut sim = Sim::with_nodes(1).await;
    sim.push(&object("a", spec(3000, 64))).await;
    sim.push(&object("b", spec(3000, 64))).await;
    sim.settle().await;
    assert_eq!(sim.bound().await, ["n1/default/a"]);
    let why = explain(&sim.snapshot.current(), &pod_ref("b")).unwrap();
    assert_eq!(why, "0/1 nodes fit: 1 not enough cpu (wants 3, free 1)");
    sim.delete(&object_key("a")).await;
    sim.settle().await;
    assert_eq!(sim.bound().await, ["n1/default/b"]);
}

/// An event in the cluster or in the reconciler.
#[derive(Debug, Clone)]
enum Step {
    Push {
        pod: u8,
        cpu: u16,
        pinned: bool,
        label: u8,
    },
    Remove {
        pod: u8,
    },
    Beat {
        node: u8,
    },
    Expire {
        node: u8,
    },
    BindByHand {
        pod: u8,
        node: u8,
    },
    Run {
        controller: u8,
    },
    /// Plans now and acts at the next `Stall`, on a snapshot that has moved on.
    Stall,
    /// Loses the next transaction: its answer if `done`, else the transaction itself.
    LoseTransaction {
        done: bool,
    },
    CutWatches,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (pod, node) = (0..6_u8, 1..4_u8);
    let step = prop_oneof![
        4 => (pod.clone(), 1..5000_u16, any::<bool>(), 0..3_u8)
            .prop_map(|(pod, cpu, pinned, label)| Step::Push { pod, cpu, pinned, label }),
        2 => pod.clone().prop_map(|pod| Step::Remove { pod }),
        1 => node.clone().prop_map(|node| Step::Beat { node }),
        1 => node.clone().prop_map(|node| Step::Expire { node }),
        1 => (pod, node).prop_map(|(pod, node)| Step::BindByHand { pod, node }),
        6 => (0..3_u8).prop_map(|controller| Step::Run { controller }),
        2 => Just(Step::Stall),
        2 => any::<bool>().prop_map(|done| Step::LoseTransaction { done }),
        1 => Just(Step::CutWatches),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..40)
}

fn spec_of(cpu: u16, pinned: bool) -> PodSpec {
    PodSpec { node_name: pinned.then(|| "n2".to_owned()), ..spec(u64::from(cpu), 64) }
}

async fn take(sim: &mut Sim, stalled: &mut Option<(Observed, Writes)>, step: Step) {
    match step {
        Step::Push { pod, cpu, pinned, label } => {
            let mut object = object(&format!("p{pod}"), spec_of(cpu, pinned));
            object.metadata.labels.insert("label".into(), label.to_string());
            sim.push(&object).await;
        }
        Step::Remove { pod } => sim.delete(&object_key(&format!("p{pod}"))).await,
        Step::Beat { node } => sim.put(&Key::Heartbeat(format!("n{node}")), &heartbeat()).await,
        Step::Expire { node } => sim.delete(&Key::Heartbeat(format!("n{node}"))).await,
        Step::BindByHand { pod, node } => {
            let (pod, node) = (format!("p{pod}"), format!("n{node}"));
            let binding = binding(&node, &instance(&pod, spec(7, 7)));
            sim.put(&Key::Binding(node, pod_ref(&pod)), &binding).await;
        }
        Step::Run { controller: 0 } => drop(run(&mut sim.reconciler.workloads).await),
        Step::Run { controller: 1 } => drop(run(&mut sim.reconciler.scheduler).await),
        Step::Run { .. } => drop(run(&mut sim.reconciler.nodes).await),
        Step::Stall => {
            let scheduler = &mut sim.reconciler.scheduler;
            if let Some((seen, plan)) = stalled.take() {
                finish(scheduler, seen, plan).await;
            } else if let Ok(Observation::Ready(seen)) = scheduler.observe().await {
                let plan = Shell::<Scheduler>::plan(&seen, jiff::Timestamp::UNIX_EPOCH);
                *stalled = Some((seen, plan));
            }
        }
        Step::LoseTransaction { done: false } => sim.store.fail_next_txns(1),
        Step::LoseTransaction { done: true } => sim.store.lose_next_answers(1),
        Step::CutWatches => sim.store.cut_watches(),
        Step::Crash => {
            sim.change_leader().await;
            *stalled = None;
        }
    }
}

/// Asserts that every object has its pod, bound once or with a reason why not, and that nothing else is bound.
async fn assert_converged(sim: &mut Sim) {
    sim.catch_up().await;
    let objects: BTreeSet<String> =
        sim.all::<Object>(&format!("{}Pod/", prefix::OBJECTS)).await.into_keys().collect();
    let pods: BTreeMap<String, PodInstance> = sim.all(prefix::PODS).await;
    assert_eq!(pods.keys().cloned().collect::<BTreeSet<_>>(), objects);
    let mut places: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
    for binding in sim.bindings().await.into_values() {
        places.entry(binding.pod.reference().to_string()).or_default().push(binding);
    }
    for (pod, bindings) in &places {
        assert_eq!(bindings.len(), 1, "{pod} is bound more than once: {bindings:?}");
        assert!(pods.contains_key(pod), "{pod} is bound and gone");
    }
    let snapshot = sim.snapshot.current();
    for (name, pod) in &pods {
        let why = explain(&snapshot, &pod.reference());
        match places.get(name) {
            Some(bindings) if bindings[0].pod == *pod => assert_eq!(why, None),
            _ => assert!(why.as_ref().is_some_and(|why| why.starts_with("0/3")), "{name}: {why:?}"),
        }
    }
    let subnets: BTreeMap<String, Subnet> = sim.all(prefix::SUBNETS).await;
    let ranges: BTreeSet<String> = subnets.values().map(|subnet| subnet.cidr.to_string()).collect();
    assert_eq!((subnets.len(), ranges.len()), (3, 3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_every_pod_ends_up_bound_once_or_says_why_not(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut sim = Sim::with_nodes(3).await;
            let mut stalled = None;
            for step in steps {
                // Faults hit the controllers, not the writes of the test itself.
                let by_hand = !matches!(step, Step::Run { .. } | Step::Stall);
                if by_hand {
                    sim.store.fail_next_txns(0);
                    sim.store.lose_next_answers(0);
                }
                take(&mut sim, &mut stalled, step).await;
            }
            sim.store.fail_next_txns(0);
            sim.store.lose_next_answers(0);
            sim.settle().await;
            assert_converged(&mut sim).await;
        });
    }
}
