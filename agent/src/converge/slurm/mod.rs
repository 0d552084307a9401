//! The slurm loop: jobs that this node submits to Slurm and follows to their end.
//!
//! Reads `work/<node>/jobs/` and its own disk; decides in `plan.rs`; uploads, submits, polls, fetches and cancels
//! over SSH in separate tasks, whose findings `machine.rs` applies to the jobs' states. Writes each job's progress
//! to `status/<node>/jobs/`, its results to the disk.

mod act;
mod answers;
pub mod commands;
mod files;
#[cfg(test)]
mod host_tests;
pub mod job_store;
pub mod machine;
pub mod parse;
pub mod plan;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Nudge, Observation, lock};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::kinds::job::SlurmLogin;
use schema::meta::NamespacedName;
use schema::records::JobReport;
use schema::store::StoreError;
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use schema::store::status_writer::{Report, StoredValues};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::files::PodFiles;
use crate::worlds::ssh::Ssh;
use act::Worker;
use machine::{JobRecord, JobState, StepResult};
use plan::{Finding, Observed, RecordChange, ReportsByJob, SlurmPlan, TaskSlot};

pub use files::{JobFiles, Piece};
pub use job_store::JobBook;

/// Wait before retrying writes that the disk refused.
const UNWRITTEN_RETRY: Duration = Duration::from_secs(2);

/// Dependencies of the loop.
pub struct SlurmDeps {
    pub node: String,
    pub ssh: Arc<dyn Ssh>,
    pub files: Arc<PodFiles>,
    pub snapshot: SnapshotReader,
    pub events: EventRecorder,
    /// Wakes this loop when a step is done.
    pub nudge: Nudge,
}

/// Result of a task.
struct TaskResult {
    slot: TaskSlot,
    findings: Vec<Finding>,
}

/// Loop that manages this node's Slurm jobs.
pub struct SlurmLoop {
    deps: SlurmDeps,
    worker: Worker,
    book: JobBook,
    records: BTreeMap<NamespacedName, JobRecord>,
    busy: BTreeSet<TaskSlot>,
    polled_at: BTreeMap<SlurmLogin, Timestamp>,
    unordered_since: BTreeMap<NamespacedName, Timestamp>,
    found: Arc<Mutex<Vec<TaskResult>>>,
    /// Tasks, aborted with the loop.
    tasks: JoinSet<()>,
    reports: watch::Sender<Option<ReportsByJob>>,
}

impl SlurmLoop {
    /// Creates a loop that continues from the state on disk and sends its reports to `reports`.
    pub fn new(deps: SlurmDeps, agent_dir: &Path, reports: watch::Sender<Option<ReportsByJob>>) -> Self {
        let book = JobBook::new(agent_dir);
        let worker = Worker::new(Arc::clone(&deps.ssh), Arc::clone(&deps.files), book.clone());
        let records = book.read();
        // Before the pods loop removes files it does not know.
        deps.files.hold_for_jobs(job_store::login_secrets(records.values()));
        Self {
            deps,
            worker,
            records,
            book,
            busy: BTreeSet::new(),
            polled_at: BTreeMap::new(),
            unordered_since: BTreeMap::new(),
            found: Arc::default(),
            tasks: JoinSet::new(),
            reports,
        }
    }

    /// Returns access to the jobs' output and results, for the API.
    pub fn job_files(&self) -> JobFiles {
        JobFiles::of(self.worker.clone())
    }

    /// Starts a task; its findings are processed in the next observation.
    fn begin<F>(&mut self, slot: TaskSlot, task: F)
    where
        F: Future<Output = Vec<Finding>> + Send + 'static,
    {
        self.busy.insert(slot.clone());
        let (found, nudge) = (Arc::clone(&self.found), self.deps.nudge.clone());
        self.tasks.spawn(async move {
            let findings = task.await;
            lock(&found).push(TaskResult { slot, findings });
            nudge.nudge();
        });
    }

    /// Writes a record before it takes effect: only an attempt that is on disk may be submitted.
    fn commit(&mut self, RecordChange { record, events }: RecordChange) -> bool {
        let id = record.id.clone();
        if let Err(error) = self.book.write(&record) {
            let (why, now) = (format!("cannot write to the node's disk: {error}"), Timestamp::now());
            let waits = |record: &JobRecord| record.trouble.as_ref().is_some_and(|it| it.retry_at > now);
            if self.records.get(&id).is_some_and(waits) {
                return false;
            }
            tracing::warn!(object = %id.of_kind(Kind::Job), error = why, "record of a job not written");
            if let Some(before) = self.records.get_mut(&id) {
                before.apply(StepResult::Failed { why, unreachable: false }, now);
            }
            return false;
        }
        if self.records.get(&id).is_some_and(|before| before.results != record.results) {
            self.book.sweep(&record);
        }
        log_transition(self.records.get(&id), &record);
        self.records.insert(id, record);
        for event in events {
            self.deps.events.record(event);
        }
        true
    }

    /// Trims caches and retained secrets to the logins of current jobs.
    fn hold_logins(&mut self) {
        let logins = self.records.values().map(|record| &record.order.spec.login).collect();
        self.polled_at.retain(|login, _| BTreeSet::contains(&logins, login));
        self.worker.forget_other_logins(&logins);
        self.deps.files.hold_for_jobs(job_store::login_secrets(self.records.values()));
    }
}

/// Logs that a job was submitted, ended, lost or removed, once for each.
fn log_transition(before: Option<&JobRecord>, record: &JobRecord) {
    if before.is_some_and(|before| before.state == record.state) {
        return;
    }
    let (object, slurm_id) = (record.id.of_kind(Kind::Job), record.facts.id);
    match &record.state {
        JobState::Submitted => {
            tracing::info!(%object, slurm_id, attempt = record.attempt, "Slurm job submitted");
        }
        JobState::Ended(end) => tracing::info!(%object, slurm_id, phase = ?end.phase, "Slurm job ended"),
        JobState::Lost => tracing::warn!(%object, slurm_id, "Slurm no longer knows the job"),
        JobState::Gone => tracing::info!(%object, slurm_id, "Slurm job removed"),
        _ => {}
    }
}

#[async_trait]
impl Loop for SlurmLoop {
    type Observed = Observed;
    type Plan = SlurmPlan;
    type Outcome = Next;

    fn name(&self) -> &'static str {
        "slurm"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        while let Some(ended) = self.tasks.try_join_next() {
            // A panic in a step counts as one of the loop.
            if let Some(error) = ended.err().filter(tokio::task::JoinError::is_panic) {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        Ok(Observation::Ready(self.read_inputs(Timestamp::now())))
    }

    fn plan(observed: &Observed, now: Timestamp) -> SlurmPlan {
        plan::plan(observed, now)
    }

    async fn act(&mut self, _: &Observed, mut plan: SlurmPlan) -> Next {
        let mut next = Next::Interval;
        for (id, change) in plan.changes {
            if !self.commit(change) {
                next = Next::After(UNWRITTEN_RETRY);
                plan.steps.retain(|(of, _)| *of != id);
                plan.polls.retain(|_, ids| {
                    ids.retain(|of| *of != id);
                    !ids.is_empty()
                });
                if plan.reported.remove(&id).is_some()
                    && let Some(record) = self.records.get(&id)
                {
                    plan.reported.insert(id, Arc::new(record.report()));
                }
            }
        }
        self.hold_logins();
        self.reports.send_replace(Some(plan.reported));
        for id in plan.forget {
            match self.book.forget(&id) {
                Ok(()) => _ = self.records.remove(&id),
                Err(error) => {
                    tracing::warn!(object = %id.of_kind(Kind::Job), %error, "record of a job not removed");
                }
            }
        }
        for (id, step) in plan.steps {
            let Some(record) = self.records.get(&id).cloned() else { continue };
            let (worker, uid) = (self.worker.clone(), record.order.uid.clone());
            self.begin(TaskSlot::Job(id.clone()), async move {
                let event = worker.perform(&record, step).await;
                vec![Finding { id, uid, event }]
            });
        }
        for (login, ids) in plan.polls {
            let records: Vec<JobRecord> = ids.iter().filter_map(|id| self.records.get(id).cloned()).collect();
            let worker = self.worker.clone();
            self.begin(TaskSlot::Poll(Box::new(login)), async move { worker.poll(&records).await });
        }
        next
    }

    async fn report(&mut self, _: Observed, next: Next) -> Result<Next, LoopError> {
        Ok(next)
    }
}

/// Reports of this node's jobs.
pub struct JobReports {
    pub node: String,
    pub snapshot: SnapshotReader,
}

#[async_trait]
impl Report for JobReports {
    type Id = NamespacedName;
    type Value = JobReport;
    type Newest = Option<ReportsByJob>;

    fn key(&self, id: &NamespacedName) -> Key {
        Key::JobReport(self.node.clone(), id.clone())
    }

    fn values(newest: &Option<ReportsByJob>) -> ReportsByJob {
        newest.clone().unwrap_or_default()
    }

    fn is_complete(newest: &Option<ReportsByJob>) -> bool {
        newest.is_some()
    }

    fn is_urgent(old: Option<&JobReport>, new: Option<&JobReport>) -> bool {
        old.map(|old| old.status.phase) != new.map(|new| new.status.phase)
    }

    async fn stored(&self, _: bool) -> Result<Option<StoredValues<NamespacedName, JobReport>>, StoreError> {
        let snapshot = self.snapshot.current();
        Ok(StoredValues::from_snapshot(&snapshot, &snapshot.job_reports, &self.node))
    }
}

// Observes the orders and the results of steps.

impl SlurmLoop {
    fn read_inputs(&mut self, now: Timestamp) -> Observed {
        let snapshot = self.deps.snapshot.current();
        let own = snapshot.jobs.iter().filter(|((node, _), _)| *node == self.deps.node);
        let orders: BTreeMap<_, _> = own.map(|((_, id), order)| (id.clone(), order.value.clone())).collect();
        let mut findings = Vec::new();
        for done in std::mem::take(&mut *lock(&self.found)) {
            self.busy.remove(&done.slot);
            if let TaskSlot::Poll(login) = done.slot {
                self.polled_at.insert(*login, now);
            }
            findings.extend(done.findings);
        }
        let is_whole = snapshot.synced && snapshot.settled.contains_key(&self.deps.node);
        for id in self.records.keys().filter(|id| is_whole && !orders.contains_key(id)) {
            self.unordered_since.entry(id.clone()).or_insert(now);
        }
        self.unordered_since.retain(|id, _| self.records.contains_key(id) && !orders.contains_key(id));
        Observed {
            orders,
            records: self.records.clone(),
            findings,
            unordered_since: self.unordered_since.clone(),
            is_whole,
            busy: self.busy.clone(),
            polled_at: self.polled_at.clone(),
        }
    }
}
