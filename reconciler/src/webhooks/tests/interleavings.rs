//! Two reconcilers, one of them leading, a remote that moves, and hooks that arrive at either one in any
//! order: everything must end on the last commit, long before the next poll. Targets, answers, drivers,
//! elections and reflectors are real, over an in-memory store; the loop between them stands in for gitops, which
//! `gitops/tests/interleavings.rs` tests on real repositories.
//!
//! Time is paused: the seed determines the duration of a run, and hooks arrive in the middle of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::arbitrary::Chance;
use schema::codec::{decode, encode};
use schema::control::{Driver, Loop, LoopError, Next, Nudge, Observation, Plan};
use schema::keys::{Key, ROOT};
use schema::records::{Provider, SourceStatus};
use schema::snapshot::Snapshot;
use schema::store::election::{self, Fence, FenceReader};
use schema::store::memory::MemoryStore;
use schema::store::{Op, SharedStore, Store, reflector};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::daemon::answers_row;
use crate::view::testing;
use crate::webhooks::payload::Hint;
use crate::webhooks::{AnswersLoop, IncomingRequest, Intake, SourceTarget};

/// Number of orders tried.
const SEEDS: u64 = 1_000;
/// Time between two polls, so long that no poll happens within a story.
const POLL: Duration = Duration::from_secs(24 * 3600);
/// Time within which everything must settle; replacing a leader that is lost for good takes 15 s.
const REST_MAX: Duration = Duration::from_secs(120);

/// Stands in for gitops: reads the remote, takes its time, writes the commit that it read.
struct Sync {
    remote: Arc<AtomicU64>,
    store: SharedStore,
    fence: FenceReader,
    chance: Chance,
}

#[derive(Debug)]
struct Move(Option<u64>);

impl Plan for Move {
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

async fn applied(store: &SharedStore) -> Option<u64> {
    let found = store.get(&Key::Source("main".into()).to_string()).await.unwrap()?;
    decode::<SourceStatus>(&found.value).unwrap().applied_commit?.parse().ok()
}

#[async_trait]
impl Loop for Sync {
    type Observed = (u64, Option<u64>, Fence);
    type Plan = Move;
    type Outcome = ();

    fn name(&self) -> &'static str {
        "sync"
    }

    async fn observe(&mut self) -> Result<Observation<Self::Observed>, LoopError> {
        let Some(fence) = self.fence.current() else {
            return Ok(Observation::NotReady("another leads".into()));
        };
        let head = self.remote.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(self.chance.below(40))).await;
        Ok(Observation::Ready((head, applied(&self.store).await, fence)))
    }

    fn plan((head, applied, _): &Self::Observed, _: Timestamp) -> Move {
        Move((Some(*head) != *applied).then_some(*head))
    }

    async fn act(&mut self, (_, _, fence): &Self::Observed, plan: Move) {
        tokio::time::sleep(Duration::from_millis(self.chance.below(40))).await;
        let Some(head) = plan.0 else { return };
        let status = encode(&status(head)).unwrap();
        let put = Op::put(Key::Source("main".into()), status);
        let _ = self.store.txn(vec![fence.guard()], vec![put]).await;
    }

    async fn report(&mut self, _: Self::Observed, (): ()) -> Result<Next, LoopError> {
        Ok(Next::Interval)
    }
}

fn status(head: u64) -> SourceStatus {
    let commit = head.to_string();
    SourceStatus { applied_at: Some(Timestamp::now()), ..testing::source(&commit, &commit, head) }
}

struct Reconciler {
    intake: Arc<Intake>,
    nudge: Nudge,
    fence: FenceReader,
}

impl Reconciler {
    fn start(name: &str, store: &MemoryStore, remote: &Arc<AtomicU64>, seed: u64) -> Self {
        let (shared, token): (SharedStore, _) = (Arc::new(store.clone()), CancellationToken::new());
        let (snapshot, reflecting) =
            reflector::reflect(Arc::clone(&shared), vec![ROOT.to_owned()], token.clone());
        tokio::spawn(reflecting);
        let ttl = Duration::from_secs(15);
        let (fence, election) =
            election::stand_for_election(Arc::clone(&shared), name.to_owned(), ttl, token.clone());
        tokio::spawn(election);
        let (nudge, nudged) = Nudge::new();
        let target = SourceTarget::of_branch("main", "main", nudge.clone());
        let intake = Arc::new(Intake::new(vec![target], snapshot.clone(), Arc::clone(&shared), name));
        let (last_run, runs) = watch::channel(None);
        let remote = Arc::clone(remote);
        let sync =
            Sync { remote, store: Arc::clone(&shared), fence: fence.clone(), chance: Chance::new(seed) };
        tokio::spawn(Driver::every(POLL).run(sync, nudged, token.clone(), last_run));
        let row = answers_row(&snapshot, &fence, std::slice::from_ref(&runs));
        let answers = AnswersLoop::new(&intake, fence.clone(), vec![runs]);
        tokio::spawn(row.run(answers, token, watch::channel(None).0));
        // As in the daemon: a new leader runs immediately.
        let (mut changes, look) = (fence.clone(), nudge.clone());
        tokio::spawn(async move {
            loop {
                changes.changed().await;
                look.nudge();
            }
        });
        Self { intake, nudge, fence }
    }

    async fn hook(&self, id: u64) {
        let incoming = IncomingRequest {
            provider: Provider::GitHub,
            event: "push".into(),
            id: Some(id.to_string()),
            hint: Hint::default(),
            body: format!("{id:064}"),
            peer: "192.0.2.1".into(),
        };
        self.intake.accept(self.intake.target(None).unwrap(), incoming).await;
    }
}

/// Runs the story of a seed; an error names the remote's commit, the applied one and the waiting requests.
async fn story(seed: u64) -> Result<(), String> {
    let (store, remote) = (MemoryStore::new(), Arc::new(AtomicU64::new(1)));
    let all = [1, 2].map(|n| Reconciler::start(&format!("r{n}"), &store, &remote, seed ^ n));
    let mut chance = Chance::new(seed);
    let (mut owed, mut hooked) = (Vec::new(), vec![1]);
    for _ in 0..4 + chance.below(12) {
        let at = &all[usize::try_from(chance.below(2)).unwrap()];
        match chance.below(8) {
            0..=2 => owed.push(remote.fetch_add(1, Ordering::SeqCst) + 1),
            3 | 4 if !owed.is_empty() => {
                // In any order, and delayed: hooks overtake each other.
                let next = owed.remove(usize::try_from(chance.below(owed.len() as u64)).unwrap());
                at.hook(next).await;
                hooked.push(next);
            }
            3 | 4 => at.hook(hooked[usize::try_from(chance.below(hooked.len() as u64)).unwrap()]).await,
            5 => at.nudge.nudge(),
            6 => {
                if let Some(lease) = all.iter().find_map(|one| one.fence.lease()) {
                    store.lease_revoke(lease).await.unwrap();
                }
            }
            _ => store.cut_watches(),
        }
        tokio::time::sleep(Duration::from_millis(chance.below(60))).await;
    }
    for id in owed {
        all[usize::try_from(chance.below(2)).unwrap()].hook(id).await;
    }
    rest(&store, remote.load(Ordering::SeqCst)).await
}

async fn rest(store: &MemoryStore, head: u64) -> Result<(), String> {
    let shared: SharedStore = Arc::new(store.clone());
    let deadline = tokio::time::Instant::now() + REST_MAX;
    loop {
        let mut snapshot = Snapshot::default();
        let all = store.list(ROOT).await.unwrap().items.into_iter();
        all.for_each(|item| snapshot.apply(&item.into()));
        let waiting: Vec<_> = snapshot.waiting_requests().map(|(id, _)| id).collect();
        let applied = applied(&shared).await;
        if applied == Some(head) && waiting.is_empty() {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(format!("remote {head}, applied {applied:?}, without answer {waiting:?}"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn any_order_of_pushes_hooks_polls_and_leaders_ends_on_the_last_commit() {
    let one = std::env::var("MINIK8S_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = one.map_or(0..SEEDS, |seed| seed..seed + 1);
    let failed: Vec<String> = seeds
        .filter_map(|seed| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            let ended = runtime.block_on(story(seed));
            ended.err().map(|why| format!("MINIK8S_SEED={seed}: {why}"))
        })
        .collect();
    assert!(failed.is_empty(), "{} of {SEEDS} failed:\n{}", failed.len(), failed.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_hook_in_the_middle_of_a_sync_is_looked_at_after_it() {
    let (store, remote) = (MemoryStore::new(), Arc::new(AtomicU64::new(1)));
    let leader = Reconciler::start("r1", &store, &remote, 7);
    rest(&store, 1).await.unwrap();
    let shared: SharedStore = Arc::new(store.clone());
    for head in 2..30 {
        leader.nudge.nudge();
        // The run has read the remote already, or has not; its write is still to come.
        tokio::time::sleep(Duration::from_millis(head)).await;
        remote.store(head, Ordering::SeqCst);
        leader.hook(head).await;
        rest(&store, head).await.unwrap();
        assert_eq!(applied(&shared).await, Some(head));
    }
}
