//! Lock on a reconciler's state directory, and the leader lease recorded in it.
//!
//! A killed reconciler leaves its lease in etcd. The next holder of the lock knows that this process is dead and
//! revokes the lease, instead of waiting until it expires.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use schema::control::{DiskRecord, FileLock, LockOutcome, close_state_dir, is_file_locked, lock_file};
use schema::store::election::FenceReader;
use schema::store::{LeaseId, Store, StoreError};
use tokio::time::timeout;

/// Closes this daemon's folders `own` of the state directory to other users, and the directory with them. Where that
/// fails, the daemon runs as before: the directory may belong to another user.
pub fn close(root: &Path, own: &[&str]) {
    if let Err(error) = close_state_dir(root, own, None) {
        tracing::warn!(dir = %root.display(), %error, "state directory not closed to other users; set its mode to 0700");
    }
}

/// True if a daemon uses this folder of a state directory: both lock a file of this name. Creates nothing.
pub fn is_in_use(own: &Path) -> bool {
    is_file_locked(&own.join(LOCK_FILE))
}

const LOCK_FILE: &str = "lock";
const LEASE_FILE: &str = "lease";
/// Longest delay of the start for revoking the former lease, which otherwise expires later.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// A held lock, for the lifetime of the process.
#[derive(Debug)]
pub struct StateDirLock {
    _lock: FileLock,
    lease: DiskRecord,
}

impl StateDirLock {
    /// Locks the directory, which must exist.
    pub fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(LOCK_FILE);
        match lock_file(&path).with_context(|| format!("cannot open {}", path.display()))? {
            LockOutcome::Locked(lock) => {
                Ok(Self { _lock: lock, lease: DiskRecord::new(dir.join(LEASE_FILE)) })
            }
            LockOutcome::Busy(_) => bail!(
                "another reconciler runs on {}; stop it, or give this one another --state-dir",
                dir.display()
            ),
        }
    }

    /// Revokes the former process's lease. `false` if etcd did not confirm it, so that process may still lead.
    pub async fn end_former_lease(&self, store: &dyn Store) -> bool {
        let Some(former) = self.lease.read().ok().flatten().map(LeaseId) else { return true };
        // Neither an expired lease nor an etcd that does not know it is an error.
        let ended = timeout(RELEASE_TIMEOUT, store.lease_revoke(former)).await;
        tracing::debug!(?former, ?ended, "lease of the former process revoked");
        let is_over = matches!(ended, Ok(Ok(()) | Err(StoreError::LeaseLost(_))));
        if is_over {
            let _ = self.lease.remove();
        }
        is_over
    }

    /// Records the lease of every term of this process, for the next process.
    pub async fn record_leases(self, mut fence: FenceReader) {
        loop {
            if let Some(lease) = fence.lease()
                && let Err(error) = self.record(lease)
            {
                // A lost record only costs the next start a wait.
                tracing::warn!(path = %self.lease.path().display(), %error, "lease of the leader not recorded");
            }
            fence.changed().await;
        }
    }

    fn record(&self, lease: LeaseId) -> std::io::Result<()> {
        self.lease.write(&lease.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use schema::store::election;
    use schema::store::memory::MemoryStore;
    use tokio_util::sync::CancellationToken;

    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn a_reconciler_that_was_killed_leads_again_without_waiting_for_its_own_lease() {
        let (dir, store) = (tempfile::tempdir().unwrap(), MemoryStore::new());
        let state_dir = StateDirLock::take(dir.path()).unwrap();
        let (mut fence, election) = election::stand_for_election(
            Arc::new(store.clone()),
            "r".to_owned(),
            TTL,
            CancellationToken::new(),
        );
        let election = tokio::spawn(election);
        fence.changed().await;
        let first = fence.current().unwrap();
        state_dir.record(fence.lease().unwrap()).unwrap();
        // Killed: nothing is revoked.
        election.abort();
        drop(state_dir);

        let state_dir = StateDirLock::take(dir.path()).unwrap();
        let began = tokio::time::Instant::now();
        // Seen red if the record of the lease is removed at the first try.
        store.refuse_everything(true);
        assert!(!state_dir.end_former_lease(&store).await);
        store.refuse_everything(false);
        assert!(state_dir.end_former_lease(&store).await && !state_dir.lease.exists());
        let (mut fence, election) = election::stand_for_election(
            Arc::new(store.clone()),
            "r".to_owned(),
            TTL,
            CancellationToken::new(),
        );
        tokio::spawn(election);
        fence.changed().await;
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_ne!(fence.current().unwrap(), first);
    }

    #[test]
    fn a_second_reconciler_is_refused_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let _first = StateDirLock::take(dir.path()).unwrap();
        let error = StateDirLock::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains("another reconciler runs on"), "{error}");
    }
}
