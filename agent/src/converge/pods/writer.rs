//! Writes statuses to etcd: what changed, guarded per key, at most once a second per pod unless its
//! phase or readiness changes. When etcd is away the newest state waits here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use schema::codec::encode;
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::PodRef;
use schema::store::reflector::WorldReader;
use schema::store::{Guard, Op, SharedStore, StoreError, TxnOutcome};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::report::Statuses;

/// Between two writes of one pod.
const SPACING: Duration = Duration::from_secs(1);
/// Between two tries when the store does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// How often it is looked whether the keys still hold what was written, and how long the world may
/// take to show a write.
const AUDIT: Duration = Duration::from_secs(10);

/// What is known of one key.
#[derive(Debug, Default)]
struct Written {
    status: Option<Arc<PodStatus>>,
    mod_revision: Option<i64>,
    at: Option<Instant>,
}

/// Writes the newest statuses until `shutdown`.
pub struct StatusWriter {
    node: String,
    store: SharedStore,
    world: WorldReader,
    written: BTreeMap<PodRef, Written>,
    listed: bool,
}

impl StatusWriter {
    /// A writer for `node`.
    pub fn new(node: String, store: SharedStore, world: WorldReader) -> Self {
        Self { node, store, world, written: BTreeMap::new(), listed: false }
    }

    /// Runs until `shutdown`.
    pub async fn run(mut self, mut statuses: watch::Receiver<Statuses>, shutdown: CancellationToken) {
        loop {
            let newest = statuses.borrow_and_update().clone();
            let audit = Instant::now() + AUDIT;
            let next = self.write_all(&newest).await.map_or(audit, |at| at.min(audit));
            // All three are cancel-safe: nothing is taken out of a queue.
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = statuses.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Writes what may be written now; when to come again for the rest.
    async fn write_all(&mut self, newest: &Statuses) -> Option<Instant> {
        self.learn();
        self.forget_lost();
        let mut next: Option<Instant> = None;
        let mut sooner = |at: Instant| next = Some(next.map_or(at, |n| n.min(at)));
        let gone: BTreeSet<PodRef> = if newest.complete && self.listed {
            self.written.keys().filter(|pod| !newest.pods.contains_key(*pod)).cloned().collect()
        } else {
            BTreeSet::new()
        };
        let wanted = newest.pods.iter().map(|(pod, status)| (pod, Some(status)));
        for (pod, status) in wanted.chain(gone.iter().map(|pod| (pod, None))) {
            let known = self.written.entry(pod.clone()).or_default();
            if known.status.as_ref() == status {
                if status.is_none() {
                    self.written.remove(pod);
                }
                continue;
            }
            let earliest = known.at.map(|at| at + SPACING).filter(|at| *at > Instant::now());
            if let Some(at) = earliest.filter(|_| !urgent(known.status.as_deref(), status.map(|s| &**s))) {
                sooner(at);
                continue;
            }
            if let Err(error) = self.write(pod, status.cloned()).await {
                tracing::debug!(%pod, %error, "status is written later");
                sooner(Instant::now() + RETRY);
                // The store is away: one try tells for all.
                break;
            }
        }
        next
    }

    /// Takes over what is stored when nothing is known of a key yet.
    fn learn(&mut self) {
        let world = self.world.current();
        if !world.synced || self.listed {
            return;
        }
        for ((node, pod), stored) in &world.pod_status {
            if *node == self.node {
                let known = self.written.entry(pod.clone()).or_default();
                if known.mod_revision.is_none() {
                    known.mod_revision = Some(stored.mod_revision);
                    known.status = Some(Arc::new(stored.value.clone()));
                }
            }
        }
        self.listed = true;
    }

    /// A key that was written a while ago and is not there is written again: etcd was lost and began
    /// anew, or somebody removed it.
    fn forget_lost(&mut self) {
        let world = self.world.current();
        if !world.synced {
            return;
        }
        for (pod, known) in self.written.iter_mut().filter(|(_, known)| known.status.is_some()) {
            let shown = world.pod_status.contains_key(&(self.node.clone(), pod.clone()));
            if !shown && known.at.is_none_or(|at| at.elapsed() >= AUDIT) {
                *known = Written { at: known.at, ..Written::default() };
            }
        }
    }

    async fn write(&mut self, pod: &PodRef, status: Option<Arc<PodStatus>>) -> Result<(), StoreError> {
        let key = Key::PodStatus(self.node.clone(), pod.clone()).to_string();
        let op = match &status {
            None => Op::delete(&key),
            Some(status) => match encode(&**status) {
                Ok(bytes) => Op::put(&key, bytes),
                Err(error) => {
                    tracing::error!(%pod, %error, "status can't be written");
                    return Ok(());
                }
            },
        };
        let mut revision = self.written.get(pod).and_then(|known| known.mod_revision);
        // Twice: the first guard may rest on an old revision.
        for _ in 0..2 {
            let guard = match revision {
                Some(revision) => Guard::ModRevision(key.clone(), revision),
                None => Guard::Absent(key.clone()),
            };
            if let TxnOutcome::Committed(at) = self.store.txn(vec![guard], vec![op.clone()]).await? {
                match status {
                    None => {
                        self.written.remove(pod);
                    }
                    Some(status) => {
                        let written = Written {
                            status: Some(status),
                            mod_revision: Some(at),
                            at: Some(Instant::now()),
                        };
                        self.written.insert(pod.clone(), written);
                    }
                }
                return Ok(());
            }
            revision = self.store.get(&key).await?.map(|stored| stored.mod_revision);
            if status.is_none() && revision.is_none() {
                self.written.remove(pod);
                return Ok(());
            }
        }
        Err(StoreError::Request { act: "a status write", message: "the key keeps changing".to_owned() })
    }
}

/// Someone waits for this change.
fn urgent(old: Option<&PodStatus>, new: Option<&PodStatus>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            old.phase != new.phase || old.uid != new.uid || old.is_ready() != new.is_ready()
        }
        _ => true,
    }
}
