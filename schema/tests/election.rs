//! Two candidates on one store, on etcd and in memory, in real time.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod support;

use std::time::Duration;

use schema::store::election::{self, Fence, FenceReader, leader};
use schema::store::{Op, SharedStore, TxnOutcome};
use tokio::task::JoinHandle;
use tokio::time::{pause, resume, sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::support::{Backend, InMemory, OnEtcd, PATIENCE, eventually};

/// Twice the shortest TTL that etcd honors, because a busy machine renews late.
const TTL: Duration = Duration::from_secs(4);

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod etcd {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&super::OnEtcd::start().await).await;
            })*
        }
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&super::InMemory::start().await).await;
            })*
        }
    };
}

on_both!(
    one_leads_and_the_other_follows_when_it_resigns,
    when_a_leader_dies_the_other_leads_and_late_writes_are_refused,
);

struct Candidacy {
    fence: FenceReader,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

fn stand(store: SharedStore, id: &str) -> Candidacy {
    let shutdown = CancellationToken::new();
    let (fence, standing) = election::stand_for_election(store, id.to_owned(), TTL, shutdown.clone());
    Candidacy { fence, shutdown, task: tokio::spawn(standing) }
}

impl Candidacy {
    async fn leads(&mut self) -> Fence {
        let won = async {
            loop {
                if let Some(fence) = self.fence.current() {
                    return fence;
                }
                self.fence.changed().await;
            }
        };
        timeout(PATIENCE, won).await.expect("it leads")
    }
}

async fn write(store: &SharedStore, fence: Fence) -> TxnOutcome {
    store.txn(vec![fence.guard()], vec![Op::put("/minik8s/pods/a/b", "x")]).await.unwrap()
}

// Seen red without the end of the lease in `lead`: the key stays for the rest of its time.
async fn one_leads_and_the_other_follows_when_it_resigns(backend: &impl Backend) {
    let store = backend.store();
    let mut one = stand(backend.store(), "one");
    let old = one.leads().await;
    let mut two = stand(backend.store(), "two");
    // Longer than the lease: only keep-alives can have extended it.
    sleep(TTL * 2).await;
    assert_eq!((one.fence.current(), two.fence.current()), (Some(old), None));
    assert_eq!(leader(store.as_ref()).await.unwrap().unwrap().id, "one");
    assert!(matches!(write(&store, old).await, TxnOutcome::Committed(_)));

    one.shutdown.cancel();
    one.task.await.unwrap();
    let leader_now = leader(store.as_ref()).await.unwrap().map(|record| record.id);
    assert_ne!(leader_now.as_deref(), Some("one"), "its key goes before its task ends, not with the lease");
    let new = two.leads().await;
    assert_ne!(old, new);
    assert_eq!(leader(store.as_ref()).await.unwrap().unwrap().id, "two");
    assert_eq!(write(&store, old).await, TxnOutcome::Conflict);
}

async fn when_a_leader_dies_the_other_leads_and_late_writes_are_refused(backend: &impl Backend) {
    let store = backend.store();
    let mut one = stand(backend.store(), "one");
    let old = one.leads().await;
    let mut two = stand(backend.store(), "two");
    // Like SIGKILL: no resignation.
    one.task.abort();
    let new = two.leads().await;
    assert!(new.create_revision > old.create_revision);
    assert_eq!(one.fence.current(), None, "believed longer than its lease lived");
    assert_eq!(write(&store, old).await, TxnOutcome::Conflict);
    assert!(matches!(write(&store, new).await, TxnOutcome::Committed(_)));
}

#[tokio::test]
async fn a_leader_outlives_a_restart_of_etcd() {
    let mut etcd = support::PrivateEtcd::start();
    let store: SharedStore = std::sync::Arc::new(etcd.connect().await);
    let mut one = stand(store.clone(), "one");
    one.leads().await;
    etcd.kill();
    etcd.restart();
    eventually("it leads, and its fence holds", || {
        let (fence, store) = (one.fence.current(), store.clone());
        async move {
            let Some(fence) = fence else { return false };
            let outcome = store.txn(vec![fence.guard()], vec![Op::put("/t/a", "x")]).await;
            matches!(outcome, Ok(TxnOutcome::Committed(_)))
        }
    })
    .await;
}

// Seen red with a fence that counts for two more seconds.
#[tokio::test]
async fn a_leader_cut_off_from_etcd_stops_to_believe_in_itself() {
    let etcd = support::PrivateEtcd::start();
    let mut one = stand(std::sync::Arc::new(etcd.connect().await), "one");
    one.leads().await;
    // Silent, not refusing: connections stay open but nothing arrives.
    etcd.signal("STOP");
    // etcd can't answer, so this clock may jump from timer to timer: the machine's speed plays no part.
    pause();
    let lost = async {
        while one.fence.current().is_some() {
            one.fence.changed().await;
        }
    };
    timeout(TTL + Duration::from_millis(500), lost)
        .await
        .expect("it believes no longer than its lease lives");
    resume();
    etcd.signal("CONT");
    one.leads().await;
}
