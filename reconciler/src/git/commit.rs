//! Commit metadata and trailers, and the ancestry of two commits.

use git2::{Commit, ErrorCode, Oid, Repository};
use jiff::Timestamp;

const ALLOW_PRUNE: &str = "Minik8s-Allow-Prune";
const PLAN: &str = "Minik8s-Plan";
const PLAN_COMMITS_MAX: usize = 256;
const SUBJECT_CHARS_MAX: usize = 200;
/// Limit on an author's name and on their mail address: both go into every object, whose size etcd bounds.
const AUTHOR_CHARS_MAX: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitMeta {
    pub id: String,
    /// Name and address as `Name <mail>`.
    pub author: String,
    pub subject: String,
    pub committed_at: Timestamp,
    /// Set by the trailer `Minik8s-Allow-Prune: true`.
    pub allows_prune: bool,
}

pub fn commit_meta(repository: &Repository, id: Oid) -> Result<CommitMeta, git2::Error> {
    let commit = repository.find_commit(id)?;
    let message = String::from_utf8_lossy(commit.message_bytes()).into_owned();
    Ok(CommitMeta {
        id: id.to_string(),
        author: author_of(&commit),
        subject: shown(message.lines().next().unwrap_or_default(), SUBJECT_CHARS_MAX),
        committed_at: committed_at(&commit),
        allows_prune: allows_prune(&message),
    })
}

/// Formats the author as `Name <mail>`.
pub(super) fn author_of(commit: &Commit<'_>) -> String {
    let author = commit.author();
    let text = |bytes: &[u8]| shown(String::from_utf8_lossy(bytes).trim(), AUTHOR_CHARS_MAX);
    format!("{} <{}>", text(author.name_bytes()), text(author.email_bytes()))
}

/// Truncates text and strips control characters: a committer must not move a reader's cursor.
fn shown(text: &str, chars_max: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(chars_max).collect()
}

fn committed_at(commit: &Commit<'_>) -> Timestamp {
    Timestamp::from_second(commit.time().seconds()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn allows_prune(message: &str) -> bool {
    let Ok(trailers) = git2::message_trailers_strs(message) else { return false };
    trailers.iter().any(|(key, value)| {
        key.eq_ignore_ascii_case(ALLOW_PRUNE) && value.trim().eq_ignore_ascii_case("true")
    })
}

/// Returns the reviewed plan's hash from the newest commit since `applied` that carries one.
pub fn plan_trailer(
    repository: &Repository,
    head: Oid,
    applied: &str,
) -> Result<Option<String>, git2::Error> {
    let mut walk = repository.revwalk()?;
    walk.set_sorting(git2::Sort::TOPOLOGICAL)?;
    walk.push(head)?;
    if let Ok(applied) = Oid::from_str(applied) {
        // Missing after a history rewrite; then only the bound holds.
        let _ = walk.hide(applied);
    }
    for id in walk.take(PLAN_COMMITS_MAX) {
        let commit = repository.find_commit(id?)?;
        if let Some(hash) = plan_of(&String::from_utf8_lossy(commit.message_bytes())) {
            return Ok(Some(hash));
        }
    }
    Ok(None)
}

fn plan_of(message: &str) -> Option<String> {
    const DIGITS: std::ops::RangeInclusive<usize> = 16..=64;
    let trailers = git2::message_trailers_strs(message).ok()?;
    let hash = trailers.iter().find(|(key, _)| key.eq_ignore_ascii_case(PLAN))?.1.trim().to_ascii_lowercase();
    (DIGITS.contains(&hash.len()) && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hash)
}

/// Ancestry of an older commit relative to the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    Related,
    Unrelated,
    /// The older commit is not, or no longer, in the repository.
    Unknown,
}

/// Determines the ancestry of `older` relative to `head`.
pub fn relation(repository: &Repository, older: &str, head: Oid) -> Result<Relation, git2::Error> {
    let Ok(older) = Oid::from_str(older) else { return Ok(Relation::Unknown) };
    if older == head {
        return Ok(Relation::Related);
    }
    match repository.find_commit(older) {
        Err(error) if error.code() == ErrorCode::NotFound => return Ok(Relation::Unknown),
        other => other?,
    };
    match repository.merge_base(older, head) {
        Ok(_) => Ok(Relation::Related),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(Relation::Unrelated),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_author_too_long_for_any_key_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let git = Repository::init_bare(dir.path()).unwrap();
        let author =
            git2::Signature::new(&"A".repeat(70_000), &"b".repeat(70_000), &git2::Time::new(0, 0)).unwrap();
        let tree = git.find_tree(git.treebuilder(None).unwrap().write().unwrap()).unwrap();
        let id = git.commit(None, &author, &author, "x", &tree, &[]).unwrap();
        let length = commit_meta(&git, id).unwrap().author.len();
        assert!(length < 1024, "{length}");
    }

    #[test]
    fn what_steers_a_terminal_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let git = Repository::init_bare(dir.path()).unwrap();
        let author = git2::Signature::new("Ada\u{1b}[2J", "a@b\u{7}", &git2::Time::new(0, 0)).unwrap();
        let tree = git.find_tree(git.treebuilder(None).unwrap().write().unwrap()).unwrap();
        let id = git.commit(None, &author, &author, "One\u{1b}[31m two\n\nx", &tree, &[]).unwrap();
        let meta = commit_meta(&git, id).unwrap();
        assert_eq!((meta.author.as_str(), meta.subject.as_str()), ("Ada[2J <a@b>", "One[31m two"));
    }

    #[test]
    fn only_a_true_trailer_allows_a_prune() {
        for (message, allows) in [
            ("Remove it all\n\nMinik8s-Allow-Prune: true\n", true),
            ("Remove it all\n\nWhy not.\n\nSigned-off-by: A <a@b>\nminik8s-allow-prune: TRUE\n", true),
            ("Remove it all\n\nMinik8s-Allow-Prune: false\n", false),
            ("Minik8s-Allow-Prune: true", false),
            ("Say\n\nMinik8s-Allow-Prune: true\n\nand then something else.\n", false),
            ("Remove it all", false),
        ] {
            assert_eq!(allows_prune(message), allows, "{message:?}");
        }
    }
}
