//! Trees that no editor makes: bombs, names that are not UTF-8, ignore files that can't be read.

use std::path::Path;

use git2::{Oid, Repository, Signature};
use schema::violation::Severity;

use super::error::ReadError;
use super::tests::repository;
use super::tree::list_within;
use super::walk::Limits;
use super::*;

const FILE: i32 = 0o100_644;
const LINK: i32 = 0o120_000;
const FOLDER: i32 = 0o040_000;

fn tree(git: &Repository, items: &[(&[u8], Oid, i32)]) -> Oid {
    // Written as bytes: the builder accepts only UTF-8 names.
    let mut sorted = items.to_vec();
    sorted.sort_by_key(|(name, _, mode)| [*name, if *mode == FOLDER { &b"/"[..] } else { b"" }].concat());
    let mut bytes = Vec::new();
    for (name, id, mode) in sorted {
        bytes.extend_from_slice(format!("{mode:o} ").as_bytes());
        bytes.extend_from_slice(name);
        bytes.push(0);
        bytes.extend_from_slice(id.as_bytes());
    }
    git.odb().unwrap().write(git2::ObjectType::Tree, &bytes).unwrap()
}

fn commit_of(git: &Repository, tree: Oid) -> Oid {
    let author = Signature::new("Ada", "ada@example.org", &git2::Time::new(1_700_000_000, 0)).unwrap();
    git.commit(None, &author, &author, "x", &git.find_tree(tree).unwrap(), &[]).unwrap()
}

fn empty(dir: &Path) -> Repository {
    Repository::init_bare(dir.join("repo.git")).unwrap()
}

fn fresh(git: &Repository, commit: Oid) -> Result<Listing, ReadError> {
    list(git, commit, "", &Listing::default()).map(Option::unwrap)
}

#[test]
fn a_tree_that_names_itself_over_and_over_is_too_much_and_not_walked_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let git = empty(dir.path());
    let blob = git.blob(b"a").unwrap();
    let names: Vec<Vec<u8>> = (0..10).map(|n| format!("{n}.yaml").into_bytes()).collect();
    let of = |id: Oid, mode: i32| {
        let items: Vec<_> = names.iter().map(|name| (name.as_slice(), id, mode)).collect();
        tree(&git, &items)
    };
    let thousand = (0..2).fold(of(blob, FILE), |below, _| of(below, FOLDER));
    let bomb = (0..2).fold(thousand, |below, _| of(below, FOLDER));
    let limits = Limits { entries: 2_000, path_bytes: 1_000_000, files: 1_000 };
    let listed = |tree, limits, previous: &Listing| {
        list_within(&git, commit_of(&git, tree), "", previous, limits).map(Option::unwrap)
    };
    let before = listed(thousand, limits, &Listing::default()).unwrap();
    assert_eq!(before.files.len(), 1_000);
    for (tree, limits, what) in [
        (bomb, limits, "files and folders"),
        (thousand, Limits { path_bytes: 10_000, ..limits }, "bytes of file names"),
        (thousand, Limits { files: 999, ..limits }, "manifest files"),
        (of(of(git.blob(b"t").unwrap(), LINK), FOLDER), Limits { files: 99, ..limits }, "manifest files"),
    ] {
        let error = listed(tree, limits, &Listing::default()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    assert!(matches!(listed(bomb, limits, &before), Err(ReadError::TooMuch { .. })));
    // A new tree that fits is read, although it would not fit together with the old one.
    let other = (0..2).fold(of(git.blob(b"b").unwrap(), FILE), |below, _| of(below, FOLDER));
    assert_eq!(listed(other, Limits { entries: 1_111, ..limits }, &before).unwrap().files.len(), 1_000);
}

#[test]
fn a_manifest_whose_path_is_not_utf_8_is_an_error_and_nothing_vanishes_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let git = empty(dir.path());
    let (one, two) = (git.blob(b"1").unwrap(), git.blob(b"2").unwrap());
    let apps = tree(&git, &[(b"a.yaml", one, FILE), (b"notes.txt", one, FILE)]);
    let pictures = tree(&git, &[(b"1.png", one, FILE)]);
    let good = commit_of(&git, tree(&git, &[(b"apps", apps, FOLDER)]));
    let moved = commit_of(&git, tree(&git, &[(b"apps-\xe9", apps, FOLDER), (b"b\xe9", pictures, FOLDER)]));
    let file = commit_of(&git, tree(&git, &[(b"apps", apps, FOLDER), (b"\xff.yaml", one, FILE)]));
    let twins: [(&[u8], Oid, i32); 3] =
        [(b"\xff.yaml", one, FILE), (b"\xfe.yaml", two, FILE), ("\u{fffd}.yaml".as_bytes(), one, FILE)];
    let three = commit_of(&git, tree(&git, &twins));
    let two_of_them = commit_of(&git, tree(&git, &twins[..2]));
    let only_good = commit_of(&git, tree(&git, &twins[2..]));
    let hidden = git.blob(b"apps-*/\n").unwrap();
    let ignored =
        commit_of(&git, tree(&git, &[(b"apps-\xe9", apps, FOLDER), (b".minik8signore", hidden, FILE)]));
    let mut last = Listing::default();
    for (commit, files, odd) in [
        (good, 1, ""),
        (moved, 0, "apps-\u{fffd}/a.yaml"),
        (file, 1, "\u{fffd}.yaml"),
        (good, 1, ""),
        (three, 0, "\u{fffd}.yaml"),
        (two_of_them, 0, "\u{fffd}.yaml"),
        (only_good, 1, ""),
        (ignored, 0, ""),
    ] {
        let anew = fresh(&git, commit).unwrap();
        last = list(&git, commit, "", &last).unwrap().unwrap();
        assert_eq!((&last.files, &last.notes), (&anew.files, &anew.notes));
        let notes: Vec<_> =
            anew.notes.iter().map(|n| (n.file.as_str(), n.rule.as_str(), n.severity)).collect();
        let expected = if odd.is_empty() { vec![] } else { vec![(odd, "file-name", Severity::Error)] };
        assert_eq!((anew.files.len(), notes), (files, expected));
    }
}

#[test]
fn an_ignore_file_that_cannot_be_read_refuses_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let files = [("a.yaml", "a", 0), ("x/.minik8signore", "../rules", LINK), ("x/draft.yaml", "b", 0)];
    let linked = repository(&dir.path().join("link.git"), &files);
    let git = Repository::open_bare(dir.path().join("link.git")).unwrap();
    let error = fresh(&git, linked).unwrap_err().to_string();
    assert!(error.starts_with("x/.minik8signore is a symbolic link"), "{error}");
    // The same when only a folder below is read, and when the commit before was good.
    let below = tests::commit(&git, &[("x/.minik8signore", "../rules", LINK), ("x/y/a.yaml", "b", 0)]);
    assert!(list(&git, below, "x/y", &Listing::default()).is_err());
    let good = tests::commit(&git, &[("x/.minik8signore", "draft.yaml", 0), ("x/draft.yaml", "b", 0)]);
    let before = fresh(&git, good).unwrap();
    assert!(before.files.is_empty() && list(&git, linked, "", &before).is_err());
    let large = "#".repeat(BLOB_BYTES_MAX + 1);
    let large = tests::commit(&git, &[(".minik8signore", &large, 0), ("x/y/a.yaml", "b", 0)]);
    for folder in ["", "x"] {
        let error = list(&git, large, folder, &Listing::default()).unwrap_err().to_string();
        assert!(error.contains("larger than 4 MiB"), "{error}");
    }
    // A link inside a folder that is itself ignored does not matter.
    let vendored = [(".minik8signore", "/x/\n", 0), files[1], files[2], files[0]];
    let vendored = tests::commit(&git, &vendored);
    assert_eq!(fresh(&git, vendored).unwrap().files.len(), 1);
}
