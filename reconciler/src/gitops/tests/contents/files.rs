//! Files and secrets of the repository that pods name: their references in objects, changes to them, and
//! violations.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use git2::{Oid, Repository, Signature};
use schema::content_refs::BlobKind;
use schema::object::Object;
use schema::records::SourceState;
use schema::snapshot::{Snapshot, VersionedValue};
use schema::testing::instance_of;
use schema::violation::{Severity, Violation};

use crate::blobs::{BlobStore, Blobs, BlobsError};
use crate::git::content::CommitTree;
use crate::gitops::load::files::{ContentSource as _, HashedContent, InCommit};
use crate::gitops::offline::{Request, compare};
use crate::gitops::tests::kit::{Cluster, Files, Repo, merge_of, pod};

const AGE: &str = "age-encryption.org/v1\n-> X25519 abc\n--- mac\n";

fn with_volume(name: &str, path: &str) -> String {
    pod(name, "one") + &format!("  volumes:\n  - {{name: v, repo: {{path: {path}}}}}\n")
}

fn with_secret(name: &str, secret: &str) -> String {
    pod(name, "one") + &format!("  imagePullSecrets: [{{name: {secret}}}]\n")
}

fn repo(files: &[(&str, &str)]) -> Repo {
    let files: Files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    Repo::new(files)
}

fn snapshot(objects: impl IntoIterator<Item = Object>) -> Snapshot {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    for value in objects {
        let versioned = VersionedValue { value, create_revision: 1, mod_revision: 1 };
        snapshot.objects.insert(versioned.value.reference(), versioned.into());
    }
    snapshot
}

/// Fails without `files` in `Object::hash_of`, and without checking unchanged manifests again in
/// `read_keeping` (it then keeps the references resolved before).
#[tokio::test]
async fn a_changed_file_changes_the_objects_that_name_it_and_no_other() {
    let mut repo = repo(&[
        ("a.yaml", &with_volume("a", "./config/app/")),
        ("b.yaml", &with_volume("b", "config/other.txt")),
        ("c.yaml", &pod("c", "one")),
        ("config/app/x.yaml", "just: text\n"),
        ("config/other.txt", "other\n"),
        // Hides manifests, but not files for pods.
        (".minik8signore", "config/\n"),
    ]);
    let base = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let first = cluster.objects().await;
    assert_eq!(first["a"].files["config/app"].kind, BlobKind::Folder);
    assert_eq!(first["b"].files["config/other.txt"].kind, BlobKind::File);
    assert!(first["c"].files.is_empty());
    assert_eq!(first["c"].hash, schema::codec::content_hash(&first["c"].resource), "as ever");

    repo.set("config/app/x.yaml", "just: another\n").set("README.md", "noise");
    let head = repo.commit("Another file");
    let review = compare(&merge_of(&repo.path(), &base, &head)).unwrap();
    assert_eq!(review.changes.len(), 1);
    assert_eq!(
        (review.changes[0].name.as_str(), review.changes[0].action.to_string().as_str()),
        ("a", "replace")
    );
    let shown = crate::gitops::review::text(&review, false);
    assert!(shown.contains("restarts 1 pod") && shown.contains("config/app"), "{shown}");

    cluster.settle().await;
    let second = cluster.objects().await;
    assert_ne!(second["a"].hash, first["a"].hash);
    assert_eq!((second["a"].generation, second["a"].provenance.commit.as_str()), (2, head.as_str()));
    assert_eq!((&second["b"], &second["c"]), (&first["b"], &first["c"]));
    let before = cluster.store.revision();
    cluster.run().await;
    cluster.restart();
    cluster.settle().await;
    assert_eq!(cluster.store.revision(), before, "nothing changed, nothing is written");
}

/// Fails with registry logins in `in_hash`.
#[tokio::test]
async fn a_rotated_login_and_a_secret_that_moves_replace_no_pods() {
    let volume = "  volumes:\n  - {name: v, secret: {secretName: db}}\n";
    let mut repo = repo(&[
        ("a.yaml", &with_secret("a", "login")),
        ("b.yaml", &(pod("b", "one") + volume)),
        ("secrets/login.age", AGE),
        ("secrets/db.age", AGE),
    ]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let first = cluster.objects().await;
    repo.set("secrets/login.age", format!("{AGE}another"));
    repo.files.remove("secrets/db.age");
    repo.set("secrets/default/db.age", AGE).commit("A new login; the secret moves");
    cluster.settle().await;
    let second = cluster.objects().await;
    for name in ["a", "b"] {
        assert_eq!(second[name].hash, first[name].hash, "{name}");
        assert_eq!(second[name].generation, 1, "{name}");
        assert_ne!(second[name].files, first[name].files, "{name}: agents learn where it is now");
    }
    repo.set("secrets/default/db.age", format!("{AGE}another")).commit("Another secret");
    cluster.settle().await;
    assert_ne!(cluster.objects().await["b"].hash, first["b"].hash);
}

#[tokio::test]
async fn what_is_missing_or_plain_keeps_its_file_from_being_applied() {
    let mut repo = repo(&[
        ("a.yaml", &with_volume("a", "config")),
        ("b.yaml", &with_secret("b", "db")),
        ("c.yaml", &with_secret("c", "plain")),
        ("d.yaml", &pod("d", "one")),
        ("secrets/plain.age", "password: hunter2\n"),
    ]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["d"]);
    let status = cluster.status().await;
    assert_eq!(status.state, SourceState::Degraded);
    let reported = format!("{status:?}");
    for part in ["repo-file", "secret-file", "no config in", "secrets/default/db.age", "is not encrypted"] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert!(!reported.contains("hunter2"), "{reported}");

    repo.set("config/x", "x").set("secrets/db.age", AGE).set("secrets/plain.age", AGE).commit("Mend");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "c", "d"]);
    let b = cluster.objects().await["b"].clone();
    assert_eq!(b.files["secrets/db.age"].kind, BlobKind::Secret);
    // A secret of the namespace takes precedence over a shared one.
    repo.set("secrets/default/db.age", AGE).commit("Its own");
    cluster.settle().await;
    assert!(cluster.objects().await["b"].files.contains_key("secrets/default/db.age"));
}

/// Fails without `make_again`, without comparing the digest in `BlobStore::open`, and with every digest on disk
/// served.
#[tokio::test]
async fn only_what_is_live_is_served_and_what_is_missing_is_made_again() {
    let mut repo = repo(&[("a.yaml", &with_volume("a", "x.txt")), ("x.txt", "one\n")]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let first = cluster.objects().await["a"].clone();
    repo.set("x.txt", "two\n").commit("Two");
    cluster.settle().await;
    let second = cluster.objects().await["a"].clone();
    let (old, new) = (&first.files["x.txt"], &second.files["x.txt"]);
    let (blobs, store) = (Blobs::new(&repo.state()), BlobStore::new(&repo.state()));
    assert!(store.has(old) && store.has(new));
    let snapshot = snapshot([second.clone()]);
    assert!(matches!(blobs.open(&snapshot, &old.digest), Err(BlobsError::Unreferred(_))));
    assert!(matches!(blobs.open(&snapshot, "../lock"), Err(BlobsError::Digest(_))));

    store.remove(&new.digest).unwrap();
    let (mut file, size) = blobs.open(&snapshot, &new.digest).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!((bytes.len() as u64, size), (new.size, new.size));
    assert!(bytes.windows(4).any(|part| part == b"two\n"));
    // A truncated file counts as missing.
    fs::File::options()
        .write(true)
        .open(repo.state().join("reconciler/blobs").join(&new.digest))
        .unwrap()
        .set_len(3)
        .unwrap();
    assert_eq!(blobs.open(&snapshot, &new.digest).unwrap().1, new.size);

    // Other bytes of the same size; a process that has verified the right bytes does not check again.
    let path = repo.state().join("reconciler/blobs").join(&new.digest);
    fs::remove_file(&path).unwrap();
    fs::write(&path, vec![b'x'; usize::try_from(new.size).unwrap()]).unwrap();
    let (mut file, _) = Blobs::new(&repo.state()).open(&snapshot, &new.digest).unwrap();
    let mut mended = Vec::new();
    file.read_to_end(&mut mended).unwrap();
    assert!(mended == bytes, "what was on disk is given out as it is");

    // A pod of the former revision still waits for its file.
    let mut waiting = snapshot.clone();
    let pod = instance_of(&first);
    let versioned = VersionedValue { value: pod, create_revision: 1, mod_revision: 1 };
    waiting.pods.insert(versioned.value.reference(), versioned.into());
    store.remove(&old.digest).unwrap();
    assert_eq!(blobs.open(&waiting, &old.digest).unwrap().1, old.size);

    store.remove(&new.digest).unwrap();
    fs::remove_dir_all(repo.mirror()).unwrap();
    assert!(matches!(blobs.open(&snapshot, &new.digest), Err(BlobsError::Absent(_))));
    cluster.run().await;
    assert_eq!(blobs.open(&snapshot, &new.digest).unwrap().1, new.size, "the mirror is fetched again");
}

/// Fails when an error of `store.make` ends the read.
#[tokio::test]
async fn a_disk_that_takes_no_content_does_not_keep_the_rest_from_being_applied() {
    let repo = repo(&[("a.yaml", &with_volume("a", "x.txt")), ("b.yaml", &pod("b", "one")), ("x.txt", "x")]);
    let blobs = repo.state().join("reconciler/blobs");
    fs::create_dir_all(blobs.parent().unwrap()).unwrap();
    fs::write(&blobs, "no folder").unwrap();
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b"]);
    let a = cluster.objects().await["a"].clone();
    fs::remove_file(&blobs).unwrap();
    let digest = a.files["x.txt"].digest.clone();
    assert!(Blobs::new(&repo.state()).open(&snapshot([a]), &digest).is_ok(), "made when it is asked for");
}

const FILE: i32 = 0o100_644;
const PROGRAM: i32 = 0o100_755;
const LINK: i32 = 0o120_000;
const FOLDER: i32 = 0o040_000;
const SUBMODULE: i32 = 0o160_000;

fn tree(git: &Repository, items: &[(&str, Oid, i32)]) -> Oid {
    let mut builder = git.treebuilder(None).unwrap();
    for (name, id, mode) in items {
        builder.insert(name, *id, *mode).unwrap();
    }
    builder.write().unwrap()
}

fn look(git: &Repository, root: Oid, path: &str) -> Result<String, String> {
    let author = Signature::new("Ada", "ada@example.org", &git2::Time::new(1_700_000_000, 0)).unwrap();
    let commit = git.commit(None, &author, &author, "x", &git.find_tree(root).unwrap(), &[]).unwrap();
    let nothing = HashedContent::new();
    let mut lookup = InCommit {
        tree: CommitTree { repository: git, commit },
        store: None,
        before: &nothing,
        now: HashedContent::new(),
        unkept: None,
    };
    match lookup.find_blob(path, false) {
        Ok(blob) => Ok(blob.digest),
        Err(error) => Err(format!("{error}: {}", error.help())),
    }
}

#[test]
fn links_out_submodules_and_pointers_are_refused_by_name_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let git = Repository::init_bare(dir.path()).unwrap();
    let blob = |text: &str| git.blob(text.as_bytes()).unwrap();
    let file = ("a", blob("a"), FILE);
    let lfs = blob("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    let inside = |item: (&str, Oid, i32)| tree(&git, &[("conf", tree(&git, &[file, item]), FOLDER)]);
    for (item, part, remedy) in [
        (("l", blob("../../etc"), LINK), "conf/l is a symbolic link that points outside", "the file itself"),
        (
            ("l", blob("/etc/passwd"), LINK),
            "conf/l is a symbolic link that points outside",
            "the file itself",
        ),
        (
            ("m", Oid::from_str(&"1".repeat(40)).unwrap(), SUBMODULE),
            "conf/m is a submodule",
            "commit its files",
        ),
        (("big.bin", lfs, FILE), "conf/big.bin is a Git LFS pointer", "git lfs untrack"),
    ] {
        let why = look(&git, inside(item), "conf").unwrap_err();
        assert!(why.contains(part) && why.contains(remedy), "{why}");
    }
    let good = inside(("l", blob("a"), LINK));
    assert!(look(&git, good, "conf").is_ok(), "a link that stays is one");
    assert!(look(&git, good, "conf/l").unwrap_err().contains("is a symbolic link: name its target"));
    for path in ["../conf", "a\0b", "conf/../conf"] {
        assert!(look(&git, good, path).unwrap_err().contains("there is no"), "{path:?}");
    }
    assert!(look(&git, good, "nothing").unwrap_err().contains("there is no nothing in the repository"));
    assert_ne!(
        look(&git, inside(("p", blob("p"), FILE)), "conf"),
        look(&git, inside(("p", blob("p"), PROGRAM)), "conf")
    );
    // Trees that nest each other many times hold no file, and are not walked to the end.
    let mut bomb = tree(&git, &[]);
    for _ in 0..12 {
        bomb = tree(&git, &[("a", bomb, FOLDER), ("b", bomb, FOLDER), ("c", bomb, FOLDER)]);
    }
    assert!(look(&git, bomb, ".").unwrap_err().contains("more than 10000 files"));
}

#[test]
fn a_folder_of_the_disk_is_checked_as_its_commit_would_be() {
    let dir = tempfile::tempdir().unwrap();
    Repository::init(dir.path()).unwrap();
    let write = |path: &str, text: &str| {
        let at = dir.path().join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, text).unwrap();
    };
    write("apps/a.yaml", &with_volume("a", "config"));
    write("apps/b.yaml", &with_secret("b", "db"));
    write("apps/c.yaml", &with_volume("c", "local.conf"));
    write("local.conf", "x");
    write(".gitignore", "local.conf\n");
    let rules = |path: &Path| -> Vec<String> {
        let found = crate::diagnostics::inspect(&[path]).unwrap().report.violations;
        found.iter().map(|violation| format!("{} {}", violation.file, violation.rule)).collect()
    };
    let all = ["apps/a.yaml repo-file", "apps/b.yaml secret-file", "apps/c.yaml repo-file"];
    assert_eq!(rules(dir.path()), all);
    write("config/x", "x");
    write("apps/secrets/db.age", AGE);
    assert_eq!(rules(&dir.path().join("apps")), ["apps/c.yaml repo-file"]);
    // Whatever path is checked, the source's folder may be above it.
    assert_eq!(rules(&dir.path().join("apps/b.yaml")), [""; 0]);
    assert_eq!(rules(dir.path()), ["apps/c.yaml repo-file"]);
    // A path that can't be read hides no others.
    write("apps/d.yaml", &with_volume("d", &"n".repeat(300)));
    assert_eq!(rules(dir.path()), ["apps/c.yaml repo-file", "apps/d.yaml repo-file"]);
    write("apps/secrets/db.age", "password: x");
    assert_eq!(rules(&dir.path().join("apps/b.yaml")), ["apps/b.yaml secret-file"]);
}

// Seen red with the folder of a function treated as optional.
#[test]
fn a_function_whose_folder_is_missing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    Repository::init(dir.path()).unwrap();
    let function = "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: f}\n\
                    spec: {source: functions/hello}\n";
    fs::write(dir.path().join("f.yaml"), function).unwrap();
    let reported = || crate::diagnostics::inspect(&[dir.path()]).unwrap().report.violations;
    let missing = reported();
    assert_eq!(
        missing.iter().map(|one| (&*one.rule, one.severity)).collect::<Vec<_>>(),
        [("repo-file", Severity::Error)]
    );
    assert_eq!(missing[0].message, "spec.source: there is no functions/hello in the repository");
    fs::create_dir_all(dir.path().join("functions/hello")).unwrap();
    fs::write(dir.path().join("functions/hello/main.py"), "def main(params):\n    return {}\n").unwrap();
    assert_eq!(reported(), []);
}

#[tokio::test]
async fn a_function_that_can_not_run_is_refused_by_all_readers() {
    let code = "def main(params):\n    return {}\n";
    for (spec, file, place) in [
        (
            "source: f",
            "util.py",
            "f.yaml:5:3: error[function-source]: spec.source: f holds neither main.py nor func.py",
        ),
        (
            "source: f",
            "notes.txt",
            "f.yaml:5:3: error[function-source]: spec.source: f holds neither main.py nor func.py",
        ),
        (
            "source: f\n  handler: nomod.f",
            "main.py",
            "f.yaml:6:3: error[function-source]: spec.handler: f holds no module",
        ),
        (
            "source: f\n  handler: main.nofunc",
            "main.py",
            "f.yaml:6:3: error[function-source]: spec.handler: f/main.py has no",
        ),
        (
            "source: f\n  runtime: dockerfile",
            "main.py",
            "f.yaml:6:3: error[function-source]: spec.runtime: f holds no Docker",
        ),
    ] {
        let text =
            format!("apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {{name: f}}\nspec:\n  {spec}\n");
        let file = format!("f/{file}");
        let repo = repo(&[("f.yaml", text.as_str()), (file.as_str(), code), ("a.yaml", &pod("a", "one"))]);
        let head = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
        let named = |found: &[Violation]| found.iter().any(|one| is_at(one, place));
        let review = compare(&Request { base: None, ..merge_of(&repo.path(), "", &head) }).unwrap();
        assert!(named(&review.violations), "{place}: {:?}", review.violations);
        let folder = tempfile::tempdir().unwrap();
        Repository::init(folder.path()).unwrap();
        fs::create_dir(folder.path().join("f")).unwrap();
        fs::write(folder.path().join("f.yaml"), &text).unwrap();
        fs::write(folder.path().join(&file), code).unwrap();
        let validated = crate::diagnostics::inspect(&[folder.path()]).unwrap().report.violations;
        assert!(named(&validated), "{place}: {validated:?}");
        let mut cluster = Cluster::new(&repo).await;
        cluster.settle().await;
        assert_eq!(cluster.objects().await.keys().collect::<Vec<_>>(), ["a"], "{place}");
    }
}

/// True if a violation is printed with this beginning, whatever its column.
fn is_at(violation: &Violation, place: &str) -> bool {
    let (at, rest) = place.split_once(": ").unwrap();
    let line = at.rsplit_once(':').map_or(at, |(line, _)| line);
    let shown = violation.to_string();
    shown.starts_with(&format!("{line}:")) && shown.contains(rest)
}

#[tokio::test]
async fn a_dockerfile_that_no_node_would_build_is_refused_with_its_line() {
    let function = "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: f}\n\
                    spec: {source: ./functions/hello/}\n";
    let good = "FROM busybox\nCOPY x /x\n";
    let mut repo = repo(&[("f.yaml", function), ("functions/hello/Dockerfile", good)]);
    let base = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let built = cluster.objects().await["f"].clone();
    let bad = format!("# a note\n{good}ADD http://127.0.0.1/ \\\n  /x\n");
    repo.set("functions/hello/Dockerfile", bad.as_str());
    let head = repo.commit("ADD");
    let place = "functions/hello/Dockerfile:4:1: error[dockerfile]: ADD would fetch http://127.0.0.1/";
    let named = |found: &[Violation]| {
        found.iter().any(|one| one.rule == "dockerfile" && one.to_string().starts_with(place))
    };
    let review = compare(&merge_of(&repo.path(), &base, &head)).unwrap();
    assert!(named(&review.violations), "{:?}", review.violations);
    cluster.settle().await;
    assert_eq!(cluster.objects().await["f"], built, "it stays as it was");
    let status = cluster.status().await;
    assert!(status.state == SourceState::Degraded && format!("{status:?}").contains("ADD would fetch"));

    let folder = tempfile::tempdir().unwrap();
    Repository::init(folder.path()).unwrap();
    fs::create_dir_all(folder.path().join("functions/hello")).unwrap();
    fs::write(folder.path().join("functions/hello/Dockerfile"), &bad).unwrap();
    let validate = |function: &str| {
        fs::write(folder.path().join("f.yaml"), function).unwrap();
        crate::diagnostics::inspect(&[folder.path()]).unwrap().report.violations
    };
    assert!(named(&validate(function)));
    let python = function.replace("hello/}", "hello/, runtime: python}");
    fs::write(folder.path().join("functions/hello/main.py"), "def main(params):\n    return {}\n").unwrap();
    assert_eq!(validate(&python), [], "it is not built from the Dockerfile");
}
