//! A battery of tests, run on etcd and on the in-memory store: both behave the same.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod support;

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use schema::store::{
    Guard, LeaseId, Op, SharedStore, StoreError, TXN_OPS_MAX, TxnOutcome, WatchBatch, WatchEvent,
};
use tokio::time::timeout;

use self::support::{Backend, InMemory, OnEtcd, PATIENCE, eventually};

type Watch = BoxStream<'static, Result<WatchBatch, StoreError>>;

/// Runs every test of the battery on both stores.
macro_rules! battery {
    ($($name:ident),* $(,)?) => {
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&super::OnEtcd::start().await).await;
            })*
        }
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&super::InMemory::start().await).await;
            })*
        }
    };
}

battery!(
    a_list_is_in_order_and_whole_beyond_a_page,
    a_list_is_of_one_revision_whatever_happens_meanwhile,
    a_list_holds_only_its_prefix,
    a_list_of_nothing_has_a_revision,
    the_newest_keys_come_in_pages,
    revisions_count_creation_and_writes,
    a_watch_sees_exactly_what_follows_the_list,
    a_watch_goes_back_to_an_old_revision,
    a_watch_keeps_the_operations_of_one_transaction_together,
    a_watch_from_a_compacted_revision_says_so_and_a_new_list_helps,
    a_watch_that_ends_leaves_the_others,
    guards_hold_or_nothing_happens,
    a_fence_refuses_after_the_key_was_made_anew,
    removing_an_absent_key_is_no_change,
    what_etcd_would_refuse_is_refused,
    a_lease_that_ends_takes_its_keys_and_watches_see_it,
    a_lease_kept_alive_keeps_its_keys,
    a_revoked_lease_takes_its_keys_and_is_lost,
    a_key_moved_off_its_lease_survives_it,
);

async fn put(store: &SharedStore, key: &str, value: &str) -> i64 {
    committed(store.txn(vec![], vec![Op::put(key, value.to_owned())]).await)
}

async fn delete(store: &SharedStore, key: &str) -> i64 {
    committed(store.txn(vec![], vec![Op::delete(key)]).await)
}

async fn put_leased(store: &SharedStore, key: &str, lease: LeaseId) -> Result<TxnOutcome, StoreError> {
    let op = Op::Put { key: key.to_owned(), value: "leased".into(), lease: Some(lease) };
    store.txn(vec![], vec![op]).await
}

fn committed(outcome: Result<TxnOutcome, StoreError>) -> i64 {
    match outcome.unwrap() {
        TxnOutcome::Committed(revision) => revision,
        TxnOutcome::Conflict => panic!("a conflict"),
    }
}

/// Reads the next `count` events of a watch, as `key=value@revision` and `key gone@revision`.
async fn events(watch: &mut Watch, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.len() < count {
        let batch = timeout(PATIENCE, watch.next()).await.expect("an event").expect("no end").unwrap();
        texts.extend(batch.events.iter().map(text));
    }
    texts
}

fn text(event: &WatchEvent) -> String {
    match event {
        WatchEvent::Put(kv) => {
            format!("{}={}@{}", kv.key, String::from_utf8_lossy(&kv.value), kv.mod_revision)
        }
        WatchEvent::Delete { key, mod_revision } => format!("{key} gone@{mod_revision}"),
    }
}

async fn a_list_is_in_order_and_whole_beyond_a_page(backend: &impl Backend) {
    let store = backend.store();
    // Backwards, so that the order of writes is not the order of keys.
    let mut keys: Vec<String> = (0..1_250).map(|n| format!("/t/{n:05}")).collect();
    for chunk in keys.iter().rev().collect::<Vec<_>>().chunks(TXN_OPS_MAX) {
        let ops = chunk.iter().map(|key| Op::put(key, "x".repeat(2_000))).collect();
        committed(store.txn(vec![], ops).await);
    }
    let listing = store.list("/t/").await.unwrap();
    keys.sort();
    assert_eq!(listing.items.iter().map(|item| item.key.clone()).collect::<Vec<_>>(), keys);
    assert_eq!(listing.items.iter().map(|item| item.mod_revision).max(), Some(listing.revision));
}

async fn the_newest_keys_come_in_pages(backend: &impl Backend) {
    let store = backend.store();
    for key in ["/t/c", "/t/a", "/t/b", "/u/a", "/t/d"] {
        put(&store, key, "first").await;
    }
    // A later write does not make a key newer.
    put(&store, "/t/a", "second").await;
    let (mut before, mut pages) = (None, Vec::new());
    loop {
        let page = store.newest("/t/", 3, before).await.unwrap();
        before = page.items.last().map(|last| last.create_revision);
        pages.push(page.items.into_iter().map(|item| item.key).collect::<Vec<_>>());
        if !page.has_more {
            break;
        }
    }
    assert_eq!(pages, [vec!["/t/d", "/t/b", "/t/a"], vec!["/t/c"]]);
    assert!(!store.newest("/t/", 4, None).await.unwrap().has_more);
    assert_eq!(store.newest("/t/", 4, Some(1)).await.unwrap().items, []);
}

async fn a_list_is_of_one_revision_whatever_happens_meanwhile(backend: &impl Backend) {
    let store = backend.store();
    for chunk in (0..1_250).collect::<Vec<_>>().chunks(TXN_OPS_MAX) {
        let ops = chunk.iter().map(|n| Op::put(format!("/t/{n:05}"), "x")).collect();
        committed(store.txn(vec![], ops).await);
    }
    put(&store, "/t/!first", "marker").await;
    // A marker jumps between the first page and the last: every list has it exactly once.
    let hops = {
        let store = store.clone();
        tokio::spawn(async move {
            let (mut here, mut there) = ("/t/!first", "/t/~last");
            loop {
                committed(store.txn(vec![], vec![Op::delete(here), Op::put(there, "marker")]).await);
                (here, there) = (there, here);
                // In memory nothing waits: yield, so that the abort below can take effect.
                tokio::task::yield_now().await;
            }
        })
    };
    for n in 0..60 {
        let listing = store.list("/t/").await.unwrap();
        let markers = listing.items.iter().filter(|item| item.value == "marker").count();
        assert_eq!((markers, listing.items.len()), (1, 1_251));
        if n % 10 == 0 {
            backend.compact(listing.revision);
        }
    }
    assert!(!hops.is_finished(), "the hopping failed");
    hops.abort();
}

async fn a_list_holds_only_its_prefix(backend: &impl Backend) {
    let store = backend.store();
    for key in ["/t/a", "/t/b/c", "/t0", "/s/z", "/t"] {
        put(&store, key, "x").await;
    }
    let listing = store.list("/t/").await.unwrap();
    assert_eq!(listing.items.iter().map(|item| &item.key).collect::<Vec<_>>(), ["/t/a", "/t/b/c"]);
    assert!(store.get("/t/b").await.unwrap().is_none(), "a prefix of a key is not a key");
}

async fn a_list_of_nothing_has_a_revision(backend: &impl Backend) {
    let store = backend.store();
    let empty = store.list("/t/").await.unwrap();
    assert!(empty.items.is_empty());
    let written_at = put(&store, "/elsewhere", "x").await;
    assert_eq!(written_at, empty.revision + 1);
    assert_eq!(store.list("/t/").await.unwrap().revision, written_at);
}

async fn revisions_count_creation_and_writes(backend: &impl Backend) {
    let store = backend.store();
    let first = put(&store, "/t/a", "1").await;
    let second = put(&store, "/t/a", "2").await;
    assert_eq!(second, first + 1);
    let found = store.get("/t/a").await.unwrap().unwrap();
    assert_eq!((found.create_revision, found.mod_revision), (first, second));
    assert_eq!(found.value, "2");
    delete(&store, "/t/a").await;
    let again = put(&store, "/t/a", "3").await;
    let found = store.get("/t/a").await.unwrap().unwrap();
    assert_eq!((found.create_revision, found.mod_revision), (again, again));
}

async fn a_watch_sees_exactly_what_follows_the_list(backend: &impl Backend) {
    let store = backend.store();
    put(&store, "/t/old", "x").await;
    let listing = store.list("/t/").await.unwrap();
    let mut watch = store.watch("/t/", listing.revision + 1).await.unwrap();
    let a = put(&store, "/t/a", "1").await;
    put(&store, "/elsewhere", "x").await;
    let b = delete(&store, "/t/old").await;
    let c = put(&store, "/t/a", "2").await;
    assert_eq!(
        events(&mut watch, 3).await,
        [format!("/t/a=1@{a}"), format!("/t/old gone@{b}"), format!("/t/a=2@{c}")]
    );
}

async fn a_watch_goes_back_to_an_old_revision(backend: &impl Backend) {
    let store = backend.store();
    put(&store, "/t/a", "1").await;
    let second = put(&store, "/t/a", "2").await;
    let third = delete(&store, "/t/a").await;
    let mut watch = store.watch("/t/", second).await.unwrap();
    assert_eq!(events(&mut watch, 2).await, [format!("/t/a=2@{second}"), format!("/t/a gone@{third}")]);
}

async fn a_watch_keeps_the_operations_of_one_transaction_together(backend: &impl Backend) {
    let store = backend.store();
    let from = store.list("/t/").await.unwrap().revision + 1;
    // About 5 MB of history in all: etcd sends it to a late watch in fragments.
    for n in 0..5 {
        let ops = (0..100).map(|k| Op::put(format!("/t/{n}/{k:03}"), "x".repeat(10_000))).collect();
        committed(store.txn(vec![], ops).await);
    }
    let mut watch = store.watch("/t/", from).await.unwrap();
    let mut seen = 0;
    while seen < 500 {
        let batch = timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap();
        seen += batch.events.len();
        assert_eq!(batch.events.len() % 100, 0, "a transaction was torn");
        let newest = batch.events.iter().map(|event| match event {
            WatchEvent::Put(kv) => kv.mod_revision,
            WatchEvent::Delete { mod_revision, .. } => *mod_revision,
        });
        assert!(newest.max().unwrap() <= batch.revision);
    }
    assert_eq!(seen, 500);
}

async fn a_watch_from_a_compacted_revision_says_so_and_a_new_list_helps(backend: &impl Backend) {
    let store = backend.store();
    let first = put(&store, "/t/a", "1").await;
    put(&store, "/t/a", "2").await;
    let third = put(&store, "/t/a", "3").await;
    backend.compact(third);
    let mut watch = store.watch("/t/", first).await.unwrap();
    let said = timeout(PATIENCE, watch.next()).await.unwrap();
    assert!(matches!(said, Some(Err(StoreError::Compacted(_)))), "{said:?}");
    assert!(timeout(PATIENCE, watch.next()).await.unwrap().is_none(), "it goes on after its end");

    let listing = store.list("/t/").await.unwrap();
    assert_eq!(listing.items[0].value, "3");
    let mut watch = store.watch("/t/", listing.revision + 1).await.unwrap();
    let fourth = put(&store, "/t/a", "4").await;
    assert_eq!(events(&mut watch, 1).await, [format!("/t/a=4@{fourth}")]);
}

async fn a_watch_that_ends_leaves_the_others(backend: &impl Backend) {
    let store = backend.store();
    let first = put(&store, "/t/a", "1").await;
    let second = put(&store, "/t/a", "2").await;
    let third = put(&store, "/t/a", "3").await;
    let mut other = store.watch("/u/", third + 1).await.unwrap();
    let mut same = store.watch("/t/", third + 1).await.unwrap();
    let dropped = store.watch("/u/", third + 1).await.unwrap();
    backend.compact(second);
    let mut late = store.watch("/t/", first).await.unwrap();
    let said = timeout(PATIENCE, late.next()).await.unwrap();
    assert!(matches!(said, Some(Err(StoreError::Compacted(_)))), "{said:?}");
    drop(dropped);
    let fourth = put(&store, "/u/a", "4").await;
    let fifth = put(&store, "/t/a", "5").await;
    assert_eq!(events(&mut other, 1).await, [format!("/u/a=4@{fourth}")]);
    assert_eq!(events(&mut same, 1).await, [format!("/t/a=5@{fifth}")]);
}

async fn guards_hold_or_nothing_happens(backend: &impl Backend) {
    let store = backend.store();
    let key = || "/t/a".to_owned();
    let both = || vec![Op::put("/t/a", "new"), Op::put("/t/b", "new")];
    let created = committed(store.txn(vec![Guard::Absent(key())], both()).await);
    let before = store.list("/t/").await.unwrap();
    for guards in [
        vec![Guard::Absent(key())],
        vec![Guard::ModRevision(key(), created - 1)],
        vec![Guard::CreateRevision(key(), created - 1)],
        vec![Guard::ModRevision("/t/absent".into(), created)],
        vec![Guard::CreateRevision("/t/absent".into(), created)],
        // A guard that holds does not help one that does not.
        vec![Guard::ModRevision(key(), created), Guard::Absent("/t/b".into())],
    ] {
        let ops = vec![Op::put("/t/a", "late"), Op::delete("/t/b")];
        assert_eq!(store.txn(guards.clone(), ops).await.unwrap(), TxnOutcome::Conflict, "{guards:?}");
    }
    let after = store.list("/t/").await.unwrap();
    assert_eq!((after.items, after.revision), (before.items, before.revision));

    let guards = vec![Guard::ModRevision(key(), created), Guard::CreateRevision("/t/b".into(), created)];
    committed(store.txn(guards, vec![Op::put("/t/a", "newer")]).await);
    assert_eq!(store.get("/t/a").await.unwrap().unwrap().value, "newer");
}

async fn a_fence_refuses_after_the_key_was_made_anew(backend: &impl Backend) {
    let store = backend.store();
    let old = put(&store, "/leader", "one").await;
    let fence = Guard::CreateRevision("/leader".into(), old);
    put(&store, "/leader", "one, written again").await;
    committed(store.txn(vec![fence.clone()], vec![Op::put("/t/a", "in time")]).await);
    delete(&store, "/leader").await;
    put(&store, "/leader", "two").await;
    let late = store.txn(vec![fence], vec![Op::put("/t/a", "late")]).await.unwrap();
    assert_eq!(late, TxnOutcome::Conflict);
    assert_eq!(store.get("/t/a").await.unwrap().unwrap().value, "in time");
}

async fn removing_an_absent_key_is_no_change(backend: &impl Backend) {
    let store = backend.store();
    let before = put(&store, "/t/a", "x").await;
    assert_eq!(delete(&store, "/t/absent").await, before);
    let mut watch = store.watch("/t/", before + 1).await.unwrap();
    let after = put(&store, "/t/b", "x").await;
    assert_eq!(after, before + 1);
    assert_eq!(events(&mut watch, 1).await, [format!("/t/b=x@{after}")]);
}

async fn what_etcd_would_refuse_is_refused(backend: &impl Backend) {
    let store = backend.store();
    let refused = |outcome| matches!(outcome, Err(StoreError::Request { .. }));
    let many = (0..=TXN_OPS_MAX).map(|n| Op::put(format!("/t/{n}"), "x")).collect();
    assert!(refused(store.txn(vec![], many).await), "too many operations");
    let twice = vec![Op::put("/t/a", "1"), Op::put("/t/a", "2")];
    assert!(refused(store.txn(vec![], twice).await), "one key twice");
    let large = vec![Op::put("/t/a", vec![b'x'; 2 * 1024 * 1024])];
    assert!(refused(store.txn(vec![], large).await), "too large");
    let lost = put_leased(&store, "/t/a", LeaseId(12345)).await;
    assert!(matches!(lost, Err(StoreError::LeaseLost(12345))), "{lost:?}");
    assert!(store.list("/t/").await.unwrap().items.is_empty());
}

async fn a_lease_that_ends_takes_its_keys_and_watches_see_it(backend: &impl Backend) {
    let store = backend.store();
    let lease = store.lease_grant(Duration::from_secs(1)).await.unwrap();
    committed(put_leased(&store, "/t/a", lease).await);
    let last = committed(put_leased(&store, "/t/b", lease).await);
    let mut watch = store.watch("/t/", last + 1).await.unwrap();
    let mut gone = events(&mut watch, 2).await;
    gone.sort();
    assert_eq!(gone, [format!("/t/a gone@{}", last + 1), format!("/t/b gone@{}", last + 1)]);
    let lost = store.lease_keep_alive(lease).await;
    assert!(matches!(lost, Err(StoreError::LeaseLost(_))), "{lost:?}");
}

async fn a_lease_kept_alive_keeps_its_keys(backend: &impl Backend) {
    let store = backend.store();
    // etcd stretches anything shorter than its election time to 2 s.
    let ttl = Duration::from_secs(2);
    let kept = store.lease_grant(ttl).await.unwrap();
    let left = store.lease_grant(ttl).await.unwrap();
    committed(put_leased(&store, "/t/kept", kept).await);
    committed(put_leased(&store, "/t/left", left).await);
    // Until the other lease ends, and a TTL longer.
    let mut beats = 0;
    eventually("the lease that is left alone ends", || {
        beats += 1;
        let store = store.clone();
        async move {
            store.lease_keep_alive(kept).await.unwrap();
            store.get("/t/left").await.unwrap().is_none()
        }
    })
    .await;
    assert!(store.get("/t/kept").await.unwrap().is_some(), "after {beats} keep-alives");
    store.lease_revoke(kept).await.unwrap();
}

async fn a_revoked_lease_takes_its_keys_and_is_lost(backend: &impl Backend) {
    let store = backend.store();
    let lease = store.lease_grant(Duration::from_secs(600)).await.unwrap();
    let written = committed(put_leased(&store, "/t/a", lease).await);
    let mut watch = store.watch("/t/", written + 1).await.unwrap();
    store.lease_revoke(lease).await.unwrap();
    assert_eq!(events(&mut watch, 1).await, [format!("/t/a gone@{}", written + 1)]);
    assert!(matches!(store.lease_keep_alive(lease).await, Err(StoreError::LeaseLost(_))));
    assert!(matches!(put_leased(&store, "/t/a", lease).await, Err(StoreError::LeaseLost(_))));
    store.lease_revoke(lease).await.expect("revoking twice is no error");
}

async fn a_key_moved_off_its_lease_survives_it(backend: &impl Backend) {
    let store = backend.store();
    let lease = store.lease_grant(Duration::from_secs(600)).await.unwrap();
    committed(put_leased(&store, "/t/a", lease).await);
    put(&store, "/t/a", "free").await;
    store.lease_revoke(lease).await.unwrap();
    assert_eq!(store.get("/t/a").await.unwrap().unwrap().value, "free");
}
