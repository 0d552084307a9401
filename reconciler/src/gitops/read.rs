//! Reads a commit for the loop: metadata, files, documents, ancestry. Blocking.
//!
//! Reads the mirror, decides nothing but whether the commit can be read; a libgit2 error about unreadable objects
//! becomes a broken mirror, which the loop rebuilds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use git2::{Oid, Repository};
use schema::object::short_commit;
use schema::violation::Violation;

use super::load::definitions::with_definitions;
use super::load::files::{self, HashedContent, InCommit, SourceFolder};
use super::load::{self, Manifests};
use super::prune::Lineage;
use crate::blobs::BlobStore;
use crate::git::content::CommitTree;
use crate::git::{self, CommitMeta, GitError, Listing, Mirror, ReadError, Relation, Remote, SourceConfig};

/// Limit on commits looked up; unknown ones only ever hold a prune.
const LINEAGE_COMMITS_MAX: usize = 256;
/// Limit on the history of an unused repository, which is a new one: a longer history counts as used.
const UNUSED_COMMITS_MAX: usize = 256;

/// A commit in memory. Clones are cheap and share unchanged parts.
#[derive(Debug, Clone)]
pub(super) struct LoadedCommit {
    pub(super) head: Oid,
    pub(super) commit: Arc<CommitMeta>,
    listing: Listing,
    /// Files as parsed.
    parsed: Manifests,
    /// Files with the content of the files and secrets that they name.
    pub(super) manifests: Manifests,
    /// Set if neither this commit nor one before it holds a manifest.
    pub(super) is_unused: bool,
    known: Arc<HashedContent>,
    /// Reason why content that the manifests name is not on this disk, if some is not.
    pub(super) unkept: Option<Arc<str>>,
}

/// Reads `head`, whose signature was checked, reusing `before` where possible. `applied` is the commit in the status.
pub(super) fn read_commit(
    mirror: &Mirror,
    head: Oid,
    before: Option<&LoadedCommit>,
    applied: Option<&str>,
    store: &BlobStore,
) -> Result<LoadedCommit, GitError> {
    let began = Instant::now();
    let repository = mirror.open()?;
    let broken = |error: git2::Error| mirror.broken(&error);
    let commit = git::commit_meta(&repository, head).map_err(broken)?;
    let folder = mirror.config().path.as_str();
    let (old_listing, old_manifests) =
        before.map_or_else(Default::default, |before| (before.listing.clone(), before.parsed.clone()));
    let unread = |error: ReadError| mirror.unread(head, error);
    let listing = match git::list(&repository, head, folder, &old_listing).map_err(unread)? {
        Some(listing) => listing,
        // Git keeps no empty folder: it disappears with its last file. Accepted only from a commit that says so,
        // and only for a folder that existed.
        None if commit.allows_prune && had_folder(&repository, applied, folder) => Listing::default(),
        None => {
            let (url, commit) = (mirror.config().shown_url(), short_commit(&commit.id).to_owned());
            return Err(GitError::PathNotFound { url, path: folder.to_owned(), commit });
        }
    };
    let (manifests, count) =
        load::update(&repository, &old_listing.files, &listing.files, &old_manifests).map_err(unread)?;
    let parsed = load::with_passed_over(manifests, &old_listing.notes, &listing.notes);
    let is_unused = !parsed.values().any(|file| file.is_manifest)
        && is_unused(&repository, head, folder).map_err(unread)?;
    let old_notes: BTreeSet<&Violation> = old_listing.notes.iter().collect();
    for note in listing.notes.iter().filter(|note| !old_notes.contains(note)) {
        // As a string, which is quoted and escaped: the repository chose the file's name.
        tracing::info!(source = mirror.config().name, note = note.to_string(), "file skipped");
    }
    let nothing = HashedContent::new();
    let known = before.map_or(&nothing, |before| &*before.known);
    let mut lookup = InCommit {
        tree: CommitTree { repository: &repository, commit: head },
        store: Some(store),
        before: known,
        now: HashedContent::new(),
        unkept: None,
    };
    let manifests = with_definitions(&load::with_kustomizations(&parsed), &mut lookup).and_then(|defined| {
        files::resolve(&defined, &mirror.config().name, SourceFolder::Is(folder), &mut lookup)
    });
    let manifests = manifests.map_err(|error| mirror.no_content(error))?;
    if before.is_none_or(|before| before.head != head) {
        let (source, id, took) = (&mirror.config().name, short_commit(&commit.id), began.elapsed());
        let (subject, files) = (&commit.subject, listing.files.len());
        tracing::info!(source, commit = id, subject, files, parsed = count, ?took, "commit read");
    }
    let (known, unkept) = (Arc::new(lookup.now), lookup.unkept.map(Arc::from));
    Ok(LoadedCommit { head, commit: Arc::new(commit), listing, parsed, manifests, is_unused, known, unkept })
}

fn had_folder(repository: &Repository, applied: Option<&str>, folder: &str) -> bool {
    let Some(applied) = applied.and_then(|commit| Oid::from_str(commit).ok()) else { return false };
    matches!(git::list(repository, applied, folder, &Listing::default()), Ok(Some(_)))
}

/// Determines the ancestry of `base` and `commits` relative to `head`.
pub(super) fn read_lineage(
    mirror: &Mirror,
    head: Oid,
    base: Option<String>,
    commits: BTreeSet<String>,
) -> Result<Lineage, GitError> {
    let repository = mirror.open()?;
    let mut relations = BTreeMap::new();
    for commit in base.iter().cloned().chain(commits).take(LINEAGE_COMMITS_MAX) {
        let relation = git::relation(&repository, &commit, head).unwrap_or(Relation::Unknown);
        relations.insert(commit, relation);
    }
    Ok(Lineage { base, relations, is_unused: false })
}

/// True if no commit up to `head` holds a manifest below `folder`; false for a history that is too long to read,
/// where this is unknown.
fn is_unused(repository: &Repository, head: Oid, folder: &str) -> Result<bool, ReadError> {
    let mut walk = repository.revwalk()?;
    walk.push(head)?;
    let (mut listing, mut manifests) = (Listing::default(), Manifests::new());
    for (number, commit) in walk.enumerate() {
        if number == UNUSED_COMMITS_MAX {
            return Ok(false);
        }
        let next = git::list(repository, commit?, folder, &listing)?.unwrap_or_default();
        (manifests, _) = load::update(repository, &listing.files, &next.files, &manifests)?;
        listing = next;
        if manifests.values().any(|file| file.is_manifest) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks a source that has no mirror yet, so that a wrong address, branch, folder or login ends the start of the
/// daemon with a one-line error. A source that was fetched before may be unreachable: the daemon starts anyway.
pub async fn preflight(config: &SourceConfig, state_dir: &Path) -> Result<(), GitError> {
    config.check()?;
    git::check_keys(config)?;
    let remote = Remote::new(Arc::new(config.clone()), state_dir);
    if remote.mirror().was_fetched() {
        return Ok(());
    }
    match remote.ls_remote().await {
        // The source is followed until somebody pushes.
        Err(GitError::NoCommit { .. }) => return Ok(()),
        asked => drop(asked?),
    }
    let head = remote.fetch().await?;
    let mirror = remote.mirror().clone();
    let read = tokio::task::spawn_blocking(move || {
        // An unsigned commit is refused before its files are listed, here as in every run.
        mirror.check_signature(head)?;
        let repository = mirror.open()?;
        let listed = git::list(&repository, head, &mirror.config().path, &Listing::default());
        match listed.map_err(|error| mirror.unread(head, error))? {
            Some(_) => Ok(()),
            None => Err(GitError::PathNotFound {
                url: mirror.config().shown_url(),
                path: mirror.config().path.clone(),
                commit: short_commit(&head.to_string()).to_owned(),
            }),
        }
    });
    read.await.unwrap_or_else(|error| {
        Err(GitError::RemoteUnreachable {
            url: config.shown_url(),
            why: format!("reading it panicked: {error}"),
        })
    })
}
