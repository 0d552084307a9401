//! Comparisons of applied commits for the page: the plan of `minik8s plan` between two commits of a mirror. Blocking.
//!
//! Reads a mirror's object database and nothing else, beside the loop that fetches into it; writes nothing. Decides how
//! much of a plan is kept. The API can't import the plan itself, so it gets this as a function.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use git2::{Oid, Repository};
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::object::short_commit;
use schema::violation::{Severity, Violation, plural, shortened};
use serde_json::Value;

use crate::api::{
    CommitPair, Comparison, ComparisonError, ComparisonLine, Comparisons, FieldDifference, ObjectChange,
};
use crate::git::{Mirror, SourceConfig};
use crate::gitops::offline::{OfflineError, Request, compare_applied};
use crate::gitops::review::effects::{EffectCase, EffectsOf};
use crate::gitops::review::{Action, Change, Effect, Field, Review};

/// Maximum number of bytes of changes that are kept of a comparison.
const CHANGES_MAX_BYTES: usize = 1 << 20;
/// Maximum number of fields that are kept of a changed object.
const FIELDS_MAX: usize = 40;
/// Maximum number of characters that are kept of a value, a path or a reason.
const VALUE_MAX_CHARS: usize = 200;
/// Maximum number of warnings and notes that are kept, and of characters of each.
const LINES_MAX: usize = 50;
const LINE_MAX_CHARS: usize = 500;

/// Returns the comparisons of these sources' commits, as far as they are in the mirrors below `state_dir`.
pub(super) fn comparisons(sources: &[SourceConfig], state_dir: &Path) -> Comparisons {
    let named = sources.iter().map(|source| (source.name.clone(), MirroredSource::new(source, state_dir)));
    let mirrored: BTreeMap<String, MirroredSource> = named.collect();
    Comparisons::new(Arc::new(move |pair: &CommitPair| {
        mirrored.get(&pair.source).ok_or(ComparisonError::NoMirror)?.compare(pair)
    }))
}

/// Mirror of a source, and how the source reads it.
struct MirroredSource {
    mirror: PathBuf,
    /// Folder of the repository; empty for all of it.
    folder: String,
    is_strict: bool,
}

impl MirroredSource {
    fn new(source: &SourceConfig, state_dir: &Path) -> Self {
        Self {
            mirror: Mirror::directory(state_dir, &source.name),
            folder: source.path.clone(),
            is_strict: source.strict,
        }
    }

    fn compare(&self, pair: &CommitPair) -> Result<Comparison, ComparisonError> {
        let (base, review) = self.review(pair)?;
        let changes = changes(&review, CHANGES_MAX_BYTES);
        Ok(Comparison {
            headline: review.headline(),
            lines: lines(&review),
            left_out: review.changes.len() - changes.len(),
            changes,
            command: self.command(&pair.source, base.as_deref(), &review.head),
            base,
        })
    }

    /// Returns the plan for the head, with the commit that the head is compared with.
    fn review(&self, pair: &CommitPair) -> Result<(Option<String>, Review), ComparisonError> {
        // Not searched for: a folder above a missing mirror may be a repository, too.
        let repository = Repository::open_bare(&self.mirror).map_err(|_| ComparisonError::NoMirror)?;
        let head = find(&repository, &pair.head)?;
        let base = pair.base.as_ref().map(|base| find(&repository, base)).transpose()?;
        // Full ids: nothing else that a revision may mean to Git.
        let (base, head) = (base.map(|base| base.to_string()), head.to_string());
        let request = Request {
            repo: &self.mirror,
            base: base.as_deref(),
            head: &head,
            folder: &self.folder,
            source: &pair.source,
            strict: self.is_strict,
            in_place: true,
            live: None,
            effects: no_effects,
        };
        let review = compare_applied(&request).map_err(|error| failure(&error))?;
        Ok((base, review))
    }

    fn command(&self, source: &str, base: Option<&str>, head: &str) -> String {
        let head = short_commit(head);
        // `minik8s plan` has no name for an empty repository.
        let Some(base) = base else { return format!("git show {head}") };
        let folder = if self.folder.is_empty() { String::new() } else { format!(" --path {}", self.folder) };
        let strict = if self.is_strict { " --strict" } else { "" };
        let base = short_commit(base);
        format!("minik8s plan --base {base} --head {head} --in-place --source {source}{folder}{strict}")
    }
}

/// Reason for readers of the page: the error itself advises users of a clone.
fn failure(error: &OfflineError) -> ComparisonError {
    let why = match error {
        OfflineError::Folder { commit, folder } => format!("commit {commit} has no folder {folder}"),
        OfflineError::Commit { commit, why } => format!("commit {commit} can't be read: {why}"),
        other => {
            tracing::warn!(error = %other, "mirror unreadable for a comparison");
            "the mirror of the repository can't be read".to_owned()
        }
    };
    ComparisonError::Failed(why)
}

/// Finds a commit by its full id.
fn find(repository: &Repository, commit: &str) -> Result<Oid, ComparisonError> {
    let found = Oid::from_str(commit).and_then(|id| repository.find_commit(id));
    let found = found.map(|commit| commit.id());
    found.map_err(|_| ComparisonError::Missing(format!("commit {}", short_commit(commit))))
}

/// Computes no effects: they are those on the present cluster, and the commit was applied to a former one.
fn no_effects(_: Kind) -> EffectsOf {
    fn none(_: &EffectCase<'_>) -> Vec<Effect> {
        Vec::new()
    }
    none
}

/// Returns the first changes of a review, as many as `bytes_max` holds.
fn changes(review: &Review, bytes_max: usize) -> Vec<ObjectChange> {
    let mut bytes = 0;
    let all = review.changes.iter().map(object_change);
    let fits = |change: &ObjectChange| {
        bytes += bytes_of(change);
        bytes <= bytes_max
    };
    all.take_while(fits).collect()
}

fn bytes_of(change: &ObjectChange) -> usize {
    let ObjectRef { namespace, name, .. } = &change.object;
    let fields = change
        .fields
        .iter()
        .map(|field| size_of::<FieldDifference>() + field.path.len() + field.from.len() + field.to.len());
    let texts = namespace.len() + name.len() + change.place.len() + change.reason.len();
    size_of::<ObjectChange>() + texts + fields.sum::<usize>()
}

fn object_change(change: &Change) -> ObjectChange {
    let Change { action, kind, namespace, name, file, line, fields, reason, .. } = change;
    ObjectChange {
        action: action.to_string(),
        object: ObjectRef { kind: *kind, namespace: namespace.clone(), name: name.clone() },
        place: format!("{file}:{line}"),
        // That a created object was not there says its action.
        reason: match action {
            Action::Create => String::new(),
            _ => shortened(reason.clone(), VALUE_MAX_CHARS),
        },
        fields: fields.iter().take(FIELDS_MAX).map(difference).collect(),
        more_fields: fields.len().saturating_sub(FIELDS_MAX),
    }
}

fn difference(field: &Field) -> FieldDifference {
    let shown = |value: &Option<Value>| match value {
        _ if field.hidden => String::new(),
        Some(value) => shortened(value.to_string(), VALUE_MAX_CHARS),
        None => "nothing".to_owned(),
    };
    let files = match field.files.as_slice() {
        [] => String::new(),
        files => format!(" ({})", files.join(", ")),
    };
    FieldDifference {
        path: shortened(field.path.clone() + &files, VALUE_MAX_CHARS),
        line: field.line.unwrap_or_default(),
        is_hidden: field.hidden,
        from: shown(&field.from),
        to: shown(&field.to),
    }
}

/// Returns the warnings and notes of a review, the warnings first.
fn lines(review: &Review) -> Vec<ComparisonLine> {
    let prune = &review.prune;
    let (problems, of_files): (Vec<&Violation>, Vec<&Violation>) =
        review.violations.iter().partition(|violation| violation.severity != Severity::Note);
    let mut warnings = review.warnings.clone();
    let mut notes = review.notes.clone();
    // Whether removals were held depended on the settings and objects of that time; the revision says it.
    warnings.extend(problems.iter().map(ToString::to_string));
    notes.extend(prune.protected.iter().map(|object| format!("kept by its annotation: {object}")));
    if !of_files.is_empty() {
        notes.push(format!("{} on manifests; see 'minik8s validate'", plural(of_files.len(), "note")));
    }
    let warnings = warnings.into_iter().map(|text| (true, text));
    let all = warnings.chain(notes.into_iter().map(|text| (false, text)));
    let line = |(is_warning, text)| ComparisonLine { is_warning, text: shortened(text, LINE_MAX_CHARS) };
    let mut lines: Vec<ComparisonLine> = all.map(line).collect();
    let more = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    if more > 0 {
        lines.push(ComparisonLine { is_warning: false, text: format!("and {more} more lines") });
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::fs;

    use git2::{Signature, Time};
    use tempfile::TempDir;

    use super::*;

    fn pod(image: &str, token: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: main\n    \
             image: {image}\n    env:\n    - name: DB_TOKEN\n      value: {token}\n"
        )
    }

    /// Mirror of source `main` with a commit for each text of its only manifest, each on top of the one before.
    fn mirrored(texts: &[String]) -> (TempDir, Vec<String>) {
        let state = tempfile::tempdir().unwrap();
        let mirror = Mirror::directory(state.path(), "main");
        fs::create_dir_all(&mirror).unwrap();
        let git = Repository::init_bare(&mirror).unwrap();
        let author = Signature::new("Ada", "ada@example.org", &Time::new(1_700_000_000, 0)).unwrap();
        let mut commits: Vec<Oid> = Vec::new();
        for text in texts {
            let mut files = git.treebuilder(None).unwrap();
            files.insert("web.yaml", git.blob(text.as_bytes()).unwrap(), 0o100_644).unwrap();
            let tree = git.find_tree(files.write().unwrap()).unwrap();
            let parent = commits.last().map(|id| git.find_commit(*id).unwrap());
            let parents: Vec<_> = parent.iter().collect();
            let main = Some("refs/heads/main");
            commits.push(git.commit(main, &author, &author, "Change", &tree, &parents).unwrap());
        }
        (state, commits.iter().map(ToString::to_string).collect())
    }

    fn source(state: &TempDir) -> MirroredSource {
        MirroredSource::new(&SourceConfig::branch("main", "/nowhere", "main"), state.path())
    }

    fn pair(base: Option<&str>, head: &str) -> CommitPair {
        CommitPair { source: "main".to_owned(), base: base.map(str::to_owned), head: head.to_owned() }
    }

    fn entries(dir: &Path) -> usize {
        let all = fs::read_dir(dir).unwrap().flatten();
        all.map(|entry| if entry.path().is_dir() { 1 + entries(&entry.path()) } else { 1 }).sum()
    }

    #[test]
    fn a_changed_field_has_both_values_unless_it_may_be_a_secret_and_nothing_is_written() {
        let (state, commits) = mirrored(&[pod("one", "hunter2-old"), pod("two", "hunter2-new")]);
        let before = entries(state.path());
        let found = source(&state).compare(&pair(Some(&commits[0]), &commits[1])).unwrap();
        assert_eq!(found.changes.len(), 1, "{found:?}");
        let change = &found.changes[0];
        assert_eq!(change.object.to_string(), "Pod/default/web");
        assert!(change.place.starts_with("web.yaml:"), "{change:?}");
        let field = |path: &str| change.fields.iter().find(|field| field.path == path).expect("it differs");
        let image = field("spec.containers[0].image");
        assert_eq!((image.from.as_str(), image.to.as_str(), image.line), ("\"one\"", "\"two\"", 8));
        assert!(field("spec.containers[0].env[0].value").is_hidden);
        assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
        let [base, head] = [&commits[0], &commits[1]].map(|commit| short_commit(commit));
        let command = format!("minik8s plan --base {base} --head {head} --in-place --source main");
        assert_eq!(found.command, command);
        assert_eq!(entries(state.path()), before, "the mirror is as it was");
    }

    #[test]
    fn a_commit_is_compared_with_nothing_or_with_a_later_one() {
        let (state, commits) = mirrored(&[pod("one", "x"), pod("two", "x")]);
        let source = source(&state);
        let first = source.compare(&pair(None, &commits[0])).unwrap();
        assert_eq!((first.base.as_deref(), first.changes[0].action.as_str()), (None, "create"));
        assert_eq!(first.command, format!("git show {}", short_commit(&commits[0])));
        // Back to the first, as after a force push.
        let back = source.compare(&pair(Some(&commits[1]), &commits[0])).unwrap();
        assert_eq!(back.changes[0].fields[0].to, "\"one\"", "{back:?}");
    }

    #[test]
    fn what_is_not_in_the_mirror_is_named() {
        let (state, commits) = mirrored(&[pod("one", "x")]);
        let unknown = "3333333333333333333333333333333333333333";
        for pair in [pair(Some(&commits[0]), unknown), pair(Some(unknown), &commits[0])] {
            let error = source(&state).compare(&pair).unwrap_err();
            assert_eq!(error, ComparisonError::Missing("commit 333333333333".to_owned()));
        }
        // No revision by another name, and no repository above the mirror.
        for odd in ["main", "HEAD", "refs/heads/main", &commits[0][..12]] {
            let found = source(&state).compare(&pair(None, odd));
            assert!(matches!(found, Err(ComparisonError::Missing(_))), "{odd}: {found:?}");
        }
        Repository::init(state.path()).unwrap();
        fs::remove_dir_all(Mirror::directory(state.path(), "main")).unwrap();
        let found = source(&state).compare(&pair(None, &commits[0]));
        assert_eq!(found, Err(ComparisonError::NoMirror));
    }

    #[test]
    fn changes_are_kept_up_to_a_limit() {
        let both = |image: &str| {
            let [a, b] =
                ["a", "b"].map(|name| pod(image, "x").replace("name: web", &format!("name: {name}")));
            format!("{a}---\n{b}")
        };
        let (state, commits) = mirrored(&[both("one"), both("two")]);
        let (_, review) = source(&state).review(&pair(Some(&commits[0]), &commits[1])).unwrap();
        let all = changes(&review, usize::MAX);
        assert_eq!(all.len(), 2, "{all:?}");
        let first = bytes_of(&all[0]);
        assert_eq!(changes(&review, first), all[..1]);
        assert!(changes(&review, first - 1).is_empty());
    }
}
