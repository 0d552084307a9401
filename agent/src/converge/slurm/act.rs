//! Carries steps out on login hosts, each in a task of its own: a host that does not answer holds up no other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, ToSpan as _};
use schema::codec::hex;
use schema::files::{BlobKind, of_path};
use schema::kinds::job::{JobPhase, Submission, script};
use schema::meta::NamespacedName;
use schema::records::{JobDependencyState, ResultFile, ResultKind};
use sha2::{Digest as _, Sha256};

use super::book::JobBook;
use super::commands::{self, EXIT_SLURM, Place};
use super::machine::{Event, JobRecord, Step};
use super::parse::{Facts, Row, facts, sacct, squeue};
use crate::files::PodFiles;
use crate::worlds::ssh::{Credential, LoginHost, RemoteCommand, RemoteOutput, Ssh, SshError};

/// Longest time for a question to Slurm.
const ASK_MAX: Duration = Duration::from_secs(60);
/// Longest time for a submission: sbatch itself tries for about two minutes.
const SUBMIT_MAX: Duration = Duration::from_secs(180);
/// Longest time for an upload of 64 MiB, and for fetching one file.
const UPLOAD_MAX: Duration = Duration::from_secs(600);
const FETCH_MAX: Duration = Duration::from_secs(300);
/// Most of what Slurm prints that is read: 10,000 tasks have a line of about 150 bytes each.
const ANSWER_MAX_BYTES: u64 = 4 << 20;
/// Bytes of one result, of all of them, and how many there may be: they are listed in etcd.
const RESULT_MAX_BYTES: u64 = 16 << 20;
const RESULTS_MAX_BYTES: u64 = 256 << 20;
const RESULTS_MAX: usize = 150;
/// Bytes of a reason.
const WHY_MAX_BYTES: usize = 1000;

/// What sbatch says of a job that no later try makes better. All else is tried again.
const REFUSALS: [&str; 8] = [
    "nvalid",
    "equested node configuration is not available",
    "not permitted",
    "ermission denied",
    "nrecognized option",
    "batch script contains",
    "ob size specification",
    "does not exist",
];

/// What carries steps out.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) ssh: Arc<dyn Ssh>,
    pub(super) files: Arc<PodFiles>,
    pub(super) book: JobBook,
}

/// A step could not be done.
struct Failed {
    why: String,
    unreachable: bool,
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self { why, unreachable: false }
    }
}

impl From<SshError> for Failed {
    fn from(error: SshError) -> Self {
        let unreachable = matches!(error, SshError::Unreachable(_));
        Self { why: error.to_string(), unreachable }
    }
}

impl Failed {
    /// What a command said that ended with this code.
    fn of(what: &str, output: &RemoteOutput) -> Self {
        let said = output.stderr.trim();
        let by = if output.code == EXIT_SLURM { "Slurm does not answer" } else { what };
        let said = if said.is_empty() { format!("exit code {}", output.code) } else { shortened(said) };
        Self::from(format!("{by}: {said}"))
    }
}

impl Worker {
    /// One step of a job.
    pub(super) async fn perform(&self, record: &JobRecord, step: Step) -> Event {
        let done = match step {
            Step::Look => self.look(record, &record.slurm_names()).await.map(Event::Looked),
            Step::Upload => self.upload(record).await,
            Step::Submit => self.submit(record).await,
            Step::Fetch => self.fetch(record).await,
            Step::Delete => self.delete(record).await,
        };
        done.unwrap_or_else(|Failed { why, unreachable }| Event::Failed { why, unreachable })
    }

    async fn run(
        &self,
        record: &JobRecord,
        text: String,
        stdin: Bytes,
        (timeout, stdout_max): (Duration, u64),
    ) -> Result<RemoteOutput, Failed> {
        let host = self.host(record).await?;
        Ok(self.ssh.run(&host, RemoteCommand { text, stdin, timeout, stdout_max }).await?)
    }

    async fn ask(&self, record: &JobRecord, text: String, timeout: Duration) -> Result<RemoteOutput, Failed> {
        self.run(record, text, Bytes::new(), (timeout, ANSWER_MAX_BYTES)).await
    }

    /// The login host with what logs in, decrypted anew each time and kept nowhere.
    async fn host(&self, record: &JobRecord) -> Result<LoginHost, Failed> {
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

    /// The newest of these attempts that Slurm or the login host knows.
    async fn look(&self, record: &JobRecord, names: &[String]) -> Result<Option<(u32, Facts)>, Failed> {
        let day = record.order.created_at.checked_sub(24.hours()).unwrap_or(record.order.created_at);
        let text = commands::look(&record.order.spec, names, &day.strftime("%Y-%m-%d").to_string());
        let output = self.ask(record, text, ASK_MAX).await?;
        if output.code != 0 {
            return Err(Failed::of("cannot look for the job", &output));
        }
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        let sections = Sections::of(&answer);
        for name in names.iter().rev() {
            let attempt = name.rsplit('.').next().and_then(|attempt| attempt.parse().ok()).unwrap_or(1);
            if let Some(facts) = facts(name, &sections.squeue, &sections.sacct) {
                return Ok(Some((attempt, facts)));
            }
            let of_name = |line: &str| line.strip_prefix(name.as_str())?.strip_prefix(' ').and_then(slurm_id);
            if let Some(id) = answer.lines().take_while(|line| !line.starts_with("== ")).find_map(of_name) {
                let facts = Facts { id, phase: JobPhase::Unknown, ..Facts::default() };
                return Ok(Some((attempt, facts)));
            }
        }
        Ok(None)
    }

    async fn upload(&self, record: &JobRecord) -> Result<Event, Failed> {
        let order = &record.order;
        let folder = match &order.spec.files {
            None => None,
            Some(path) => {
                let found = of_path(&order.files, path).filter(|(_, blob)| blob.kind == BlobKind::Folder);
                let (path, blob) = found.ok_or_else(|| format!("{path} is no folder of the repository"))?;
                self.files.ensure(path, blob).await.map_err(|error| error.to_string())?;
                Some(self.files.folder(blob))
            }
        };
        let name = record.slurm_name();
        let after = match order.dependency {
            JobDependencyState::Submitted(number) => Some(number),
            _ => None,
        };
        let job = record.id.to_string();
        let script = script(&order.spec, Submission { name: &name, job: &job, after });
        let archive = tokio::task::spawn_blocking(move || archive(folder, &script)).await;
        let archive = archive.map_err(|error| error.to_string())?;
        let archive = Bytes::from(archive.map_err(|error| format!("cannot read the job's folder: {error}"))?);
        let text = commands::upload(&place(record, &name), &hex(&Sha256::digest(&archive)));
        let output = self.run(record, text, archive, (UPLOAD_MAX, 0)).await?;
        if output.code == 0 { Ok(Event::Uploaded) } else { Err(Failed::of("cannot upload the job", &output)) }
    }

    /// Submits it unless Slurm has it already: the answer to a former submission may have been lost.
    async fn submit(&self, record: &JobRecord) -> Result<Event, Failed> {
        let name = record.slurm_name();
        if let Some(found) = self.look(record, std::slice::from_ref(&name)).await? {
            return Ok(Event::Looked(Some(found)));
        }
        let place = place(record, &name);
        let output = self.ask(record, commands::submit(&place), SUBMIT_MAX).await?;
        let said = String::from_utf8_lossy(&output.stdout);
        if output.code == 0 {
            let id = said.lines().find_map(|line| slurm_id(line.strip_prefix("id ")?));
            return Ok(id.map_or(Event::Busy, Event::Submitted));
        }
        let is_refused = REFUSALS.iter().any(|refusal| output.stderr.contains(refusal));
        if is_refused {
            let _ = self.ask(record, commands::unlock(&place), ASK_MAX).await?;
            return Ok(Event::Refused(shortened(output.stderr.trim())));
        }
        Err(Failed::of("sbatch failed", &output))
    }

    async fn delete(&self, record: &JobRecord) -> Result<Event, Failed> {
        let text = commands::delete(&record.order.spec, &record.slurm_names());
        let output = self.ask(record, text, ASK_MAX).await?;
        match String::from_utf8_lossy(&output.stdout).trim() {
            "gone" if output.code == 0 => Ok(Event::Deleted),
            "alive" if output.code == 0 => Ok(Event::Busy),
            _ => Err(Failed::of("cannot cancel the job and remove its folder", &output)),
        }
    }

    async fn fetch(&self, record: &JobRecord) -> Result<Event, Failed> {
        let name = record.slurm_name();
        let place = place(record, &name);
        let listed = self.ask(record, commands::list(&place, record.facts.id), ASK_MAX).await?;
        // A folder that somebody removed has no results: the job has ended all the same.
        let mut results: Vec<ResultFile> = Vec::new();
        let mut left = RESULTS_MAX_BYTES;
        for (kind, size, path) in listing(&listed.stdout) {
            if results.len() == RESULTS_MAX || results.iter().any(|known| known.path == path) {
                continue;
            }
            let max = RESULT_MAX_BYTES.min(left);
            let text = commands::read(&place, &path, max);
            let output = self.run(record, text, Bytes::new(), (FETCH_MAX, max)).await?;
            if output.code != 0 {
                return Err(Failed::of(&format!("cannot fetch {path}"), &output));
            }
            left -= output.stdout.len() as u64;
            let (book, id, bytes) = (self.book.clone(), record.id.clone(), output.stdout);
            let is_truncated = size > bytes.len() as u64;
            let kept = tokio::task::spawn_blocking(move || book.keep(&id, &bytes)).await;
            let kept = kept.map_err(|error| error.to_string())?;
            let digest = kept.map_err(|error| format!("cannot keep {path}: {error}"))?;
            results.push(ResultFile { path, size, digest, kind, is_truncated });
        }
        Ok(Event::Fetched(results))
    }

    /// What a job has written so far.
    pub(super) async fn written(
        &self,
        record: &JobRecord,
        stderr: bool,
        max: u64,
    ) -> Result<Vec<u8>, String> {
        let name = record.slurm_name();
        let text = commands::written(&place(record, &name), record.facts.id, stderr, max);
        let output = self.run(record, text, Bytes::new(), (ASK_MAX, 4 * max)).await;
        match output.map_err(|failed| failed.why)? {
            output if output.code == 0 => Ok(output.stdout),
            output => Err(Failed::of("cannot read what it wrote", &output).why),
        }
    }

    /// Asks a login host for all of these at once. A question that fails says nothing of any of them.
    pub(super) async fn poll(&self, records: &[JobRecord]) -> Vec<(NamespacedName, String, Event)> {
        let Some(first) = records.first() else { return Vec::new() };
        let names: Vec<String> = records.iter().map(JobRecord::slurm_name).collect();
        let ids: Vec<u64> = records.iter().map(|record| record.facts.id).collect();
        let answered = self.ask(first, commands::poll(&names, &ids), ASK_MAX).await;
        let sections = answered.map(|output| Sections::of(&String::from_utf8_lossy(&output.stdout)));
        let with = |record: &JobRecord, event| (record.id.clone(), record.order.uid.clone(), event);
        let sections = match sections {
            Ok(sections) if sections.squeue_ok || sections.sacct_ok => sections,
            Ok(_) => {
                let failed = || Event::Failed { why: "Slurm does not answer".to_owned(), unreachable: false };
                return records.iter().map(|record| with(record, failed())).collect();
            }
            Err(Failed { why, unreachable }) => {
                let failed = || Event::Failed { why: why.clone(), unreachable };
                return records.iter().map(|record| with(record, failed())).collect();
            }
        };
        let mut events = Vec::new();
        for (record, name) in records.iter().zip(&names) {
            let found = facts(name, &sections.squeue, &sections.sacct);
            // Only its end counts in accounts that nothing confirms, and only both together know that it is nowhere.
            let counts = match &found {
                Some(found) => sections.squeue_ok || found.ended.is_some(),
                None => sections.squeue_ok && sections.has_answered_all(record),
            };
            if counts {
                events.push(with(record, Event::Polled(found)));
            }
        }
        events
    }
}

/// What squeue and sacct answered.
#[derive(Default)]
struct Sections {
    squeue: Vec<Row>,
    sacct: Vec<Row>,
    squeue_ok: bool,
    sacct_ok: bool,
}

impl Sections {
    /// `== squeue`, lines, `== 0`, `== sacct`, lines, `== 0`.
    fn of(answer: &str) -> Self {
        let mut parts: BTreeMap<&str, String> = BTreeMap::new();
        let (mut section, mut found) = ("", Self::default());
        for line in answer.lines() {
            match line.strip_prefix("== ") {
                Some("squeue") => section = "squeue",
                Some("sacct") => section = "sacct",
                Some(code) if section == "squeue" => found.squeue_ok = code == "0",
                Some(code) => found.sacct_ok = code == "0",
                None => parts.entry(section).or_default().push_str(&format!("{line}\n")),
            }
        }
        found.squeue = squeue(parts.get("squeue").map_or("", String::as_str));
        found.sacct = sacct(parts.get("sacct").map_or("", String::as_str));
        found
    }

    /// Accounts are off, or they have had the time to learn of it: they lag behind.
    fn has_answered_all(&self, record: &JobRecord) -> bool {
        let lag = SignedDuration::from_secs(60);
        !self.sacct_ok || jiff::Timestamp::now().duration_since(record.changed_at) > lag
    }
}

fn place<'a>(record: &'a JobRecord, name: &'a str) -> Place<'a> {
    Place { spec: &record.order.spec, name }
}

/// `123`, `123;cluster`.
fn slurm_id(text: &str) -> Option<u64> {
    text.split(';').next()?.trim().parse().ok()
}

fn listing(bytes: &[u8]) -> Vec<(ResultKind, u64, String)> {
    let entries = bytes.split(|byte| *byte == 0).filter_map(|entry| {
        let text = std::str::from_utf8(entry).ok()?;
        let mut parts = text.splitn(3, ' ');
        let kind = match parts.next()? {
            "o" => ResultKind::Stdout,
            "e" => ResultKind::Stderr,
            _ => ResultKind::Output,
        };
        let size = parts.next()?.parse().ok()?;
        let path = parts.next()?.strip_prefix("./")?;
        let leads_out = path.is_empty() || path.split('/').any(|part| part == "..");
        (!leads_out).then(|| (kind, size, path.to_owned()))
    });
    entries.collect()
}

/// The folder of the job, with its script.
fn archive(folder: Option<PathBuf>, script: &str) -> std::io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    // As they are: a link that leads out of the folder stays one.
    builder.follow_symlinks(false);
    builder.mode(tar::HeaderMode::Deterministic);
    if let Some(folder) = folder {
        builder.append_dir_all("", folder)?;
    }
    let mut header = tar::Header::new_gnu();
    header.set_size(script.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, ".minik8s/script.sh", script.as_bytes())?;
    builder.into_inner()
}

fn shortened(text: &str) -> String {
    let end = (0..=text.len().min(WHY_MAX_BYTES)).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or_default()].to_owned()
}
