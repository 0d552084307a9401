//! Notifications: commit statuses for forges, messages about verdicts and problems for people.
//!
//! Reads the snapshot and the state of etcd; `fold/` decides which message each target should have, `plan.rs` what to
//! write and what to deliver. Writes `outbox/`, and hands deliveries to the courier, which sends them (`send/`). Only the
//! leader does; a new one goes on with the outbox.

mod courier;
pub mod fold;
#[cfg(test)]
mod loop_tests;
pub mod plan;
pub mod send;
pub mod target;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use schema::codec;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::keys::Key;
use schema::kinds::cluster::Notification;
use schema::records::EtcdMember;
use schema::snapshot::Snapshot;
use schema::store::election::{Fence, FenceReader};
use schema::store::reflector::SnapshotReader;
use schema::store::{Guard, Op, SharedStore};
use tokio::sync::watch;

use self::courier::Parcel;
pub use self::courier::{Courier, CourierQueue};
use self::plan::{
    DeliveryResult, ENTRIES_MAX, EntryKey, InFlight, Memory, OutboxPlan, OutboxWrite, Outcome,
    PlannedDelivery,
};
use self::send::Delivery;
use self::target::{OwnAddresses, Target, TargetKind, TargetScope, targets};
use crate::git::SourceConfig;
use crate::guarded_writes::{self, PARALLEL, StopReason, WriteGroup, caught_up, guard_of_present};
use crate::upkeep::UpkeepState;

/// Wait after a conflict, or while the courier's queue is full.
const AFTER_CONFLICT: Duration = Duration::from_secs(1);
/// Wait after a failed delivery of the message that etcd is at its quota, which no entry holds.
const AT_QUOTA_RETRY: SignedDuration = SignedDuration::from_mins(1);

/// Dependencies of the loop.
pub struct NotificationDeps {
    pub store: SharedStore,
    pub snapshot: SnapshotReader,
    pub fence: FenceReader,
    pub etcd: watch::Receiver<Arc<UpkeepState>>,
    pub sources: Vec<SourceConfig>,
    pub state_dir: PathBuf,
    pub own_addresses: OwnAddresses,
    /// Address of the page for links in messages.
    pub page_url: Option<String>,
}

/// Keeps the outbox, and has its messages delivered.
pub struct NotificationLoop {
    deps: NotificationDeps,
    courier: CourierQueue,
    memory: Memory,
    /// Fence under which the memory was made.
    term: Option<Fence>,
    /// Newest revision that this loop wrote, or at which it became leader.
    written: i64,
    /// Targets of which it was logged that messages give way to new ones.
    crowded: BTreeSet<String>,
}

/// Observations of one run.
pub struct Observed {
    fence: Fence,
    snapshot: Arc<Snapshot>,
    etcd: Arc<UpkeepState>,
    targets: BTreeMap<String, Arc<Target>>,
    memory: Memory,
}

impl NotificationLoop {
    /// Creates a loop that has delivered nothing yet.
    pub fn new(deps: NotificationDeps, courier: CourierQueue) -> Self {
        Self { deps, courier, memory: Memory::default(), term: None, written: 0, crowded: BTreeSet::new() }
    }

    /// Begins a term, or ends one: then only the outbox counts.
    fn begin_term(&mut self, fence: Option<Fence>) {
        if self.term != fence {
            self.courier.take_results();
            (self.memory, self.term) = (Memory::default(), fence);
        }
    }

    /// Hands a delivery to the courier; false if its queue is full.
    fn hand_over(&mut self, observed: &Observed, planned: PlannedDelivery) -> bool {
        let PlannedDelivery { key, id, message, may_have_arrived } = planned;
        let Some(target) = observed.targets.get(&key.0) else { return true };
        let flight = InFlight { key: key.clone(), id: id.clone() };
        let link = link(self.deps.page_url.as_deref(), &message.page);
        let delivery = Delivery { id, subject: key.1.clone(), message, link, may_have_arrived };
        let parcel = Parcel { fence: observed.fence, target: Arc::clone(target), key, delivery };
        let is_queued = self.courier.push(parcel);
        if is_queued {
            self.memory.in_flight.insert(flight.key.0.clone(), flight);
        }
        is_queued
    }
}

/// Returns the entries whose delivery begins although they cannot be written: those that report that etcd is at its quota.
/// Once one was accepted, there is no other.
fn due_at_quota(seen: &Observed, writes: &[OutboxWrite], now: Timestamp) -> BTreeSet<EntryKey> {
    if !seen.etcd.members.iter().any(EtcdMember::is_full) {
        return BTreeSet::new();
    }
    let is_enough = |result: &DeliveryResult| {
        result.outcome == Outcome::Accepted || now.duration_since(result.at) < AT_QUOTA_RETRY
    };
    let is_due = |key: &EntryKey| {
        key.1 == fold::ETCD
            && !seen.memory.results.iter().any(|result| result.key == *key && is_enough(result))
    };
    writes.iter().map(|write| &write.key).filter(|key| is_due(key)).cloned().collect()
}

/// Returns a hash of the settings that name the receiver of a target's messages. What a secret holds is not in it.
fn settings_hash(target: &Target) -> String {
    match &target.kind {
        TargetKind::CommitStatus { status, .. } => {
            codec::content_hash(&(status.forge.name(), status.api.as_str(), &status.repository, &status.name))
        }
        TargetKind::Chat { notification, .. } => {
            let (on, allow_private) = (Vec::new(), false);
            codec::content_hash(&Notification { on, allow_private, ..notification.clone() })
        }
    }
}

/// Returns the address of a page; `None` if there is none.
fn link(page_url: Option<&str>, page: &str) -> Option<String> {
    let base = page_url.filter(|_| !page.is_empty())?;
    Some(format!("{}{page}", base.trim_end_matches('/')))
}

/// Returns the guarded write of an entry.
async fn group(store: &SharedStore, snapshot: &Snapshot, write: &OutboxWrite) -> anyhow::Result<WriteGroup> {
    let key = Key::Outbox(write.key.0.clone(), write.key.1.clone()).to_string();
    let op = match &write.entry {
        Some(entry) => Op::put(&key, codec::encode(entry)?),
        None => Op::delete(&key),
    };
    let guard = match write.over {
        Some(revision) => Guard::ModRevision(key, revision),
        None if snapshot.malformed.contains_key(&key) => guard_of_present(store, &key).await?,
        None => Guard::Absent(key),
    };
    Ok(vec![(guard, op)])
}

#[async_trait]
impl Loop for NotificationLoop {
    type Observed = Observed;
    type Plan = OutboxPlan;
    type Outcome = Result<Next, LoopError>;

    fn name(&self) -> &'static str {
        "notifications"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let fence = self.deps.fence.current();
        self.begin_term(fence);
        let Some(fence) = fence else {
            return Ok(Observation::NotReady("another reconciler leads".to_owned()));
        };
        // An older outbox would not hold what was delivered last.
        self.written = self.written.max(fence.create_revision);
        let store = self.deps.store.as_ref();
        let snapshot = match caught_up(store, &mut self.deps.snapshot, &mut self.written).await {
            Ok(snapshot) => snapshot,
            Err(why) => return Ok(Observation::NotReady(why)),
        };
        // Without them the targets are not known, and their entries would be removed.
        let Some(settings) = snapshot.settings.get(&()) else {
            return Ok(Observation::NotReady("the cluster's settings are not published yet".to_owned()));
        };
        let NotificationDeps { sources, state_dir, own_addresses, .. } = &self.deps;
        let all = targets(sources, Some(&settings.value), state_dir, own_addresses);
        let targets = all.into_iter().map(|target| (target.name.clone(), Arc::new(target))).collect();
        self.memory.results.extend(self.courier.take_results());
        let (etcd, memory) = (Arc::clone(&self.deps.etcd.borrow()), self.memory.clone());
        Ok(Observation::Ready(Observed { fence, snapshot, etcd, targets, memory }))
    }

    fn plan(seen: &Observed, now: Timestamp) -> OutboxPlan {
        let scopes: BTreeMap<String, TargetScope> =
            seen.targets.iter().map(|(name, target)| (name.clone(), target.scope())).collect();
        let wanted = fold::wanted(&seen.snapshot, &seen.etcd, &scopes, now);
        let targets =
            seen.targets.iter().map(|(name, target)| (name.clone(), settings_hash(target))).collect();
        let mut out = plan::plan(&seen.snapshot.outbox, &targets, &wanted, &seen.memory, now);
        out.unrecorded = due_at_quota(seen, &out.writes, now);
        out
    }

    async fn act(&mut self, seen: &Observed, plan: OutboxPlan) -> Self::Outcome {
        let OutboxPlan { writes, repeats, pauses, crowded, unrecorded, .. } = plan;
        self.memory.pauses = Some(pauses);
        for to in crowded {
            if self.crowded.insert(to.clone()) {
                tracing::warn!(
                    to,
                    most = ENTRIES_MAX,
                    "outbox of the target is full; its oldest messages give way"
                );
            }
        }
        let (mut planned, mut groups, mut unwritten) = (Vec::new(), Vec::new(), BTreeSet::new());
        for write in writes {
            match group(&self.deps.store, &seen.snapshot, &write).await {
                Ok(group) => {
                    groups.push(group);
                    planned.push(write);
                }
                Err(error) => {
                    tracing::error!(to = write.key.0, subject = write.key.1, %error, "entry of the outbox not written");
                    unwritten.insert(write.key);
                }
            }
        }
        let written = guarded_writes::write(self.deps.store.as_ref(), seen.fence, &groups, PARALLEL).await;
        self.written = self.written.max(written.revision);
        let mut deliveries = repeats;
        for (number, OutboxWrite { key, delivery, .. }) in planned.into_iter().enumerate() {
            let is_written = written.done.binary_search(&number).is_ok();
            if is_written || unrecorded.contains(&key) {
                deliveries.extend(delivery);
            }
            if !is_written {
                unwritten.insert(key);
            }
        }
        self.memory.forget_written(&unwritten);
        let mut is_queued = true;
        for delivery in deliveries {
            is_queued &= self.hand_over(seen, delivery);
        }
        match written.stopped {
            Some(StopReason::Store(error)) => Err(LoopError::new("cannot write the outbox", error)),
            None if !written.conflicts.is_empty() || !is_queued => Ok(Next::After(AFTER_CONFLICT)),
            // Another reconciler leads, which the next run finds out.
            None | Some(StopReason::FenceLost) => Ok(Next::Interval),
        }
    }

    async fn report(&mut self, _: Observed, outcome: Self::Outcome) -> Result<Next, LoopError> {
        outcome
    }
}
