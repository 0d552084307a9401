//! `sources/<source>` and `revisions/<source>/<seq>`.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::requests::Provider;
use crate::codec::is_default;
use crate::kinds::Kind;
use crate::kinds::cluster::PodSecurity;
use crate::meta::ObjectRef;
use crate::violation::Violation;

/// Observed and applied state of a source. Written only when it changes, so a poll without news writes nothing.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// Name of the source.
    pub name: String,
    /// URL that it is fetched from, without credentials.
    pub url: String,
    /// Branch, tag or commit.
    pub reference: String,
    /// Folder within the repository; empty for its root.
    #[serde(default)]
    pub path: String,
    /// True if a single file that can't be applied blocks all others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Overall state.
    pub state: SourceState,
    /// Newest commit observed at the remote.
    pub observed_commit: Option<String>,
    /// Newest commit applied, in part if the source is degraded.
    pub applied_commit: Option<String>,
    /// Time at which that commit was applied.
    pub applied_at: Option<Timestamp>,
    /// Sequence number of that commit's revision.
    #[serde(default)]
    pub revision: u64,
    /// Objects that the source owns.
    #[serde(default)]
    pub objects: u64,
    /// Files that could not be applied; their objects stay as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<Quarantine>,
    /// Removals that wait for approval.
    pub held_prune: Option<HeldPrune>,
    /// Objects that wait for others before they are applied, at most the first 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingObject>,
    /// Total number of waiting objects.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiting_total: u64,
    /// Time at which an object last stopped waiting.
    pub released_at: Option<Timestamp>,
    /// Error that keeps the source from being read or applied.
    pub error: Option<SourceError>,
    /// Objects that the source may hold, if its reconciler limits them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow: AllowedObjects,
    /// Restrictions on pods that the newest commit replaced. All of that commit must still meet them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced_pod_security: Vec<PodSecurityRecord>,
}

/// Objects that a source may hold. An empty list allows all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedObjects {
    /// Kinds of objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<Kind>,
    /// Namespaces of objects. Objects of the whole cluster are in none, so with namespaces only named kinds of them
    /// are allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
}

/// Restrictions on pods of a Cluster object, and the time in which they were its own.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSecurityRecord {
    /// The restrictions.
    pub policy: PodSecurity,
    /// Commit with which the Cluster object was applied.
    pub since: String,
    /// Commit that changed or removed that object; `None` while it is applied.
    pub until: Option<String>,
}

/// State of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceState {
    /// Nothing fetched yet.
    Pending,
    /// The newest commit is applied in full.
    Synced,
    /// The newest commit is applied except for objects that wait for others to become healthy.
    Waiting,
    /// The newest commit is applied in part: quarantined files or a held prune.
    Degraded,
    /// The remote or the commit can't be read; the last applied state stays.
    Failed,
}

/// A file that could not be applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Quarantine {
    /// Path within the repository.
    pub file: String,
    /// Commit from which it was read.
    pub commit: String,
    /// Author of that commit, `Name <mail>`.
    pub author: String,
    /// Violations, at most the first 20.
    pub violations: Vec<Violation>,
    /// Total number of violations.
    pub violations_total: u64,
}

/// Removals that wait for approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldPrune {
    /// Commit that would remove the objects.
    pub commit: String,
    /// Reason for the hold, and the way to release it.
    pub why: String,
    /// Number of objects to remove.
    pub deletes: u64,
    /// Number of objects that the source owned when the removals were first held.
    pub owned: u64,
    /// Revision of etcd at that time: newer objects are not among these. 0 if not known: all are.
    #[serde(default)]
    pub since: i64,
    /// The first 20 objects.
    pub objects: Vec<ObjectRef>,
}

/// An object that is not applied before another one is healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingObject {
    /// The waiting object.
    pub object: ObjectRef,
    /// The object it waits for; the first if there are several.
    pub on: ObjectRef,
    /// Reason why that object is not healthy.
    pub why: String,
    /// Time from which its deadline counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

impl fmt::Display for WaitingObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits for {}: {}", self.object, self.on, self.why)
    }
}

/// Error that keeps a source from being read or applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceError {
    /// The failed step.
    pub kind: SourceErrorKind,
    /// Cause and remedy, in one line.
    pub message: String,
    /// Time since which it fails.
    pub since: Timestamp,
}

/// The failed step of reading or applying a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceErrorKind {
    /// The remote does not answer.
    RemoteUnreachable,
    /// The remote rejects the credentials.
    AuthenticationFailed,
    /// The branch, tag or commit does not exist.
    ReferenceNotFound,
    /// The repository has no commit, so neither branch nor tag.
    NoCommit,
    /// The folder is not in the commit.
    PathNotFound,
    /// The commit can't be read in full: it is too large, or its ignore file is a link.
    CommitUnreadable,
    /// The commit holds no manifest at all.
    Empty,
    /// The commit is not signed as the source requires, or the keys that may sign can't be read.
    SignatureInvalid,
    /// The local mirror is broken and is being recreated.
    MirrorBroken,
    /// etcd did not accept all changes.
    ApplyFailed,
    /// A file can't be applied, and the source is strict: nothing of the commit is applied.
    Refused,
    /// No reconciler is configured with the source any longer; its objects stay.
    NotConfigured,
}

impl SourceErrorKind {
    /// True if the error is about the newest commit, of which nothing is applied then, and not about the way to it.
    pub fn is_about_commit(self) -> bool {
        match self {
            Self::PathNotFound
            | Self::CommitUnreadable
            | Self::Empty
            | Self::SignatureInvalid
            | Self::Refused => true,
            Self::RemoteUnreachable
            | Self::AuthenticationFailed
            | Self::ReferenceNotFound
            | Self::NoCommit
            | Self::MirrorBroken
            | Self::ApplyFailed
            | Self::NotConfigured => false,
        }
    }
}

/// An applied commit.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Name of the source.
    pub source: String,
    /// Sequence number, from 1.
    pub sequence: u64,
    /// Full hex id of the commit.
    pub commit: String,
    /// Author of the commit, `Name <mail>`.
    pub author: String,
    /// First line of the commit's message.
    pub subject: String,
    /// Time of the commit.
    pub committed_at: Timestamp,
    /// Time at which its last object was written.
    pub applied_at: Timestamp,
    /// Milliseconds from the start of the fetch to the last write.
    pub duration_ms: u64,
    /// Numbers of changed objects.
    pub counts: ChangeCounts,
    /// Removed objects; only the first 100, and none if the commit was applied in more than one run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<ObjectRef>,
    /// Verdict on the revision.
    pub verdict: Verdict,
    /// Time at which the verdict became final; `None` while its objects are still changing.
    pub decided_at: Option<Timestamp>,
    /// Plan that was carried out, compared with the reviewed one.
    pub plan: Option<PlanRecord>,
    /// Times of its steps, from its discovery to its verdict.
    pub timeline: Option<Timeline>,
}

/// Maximum number of pods that a timeline names.
pub const TIMELINE_PODS_MAX: usize = 50;

/// Ends of the steps of a commit, from its discovery to its verdict, in milliseconds after `seen_at` by the clock of
/// the leader. `None` for a step that was not reached, or that happened under another leader.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// Time at which the webhook or `minik8s sync` that led to the commit arrived, else the start of the poll that
    /// found it.
    pub seen_at: Timestamp,
    /// Sender of that request; `None` for a poll.
    pub seen_by: Option<Provider>,
    /// Fetch of its files.
    pub read: Option<u64>,
    /// Parsing and checking of these files.
    pub checked: Option<u64>,
    /// Comparison with the live objects.
    pub planned: Option<u64>,
    /// Write of the last object.
    pub applied: Option<u64>,
    /// Binding of its last pod to a node.
    pub bound: Option<u64>,
    /// Report that its last pod was ready.
    pub ready: Option<u64>,
    /// Programming of its last pod that is an endpoint of a service, on all live nodes.
    pub programmed: Option<u64>,
    /// Final verdict.
    pub decided: Option<u64>,
    /// Number of its pods, including those that `slowest` leaves out.
    pub pods: u64,
    /// The pods that were ready last, slowest first, at most [`TIMELINE_PODS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slowest: Vec<PodTimeline>,
}

/// Times of the steps until a commit's pod was first ready, in milliseconds.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTimeline {
    /// Object that the pod belongs to, `Kind/namespace/name`.
    pub object: String,
    /// Name of the pod.
    pub pod: String,
    /// Node that it was bound to.
    pub node: Option<String>,
    /// Binding, after the commit's `seen_at`, by the leader's clock.
    pub bound: Option<u64>,
    /// Time from the arrival of the binding at the node until all images were there, by the node's clock, as are the
    /// next three.
    pub image: Option<u64>,
    /// Time from the previous step until its last container was created.
    pub created: Option<u64>,
    /// Time from the previous step until its last container was started.
    pub started: Option<u64>,
    /// Time from the previous step until it was ready.
    pub ready: Option<u64>,
    /// Report that it was ready, after the commit's `seen_at`, by the leader's clock.
    pub reported: Option<u64>,
    /// Programming on all live nodes, after the commit's `seen_at`, by the leader's clock; only for endpoints of a
    /// service.
    pub programmed: Option<u64>,
}

/// Plan of a revision, next to the reviewed one.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanRecord {
    /// SHA-256 of the changes made.
    pub hash: String,
    /// Hash of the reviewed plan, in full or its first 16 digits; `None` if there is none.
    pub reviewed: Option<String>,
    /// True if both hashes are of one plan.
    pub matches: Option<bool>,
    /// Reason for the difference, or why it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Numbers of objects that a commit changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeCounts {
    /// Created objects.
    pub create: u64,
    /// Objects changed without a restart.
    pub update: u64,
    /// Objects among these of which only the place in the repository changed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub moved: u64,
    /// Objects changed so that pods are replaced.
    pub replace: u64,
    /// Removed objects.
    pub delete: u64,
    /// Objects that did not change.
    pub unchanged: u64,
    /// Files that could not be applied.
    pub quarantined: u64,
    /// Removals on hold.
    pub held: u64,
    /// Objects that wait for others.
    #[serde(default)]
    pub waiting: u64,
}

/// Verdict on a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Verdict {
    /// Applied in full.
    Applied,
    /// Applied in part.
    Degraded {
        /// Part that was not applied, and why.
        why: String,
    },
    /// Every changed object became healthy.
    Good,
    /// A changed object made no progress within its deadline.
    Bad {
        /// The object, and why.
        why: String,
    },
    /// Newer commits changed some of the objects before the verdict; the rest became healthy.
    Superseded,
}
