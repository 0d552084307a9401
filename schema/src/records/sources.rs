//! `sources/<source>` and `revisions/<source>/<seq>`.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;
use crate::meta::ObjectRef;
use crate::violation::Violation;

/// What a source shows and what of it is applied. Written only when it changes, so a poll
/// that finds nothing new writes nothing.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// Name of the source.
    pub name: String,
    /// Where it is fetched from, without credentials.
    pub url: String,
    /// Branch, tag or commit.
    pub reference: String,
    /// Folder within the repository; empty for its root.
    #[serde(default)]
    pub path: String,
    /// One file that can't be applied keeps all others from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// One word for all of it.
    pub state: SourceState,
    /// Newest commit seen at the remote.
    pub observed_commit: Option<String>,
    /// Newest commit applied, its good part if it is degraded.
    pub applied_commit: Option<String>,
    /// When that was.
    pub applied_at: Option<Timestamp>,
    /// Sequence number of that commit's revision.
    #[serde(default)]
    pub revision: u64,
    /// Objects that the source owns.
    #[serde(default)]
    pub objects: u64,
    /// Files that could not be applied; their objects stay as they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<Quarantine>,
    /// Removals that wait for a release.
    pub held_prune: Option<HeldPrune>,
    /// Objects that wait for others before they are applied, at most the first 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// How many there are in all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiting_total: u64,
    /// When an object last stopped waiting.
    pub released_at: Option<Timestamp>,
    /// What keeps the source from being read or applied.
    pub error: Option<SourceError>,
}

/// One word for the state of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceState {
    /// Nothing fetched yet.
    Pending,
    /// The newest commit is applied whole.
    Synced,
    /// The newest commit is applied but for objects that wait for others to become healthy.
    Waiting,
    /// The newest commit is applied in part: quarantined files or a held prune.
    Degraded,
    /// The remote or the commit can't be read; the last applied state stands.
    Failed,
}

/// A file that could not be applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Quarantine {
    /// Path within the repository.
    pub file: String,
    /// Commit at which it was read.
    pub commit: String,
    /// That commit's author, `Name <mail>`.
    pub author: String,
    /// What is wrong, at most the first 20.
    pub violations: Vec<Violation>,
    /// How many there are in all.
    pub violations_total: u64,
}

/// Removals that wait for a release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldPrune {
    /// Commit that would remove them.
    pub commit: String,
    /// Why they wait and what releases them.
    pub why: String,
    /// How many objects.
    pub deletes: u64,
    /// Of how many that the source owned when they were first held.
    pub owned: u64,
    /// Etcd's revision at that time: objects that are newer are not among these. 0: not known, all are.
    #[serde(default)]
    pub since: i64,
    /// The first 20 of them.
    pub objects: Vec<ObjectRef>,
}

/// An object that is not applied before another one is healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Which waits.
    pub object: ObjectRef,
    /// For which; the first of them if it waits for several.
    pub on: ObjectRef,
    /// Why that one is not healthy.
    pub why: String,
    /// Since when its deadline counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits for {}: {}", self.object, self.on, self.why)
    }
}

/// What keeps a source from being read or applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceError {
    /// Which step failed.
    pub kind: SourceErrorKind,
    /// What happened and what to do, in one line.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}

/// Which step failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceErrorKind {
    /// The remote does not answer.
    RemoteUnreachable,
    /// The remote refuses the credentials.
    AuthenticationFailed,
    /// Branch, tag or commit is not there.
    ReferenceNotFound,
    /// The repository holds no commit, so neither branch nor tag.
    NoCommit,
    /// The folder is not in the commit.
    PathNotFound,
    /// Not all of the commit can be read: too much of it, or an ignore file that is a link.
    CommitUnreadable,
    /// The commit holds no manifest at all.
    Empty,
    /// The commit is not signed as the source wants it, or the keys that may sign can't be read.
    SignatureInvalid,
    /// The local mirror is broken and is made anew.
    MirrorBroken,
    /// etcd took not all of it.
    ApplyFailed,
    /// A file can't be applied, and the source is strict: nothing of the commit is.
    Refused,
    /// No reconciler is configured with the source any more; its objects stay.
    NotConfigured,
}

/// One applied commit.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Name of the source.
    pub source: String,
    /// Counts from 1.
    pub sequence: u64,
    /// Full hex id.
    pub commit: String,
    /// `Name <mail>`.
    pub author: String,
    /// First line of the commit's message.
    pub subject: String,
    /// When it was committed.
    pub committed_at: Timestamp,
    /// When its last object was written.
    pub applied_at: Timestamp,
    /// From the start of the fetch to the last write, in milliseconds.
    pub duration_ms: u64,
    /// What it changed.
    pub counts: ChangeCounts,
    /// The objects that it removed; only the first 100, and none if it was applied in more than one run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<ObjectRef>,
    /// What became of it.
    pub verdict: Verdict,
    /// When the verdict became final; none while its objects are on their way.
    pub decided_at: Option<Timestamp>,
    /// The plan that was carried out, and whether it is the one that was reviewed.
    pub plan: Option<PlanRecord>,
}

/// The plan of a revision beside the one that was reviewed.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanRecord {
    /// SHA-256 of what was done.
    pub hash: String,
    /// Hash of the plan that was reviewed, whole or its first 16 digits; none if none is known.
    pub reviewed: Option<String>,
    /// Both are of one plan.
    pub matches: Option<bool>,
    /// Why they differ, or why that is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// How many objects a commit changed, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeCounts {
    /// New objects.
    pub create: u64,
    /// Changed without a restart.
    pub update: u64,
    /// Of these, only their place in the repository.
    #[serde(default, skip_serializing_if = "is_default")]
    pub moved: u64,
    /// Changed so that pods are replaced.
    pub replace: u64,
    /// Removed.
    pub delete: u64,
    /// As before.
    pub unchanged: u64,
    /// Files that could not be applied.
    pub quarantined: u64,
    /// Removals that wait.
    pub held: u64,
    /// Objects that wait for others.
    #[serde(default)]
    pub waiting: u64,
}

/// What became of a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Verdict {
    /// Applied whole.
    Applied,
    /// Applied in part.
    Degraded {
        /// Which part was not, and why.
        why: String,
    },
    /// All that it changed became healthy.
    Good,
    /// Something that it changed made no progress for as long as it may.
    Bad {
        /// Which, and why.
        why: String,
    },
    /// Newer commits changed some of it before it was known; the rest became healthy.
    Superseded,
}
