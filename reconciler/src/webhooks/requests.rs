//! Writes `requests/` and `answers/` with a lease shared by all writes of an hour.

use std::time::Duration;

use schema::codec::{CodecError, decode, encode};
use schema::keys::Key;
use schema::store::{Guard, LeaseId, Op, SharedStore, StoreError, TxnOutcome};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// Lifetime of a lease. A request lives at least a day, since a lease accepts new ones for [`LEASE_SHARED`].
const LEASE_TTL: Duration = Duration::from_secs(25 * 3600);
/// Time during which a lease is used for new requests.
const LEASE_SHARED: Duration = Duration::from_secs(3600);
/// Longest time for a read or write: the sender waits for it, and most wait 10 s.
const ETCD_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub(super) enum SyncRequestError {
    #[error("it is not valid JSON")]
    Encode(#[source] CodecError),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("etcd did not answer within {}s", ETCD_TIMEOUT.as_secs())]
    Slow,
}

/// The requests in etcd, and the lease for new ones.
#[derive(Clone)]
pub(super) struct RequestStore {
    store: SharedStore,
    lease: std::sync::Arc<Mutex<Option<(LeaseId, Instant)>>>,
}

impl RequestStore {
    pub(super) fn new(store: SharedStore) -> Self {
        Self { store, lease: std::sync::Arc::default() }
    }

    /// Writes a key if the guards hold, and removes others in the same transaction.
    pub(super) async fn write(
        &self,
        key: &Key,
        value: &impl Serialize,
        guards: Vec<Guard>,
        remove: &[Key],
    ) -> Result<TxnOutcome, SyncRequestError> {
        let value = encode(value).map_err(SyncRequestError::Encode)?;
        let key = key.to_string();
        let written = timeout(ETCD_TIMEOUT, async {
            // The lease may be gone with an etcd that was recreated: then try again with a new one.
            for last in [false, true] {
                let lease = self.lease().await?;
                let put = Op::Put { key: key.clone(), value: value.clone().into(), lease: Some(lease) };
                let removed = remove.iter().map(Op::delete);
                let ops = std::iter::once(put).chain(removed).collect();
                match self.store.txn(guards.clone(), ops).await {
                    Err(StoreError::LeaseLost(_)) if !last => *self.lease.lock().await = None,
                    outcome => return Ok(outcome?),
                }
            }
            Ok(TxnOutcome::Conflict)
        });
        written.await.unwrap_or(Err(SyncRequestError::Slow))
    }

    /// Reads the current value in etcd; `None` if it is missing or unreadable.
    pub(super) async fn read<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<T>, SyncRequestError> {
        let found = timeout(ETCD_TIMEOUT, self.store.get(&key.to_string())).await;
        let found = found.map_err(|_| SyncRequestError::Slow)??;
        Ok(found.and_then(|found| decode(&found.value).ok()))
    }

    async fn lease(&self) -> Result<LeaseId, StoreError> {
        let mut held = self.lease.lock().await;
        if let Some((lease, since)) = *held
            && since.elapsed() < LEASE_SHARED
        {
            return Ok(lease);
        }
        let since = Instant::now();
        let lease = self.store.lease_grant(LEASE_TTL).await?;
        *held = Some((lease, since));
        Ok(lease)
    }
}
