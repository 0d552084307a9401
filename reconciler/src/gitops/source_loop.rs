//! Loop of one source: query the remote, plan against the live objects, write, report.
//!
//! Reads the remote, the mirror and the snapshot; decides in `plan.rs`; writes through `apply/` and
//! `apply/record.rs`. Everything it remembers between runs is a cache: a fresh loop at any moment reaches the same
//! state. A run without news costs one ls-remote and writes nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use git2::Oid;
use ipnet::Ipv4Net;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::keys::Key;
use schema::meta::ObjectRef;
use schema::object::{Object, short_commit};
use schema::records::{PlanRecord, PodSecurityRecord, Revision, SourceStatus, Timeline};
use schema::snapshot::{Snapshot, Table, VersionedValue};
use schema::store::SharedStore;
use schema::store::election::{Fence, FenceReader};
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use tokio::sync::watch;
use tracing::Instrument as _;

use super::apply::record::{
    RecordError, StatusTarget, record_missing_content, record_news, record_overdue, record_unstarted,
};
use super::apply::{self, ApplyResult, StopReason, record, triggered};
use super::check::{CommitLimits, ReservedAddresses, homes_of_absent};
use super::gate::gate;
use super::head::{FirstPlan, Head};
use super::load::truncated;
use super::owned_record::OwnedRecord;
use super::plan::{self, PlanInput, PruneBaseline, SyncPlan};
use super::prune::Lineage;
use super::read::LoadedCommit;
use super::status::{self, Problem, RunSummary};
use super::timeline;
use crate::git::{GitError, SourceConfig};
use crate::guarded_writes::caught_up;
use crate::last_known::{LastKnown, pod_security_records};
use crate::workflows;
use crate::workflows::RequestError;

/// Delay after a change under a plan; no decision, as the plan knew nothing of the change.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);

/// Keeps a source's objects in etcd equal to its repository.
pub struct SourceLoop {
    config: Arc<SourceConfig>,
    head: Head,
    owned: OwnedRecord,
    store: SharedStore,
    snapshot: SnapshotReader,
    pub(super) fence: FenceReader,
    events: EventRecorder,
    /// State in which the last plan found nothing to do.
    settled: Option<SettledState>,
    /// First plan of the newest commit.
    planned: FirstPlan,
    /// Last commit for which it was reported whether its content is on this disk.
    unkept_reported: Option<Oid>,
    /// Newest store revision that this loop wrote, or at which it became leader: the previous leader wrote nothing
    /// after that.
    written: i64,
    /// Ranges of pods and services, if known.
    ranges: Option<(Ipv4Net, Ipv4Net)>,
    /// State of etcd before it was lost, if this process keeps it.
    last_known: Option<watch::Receiver<Arc<LastKnown>>>,
    /// Lead of a test's clock.
    #[cfg(test)]
    pub(super) ahead: jiff::SignedDuration,
}

/// State of the snapshot in which there is nothing to do.
struct SettledState {
    commit: Oid,
    objects: Table<ObjectRef, Object>,
    status: i64,
    /// Problem that kept the remote from being read, if any.
    problem: Option<Problem>,
    /// The newest commit, if it may not or cannot be read: not every problem names it.
    refused: Option<Oid>,
    /// The snapshot, while objects wait for others to become healthy: another snapshot may release them.
    snapshot: Option<Arc<Snapshot>>,
    /// Time at which the first of these has waited long enough.
    due: Option<Timestamp>,
}

/// Observations of one run.
pub struct Observed {
    started: Instant,
    fence: Fence,
    snapshot: Arc<Snapshot>,
    /// Newest commit at the remote.
    head: Option<String>,
    problem: Option<Problem>,
    /// Set if nothing changed since nothing was left to do.
    is_unchanged: bool,
    /// End of the first wait that the last plan found.
    due: Option<Timestamp>,
    /// Set if a file that can't be applied blocks the whole commit.
    strict: bool,
    /// `None` if nothing was ever read.
    loaded: Option<LoadedCommit>,
    /// `None` if nothing changed since nothing was left to do.
    situation: Option<PlanInput>,
}

/// Result of one run.
pub struct Outcome {
    plan: Option<SyncPlan>,
    /// Status written ahead of the plan, and its revision.
    ahead: Option<(SourceStatus, i64)>,
    applied: ApplyResult,
}

impl SourceLoop {
    /// Creates the loop of `config`, mirrored below `state_dir`. Touches nothing yet.
    #[expect(
        clippy::too_many_arguments,
        clippy::needless_pass_by_value,
        reason = "one row of the daemon's wiring"
    )]
    pub fn new(
        config: SourceConfig,
        state_dir: PathBuf,
        store: SharedStore,
        snapshot: SnapshotReader,
        fence: FenceReader,
        events: EventRecorder,
    ) -> Self {
        let config = Arc::new(config);
        let head = Head::new(Arc::clone(&config), &state_dir);
        let owned = OwnedRecord::new(&state_dir, &config.name);
        let events = events.reporting_as("gitops");
        Self {
            config,
            head,
            owned,
            store,
            snapshot,
            fence,
            events,
            settled: None,
            planned: FirstPlan::default(),
            unkept_reported: None,
            written: 0,
            ranges: None,
            last_known: None,
            #[cfg(test)]
            ahead: jiff::SignedDuration::ZERO,
        }
    }

    /// Adds checks of services' addresses against the ranges of pods and services.
    #[must_use]
    pub fn with_ranges(self, cluster_cidr: Ipv4Net, service_cidr: Ipv4Net) -> Self {
        Self { ranges: Some((cluster_cidr, service_cidr)), ..self }
    }

    fn reserved_addresses(&self, snapshot: &Snapshot) -> ReservedAddresses {
        let nodes = snapshot.nodes.iter().flat_map(|(name, node)| {
            let addresses = node.value.addresses.iter().filter_map(|address| match address {
                IpAddr::V4(address) => Some(*address),
                IpAddr::V6(_) => None,
            });
            addresses.map(|address| (address, name.clone()))
        });
        let ranges =
            self.ranges.iter().flat_map(|(pods, services)| [(*pods, "pods"), (*services, "services")]);
        ReservedAddresses { nodes: nodes.collect(), ranges: ranges.collect() }
    }

    /// Takes the restrictions on pods from here while etcd is lost.
    #[must_use]
    pub fn with_last_known(self, last_known: watch::Receiver<Arc<LastKnown>>) -> Self {
        Self { last_known: Some(last_known), ..self }
    }

    /// Returns the restrictions on pods that are or were in force; without a Cluster object in an etcd that is not
    /// whole, the last known ones.
    fn pod_security(&self, snapshot: &Snapshot) -> Vec<PodSecurityRecord> {
        let sources = snapshot.sources.values().map(|source| &source.value);
        let mut records = pod_security_records(&snapshot.objects, sources);
        if snapshot.settled.is_empty() && records.iter().all(|record| record.until.is_some()) {
            let kept = self.last_known.as_ref().map(|kept| Arc::clone(&kept.borrow()));
            records.extend(kept.iter().flat_map(|kept| kept.pod_security()).cloned());
        }
        records
    }

    fn now(&self) -> Timestamp {
        #[cfg(test)]
        return Timestamp::now() + self.ahead;
        #[cfg(not(test))]
        Timestamp::now()
    }

    /// Reports, once per commit, that some of its content is not on this disk.
    fn record_unkept(&mut self, observed: &Observed) {
        let Some(loaded) = &observed.loaded else { return };
        if self.unkept_reported.replace(loaded.head) == Some(loaded.head) {
            return;
        }
        let Some(why) = &loaded.unkept else { return };
        tracing::warn!(error = &**why, "content of the commit not kept on this disk; make room on it");
        record_missing_content(&self.events, &self.config.name, why);
    }

    /// True if nothing changed since nothing was left to do; a problem that comes or goes is a change.
    fn is_settled(&self, snapshot: &Snapshot, problem: Option<&Problem>) -> bool {
        let (Some(settled), Some(loaded)) = (&self.settled, self.head.loaded()) else { return false };
        let status = snapshot.sources.get(&self.config.name);
        settled.commit == loaded.head
            && settled.status == status.map_or(0, |status| status.mod_revision)
            && settled.objects.ptr_eq(&snapshot.objects)
            && settled.problem.as_ref() == problem
            && settled.refused == self.head.refused()
            && settled.due.is_none_or(|due| self.now() < due)
            && settled.snapshot.as_ref().is_none_or(|before| snapshot.is_same_for_plans(before))
    }

    async fn situation(
        &mut self,
        snapshot: &Snapshot,
        incomplete: Option<String>,
    ) -> Result<Option<PlanInput>, GitError> {
        let Some(loaded) = self.head.loaded() else { return Ok(None) };
        let source = &self.config.name;
        let homes = homes_of_absent(source, &loaded.manifests, &snapshot.objects);
        let mut commits = truncated::commits(&homes);
        commits.extend(self.owned.lost.values().map(|kept| kept.commit.clone()));
        let base = record::newest_pruned(&snapshot.revisions, source);
        let base = base.or_else(|| self.owned.base.clone().filter(|_| !self.owned.lost.is_empty()));
        let whole = record::newest_complete(&snapshot.revisions, source);
        let homes = truncated::with_siblings(homes, source, &snapshot.objects);
        let manifests = self.head.manifests(loaded, whole, homes).await?;
        let lineage = self.head.lineage(loaded, base, commits).await?;
        let lineage = Lineage { is_unused: loaded.is_unused, ..lineage };
        let status = snapshot.sources.get(source);
        let held = status.and_then(|status| status.value.held_prune.as_ref());
        let held = held.map(|held| PruneBaseline { owned: held.owned, since: held.since });
        // Revisions of a lost etcd mean nothing in this one.
        let recalled = self.owned.held_of.filter(|_| !self.owned.lost.is_empty());
        let recalled = recalled.map(|owned| PruneBaseline { owned, since: 0 });
        Ok(Some(PlanInput {
            source: source.clone(),
            commit: Arc::clone(&loaded.commit),
            manifests,
            live: snapshot.objects.clone(),
            malformed: malformed_objects(snapshot),
            lineage,
            held: held.or(recalled),
            revision: snapshot.revision,
            lost: self.owned.lost.clone(),
            limits: CommitLimits {
                pod_security: self.pod_security(snapshot),
                allow: self.config.allow.clone(),
                reserved: self.reserved_addresses(snapshot),
            },
            service_cidr: self.ranges.map(|(_, services)| services),
            incomplete,
        }))
    }
}

/// Returns the commits of the source's objects, and of pods: their content is rebuilt from these.
fn commits_of(snapshot: &Snapshot, source: &str) -> BTreeSet<String> {
    let objects = snapshot.objects.values().map(|object| &object.value.provenance);
    let objects = objects.filter(|provenance| provenance.source == source);
    let pods = snapshot.pods.values().map(|pod| &pod.value).filter(|pod| !pod.files.is_empty());
    objects.map(|provenance| provenance.commit.clone()).chain(pods.map(|pod| pod.commit.clone())).collect()
}

#[async_trait]
impl Loop for SourceLoop {
    type Observed = Observed;
    type Plan = SyncPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "gitops"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(fence) = self.fence.current() else {
            self.settled = None;
            return Ok(Observation::NotReady("another reconciler leads".to_owned()));
        };
        // Without the previous leader's writes, objects that it created would not be known to be superfluous.
        self.written = self.written.max(fence.create_revision);
        let snapshot = match caught_up(self.store.as_ref(), &mut self.snapshot, &mut self.written).await {
            Ok(snapshot) => snapshot,
            Err(why) => return Ok(Observation::NotReady(why)),
        };
        let started = Instant::now();
        let applied =
            snapshot.sources.get(&self.config.name).and_then(|status| status.value.applied_commit.clone());
        let problem_of = |error: &GitError| Problem { kind: error.kind(), message: error.to_string() };
        let live = || commits_of(&snapshot, &self.config.name);
        let accepted = || record::first_applied(&snapshot.revisions, &self.config.name);
        let (head, mut problem) = match self.head.refresh(applied, live, accepted).await {
            Ok(head) => (Some(head.to_string()), None),
            Err(error) => (self.head.refused().map(|commit| commit.to_string()), Some(problem_of(&error))),
        };
        // The query may have taken long: the plan is for the present state.
        let snapshot = self.snapshot.current();
        let mut situation = None;
        let is_unchanged = self.is_settled(&snapshot, problem.as_ref());
        if !is_unchanged {
            let is_new = !snapshot.sources.contains_key(&self.config.name);
            // With no commit in memory nothing is planned, and the reason is reported as the remote's problem.
            if self.head.loaded().is_some() {
                let recalled = self.owned.load_lost(is_new, &snapshot.objects).await;
                recalled.map_err(|error| LoopError::new("cannot read the source's owned objects", error))?;
            }
            let incomplete = problem.as_ref().map(|problem| problem.message.clone());
            match self.situation(&snapshot, incomplete).await {
                Ok(found) => situation = found,
                Err(error) => problem = Some(problem_of(&error)),
            }
        }
        let loaded = self.head.loaded().cloned();
        let strict = self.config.strict;
        let due = self.settled.as_ref().filter(|_| is_unchanged).and_then(|settled| settled.due);
        Ok(Observation::Ready(Observed {
            started,
            fence,
            snapshot,
            head,
            problem,
            is_unchanged,
            due,
            strict,
            loaded,
            situation,
        }))
    }

    fn plan(observed: &Observed, now: Timestamp) -> SyncPlan {
        let Some(situation) = &observed.situation else {
            return SyncPlan { due: observed.due, ..SyncPlan::default() };
        };
        let decided = plan::plan(situation).with_creation_time(now);
        let decided = if observed.strict { decided.all_or_nothing() } else { decided };
        gate(decided, &observed.snapshot, &situation.source, now)
    }

    async fn act(&mut self, observed: &Observed, plan: SyncPlan) -> Outcome {
        let span = self.span(observed);
        self.carry_out(observed, plan).instrument(span).await
    }

    async fn report(&mut self, observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        let span = self.span(&observed);
        self.settle(observed, outcome).instrument(span).await
    }
}

impl SourceLoop {
    /// Creates the span around the work on the loaded commit.
    fn span(&self, observed: &Observed) -> tracing::Span {
        let commit = observed.loaded.as_ref().map_or("none", |loaded| short_commit(&loaded.commit.id));
        tracing::info_span!("commit", source = self.config.name, commit)
    }

    async fn carry_out(&mut self, observed: &Observed, plan: SyncPlan) -> Outcome {
        self.record_unkept(observed);
        let (Some(situation), Some(loaded)) = (&observed.situation, &observed.loaded) else {
            return Outcome { plan: None, ahead: None, applied: ApplyResult::default() };
        };
        if let Err(error) = self.owned.save(situation, &plan).await {
            let applied =
                ApplyResult { stopped: Some(StopReason::OwnedRecord(error)), ..ApplyResult::default() };
            return Outcome { plan: Some(plan), ahead: None, applied };
        }
        let previous = observed.before(&self.config.name).map(|(status, _)| status);
        let ahead = match status::ahead(&self.config, previous, &loaded.commit, &plan) {
            None => None,
            Some(status) => {
                match self.place(observed, observed.before(&self.config.name)).write(&status, None).await {
                    Ok(at) => Some((status, at)),
                    Err(error) => {
                        let applied =
                            ApplyResult { stopped: Some(StopReason::Ahead(error)), ..ApplyResult::default() };
                        return Outcome { plan: Some(plan), ahead: None, applied };
                    }
                }
            }
        };
        let (began, began_at) = (Instant::now(), self.now());
        let applied = apply::apply(&self.store, observed.fence, &plan.steps).await;
        if applied.done > 0 {
            let (planned, conflicts) = (apply::summary(&plan.steps), applied.conflicts.len());
            tracing::info!(written = applied.done, ?planned, conflicts, took = ?began.elapsed(), "objects written");
        }
        self.planned.begin((loaded.head, began_at), observed.fence, &plan, &situation.live);
        Outcome { plan: Some(plan), ahead, applied }
    }

    async fn settle(&mut self, observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        let ahead = outcome.ahead.as_ref().map(|(status, at)| (status, *at));
        self.written = self.written.max(outcome.applied.revision).max(ahead.map_or(0, |(_, at)| at));
        let settled_before = self.settled.take();
        match &outcome.applied.stopped {
            // Another reconciler leads, which the next run finds out; not an error.
            Some(StopReason::FenceLost | StopReason::Ahead(RecordError::FenceLost)) => {
                return Ok(Next::Interval);
            }
            Some(StopReason::Ahead(RecordError::Changed)) => return Ok(Next::After(AFTER_CONFLICT)),
            // A conflict resolves itself within moments and is no news for the status.
            None if !outcome.applied.conflicts.is_empty() => return Ok(Next::After(AFTER_CONFLICT)),
            _ => {}
        }
        if observed.is_unchanged {
            // The status is up to date.
            self.settled = settled_before;
            return Ok(Next::Interval);
        }
        let before = ahead.or_else(|| observed.before(&self.config.name));
        let (status, mut revision) = self.fold(&observed, &outcome, before.map(|(status, _)| status));
        if let Some(revision) = &mut revision {
            revision.plan = self.plan_record(&observed).await;
            revision.timeline = self.timeline(&observed, revision.applied_at);
            // Before the commit counts as applied: a run requested twice is one run.
            self.start_triggered(&observed, &outcome).await?;
        }
        let unchanged = revision.is_none() && before.is_some_and(|(before, _)| *before == status);
        let at = match before {
            Some((_, at)) if unchanged => at,
            _ => match self.place(&observed, before).write(&status, revision.as_ref()).await {
                Ok(at) => at,
                Err(RecordError::FenceLost) => return Ok(Next::Interval),
                Err(RecordError::Changed) => return Ok(Next::After(AFTER_CONFLICT)),
                Err(error) => return Err(self.failed(error)),
            },
        };
        if !unchanged {
            self.written = self.written.max(at);
            let reported = observed.before(&self.config.name).map(|(status, _)| status);
            record_news(&self.events, reported, &status, revision.as_ref());
        }
        if let Some(why) = outcome.applied.stopped {
            return Err(self.failed(why));
        }
        if let Some(plan) = &outcome.plan {
            record_overdue(&self.events, &self.config.name, &plan.overdue);
        }
        let nothing_left = outcome.plan.as_ref().filter(|plan| plan.steps.is_empty());
        if let (Some(plan), Some(loaded)) = (nothing_left, &observed.loaded) {
            self.settled = Some(SettledState {
                commit: loaded.head,
                objects: observed.snapshot.objects.clone(),
                status: at,
                problem: observed.problem.clone(),
                refused: self.head.refused(),
                due: plan.due,
                snapshot: (!plan.waiting.is_empty()).then(|| Arc::clone(&observed.snapshot)),
            });
        }
        Ok(Next::Interval)
    }
}

impl Observed {
    #[cfg(test)]
    pub(super) fn is_planned(&self) -> bool {
        self.situation.is_some()
    }

    /// Returns the observed status of the source, with its revision.
    fn before(&self, source: &str) -> Option<(&SourceStatus, i64)> {
        let found: Option<&VersionedValue<SourceStatus>> =
            self.snapshot.sources.get(source).map(|status| &**status);
        found.map(|status| (&status.value, status.mod_revision))
    }
}

impl SourceLoop {
    fn fold(
        &self,
        observed: &Observed,
        outcome: &Outcome,
        previous: Option<&SourceStatus>,
    ) -> (SourceStatus, Option<Revision>) {
        let last = previous.map_or(0, |status| status.revision);
        status::fold(&RunSummary {
            config: &self.config,
            previous,
            head: observed.head.clone(),
            commit: observed.loaded.as_ref().map(|loaded| &*loaded.commit),
            plan: outcome.plan.as_ref(),
            problem: observed.problem.clone(),
            failure: outcome.applied.failure(),
            next_sequence: record::next_sequence(&observed.snapshot.revisions, &self.config.name, last),
            duration_ms: u64::try_from(observed.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            now: self.now(),
        })
    }

    /// Requests the runs that the commits since the last applied one start. The first commit of all starts none.
    async fn start_triggered(&self, observed: &Observed, outcome: &Outcome) -> Result<(), LoopError> {
        let before = observed.before(&self.config.name).and_then(|(status, _)| status.applied_commit.clone());
        let steps = outcome.plan.as_ref().map_or(&[][..], |plan| &plan.steps);
        let triggers = triggered::commit_triggers(&self.config.name, &observed.snapshot.objects, steps);
        let Some(before) = before.filter(|_| !triggers.is_empty()) else { return Ok(()) };
        let commits = match self.head.changes_since(before).await {
            Ok(commits) => commits,
            Err(error) => {
                // Waiting for it would keep the applied commit from ever being recorded.
                tracing::warn!(%error, "changes of the commit not read; no trigger on commits starts a run");
                let why = format!("cannot read the changes since the previous commit: {error}");
                record_unstarted(&self.events, &self.config.name, &why);
                return Ok(());
            }
        };
        for start in triggered::starts(&triggers, &commits) {
            let asked =
                workflows::request_run(&self.store, &start.run, start.input, start.origin, self.now()).await;
            match asked {
                Ok(_) => {}
                Err(RequestError::Store(error)) => return Err(self.failed(error)),
                Err(error) => {
                    tracing::warn!(run = %start.run, %error, "run of a trigger not started");
                    record_unstarted(&self.events, &self.config.name, &format!("run {}: {error}", start.run));
                }
            }
        }
        Ok(())
    }

    /// Returns the executed plan with its review; `None` if Git can't be read.
    async fn plan_record(&self, observed: &Observed) -> Option<PlanRecord> {
        let begun = self.planned.for_commit(observed.loaded.as_ref()?.head)?;
        let before = observed.before(&self.config.name);
        let applied = before.and_then(|(status, _)| status.applied_commit.clone());
        let record = self.head.plan_record(begun, applied).await;
        record.inspect_err(|error| tracing::warn!(%error, "review of the commit not read")).ok()
    }

    /// Returns the timeline up to the last write; `None` if another process began the commit.
    fn timeline(&self, observed: &Observed, applied: Timestamp) -> Option<Timeline> {
        let begun = self.planned.for_commit(observed.loaded.as_ref()?.head)?;
        let (times, snapshot) = (self.head.read_times()?, self.snapshot.current());
        Some(timeline::first_steps(&snapshot, &self.config.name, times, begun.at, applied))
    }

    fn place<'a>(&'a self, observed: &'a Observed, before: Option<(&SourceStatus, i64)>) -> StatusTarget<'a> {
        let before = before.map(|(_, at)| at);
        StatusTarget { store: &self.store, fence: observed.fence, snapshot: &observed.snapshot, before }
    }

    fn failed(&self, why: impl std::error::Error + Send + Sync + 'static) -> LoopError {
        LoopError::new(format!("cannot apply source {}", self.config.name), why)
    }
}

fn malformed_objects(snapshot: &Snapshot) -> BTreeSet<ObjectRef> {
    let object = |key: &String| match key.parse() {
        Ok(Key::Object(object)) => Some(object),
        _ => None,
    };
    snapshot.malformed.keys().filter_map(object).collect()
}
