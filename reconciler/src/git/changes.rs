//! Commits since a given one, and the paths each changed.

use std::collections::BTreeSet;

use git2::{Oid, Repository, Sort, Tree, TreeEntry};

use super::content::DEPTH_MAX;

/// Limit on inspected commits; the newest win.
const COMMITS_MAX: usize = 256;
/// Limit on inspected files and folders, spent on the newest commits first.
const ENTRIES_MAX: usize = 100_000;

/// A commit and its differences from its first parent; for a merge, everything it brings in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    pub commit: Oid,
    /// Paths from the repository root, sorted, including removed files.
    pub paths: Vec<String>,
}

/// Returns the commits from `applied` to `head` along first parents, oldest first; `head` alone if `applied` is no
/// longer in the repository.
pub fn changes_since(repository: &Repository, head: Oid, applied: &str) -> Result<Vec<Changes>, git2::Error> {
    let mut walk = repository.revwalk()?;
    walk.set_sorting(Sort::TOPOLOGICAL)?;
    walk.simplify_first_parent()?;
    walk.push(head)?;
    let known = Oid::from_str(applied).is_ok_and(|applied| walk.hide(applied).is_ok());
    let mut left = ENTRIES_MAX;
    let newest_first = walk.take(if known { COMMITS_MAX } else { 1 }).map(|commit| {
        let commit = commit?;
        let found = repository.find_commit(commit)?;
        let before = found.parent(0).ok().map(|parent| parent.tree()).transpose()?;
        let mut walk = PathWalk { repository, left: &mut left, paths: BTreeSet::new() };
        walk.compare(before.as_ref(), Some(&found.tree()?), "", 0)?;
        Ok(Changes { commit, paths: walk.paths.into_iter().collect() })
    });
    let mut changes = newest_first.collect::<Result<Vec<_>, git2::Error>>()?;
    changes.reverse();
    Ok(changes)
}

/// Bounded comparison of two trees: trees may refer to each other many times over, so entries are counted.
struct PathWalk<'r, 'l> {
    repository: &'r Repository,
    left: &'l mut usize,
    paths: BTreeSet<String>,
}

impl<'r> PathWalk<'r, '_> {
    fn compare(
        &mut self,
        old: Option<&Tree<'_>>,
        new: Option<&Tree<'_>>,
        prefix: &str,
        depth: usize,
    ) -> Result<(), git2::Error> {
        if depth > DEPTH_MAX {
            return Ok(());
        }
        for (tree, other, is_new) in [(old, new, false), (new, old, true)] {
            for item in tree.into_iter().flat_map(Tree::iter) {
                let twin = other.and_then(|tree| tree.get_name_bytes(item.name_bytes()));
                let is_same =
                    |twin: &TreeEntry<'_>| twin.id() == item.id() && twin.filemode() == item.filemode();
                if twin.as_ref().is_some_and(is_same) {
                    continue;
                }
                let Some(left) = self.left.checked_sub(1) else { return Ok(()) };
                *self.left = left;
                let path = format!("{prefix}{}", String::from_utf8_lossy(item.name_bytes()));
                match (self.folder(Some(&item))?, self.folder(twin.as_ref())?) {
                    // Folders on both sides are compared once, from the new side.
                    (Some(_), Some(_)) if !is_new => {}
                    (Some(here), there) => {
                        let (old, new) = if is_new { (there, Some(here)) } else { (Some(here), there) };
                        self.compare(old.as_ref(), new.as_ref(), &format!("{path}/"), depth + 1)?;
                    }
                    (None, _) => _ = self.paths.insert(path),
                }
            }
        }
        Ok(())
    }

    fn folder(&self, item: Option<&TreeEntry<'_>>) -> Result<Option<Tree<'r>>, git2::Error> {
        let folder = item.filter(|item| item.kind() == Some(git2::ObjectType::Tree));
        folder.map(|item| self.repository.find_tree(item.id())).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commits these files onto the parents.
    fn commit(git: &Repository, files: &[(&str, &str)], parents: &[Oid]) -> Oid {
        let mut index = git2::Index::new().unwrap();
        for (path, text) in files {
            let id = git.blob(text.as_bytes()).unwrap();
            let zero = git2::IndexTime::new(0, 0);
            index
                .add(&git2::IndexEntry {
                    ctime: zero,
                    mtime: zero,
                    dev: 0,
                    ino: 0,
                    mode: 0o100_644,
                    uid: 0,
                    gid: 0,
                    file_size: 0,
                    id,
                    flags: 0,
                    flags_extended: 0,
                    path: path.as_bytes().to_vec(),
                })
                .unwrap();
        }
        let tree = git.find_tree(index.write_tree_to(git).unwrap()).unwrap();
        let author = git2::Signature::new("Ada", "a@b", &git2::Time::new(0, 0)).unwrap();
        let parents: Vec<_> = parents.iter().map(|id| git.find_commit(*id).unwrap()).collect();
        let parents: Vec<_> = parents.iter().collect();
        git.commit(None, &author, &author, "x", &tree, &parents).unwrap()
    }

    fn since(git: &Repository, head: Oid, applied: Oid) -> Vec<(Oid, Vec<String>)> {
        let found = changes_since(git, head, &applied.to_string()).unwrap();
        found.into_iter().map(|changes| (changes.commit, changes.paths)).collect()
    }

    #[test]
    fn each_commit_has_the_paths_that_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let git = Repository::init_bare(dir.path()).unwrap();
        let first = commit(&git, &[("a", "1"), ("d/x", "1"), ("d/y", "1")], &[]);
        let second = commit(&git, &[("a", "2"), ("d/x", "1"), ("e/z", "1")], &[first]);
        let third = commit(&git, &[("a", "2"), ("d", "now a file"), ("e/z", "1")], &[second]);
        let paths = |all: &[&str]| all.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            since(&git, third, first),
            [(second, paths(&["a", "d/y", "e/z"])), (third, paths(&["d", "d/x"]))]
        );
        assert_eq!(since(&git, third, third), []);
        // Missing after a history rewrite: the head alone.
        let unknown = Oid::from_str(&"1".repeat(40)).unwrap();
        assert_eq!(since(&git, third, unknown).len(), 1);
    }

    #[test]
    fn a_merge_is_one_commit_with_all_that_it_brings_in() {
        let dir = tempfile::tempdir().unwrap();
        let git = Repository::init_bare(dir.path()).unwrap();
        let base = commit(&git, &[("a", "1")], &[]);
        let mut branch = base;
        for text in ["1", "2", "3"] {
            branch = commit(&git, &[("a", "1"), ("b", text)], &[branch]);
        }
        let merge = commit(&git, &[("a", "1"), ("b", "3")], &[base, branch]);
        assert_eq!(since(&git, merge, base), [(merge, vec!["b".to_owned()])]);
        // Rewritten history: only the new commits.
        assert_eq!(since(&git, merge, branch), [(merge, vec!["b".to_owned()])]);
    }
}
