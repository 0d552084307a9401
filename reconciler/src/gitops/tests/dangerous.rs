//! Commits and outages that look like a mass removal but are not: no object is removed.

use std::fs;

use schema::records::{SourceErrorKind, SourceState};
use schema::store::memory::MemoryStore;

use super::kit::{Cluster, Files, Repo, many, pod, pods};
use crate::git::Reference;

/// Objects present before each case.
const OBJECTS: usize = 20;

struct Case {
    name: &'static str,
    danger: fn(&mut Repo),
    /// Expected state; the status must contain the text `says`.
    state: SourceState,
    says: &'static str,
}

fn case(name: &'static str, state: SourceState, says: &'static str, danger: fn(&mut Repo)) -> Case {
    Case { name, danger, state, says }
}

/// A namespace-like prefix on every name, so that every object is another.
fn renamed_objects() -> Files {
    many(OBJECTS).map(|name| (format!("apps/{name}.yaml"), pod(&format!("team-{name}"), "one"))).collect()
}

fn below_apps(files: Files) -> Files {
    files.into_iter().map(|(path, text)| (format!("apps/{path}"), text)).collect()
}

fn set_each(repo: &mut Repo, to: impl Fn(&str) -> String) {
    for text in repo.files.values_mut() {
        *text = to(text);
    }
}

fn set_main(repo: &Repo, target: Option<git2::Oid>) {
    let git = repo.git();
    match target {
        Some(id) => drop(git.reference("refs/heads/main", id, true, "test").unwrap()),
        None => git.find_reference("refs/heads/main").unwrap().delete().unwrap(),
    }
}

const FIRST: &str = "apps/p0.yaml";

#[rustfmt::skip]
fn content_cases() -> Vec<Case> {
    use SourceState::{Degraded, Failed};
    vec![
        case("every file removed", Failed, "path", |repo| { repo.files.clear(); repo.commit("x"); }),
        case("every file removed but a README", Failed, "path", |repo| { repo.files = [("README.md".into(), "x".into())].into(); repo.commit("x"); }),
        case("folder keeps only other files", Failed, "Minik8s-Allow-Prune", |repo| { repo.files = [("apps/README.md".into(), "x".into())].into(); repo.commit("x"); }),
        case("folder renamed", Failed, "apps", |repo| { repo.files = repo.files.iter().map(|(p, t)| (p.replace("apps/", "app/"), t.clone())).collect(); repo.commit("x"); }),
        case("folder replaced by a file", Failed, "apps", |repo| { repo.files = [("apps".into(), "x".into())].into(); repo.commit("x"); }),
        case("nine of ten removed", Degraded, "18 of 20", |repo| { repo.files = below_apps(pods(many(2))); repo.commit("x"); }),
        case("one more than the budget removed", Degraded, "11 of 20", |repo| { repo.files = below_apps(pods(many(9))); repo.commit("x"); }),
        case("every object renamed", Degraded, "every object", |repo| { repo.files = renamed_objects(); repo.commit("x"); }),
        case("every object to another namespace", Degraded, "every object", |repo| { set_each(repo, |t| t.replace("metadata:\n", "metadata:\n  namespace: other\n")); repo.commit("x"); }),
        case("everything ignored", Failed, "Minik8s-Allow-Prune", |repo| { repo.set(".minik8signore", "*.yaml\n").commit("x"); }),
        case("a folder of most ignored", Failed, "Minik8s-Allow-Prune", |repo| { repo.set("apps/.minik8signore", "/p*\n").commit("x"); }),
        case("every file made plain text by its extension", Failed, "Minik8s-Allow-Prune", |repo| { repo.files = repo.files.iter().map(|(p, t)| (p.replace(".yaml", ".yaml.bak"), t.clone())).collect(); repo.commit("x"); }),
        case("every file broken", Degraded, "apps/p0.yaml", |repo| { set_each(repo, |t| format!("{t}\t: [")); repo.commit("x"); }),
        case("every file emptied", Failed, "manifest-vanished", |repo| { set_each(repo, |_| String::new()); repo.commit("x"); }),
        case("every file without its kind", Degraded, "kind", |repo| { set_each(repo, |t| t.replace("kind: Pod\n", "")); repo.commit("x"); }),
        case("one file broken, the others removed", Degraded, FIRST, |repo| { let text = repo.files[FIRST].clone(); repo.files = [(FIRST.into(), text.replace("containers", "contaners"))].into(); repo.commit("x"); }),
        case("one file broken, one removed", Degraded, FIRST, |repo| { repo.set(FIRST, "kind: Pod\n").remove("apps/p1.yaml").commit("x"); }),
        case("one file with a merge conflict in it", Degraded, FIRST, |repo| { let text = repo.files[FIRST].clone(); repo.set(FIRST, format!("<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> other\n")).commit("x"); }),
        case("one file cut short", Degraded, FIRST, |repo| { let text = repo.files[FIRST][..40].to_owned(); repo.set(FIRST, text).commit("x"); }),
        case("one file of zeros, as after a crash", Degraded, FIRST, |repo| { repo.set(FIRST, "\0".repeat(100)).commit("x"); }),
        case("a misspelt apiVersion and kind", Degraded, FIRST, |repo| { let text = repo.files[FIRST].replace("apiVersion", "piVersion").replace("kind: Pod", "kind: Pood"); repo.set(FIRST, text).commit("x"); }),
        case("one object twice", Degraded, "apps/p1.yaml", |repo| { let text = repo.files[FIRST].clone(); repo.set("apps/p1.yaml", text).commit("x"); }),
        case("a huge file", Degraded, FIRST, |repo| { repo.set(FIRST, format!("# {}\n", "x".repeat(5 << 20))).commit("x"); }),
        case("one file renamed to a name that is not UTF-8", Degraded, "file-name", |repo| rename_bytes(repo, b"p0.yaml", b"p0-\xe9.yaml")),
        case("an ignore file that is too large to be one", Failed, "4 MiB", |repo| { repo.set("apps/.minik8signore", format!("{}\n/p1*\n", "#".repeat(5 << 20))).commit("x"); }),
        case("aliases that expand for ever", Degraded, FIRST, |repo| { repo.set(FIRST, alias_bomb()).commit("x"); }),
    ]
}

/// Renames a file below `apps`; names are bytes, and keep their place in the tree's order.
fn rename_bytes(repo: &Repo, from: &[u8], to: &[u8]) {
    let git = repo.git();
    let head = git.find_reference("refs/heads/main").unwrap().peel_to_commit().unwrap();
    let apps = head.tree().unwrap().get_name("apps").unwrap().id();
    let bytes = git.odb().unwrap().read(apps).unwrap().data().to_vec();
    let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
    let renamed = [&bytes[..at], to, &bytes[at + from.len()..]].concat();
    let renamed = git.odb().unwrap().write(git2::ObjectType::Tree, &renamed).unwrap();
    let mut root = git.treebuilder(Some(&head.tree().unwrap())).unwrap();
    root.insert("apps", renamed, 0o040_000).unwrap();
    let root = git.find_tree(root.write().unwrap()).unwrap();
    let author = head.author();
    git.commit(Some("refs/heads/main"), &author, &author, "x", &root, &[&head]).unwrap();
}

fn alias_bomb() -> String {
    let mut text = String::from("kind: Pod\na0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        text += &format!("a{level}: &a{level} [{}]\n", vec![before; 9].join(", "));
    }
    text
}

#[rustfmt::skip]
fn history_cases() -> Vec<Case> {
    use SourceState::{Degraded, Failed};
    vec![
        case("a branch of no common history", Degraded, "no common history", |repo| { repo.files = below_apps(pods(many(19))); repo.commit_orphan("x"); }),
        case("a branch of no common history and other objects", Degraded, "no common history", |repo| { repo.files = renamed_objects(); repo.commit_orphan("x"); repo.set("apps/z.yaml", pod("z", "one")).commit("y"); }),
        case("the branch removed", Failed, "branch", |repo| set_main(repo, None)),
        case("the branch points nowhere", Failed, "main", |repo| {
            fs::create_dir_all(repo.path().join("refs/heads")).unwrap();
            fs::write(repo.path().join("refs/heads/main"), "0123456789012345678901234567890123456789\n").unwrap();
        }),
        case("the repository gone", Failed, "check", |repo| fs::remove_dir_all(repo.path()).unwrap()),
        case("the repository an empty folder", Failed, "check", |repo| { fs::remove_dir_all(repo.path()).unwrap(); fs::create_dir(repo.path()).unwrap(); }),
        case("the repository made anew, empty", Failed, "branch", |repo| { fs::remove_dir_all(repo.path()).unwrap(); git2::Repository::init_bare(repo.path()).unwrap(); }),
        case("the repository a file", Failed, "check", |repo| { fs::remove_dir_all(repo.path()).unwrap(); fs::write(repo.path(), "x").unwrap(); }),
    ]
}

async fn apps_cluster() -> (Repo, Cluster) {
    let repo = Repo::new(below_apps(pods(many(OBJECTS))));
    let mut config = repo.config();
    config.path = "apps".to_owned();
    let mut cluster = Cluster::with(config, &repo.state(), MemoryStore::new()).await;
    cluster.settle().await;
    (repo, cluster)
}

async fn endure(case: &Case, restarted: bool) {
    let (mut repo, mut cluster) = apps_cluster().await;
    let before = cluster.objects().await;
    (case.danger)(&mut repo);
    if restarted {
        cluster.restart();
    }
    cluster.settle().await;
    let after = cluster.objects().await;
    for (name, object) in &before {
        assert_eq!(
            after.get(name).map(|a| &a.hash),
            Some(&object.hash),
            "{}: {name} (restarted: {restarted})",
            case.name
        );
    }
    let status = cluster.status().await;
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(status.state, case.state, "{}: {text}", case.name);
    assert!(text.contains(case.says), "{}: does not say `{}`: {text}", case.name, case.says);
}

#[tokio::test]
async fn no_dangerous_content_removes_an_object() {
    for case in content_cases() {
        endure(&case, false).await;
    }
}

#[tokio::test]
async fn no_dangerous_content_removes_an_object_at_a_start() {
    for case in content_cases() {
        endure(&case, true).await;
    }
}

#[tokio::test]
async fn no_lost_history_or_remote_removes_an_object() {
    for case in history_cases() {
        endure(&case, false).await;
        endure(&case, true).await;
    }
}

#[tokio::test]
async fn a_broken_mirror_is_made_anew_and_removes_nothing() {
    type Damage = (&'static str, fn(&Repo));
    let damages: [Damage; 7] = [
        ("gone", |repo| fs::remove_dir_all(repo.mirror()).unwrap()),
        ("packs cut short", |repo| each_pack(repo, |bytes| bytes.truncate(bytes.len() / 2))),
        ("packs of garbage", |repo| each_pack(repo, |bytes| bytes.fill(7))),
        ("packs emptied", |repo| each_pack(repo, Vec::clear)),
        ("HEAD of garbage", |repo| fs::write(repo.mirror().join("HEAD"), "garbage").unwrap()),
        ("config of garbage", |repo| fs::write(repo.mirror().join("config"), "[[[").unwrap()),
        ("reference of garbage", |repo| fs::write(repo.mirror().join("refs/heads/main"), "garbage").unwrap()),
    ];
    for (name, damage) in damages {
        for change in [false, true] {
            let (mut repo, mut cluster) = apps_cluster().await;
            damage(&repo);
            if change {
                repo.remove("apps/p3.yaml").commit("Drop p3");
            }
            cluster.restart();
            cluster.settle().await;
            let expected = if change { OBJECTS - 1 } else { OBJECTS };
            assert_eq!(cluster.names().await.len(), expected, "{name}, change: {change}");
            assert_eq!(cluster.status().await.state, SourceState::Synced, "{name}, change: {change}");
        }
    }
}

fn each_pack(repo: &Repo, damage: impl Fn(&mut Vec<u8>)) {
    for entry in fs::read_dir(repo.mirror().join("objects/pack")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    }
}

#[tokio::test]
async fn another_branch_or_repository_in_the_configuration_removes_nothing_unasked() {
    let (mut repo, cluster) = apps_cluster().await;
    let other = Repo::new(below_apps(pods(["x", "y"])));
    let head = repo.git().find_reference("refs/heads/main").unwrap().target().unwrap();
    repo.git().reference("refs/heads/side", head, true, "test").unwrap();
    repo.files = below_apps(pods(many(3)));
    repo.commit("Few");
    let mut wrong_address = other.config();
    wrong_address.path = "apps".to_owned();
    let wrong_branch = repo.config();
    let mut wrong_tag = repo.config();
    wrong_tag.reference = Reference::Tag("none".to_owned());
    for config in [wrong_address, wrong_branch, wrong_tag] {
        let mut other = Cluster::with(config, &repo.state(), cluster.store.clone()).await;
        other.settle().await;
        let names = other.names().await;
        assert!(many(OBJECTS).all(|name| names.contains(&name)), "{names:?}");
        assert_ne!(other.status().await.state, SourceState::Synced);
    }
}

#[tokio::test]
async fn a_history_begun_anew_with_the_same_content_is_taken_over() {
    let (mut repo, mut cluster) = apps_cluster().await;
    repo.commit_orphan("Squash all");
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Synced);
    repo.remove("apps/p1.yaml").commit("Drop p1");
    cluster.settle().await;
    assert_eq!(cluster.names().await.len(), OBJECTS - 1);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn an_amended_commit_is_a_commit_as_any_other() {
    let (mut repo, mut cluster) = apps_cluster().await;
    let first = repo.git().find_reference("refs/heads/main").unwrap().target();
    repo.remove("apps/p1.yaml").commit("Drop p1");
    cluster.settle().await;
    repo.set("apps/p1.yaml", pod("p1", "one")).remove("apps/p2.yaml").commit_on(first, "Drop p2 instead");
    cluster.settle().await;
    let names = cluster.names().await;
    assert!(names.contains(&"p1".to_owned()) && !names.contains(&"p2".to_owned()), "{names:?}");
}

#[tokio::test]
async fn a_state_directory_that_cannot_be_written_is_an_error_that_says_so() {
    let (repo, cluster) = apps_cluster().await;
    let state = repo.state().join("file");
    fs::write(&state, "x").unwrap();
    let mut config = repo.config();
    config.path = "apps".to_owned();
    let mut other = Cluster::with(config, &state, cluster.store.clone()).await;
    other.settle().await;
    assert_eq!(other.names().await.len(), OBJECTS);
    let error = other.status().await.error.unwrap();
    assert_eq!(error.kind, SourceErrorKind::MirrorBroken);
    assert!(error.message.contains("--state-dir"), "{}", error.message);
}

fn cluster_file(max_objects: u32) -> String {
    format!(
        "apiVersion: v1\nkind: Cluster\nmetadata: {{name: cluster}}\n\
         spec:\n  prune: {{maxObjects: {max_objects}, maxPercent: 0}}\n"
    )
}

#[tokio::test]
async fn the_prune_policy_counts_that_was_applied_and_not_the_one_that_comes_along() {
    let mut repo = Repo::new(pods(many(20)));
    repo.set("cluster.yaml", cluster_file(2)).commit("x");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.remove("p0.yaml").remove("p1.yaml").commit("two");
    cluster.settle().await;
    assert_eq!(cluster.names().await.len(), 19);
    for name in ["p2.yaml", "p3.yaml", "p4.yaml"] {
        repo.remove(name);
    }
    repo.set("cluster.yaml", cluster_file(5)).commit("three, and a looser policy");
    cluster.settle().await;
    cluster.restart();
    cluster.settle().await;
    assert_eq!(cluster.names().await.len(), 19);
    let text = serde_json::to_string(&cluster.status().await).unwrap();
    assert!(text.contains("before this commit changed it"), "{text}");
    repo.set("README.md", "x").commit("by now it is the policy");
    cluster.settle().await;
    assert_eq!(cluster.names().await.len(), 16);
}
