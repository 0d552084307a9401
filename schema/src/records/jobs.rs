//! `work/<node>/jobs/<ns>/<name>` and `status/<node>/jobs/<ns>/<name>`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::{content_hash, is_default};
use crate::content_refs::{BlobKind, BlobRef, Files};
use crate::kinds::job::{JobSpec, JobStatus, SlurmLogin};
use crate::meta::NamespacedName;

/// Order to a node to run a Slurm job. Written by the jobs controller. Its absence is not a removal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobOrder {
    /// Incarnation: a new one after a change of the manifest, and after a removal.
    pub uid: String,
    /// Hash of the object that the order is for.
    pub hash: String,
    /// Spec, with the Cluster's login filled in.
    pub spec: JobSpec,
    /// Folder to upload, and the ciphertext of the login's secrets.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
    /// Time at which it was first given to a node.
    pub created_at: Timestamp,
    /// State of the job that `spec.dependency` names.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dependency: JobDependencyState,
    /// True if a login host has answered a node with this order: parts of the job may exist there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reached: bool,
    /// Incarnations before changes of the manifest that may still be on a login host. They are removed first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerJob>,
    /// True if the object is gone: cancel the job, and remove its folder from the login host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

/// An incarnation of a job to remove from its login host, with the data that the removal needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FormerJob {
    /// Incarnation to remove.
    pub uid: String,
    /// Login with which it was submitted.
    pub login: SlurmLogin,
    /// Folder below which its folders are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// Number of possible attempts, less one.
    #[serde(default)]
    pub node_failure_retries: u32,
    /// Ciphertext of the login's secrets.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
}

impl FormerJob {
    /// Returns the part of a replaced order that its removal needs.
    pub fn from_order(order: &JobOrder) -> Self {
        let is_secret = |blob: &BlobRef| blob.kind == BlobKind::Secret;
        let secrets = order.files.iter().filter(|(_, blob)| is_secret(blob));
        Self {
            uid: order.uid.clone(),
            login: order.spec.login.clone(),
            work_dir: order.spec.work_dir.clone(),
            node_failure_retries: order.spec.node_failure_retries,
            files: secrets.map(|(path, blob)| (path.clone(), blob.clone())).collect(),
        }
    }

    /// Returns the order to remove it.
    pub fn removal(&self, created_at: Timestamp) -> JobOrder {
        JobOrder {
            uid: self.uid.clone(),
            hash: String::new(),
            spec: JobSpec {
                login: self.login.clone(),
                work_dir: self.work_dir.clone(),
                node_failure_retries: self.node_failure_retries,
                ..JobSpec::default()
            },
            files: self.files.clone(),
            created_at,
            dependency: JobDependencyState::None,
            reached: true,
            former: Vec::new(),
            deleting: true,
        }
    }
}

/// State of a job that another one waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobDependencyState {
    /// No dependency, or it is met.
    #[default]
    None,
    /// Not yet in Slurm, and why.
    Waiting(String),
    /// In Slurm, under this job id.
    Submitted(u64),
    /// The dependency ended in a way that can never satisfy it.
    Never(String),
}

impl JobOrder {
    /// Returns the uid of a job that is first given to a node at this time.
    pub fn uid_of(job: &NamespacedName, hash: &str, created_at: Timestamp) -> String {
        let mut uid = content_hash(&(job, hash, created_at));
        uid.truncate(16);
        uid
    }

    /// Returns the name of an attempt in Slurm; also that of its folder. No two jobs share one.
    pub fn slurm_name(&self, job: &NamespacedName, attempt: u32) -> String {
        let uid = self.uid.get(..8).unwrap_or(&self.uid);
        format!("{}.{}.{uid}.{attempt}", job.namespace, job.name)
    }
}

/// Report of a node about a job. Written by its agent.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobReport {
    /// Incarnation of the order.
    pub uid: String,
    /// Hash of the object that the order is for.
    pub hash: String,
    /// Status of the job.
    pub status: JobStatus,
    /// Login host as `user@host:port`.
    pub login: String,
    /// Name in Slurm.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub slurm_name: String,
    /// Time at which the current phase began.
    pub since: Timestamp,
    /// Time at which the job began to run.
    pub started_at: Option<Timestamp>,
    /// Time at which it ended.
    pub ended_at: Option<Timestamp>,
    /// Time since which the node can't reach the login host, while it can't.
    pub unreachable_since: Option<Timestamp>,
    /// True if a login host has answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reached: bool,
    /// Files fetched at its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<ResultFile>,
    /// Further files of the job, beyond the limits.
    #[serde(default, skip_serializing_if = "UnfetchedFiles::is_empty")]
    pub unfetched: UnfetchedFiles,
    /// Folder on the login host; relative to the user's home folder unless it begins with `/`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub folder: String,
    /// Time at which its order was first given to a node.
    pub created_at: Option<Timestamp>,
    /// True if an order to delete is done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gone: bool,
}

/// A file of the job that its node keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultFile {
    /// Path below the job's folder.
    pub path: String,
    /// Size on the login host, in bytes.
    pub size: u64,
    /// SHA-256 of the kept content, 64 hex digits; empty if it could not be read.
    pub digest: String,
    /// Kind of the file.
    pub kind: ResultKind,
    /// True if only the beginning is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_truncated: bool,
    /// Reason why it could not be read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unreadable: String,
}

/// Files of a job that its node does not fetch, because they are too many or too large.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnfetchedFiles {
    /// Number of files.
    pub count: u64,
    /// Paths of the first files, below the job's folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

impl UnfetchedFiles {
    /// True if everything was fetched.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Kind of a file that a job left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ResultKind {
    /// Standard output, for an array that of one task.
    Stdout,
    /// Standard error, if it has its own file.
    Stderr,
    /// An output of the manifest.
    Output,
}
