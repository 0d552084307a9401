//! The shell shared by all controllers: observes, acts and reports as a [`Loop`].
//!
//! Reads the snapshot of etcd, writes the plan under the leader's fence, reports it to users as events. Plans only
//! while leading, and never on a snapshot older than its own writes: that would decide the same thing twice.
//!
//! Needs a reflector with *one* watch over all of [`schema::keys::ROOT`]: only then does the snapshot's revision
//! guarantee that it contains everything up to it.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::keys::Writer;
use schema::meta::NamespacedName;
use schema::records::EventType;
use schema::store::election::{Fence, FenceReader};
use schema::store::events::{EventDraft, EventRecorder};
use schema::store::reflector::SnapshotReader;
use schema::store::{SharedStore, newest_revision};
use tokio::sync::watch;
use tokio::time::Instant;

use super::autoscaler::{Autoscaler, SampleAges};
use super::functions::{Functions, ReportTimes};
use super::nodes::Nodes;
use super::note::{Note, subject};
use super::writes::{Change, Write, Writes};
use super::{Controller, Observed, Settings};
use crate::guarded_writes::{self, PARALLEL, StopReason, WriteGroup, WriteOutcome, caught_up};
use crate::last_known::LastKnown;

/// Pause after a conflict, unless the snapshot changes first. The shell's own, because the plan knew nothing of the
/// conflict.
const CONFLICT_PAUSE: Duration = Duration::from_millis(200);

/// Dependencies of a shell.
#[derive(Clone)]
pub struct Deps {
    pub store: SharedStore,
    pub snapshot: SnapshotReader,
    /// The present fence, while this process leads.
    pub fence: FenceReader,
    /// State of etcd when it was last settled.
    pub last_known: watch::Receiver<Arc<LastKnown>>,
    pub events: EventRecorder,
    /// Further inputs of the controllers.
    pub settings: Settings,
}

/// A controller run as a loop.
pub struct Shell<C> {
    deps: Deps,
    /// Term in which the fields below were gathered.
    term: Option<Fence>,
    /// Start of the term for this controller.
    term_began: Timestamp,
    /// Minimum revision of the next snapshot.
    floor: i64,
    /// Set while the outcome of a write is unknown: etcd is asked for its revision before the next plan.
    unsure: bool,
    /// Notes of the previous run, to report each only once.
    held: NoteHistory,
    sample_ages: SampleAges,
    report_times: ReportTimes,
    controller: PhantomData<fn() -> C>,
}

/// Result of carrying out a plan.
pub struct Outcome {
    plan: Writes,
    written: WriteOutcome,
}

impl<C: Controller> Shell<C> {
    /// Creates a shell that has observed nothing yet.
    pub fn new(deps: Deps) -> Self {
        let deps = Deps { events: deps.events.reporting_as(C::NAME), ..deps };
        Self {
            deps,
            term: None,
            term_began: Timestamp::UNIX_EPOCH,
            floor: 0,
            unsure: false,
            held: NoteHistory::default(),
            sample_ages: SampleAges::default(),
            report_times: ReportTimes::default(),
            controller: PhantomData,
        }
    }

    /// Resets the state at a new term. The snapshot must contain all that was written before: the leader key is
    /// younger than every write of the last leader.
    fn enter(&mut self, fence: Fence) {
        if self.term == Some(fence) {
            return;
        }
        self.term = Some(fence);
        self.term_began = Timestamp::now();
        self.floor = fence.create_revision;
        self.unsure = false;
        self.held = NoteHistory::default();
    }

    /// Updates the floor after a write whose response was lost: by now the write has happened or soon won't, so a
    /// snapshot at etcd's present revision contains it. Guards catch what comes even later.
    async fn raise_floor(&mut self) -> Result<(), LoopError> {
        if self.unsure {
            let here = newest_revision(self.deps.store.as_ref()).await;
            let here = here.map_err(|error| LoopError::new("asking etcd how far it is", error))?;
            self.floor = self.floor.max(here);
            self.unsure = false;
        }
        Ok(())
    }

    fn record_event(
        &self,
        about: (&'static str, String, String),
        kind: EventType,
        reason: &str,
        message: String,
    ) {
        let (object_kind, namespace, name) = about;
        let object = NamespacedName { namespace, name };
        self.deps.events.record(EventDraft::about(kind, object_kind, &object, reason, message));
    }

    fn record_write(&self, write: &Write) {
        // The second half of a move repeats the reason of the first.
        if let Some(word) = write.reason.event_reason().filter(|_| !write.joined) {
            self.record_event(subject(&write.key), write.reason.event_type(), word, write.reason.to_string());
        }
    }

    /// Reports the notes that have held for long enough and are not reported yet; returns the time until the next
    /// one is due. The shell itself waits: the wait delays an event, and no plan knows how long its notes have
    /// held.
    fn record_new(&mut self, notes: &[Note]) -> Option<Duration> {
        let (due, next) = self.held.due(notes, Instant::now());
        for note in due {
            let about = (note.object_kind, note.namespace.clone(), note.name.clone());
            self.record_event(about, EventType::Warning, note.event_reason(), note.kind.to_string());
        }
        next
    }
}

/// Enforces the key contract: a controller writes its own keys, and the nodes controller deletes those of the
/// agents of gone nodes.
fn may_write(controller: &'static str, write: &Write) -> bool {
    let deletes_for_agent = write.key.writer() == Writer::Agent && write.change == Change::Delete;
    let scales =
        write.key.writer() == Writer::Scaler && [Autoscaler::NAME, Functions::NAME].contains(&controller);
    let is_own = write.key.writer() == Writer::Controller(controller) || scales;
    is_own || controller == Nodes::NAME && deletes_for_agent
}

/// Notes of the previous run, each with its first occurrence and a mark if it was reported.
#[derive(Default)]
struct NoteHistory(BTreeMap<String, (Instant, bool)>);

impl NoteHistory {
    /// Returns the notes to report now, each once while it holds, and the time until the next is due.
    fn due<'n>(&mut self, notes: &'n [Note], now: Instant) -> (Vec<&'n Note>, Option<Duration>) {
        let (mut held, mut due, mut next) = (Vec::with_capacity(notes.len()), Vec::new(), None);
        for note in notes {
            let identity = note.identity();
            let (since, is_reported) = self.0.get(&identity).copied().unwrap_or((now, false));
            let left = (since + note.report_delay()).saturating_duration_since(now);
            match (is_reported, left.is_zero()) {
                (true, _) => {}
                (false, true) => due.push(note),
                (false, false) => next = Some(next.map_or(left, |next: Duration| next.min(left))),
            }
            held.push((identity, (since, is_reported || left.is_zero())));
        }
        self.0 = held.into_iter().collect();
        (due, next)
    }
}

#[async_trait]
impl<C: Controller> Loop for Shell<C> {
    type Observed = Observed;
    type Plan = Writes;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        C::NAME
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(fence) = self.deps.fence.current() else {
            self.term = None;
            return Ok(Observation::NotReady("this reconciler does not lead".to_owned()));
        };
        self.enter(fence);
        self.raise_floor().await?;
        let deps = &mut self.deps;
        let snapshot = match caught_up(deps.store.as_ref(), &mut deps.snapshot, &mut self.floor).await {
            Ok(snapshot) => snapshot,
            Err(why) => return Ok(Observation::NotReady(why)),
        };
        let outdated_usage = self.sample_ages.observe(&snapshot, Instant::now());
        let is_whole = !snapshot.settled.is_empty();
        let last_known = if is_whole { Arc::default() } else { Arc::clone(&self.deps.last_known.borrow()) };
        let last_known = last_known.without_outdated(&snapshot);
        Ok(Observation::Ready(Observed {
            last_known,
            term_began: self.term_began,
            outdated_usage,
            demand_read_at: self.report_times.observe(&snapshot, Timestamp::now()),
            settings: self.deps.settings.clone(),
            snapshot,
        }))
    }

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        C::plan(seen, now)
    }

    async fn act(&mut self, _seen: &Observed, plan: Writes) -> Outcome {
        debug_assert!(
            plan.writes.iter().all(|write| may_write(C::NAME, write)),
            "{} may not write all of\n{plan}",
            C::NAME
        );
        // The fence of the term in which the snapshot was observed, not the present one.
        let Some(fence) = self.term.filter(|_| !plan.writes.is_empty()) else {
            return Outcome { plan, written: WriteOutcome::default() };
        };
        for write in &plan.writes {
            tracing::debug!(%write, "write planned");
        }
        let groups: Vec<WriteGroup> = plan.groups().map(group).collect();
        let began = Instant::now();
        let written = guarded_writes::write(self.deps.store.as_ref(), fence, &groups, PARALLEL).await;
        log_written(&plan, &written, began.elapsed());
        Outcome { plan, written }
    }

    async fn report(&mut self, _seen: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        let Outcome { plan, written } = outcome;
        self.floor = self.floor.max(written.revision);
        let groups: Vec<&[Write]> = plan.groups().collect();
        for write in written.done.iter().flat_map(|number| groups[*number]) {
            self.record_write(write);
        }
        if matches!(written.stopped, Some(StopReason::FenceLost)) {
            return Err(LoopError::message("another reconciler leads now, so nothing more was written"));
        }
        let next_note = self.record_new(&plan.notes);
        if let Some(StopReason::Store(error)) = written.stopped {
            self.unsure = true;
            return Err(LoopError::new(format!("writing the plan of {}", C::NAME), error));
        }
        if !written.conflicts.is_empty() {
            let conflicts = written.conflicts.len();
            tracing::debug!(conflicts, "keys changed since the plan; planning again");
            return Ok(Next::After(CONFLICT_PAUSE));
        }
        Ok(next_note.map_or(Next::Interval, Next::After))
    }
}

/// Logs what a run wrote, counted by kind of object.
fn log_written(plan: &Writes, written: &WriteOutcome, took: Duration) {
    let groups: Vec<&[Write]> = plan.groups().collect();
    let (mut put, mut deleted) = (BTreeMap::<&str, usize>::new(), BTreeMap::<&str, usize>::new());
    for write in written.done.iter().flat_map(|number| groups[*number]) {
        let counts = if write.change == Change::Delete { &mut deleted } else { &mut put };
        *counts.entry(subject(&write.key).0).or_default() += 1;
    }
    if !written.done.is_empty() {
        tracing::info!(?put, ?deleted, conflicts = written.conflicts.len(), ?took, "changes written");
    }
}

/// Converts writes to guarded operations.
fn group(writes: &[Write]) -> WriteGroup {
    writes.iter().map(|write| (write.guard(), write.op())).collect()
}

#[cfg(test)]
mod tests {
    use schema::testing::{SnapshotBuilder, instance, spec};

    use super::*;
    use crate::controllers::note::NoteKind;

    // Seen red with a `may_write` that looks at the key alone.
    #[test]
    fn the_nodes_controller_deletes_what_agents_wrote_and_writes_none_of_it() {
        let write = |change| Write {
            key: schema::keys::Key::Rules("n1".to_owned()),
            change,
            expect: crate::controllers::Precondition::ModRevision(1),
            reason: crate::controllers::Reason::NodeGone,
            joined: false,
        };
        let put = || write(Change::Put(bytes::Bytes::new()));
        assert!(may_write("nodes", &write(Change::Delete)) && !may_write("nodes", &put()));
        assert!(!may_write("scheduler", &write(Change::Delete)));
    }

    // Seen red with a patience of zero: reported immediately.
    #[test]
    fn a_pod_that_waits_for_the_first_node_is_reported_only_after_a_while() {
        let snapshot = SnapshotBuilder::new().pod(&instance("web", spec(1, 1))).snapshot;
        let seen = Observed {
            snapshot: Arc::new(snapshot),
            last_known: Arc::default(),
            term_began: Timestamp::UNIX_EPOCH,
            outdated_usage: Default::default(),
            demand_read_at: Default::default(),
            settings: crate::controllers::testing::settings(),
        };
        let notes = crate::controllers::scheduler::Scheduler::plan(&seen, Timestamp::UNIX_EPOCH).notes;
        let other = [Note::about_pod("default", "web", NoteKind::NotWritten { why: "too large".to_owned() })];
        let (mut held, begun) = (NoteHistory::default(), Instant::now());
        let mut shown = |notes: &[Note], after: u64| {
            let (due, next) = held.due(notes, begun + Duration::from_secs(after));
            (due.len(), next.map(|next| next.as_secs()))
        };
        assert_eq!([shown(&notes, 0), shown(&notes, 4)], [(0, Some(10)), (0, Some(6))]);
        assert_eq!([shown(&notes, 10), shown(&notes, 11)], [(1, None), (0, None)]);
        // A node came and went: the wait begins again. A finding that no start brings is reported immediately.
        assert_eq!([shown(&other, 12), shown(&other, 13)], [(1, None), (0, None)]);
        assert_eq!(shown(&notes, 14), (0, Some(10)));
    }
}
