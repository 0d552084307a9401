//! Plan between two revisions of a local repository, for `minik8s plan`. Blocking.
//!
//! Reads the object database and nothing else: no checkout, no hook, no filter, so nothing that a pull request
//! brings along is run; this machine's Python parses the Python code of functions. Decides what counts as "live":
//! the result of applying the whole base, or what a server reports as applied. The plan is the reconciler's own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use git2::{ErrorCode, MergeOptions, Oid, Repository};
use schema::content_refs::{IDENTITY_RECIPIENT_FILE, RECIPIENTS_FILE, SECRETS_FOLDER};
use schema::kinds::{Kind, Resource};
use schema::manifest::Layout;
use schema::meta::ObjectRef;
use schema::object::{Object, short_commit};
use schema::snapshot::{Table, VersionedValue};
use schema::violation::{Severity, Violation, shortened};

use super::check::{CommitLimits, homes_of_absent};
use super::load::definitions::with_definitions;
use super::load::files::{self, HashedContent, InCommit, SourceFolder};
use super::load::spread::spread;
use super::load::{self, Layouts, Manifests, python, truncated};
use super::plan::{Act, PlanInput, PruneBaseline, SyncPlan, plan};
use super::prune::Lineage;
use super::review::effects::EffectsOf;
use super::review::{NodeRoom, Review, ReviewContext, WorkflowTests, review};
use crate::git::content::{self, CommitTree, ContentError};
use crate::git::{self, BLOB_BYTES_MAX, CommitMeta, Listing, LocalFault, ReadError, Relation};
use crate::last_known::pod_security_records;
use crate::simulate::workflow::{FunctionLimits, cases};
use schema::violation::plural;

/// Limit on the bytes of files in which the lines of fields are looked up; further fields have no line.
const LOCATE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Limit on the named files of a folder that a volume mounts.
const FILES_NAMED_MAX: usize = 5;
/// Limit on the named files of a conflict.
const CONFLICTS_SHOWN_MAX: usize = 10;
/// Limit on the characters shown of a recipient; those of age have 62.
const RECIPIENT_CHARS_MAX: usize = 80;

/// Inputs of a comparison.
#[derive(Debug)]
pub struct Request<'a> {
    /// The repository, or a folder in it.
    pub repo: &'a Path,
    /// Revision to compare from; with `live`, the applied commit by default.
    pub base: Option<&'a str>,
    /// Revision to compare to.
    pub head: &'a str,
    /// Folder of the repository that the source reads; empty for all of it.
    pub folder: &'a str,
    /// Name of the source.
    pub source: &'a str,
    /// Set if a single file that can't be applied blocks all of the source.
    pub strict: bool,
    /// Set if the head replaces the base, as after a force push, instead of being merged into it.
    pub in_place: bool,
    /// Applied state; `None` for the result of applying `base`.
    pub live: Option<LiveState>,
    /// Returns what computes the effects of changes of a kind.
    pub(crate) effects: fn(Kind) -> EffectsOf,
}

/// Present state, as a server reports it.
#[derive(Debug, Clone, Default)]
pub struct LiveState {
    /// Objects of all sources.
    pub objects: Table<ObjectRef, Object>,
    /// Applied commit of the source.
    pub applied: Option<String>,
    /// Newest commit whose removals were all done.
    pub base: Option<String>,
    /// Newest commit that was applied completely.
    pub whole: Option<String>,
    /// Baseline of the prune that is still held.
    pub held: Option<PruneBaseline>,
    /// Limits on commits from outside of them.
    pub limits: CommitLimits,
    /// Nodes that are alive.
    pub nodes: Vec<NodeRoom>,
    /// Running pods of each workload, whatever number Git asks for.
    pub running: BTreeMap<ObjectRef, u32>,
}

/// Reason why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error("{0}; name one with --repo")]
    NoRepository(LocalFault),
    #[error(transparent)]
    Open(LocalFault),
    #[error("the repository has no revision {revision}: {help}")]
    Revision { revision: String, help: String },
    #[error(
        "this is a shallow clone in which {base} and {head} have no common commit; fetch the whole history: 'git fetch --unshallow', \
         or 'fetch-depth: 0' of actions/checkout, or 'GIT_DEPTH: 0' in GitLab"
    )]
    Shallow { base: String, head: String },
    #[error(
        "{head} does not merge into {base}: both change {files}; update it first, or plan it with --in-place, as for a \
         force push"
    )]
    Conflict { base: String, head: String, files: String },
    #[error("commit {commit} has no folder {folder}; name the source's folder with --path")]
    Folder { commit: String, folder: String },
    #[error("commit {commit} can't be read: {why}")]
    Commit { commit: String, why: ReadError },
    #[error(
        "this is a partial clone, which lacks an object: {0}; fetch all with 'git fetch --refetch --no-filter' \
         ('filter' and 'sparse-checkout' of actions/checkout make such clones)"
    )]
    Partial(#[source] git2::Error),
    #[error("cannot read the repository: {0}; 'git fsck' shows what is wrong with it")]
    Read(#[source] git2::Error),
}

/// Reviews `head` against `base`, or against the live state.
pub fn compare(request: &Request<'_>) -> Result<Review, OfflineError> {
    compare_with(request, Tests::Run)
}

/// Like [`compare`], for a commit that was applied: starts no Python and runs no test cases of workflows.
pub fn compare_applied(request: &Request<'_>) -> Result<Review, OfflineError> {
    compare_with(request, Tests::Skip)
}

/// Treatment of the checks that run something: the Python of functions is parsed, test cases of workflows are run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tests {
    Run,
    Skip,
}

fn compare_with(request: &Request<'_>, tests: Tests) -> Result<Review, OfflineError> {
    let repository = open(request.repo)?;
    compare_in(&repository, request, tests).map_err(|error| match error {
        OfflineError::Read(error) if error.code() == ErrorCode::NotFound && is_partial(&repository) => {
            OfflineError::Partial(error)
        }
        other => other,
    })
}

/// True for a clone that fetches objects only when Git needs them, which libgit2 can't.
fn is_partial(repository: &Repository) -> bool {
    let Ok(config) = repository.config() else { return false };
    let Ok(mut promisors) = config.entries(Some(r"^remote\..*\.promisor$")) else { return false };
    promisors.next().is_some()
}

fn compare_in(repository: &Repository, request: &Request<'_>, tests: Tests) -> Result<Review, OfflineError> {
    // The results of a merge stay in memory.
    let odb = repository.odb().map_err(OfflineError::Read)?;
    let _memory = odb.add_new_mempack_backend(1000).map_err(OfflineError::Read)?;
    let applied = request.live.as_ref().and_then(|live| live.applied.as_deref());
    let mut notes = Vec::new();
    let typed_base = request.base.or(applied);
    let base = resolve_base(repository, typed_base, request, &mut notes)?;
    let head = resolve(repository, request.head)?;
    let effective = match base {
        Some(base) if !request.in_place => {
            merged(repository, (base, typed_base.unwrap_or_default()), (head, request.head), &mut notes)?
        }
        _ => head,
    };
    let (place, effects) = ((request.source, request.folder), request.effects);
    let before = match (&request.live, base) {
        (None, Some(base)) => Some(read(repository, base, place, None, None)?),
        _ => None,
    };
    let after = read(repository, effective, place, base, before.as_ref())?;
    let (live, nodes, base_name) = match (&request.live, &before) {
        (Some(live), _) => {
            (live.objects.clone(), Some(live.nodes.as_slice()), applied.unwrap_or("nothing").to_owned())
        }
        (None, before) => {
            let objects = |read: &ParsedCommit| objects_of(request.source, &read.commit, &read.manifests);
            let (live, broken) = before.as_ref().map(objects).unwrap_or_default();
            notes.extend(broken.iter().map(|(file, rule)| {
                format!("the base's file {file} can't be applied ({rule}): its objects count as new")
            }));
            (live, None, base.map(|base| base.to_string()).unwrap_or_default())
        }
    };
    if let (Some(_), Some(applied)) = (&request.live, applied) {
        notes.push(format!("compared with the applied commit {}", short_commit(applied)));
    }
    let limits = limits(request, &live);
    let homes = homes_of_absent(request.source, &after.manifests, &live);
    let lineage = lineage(repository, request, truncated::commits(&homes), &after, base);
    let homes = truncated::with_siblings(homes, request.source, &live);
    let whole = request.live.as_ref().map_or_else(|| lineage.base.clone(), |live| live.whole.clone());
    let situation = PlanInput {
        source: request.source.to_owned(),
        commit: Arc::new(CommitMeta { id: head.to_string(), ..(*after.commit).clone() }),
        manifests: truncated::marked(repository, effective, &after.manifests, whole.as_deref(), &homes),
        lineage,
        live,
        malformed: BTreeSet::new(),
        held: request.live.as_ref().and_then(|live| live.held),
        revision: 0,
        lost: BTreeMap::new(),
        limits,
        service_cidr: None,
        incomplete: None,
    };
    let decided = if request.strict { plan(&situation).all_or_nothing() } else { plan(&situation) };
    notes.extend(decided.refused.then(|| refused(decided.quarantined.len())));
    let running = request.live.as_ref().map(|live| live.running.clone()).unwrap_or_default();
    let frame = ReviewContext { base: &base_name, nodes, running: &running, notes: &notes, effects };
    let mut review = review(&situation, &decided, &frame);
    add_findings(&mut review, repository, effective, &after, tests);
    if let Some(base) = base {
        review.name_files(|folder| changed_files(repository, (base, effective), folder));
        review.warnings = changed_recipients(repository, (base, effective), request.folder);
    }
    locate(repository, after, &mut review);
    Ok(review)
}

/// Returns the commit to compare with. The applied commit may be newer than the clone; then only what is missing from
/// the clone is unknown.
fn resolve_base(
    repository: &Repository,
    typed: Option<&str>,
    request: &Request<'_>,
    notes: &mut Vec<String>,
) -> Result<Option<Oid>, OfflineError> {
    let base = typed.map(|base| resolve(repository, base)).transpose();
    if request.live.is_none() || request.base.is_some() {
        return base;
    }
    let base = base.unwrap_or_default();
    if let (None, Some(applied)) = (base, typed) {
        let applied = short_commit(applied);
        notes.push(format!(
            "the applied commit {applied} is not in this clone: fetch it to see changed recipients"
        ));
    }
    Ok(base)
}

/// Adds what is found in the files of a commit besides its manifests.
fn add_findings(
    review: &mut Review,
    repository: &Repository,
    commit: Oid,
    read: &ParsedCommit,
    tests: Tests,
) {
    review.violations.extend(read.listing.notes.iter().cloned());
    if tests == Tests::Run {
        review.violations.extend(python_errors(repository, commit, &read.manifests));
        review.workflow_tests = workflow_tests(repository, commit, &read.manifests, &mut review.violations);
    }
    review.violations.sort();
    // A name that can't be decoded is among the quarantined files as well.
    review.violations.dedup();
}

/// Returns the limits on the head: those that the server reports, or the restrictions on pods of the base.
fn limits(request: &Request<'_>, live: &Table<ObjectRef, Object>) -> CommitLimits {
    let of_base = || CommitLimits {
        pod_security: pod_security_records(live, std::iter::empty()),
        ..CommitLimits::default()
    };
    request.live.as_ref().map_or_else(of_base, |live| live.limits.clone())
}

/// Warns of changed recipients: the next `seal` encrypts secrets to that of the cluster, and the identity is encrypted
/// to those on the list, whoever wrote them.
fn changed_recipients(repository: &Repository, (before, after): (Oid, Oid), folder: &str) -> Vec<String> {
    let mut warnings = changed_cluster_recipient(repository, (before, after), folder);
    let blob = |commit: Oid, place: &str| git::blob_at(repository, &commit.to_string(), place);
    for place in secrets_files(folder, RECIPIENTS_FILE) {
        let former = blob(before, &place);
        if former.is_some() && former != blob(after, &place) {
            warnings.push(format!(
                "{place} changes: the cluster's identity is encrypted to everyone on it from now on; check who was \
                 added"
            ));
        }
    }
    warnings
}

fn changed_cluster_recipient(
    repository: &Repository,
    (before, after): (Oid, Oid),
    folder: &str,
) -> Vec<String> {
    let places = secrets_files(folder, IDENTITY_RECIPIENT_FILE);
    let blob = |commit: Oid, place: &str| git::blob_at(repository, &commit.to_string(), place);
    // The first identity of a repository replaces nothing.
    if places.iter().all(|place| blob(before, place).is_none()) {
        return Vec::new();
    }
    let shown = |blob: Option<Oid>| {
        let Some(blob) = blob else { return "nothing".to_owned() };
        let text = git::blob(repository, blob).ok().flatten().unwrap_or_default();
        shortened(String::from_utf8_lossy(&text).trim().to_owned(), RECIPIENT_CHARS_MAX)
    };
    let changed = places.iter().filter_map(|place| {
        let (before, after) = (blob(before, place), blob(after, place));
        (before != after).then(|| {
            format!(
                "{place} changes from {} to {}: secrets are encrypted to it from now on; make sure that its author \
                 ran 'minik8s secrets rotate'",
                shown(before),
                shown(after)
            )
        })
    });
    changed.collect()
}

/// Returns the places of a file of the secrets: below the source's folder, and at the top.
fn secrets_files(folder: &str, file: &str) -> BTreeSet<String> {
    let place = |folder: &str| format!("{folder}/{SECRETS_FOLDER}/{file}").trim_start_matches('/').to_owned();
    [folder, ""].into_iter().map(place).collect()
}

/// Returns the errors that keep the Python code of functions from being parsed.
fn python_errors(repository: &Repository, commit: Oid, manifests: &Manifests) -> Vec<Violation> {
    let tree = CommitTree { repository, commit };
    python::check(manifests, |path| content::text(&tree, path, BLOB_BYTES_MAX as u64))
}

fn refused(files: usize) -> String {
    let files = plural(files, "file");
    format!("the source is strict and {files} can't be applied, so none of it would be applied")
}

/// Runs the test cases next to each workflow. Warns of unused cases and mocks.
fn workflow_tests(
    repository: &Repository,
    commit: Oid,
    manifests: &Manifests,
    violations: &mut Vec<Violation>,
) -> Vec<WorkflowTests> {
    let tree = CommitTree { repository, commit };
    let text = |file: &str| content::text(&tree, file, BLOB_BYTES_MAX as u64);
    let limits = FunctionLimits::from_documents(manifests.values().flat_map(|file| &file.documents));
    violations.extend(cases::unused(manifests.iter().map(|(file, loaded)| (&**file, &**loaded)), text));
    let mut all = Vec::new();
    for (manifest, loaded) in manifests.iter().filter(|(_, loaded)| !loaded.has_errors()) {
        for document in &loaded.documents {
            let (Resource::Workflow(spec), reference) = (&document.object.resource, &document.reference)
            else {
                continue;
            };
            let file = cases::file_beside(manifest, &reference.name);
            let Some(text) = text(&file) else { continue };
            let cases = cases::check(&text, reference, spec, &limits);
            let reported = cases.iter().flat_map(|case| case.violations(&file, reference));
            violations.extend(reported.filter(|violation| !violation.is_error()));
            all.push(WorkflowTests { workflow: reference.to_string(), file, cases });
        }
    }
    all
}

fn open(path: &Path) -> Result<Repository, OfflineError> {
    Repository::discover(path).map_err(|error| match LocalFault::new(path, &error) {
        fault @ LocalFault::Other { .. } => OfflineError::NoRepository(fault),
        fault => OfflineError::Open(fault),
    })
}

fn resolve(repository: &Repository, revision: &str) -> Result<Oid, OfflineError> {
    let found = repository.revparse_single(revision).and_then(|object| object.peel_to_commit());
    found.map(|commit| commit.id()).map_err(|_| {
        let help = match repository.is_shallow() {
            true => "this is a shallow clone; fetch the whole history ('fetch-depth: 0' of actions/checkout, 'GIT_DEPTH: 0' in GitLab)",
            false => "fetch it first, or write it as origin/NAME",
        };
        OfflineError::Revision { revision: revision.to_owned(), help: help.to_owned() }
    })
}

/// Returns the commit after a merge: `head` itself if it contains all of `base`.
fn merged(
    repository: &Repository,
    (base, base_typed): (Oid, &str),
    (head, head_typed): (Oid, &str),
    notes: &mut Vec<String>,
) -> Result<Oid, OfflineError> {
    let read = OfflineError::Read;
    match repository.merge_base(base, head) {
        Ok(common) if common == base => return Ok(head),
        Ok(common) if common == head => {
            notes.push(format!(
                "{head_typed} is behind {base_typed}: a merge would change nothing; use --in-place to \
                 plan a force push"
            ));
            return Ok(base);
        }
        Ok(_) => {}
        Err(error) if error.code() == ErrorCode::NotFound && repository.is_shallow() => {
            return Err(OfflineError::Shallow { base: base_typed.to_owned(), head: head_typed.to_owned() });
        }
        Err(error) if error.code() == ErrorCode::NotFound => {
            notes.push(format!(
                "{base_typed} and {head_typed} have no common history: this plans {head_typed} in its place"
            ));
            return Ok(head);
        }
        Err(error) => return Err(read(error)),
    }
    let (ours, theirs) =
        (repository.find_commit(base).map_err(read)?, repository.find_commit(head).map_err(read)?);
    let mut index = repository.merge_commits(&ours, &theirs, Some(&MergeOptions::new())).map_err(read)?;
    if index.has_conflicts() {
        let (base, head) = (base_typed.to_owned(), head_typed.to_owned());
        return Err(OfflineError::Conflict { base, head, files: conflicts(&index) });
    }
    let tree = index.write_tree_to(repository).and_then(|tree| repository.find_tree(tree)).map_err(read)?;
    notes.push(format!("{base_typed} has moved on: this is the plan of {head_typed} merged into it"));
    let message = String::from_utf8_lossy(theirs.message_bytes());
    repository
        .commit(None, &theirs.author(), &theirs.committer(), &message, &tree, &[&ours, &theirs])
        .map_err(read)
}

fn conflicts(index: &git2::Index) -> String {
    let mut files = BTreeSet::new();
    for conflict in index.conflicts().into_iter().flatten().flatten() {
        let entry = conflict.our.or(conflict.their).or(conflict.ancestor);
        files.extend(entry.map(|entry| String::from_utf8_lossy(&entry.path).into_owned()));
    }
    let more = files.len().saturating_sub(CONFLICTS_SHOWN_MAX);
    let mut shown: Vec<String> = files.into_iter().take(CONFLICTS_SHOWN_MAX).collect();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

/// Parsed files of a commit.
struct ParsedCommit {
    commit: Arc<CommitMeta>,
    listing: Listing,
    /// Files as parsed: the same for the same blob, whatever is next to it.
    parsed: Manifests,
    /// Files with the paths that they name looked up.
    manifests: Manifests,
    /// Hashes of the paths that the commit names.
    known: HashedContent,
    /// Layouts of the files that were parsed for this commit.
    layouts: Layouts,
}

/// Reads a commit. A folder that exists in `base` counts as empty if the commit that removes it says so. `before`
/// is another commit that may share most files; those are not read again.
fn read(
    repository: &Repository,
    commit: Oid,
    (source, folder): (&str, &str),
    base: Option<Oid>,
    before: Option<&ParsedCommit>,
) -> Result<ParsedCommit, OfflineError> {
    let unread = |error| match error {
        ReadError::Git(error) => OfflineError::Read(error),
        why => OfflineError::Commit { commit: short_commit(&commit.to_string()).to_owned(), why },
    };
    let (old_listing, old_manifests) =
        before.map_or_else(Default::default, |before| (before.listing.clone(), before.parsed.clone()));
    let listed = |commit| git::list(repository, commit, folder, &old_listing).map_err(unread);
    let meta = git::commit_meta(repository, commit).map_err(OfflineError::Read)?;
    let listing = match (listed(commit)?, base) {
        (Some(listing), _) => listing,
        // In a base without the folder, the source has not begun yet.
        (None, None) => Listing::default(),
        (None, Some(base)) if meta.allows_prune && listed(base)?.is_some() => Listing::default(),
        (None, Some(_)) => {
            return Err(OfflineError::Folder {
                commit: short_commit(&meta.id).to_owned(),
                folder: folder.to_owned(),
            });
        }
    };
    // Without an earlier commit, all files are read, and few of their fields are asked for.
    let most = before.map_or(0, |_| LOCATE_BYTES_MAX);
    let (old, new) = (&old_listing.files, &listing.files);
    let (manifests, layouts) =
        load::update_with_layouts(repository, old, new, &old_manifests, most).map_err(unread)?;
    let parsed = load::with_passed_over(manifests, &old_listing.notes, &listing.notes);
    let nothing = HashedContent::new();
    let known = before.map_or(&nothing, |before| &before.known);
    let tree = CommitTree { repository, commit };
    let mut lookup = InCommit { tree, store: None, before: known, now: HashedContent::new(), unkept: None };
    let resolved = with_definitions(&load::with_kustomizations(&parsed), &mut lookup)
        .and_then(|defined| files::resolve(&defined, source, SourceFolder::Is(folder), &mut lookup));
    let manifests = resolved.map_err(|error| match error {
        ContentError::Git(error) => OfflineError::Read(error),
        other => OfflineError::Read(git2::Error::from_str(&other.to_string())),
    })?;
    let known = lookup.now;
    Ok(ParsedCommit { commit: Arc::new(meta), listing, parsed, manifests, known, layouts })
}

/// Files that can't be applied, with the violated rule.
type BrokenFiles = BTreeMap<Arc<str>, String>;

/// Returns etcd's objects after applying a whole commit to an empty cluster, and the files that are not part of it.
pub(super) fn objects_of(
    source: &str,
    commit: &Arc<CommitMeta>,
    manifests: &Manifests,
) -> (Table<ObjectRef, Object>, BrokenFiles) {
    let situation = PlanInput {
        source: source.to_owned(),
        commit: Arc::clone(commit),
        manifests: manifests.clone(),
        live: Table::new(),
        malformed: BTreeSet::new(),
        lineage: Lineage::default(),
        held: None,
        revision: 0,
        lost: BTreeMap::new(),
        limits: CommitLimits::default(),
        service_cidr: None,
        incomplete: None,
    };
    let SyncPlan { steps, quarantined, .. } = plan(&situation);
    let objects = steps.into_iter().filter_map(|step| match step.act {
        Act::Create(object) | Act::Update(object) | Act::Replace(object) => {
            let value = Arc::unwrap_or_clone(object);
            Some((step.object, Arc::new(VersionedValue { value, create_revision: 1, mod_revision: 1 })))
        }
        Act::Delete => None,
    });
    let rule = |violations: &[Violation]| {
        let error = violations.iter().find(|violation| violation.severity == Severity::Error);
        error.map(|violation| violation.rule.clone()).unwrap_or_default()
    };
    let broken = quarantined.iter().map(|(file, violations)| (Arc::clone(file), rule(violations)));
    (objects.collect(), broken.collect())
}

fn lineage(
    repository: &Repository,
    request: &Request<'_>,
    mut commits: BTreeSet<String>,
    after: &ParsedCommit,
    base: Option<Oid>,
) -> Lineage {
    let newest = match &request.live {
        Some(live) => live.base.clone(),
        None => base.map(|base| base.to_string()),
    };
    commits.extend(newest.clone());
    let Ok(head) = Oid::from_str(&after.commit.id) else { return Lineage::default() };
    let relation = |commit: String| {
        let relation = git::relation(repository, &commit, head).unwrap_or(Relation::Unknown);
        (commit, relation)
    };
    Lineage { base: newest, relations: commits.into_iter().map(relation).collect(), is_unused: false }
}

/// Returns the files of a folder that differ between two commits, relative to the folder; empty if it is itself a
/// file.
fn changed_files(repository: &Repository, commits: (Oid, Oid), folder: &str) -> Vec<String> {
    // A folder that can't be read is reported by its digest alone.
    let mut files = git::changed_below(repository, commits, folder).unwrap_or_default();
    let more = files.len().saturating_sub(FILES_NAMED_MAX);
    files.truncate(FILES_NAMED_MAX);
    if more > 0 {
        files.push(format!("{more} more"));
    }
    files
}

/// Finds the lines of changed fields, as far as that is cheap: files that did not change, but name content that
/// did, are read once more.
fn locate(repository: &Repository, after: ParsedCommit, review: &mut Review) {
    let ParsedCommit { listing, mut layouts, .. } = after;
    let mut missing = BTreeSet::new();
    review.locate(|file, _, _| {
        if !layouts.contains_key(file) {
            missing.insert(file.to_owned());
        }
        None
    });
    let mut budget = LOCATE_BYTES_MAX;
    let texts = missing.iter().filter_map(|file| {
        let (file, id) = listing.files.get_key_value(file.as_str())?;
        let text = git::blob(repository, *id).ok()??;
        budget = budget.checked_sub(text.len())?;
        Some((Arc::clone(file), text))
    });
    layouts.extend(spread(missing.len(), texts, |(file, text)| {
        let layout = Layout::read(&file, &text);
        (file, layout)
    }));
    review.locate(|file, line, field| Some(layouts.get(file)?.find(line, field)?.0));
}
