//! What becomes of a job with each thing that is seen or done. Pure.
//!
//! Each state names the one step that leads on. What a step found is an [`Event`]; a step that failed changes no state.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::job::{FailureClass, JobPhase, JobStatus};
use schema::meta::NamespacedName;
use schema::records::{JobDependencyState, JobOrder, JobReport, ResultFile};
use serde::{Deserialize, Serialize};

use super::parse::{Ended, Facts, failure_class};

/// Between two tries of a step that failed: first, and at most.
const RETRY: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(2), SignedDuration::from_secs(120));
/// Between two looks at a submission or a cancellation that is under way.
const BUSY: SignedDuration = SignedDuration::from_secs(2);

/// A job as its node knows it, on the disk too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRecord {
    pub id: NamespacedName,
    /// What it was begun with.
    pub order: JobOrder,
    pub state: State,
    /// Since when.
    pub since: Timestamp,
    /// Written before each submission.
    pub attempt: u32,
    pub facts: Facts,
    /// When Slurm last said something else.
    pub changed_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub results: Vec<ResultFile>,
    /// What keeps the next step from being done.
    pub trouble: Option<Trouble>,
}

/// Where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Another node, or this one before it lost its disk, may have submitted it.
    Looking,
    /// What Slurm is to wait for is not there yet.
    Waiting,
    Uploading,
    Submitting,
    /// Slurm has it.
    Submitted,
    /// Slurm has had it, and does not know it any more.
    Lost,
    Fetching,
    Ended(FinalState),
    /// It is being cancelled, and its folders removed.
    Deleting,
    Gone,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FinalState {
    pub phase: JobPhase,
    pub class: Option<FailureClass>,
    /// What Slurm did not say.
    #[serde(default)]
    pub why: String,
}

/// What keeps a step from being done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    pub why: String,
    pub since: Timestamp,
    pub failures: u32,
    pub retry_at: Timestamp,
    /// The login host can't be reached.
    pub unreachable: bool,
}

/// What leads on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Look,
    Upload,
    Submit,
    Fetch,
    Delete,
}

/// What a step found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Attempt and facts of the job's newest attempt; none: there is none.
    Looked(Option<(u32, Facts)>),
    Uploaded,
    /// Slurm has it, by this number.
    Submitted(u64),
    /// A submission or a cancellation is under way.
    Busy,
    /// Slurm refuses it for good.
    Refused(String),
    /// What a poll said; none: Slurm does not know it.
    Polled(Option<Facts>),
    Fetched(Vec<ResultFile>),
    Deleted,
    /// The step could not be done, or what came of it is not known.
    Failed {
        why: String,
        unreachable: bool,
    },
}

impl JobRecord {
    pub fn new(id: NamespacedName, order: JobOrder, now: Timestamp) -> Self {
        Self {
            id,
            order,
            state: State::Looking,
            since: now,
            attempt: 1,
            facts: Facts::default(),
            changed_at: now,
            started_at: None,
            ended_at: None,
            results: Vec::new(),
            trouble: None,
        }
    }

    /// The name of an attempt in Slurm.
    pub fn slurm_name(&self) -> String {
        self.order.slurm_name(&self.id, self.attempt)
    }

    /// The names of all attempts that there can be.
    pub fn slurm_names(&self) -> Vec<String> {
        let most = self.order.spec.node_failure_retries.min(9) + 1;
        (1..=most.max(self.attempt)).map(|attempt| self.order.slurm_name(&self.id, attempt)).collect()
    }

    /// What leads on, unless it has to wait.
    pub fn step(&self, now: Timestamp) -> Option<Step> {
        if self.trouble.as_ref().is_some_and(|trouble| trouble.retry_at > now) {
            return None;
        }
        match self.state {
            State::Looking => Some(Step::Look),
            State::Uploading => Some(Step::Upload),
            State::Submitting => Some(Step::Submit),
            State::Fetching => Some(Step::Fetch),
            State::Deleting => Some(Step::Delete),
            State::Waiting | State::Submitted | State::Lost | State::Ended(_) | State::Gone => None,
        }
    }

    /// Slurm is asked for it from time to time.
    pub fn is_polled(&self) -> bool {
        matches!(self.state, State::Submitted | State::Lost)
    }

    fn enter(&mut self, state: State, now: Timestamp) {
        if self.state != state {
            (self.state, self.since) = (state, now);
        }
        self.trouble = None;
    }

    /// Takes in what is ordered now. None: nothing is, and absence alone ends nothing.
    pub fn follow(&mut self, order: Option<&JobOrder>, now: Timestamp) {
        let Some(order) = order else { return };
        if order.uid == self.order.uid {
            self.order = order.clone();
        } else if self.state == State::Gone {
            *self = Self::new(self.id.clone(), order.clone(), now);
        }
        let is_other = order.uid != self.order.uid || order.deleting;
        if is_other && !matches!(self.state, State::Deleting | State::Gone) {
            self.enter(State::Deleting, now);
        }
        if self.state == State::Waiting {
            self.begin(now);
        }
    }

    /// Begins the attempt, once Slurm has what it waits for.
    fn begin(&mut self, now: Timestamp) {
        match &self.order.dependency {
            JobDependencyState::None | JobDependencyState::Submitted(_) => self.enter(State::Uploading, now),
            JobDependencyState::Waiting(_) => self.enter(State::Waiting, now),
            JobDependencyState::Never(why) => {
                let class = Some(FailureClass::Dependency);
                let ended = FinalState { phase: JobPhase::Failed, class, why: why.clone() };
                self.end(ended, now);
            }
        }
    }

    fn end(&mut self, ended: FinalState, now: Timestamp) {
        self.ended_at.get_or_insert(now);
        self.enter(State::Ended(ended), now);
    }

    /// Takes in what a step found.
    pub fn apply(&mut self, event: Event, now: Timestamp) {
        match (event, &self.state) {
            (Event::Failed { why, unreachable }, _) => self.fail(why, unreachable, now),
            (Event::Looked(found), State::Looking | State::Submitting) => match found {
                Some((attempt, facts)) => {
                    self.attempt = attempt;
                    self.enter(State::Submitted, now);
                    self.polled(facts, now);
                }
                None if self.state == State::Looking => self.begin(now),
                None => self.trouble = None,
            },
            (Event::Uploaded, State::Uploading) => self.enter(State::Submitting, now),
            (Event::Submitted(number), State::Submitting) => {
                self.enter(State::Submitted, now);
                self.facts = Facts { id: number, phase: JobPhase::Queued, ..Facts::default() };
                self.changed_at = now;
            }
            (Event::Busy, State::Submitting | State::Deleting) => self.wait_for(BUSY, now),
            (Event::Refused(why), State::Submitting) => {
                let class = Some(FailureClass::Submission);
                self.end(FinalState { phase: JobPhase::Failed, class, why }, now);
            }
            (Event::Polled(found), State::Submitted | State::Lost) => match found {
                Some(facts) => {
                    self.enter(State::Submitted, now);
                    self.polled(facts, now);
                }
                // Without a word of Slurm it has neither failed nor ended.
                None => self.enter(State::Lost, now),
            },
            (Event::Fetched(results), State::Fetching) => {
                self.results = results;
                let ended = self.facts.ended.unwrap_or(Ended::Completed);
                let class = failure_class(ended, self.facts.exit);
                let phase = self.facts.phase;
                self.enter(State::Ended(FinalState { phase, class, why: String::new() }), now);
            }
            (Event::Deleted, State::Deleting) => self.enter(State::Gone, now),
            // A step that was overtaken: by a removal, say.
            _ => {}
        }
    }

    fn wait_for(&mut self, wait: SignedDuration, now: Timestamp) {
        let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
        let retry_at = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        let why = "Slurm is not done with it yet".to_owned();
        self.trouble = Some(Trouble { why, since, failures: 0, retry_at, unreachable: false });
    }

    fn fail(&mut self, why: String, unreachable: bool, now: Timestamp) {
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
            // It grows with each poll, and the record would be written anew.
            self.facts.elapsed_seconds = None;
        }
        let Some(ended) = self.facts.ended else { return };
        if ended == Ended::NodeFailure && self.attempt <= self.order.spec.node_failure_retries {
            self.attempt += 1;
            (self.started_at, self.facts) = (None, Facts::default());
            return self.enter(State::Uploading, now);
        }
        self.ended_at = Some(self.started_at.map_or(now, |began| began.checked_add(ran).unwrap_or(now)));
        self.enter(State::Fetching, now);
    }

    /// As it is reported.
    pub fn report(&self) -> JobReport {
        let facts = &self.facts;
        let (phase, class) = match &self.state {
            State::Looking | State::Waiting => (JobPhase::Pending, None),
            State::Uploading => (JobPhase::Uploading, None),
            State::Submitting => (JobPhase::Submitting, None),
            State::Submitted => (facts.phase, None),
            State::Lost => (JobPhase::Unknown, None),
            State::Fetching => (JobPhase::Fetching, None),
            State::Ended(ended) => (ended.phase, ended.class),
            State::Deleting | State::Gone => (JobPhase::Deleting, None),
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
            unreachable_since: self.trouble.as_ref().filter(|it| it.unreachable).map(|trouble| trouble.since),
            results: self.results.clone(),
            is_gone: self.state == State::Gone,
        }
    }

    fn reason(&self) -> String {
        if let Some(trouble) = &self.trouble {
            return trouble.why.clone();
        }
        match &self.state {
            State::Lost => "Slurm does not know it any more".to_owned(),
            State::Waiting => match &self.order.dependency {
                JobDependencyState::Waiting(why) => why.clone(),
                _ => String::new(),
            },
            State::Ended(ended) if !ended.why.is_empty() => ended.why.clone(),
            State::Ended(FinalState { phase: JobPhase::Cancelled, .. }) => self
                .facts
                .state
                .split_once(" by ")
                .map(|(_, user)| format!("by user {user}"))
                .unwrap_or_default(),
            State::Ended(FinalState { class: Some(FailureClass::Signal), .. }) => {
                let signal = self.facts.exit.map_or(0, |(_, signal)| signal);
                format!("signal {signal}")
            }
            State::Ended(FinalState { class: Some(FailureClass::ExitCode), .. }) => {
                let code = self.facts.exit.map_or(0, |(code, _)| code);
                format!("exit code {code}")
            }
            _ => self.facts.reason.clone(),
        }
    }
}
