//! Runs steps on login hosts, each in a separate task: an unresponsive host does not block the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use schema::codec::{content_hash, hex};
use schema::control::lock;
use schema::kinds::job::{SlurmLogin, Submission, script};
use schema::records::JobDependencyState;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::answers::{Sections, find_attempt, is_refused, slurm_id};
use super::commands;
use super::commands::{EXIT_NO_FOLDER, EXIT_SLURM, RemoteJob};
use super::job_store::JobBook;
use super::machine::{JobRecord, JobStep, StepResult};
use super::parse::Facts;
use super::plan::Finding;
use crate::files::PodFiles;
use crate::metrics::METRICS;
use crate::worlds::ssh::{Credential, LoginHost, RemoteCommand, RemoteOutput, Ssh, SshError};

/// Longest time for a query to Slurm.
pub(super) const ASK_MAX: Duration = Duration::from_secs(60);
/// Longest time for a submission: sbatch itself tries for about two minutes.
const SUBMIT_MAX: Duration = Duration::from_secs(180);
/// Largest output that is read: 10,000 tasks have a line of about 150 bytes each.
const ANSWER_MAX_BYTES: u64 = 4 << 20;
/// Maximum number of concurrent uploads and downloads: each may take 64 MiB of memory.
const TRANSFERS_MAX: usize = 2;
/// Maximum bytes of a reason.
const WHY_MAX_BYTES: usize = 1000;

/// Runs steps on login hosts.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) ssh: Arc<dyn Ssh>,
    pub(super) files: Arc<PodFiles>,
    pub(super) book: JobBook,
    /// Host of the pool that answered last, by login.
    pub(super) answering: Arc<Mutex<BTreeMap<SlurmLogin, usize>>>,
    /// Pool observations, by login and folder.
    pub(super) pools: Arc<Mutex<BTreeMap<(SlurmLogin, String), PoolState>>>,
    /// Limits uploads and downloads, whose content is in memory.
    pub(super) transfers: Arc<Semaphore>,
}

/// Use of earlier observations of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolCacheUse {
    Cached,
    Fresh,
}

/// Observation of a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolState {
    pub(super) at: Timestamp,
    /// Set if all hosts of the pool answered and share the folder.
    pub(super) is_whole: bool,
}

/// Failure of a step.
pub(super) struct StepError {
    pub(super) why: String,
    pub(super) unreachable: bool,
}

impl From<String> for StepError {
    fn from(why: String) -> Self {
        Self { why, unreachable: false }
    }
}

impl From<SshError> for StepError {
    fn from(error: SshError) -> Self {
        let unreachable = matches!(error, SshError::Unreachable(_));
        Self { why: error.to_string(), unreachable }
    }
}

impl StepError {
    /// Creates the failure of a command with this output and exit code.
    pub(super) fn from_output(what: &str, output: &RemoteOutput) -> Self {
        let said = output.stderr.trim();
        let by = if output.code == EXIT_SLURM { "Slurm does not answer" } else { what };
        let said = if said.is_empty() { format!("exit code {}", output.code) } else { shortened(said) };
        Self::from(format!("{by}: {said}"))
    }
}

impl Worker {
    /// Creates a worker that knows no login host yet.
    pub(super) fn new(ssh: Arc<dyn Ssh>, files: Arc<PodFiles>, book: JobBook) -> Self {
        let transfers = Arc::new(Semaphore::new(TRANSFERS_MAX));
        Self { ssh, files, book, answering: Arc::default(), pools: Arc::default(), transfers }
    }

    /// Forgets logins that no job uses.
    pub(super) fn forget_other_logins(&self, logins: &BTreeSet<&SlurmLogin>) {
        lock(&self.answering).retain(|login, _| logins.contains(login));
        lock(&self.pools).retain(|(login, _), _| logins.contains(login));
    }

    /// Performs one step of a job.
    pub(super) async fn perform(&self, record: &JobRecord, step: JobStep) -> StepResult {
        let done = match step {
            JobStep::Look => {
                self.look(record, &record.slurm_names(), record.reached).await.map(StepResult::Found)
            }
            JobStep::Upload => self.upload(record).await,
            JobStep::Submit => self.submit(record).await,
            JobStep::Fetch => self.fetch(record).await,
            JobStep::Clean => self.clean(record).await,
            JobStep::Delete => self.delete(record).await,
        };
        let result =
            done.unwrap_or_else(|StepError { why, unreachable }| StepResult::Failed { why, unreachable });
        match (step, &result) {
            (JobStep::Submit, StepResult::Submitted(_)) => METRICS.submissions.count(true),
            (JobStep::Submit, StepResult::Refused(_) | StepResult::Failed { .. }) => {
                METRICS.submissions.count(false);
            }
            // Slurm has the job already, or another step comes first.
            _ => {}
        }
        result
    }

    /// Runs a command on the login host, or on the next one of its pool if one can't be reached: there the command
    /// did not start. A submission that was interrupted is looked for before the next one, on whichever host.
    pub(super) async fn run(
        &self,
        record: &JobRecord,
        text: String,
        stdin: Bytes,
        (timeout, stdout_max): (Duration, u64),
    ) -> Result<RemoteOutput, StepError> {
        let mut host = self.host(record).await?;
        let login = &record.order.spec.login;
        let hosts: Vec<String> = host.login.hosts().cloned().collect();
        let first = lock(&self.answering).get(login).copied().unwrap_or_default();
        let mut refusals = Vec::new();
        for index in (0..hosts.len()).map(|offset| (first + offset) % hosts.len()) {
            host.login.host = hosts.get(index).cloned();
            let (text, stdin) = (text.clone(), stdin.clone());
            match self.ssh.run(&host, RemoteCommand { text, stdin, timeout, stdout_max }).await {
                Err(SshError::Unreachable(why)) => refusals.push((index, why)),
                done => {
                    lock(&self.answering).insert(login.clone(), index);
                    return Ok(done?);
                }
            }
        }
        let why: Vec<String> = match refusals.as_slice() {
            [(_, why)] => vec![why.clone()],
            all => all.iter().map(|(index, why)| format!("{}: {why}", hosts[*index])).collect(),
        };
        Err(SshError::Unreachable(why.join("; ")).into())
    }

    pub(super) async fn query(
        &self,
        record: &JobRecord,
        text: String,
        timeout: Duration,
    ) -> Result<RemoteOutput, StepError> {
        self.run(record, text, Bytes::new(), (timeout, ANSWER_MAX_BYTES)).await
    }

    /// Returns the login host with its credential, decrypted on each call and never stored.
    pub(super) async fn host(&self, record: &JobRecord) -> Result<LoginHost, StepError> {
        let login = &record.order.spec.login;
        let missing = |what: &str| {
            format!(
                "the login has no {what}: set spec.login.{what}, or spec.slurm.login.{what} of the Cluster object"
            )
        };
        if login.host.is_none() || login.username.is_none() {
            return Err(missing(if login.host.is_none() { "host" } else { "username" }).into());
        }
        let (secret, is_key) = match (&login.ssh_key, &login.password) {
            (Some(key), _) => (key, true),
            (None, Some(password)) => (password, false),
            (None, None) => return Err(missing("sshKey").into()),
        };
        let namespace = &record.id.namespace;
        let values = self.files.secret_values(&record.order.files, namespace, &secret.name).await;
        let values = values.map_err(|error| error.to_string())?;
        let no_key = || format!("secret {} has no key {}", secret.name, secret.key);
        let value = values.get(&secret.key).cloned().ok_or_else(no_key)?;
        let credential = if is_key { Credential::Key(value) } else { Credential::Password(value) };
        Ok(LoginHost { login: login.clone(), credential })
    }

    /// Finds the newest of these attempts that Slurm or the login host knows. Accounting is queried too if an
    /// attempt may have been submitted a while ago.
    async fn look(
        &self,
        record: &JobRecord,
        names: &[String],
        with_accounts: bool,
    ) -> Result<Option<(u32, Facts)>, StepError> {
        let day = record.order.created_at.checked_sub(24.hours()).unwrap_or(record.order.created_at);
        let since = with_accounts.then(|| day.strftime("%Y-%m-%d").to_string());
        let text = commands::look(&record.order.spec, names, since.as_deref());
        let output = self.query(record, text, ASK_MAX).await?;
        if output.code != 0 {
            return Err(StepError::from_output("cannot look for the job", &output));
        }
        Ok(find_attempt(names, &String::from_utf8_lossy(&output.stdout)))
    }

    /// Submits the job unless Slurm has it already: the answer to a former submission may have been lost.
    async fn submit(&self, record: &JobRecord) -> Result<StepResult, StepError> {
        let name = record.slurm_name();
        if !record.is_fresh
            && let Some(found) = self.look(record, std::slice::from_ref(&name), true).await?
        {
            return Ok(StepResult::Found(Some(found)));
        }
        let after = match record.order.dependency {
            JobDependencyState::None => None,
            JobDependencyState::Submitted(number) => Some(number),
            // The dependency changed after the upload: this job must not start yet.
            JobDependencyState::Waiting(_) | JobDependencyState::Never(_) => {
                return Ok(StepResult::Found(None));
            }
        };
        let job = record.id.to_string();
        let script = Bytes::from(script(&record.order.spec, Submission { name: &name, job: &job, after }));
        let place = place(record, &name);
        let text = commands::submit(&place, &hex(&Sha256::digest(&script)));
        let output = self.run(record, text, script, (SUBMIT_MAX, ANSWER_MAX_BYTES)).await?;
        let said = String::from_utf8_lossy(&output.stdout);
        if output.code == 0 {
            let id = said.lines().find_map(|line| slurm_id(line.strip_prefix("id ")?));
            return Ok(id.map_or(StepResult::Busy, StepResult::Submitted));
        }
        if output.code == EXIT_NO_FOLDER {
            if self.check_pool(record, PoolCacheUse::Fresh).await? {
                return Ok(StepResult::FolderGone);
            }
            let why = "the job's folder is not on this login host, and not all hosts of loginPool answer";
            return Err(StepError::from(why.to_owned()));
        }
        if is_refused(&output.stderr) {
            // Best effort: a leftover lock would only delay a removal briefly.
            let _ = self.query(record, commands::unlock(&place), ASK_MAX).await;
            return Ok(StepResult::Refused(shortened(output.stderr.trim())));
        }
        Err(StepError::from_output("sbatch failed", &output))
    }

    async fn clean(&self, record: &JobRecord) -> Result<StepResult, StepError> {
        let text = commands::clean(&record.order.spec, &record.slurm_names());
        let output = self.query(record, text, ASK_MAX).await?;
        match output.code {
            0 => Ok(StepResult::Cleaned),
            _ => Err(StepError::from_output("cannot remove the job's files", &output)),
        }
    }

    async fn delete(&self, record: &JobRecord) -> Result<StepResult, StepError> {
        let text = commands::delete(&record.order.spec, &record.slurm_names());
        let output = self.query(record, text, ASK_MAX).await?;
        match String::from_utf8_lossy(&output.stdout).trim() {
            "gone" if output.code == 0 => Ok(StepResult::Deleted),
            "alive" if output.code == 0 => Ok(StepResult::Busy),
            _ => Err(StepError::from_output("cannot cancel the job and remove its folder", &output)),
        }
    }

    /// Polls a login host for all of these jobs, in as few queries as possible.
    pub(super) async fn poll(&self, records: &[JobRecord]) -> Vec<Finding> {
        let jobs: Vec<(String, u32)> =
            records.iter().map(|record| (record.slurm_name(), record.task_count())).collect();
        let (mut events, mut rest) = (Vec::new(), (records, jobs.as_slice()));
        for count in commands::batch_sizes(&jobs) {
            let (asked, others) = (rest.0.split_at(count), rest.1.split_at(count));
            events.extend(self.poll_batch(asked.0, others.0).await);
            rest = (asked.1, others.1);
        }
        events
    }

    /// Polls one batch of jobs; a failed query is no information about any of them.
    async fn poll_batch(&self, records: &[JobRecord], jobs: &[(String, u32)]) -> Vec<Finding> {
        let Some(first) = records.first() else { return Vec::new() };
        let names: Vec<String> = jobs.iter().map(|(name, _)| name.clone()).collect();
        let ids: Vec<u64> = records.iter().map(|record| record.facts.id).collect();
        let planned: u64 = jobs.iter().map(|(name, tasks)| commands::answer_bytes(name, *tasks)).sum();
        let max = ANSWER_MAX_BYTES.max(2 * planned);
        let asked = self.run(first, commands::poll(&names, &ids), Bytes::new(), (ASK_MAX, max)).await;
        let answered = asked.and_then(|output| match output.stdout.len() as u64 {
            // With a truncated answer the rest would look unknown to Slurm.
            size if size >= max => Err(StepError::from(format!("Slurm's answer has more than {max} bytes"))),
            _ => Ok(output),
        });
        let sections = answered.map(|output| Sections::parse(&String::from_utf8_lossy(&output.stdout)));
        let with = |record: &JobRecord, event| Finding {
            id: record.id.clone(),
            uid: record.order.uid.clone(),
            event,
        };
        let (why, unreachable) = match sections {
            Ok(sections) if sections.squeue_ok || sections.sacct_ok => {
                let now = Timestamp::now();
                let polled = records.iter().map(|record| Some(with(record, sections.polled(record, now)?)));
                return polled.flatten().collect();
            }
            Ok(_) => ("Slurm does not answer".to_owned(), false),
            Err(StepError { why, unreachable }) => (why, unreachable),
        };
        let failed = |record| with(record, StepResult::Failed { why: why.clone(), unreachable });
        records.iter().map(failed).collect()
    }
}

pub(super) fn place<'a>(record: &'a JobRecord, name: &'a str) -> RemoteJob<'a> {
    RemoteJob { spec: &record.order.spec, name }
}

pub(super) fn shortened(text: &str) -> String {
    let end = (0..=text.len().min(WHY_MAX_BYTES)).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or_default()].to_owned()
}

// Check that the login hosts of a pool share the parent of the jobs' folders: otherwise a job submitted by one of
// them would be lost to the others.

/// Time after which a pool with an unresponsive host is checked again.
const AGAIN: SignedDuration = SignedDuration::from_mins(1);

impl Worker {
    /// Creates a marker through one host and looks for it from the others. True if all of them answered; an error
    /// if one can't find it.
    pub(super) async fn check_pool(
        &self,
        record: &JobRecord,
        trust: PoolCacheUse,
    ) -> Result<bool, StepError> {
        let spec = &record.order.spec;
        if spec.login.login_pool.is_empty() {
            return Ok(true);
        }
        let (login, now) = (&spec.login, Timestamp::now());
        let pool = (login.clone(), spec.work_dir.clone().unwrap_or_default());
        let seen = lock(&self.pools).get(&pool).copied().filter(|_| trust == PoolCacheUse::Cached);
        if let Some(seen) = seen.filter(|seen| seen.is_whole || now.duration_since(seen.at) < AGAIN) {
            return Ok(seen.is_whole);
        }
        let host = self.host(record).await?;
        let marker = format!(".minik8s-{}", &content_hash(&(&record.order.uid, now))[..16]);
        let first = lock(&self.answering).get(login).copied().unwrap_or_default();
        let hosts: Vec<&String> = spec.login.hosts().collect();
        let mut writer = None;
        let (mut is_whole, mut blind) = (true, Vec::new());
        for name in (0..hosts.len()).map(|offset| hosts[(first + offset) % hosts.len()]) {
            let text = match writer {
                None => commands::leave_marker(spec, &marker),
                Some(_) => commands::find_marker(spec, &marker),
            };
            match (self.at(&host, name, text).await, writer) {
                (Err(SshError::Unreachable(_)), _) => is_whole = false,
                (Err(error), _) => return Err(error.into()),
                (Ok(output), None) if output.code == 0 => writer = Some(name),
                (Ok(output), None) => {
                    return Err(StepError::from_output("cannot write to the folder of the jobs", &output));
                }
                (Ok(output), Some(_)) if output.code == 0 => {}
                (Ok(_), Some(_)) => blind.push(name.as_str()),
            }
        }
        let Some(writer) = writer else { return Ok(false) };
        let _ = self.at(&host, writer, commands::remove_marker(spec, &marker)).await;
        if blind.is_empty() {
            lock(&self.pools).insert(pool, PoolState { at: now, is_whole });
            return Ok(is_whole);
        }
        let folder = commands::folder(spec, "");
        Err(StepError::from(format!(
            "the hosts of loginPool do not share the folder {folder}: files that {writer} writes there are not visible on {}; \
             name a shared one in workDir, or remove hosts from loginPool",
            blind.join(", ")
        )))
    }

    async fn at(&self, host: &LoginHost, name: &str, text: String) -> Result<RemoteOutput, SshError> {
        let mut host = host.clone();
        host.login.host = Some(name.to_owned());
        let stdin = Bytes::new();
        self.ssh.run(&host, RemoteCommand { text, stdin, timeout: ASK_MAX, stdout_max: 0 }).await
    }
}
