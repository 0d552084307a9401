//! Statuses reach the store: the last one always, those of removed pods never.

use std::sync::Arc;
use std::time::Duration;

use schema::codec::encode;
use schema::keys::Key;
use schema::kinds::pod::{PodPhase, PodStatus};
use schema::meta::NamespacedName;
use schema::snapshot::{Change, Snapshot};
use schema::store::memory::MemoryStore;
use schema::store::reflector::SnapshotReader;
use schema::store::{Guard, Op, Store};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::statuses::{Statuses, status_writer};

fn statuses(list: &[(&str, PodPhase, &str)]) -> Statuses {
    let one = |(name, phase, message): &(&str, PodPhase, &str)| {
        let status = PodStatus { phase: *phase, message: (*message).into(), ..PodStatus::default() };
        (NamespacedName::new("default", *name), Arc::new(status))
    };
    Statuses { pods: list.iter().map(one).collect(), complete: true, is_listed: true }
}

fn key(name: &str) -> String {
    Key::PodStatus("n1".into(), NamespacedName::new("default", name)).to_string()
}

async fn until(store: &MemoryStore, name: &str, message: Option<&str>) {
    let reached = async {
        loop {
            let stored = store.get(&key(name)).await.unwrap();
            let stored: Option<PodStatus> = stored.map(|kv| schema::codec::decode(&kv.value).unwrap());
            if stored.as_ref().map(|s| s.message.as_str()) == message {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached).await.expect("the status is written");
}

#[tokio::test(start_paused = true)]
async fn an_etcd_that_begins_anew_gets_the_statuses_again() {
    let store = Arc::new(MemoryStore::new());
    let (sender, receiver) = watch::channel(Statuses::default());
    let snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let writer = status_writer("n1".into(), store.clone(), SnapshotReader::fixed(snapshot));
    let shutdown = CancellationToken::new();
    tokio::spawn(writer.run(receiver, shutdown.clone()));
    sender.send_replace(statuses(&[("web", PodPhase::Running, "runs")]));
    until(&store, "web", Some("runs")).await;
    let _ = store.txn(vec![], vec![Op::delete(key("web"))]).await.unwrap();
    until(&store, "web", Some("runs")).await;
    shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn the_last_status_is_written_and_a_stale_key_removed() {
    let store = Arc::new(MemoryStore::new());
    let stale = encode(&PodStatus { message: "stale".into(), ..PodStatus::default() }).unwrap();
    let _ = store.txn(vec![Guard::Absent(key("old"))], vec![Op::put(key("old"), stale)]).await.unwrap();
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    for stored in store.list("/minik8s/").await.unwrap().items {
        snapshot.apply(&Change::Put {
            key: stored.key,
            value: stored.value,
            create_revision: stored.create_revision,
            mod_revision: stored.mod_revision,
        });
    }
    let (sender, receiver) = watch::channel(Statuses::default());
    let writer = status_writer("n1".into(), store.clone(), SnapshotReader::fixed(snapshot));
    let shutdown = CancellationToken::new();
    tokio::spawn(writer.run(receiver, shutdown.clone()));
    sender.send_replace(statuses(&[("web", PodPhase::Pending, "0")]));
    until(&store, "old", None).await;
    until(&store, "web", Some("0")).await;
    let before = store.list("/minik8s/").await.unwrap().revision;
    // Many changes at once become few writes, and the last one is among them.
    for n in 1..=50 {
        sender.send_replace(statuses(&[("web", PodPhase::Pending, &n.to_string())]));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until(&store, "web", Some("50")).await;
    let writes = store.list("/minik8s/").await.unwrap().revision - before;
    assert!(writes <= 2, "{writes} writes within a second");
    // Someone else wrote the key: the guard detects it, and the newest status still wins.
    let foreign = encode(&PodStatus::default()).unwrap();
    let _ = store.txn(vec![], vec![Op::put(key("web"), foreign)]).await.unwrap();
    sender.send_replace(statuses(&[("web", PodPhase::Running, "runs")]));
    until(&store, "web", Some("runs")).await;
    sender.send_replace(statuses(&[]));
    until(&store, "web", None).await;
    shutdown.cancel();
}

// Seen red with `learn` on the first list alone: the key stays for good.
#[tokio::test(start_paused = true)]
async fn a_write_that_came_through_late_does_not_outlive_its_pod() {
    let store = Arc::new(MemoryStore::new());
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
    let (sender, receiver) = watch::channel(Statuses { complete: true, ..Statuses::default() });
    let writer = status_writer("n1".into(), store.clone(), reader);
    let shutdown = CancellationToken::new();
    tokio::spawn(writer.run(receiver, shutdown.clone()));
    sender.send_replace(statuses(&[("web", PodPhase::Running, "runs")]));
    until(&store, "web", Some("runs")).await;
    // The agent does not know of this write, because its answer was lost.
    let late = encode(&PodStatus { message: "late".into(), ..PodStatus::default() }).unwrap();
    let _ = store.txn(vec![], vec![Op::put(key("late"), late)]).await.unwrap();
    let show = |snapshot: &mut Snapshot, stored: &[schema::store::KeyValue]| {
        for kv in stored {
            snapshot.apply(&Change::Put {
                key: kv.key.clone(),
                value: kv.value.clone(),
                create_revision: kv.create_revision,
                mod_revision: kv.mod_revision,
            });
        }
    };
    let listing = store.list("/minik8s/").await.unwrap();
    show(&mut snapshot, &listing.items);
    snapshot.revision = listing.revision;
    publisher.publish(snapshot.clone());
    until(&store, "late", None).await;
    until(&store, "web", Some("runs")).await;
    // The snapshot still shows the key for a while, which causes no write.
    let before = store.list("/minik8s/").await.unwrap().revision;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(store.list("/minik8s/").await.unwrap().revision, before);
    shutdown.cancel();
}

// Three failures in a row end a round. Covers `step_back`, without which the same three would come first forever.
#[tokio::test(start_paused = true)]
async fn statuses_that_cannot_be_written_stop_no_other() {
    for bad in [&["a"][..], &["a", "b", "c"], &["a", "b", "c", "d", "e"]] {
        let store = Arc::new(MemoryStore::new());
        store.refuse_keys(bad.iter().map(|name| key(name)));
        let (sender, receiver) = watch::channel(Statuses::default());
        let snapshot = Snapshot { synced: true, ..Snapshot::default() };
        let writer = status_writer("n1".into(), store.clone(), SnapshotReader::fixed(snapshot));
        let shutdown = CancellationToken::new();
        tokio::spawn(writer.run(receiver, shutdown.clone()));
        let all = |message: &'static str, good: &[&'static str]| {
            let names = bad.iter().chain(good);
            statuses(&names.map(|name| (*name, PodPhase::Running, message)).collect::<Vec<_>>())
        };
        // Repeatedly, while the others are rejected every time.
        for message in ["0", "1", "2", "3", "4"] {
            let began = tokio::time::Instant::now();
            sender.send_replace(all(message, &["x", "y"]));
            until(&store, "x", Some(message)).await;
            until(&store, "y", Some(message)).await;
            assert!(began.elapsed() < Duration::from_secs(8), "{bad:?} {message}: {:?}", began.elapsed());
        }
        // The key of a removed pod is deleted too.
        sender.send_replace(all("5", &["x"]));
        until(&store, "y", None).await;
        for name in bad {
            until(&store, name, None).await;
        }
        store.refuse_keys([]);
        for name in bad {
            until(&store, name, Some("5")).await;
        }
        shutdown.cancel();
    }
}

// A status too large to be encoded never reaches the store.
#[tokio::test(start_paused = true)]
async fn a_status_that_is_too_large_stops_no_other_and_is_written_once_it_is_not() {
    let store = Arc::new(MemoryStore::new());
    let (sender, receiver) = watch::channel(Statuses::default());
    let snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let writer = status_writer("n1".into(), store.clone(), SnapshotReader::fixed(snapshot));
    let shutdown = CancellationToken::new();
    tokio::spawn(writer.run(receiver, shutdown.clone()));
    let huge = "x".repeat(schema::store::TXN_MAX_BYTES + 1);
    sender.send_replace(statuses(&[("a", PodPhase::Running, &huge), ("b", PodPhase::Running, "runs")]));
    until(&store, "b", Some("runs")).await;
    until(&store, "a", None).await;
    sender.send_replace(statuses(&[("a", PodPhase::Running, "short"), ("b", PodPhase::Running, "end")]));
    until(&store, "a", Some("short")).await;
    shutdown.cancel();
}

// Red when one conflict leaves the whole transaction undone.
#[tokio::test(start_paused = true)]
async fn one_conflict_in_a_transaction_of_many_spoils_none_of_them() {
    let store = Arc::new(MemoryStore::new());
    let (sender, receiver) = watch::channel(Statuses::default());
    let snapshot = Snapshot { synced: true, ..Snapshot::default() };
    let writer = status_writer("n1".into(), store.clone(), SnapshotReader::fixed(snapshot));
    let foreign = encode(&PodStatus::default()).unwrap();
    let _ = store.txn(vec![], vec![Op::put(key("p7"), foreign)]).await.unwrap();
    let shutdown = CancellationToken::new();
    tokio::spawn(writer.run(receiver, shutdown.clone()));
    let names: Vec<String> = (0..100).map(|n| format!("p{n}")).collect();
    let list: Vec<_> = names.iter().map(|name| (name.as_str(), PodPhase::Running, "runs")).collect();
    sender.send_replace(statuses(&list));
    for name in &names {
        until(&store, name, Some("runs")).await;
    }
    // An outage: every status is written once it is over.
    store.refuse_everything(true);
    let list: Vec<_> = names.iter().map(|name| (name.as_str(), PodPhase::Pending, "later")).collect();
    sender.send_replace(statuses(&list));
    tokio::time::sleep(Duration::from_secs(300)).await;
    store.refuse_everything(false);
    let back = tokio::time::Instant::now();
    for name in &names {
        until(&store, name, Some("later")).await;
    }
    assert!(back.elapsed() < Duration::from_secs(3), "{:?}", back.elapsed());
    shutdown.cancel();
}
