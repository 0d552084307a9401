//! `work/<node>/jobs/<ns>/<name>` and `status/<node>/jobs/<ns>/<name>`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::{content_hash, is_default};
use crate::files::{BlobKind, BlobRef, Files};
use crate::kinds::job::{JobSpec, JobStatus, SlurmLogin};
use crate::meta::NamespacedName;

/// A Slurm job that a node is to see to: written by the jobs controller. That it is absent is no removal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobOrder {
    /// Which incarnation: another one after a change of the manifest, and when it comes back after a removal.
    pub uid: String,
    /// Hash of the object that it is of.
    pub hash: String,
    /// The spec, with the Cluster's login filled in.
    pub spec: JobSpec,
    /// The folder that is uploaded, and the ciphertext of the login's secrets.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
    /// When it was first given to a node.
    pub created_at: Timestamp,
    /// How far the job is that `spec.dependency` names.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dependency: JobDependencyState,
    /// A login host has answered a node that had this order: there may be something of the job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reached: bool,
    /// What the job was before its manifest changed, as far as it may still be on a login host. It is removed first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerJob>,
    /// The object is gone: the job is to be cancelled, and its folder removed from the login host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

/// An incarnation of a job that is to be removed from its login host: what that takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FormerJob {
    /// Which one.
    pub uid: String,
    /// Where it was submitted.
    pub login: SlurmLogin,
    /// Where its folders are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// How many attempts there can be, less one.
    #[serde(default)]
    pub node_failure_retries: u32,
    /// The ciphertext of the login's secrets.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
}

impl FormerJob {
    /// What remains of an order that another one takes the place of.
    pub fn of(order: &JobOrder) -> Self {
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

    /// The order to remove it.
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

/// How far another job is that is waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobDependencyState {
    /// There is none, or it is met.
    #[default]
    None,
    /// Slurm does not have that job yet, and why.
    Waiting(String),
    /// Slurm has it, by this number.
    Submitted(u64),
    /// It ended otherwise than it should have.
    Never(String),
}

impl JobOrder {
    /// The uid of a job that is first given to a node at this time.
    pub fn uid_of(job: &NamespacedName, hash: &str, created_at: Timestamp) -> String {
        let mut uid = content_hash(&(job, hash, created_at));
        uid.truncate(16);
        uid
    }

    /// The name of one attempt in Slurm; also that of its folder. No two jobs share one.
    pub fn slurm_name(&self, job: &NamespacedName, attempt: u32) -> String {
        let uid = self.uid.get(..8).unwrap_or(&self.uid);
        format!("{}.{}.{uid}.{attempt}", job.namespace, job.name)
    }
}

/// How far a node is with a job: written by its agent.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobReport {
    /// Of which order.
    pub uid: String,
    /// Hash of the object that the order was of.
    pub hash: String,
    /// How the job is.
    pub status: JobStatus,
    /// `user@host:port`.
    pub login: String,
    /// Its name in Slurm.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub slurm_name: String,
    /// Since when it is in its phase.
    pub since: Timestamp,
    /// When it began to run.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Since when the login host can't be reached from the node, while that is so.
    pub unreachable_since: Option<Timestamp>,
    /// A login host has answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reached: bool,
    /// What was fetched at its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<ResultFile>,
    /// What it left besides: more than is kept.
    #[serde(default, skip_serializing_if = "UnfetchedFiles::is_empty")]
    pub unfetched: UnfetchedFiles,
    /// Its folder on the login host; below the user's home folder if it does not begin with `/`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub folder: String,
    /// When its order was first given to a node.
    pub created_at: Option<Timestamp>,
    /// Of an order to delete: it is done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gone: bool,
}

/// A file that the job's node keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultFile {
    /// Below the job's folder.
    pub path: String,
    /// Bytes on the login host.
    pub size: u64,
    /// SHA-256 of what is kept, 64 hex digits; empty where it could not be read.
    pub digest: String,
    /// What it is.
    pub kind: ResultKind,
    /// Only its beginning is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_truncated: bool,
    /// Why it could not be read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unreadable: String,
}

/// Files that a job left and its node does not fetch, because there are too many or they are too large.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnfetchedFiles {
    /// How many.
    pub count: u64,
    /// Paths of the first ones, below the job's folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

impl UnfetchedFiles {
    /// Everything was fetched.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// What a file is that a job left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ResultKind {
    /// Standard output, of one task of an array.
    Stdout,
    /// Standard error, where it has a file of its own.
    Stderr,
    /// One of the manifest's outputs.
    Output,
}
