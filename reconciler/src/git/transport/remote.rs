//! Time-bounded front of a mirror: every call ends in time, whatever the remote does.
//!
//! libgit2 blocks, and its timeouts are process-wide. So each call runs on its own thread, which is left behind
//! when it is silent for too long. Calls wait for turns: sshd's `MaxStartups` rejects a crowd.

use std::convert::Infallible;
use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use git2::Oid;
use schema::control::lock;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio::time::Instant;

use super::proxy::Transfer;
use crate::git::{GitError, Mirror, SourceConfig};

const LS_REMOTE_DEADLINE: Duration = Duration::from_secs(20);
/// Longest silence of a fetch. A fetch may take long, but a server that counts objects reports progress.
const FETCH_SILENCE: Duration = Duration::from_secs(120);
/// Threads left behind by a silent remote, above which it is contacted rarely. They may never end.
const LEFT_BEHIND_MAX: usize = 16;
/// Interval between attempts from then on: a remote that has recovered is found within it.
const TRY_AGAIN: Duration = Duration::from_secs(1_800);
const AT_ONCE_MAX: usize = 8;
/// Concurrent calls to remotes that were silent before, in addition to the others.
const SILENT_AT_ONCE_MAX: usize = 2;
/// Longest turn; it ends even if the call goes on, as for a large fetch or a silent remote.
const TURN_MAX: Duration = Duration::from_secs(20);
/// Upper bound of the random delay before a caller queues for a turn, so that sources do not run in lockstep.
const JITTER: Duration = Duration::from_millis(200);

/// Turns shared by the whole process.
static TURNS: LazyLock<Arc<Turns>> = LazyLock::new(Arc::default);

/// Remote and mirror of a source, for callers that must not block.
#[derive(Debug, Clone)]
pub struct Remote {
    mirror: Mirror,
    left_behind: Arc<AtomicUsize>,
    begun: Arc<Mutex<Option<Instant>>>,
    turns: Arc<Turns>,
}

impl Remote {
    /// Creates the remote of `config`, mirrored below `state_dir`; touches neither.
    pub fn new(config: Arc<SourceConfig>, state_dir: &Path) -> Self {
        let mirror = Mirror::new(config, state_dir);
        Self { mirror, left_behind: Arc::default(), begun: Arc::default(), turns: Arc::clone(&TURNS) }
    }

    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// See [`Mirror::ls_remote`].
    pub async fn ls_remote(&self) -> Result<Oid, GitError> {
        self.bounded("ls-remote", LS_REMOTE_DEADLINE, |mirror, _| mirror.ls_remote()).await
    }

    /// See [`Mirror::fetch`].
    pub async fn fetch(&self) -> Result<Oid, GitError> {
        self.bounded("fetch", FETCH_SILENCE, Mirror::fetch).await
    }

    /// See [`Mirror::rebuild`].
    pub async fn rebuild(&self) -> Result<Oid, GitError> {
        self.bounded("fetch", FETCH_SILENCE, Mirror::rebuild).await
    }

    async fn bounded(
        &self,
        act: &'static str,
        silence: Duration,
        call: impl FnOnce(&Mirror, &Arc<Transfer>) -> Result<Oid, GitError> + Send + 'static,
    ) -> Result<Oid, GitError> {
        let left_behind = self.left_behind.load(Ordering::Relaxed);
        if self.is_backed_off(left_behind) {
            return Err(self.timeout(act, silence));
        }
        let turn = self.turns.take(left_behind > 0).await;
        *lock(&self.begun) = Some(Instant::now());
        let turn_over = async move {
            tokio::time::sleep(TURN_MAX).await;
            drop(turn);
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            // Cancel-safe: dropping the future ends the turn.
            never = turn_over => match never {},
            // Cancel-safe: the thread is left behind, and stays counted.
            outcome = self.on_a_thread(act, silence, call) => outcome,
        }
    }

    /// True if too many threads of the remote are left behind to contact it now.
    fn is_backed_off(&self, left_behind: usize) -> bool {
        left_behind >= LEFT_BEHIND_MAX && lock(&self.begun).is_some_and(|begun| begun.elapsed() < TRY_AGAIN)
    }

    async fn on_a_thread(
        &self,
        act: &'static str,
        silence: Duration,
        call: impl FnOnce(&Mirror, &Arc<Transfer>) -> Result<Oid, GitError> + Send + 'static,
    ) -> Result<Oid, GitError> {
        let (answer, mut answered) = oneshot::channel();
        let transfer = Arc::new(Transfer::default());
        let guard = CountedThread::new(&self.left_behind);
        let (mirror, transferring) = (self.mirror.clone(), Arc::clone(&transfer));
        let started = std::thread::Builder::new().name(format!("git-{act}")).spawn(move || {
            let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| call(&mirror, &transferring)));
            drop(guard);
            let _ = answer.send(outcome);
        });
        let url = self.mirror.config().shown_url();
        let unreachable = |why: &str| GitError::RemoteUnreachable { url: url.clone(), why: why.to_owned() };
        started.map_err(|error| unreachable(&format!("cannot start a thread: {error}")))?;
        loop {
            let signs = transfer.progress_count.load(Ordering::Relaxed);
            match tokio::time::timeout(silence, &mut answered).await {
                Ok(Ok(Ok(outcome))) => return outcome,
                Ok(_) => return Err(unreachable("the Git library panicked")),
                Err(_) if transfer.progress_count.load(Ordering::Relaxed) > signs => {}
                Err(_) => {
                    transfer.cancelled.store(true, Ordering::Relaxed);
                    return Err(self.timeout(act, silence));
                }
            }
        }
    }

    fn timeout(&self, act: &'static str, after: Duration) -> GitError {
        GitError::RemoteTimeout { url: self.mirror.config().shown_url(), act, after }
    }
}

#[derive(Debug)]
struct Turns {
    well: Semaphore,
    silent: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self { well: Semaphore::new(AT_ONCE_MAX), silent: Semaphore::new(SILENT_AT_ONCE_MAX) }
    }
}

impl Turns {
    /// Waits for a turn, in the order of requests. Never `None`: the semaphores are never closed.
    async fn take(&self, was_silent: bool) -> Option<SemaphorePermit<'_>> {
        let room = if was_silent { &self.silent } else { &self.well };
        if let Ok(turn) = room.try_acquire() {
            return Some(turn);
        }
        tokio::time::sleep(JITTER.mul_f64(rand::random())).await;
        room.acquire().await.ok()
    }
}

/// Counts a thread while it runs.
struct CountedThread(Arc<AtomicUsize>);

impl CountedThread {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for CountedThread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> Remote {
        Remote::new(Arc::new(SourceConfig::branch("main", "/nowhere", "main")), Path::new("/nowhere"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_remote_ends_in_a_timeout_and_after_many_it_is_asked_seldom_but_for_ever() {
        let remote = remote();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let silent = || {
            let released = Arc::clone(&released);
            remote.bounded("fetch", Duration::from_secs(1), move |_, _| {
                let _ = released.lock().unwrap().recv();
                Ok(Oid::ZERO_SHA1)
            })
        };
        for _ in 0..LEFT_BEHIND_MAX {
            assert!(matches!(silent().await, Err(GitError::RemoteTimeout { .. })));
        }
        let left_behind = || remote.left_behind.load(Ordering::Relaxed);
        for (rest, tries) in [(0, 0), (1_800, 1), (600, 0), (1_200, 1), (86_400, 1)] {
            tokio::time::advance(Duration::from_secs(rest)).await;
            let before = left_behind();
            for _ in 0..3 {
                assert!(matches!(silent().await, Err(GitError::RemoteTimeout { .. })));
            }
            assert_eq!(left_behind() - before, tries, "after another {rest} s");
        }
        // A remote that has recovered is found, whatever is left behind.
        tokio::time::advance(TRY_AGAIN).await;
        tokio::time::resume();
        assert!(remote.bounded("fetch", Duration::from_secs(60), |_, _| Ok(Oid::ZERO_SHA1)).await.is_ok());
        drop(release);
        while left_behind() > 0 {
            std::thread::yield_now();
        }
        assert!(remote.bounded("fetch", Duration::from_secs(60), |_, _| Ok(Oid::ZERO_SHA1)).await.is_ok());
    }

    #[tokio::test]
    async fn many_sources_that_start_at_once_take_turns() {
        let turns = Arc::<Turns>::default();
        let [under_way, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let ask = || {
            let remote = Remote { turns: Arc::clone(&turns), ..remote() };
            let (under_way, most) = (Arc::clone(&under_way), Arc::clone(&most));
            async move {
                let look = move |_: &Mirror, _: &Arc<Transfer>| {
                    most.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    under_way.fetch_sub(1, Ordering::SeqCst);
                    Ok(Oid::ZERO_SHA1)
                };
                remote.bounded("ls-remote", Duration::from_secs(60), look).await
            }
        };
        let asked = futures::future::join_all((0..57).map(|_| ask())).await;
        assert!(asked.iter().all(Result::is_ok));
        let most = most.load(Ordering::SeqCst);
        assert!((2..=AT_ONCE_MAX).contains(&most), "{most} at once");
    }

    #[tokio::test]
    async fn silent_remotes_give_their_turn_back_and_waiting_for_one_is_not_silence() {
        let turns = Arc::<Turns>::default();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let (silence, less) = (Duration::from_millis(1_500), Duration::from_millis(1_300));
        let silent = (0..AT_ONCE_MAX).map(|_| {
            let remote = Remote { turns: Arc::clone(&turns), ..remote() };
            let released = Arc::clone(&released);
            async move {
                let hang = move |_: &Mirror, _: &Arc<Transfer>| {
                    let _ = released.lock().unwrap().recv();
                    Ok(Oid::ZERO_SHA1)
                };
                let first = remote.bounded("ls-remote", silence, hang).await;
                assert!(matches!(first, Err(GitError::RemoteTimeout { .. })));
                remote
            }
        });
        let well = Remote { turns: Arc::clone(&turns), ..remote() };
        let after = async { well.bounded("ls-remote", less, |_, _| Ok(Oid::ZERO_SHA1)).await };
        let (silent, answer) = tokio::join!(futures::future::join_all(silent), after);
        answer.unwrap();
        // From now on they run alongside the others, which find all turns free.
        let asked =
            silent.iter().map(|remote| remote.turns.take(remote.left_behind.load(Ordering::Relaxed) > 0));
        let mut asked: Vec<_> = asked.map(Box::pin).collect();
        let mut taken = Vec::new();
        for take in &mut asked {
            taken.push(futures::poll!(take));
        }
        assert!(taken.iter().any(|turn| turn.is_ready()), "they are asked, too");
        assert_eq!(turns.well.available_permits(), AT_ONCE_MAX);
        drop(release);
    }

    #[tokio::test]
    async fn a_long_transfer_goes_on_as_long_as_it_shows_signs_of_life() {
        let (remote, silence, parts) = (remote(), Duration::from_secs(2), 12);
        let slow = remote.bounded("fetch", silence, move |_, transfer| {
            for _ in 0..parts {
                std::thread::sleep(silence / 10);
                assert!(transfer.record_progress());
            }
            Ok(Oid::ZERO_SHA1)
        });
        assert!(slow.await.is_ok());
    }
}
