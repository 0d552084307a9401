//! The bounded front of a mirror: every call ends in time, whatever the remote does.
//!
//! libgit2 blocks, and its own time limits are process-wide and only cover single reads. So each
//! call to the remote runs on a thread of its own; when it is silent for too long the thread is
//! left behind and the call fails. Threads left behind are few and counted.

use std::panic;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use git2::Oid;
use tokio::sync::oneshot;

use super::{GitError, Mirror, SourceConfig};

/// An answer to ls-remote is a few round trips.
const LS_REMOTE_DEADLINE: Duration = Duration::from_secs(20);
/// A fetch may take long, but not without a sign of life: a server that counts objects says so.
const FETCH_SILENCE: Duration = Duration::from_secs(120);
/// Most threads that wait for a remote that went silent. They end when the connection does.
const LEFT_BEHIND_MAX: usize = 16;

/// A source's remote and mirror, for callers that must not block.
#[derive(Debug, Clone)]
pub struct Remote {
    mirror: Mirror,
    left_behind: Arc<AtomicUsize>,
}

impl Remote {
    /// The remote of `config`, mirrored below `state_dir`. Touches nothing.
    pub fn new(config: Arc<SourceConfig>, state_dir: &Path) -> Self {
        Self { mirror: Mirror::new(config, state_dir), left_behind: Arc::default() }
    }

    /// The mirror, for reading.
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
        let url = self.mirror.config().shown_url();
        let timeout = || GitError::RemoteTimeout { url: url.clone(), act, after: silence };
        if self.left_behind.load(Ordering::Relaxed) >= LEFT_BEHIND_MAX {
            return Err(timeout());
        }
        let (answer, answered) = oneshot::channel();
        let transfer = Arc::new(Transfer::default());
        let guard = CountedThread::new(&self.left_behind);
        let (mirror, transferring) = (self.mirror.clone(), Arc::clone(&transfer));
        let started = std::thread::Builder::new().name(format!("git-{act}")).spawn(move || {
            let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| call(&mirror, &transferring)));
            drop(guard);
            // The receiver is gone when the deadline has passed: nobody wants the answer.
            let _ = answer.send(outcome);
        });
        let unreachable = |why: &str| GitError::RemoteUnreachable { url: url.clone(), why: why.to_owned() };
        started.map_err(|error| unreachable(&format!("no thread for it: {error}")))?;
        let mut answered = answered;
        loop {
            let signs = transfer.signs.load(Ordering::Relaxed);
            match tokio::time::timeout(silence, &mut answered).await {
                Ok(Ok(Ok(outcome))) => return outcome,
                Ok(_) => return Err(unreachable("the Git library panicked")),
                Err(_) if transfer.signs.load(Ordering::Relaxed) > signs => {}
                Err(_) => {
                    transfer.cancelled.store(true, Ordering::Relaxed);
                    return Err(timeout());
                }
            }
        }
    }
}

/// A transfer under way: how it shows that it lives, and how it is told to end.
#[derive(Debug, Default)]
pub struct Transfer {
    /// Counts packets and messages of the server.
    pub(super) signs: AtomicUsize,
    /// Nobody waits for it any more.
    pub(super) cancelled: AtomicBool,
}

impl Transfer {
    /// Counts a sign of life; `false`: the transfer is to end.
    pub(super) fn lives(&self) -> bool {
        self.signs.fetch_add(1, Ordering::Relaxed);
        !self.cancelled.load(Ordering::Relaxed)
    }
}

/// Counts a thread for as long as it runs.
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
    async fn a_silent_remote_ends_in_a_timeout_and_many_are_not_asked_again() {
        let remote = remote();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        for _ in 0..LEFT_BEHIND_MAX {
            let released = Arc::clone(&released);
            let silent = remote.bounded("fetch", Duration::from_secs(1), move |_, _| {
                let _ = released.lock().unwrap().recv();
                Ok(Oid::ZERO_SHA1)
            });
            assert!(matches!(silent.await, Err(GitError::RemoteTimeout { .. })));
        }
        let asked = remote.bounded("fetch", Duration::from_secs(1), |_, _| panic!("asked again")).await;
        assert!(matches!(asked, Err(GitError::RemoteTimeout { .. })));
        drop(release);
        while remote.left_behind.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        tokio::time::resume();
        assert!(remote.bounded("fetch", Duration::from_secs(60), |_, _| Ok(Oid::ZERO_SHA1)).await.is_ok());
    }

    #[tokio::test]
    async fn a_long_transfer_goes_on_as_long_as_it_shows_signs_of_life() {
        let (remote, silence, parts) = (remote(), Duration::from_millis(500), 12);
        let slow = remote.bounded("fetch", silence, move |_, transfer| {
            for _ in 0..parts {
                std::thread::sleep(silence / 10);
                assert!(transfer.lives());
            }
            Ok(Oid::ZERO_SHA1)
        });
        assert!(slow.await.is_ok());
    }
}
