//! Newest commit of a remote, loaded and kept up to date.
//!
//! Reads the remote through its mirror; decides only when to fetch, to rebuild the mirror and to repack. Its
//! contents are a cache.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use git2::Oid;
use jiff::Timestamp;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::PlanRecord;
use schema::snapshot::Table;
use schema::store::election::Fence;

use super::load::truncated::Homes;
use super::load::{Manifests, truncated};
use super::plan::SyncPlan;
use super::prune::Lineage;
use super::read::{LoadedCommit, read_commit, read_lineage};
use super::review::{plan_hash, same_hash, short_hash};
use crate::blobs::BlobStore;
use crate::git;
use crate::git::{
    Changes, CommitMeta, FirstSeen, GitError, Mirror, Remote, SourceConfig, changes_since, commit_meta,
};

/// Least time between rebuilds for the same commit. A commit that a fresh mirror can't read either is broken at the
/// remote: a rebuild at every poll would fetch everything again and again.
const REBUILD_AGAIN: Duration = Duration::from_secs(600);

/// Loader of a source's newest commit.
pub(super) struct Head {
    remote: Remote,
    /// Content that manifests name, for agents.
    blobs: BlobStore,
    /// The commit loaded last.
    loaded: Option<LoadedCommit>,
    /// Set if something was fetched since the mirror was last tidied.
    fetched: bool,
    /// Commit and time of the last rebuild.
    rebuilt: Option<(Oid, Instant)>,
    /// Times of the commit loaded last.
    read_times: Option<ReadTimes>,
    /// The newest commit, if it may not or cannot be read.
    refused: Option<Oid>,
}

/// Times at which a commit was fetched and read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadTimes {
    /// Start of the query that found it.
    pub(super) began: Timestamp,
    pub(super) fetched: Timestamp,
    /// End of parsing and checking its files.
    pub(super) checked: Timestamp,
}

impl Head {
    pub(super) fn new(config: Arc<SourceConfig>, state_dir: &Path) -> Self {
        let blobs = BlobStore::new(state_dir);
        Self {
            remote: Remote::new(config, state_dir),
            blobs,
            loaded: None,
            fetched: false,
            rebuilt: None,
            read_times: None,
            refused: None,
        }
    }

    pub(super) fn loaded(&self) -> Option<&LoadedCommit> {
        self.loaded.as_ref()
    }

    pub(super) fn refused(&self) -> Option<Oid> {
        self.refused
    }

    pub(super) fn read_times(&self) -> Option<ReadTimes> {
        self.read_times
    }

    /// Queries the remote, and reads its commit if it is a new one. `applied` is the commit in the status; `live`
    /// returns the commits of the live objects, and `accepted` those applied before.
    pub(super) async fn refresh(
        &mut self,
        applied: Option<String>,
        live: impl FnOnce() -> BTreeSet<String>,
        accepted: impl FnOnce() -> FirstSeen,
    ) -> Result<Oid, GitError> {
        let began = Timestamp::now();
        self.refused = None;
        let head = self.remote.ls_remote().await?;
        // Without its mirror, content that agents ask for can't be rebuilt.
        let is_whole = self.remote.mirror().exists();
        if is_whole && self.loaded.as_ref().is_some_and(|loaded| loaded.head == head) {
            if std::mem::take(&mut self.fetched) {
                let mirror = self.remote.mirror().clone();
                let kept = applied.into_iter().chain(live());
                let kept: Vec<Oid> = kept.filter_map(|commit| Oid::from_str(&commit).ok()).collect();
                self.blocking(move || mirror.tidy(head, &kept)).await?;
            }
            return Ok(head);
        }
        self.fetched = true;
        let newest = self.remote.fetch().await;
        // The fetched commit counts: the branch may have moved since the query.
        let head = newest.map_err(|error| self.refuse(head, error))?;
        let fetched = Timestamp::now();
        let accepted = accepted();
        let loaded = match self.read(head, applied.clone(), &accepted).await {
            Err(error @ GitError::MirrorBroken { .. }) if self.may_rebuild(head) => {
                tracing::warn!(source = self.remote.mirror().config().name, %error, "mirror broken; it is fetched again");
                self.rebuilt = Some((head, Instant::now()));
                self.loaded = None;
                let newest = self.remote.rebuild().await;
                let head = newest.map_err(|error| self.refuse(head, error))?;
                let read = self.read(head, applied, &accepted).await;
                read.map_err(|error| self.refuse(head, error))?
            }
            read => read.map_err(|error| self.refuse(head, error))?,
        };
        let head = loaded.head;
        self.loaded = Some(loaded);
        self.read_times = Some(ReadTimes { began, fetched, checked: Timestamp::now() });
        Ok(head)
    }

    /// Notes the commit of an error that is about it.
    fn refuse(&mut self, head: Oid, error: GitError) -> GitError {
        self.refused = error.kind().is_about_commit().then_some(head);
        error
    }

    /// Determines the ancestry of `base` and `commits` relative to `loaded`.
    pub(super) async fn lineage(
        &self,
        loaded: &LoadedCommit,
        base: Option<String>,
        commits: BTreeSet<String>,
    ) -> Result<Lineage, GitError> {
        if commits.is_empty() {
            return Ok(Lineage::default());
        }
        let (mirror, head) = (self.remote.mirror().clone(), loaded.head);
        self.blocking(move || read_lineage(&mirror, head, base, commits)).await
    }

    /// Returns the files of `loaded`, with truncated ones marked. `whole` is as for [`truncated::marked`].
    pub(super) async fn manifests(
        &self,
        loaded: &LoadedCommit,
        whole: Option<String>,
        homes: Homes,
    ) -> Result<Manifests, GitError> {
        let (head, manifests) = (loaded.head, loaded.manifests.clone());
        if homes.is_empty() {
            return Ok(manifests);
        }
        let mirror = self.remote.mirror().clone();
        let read = move || Ok(truncated::marked(&mirror.open()?, head, &manifests, whole.as_deref(), &homes));
        self.blocking(read).await
    }

    /// Returns the record of the plan that the last commit was started with, next to its review. `applied` is the
    /// previous commit.
    pub(super) async fn plan_record(
        &self,
        begun: StartedPlan,
        applied: Option<String>,
    ) -> Result<PlanRecord, GitError> {
        let mirror = self.remote.mirror().clone();
        self.blocking(move || record(&mirror, begun, applied.as_deref())).await
    }

    /// Returns the commits since `applied` up to the commit loaded last, each with its changes.
    pub(super) async fn changes_since(
        &self,
        applied: String,
    ) -> Result<Vec<(CommitMeta, Changes)>, GitError> {
        let Some(head) = self.loaded.as_ref().map(|loaded| loaded.head) else { return Ok(Vec::new()) };
        let mirror = self.remote.mirror().clone();
        let read = move || {
            let repository = mirror.open()?;
            let found = changes_since(&repository, head, &applied).and_then(|all| {
                let with_meta = all.into_iter().map(|one| Ok((commit_meta(&repository, one.commit)?, one)));
                with_meta.collect::<Result<Vec<_>, _>>()
            });
            found.map_err(|error| mirror.broken(&error))
        };
        self.blocking(read).await
    }

    fn may_rebuild(&self, head: Oid) -> bool {
        self.rebuilt.is_none_or(|(before, at)| before != head || at.elapsed() > REBUILD_AGAIN)
    }

    async fn read(
        &self,
        head: Oid,
        applied: Option<String>,
        accepted: &FirstSeen,
    ) -> Result<LoadedCommit, GitError> {
        let (mirror, before) = (self.remote.mirror().clone(), self.loaded.clone());
        let (blobs, accepted) = (self.blobs.clone(), accepted.clone());
        let read = move || {
            // Before anything else of the commit is read.
            mirror.check_commit(head, &accepted)?;
            read_commit(&mirror, head, before.as_ref(), applied.as_deref(), &blobs)
        };
        self.blocking(read).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, GitError> + Send + 'static,
    ) -> Result<T, GitError> {
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| {
            let why = format!("reading it panicked: {error}");
            Err(GitError::RemoteUnreachable { url: self.remote.mirror().config().shown_url(), why })
        })
    }
}

// Comparison of the applied with the reviewed plan: the hash in a trailer against that of the executed plan.
// Blocking where it reads Git.

/// The first plan of a source's newest commit.
#[derive(Debug, Default)]
pub(super) struct FirstPlan {
    first: Option<StartedPlan>,
}

/// The plan that a commit was started with.
#[derive(Debug, Clone)]
pub(super) struct StartedPlan {
    commit: Oid,
    /// Time at which its first write began.
    pub(super) at: Timestamp,
    /// Fence by which this process led at that time.
    fence: Fence,
    hash: String,
    /// Set if a part of the commit may have been applied before, by a process that ended or another leader.
    may_be_partial: bool,
}

impl FirstPlan {
    /// Keeps the first plan of a commit: after a conflict, or while objects wait for others, a later plan is only
    /// the rest. `at` is the time at which its first write began.
    pub(super) fn begin(
        &mut self,
        (commit, at): (Oid, Timestamp),
        fence: Fence,
        plan: &SyncPlan,
        live: &Table<ObjectRef, Object>,
    ) {
        let led_since = self.first.as_ref().filter(|known| known.fence == fence);
        if led_since.is_none_or(|known| known.commit != commit) {
            let (hash, may_be_partial) = (plan_hash(plan, live), led_since.is_none());
            self.first = Some(StartedPlan { commit, at, fence, hash, may_be_partial });
        }
    }

    /// Returns the first plan of `commit`.
    pub(super) fn for_commit(&self, commit: Oid) -> Option<StartedPlan> {
        self.first.clone().filter(|known| known.commit == commit)
    }
}

/// Builds the record of an executed plan. `applied` is the commit before it.
pub(super) fn record(
    mirror: &Mirror,
    begun: StartedPlan,
    applied: Option<&str>,
) -> Result<PlanRecord, GitError> {
    let StartedPlan { commit, hash, may_be_partial: may_be_rest, .. } = begun;
    let Some(applied) = applied else {
        let why = "the first commit applied here".to_owned();
        return Ok(PlanRecord { hash, reviewed: None, matches: None, why });
    };
    let repository = mirror.open()?;
    let broken = |error: git2::Error| mirror.broken(&error);
    let reviewed = git::plan_trailer(&repository, commit, applied).map_err(broken)?;
    let parent = repository.find_commit(commit).map_err(broken)?.parent_ids().next();
    let is_next = parent.is_some_and(|parent| parent.to_string() == applied);
    let (matches, why) = match &reviewed {
        None => (None, "no commit since the previous one has the trailer `Minik8s-Plan`".to_owned()),
        Some(reviewed) if same_hash(reviewed, &hash) => (Some(true), String::new()),
        Some(_) if may_be_rest => {
            (None, "part of it may have been applied before this reconciler became the leader".to_owned())
        }
        Some(_) if !is_next => {
            (None, "several commits were applied at once, or history was rewritten".to_owned())
        }
        Some(reviewed) => {
            (Some(false), format!("the plan {} was made for another base or head", short_hash(reviewed)))
        }
    };
    Ok(PlanRecord { hash, reviewed, matches, why })
}
