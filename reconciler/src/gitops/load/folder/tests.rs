//! Manifests read from a folder on disk.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use super::*;

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: m, image: i}]}\n";

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn names(folder: &Folder) -> Vec<String> {
    folder.manifests.keys().map(ToString::to_string).collect()
}

fn reported(folder: &Folder) -> Vec<(&str, &str)> {
    folder.passed_over.iter().map(|v| (v.file.as_str(), v.rule.as_str())).collect()
}

/// Commits everything below `root` to a new repository.
fn commit(root: &Path) -> Repository {
    let repository = Repository::init(root).unwrap();
    let mut index = repository.index().unwrap();
    index.add_all(["*"], git2::IndexAddOption::DEFAULT, None).unwrap();
    index.write().unwrap();
    let tree = repository.find_tree(index.write_tree().unwrap()).unwrap();
    let who = git2::Signature::now("Ada", "ada@example.org").unwrap();
    repository.commit(Some("HEAD"), &who, &who, "all", &tree, &[]).unwrap();
    drop(tree);
    repository
}

// Seen red without `refuse_link`.
#[test]
fn a_link_that_a_proposal_may_have_made_is_not_followed_though_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    put(&root, "outside/canary.yaml", POD);
    Repository::init(root.join("outside")).unwrap();
    let inside = root.join("repository");
    put(&inside, "apps/a.yaml", POD);
    symlink("../outside", inside.join("linked")).unwrap();
    symlink("../outside/canary.yaml", inside.join("one.yaml")).unwrap();
    commit(&inside);
    for asked in ["linked", "linked/", "linked/canary.yaml", "one.yaml", "apps/../linked", "linked/../linked"]
    {
        let error = read(&inside.join(asked)).unwrap_err();
        assert!(matches!(&error, FolderError::Link { .. }), "{asked}: {error}");
    }
    // Links on the path to a repository are the user's own.
    symlink(&inside, root.join("way")).unwrap();
    assert_eq!(names(&read(&root.join("way")).unwrap()), ["apps/a.yaml"]);
    assert_eq!(names(&read(&root.join("way/apps")).unwrap()), ["apps/a.yaml"]);
    let error = read(&root.join("way/linked")).unwrap_err();
    assert!(matches!(&error, FolderError::Link { link, .. } if link == "linked"), "{error}");
}

/// Seen red with every link of an outer repository refused.
#[test]
fn a_link_that_no_repository_holds_is_its_users_own() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    put(&root, "home/notes.txt", "text");
    commit(&root.join("home"));
    let data = root.join("data");
    put(&data, "a.yaml", POD);
    put(&data, "repository/apps/b.yaml", POD);
    symlink("../outside", data.join("repository/linked")).unwrap();
    put(&data, "outside/canary.yaml", POD);
    commit(&data.join("repository"));
    symlink(&data, root.join("home/work")).unwrap();
    assert_eq!(names(&read(&root.join("home/work/repository")).unwrap()), ["apps/b.yaml"]);
    assert_eq!(names(&read(&root.join("home/work/a.yaml")).unwrap()), ["a.yaml"]);
    // The target may contain a repository with its own links.
    let error = read(&root.join("home/work/repository/linked")).unwrap_err();
    assert!(matches!(&error, FolderError::Link { link, .. } if link == "linked"), "{error}");
}

#[test]
fn a_folder_is_read_as_its_commit_would_be() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["a.yaml", "apps/b.YML", "apps/c.json", "drafts/d.yaml", "apps/secret.yaml", "built/e.yaml"] {
        put(dir.path(), path, POD);
    }
    put(dir.path(), "readme.md", "text");
    put(dir.path(), "apps/.hidden/f.yaml", POD);
    put(dir.path(), ".minik8signore", "/drafts/\n");
    put(dir.path(), "apps/.minik8signore", "secret.yaml\n");
    put(dir.path(), ".gitignore", "/built/\n*.log\n");
    symlink("/etc/passwd", dir.path().join("apps/link.yaml")).unwrap();
    let repository = commit(dir.path());
    put(dir.path(), "vendor/g.yaml", POD);
    Repository::init(dir.path().join("vendor")).unwrap();

    let folder = read(dir.path()).unwrap();
    assert_eq!(names(&folder), ["a.yaml", "apps/.hidden/f.yaml", "apps/b.YML", "apps/c.json"]);
    assert_eq!(reported(&folder), [("apps/link.yaml", "symlink"), ("vendor", "submodule")]);

    let head = repository.head().unwrap().target().unwrap();
    let listing = crate::git::list(&repository, head, "", &crate::git::Listing::default()).unwrap().unwrap();
    let listed: Vec<String> = listing.files.keys().map(ToString::to_string).collect();
    assert_eq!(names(&folder), listed);
    let (committed, _) =
        load::update(&repository, &imbl::OrdMap::new(), &listing.files, &Manifests::new()).unwrap();
    assert_eq!(folder.manifests, committed);
}

#[test]
fn a_file_that_was_added_although_it_is_ignored_is_read() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "gen/kept.yaml", POD);
    let _repository = commit(dir.path());
    put(dir.path(), ".gitignore", "gen/\n");
    put(dir.path(), "gen/new.yaml", POD);
    assert_eq!(names(&read(dir.path()).unwrap()), ["gen/kept.yaml"]);
}

#[test]
fn paths_are_those_of_the_repository_whatever_part_of_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["a.yaml", "apps/web/b.yaml", "apps/skipped.yaml"] {
        put(dir.path(), path, POD);
    }
    put(dir.path(), ".minik8signore", "skipped.yaml\n/broken/\n");
    put(dir.path(), "broken/c.yaml", POD);
    Repository::init(dir.path()).unwrap();
    assert_eq!(names(&read(&dir.path().join("apps")).unwrap()), ["apps/web/b.yaml"]);
    assert_eq!(names(&read(&dir.path().join("apps/web/b.yaml")).unwrap()), ["apps/web/b.yaml"]);
    // A path named explicitly is read even if ignored.
    assert_eq!(names(&read(&dir.path().join("broken")).unwrap()), ["broken/c.yaml"]);
    assert_eq!(names(&read(&dir.path().join("apps/skipped.yaml")).unwrap()), ["apps/skipped.yaml"]);
}

#[test]
fn links_pipes_odd_names_and_huge_files_are_reported_and_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    put(outside.path(), "x.yaml", POD);
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink(".", dir.path().join("loop")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"caf\xe9.yaml");
    fs::write(dir.path().join(odd), POD).unwrap();
    File::create(dir.path().join("huge.yaml")).unwrap().set_len(1 << 30).unwrap();
    let folder = read(dir.path()).unwrap();
    assert_eq!(
        reported(&folder),
        [("caf\u{fffd}.yaml", "file-name"), ("loop", "symlink"), ("out", "symlink")]
    );
    assert_eq!(names(&folder), ["huge.yaml"]);
    assert_eq!(folder.manifests["huge.yaml"].violations[0].rule, "file-too-large");
}

#[test]
fn a_path_that_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "notes.txt", "text");
    let why = |path: &str| read(&dir.path().join(path)).unwrap_err().to_string();
    assert!(why("nowhere").contains("No such file"), "{}", why("nowhere"));
    assert!(why("notes.txt").contains(".yaml, .yml or .json"), "{}", why("notes.txt"));
}

#[test]
fn folders_are_followed_down_to_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let deep = vec!["d"; DEPTH_MAX].join("/");
    put(dir.path(), &format!("{deep}/last.yaml"), POD);
    put(dir.path(), &format!("{deep}/d/lost.yaml"), POD);
    let folder = read(dir.path()).unwrap();
    assert_eq!(names(&folder), [format!("{deep}/last.yaml")]);
    assert_eq!(reported(&folder), [(format!("{deep}/d").as_str(), "folder-too-deep")]);
}

#[test]
fn a_file_that_cannot_be_opened_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a.yaml", POD);
    // A file that disappeared, or became a link, after the folder was listed.
    symlink("/etc/passwd", dir.path().join("b.yaml")).unwrap();
    let files = ["a.yaml", "b.yaml", "gone.yaml"].map(str::to_owned).to_vec();
    let (manifests, unreadable) = parse(files, &WorkTree::open(dir.path()).0);
    assert_eq!(manifests.len(), 1);
    let reported: Vec<_> = unreadable.iter().map(|v| (v.file.as_str(), v.rule.as_str())).collect();
    assert_eq!(reported, [("b.yaml", "unreadable"), ("gone.yaml", "unreadable")]);
}
