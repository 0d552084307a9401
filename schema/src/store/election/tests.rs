//! The election on the in-memory store and a paused clock. On etcd: `tests/election.rs`.

use std::sync::Arc;

use super::*;
use crate::store::memory::MemoryStore;

const TTL: Duration = Duration::from_secs(15);

struct Candidacy {
    fence: FenceReader,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn stand(store: &MemoryStore, id: &str) -> Candidacy {
    let shutdown = CancellationToken::new();
    let (fence, standing) = stand_for_election(Arc::new(store.clone()), id.to_owned(), TTL, shutdown.clone());
    Candidacy { fence, shutdown, task: tokio::spawn(standing) }
}

/// Waits until the candidate leads, or does not; returns the elapsed time.
async fn until(candidacy: &mut Candidacy, leads: bool) -> Duration {
    let started = Instant::now();
    while candidacy.fence.current().is_some() != leads {
        timeout(Duration::from_secs(120), candidacy.fence.changed()).await.expect("a change");
    }
    started.elapsed()
}

async fn write(store: &MemoryStore, fence: Fence) -> TxnOutcome {
    store.txn(vec![fence.guard()], vec![Op::put("/minik8s/pods/a/b", "x")]).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_second_leads_when_the_first_resigns_at_once() {
    let store = MemoryStore::new();
    let mut one = stand(&store, "one");
    until(&mut one, true).await;
    let mut two = stand(&store, "two");
    sleep(TTL * 4).await;
    assert_eq!(two.fence.current(), None, "while one keeps its lease alive");
    assert_eq!(leader(&store).await.unwrap().unwrap().id, "one");

    let old = one.fence.current().unwrap();
    one.shutdown.cancel();
    one.task.await.unwrap();
    assert_eq!(one.fence.current(), None);
    assert!(until(&mut two, true).await < Duration::from_secs(1), "it waits for the lease to end");
    assert_eq!(leader(&store).await.unwrap().unwrap().id, "two");
    assert_eq!(write(&store, old).await, TxnOutcome::Conflict, "a late write of the old leader");
    assert!(matches!(write(&store, two.fence.current().unwrap()).await, TxnOutcome::Committed(_)));
}

#[tokio::test(start_paused = true)]
async fn the_fence_is_dropped_when_no_keep_alive_succeeds_for_a_ttl() {
    let store = MemoryStore::new();
    let mut one = stand(&store, "one");
    until(&mut one, true).await;
    sleep(TTL * 3).await;
    store.refuse_everything(true);
    let took = until(&mut one, false).await;
    assert!(took <= TTL, "believed for {took:?}");
    assert!(took >= TTL / 2, "given up after {took:?}: one failure is not the end");
    // The candidate tries again when the store is back.
    store.refuse_everything(false);
    until(&mut one, true).await;
}

#[tokio::test(start_paused = true)]
async fn a_short_failure_does_not_cost_the_leadership() {
    let store = MemoryStore::new();
    let mut one = stand(&store, "one");
    until(&mut one, true).await;
    let fence = one.fence.current();
    for _ in 0..5 {
        store.refuse_everything(true);
        sleep(TTL / 3).await;
        store.refuse_everything(false);
        sleep(TTL / 2).await;
        assert_eq!(one.fence.current(), fence);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_has_no_fence_from_its_first_instruction_on() {
    let store = MemoryStore::new();
    let mut one = stand(&store, "one");
    until(&mut one, true).await;
    // Time passes but no task runs, as under SIGSTOP: `advance` wakes no task before the assertion.
    let reader = one.fence.clone();
    let stopped = tokio::time::advance(TTL);
    tokio::pin!(stopped);
    let _ = futures::poll!(stopped.as_mut());
    assert_eq!(reader.current(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_key_removed_by_hand_is_noticed() {
    let store = MemoryStore::new();
    let mut one = stand(&store, "one");
    until(&mut one, true).await;
    let old = one.fence.current().unwrap();
    let _ = store.txn(vec![], vec![Op::delete(Key::Leader)]).await.unwrap();
    let started = Instant::now();
    // Lost and won again in one step, so the change may pass without a moment that has no fence.
    while one.fence.current().is_none_or(|fence| fence == old) {
        timeout(TTL, one.fence.changed()).await.expect("a change");
    }
    assert!(started.elapsed() <= TTL / 2);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_leaves_no_leader_that_does_not_know_it_is_one() {
    let store = MemoryStore::new();
    store.lose_next_answers(1);
    let mut one = stand(&store, "one");
    assert!(until(&mut one, true).await < TTL / 2);
    let fence = one.fence.current().unwrap();
    assert!(matches!(write(&store, fence).await, TxnOutcome::Committed(_)));
}

#[tokio::test(start_paused = true)]
async fn with_a_dead_store_shutdown_is_still_quick() {
    let store = MemoryStore::new();
    store.refuse_everything(true);
    let one = stand(&store, "one");
    sleep(TTL).await;
    one.shutdown.cancel();
    timeout(RESIGN_TIMEOUT * 2, one.task).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn a_value_that_can_not_be_read_is_nobody() {
    let store = MemoryStore::new();
    assert_eq!(leader(&store).await.unwrap(), None);
    let _ = store.txn(vec![], vec![Op::put(Key::Leader, "not json")]).await.unwrap();
    assert_eq!(leader(&store).await.unwrap(), None);
}

#[test]
fn a_fixed_reader_gives_what_it_was_given() {
    let fence = Fence { create_revision: 7 };
    assert_eq!(FenceReader::fixed(Some(fence)).current(), Some(fence));
    assert_eq!(FenceReader::fixed(None).current(), None);
    assert_eq!(fence.guard(), Guard::CreateRevision("/minik8s/leader".into(), 7));
}
