//! The event recorder on the in-memory store and a paused clock.

use super::*;
use crate::codec::decode;
use crate::keys::prefix;
use crate::store::Store as _;
use crate::store::memory::MemoryStore;

fn draft(name: &str, message: &str) -> EventDraft {
    EventDraft {
        kind: EventType::Normal,
        object_kind: "Pod".into(),
        namespace: "default".into(),
        name: name.into(),
        reason: "Started".into(),
        message: message.into(),
    }
}

fn recorder(store: &MemoryStore) -> (EventRecorder, CancellationToken) {
    let shutdown = CancellationToken::new();
    let (events, writing) =
        EventRecorder::writing(Arc::new(store.clone()), "n1", "agent/n1", shutdown.clone());
    tokio::spawn(writing);
    (events, shutdown)
}

async fn written(store: &MemoryStore) -> Vec<Event> {
    let listing = store.list(prefix::EVENTS).await.unwrap();
    listing.items.iter().map(|item| decode(&item.value).unwrap()).collect()
}

/// Waits, on the paused clock, until there are exactly this many events; no more may follow.
async fn settled(store: &MemoryStore, count: usize) -> Vec<Event> {
    for _ in 0..200 {
        sleep(Duration::from_millis(100)).await;
        if written(store).await.len() >= count {
            break;
        }
    }
    sleep(Duration::from_millis(100)).await;
    let events = written(store).await;
    assert_eq!(events.len(), count, "{events:?}");
    events
}

#[tokio::test(start_paused = true)]
async fn an_event_is_written_with_its_reporter_below_its_namespace() {
    let store = MemoryStore::new();
    let (recorder, _shutdown) = recorder(&store);
    recorder.record(draft("web", "Container app started"));
    recorder
        .reporting_as("scheduler")
        .record(EventDraft { namespace: String::new(), ..draft("n1", "Node is ready") });
    let mut events = settled(&store, 2).await;
    events.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!((events[0].name.as_str(), events[0].reporter.as_str()), ("n1", "scheduler"));
    assert_eq!((events[1].name.as_str(), events[1].reporter.as_str()), ("web", "agent/n1"));
    let keys = store.list(prefix::EVENTS).await.unwrap().items;
    assert!(keys[0].key.starts_with("/minik8s/events/n1/_cluster/"), "{}", keys[0].key);
    assert!(keys[1].key.starts_with("/minik8s/events/n1/default/"), "{}", keys[1].key);
    assert!(keys.iter().all(|item| item.key.parse::<Key>().is_ok()));
}

#[tokio::test(start_paused = true)]
async fn the_same_event_is_written_once_a_minute() {
    let store = MemoryStore::new();
    let (recorder, _shutdown) = recorder(&store);
    for _ in 0..10 {
        recorder.record(draft("web", "Back-off"));
    }
    recorder.record(draft("web", "Another thing"));
    recorder.record(draft("db", "Back-off"));
    settled(&store, 3).await;
    sleep(REPEAT_AFTER).await;
    recorder.record(draft("web", "Back-off"));
    settled(&store, 4).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_lives_an_hour_and_not_much_longer() {
    let store = MemoryStore::new();
    let (recorder, _shutdown) = recorder(&store);
    recorder.record(draft("first", "x"));
    settled(&store, 1).await;
    // Late in the same lease, and in the next one.
    sleep(LEASE_SHARED - Duration::from_secs(30)).await;
    recorder.record(draft("late", "x"));
    settled(&store, 2).await;
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(written(&store).await.len(), 2, "an hour after the late one");
    sleep(Duration::from_secs(600)).await;
    assert!(written(&store).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_replaced() {
    let store = MemoryStore::new();
    let (recorder, _shutdown) = recorder(&store);
    recorder.record(draft("a", "x"));
    settled(&store, 1).await;
    store.lease_revoke(LeaseId(1)).await.unwrap();
    recorder.record(draft("b", "x"));
    assert_eq!(settled(&store, 1).await[0].name, "b");
    assert_eq!(recorder.dropped(), 0);
}

#[tokio::test(start_paused = true)]
async fn recording_never_waits_and_what_does_not_fit_is_counted() {
    let store = MemoryStore::new();
    let (recorder, _shutdown) = recorder(&store);
    store.refuse_everything(true);
    for n in 0..QUEUE + 50 {
        recorder.record(draft(&format!("p{n}"), "x"));
    }
    assert_eq!(recorder.dropped(), 50);
    // The first batch is dropped after its retries; the store is back for the others.
    while recorder.dropped() == 50 {
        sleep(Duration::from_millis(100)).await;
    }
    store.refuse_everything(false);
    let lost = usize::try_from(recorder.dropped()).unwrap() - 50;
    settled(&store, QUEUE - lost).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_writes_what_is_queued() {
    let store = MemoryStore::new();
    let (recorder, shutdown) = recorder(&store);
    recorder.record(draft("web", "Killing"));
    shutdown.cancel();
    settled(&store, 1).await;
    recorder.record(draft("web", "after the end"));
    assert_eq!(recorder.dropped(), 1);
}

#[test]
fn a_disabled_recorder_forgets() {
    let recorder = EventRecorder::disabled();
    recorder.record(draft("web", "x"));
    assert_eq!(recorder.dropped(), 0);
}

#[test]
fn a_long_message_is_cut_at_a_character() {
    let mut message = "é".repeat(MESSAGE_MAX_BYTES);
    shorten(&mut message);
    assert!(message.len() <= MESSAGE_MAX_BYTES + '…'.len_utf8());
    assert!(message.ends_with("é…"));
}

#[test]
fn keys_sort_by_time() {
    let at = |micros| Event {
        time: Timestamp::from_microsecond(micros).unwrap(),
        kind: EventType::Normal,
        object_kind: String::new(),
        namespace: "ns".into(),
        name: String::new(),
        reason: String::new(),
        message: String::new(),
        reporter: String::new(),
    };
    assert!(key_of("n1", &at(999_999), u32::MAX).to_string() < key_of("n1", &at(1_000_000), 0).to_string());
    assert_eq!(key_of("n1", &at(7), 255).to_string(), "/minik8s/events/n1/ns/0000000000000007-000000ff");
}

#[test]
fn remembering_is_bounded() {
    let mut recent = RecentEvents::default();
    let now = Instant::now();
    for n in 0..REMEMBERED_MAX * 2 {
        let event = Event {
            time: Timestamp::UNIX_EPOCH,
            kind: EventType::Normal,
            object_kind: "Pod".into(),
            namespace: "ns".into(),
            name: n.to_string(),
            reason: String::new(),
            message: String::new(),
            reporter: String::new(),
        };
        assert!(recent.is_news(&event, now));
        assert!(!recent.is_news(&event, now));
    }
    assert!(recent.written.len() <= REMEMBERED_MAX);
}
