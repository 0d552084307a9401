//! Time at which etcd sends a write to its watchers, such as agents.

use std::time::Instant;

use futures::StreamExt;
use harness::{Cluster, Context, Error, Result, secs};
use schema::keys::Key;
use schema::store::etcd::EtcdStore;
use schema::store::{Store, WatchEvent};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// A watch of one key until its next write.
pub(crate) struct NextWrite {
    runtime: Runtime,
    seen: JoinHandle<Result<Instant>>,
}

impl NextWrite {
    /// Starts the watch, and returns once etcd has it, so that no later write is missed or delayed.
    pub(crate) fn of(cluster: &Cluster, key: &Key) -> Result<NextWrite> {
        let runtime = Runtime::new()?;
        let store = runtime.block_on(EtcdStore::connect(&cluster.etcd.root(), secs(5)))?;
        let from = cluster.etcd.revision()? + 1;
        let wanted = key.to_string();
        let mut changes = runtime.block_on(store.watch(&wanted, from))?;
        let seen = runtime.spawn(async move {
            while let Some(batch) = changes.next().await {
                let is_it = |event: &WatchEvent| matches!(event, WatchEvent::Put(put) if put.key == wanted);
                if batch?.events.iter().any(is_it) {
                    return Ok(Instant::now());
                }
            }
            Err(Error::msg("the watch ended"))
        });
        Ok(NextWrite { runtime, seen })
    }

    /// Waits for the write, and returns its time.
    pub(crate) fn seen(self) -> Result<Instant> {
        let seen = async { tokio::time::timeout(secs(30), self.seen).await };
        self.runtime.block_on(seen).context("not written within 30 s")??
    }
}
