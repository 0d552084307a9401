//! The loop and its courier on the store in memory, with a sender whose answers the tests give.

use futures::{FutureExt as _, stream};
use schema::control::{Nudge, Runtime};
use schema::kinds::cluster::{NotificationEvent, NotificationWebhook};
use schema::records::{ClusterSettings, OutboxEntry, Revision, SourceState, Verdict};
use schema::snapshot::Change;
use schema::store::memory::MemoryStore;
use schema::store::reflector::SnapshotPublisher;
use schema::store::{Store, TxnOutcome};
use schema::testing::{COMMIT, at, revision, source_status, take_lead};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;

use super::send::{DeliveryError, DeliveryOutcome};
use super::*;

/// A delivery in flight, and its end: accepted, or cut if that is dropped.
type Flight = (Delivery, oneshot::Sender<()>);

/// A cluster with a bad commit, and a webhook as its only target.
struct World {
    store: MemoryStore,
    publisher: SnapshotPublisher,
    reader: SnapshotReader,
    etcd: watch::Sender<Arc<UpkeepState>>,
    started: Timestamp,
}

/// A reconciler's loop, and what it has in flight.
struct Process {
    the_loop: NotificationLoop,
    flying: mpsc::UnboundedReceiver<Flight>,
}

fn settings(url: &str) -> ClusterSettings {
    let mut settings = ClusterSettings { source: "main".to_owned(), ..ClusterSettings::default() };
    settings.spec.notifications = vec![Notification {
        name: "ops".to_owned(),
        webhook: Some(NotificationWebhook { url: Some(url.to_owned()), template: None }),
        ..Notification::default()
    }];
    settings
}

impl World {
    async fn new() -> Self {
        let (publisher, reader) = SnapshotReader::channel(Snapshot::default());
        let (store, etcd) = (MemoryStore::new(), watch::Sender::new(Arc::default()));
        let world = Self { store, publisher, reader, etcd, started: Timestamp::now() };
        world.put(&Key::Settings, &settings("https://hooks.example")).await;
        world.put(&Key::Source("main".to_owned()), &source_status(SourceState::Synced)).await;
        let verdict = Verdict::Bad { why: "it ends".to_owned() };
        let bad = Revision { verdict, decided_at: Some(at(40)), ..revision(1, COMMIT) };
        world.put(&Key::Revision("main".to_owned(), 1), &bad).await;
        world
    }

    async fn put(&self, key: &Key, value: &impl serde::Serialize) {
        let ops = vec![Op::put(key, codec::encode(value).unwrap())];
        assert!(matches!(self.store.txn(Vec::new(), ops).await.unwrap(), TxnOutcome::Committed(_)));
    }

    /// A process that leads, after all others. Its courier is to be run.
    async fn process(&self) -> (Process, Courier) {
        let fence = FenceReader::fixed(Some(take_lead(&self.store).await));
        let (flights, flying) = mpsc::unbounded_channel();
        let sender = move |_: Arc<Target>, delivery: Delivery| {
            let (accept, accepted) = oneshot::channel();
            let _ = flights.send((delivery, accept));
            let cut = DeliveryError { message: "cut".to_owned(), retry_after: None };
            async move { accepted.await.map(|()| DeliveryOutcome::Sent).map_err(|_| cut) }.boxed()
        };
        let (courier, queue) = Courier::with(Arc::new(sender), fence.clone(), Nudge::default());
        let deps = NotificationDeps {
            store: Arc::new(self.store.clone()),
            snapshot: self.reader.clone(),
            fence,
            etcd: self.etcd.subscribe(),
            sources: Vec::new(),
            state_dir: PathBuf::from("/nowhere"),
            own_addresses: OwnAddresses::default(),
            page_url: None,
        };
        (Process { the_loop: NotificationLoop::new(deps, queue), flying }, courier)
    }

    /// Runs the loop on a fresh snapshot, seconds after the start.
    async fn run(&self, process: &mut Process, seconds: i64) -> Result<Next, LoopError> {
        let listing = self.store.list("/minik8s/").await.unwrap();
        let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
        for item in listing.items {
            let (key, value) = (item.key, item.value);
            let (create_revision, mod_revision) = (item.create_revision, item.mod_revision);
            snapshot.apply(&Change::Put { key, value, create_revision, mod_revision });
        }
        snapshot.revision = listing.revision;
        self.publisher.publish(snapshot);
        let Observation::Ready(observed) = process.the_loop.observe().await? else { panic!("not ready") };
        let plan = NotificationLoop::plan(&observed, self.started + SignedDuration::from_secs(seconds));
        let outcome = process.the_loop.act(&observed, plan).await;
        let next = process.the_loop.report(observed, outcome).await;
        // For the courier.
        for _ in 0..10 {
            yield_now().await;
        }
        next
    }

    async fn entry(&self, subject: &str) -> OutboxEntry {
        let key = Key::Outbox("ops".to_owned(), subject.to_owned()).to_string();
        codec::decode(&self.store.get(&key).await.unwrap().unwrap().value).unwrap()
    }
}

fn start(courier: Courier) {
    tokio::spawn(courier.run(CancellationToken::new()));
}

// Would fail with a delivery that begins anew, or never.
#[tokio::test]
async fn a_message_is_delivered_once_although_the_answer_to_the_write_of_its_entry_is_lost() {
    let world = World::new().await;
    let (mut process, courier) = world.process().await;
    start(courier);
    world.store.lose_next_answers(1);
    world.run(&mut process, 0).await.unwrap_err();
    assert!(process.flying.try_recv().is_err(), "its entry may not be written");
    world.run(&mut process, 1).await.unwrap();
    let (delivery, accept) = process.flying.try_recv().unwrap();
    assert_eq!(delivery.message.title, "source main: commit 111111111111 is bad");
    assert_eq!(delivery.subject, "verdict.main");
    assert_eq!(world.entry("verdict.main").await.attempt.unwrap().id, delivery.id);
    accept.send(()).unwrap();
    for seconds in [2, 3, 4] {
        world.run(&mut process, seconds).await.unwrap();
    }
    let entry = world.entry("verdict.main").await;
    assert_eq!((entry.is_owed(), entry.sent.unwrap().id), (false, delivery.id));
    assert!(process.flying.try_recv().is_err());
}

// Would fail with a message of the leader before that arrives after that of the next one.
#[tokio::test]
async fn the_next_leader_waits_until_the_delivery_of_the_one_before_must_be_over() {
    let world = World::new().await;
    let (mut former, courier) = world.process().await;
    start(courier);
    world.run(&mut former, 0).await.unwrap();
    let (before, accept) = former.flying.try_recv().unwrap();
    let (mut next, courier) = world.process().await;
    start(courier);
    for seconds in [1, 6] {
        world.run(&mut next, seconds).await.unwrap();
        assert!(next.flying.try_recv().is_err(), "after {seconds} s");
    }
    // The former one gets the answer, and writes nothing any more.
    accept.send(()).unwrap();
    for _ in 0..2 {
        world.run(&mut former, 6).await.unwrap();
    }
    assert!(world.entry("verdict.main").await.is_owed());
    world.run(&mut next, 7).await.unwrap();
    let (again, _) = next.flying.try_recv().unwrap();
    assert_eq!((again.id, again.may_have_arrived), (before.id, true));
}

// Would fail with a courier that drops what is in flight, and with a lead that is given up before.
#[tokio::test]
async fn the_lead_is_kept_at_shutdown_until_what_is_in_flight_has_ended() {
    let world = World::new().await;
    let (mut process, courier) = world.process().await;
    let mut runtime = Runtime::new();
    let mut all_ended = Box::pin(runtime.all_loops_ended());
    let token = runtime.token();
    runtime.task_like_loop("courier", courier.run(token));
    world.run(&mut process, 0).await.unwrap();
    let (_, accept) = process.flying.try_recv().unwrap();
    let stopping = tokio::spawn(runtime.run_until(stream::once(async { "stop" }.boxed())));
    world.run(&mut process, 1).await.unwrap();
    assert!(futures::poll!(all_ended.as_mut()).is_pending());
    accept.send(()).unwrap();
    all_ended.await;
    stopping.await.unwrap().unwrap();
}

#[tokio::test]
async fn that_etcd_is_at_its_quota_is_delivered_once_although_nothing_can_be_written() {
    let world = World::new().await;
    let (mut process, courier) = world.process().await;
    start(courier);
    let member = EtcdMember { alarms: vec!["NOSPACE".to_owned()], ..EtcdMember::default() };
    world.etcd.send_replace(Arc::new(UpkeepState { members: vec![member], ..UpkeepState::default() }));
    world.store.refuse_keys([Key::Outbox("ops".to_owned(), "etcd".to_owned()).to_string()]);
    world.run(&mut process, 0).await.unwrap_err();
    let (delivery, accept) = process.flying.try_recv().unwrap();
    assert!(delivery.message.title.starts_with("etcd is at its quota"), "{}", delivery.message.title);
    accept.send(()).unwrap();
    for seconds in [1, 100] {
        world.run(&mut process, seconds).await.unwrap_err();
        assert!(process.flying.try_recv().is_err(), "after {seconds} s");
    }
    // There is room: the entry follows, and with it the all-clear.
    world.store.refuse_keys([]);
    world.run(&mut process, 101).await.unwrap();
    assert!(world.entry("etcd").await.is_owed());
}

// Would fail with a write that is in conflict for ever.
#[tokio::test]
async fn an_entry_that_cannot_be_read_is_replaced() {
    let world = World::new().await;
    world.put(&Key::Outbox("ops".to_owned(), "verdict.main".to_owned()), &"no entry").await;
    let (mut process, courier) = world.process().await;
    start(courier);
    assert_eq!(world.run(&mut process, 0).await.unwrap(), Next::Interval);
    assert!(world.entry("verdict.main").await.attempt.is_some());
    assert!(process.flying.try_recv().is_ok());
}

#[test]
fn the_hash_of_settings_changes_with_the_receiver_and_not_with_its_events() {
    let hash = |settings: &ClusterSettings| {
        let found = targets(&[], Some(settings), "/state".as_ref(), &OwnAddresses::default());
        settings_hash(&found[0])
    };
    let (one, other) = (settings("https://one.example"), settings("https://other.example"));
    assert_ne!(hash(&one), hash(&other));
    let mut fewer = one.clone();
    fewer.spec.notifications[0].on = vec![NotificationEvent::Node];
    assert_eq!(hash(&one), hash(&fewer));
}
