//! Whether what is applied is what was reviewed.
//!
//! Reads the history between the applied commit and the head, decides which hash the reviewer saw:
//! the one in a trailer, or what Git alone says that a merge changes; of several at once, what they
//! change together. A merge commit that holds more than its parents give was not reviewed.
//! Blocking where it reads Git.

use std::sync::Arc;

use git2::{Commit, MergeOptions, Oid, Repository};
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::PlanRecord;
use schema::snapshot::Table;

use super::check::homes_in_question;
use super::load::truncated;
use super::offline::objects_of;
use super::plan::{Situation, SyncPlan, plan};
use super::prune::Lineage;
use super::read::{Loaded, read_unchecked};
use super::review::{Digest, same_hash, short_hash};
use super::status::short;
use crate::git::{self, GitError, Mirror, Relation};

/// How many commits that are applied at once are looked at.
const LINE_MAX: usize = 50;

/// The first plan of a source's newest commit.
#[derive(Debug, Default)]
pub(super) struct Planned {
    first: Option<(Oid, Begun)>,
}

/// A plan, and what was live when it was made.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    plan: Digest,
    live: Table<ObjectRef, Object>,
}

impl Planned {
    /// Keeps the first plan of a commit: after a conflict, or while objects wait for others, a later plan
    /// is only what is left.
    pub(super) fn begin(&mut self, commit: Oid, plan: &SyncPlan, live: &Table<ObjectRef, Object>) {
        if self.first.as_ref().is_none_or(|(known, _)| *known != commit) {
            self.first = Some((commit, Begun { plan: Digest::of(plan, live), live: live.clone() }));
        }
    }

    /// The first plan of `commit`.
    pub(super) fn of(&self, commit: Oid) -> Option<Begun> {
        self.first.as_ref().filter(|(known, _)| *known == commit).map(|(_, begun)| begun.clone())
    }
}

/// The record of a plan that was carried out, beside the review that is found for it. `applied` is
/// the commit before it. Only what was seen in full is called another plan than the reviewed one.
pub(super) fn record(
    mirror: &Mirror,
    source: &str,
    loaded: &Loaded,
    begun: &Begun,
    applied: Option<&str>,
) -> Result<PlanRecord, GitError> {
    let planned = &begun.plan;
    let hash = planned.hash();
    let unknown = |why: String| PlanRecord { hash: hash.clone(), reviewed: None, matches: None, why };
    let Some(applied) = applied else {
        return Ok(unknown("the first commit that is applied here".to_owned()));
    };
    let repository = mirror.open()?;
    let broken = |error: git2::Error| mirror.broken(&error);
    let trailer = git::plan_trailer(&repository, loaded.head, applied).map_err(broken)?;
    if trailer.as_ref().is_some_and(|trailer| same_hash(trailer, &hash)) {
        return Ok(PlanRecord { hash, reviewed: trailer, matches: Some(true), why: String::new() });
    }
    let line = match first_parents(&repository, loaded.head, applied).map_err(broken)? {
        Ok(line) => line,
        Err(why) => return Ok(unknown(why)),
    };
    let CommitFindings { other_trailer, own, open } = look(mirror, source, &repository, loaded, &line)?;
    if let Some(why) = own {
        return Ok(PlanRecord { hash, reviewed: None, matches: Some(false), why });
    }
    if let Some(why) = open {
        return Ok(unknown(why));
    }
    let Ok(base) = Oid::from_str(applied) else { return Ok(unknown("no applied commit".to_owned())) };
    let from_git = between(mirror, source, base, loaded)?;
    let git_hash = from_git.hash();
    let is_all = git_hash == hash;
    if other_trailer.is_none() && is_all {
        return Ok(PlanRecord { hash, reviewed: Some(git_hash), matches: Some(true), why: String::new() });
    }
    let reviewed = other_trailer.clone().or(trailer.filter(|_| line.len() == 1)).or(Some(git_hash));
    if !is_all && (began_before(source, loaded, begun) || planned.is_rest_of(&from_git, &begun.live)) {
        let why = "a part of it was already applied when this run of the reconciler first saw it".to_owned();
        return Ok(PlanRecord { hash, reviewed, matches: None, why });
    }
    let since = (line.len() > 1).then_some(applied);
    let why = why(planned, &from_git, other_trailer.as_deref(), since);
    Ok(PlanRecord { hash, reviewed, matches: Some(false), why })
}

/// What the commits themselves say.
#[derive(Default)]
struct CommitFindings {
    /// Of another plan than its commit's.
    other_trailer: Option<String>,
    /// What a merge commit holds that no review showed.
    own: Option<String>,
    /// Why it is not known whether all was reviewed.
    open: Option<String>,
}

fn look(
    mirror: &Mirror,
    source: &str,
    repository: &Repository,
    loaded: &Loaded,
    line: &[FirstParent],
) -> Result<CommitFindings, GitError> {
    let files = loaded.manifests.values().flat_map(|file| &file.documents);
    let folder = match mirror.config().path.as_str() {
        // What its objects are made of may be anywhere.
        _ if files.into_iter().any(|draft| !draft.files.is_empty()) => "",
        "." => "",
        folder => folder,
    };
    let mut seen = CommitFindings::default();
    for step in line {
        match (&step.trailer, step.is_merge) {
            (None, true) => match own_changes(repository, step.commit, folder) {
                Ok(Some(why)) => {
                    seen.own.get_or_insert(why);
                }
                Ok(None) => {}
                Err(error) => {
                    let why = format!("the merge commit could not be compared: {}", error.message());
                    seen.open.get_or_insert(why);
                }
            },
            (None, false) => {
                let id = step.commit.to_string();
                let which =
                    if line.len() == 1 { String::new() } else { format!(" of commit {}", short(&id)) };
                let why = format!("no review{which} is known: neither a merge nor a trailer");
                // What an older merge slipped in is reported all the same.
                seen.open.get_or_insert(why);
            }
            // It can't be as reviewed any more: only what was slipped in counts.
            (Some(_), _) if seen.open.is_some() => {}
            (Some(trailer), _) => {
                let after = read_unchecked(mirror, step.commit, Some(loaded), None)?;
                if !same_hash(trailer, &between(mirror, source, step.parent, &after)?.hash()) {
                    seen.other_trailer.get_or_insert_with(|| trailer.clone());
                }
            }
        }
    }
    Ok(seen)
}

/// One commit of those that were applied at once.
struct FirstParent {
    commit: Oid,
    parent: Oid,
    is_merge: bool,
    /// In it, or in what it brings along.
    trailer: Option<String>,
}

/// The commits from `applied` to `head` by first parents, each of them reviewed by itself, the
/// newest first; or why there are none.
fn first_parents(
    repository: &Repository,
    head: Oid,
    applied: &str,
) -> Result<Result<Vec<FirstParent>, String>, git2::Error> {
    let mut line = Vec::new();
    let mut at = head;
    while at.to_string() != applied {
        if line.len() == LINE_MAX {
            return Ok(Err(format!(
                "commit {} is more than {LINE_MAX} first parents back, or not on that line",
                short(applied)
            )));
        }
        let parents: Vec<Oid> = repository.find_commit(at)?.parent_ids().collect();
        let Some(&parent) = parents.first() else {
            return Ok(Err(format!("commit {} is not on the first-parent line", short(applied))));
        };
        let trailer = git::plan_trailer(repository, at, &parent.to_string())?;
        line.push(FirstParent { commit: at, parent, is_merge: parents.len() == 2, trailer });
        at = parent;
    }
    Ok(Ok(line))
}

/// Why a merge commit is not just what its two parents give, if so, as far as it is read for `folder`.
/// Nothing is written.
fn own_changes(repository: &Repository, merge: Oid, folder: &str) -> Result<Option<String>, git2::Error> {
    // What a merge makes stays in memory, and only here.
    let repository = Repository::open_bare(repository.path())?;
    let odb = repository.odb()?;
    let _memory = odb.add_new_mempack_backend(1000)?;
    let merge = repository.find_commit(merge)?;
    let parents: Vec<Commit<'_>> = merge.parents().collect();
    let [ours, theirs] = parents.as_slice() else { return Ok(None) };
    let id = merge.id().to_string();
    let id = short(&id);
    let given = repository.merge_commits(ours, theirs, Some(&MergeOptions::new()))?;
    if given.has_conflicts() {
        for conflict in given.conflicts()? {
            let conflict = conflict?;
            let sides = [conflict.ancestor, conflict.our, conflict.their];
            if sides.iter().flatten().any(|side| is_read(&side.path, folder)) {
                return Ok(Some(format!(
                    "merge commit {id} settles a conflict by hand: no review showed how"
                )));
            }
        }
    }
    let more = repository.diff_tree_to_index(Some(&merge.tree()?), Some(&given), None)?;
    let files = more.deltas().filter_map(|delta| {
        let sides = [delta.old_file().path_bytes(), delta.new_file().path_bytes()];
        let path = sides.into_iter().flatten().find(|path| is_read(path, folder))?;
        Some(String::from_utf8_lossy(path).into_owned())
    });
    let files: Vec<String> = files.collect();
    let Some(file) = files.first() else { return Ok(None) };
    let others = if files.len() > 1 { format!(" and {} more", files.len() - 1) } else { String::new() };
    Ok(Some(format!("merge commit {id} contains changes found in none of its parents: {file:?}{others}")))
}

/// A source of `folder` reads it: it lies below, or is an ignore file above.
fn is_read(path: &[u8], folder: &str) -> bool {
    let below = |path: &[u8], folder: &[u8]| {
        folder.is_empty()
            || path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    let name = path.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    let above = &path[..name.saturating_sub(1)];
    below(path, folder.as_bytes())
        || &path[name..] == git::IGNORE_FILE.as_bytes() && below(folder.as_bytes(), above)
}

/// Something of the commit was written before `begun`: by a run that ended, or by another leader.
fn began_before(source: &str, loaded: &Loaded, begun: &Begun) -> bool {
    begun.live.values().any(|live| {
        let provenance = &live.value.provenance;
        provenance.source == source && provenance.commit == loaded.commit.id
    })
}

/// What differs, in one line.
fn why(planned: &Digest, from_git: &Digest, trailer: Option<&str>, since: Option<&str>) -> String {
    let mut parts = Vec::new();
    if let Some(applied) = since {
        parts.push(format!("several commits were applied at once, since {}", short(applied)));
    }
    if let Some(trailer) = trailer {
        parts.push(format!("the plan {} was made for another base or head", short_hash(trailer)));
    }
    parts.extend(planned.differences(from_git));
    parts.join("; ")
}

/// What Git alone says that commit `after` changes in commit `before`. Neither is applied here, so
/// nothing is asked of the signature of `before`.
fn between(mirror: &Mirror, source: &str, before: Oid, after: &Loaded) -> Result<Digest, GitError> {
    let live = match read_unchecked(mirror, before, Some(after), None) {
        Ok(before) => objects_of(source, &before.commit, &before.manifests).0,
        // The source's folder begins with this commit.
        Err(GitError::PathNotFound { .. }) => Table::new(),
        Err(other) => return Err(other),
    };
    let before = before.to_string();
    let homes = truncated::with_siblings(homes_in_question(source, &after.manifests, &live), source, &live);
    let situation = Situation {
        source: source.to_owned(),
        commit: Arc::clone(&after.commit),
        manifests: truncated::marked(&mirror.open()?, after.head, &after.manifests, Some(&before), &homes),
        lineage: Lineage {
            base: Some(before.clone()),
            relations: [(before, Relation::Related)].into(),
            is_unused: false,
        },
        live,
        malformed: std::collections::BTreeSet::new(),
        held: None,
        revision: 0,
        lost: std::collections::BTreeMap::new(),
        service_cidr: None,
        incomplete: None,
    };
    let decided = plan(&situation);
    Ok(Digest::of(&decided, &situation.live))
}
