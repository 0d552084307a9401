//! State machine of a job: applies observations and results of steps. Pure.
//!
//! Each state implies the one step that leads on. The result of a step is an [`StepResult`]; a failed step changes no
//! state.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::job::status::array_tasks;
use schema::kinds::job::{FailureClass, JobPhase, JobStatus};
use schema::meta::NamespacedName;
use schema::records::{JobDependencyState, JobOrder, JobReport, ResultFile, UnfetchedFiles};
use serde::{Deserialize, Serialize};

use super::commands::{SUBMISSION_MAX_SECONDS, folder};
use super::parse::{EndKind, Facts, failure_class};

/// First and longest wait between two tries of a failed step.
const RETRY: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(2), SignedDuration::from_secs(120));
/// Wait between two checks of a submission or a cancellation under way.
const BUSY: SignedDuration = SignedDuration::from_secs(2);

/// A job as known to its node; also the format on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRecord {
    pub id: NamespacedName,
    /// Order that the job was started with.
    pub order: JobOrder,
    pub state: JobState,
    pub since: Timestamp,
    /// Number of the attempt, written to disk before each submission.
    pub attempt: u32,
    /// Set once a login host has answered: parts of the job may exist there.
    #[serde(default = "unknown")]
    pub reached: bool,
    /// Set while this attempt has certainly not been submitted. Not on disk: an agent that starts does not know.
    #[serde(skip)]
    pub is_fresh: bool,
    /// Former incarnations that are gone from their login hosts.
    #[serde(default)]
    pub removed: Vec<String>,
    /// Set once the job's files are removed from the login host.
    #[serde(default)]
    pub is_cleaned: bool,
    pub facts: Facts,
    /// Time of the last change reported by Slurm.
    pub changed_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub results: Vec<ResultFile>,
    /// Output files that were not fetched.
    #[serde(default)]
    pub unfetched: UnfetchedFiles,
    /// Obstacle to the next step.
    pub trouble: Option<Trouble>,
}

/// State of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobState {
    /// Another node, or this one before it lost its disk, may have submitted the job.
    Looking,
    /// The job's dependency is not in Slurm yet.
    Waiting,
    Uploading,
    Submitting,
    Submitted,
    /// Slurm had the job, but no longer knows it.
    Lost,
    Fetching,
    Ended(FinalState),
    /// The job is being cancelled and its folders removed.
    Deleting,
    Gone,
}

/// Outcome of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FinalState {
    pub phase: JobPhase,
    pub class: Option<FailureClass>,
    /// Reason that Slurm did not report.
    #[serde(default)]
    pub why: String,
}

/// Obstacle to a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    pub why: String,
    pub since: Timestamp,
    pub failures: u32,
    pub retry_at: Timestamp,
    /// Set if the login host can't be reached.
    pub unreachable: bool,
}

/// Next step of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobStep {
    Look,
    Upload,
    Submit,
    Fetch,
    Clean,
    Delete,
}

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepResult {
    /// Number and facts of the job's newest attempt; `None` if there is none.
    Found(Option<(u32, Facts)>),
    Uploaded,
    /// Slurm accepted the job under this number.
    Submitted(u64),
    /// A submission or a cancellation is under way.
    Busy,
    /// Slurm refused the job permanently.
    Refused(String),
    /// The uploaded folder is no longer on the login host.
    FolderGone,
    /// Result of a poll; `None` if Slurm does not know the job.
    Polled(Option<Facts>),
    Fetched(Vec<ResultFile>, UnfetchedFiles),
    Cleaned,
    Deleted,
    /// The step failed, or its outcome is unknown.
    Failed {
        why: String,
        unreachable: bool,
    },
}

/// Default of `reached`: a record without it may belong to a submitted job.
fn unknown() -> bool {
    true
}

impl JobRecord {
    pub fn new(id: NamespacedName, order: JobOrder, now: Timestamp) -> Self {
        let reached = order.reached;
        Self {
            id,
            order,
            state: JobState::Looking,
            since: now,
            attempt: 1,
            reached,
            is_fresh: false,
            removed: Vec::new(),
            is_cleaned: false,
            facts: Facts::default(),
            changed_at: now,
            started_at: None,
            ended_at: None,
            results: Vec::new(),
            unfetched: UnfetchedFiles::default(),
            trouble: None,
        }
    }

    /// Creates the first record of an order: the removal of a predecessor, as long as one may be on a login host.
    pub fn first(id: NamespacedName, order: &JobOrder, removed: Vec<String>, now: Timestamp) -> Self {
        match order.former.iter().find(|former| !removed.contains(&former.uid)) {
            Some(former) => {
                let removal = former.removal(now);
                Self { state: JobState::Deleting, removed, ..Self::new(id, removal, now) }
            }
            None => Self::new(id, order.clone(), now),
        }
    }

    /// Returns the name of the attempt in Slurm.
    pub fn slurm_name(&self) -> String {
        self.order.slurm_name(&self.id, self.attempt)
    }

    /// Returns the names of all possible attempts.
    pub fn slurm_names(&self) -> Vec<String> {
        let most = self.order.spec.node_failure_retries.min(9) + 1;
        (1..=most.max(self.attempt)).map(|attempt| self.order.slurm_name(&self.id, attempt)).collect()
    }

    /// Returns the number of tasks that Slurm may have for the job.
    pub fn task_count(&self) -> u32 {
        self.order.spec.array.as_deref().and_then(array_tasks).unwrap_or(1)
    }

    /// Returns the next step, unless the job has to wait.
    pub fn step(&self, now: Timestamp) -> Option<JobStep> {
        if self.trouble.as_ref().is_some_and(|trouble| trouble.retry_at > now) {
            return None;
        }
        match self.state {
            JobState::Looking => Some(JobStep::Look),
            JobState::Uploading => Some(JobStep::Upload),
            JobState::Submitting => Some(JobStep::Submit),
            JobState::Fetching => Some(JobStep::Fetch),
            JobState::Deleting => Some(JobStep::Delete),
            JobState::Ended(_) if self.clean_at().is_some_and(|at| at <= now) => Some(JobStep::Clean),
            JobState::Waiting
            | JobState::Submitted
            | JobState::Lost
            | JobState::Ended(_)
            | JobState::Gone => None,
        }
    }

    /// Returns the time at which to remove the job's files from the login host, if they are still there.
    pub fn clean_at(&self) -> Option<Timestamp> {
        let ttl = self.order.spec.ttl_seconds_after_finished.filter(|_| !self.is_cleaned)?;
        matches!(self.state, JobState::Ended(_)).then_some(())?;
        self.ended_at?.checked_add(SignedDuration::from_secs(i64::from(ttl))).ok()
    }

    /// True if the job is polled in Slurm.
    pub fn is_polled(&self) -> bool {
        matches!(self.state, JobState::Submitted | JobState::Lost)
    }

    fn enter(&mut self, state: JobState, now: Timestamp) {
        if self.state != state {
            self.is_fresh = state == JobState::Submitting;
            (self.state, self.since) = (state, now);
        }
        self.trouble = None;
    }

    /// Applies the current order. `None` changes nothing: absence alone ends nothing.
    pub fn follow(&mut self, order: Option<&JobOrder>, now: Timestamp) {
        let Some(order) = order else { return };
        let is_same = order.uid == self.order.uid;
        if is_same {
            self.order = order.clone();
            self.reached |= order.reached;
        } else if self.order.spec.login.is_same_account(&order.spec.login) {
            // The predecessor is removed with the current credentials.
            self.order.spec.login = order.spec.login.clone();
            self.order.files.extend(order.files.clone());
        }
        if (!is_same || order.deleting) && !matches!(self.state, JobState::Deleting | JobState::Gone) {
            // If no login host ever answered, there is nothing to remove, and a wrong login must not block the
            // removal.
            self.enter(if self.reached { JobState::Deleting } else { JobState::Gone }, now);
        }
        if !is_same && self.state == JobState::Gone {
            let mut removed = std::mem::take(&mut self.removed);
            removed.push(self.order.uid.clone());
            *self = Self::first(self.id.clone(), order, removed, now);
        }
        if self.state == JobState::Waiting {
            self.begin(now);
        }
    }

    /// Starts the attempt, once Slurm has the job's dependency.
    fn begin(&mut self, now: Timestamp) {
        match &self.order.dependency {
            JobDependencyState::None | JobDependencyState::Submitted(_) => {
                self.enter(JobState::Uploading, now);
            }
            JobDependencyState::Waiting(_) => self.enter(JobState::Waiting, now),
            JobDependencyState::Never(why) => {
                let class = Some(FailureClass::Dependency);
                let ended = FinalState { phase: JobPhase::Failed, class, why: why.clone() };
                self.end(ended, now);
            }
        }
    }

    fn end(&mut self, ended: FinalState, now: Timestamp) {
        self.ended_at.get_or_insert(now);
        self.enter(JobState::Ended(ended), now);
    }

    /// Applies the result of a step.
    pub fn apply(&mut self, event: StepResult, now: Timestamp) {
        match (event, &self.state) {
            (StepResult::Failed { why, unreachable }, _) => self.fail(why, unreachable, now),
            (StepResult::Found(found), JobState::Looking | JobState::Submitting) => {
                self.reached = true;
                match found {
                    Some((attempt, facts)) => {
                        self.attempt = attempt;
                        self.enter(JobState::Submitted, now);
                        self.polled(facts, now);
                    }
                    None => self.begin(now),
                }
            }
            (StepResult::Uploaded, JobState::Uploading) => self.enter(JobState::Submitting, now),
            (StepResult::Submitted(number), JobState::Submitting) => {
                self.enter(JobState::Submitted, now);
                self.facts = Facts { id: number, phase: JobPhase::Queued, ..Facts::default() };
                self.changed_at = now;
            }
            (StepResult::Busy, JobState::Submitting) => {
                // A failed submission is waited for too; its next failure still adds to the count.
                let failed =
                    self.trouble.take().filter(|trouble| trouble.failures > 0 && !trouble.unreachable);
                self.wait_for(BUSY, "waiting for a submission that has no outcome yet".to_owned(), now);
                if let (Some(failed), Some(trouble)) = (failed, &mut self.trouble) {
                    *trouble = Trouble { retry_at: trouble.retry_at, ..failed };
                }
            }
            (StepResult::Busy, JobState::Deleting) => {
                self.wait_for(BUSY, "waiting until Slurm has cancelled it".to_owned(), now);
            }
            (StepResult::Refused(why), JobState::Submitting) => {
                let class = Some(FailureClass::Submission);
                self.end(FinalState { phase: JobPhase::Failed, class, why }, now);
            }
            (StepResult::FolderGone, JobState::Submitting) => {
                let was_tried = !self.is_fresh;
                self.enter(JobState::Looking, now);
                if was_tried {
                    // Nothing shows whether a submission is under way: give it the time to end.
                    let wait = SignedDuration::from_secs(SUBMISSION_MAX_SECONDS.into());
                    let why = "its folder is gone from the login host; waiting until no submission can be under way";
                    self.wait_for(wait, why.to_owned(), now);
                }
            }
            (StepResult::Polled(found), JobState::Submitted | JobState::Lost) => match found {
                Some(facts) => {
                    self.enter(JobState::Submitted, now);
                    self.polled(facts, now);
                }
                // Without word from Slurm the job has neither failed nor ended.
                None => self.enter(JobState::Lost, now),
            },
            (StepResult::Fetched(results, unfetched), JobState::Fetching) => {
                (self.results, self.unfetched) = (results, unfetched);
                let ended = self.facts.ended.unwrap_or(EndKind::Completed);
                let class = failure_class(ended, self.facts.exit);
                let phase = self.facts.phase;
                self.enter(JobState::Ended(FinalState { phase, class, why: String::new() }), now);
            }
            (StepResult::Cleaned, JobState::Ended(_)) => {
                self.is_cleaned = true;
                self.trouble = None;
            }
            (StepResult::Deleted, JobState::Deleting) => self.enter(JobState::Gone, now),
            // A superseded step, for example by a removal.
            _ => {}
        }
    }

    fn wait_for(&mut self, wait: SignedDuration, why: String, now: Timestamp) {
        let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
        let retry_at = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        self.is_fresh = false;
        self.trouble = Some(Trouble { why, since, failures: 0, retry_at, unreachable: false });
    }

    fn fail(&mut self, why: String, unreachable: bool, now: Timestamp) {
        self.is_fresh = false;
        let before = self.trouble.as_ref().filter(|before| before.unreachable == unreachable);
        let failures = before.map_or(0, |before| before.failures) + 1;
        let doubled = 1_i32 << failures.saturating_sub(1).min(10);
        let wait = RETRY.0.checked_mul(doubled).unwrap_or(RETRY.1).min(RETRY.1);
        let retry_at = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        let since = before.map_or(now, |before| before.since);
        self.trouble = Some(Trouble { why, since, failures, retry_at, unreachable });
    }

    fn polled(&mut self, facts: Facts, now: Timestamp) {
        let is_news = (&facts.state, &facts.reason, &facts.tasks)
            != (&self.facts.state, &self.facts.reason, &self.facts.tasks);
        if is_news {
            self.changed_at = now;
        }
        if facts.phase != self.facts.phase {
            self.since = now;
        }
        let ran = SignedDuration::from_secs(facts.elapsed_seconds.unwrap_or_default());
        let began = || now.checked_sub(ran).unwrap_or(now);
        if facts.phase == JobPhase::Queued {
            self.started_at = None;
        } else if facts.phase == JobPhase::Running || facts.ended.is_some() && ran > SignedDuration::ZERO {
            self.started_at.get_or_insert_with(began);
        }
        self.facts = facts;
        if self.facts.ended.is_none() {
            // The value grows with each poll, and the record would be rewritten.
            self.facts.elapsed_seconds = None;
        }
        let Some(ended) = self.facts.ended else { return };
        if ended == EndKind::NodeFailure && self.attempt <= self.order.spec.node_failure_retries {
            self.attempt += 1;
            (self.started_at, self.facts) = (None, Facts::default());
            return self.enter(JobState::Uploading, now);
        }
        self.ended_at = Some(self.started_at.map_or(now, |began| began.checked_add(ran).unwrap_or(now)));
        self.enter(JobState::Fetching, now);
    }

    /// Returns the job's report.
    pub fn report(&self) -> JobReport {
        let facts = &self.facts;
        let (phase, class) = match &self.state {
            JobState::Looking | JobState::Waiting => (JobPhase::Pending, None),
            JobState::Uploading => (JobPhase::Uploading, None),
            JobState::Submitting => (JobPhase::Submitting, None),
            JobState::Submitted => (facts.phase, None),
            JobState::Lost => (JobPhase::Unknown, None),
            JobState::Fetching => (JobPhase::Fetching, None),
            JobState::Ended(ended) => (ended.phase, ended.class),
            JobState::Deleting | JobState::Gone => (JobPhase::Deleting, None),
        };
        let login = &self.order.spec.login;
        let (user, host) = (login.username.as_deref().unwrap_or("?"), login.host.as_deref().unwrap_or("?"));
        let has_id = facts.id > 0;
        JobReport {
            uid: self.order.uid.clone(),
            hash: self.order.hash.clone(),
            status: JobStatus {
                phase,
                attempt: self.attempt,
                slurm_id: has_id.then_some(facts.id),
                submitted: Some(facts.submitted.clone()).filter(|submitted| !submitted.is_empty()),
                state: facts.state.clone(),
                reason: self.reason(),
                class,
                exit_code: facts
                    .exit
                    .filter(|_| facts.ended.is_some())
                    .map(|(code, signal)| format!("{code}:{signal}")),
                derived_exit_code: facts.derived.clone(),
                nodes: facts.nodes.clone(),
                tasks: facts.tasks.clone(),
            },
            login: format!("{user}@{host}"),
            slurm_name: self.slurm_name(),
            since: self.since,
            started_at: self.started_at,
            ended_at: self.ended_at,
            unreachable_since: self.hindrance().filter(|it| it.unreachable).map(|trouble| trouble.since),
            reached: self.reached,
            results: self.results.clone(),
            unfetched: self.unfetched.clone(),
            folder: folder(&self.order.spec, &self.slurm_name()),
            created_at: Some(self.order.created_at),
            is_gone: self.state == JobState::Gone,
        }
    }

    /// Returns the obstacle to the job's progress. An ended job only waits for its folder to be removed.
    fn hindrance(&self) -> Option<&Trouble> {
        self.trouble.as_ref().filter(|_| !matches!(self.state, JobState::Ended(_)))
    }

    fn reason(&self) -> String {
        if let Some(trouble) = self.hindrance() {
            return trouble.why.clone();
        }
        match &self.state {
            JobState::Lost => format!("Slurm no longer knows job {}", self.facts.id),
            JobState::Waiting => match &self.order.dependency {
                JobDependencyState::Waiting(why) => why.clone(),
                _ => String::new(),
            },
            JobState::Ended(ended) if !ended.why.is_empty() => ended.why.clone(),
            JobState::Ended(FinalState { phase: JobPhase::Cancelled, .. }) => self
                .facts
                .state
                .split_once(" by ")
                .map(|(_, user)| format!("by user {user}"))
                .unwrap_or_default(),
            JobState::Ended(FinalState { class: Some(FailureClass::Signal), .. }) => {
                let signal = self.facts.exit.map_or(0, |(_, signal)| signal);
                format!("signal {signal}")
            }
            JobState::Ended(FinalState { class: Some(FailureClass::ExitCode), .. }) => {
                let code = self.facts.exit.map_or(0, |(code, _)| code);
                format!("exit code {code}")
            }
            _ => self.facts.reason.clone(),
        }
    }
}
