//! Handles and reflectors when the real etcd dies, hangs, or loses its data.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use schema::keys::prefix;
use schema::records::NO_SPACE;
use schema::store::etcd::{Access, LazyStore, Login};
use schema::store::reflector::{self, SnapshotReader};
use schema::store::{Op, SharedStore, Store as _, StoreError};
use tokio::time::{pause, resume, timeout};
use tokio_util::sync::CancellationToken;

use self::support::{PATIENCE, PrivateEtcd, eventually};

const BEAT: &str = r#"{"since":"2026-01-01T00:00:00Z"}"#;

fn beat(node: &str) -> String {
    format!("{}{node}", prefix::HEARTBEATS)
}

/// Runs what needs no answer of etcd on a clock that jumps from timer to timer, so that the machine's speed plays no
/// part. Panics if it takes longer than `bound` on this clock.
async fn within<T>(bound: Duration, what: &str, work: impl Future<Output = T>) -> T {
    pause();
    let done = timeout(bound, work).await;
    resume();
    done.unwrap_or_else(|_| panic!("not within {bound:?}: {what}"))
}

async fn write(store: &SharedStore, ops: Vec<Op>) -> bool {
    store.txn(vec![], ops).await.is_ok()
}

/// Writes as soon as the store accepts the operation again.
async fn write_in_the_end(store: &SharedStore, op: Op) {
    eventually("a write", || {
        let (store, op) = (Arc::clone(store), op.clone());
        async move { write(&store, vec![op]).await }
    })
    .await;
}

fn reflect(store: &SharedStore) -> (SnapshotReader, CancellationToken) {
    let shutdown = CancellationToken::new();
    let prefixes = vec![prefix::HEARTBEATS.to_owned(), prefix::NODES.to_owned()];
    let (reader, reflecting) = reflector::reflect(Arc::clone(store), prefixes, shutdown.clone());
    tokio::spawn(reflecting);
    (reader, shutdown)
}

async fn shows(reader: &SnapshotReader, nodes: &[&str]) {
    eventually(&format!("the snapshot has {nodes:?}"), || {
        let snapshot = reader.current();
        let same =
            snapshot.synced && snapshot.heartbeats.keys().map(String::as_str).eq(nodes.iter().copied());
        async move { same }
    })
    .await;
}

// Seen red with a read that is tried again without end.
#[tokio::test]
async fn after_kill_9_and_restart_the_same_handle_works_and_the_reflector_converges() {
    let mut etcd = PrivateEtcd::start();
    let store: SharedStore = Arc::new(etcd.connect().await);
    assert!(write(&store, vec![Op::put(beat("a"), BEAT), Op::put(beat("b"), BEAT)]).await);
    let (reader, _shutdown) = reflect(&store);
    shows(&reader, &["a", "b"]).await;
    for round in 0..3 {
        etcd.kill();
        let answer = within(PATIENCE, "a read", store.get("/t")).await;
        assert!(answer.is_err(), "no etcd can have answered");
        assert!(!within(PATIENCE, "a write", write(&store, vec![Op::put("/t", "x")])).await);
        assert_eq!(reader.current().heartbeats.len(), 2, "an outage takes nothing away");
        etcd.restart();
        let node = format!("c{round}");
        write_in_the_end(&store, Op::put(beat(&node), BEAT)).await;
        shows(&reader, &["a", "b", node.as_str()]).await;
        write_in_the_end(&store, Op::delete(beat(&node))).await;
        shows(&reader, &["a", "b"]).await;
    }
}

#[tokio::test]
async fn an_etcd_made_anew_is_followed() {
    let mut etcd = PrivateEtcd::start();
    let store: SharedStore = Arc::new(etcd.connect().await);
    for _ in 0..5 {
        assert!(write(&store, vec![Op::put(beat("old"), BEAT)]).await);
    }
    let (reader, _shutdown) = reflect(&store);
    shows(&reader, &["old"]).await;
    etcd.kill();
    etcd.wipe();
    etcd.restart();
    write_in_the_end(&store, Op::put(beat("new"), BEAT)).await;
    shows(&reader, &["new"]).await;
}

// Seen red without the timeout of a read: the call ends only with the connection.
#[tokio::test]
async fn calls_on_an_etcd_that_hangs_end_in_time_and_its_watches_too() {
    let etcd = PrivateEtcd::start();
    let store: SharedStore = Arc::new(etcd.connect().await);
    let mut watch = store.watch("/t/", 1).await.unwrap();
    etcd.signal("STOP");
    let answer = within(Duration::from_secs(8), "a read", store.get("/t/a")).await;
    assert!(matches!(answer, Err(StoreError::Timeout { .. } | StoreError::Unavailable { .. })), "{answer:?}");
    let ended = within(Duration::from_secs(25), "the end of the watch", watch.next()).await;
    assert!(matches!(ended, Some(Err(StoreError::WatchEnded(_)))), "{ended:?}");
    etcd.signal("CONT");
    write_in_the_end(&store, Op::put("/t/a", "x")).await;
}

// Seen red without the cancelled token in `reconnect`: the watch stays silent for 20 s.
#[tokio::test]
async fn connections_that_are_given_up_hold_nobody_up() {
    let etcd = PrivateEtcd::start();
    // etcd answers by now, because a lazy store waits for only 2 s.
    etcd.connect().await;
    let lazy = Arc::new(LazyStore::new(etcd.access(None)));
    let store: SharedStore = lazy.clone();
    let mut watch = store.watch("/t/", 1).await.unwrap();
    assert!(write(&store, vec![Op::put("/t/a", "x")]).await);
    assert!(matches!(watch.next().await, Some(Ok(_))));
    etcd.signal("STOP");
    let asking = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.get("/t/a").await }
    });
    tokio::task::yield_now().await;
    lazy.reconnect();
    let ended = within(Duration::from_secs(3), "the end of the watch", watch.next()).await;
    assert!(matches!(ended, Some(Err(StoreError::WatchEnded(_)))), "{ended:?}");
    assert!(watch.next().await.is_none());
    within(Duration::from_secs(3), "the end of the call", asking).await.unwrap().unwrap_err();
    etcd.signal("CONT");
    write_in_the_end(&store, Op::put("/t/a", "y")).await;
    assert_eq!(&store.get("/t/a").await.unwrap().unwrap().value[..], b"y");
}

#[tokio::test]
async fn a_store_follows_etcd_to_other_addresses() {
    let etcd = PrivateEtcd::start();
    etcd.connect().await;
    let lazy = LazyStore::new(Access::anonymous(&["http://127.0.0.1:1".to_owned()]));
    assert!(lazy.get("/t/a").await.is_err());
    lazy.set_endpoints(etcd.access(None).endpoints);
    assert!(lazy.get("/t/a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_quiet_watch_stays_open() {
    let etcd = PrivateEtcd::start();
    let store: SharedStore = Arc::new(etcd.connect().await);
    let mut watch = store.watch("/t/", 1).await.unwrap();
    // Longer than the quiet time before the watch requests progress, and longer than a ping.
    let quiet = timeout(Duration::from_secs(23), watch.next()).await;
    assert!(quiet.is_err(), "it said {quiet:?}");
    assert!(write(&store, vec![Op::put("/t/a", "x")]).await);
    timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn watches_share_a_stream_that_ends_with_the_last_of_them() {
    let etcd = PrivateEtcd::start();
    let store: SharedStore = Arc::new(etcd.connect().await);
    let counted = async |wanted: [u32; 2]| {
        eventually(&format!("etcd serves {wanted:?} streams and watches"), || {
            let counts = etcd.watch_counts();
            async move { counts == wanted }
        })
        .await;
    };
    let mut watches = Vec::new();
    for prefix in ["/a/", "/b/", "/c/"] {
        watches.push(store.watch(prefix, 1).await.unwrap());
    }
    assert_eq!(etcd.watch_counts(), [1, 3]);
    watches.pop();
    counted([1, 2]).await;
    watches.clear();
    counted([0, 0]).await;

    let mut watch = store.watch("/a/", 1).await.unwrap();
    // A watch outlives its store.
    assert!(write(&store, vec![Op::put("/a/a", "x")]).await);
    drop(store);
    timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(etcd.watch_counts(), [1, 1]);
}

#[tokio::test]
async fn a_stream_that_breaks_ends_all_watches_and_the_next_begins_another() {
    let mut etcd = PrivateEtcd::start();
    let store: SharedStore = Arc::new(etcd.connect().await);
    let mut watches = [store.watch("/a/", 1).await.unwrap(), store.watch("/b/", 1).await.unwrap()];
    etcd.kill();
    for watch in &mut watches {
        let ended = timeout(PATIENCE, watch.next()).await.unwrap();
        assert!(matches!(ended, Some(Err(StoreError::WatchEnded(_)))), "{ended:?}");
        assert!(watch.next().await.is_none());
    }
    etcd.restart();
    write_in_the_end(&store, Op::put("/a/a", "x")).await;
    let mut watch = store.watch("/a/", 1).await.unwrap();
    timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(etcd.watch_counts(), [1, 1]);
}

/// Authentication is switched on below a connection, tokens expire, etcd forgets them, the password changes: none
/// of it
/// requires a restart. Seen red without a new login, and without a user.
#[tokio::test]
async fn a_user_whose_token_is_not_valid_any_more_logs_in_again() {
    let mut etcd = PrivateEtcd::start_with(&["--auth-token-ttl", "1"]);
    etcd.connect().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let login = Login { user: "n1".to_owned(), password_file: file.clone() };
    let lazy = Arc::new(LazyStore::new(etcd.access(Some(login))));
    let store: SharedStore = Arc::clone(&lazy) as _;
    write_in_the_end(&store, Op::put(beat("off"), BEAT)).await;
    let (reader, _shutdown) = reflect(&store);
    shows(&reader, &["off"]).await;

    etcd.ctl(&["user", "add", "root:secret"]);
    etcd.ctl(&["user", "add", "n1:first"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["role", "add", "all"]);
    etcd.ctl(&["role", "grant-permission", "all", "readwrite", "/minik8s/", "--prefix"]);
    etcd.ctl(&["user", "grant-role", "n1", "all"]);
    etcd.ctl(&["auth", "enable"]);
    write_in_the_end(&store, Op::put(beat("on"), BEAT)).await;
    shows(&reader, &["off", "on"]).await;
    let outside = store.txn(vec![], vec![Op::put("/t", "x")]).await;
    assert!(matches!(&outside, Err(StoreError::Denied { .. })));

    // Far longer than an unused token lasts.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(write(&store, vec![Op::put(beat("expired"), BEAT)]).await, "the token is renewed within a call");
    shows(&reader, &["expired", "off", "on"]).await;

    etcd.kill();
    etcd.restart();
    write_in_the_end(&store, Op::put(beat("restarted"), BEAT)).await;
    shows(&reader, &["expired", "off", "on", "restarted"]).await;

    for words in ["user delete n1", "user add n1:second", "user grant-role n1 all"] {
        let words: Vec<&str> = ["--user", "root:secret"].into_iter().chain(words.split(' ')).collect();
        etcd.ctl(&words);
    }
    assert!(!write(&store, vec![Op::put(beat("wrong"), BEAT)]).await);
    std::fs::write(&file, "second\n").unwrap();
    write_in_the_end(&store, Op::put(beat("second"), BEAT)).await;
    shows(&reader, &["expired", "off", "on", "restarted", "second"]).await;
    assert!(LazyStore::new(etcd.access(None)).connect(PATIENCE).await.is_err(), "no client is let in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_at_its_quota_says_so_and_accepts_writes_once_it_is_emptied() {
    let etcd = PrivateEtcd::start_with(&["--quota-backend-bytes=16777216"]);
    let store = etcd.connect().await;
    let store: Arc<schema::store::etcd::EtcdStore> = Arc::new(store);
    let shared: SharedStore = store.clone();
    let value = "x".repeat(1 << 20);
    let mut refusal = None;
    // etcd counts only what it has committed, ten times a second, so it accepts more than its quota in between.
    for write_number in 0..200 {
        // The same key: all but the last value is history.
        if let Err(error) = shared.txn(vec![], vec![Op::put(beat("n1"), value.clone())]).await {
            assert!(write_number > 4, "{write_number}");
            refusal = Some(error.to_string());
            break;
        }
    }
    assert!(refusal.as_ref().is_some_and(|why| why.contains("database space exceeded")), "{refusal:?}");
    let (full, alarms) = store.member_status().await.unwrap();
    assert_eq!(alarms.iter().map(|it| it.alarm.as_str()).collect::<Vec<_>>(), [NO_SPACE]);
    assert_eq!(alarms[0].member, full.id);
    let listed = store.listed_members().await.unwrap();
    assert_eq!((listed[0].id.as_str(), listed[0].name.as_str()), (full.id.as_str(), "test"));
    assert_eq!(listed[0].client_urls, [etcd.endpoint()]);
    assert!(full.size_bytes > 14 << 20 && full.is_leader, "{full:?}");

    store.compact(full.revision).await.unwrap();
    store.compact(full.revision - 1).await.unwrap();
    store.compact(full.revision + 100).await.unwrap_err();
    store.defragment().await.unwrap();
    let (emptied, alarms) = store.member_status().await.unwrap();
    assert!(emptied.size_bytes < 4 << 20, "{emptied:?}");
    assert_eq!(alarms.len(), 1, "an alarm stays until it is ended");
    assert!(!write(&shared, vec![Op::put(beat("n2"), "1")]).await);
    store.disarm_no_space(&full.id).await.unwrap();
    assert!(write(&shared, vec![Op::put(beat("n2"), "1")]).await);
    assert_eq!(store.member_status().await.unwrap().1, []);
}
