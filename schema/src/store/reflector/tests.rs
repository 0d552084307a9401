//! The fold as a function, and the reflector on the in-memory store and a paused clock.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use crate::keys::prefix;
use crate::store::memory::MemoryStore;
use crate::store::{KeyValue, Listing, Op, Store as _, WatchBatch, WatchEvent};

const SINCE: &str = r#"{"since":"2026-01-01T00:00:00Z"}"#;
const LATER: &str = r#"{"since":"2026-02-02T00:00:00Z"}"#;

fn beat(node: &str) -> String {
    format!("{}{node}", prefix::HEARTBEATS)
}

fn item(key: &str, value: &str, revision: i64) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: value.to_owned().into(),
        create_revision: revision,
        mod_revision: revision,
    }
}

fn listed(number: usize, items: Vec<KeyValue>, revision: i64) -> Input {
    Input::Listed(number, Listing { items, revision })
}

fn changed(number: usize, events: Vec<WatchEvent>, revision: i64) -> Input {
    Input::Changed(number, WatchBatch { events, revision })
}

fn beats(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.heartbeats.keys().map(String::as_str).collect()
}

#[test]
fn a_snapshot_is_synced_after_the_first_list_of_every_prefix() {
    let mut fold = Fold::new(2);
    assert!(!fold.snapshot().synced);
    fold.take(listed(0, vec![item(&beat("a"), SINCE, 5)], 5));
    assert!(!fold.snapshot().synced);
    assert!(fold.take(listed(1, vec![], 6)), "an empty list that completes the snapshot is news");
    assert!(fold.snapshot().synced);
    assert_eq!((beats(fold.snapshot()), fold.snapshot().revision), (vec!["a"], 6));
}

#[test]
fn the_snapshot_of_no_prefix_is_synced() {
    assert!(Fold::new(0).snapshot().synced);
}

#[test]
fn a_list_like_the_last_is_no_news() {
    let mut fold = Fold::new(1);
    let items = || vec![item(&beat("a"), SINCE, 5), item(&beat("b"), SINCE, 6)];
    assert!(fold.take(listed(0, items(), 6)));
    let before = fold.snapshot().clone();
    assert!(!fold.take(listed(0, items(), 6)));
    assert!(fold.take(listed(0, items(), 9)), "someone may wait for that revision");
    assert!(before.heartbeats.ptr_eq(&fold.snapshot().heartbeats), "nothing was touched");
}

#[test]
fn a_list_adds_changes_and_removes_what_differs() {
    let mut fold = Fold::new(1);
    let unchanged = || item(&beat("same"), SINCE, 3);
    fold.take(listed(
        0,
        vec![item(&beat("changed"), SINCE, 5), item(&beat("gone"), SINCE, 4), unchanged()],
        5,
    ));
    let same_before = Arc::clone(&fold.snapshot().heartbeats["same"]);
    let new = item(&beat("new"), SINCE, 8);
    assert!(fold.take(listed(0, vec![item(&beat("changed"), LATER, 7), new, unchanged()], 8)));
    assert_eq!(beats(fold.snapshot()), ["changed", "new", "same"]);
    assert_eq!(fold.snapshot().heartbeats["changed"].mod_revision, 7);
    assert!(Arc::ptr_eq(&same_before, &fold.snapshot().heartbeats["same"]));
}

#[test]
fn a_list_of_one_prefix_leaves_the_others_alone() {
    let mut fold = Fold::new(2);
    fold.take(listed(0, vec![item(&beat("a"), SINCE, 5)], 5));
    fold.take(listed(1, vec![item("/minik8s/nodes/a", "{}", 5)], 5));
    fold.take(listed(1, vec![], 6));
    assert_eq!(beats(fold.snapshot()), ["a"]);
    assert!(fold.snapshot().malformed.is_empty());
}

#[test]
fn an_etcd_made_anew_replaces_values_of_equal_revisions_and_counts_down() {
    let mut fold = Fold::new(1);
    fold.take(listed(0, vec![item(&beat("a"), SINCE, 5)], 90));
    assert!(fold.take(listed(0, vec![item(&beat("a"), LATER, 5)], 5)));
    assert_eq!(fold.snapshot().heartbeats["a"].value.since.to_string(), "2026-02-02T00:00:00Z");
    assert_eq!(fold.snapshot().revision, 5);
}

#[test]
fn half_of_a_former_etcd_and_half_of_the_one_made_anew_are_no_snapshot() {
    let mut fold = Fold::new(3);
    for (prefix, revision) in [(0, 90), (1, 80), (2, 70)] {
        fold.take(listed(prefix, vec![], revision));
    }
    fold.take(listed(1, vec![], 5));
    assert!(!fold.snapshot().synced, "two of three speak of what is gone");
    fold.take(listed(0, vec![], 6));
    assert!(!fold.snapshot().synced);
    fold.take(listed(2, vec![], 7));
    assert!(fold.snapshot().synced && fold.snapshot().revision == 7);
    // And a second time.
    fold.take(listed(2, vec![], 1));
    assert!(!fold.snapshot().synced);
}

// Where the first list from the new etcd does not reveal that it is new, the prefix must be listed again.
#[test]
fn a_prefix_that_was_listed_before_etcd_was_found_to_be_anew_is_asked_for_again() {
    let mut fold = Fold::new(2);
    fold.take(listed(0, Vec::new(), 10));
    fold.take(listed(1, Vec::new(), 40));
    fold.take(listed(0, Vec::new(), 30));
    assert_eq!(fold.recreations(), 0);
    fold.take(listed(1, Vec::new(), 31));
    assert_eq!(
        (fold.recreations(), fold.snapshot().synced),
        (1, false),
        "the list at 30 may be of the former etcd"
    );
    fold.take(listed(0, Vec::new(), 32));
    assert_eq!((fold.recreations(), fold.snapshot().synced), (1, true));
}

#[test]
fn events_are_taken_in_order() {
    let mut fold = Fold::new(1);
    fold.take(listed(0, vec![], 1));
    let key = beat("a");
    let events = vec![
        WatchEvent::Put(item(&key, SINCE, 2)),
        WatchEvent::Delete { key: key.clone(), mod_revision: 3 },
        WatchEvent::Put(item(&key, LATER, 4)),
    ];
    assert!(fold.take(changed(0, events, 4)));
    assert_eq!(fold.snapshot().heartbeats["a"].create_revision, 4);
    assert!(fold.take(changed(0, vec![WatchEvent::Delete { key, mod_revision: 5 }], 5)));
    assert!(beats(fold.snapshot()).is_empty());
}

#[test]
fn a_value_that_can_not_be_read_is_set_aside_until_it_can() {
    let mut fold = Fold::new(1);
    fold.take(listed(0, vec![item(&beat("bad"), "][", 2), item(&beat("good"), SINCE, 2)], 2));
    assert_eq!(beats(fold.snapshot()), ["good"]);
    assert!(fold.snapshot().malformed.contains_key(&beat("bad")));
    fold.take(changed(0, vec![WatchEvent::Put(item(&beat("bad"), SINCE, 3))], 3));
    assert_eq!(beats(fold.snapshot()), ["bad", "good"]);
    assert!(fold.snapshot().malformed.is_empty());
}

#[test]
fn a_prefix_below_another_is_not_followed_twice() {
    let prefixes = ["/m/status/n1/", "/m/nodes/", "/m/status/", "/m/nodes/"].map(str::to_owned);
    assert_eq!(without_nested(prefixes.to_vec()), ["/m/nodes/", "/m/status/"]);
}

struct Rig {
    store: MemoryStore,
    reader: SnapshotReader,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn start(store: &MemoryStore) -> Rig {
    let shutdown = CancellationToken::new();
    let prefixes = vec![prefix::HEARTBEATS.to_owned(), prefix::NODES.to_owned(), prefix::SUBNETS.to_owned()];
    let (reader, reflecting) = reflect(Arc::new(store.clone()), prefixes, shutdown.clone());
    Rig { store: store.clone(), reader, shutdown, task: tokio::spawn(reflecting) }
}

impl Rig {
    /// Waits, on the paused clock, for a snapshot that satisfies `wanted`.
    async fn until(&mut self, what: &str, wanted: impl Fn(&Snapshot) -> bool) {
        let arrive = async {
            while !wanted(&self.reader.current()) {
                self.reader.changed().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(3_600), arrive).await.expect(what);
    }
}

async fn write(store: &MemoryStore, ops: Vec<Op>) {
    let _ = store.txn(vec![], ops).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn it_shows_what_was_there_and_what_comes() {
    let store = MemoryStore::new();
    write(&store, vec![Op::put(beat("a"), SINCE)]).await;
    let mut rig = start(&store);
    assert!(!rig.reader.current().synced);
    let snapshot = rig.reader.synced().await;
    assert_eq!(beats(&snapshot), ["a"]);
    write(&store, vec![Op::put(beat("b"), SINCE), Op::delete(beat("a"))]).await;
    rig.until("the change", |snapshot| beats(snapshot) == ["b"]).await;
    rig.shutdown.cancel();
    rig.task.await.unwrap();
    assert_eq!(beats(&rig.reader.current()), ["b"], "the last snapshot stays readable");
}

#[tokio::test(start_paused = true)]
async fn it_is_not_synced_while_the_store_can_not_be_read() {
    let store = MemoryStore::new();
    store.refuse_everything(true);
    let mut rig = start(&store);
    sleep(Duration::from_secs(60)).await;
    assert!(!rig.reader.current().synced);
    store.refuse_everything(false);
    rig.reader.synced().await;
}

#[tokio::test(start_paused = true)]
async fn it_finds_what_it_missed_while_its_watches_were_cut() {
    let store = MemoryStore::new();
    write(&store, vec![Op::put(beat("a"), SINCE)]).await;
    let mut rig = start(&store);
    rig.reader.synced().await;
    store.refuse_everything(true);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(beats(&rig.reader.current()), ["a"], "an outage takes nothing away");
    store.refuse_everything(false);
    write(&store, vec![Op::put(beat("b"), SINCE), Op::delete(beat("a"))]).await;
    store.compact(store.revision());
    rig.until("the list after the outage", |snapshot| beats(snapshot) == ["b"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_published_in_few_snapshots() {
    let store = MemoryStore::new();
    let mut rig = start(&store);
    rig.reader.synced().await;
    for n in 0..500 {
        write(&store, vec![Op::put(beat(&format!("n{n}")), SINCE)]).await;
    }
    let mut snapshots = 0;
    while rig.reader.current().heartbeats.len() < 500 {
        rig.reader.changed().await;
        snapshots += 1;
    }
    assert!(snapshots <= 5, "{snapshots} snapshots for one burst");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_snapshot_never_changes() {
    let mut reader = SnapshotReader::fixed(Snapshot { revision: 7, ..Snapshot::default() });
    assert_eq!(reader.current().revision, 7);
    assert!(tokio::time::timeout(Duration::from_secs(60), reader.changed()).await.is_err());
}

/// Step of a random story of the store.
#[derive(Debug, Clone)]
enum Step {
    Put(u8, bool),
    PutMalformed(u8),
    Delete(u8),
    Several(u8, u8, u8),
    CutWatches,
    Compact(u8),
    Refuse(bool),
    /// Lets the reflector run for this many tenths of a second.
    Pass(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0_u8..8;
    prop_oneof![
        6 => (key.clone(), any::<bool>()).prop_map(|(k, later)| Step::Put(k, later)),
        1 => key.clone().prop_map(Step::PutMalformed),
        3 => key.prop_map(Step::Delete),
        2 => (0_u8..3, 3_u8..5, 5_u8..8).prop_map(|(a, b, c)| Step::Several(a, b, c)),
        2 => Just(Step::CutWatches),
        2 => (0_u8..4).prop_map(Step::Compact),
        1 => any::<bool>().prop_map(Step::Refuse),
        4 => (0_u8..20).prop_map(Step::Pass),
    ]
}

/// A key below one of two of the three prefixes, or below none of them.
fn key(number: u8) -> String {
    match number {
        7 => format!("{}stranger", prefix::EVENTS),
        n if n.is_multiple_of(2) => beat(&format!("n{n}")),
        n => format!("{}n{n}", prefix::SUBNETS),
    }
}

async fn take(store: &MemoryStore, step: &Step) {
    let put = |n: u8, later: bool| {
        let value = match (n.is_multiple_of(2), later) {
            (true, false) => SINCE,
            (true, true) => LATER,
            (false, false) => r#"{"cidr":"10.244.0.0/24","clusterCidr":"10.244.0.0/16"}"#,
            (false, true) => r#"{"cidr":"10.244.9.0/24","clusterCidr":"10.244.0.0/16"}"#,
        };
        Op::put(key(n), value)
    };
    // Writes fail while everything is refused, as they would in practice.
    let ops = match *step {
        Step::Put(n, later) => vec![put(n, later)],
        Step::PutMalformed(n) => vec![Op::put(key(n), "][")],
        Step::Delete(n) => vec![Op::delete(key(n))],
        Step::Several(a, b, c) => vec![put(a, true), Op::delete(key(b)), put(c, false)],
        Step::CutWatches => return store.cut_watches(),
        Step::Compact(back) => return store.compact(store.revision() - i64::from(back)),
        Step::Refuse(refuse) => return store.refuse_everything(refuse),
        Step::Pass(tenths) => return sleep(Duration::from_millis(u64::from(tenths) * 100)).await,
    };
    let _ = store.txn(vec![], ops).await;
}

/// The snapshot made from one list per prefix, without any watch.
async fn by_list(store: &MemoryStore) -> Snapshot {
    let mut fold = Fold::new(3);
    for (number, prefix) in [prefix::HEARTBEATS, prefix::NODES, prefix::SUBNETS].into_iter().enumerate() {
        fold.take(Input::Listed(number, store.list(prefix).await.unwrap()));
    }
    fold.snapshot().clone()
}

/// Checks every published snapshot: a key that always exists must never be missing.
fn guard_anchor(mut reader: SnapshotReader, missing: Arc<AtomicUsize>) {
    tokio::spawn(async move {
        loop {
            let snapshot = reader.current();
            if snapshot.synced && !snapshot.heartbeats.contains_key("anchor") {
                missing.fetch_add(1, Ordering::SeqCst);
            }
            reader.changed().await;
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_happens_the_snapshot_becomes_what_a_fresh_list_says(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let store = MemoryStore::new();
            write(&store, vec![Op::put(beat("anchor"), SINCE)]).await;
            let rig = start(&store);
            let missing = Arc::new(AtomicUsize::new(0));
            guard_anchor(rig.reader.clone(), Arc::clone(&missing));
            for step in &steps {
                take(&rig.store, step).await;
            }
            store.refuse_everything(false);
            // Longer than the longest backoff, shorter than the routine list.
            sleep(BACKOFF_MAX * 3).await;
            let snapshot = Snapshot { revision: 0, ..(*rig.reader.current()).clone() };
            let fresh = Snapshot { revision: 0, ..by_list(&store).await };
            prop_assert_eq!(snapshot, fresh);
            prop_assert_eq!(missing.load(Ordering::SeqCst), 0);
            Ok(())
        })?;
    }
}
