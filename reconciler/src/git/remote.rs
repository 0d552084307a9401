//! The bounded front of a mirror: every call ends in time, whatever the remote does.
//!
//! libgit2 blocks, and its own time limits are process-wide and only cover single reads. So each
//! call to the remote runs on a thread of its own; past its deadline the thread is left behind
//! and the call fails. Threads left behind are few and counted.

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
/// A first fetch of a large repository over a slow line.
const FETCH_DEADLINE: Duration = Duration::from_secs(600);
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
        self.bounded("fetch", FETCH_DEADLINE, Mirror::fetch).await
    }

    /// See [`Mirror::rebuild`].
    pub async fn rebuild(&self) -> Result<Oid, GitError> {
        self.bounded("fetch", FETCH_DEADLINE, Mirror::rebuild).await
    }

    async fn bounded(
        &self,
        act: &'static str,
        deadline: Duration,
        call: impl FnOnce(&Mirror, &Arc<AtomicBool>) -> Result<Oid, GitError> + Send + 'static,
    ) -> Result<Oid, GitError> {
        let url = self.mirror.config().shown_url();
        let timeout = || GitError::RemoteTimeout { url: url.clone(), act, after: deadline };
        if self.left_behind.load(Ordering::Relaxed) >= LEFT_BEHIND_MAX {
            return Err(timeout());
        }
        let (answer, answered) = oneshot::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let guard = CountedThread::new(&self.left_behind);
        let (mirror, stop) = (self.mirror.clone(), Arc::clone(&cancelled));
        let started = std::thread::Builder::new().name(format!("git-{act}")).spawn(move || {
            let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| call(&mirror, &stop)));
            drop(guard);
            // The receiver is gone when the deadline has passed: nobody wants the answer.
            let _ = answer.send(outcome);
        });
        let unreachable = |why: &str| GitError::RemoteUnreachable { url: url.clone(), why: why.to_owned() };
        started.map_err(|error| unreachable(&format!("no thread for it: {error}")))?;
        match tokio::time::timeout(deadline, answered).await {
            Ok(Ok(Ok(outcome))) => outcome,
            Ok(_) => Err(unreachable("the Git library panicked")),
            Err(_) => {
                cancelled.store(true, Ordering::Relaxed);
                Err(timeout())
            }
        }
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
