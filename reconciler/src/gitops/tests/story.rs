//! Everyday changes to a repository, and their effects.

use std::process::Command;

use schema::control::Next;
use schema::keys::Key;
use schema::records::{SourceErrorKind, SourceState, Verdict};
use schema::store::memory::MemoryStore;
use schema::store::{Op, Store, TxnOutcome};

use super::kit::{Cluster, Repo, many, pod, pods};
use crate::git::{Reference, SourceConfig};
use crate::gitops::preflight;

#[tokio::test]
async fn a_first_commit_is_applied_with_its_provenance_and_one_revision() {
    let mut repo = Repo::new(pods(["a", "b"]));
    repo.set("notes.yaml", "just: text\n").set("README.md", "# hello");
    let commit = repo.commit("Say hello\n\nAt length.");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b"]);
    let object = &cluster.objects().await["a"];
    assert_eq!(object.provenance.commit, commit);
    assert_eq!(object.provenance.author, "Ada <ada@example.org>");
    assert_eq!((object.provenance.file.as_str(), object.provenance.line), ("a.yaml", 1));
    assert_eq!(object.generation, 1);
    let status = cluster.status().await;
    assert_eq!((status.state, status.objects, status.revision), (SourceState::Synced, 2, 1));
    assert_eq!(status.applied_commit.as_deref(), Some(&*commit));
    let revisions = cluster.revisions().await;
    assert_eq!(revisions.len(), 1);
    assert_eq!((revisions[0].subject.as_str(), revisions[0].counts.create), ("Say hello", 2));
    assert_eq!(revisions[0].verdict, Verdict::Applied);
}

#[tokio::test]
async fn an_unchanged_repository_writes_nothing() {
    let repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let before = cluster.store.revision();
    for _ in 0..5 {
        let ran = cluster.run().await;
        assert_eq!((ran.steps, ran.next), (0, Some(Next::Interval)));
    }
    cluster.restart();
    cluster.settle().await;
    assert_eq!(cluster.store.revision(), before);
}

#[tokio::test]
async fn an_image_replaces_and_a_label_updates_in_place() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let first = cluster.objects().await["a"].clone();

    repo.set("a.yaml", pod("a", "one").replace("  name: a", "  name: a\n  labels: {tier: front}"));
    let commit = repo.commit("Label");
    cluster.settle().await;
    let labelled = cluster.objects().await["a"].clone();
    assert_eq!((&labelled.hash, labelled.generation), (&first.hash, 1));
    let applied_at = cluster.revisions().await[0].applied_at;
    assert!(first.created_at.is_some_and(|at| at <= applied_at));
    assert_eq!((labelled.metadata.labels["tier"].as_str(), &labelled.provenance.commit), ("front", &commit));

    repo.set("a.yaml", pod("a", "two"));
    repo.commit("Image");
    cluster.settle().await;
    let replaced = cluster.objects().await["a"].clone();
    assert_eq!(replaced.generation, 2);
    assert_eq!([labelled.created_at, replaced.created_at], [first.created_at; 2]);
    assert_ne!(replaced.hash, first.hash);
    let counts: Vec<_> = cluster
        .revisions()
        .await
        .iter()
        .map(|r| (r.counts.create, r.counts.update, r.counts.replace))
        .collect();
    assert_eq!(counts, [(2, 0, 0), (0, 1, 0), (0, 0, 1)]);
}

#[tokio::test]
async fn a_renamed_file_changes_nothing_but_the_place() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let before = cluster.objects().await["a"].clone();
    repo.remove("a.yaml").set("apps/web/moved.yaml", format!("# moved\n{}", pod("a", "one")));
    repo.commit("Move");
    cluster.settle().await;
    let mut after = cluster.objects().await["a"].clone();
    assert_eq!((after.provenance.file.as_str(), after.provenance.line), ("apps/web/moved.yaml", 2));
    after.provenance.file.clone_from(&before.provenance.file);
    after.provenance.line = before.provenance.line;
    assert_eq!(after, before);
    let last = cluster.revisions().await.pop().unwrap().counts;
    assert_eq!((last.create, last.update, last.replace, last.delete), (0, 1, 0, 0));
}

#[tokio::test]
async fn a_deleted_file_removes_its_objects() {
    let mut repo = Repo::new(pods(["a", "b", "c"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.remove("b.yaml").commit("Drop b");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "c"]);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
    assert_eq!(cluster.revisions().await[1].counts.delete, 1);
}

#[tokio::test]
async fn a_broken_file_keeps_its_objects_while_the_rest_of_the_commit_applies() {
    let mut repo = Repo::new(pods(["a", "b", "c"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.set("a.yaml", pod("a", "two").replace("containers:", "containres:"));
    repo.set("b.yaml", pod("b", "two")).set("d.yaml", pod("d", "one")).remove("c.yaml");
    let broken = repo.commit("Break a");
    cluster.settle().await;
    // c is not pruned either: the content of a.yaml is unknown.
    assert_eq!(cluster.names().await, ["a", "b", "c", "d"]);
    let status = cluster.status().await;
    assert_eq!(status.state, SourceState::Degraded);
    let quarantine = &status.quarantined[0];
    assert_eq!((quarantine.file.as_str(), &quarantine.commit), ("a.yaml", &broken));
    assert_eq!(quarantine.author, "Ada <ada@example.org>");
    let typo = quarantine.violations.iter().find(|violation| violation.rule == "unknown-field").unwrap();
    assert_eq!(typo.line, 6, "{typo}");
    let held: Vec<String> =
        status.held_prune.iter().flat_map(|held| &held.objects).map(|o| o.name.clone()).collect();
    assert_eq!(held, ["c"], "what a.yaml held is kept with it, and no removal");
    assert!(
        matches!(&cluster.revisions().await[1].verdict, Verdict::Degraded { why } if why.contains("a.yaml"))
    );

    // A later commit does not take the blame.
    repo.set("b.yaml", pod("b", "three")).commit("Other");
    cluster.settle().await;
    assert_eq!(cluster.status().await.quarantined[0].commit, broken);

    repo.set("a.yaml", pod("a", "two")).commit("Mend a");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "d"]);
    let status = cluster.status().await;
    assert_eq!((status.state, status.quarantined.len(), status.held_prune), (SourceState::Synced, 0, None));
}

// Seen red with removals decided again after a kept object was found in the way.
#[tokio::test]
async fn a_rename_that_is_held_says_so_and_not_only_what_is_in_its_way() {
    let text = |name: &str| {
        let service = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  type: NodePort\n  \
             selector: {{app: web}}\n  ports: [{{port: 80, nodePort: 30080}}]\n"
        );
        format!("{}---\n{service}", pod(name, "one").replace("  name: ", "  labels: {app: web}\n  name: "))
    };
    let mut repo = Repo::new([("all.yaml".to_owned(), text("web"))].into());
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.set("all.yaml", text("shop")).commit("Another name");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["web"]);
    let status = cluster.status().await;
    let held = status.held_prune.expect("all goes");
    assert!(held.why.contains("every object") && held.why.contains("Minik8s-Allow-Prune: true"), "{held:?}");
    let reported =
        status.quarantined.iter().flat_map(|file| &file.violations).find(|v| v.rule == "port-clash");
    let help = &reported.expect("the port is taken").help;
    assert!(help.contains("its removal is held") && help.contains("or choose another"), "{help}");
    repo.commit("Yes\n\nMinik8s-Allow-Prune: true\n");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["shop"]);
    let status = cluster.status().await;
    assert!(status.quarantined.is_empty() && status.held_prune.is_none(), "{status:?}");
}

#[tokio::test]
async fn a_held_prune_is_released_by_a_trailer_on_an_empty_commit() {
    let mut repo = Repo::new(pods(many(20)));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.files = pods(many(2));
    let held = repo.commit("Remove most");
    cluster.settle().await;
    assert_eq!(cluster.names().await.len(), 20);
    let status = cluster.status().await;
    assert_eq!(status.state, SourceState::Degraded);
    let prune = status.held_prune.unwrap();
    assert_eq!((prune.deletes, prune.owned, &prune.commit), (18, 20, &held));
    assert!(prune.why.contains("Minik8s-Allow-Prune: true"), "{}", prune.why);
    // It stays held under later commits.
    repo.set("p0.yaml", pod("p0", "two")).commit("Other");
    cluster.settle().await;
    assert_eq!(cluster.names().await.len(), 20);
    repo.commit("Yes\n\nMinik8s-Allow-Prune: true\n");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["p0", "p1"]);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn a_hold_outlives_what_the_same_commit_creates() {
    let mut repo = Repo::new(pods(many(5)));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.files = pods((0..40).map(|n| format!("new{n}")));
    repo.commit("Rename all and add more");
    for _ in 0..3 {
        cluster.restart();
        cluster.settle().await;
        assert_eq!(cluster.names().await.len(), 45);
    }
    repo.set("new0.yaml", pod("new0", "two")).commit("Go on");
    cluster.settle().await;
    assert_eq!(cluster.names().await.len(), 45);
    let held = cluster.status().await.held_prune.unwrap();
    assert_eq!((held.deletes, held.owned), (5, 5));
    // With most of it back, the rest is an ordinary removal.
    for name in many(4) {
        repo.set(&format!("{name}.yaml"), pod(&name, "one"));
    }
    repo.commit("Put four back");
    cluster.settle().await;
    assert_eq!(cluster.names().await.len(), 44);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn the_last_file_goes_with_the_trailer() {
    for path in ["", "apps"] {
        let mut repo = Repo::new([("apps/a.yaml".to_owned(), pod("a", "one"))].into());
        let mut config = repo.config();
        config.path = path.to_owned();
        let store = MemoryStore::new();
        let mut cluster = Cluster::with(config, &repo.state(), store).await;
        cluster.settle().await;
        repo.remove("apps/a.yaml").set("README.md", "gone");
        repo.commit("Remove the last");
        cluster.settle().await;
        assert_eq!(cluster.names().await, ["a"], "path {path:?}");
        let status = cluster.status().await;
        assert_eq!(status.state, SourceState::Failed);
        assert!(cluster.revisions().await.len() == 1);
        repo.commit("Really\n\nMinik8s-Allow-Prune: true");
        cluster.settle().await;
        assert!(cluster.names().await.is_empty(), "path {path:?}");
        assert_eq!(cluster.status().await.state, SourceState::Synced);
    }
}

#[tokio::test]
async fn an_annotation_protects_an_object() {
    let keep =
        pod("a", "one").replace("  name: a", "  name: a\n  annotations: {minik8s.io/prune: \"false\"}");
    let mut repo = Repo::new(pods(["b", "c"]));
    repo.set("a.yaml", keep).commit("Protect a");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.remove("a.yaml").remove("b.yaml").commit("Drop a and b");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "c"]);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn what_a_hand_did_in_etcd_is_healed_without_a_new_revision() {
    let repo = Repo::new(pods(["a", "b", "c", "d"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let before = cluster.objects().await;
    let key = |name: &str| format!("/minik8s/objects/Pod/default/{name}");
    let mut altered = serde_json::to_value(&before["b"]).unwrap();
    altered["spec"]["containers"][0]["image"] = "evil".into();
    let ops = vec![
        Op::delete(key("a")),
        Op::put(key("b"), serde_json::to_vec(&altered).unwrap()),
        Op::put(key("c"), "garbage"),
    ];
    let _ = cluster.store.txn(vec![], ops).await.unwrap();
    cluster.settle().await;
    let mut healed = cluster.objects().await;
    // What is created again is younger.
    healed.iter_mut().for_each(|(name, object)| object.created_at = before[name].created_at);
    assert_eq!(healed, before);
    assert_eq!(cluster.revisions().await.len(), 1);
}

#[tokio::test]
async fn the_newest_commit_wins_over_those_between() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    for image in ["two", "three", "four"] {
        repo.set("a.yaml", pod("a", image)).commit(image);
    }
    cluster.settle().await;
    assert_eq!(cluster.revisions().await.len(), 2);
    let text = serde_json::to_string(&cluster.objects().await["a"].resource).unwrap();
    assert!(text.contains("four"), "{text}");
}

#[tokio::test]
async fn a_lost_fence_writes_nothing_and_raises_no_storm() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let leader = "/minik8s/leader";
    let _ = cluster.store.txn(vec![], vec![Op::delete(leader)]).await.unwrap();
    let _ = cluster.store.txn(vec![], vec![Op::put(leader, "{}")]).await.unwrap();
    repo.set("a.yaml", pod("a", "two")).remove("b.yaml").commit("Change");
    let before = cluster.store.revision();
    for _ in 0..3 {
        let ran = cluster.run().await;
        assert_eq!((ran.error, ran.next), (None, Some(Next::Interval)));
    }
    assert_eq!(cluster.store.revision(), before);
}

#[tokio::test]
async fn two_sources_do_not_take_each_others_objects() {
    let one = Repo::new(pods(["a", "b"]));
    let mut two = Repo::new(pods(["b", "c"]));
    let mut first = Cluster::new(&one).await;
    first.settle().await;
    let mut config = two.config();
    config.name = "other".into();
    let mut second = Cluster::with(config, &two.state(), first.store.clone()).await;
    second.settle().await;
    assert_eq!(second.names().await, ["a", "b", "c"]);
    assert_eq!(second.objects().await["b"].provenance.source, "main");
    let found = second.store.get("/minik8s/sources/other").await.unwrap().unwrap();
    let text = String::from_utf8(found.value.to_vec()).unwrap();
    assert!(text.contains("owned-by-other-source") && text.contains("Degraded"), "{text}");
    two.remove("b.yaml").commit("Give way");
    second.settle().await;
    assert_eq!(second.names().await, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_remote_that_comes_back_clears_its_error() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let away = repo.path().with_extension("away");
    std::fs::rename(repo.path(), &away).unwrap();
    cluster.settle().await;
    let status = cluster.status().await;
    assert_eq!(status.state, SourceState::Failed);
    assert_eq!(status.error.unwrap().kind, SourceErrorKind::RemoteUnreachable);
    // Drift is repaired from the last commit read.
    let _ = cluster.store.txn(vec![], vec![Op::delete("/minik8s/objects/Pod/default/a")]).await.unwrap();
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b"]);
    std::fs::rename(&away, repo.path()).unwrap();
    repo.remove("a.yaml").commit("Drop a");
    cluster.settle().await;
    let status = cluster.status().await;
    assert_eq!((status.state, status.error), (SourceState::Synced, None));
    assert_eq!(cluster.names().await, ["b"]);
}

// Would fail with the last commit that could be read.
#[tokio::test]
async fn a_commit_that_cannot_be_read_is_the_observed_one() {
    let mut repo = Repo::new(pods(["a"]));
    let applied = repo.set("apps/b.yaml", pod("b", "one")).commit("Add b");
    let config = SourceConfig { path: "apps".to_owned(), ..repo.config() };
    let mut cluster = Cluster::with(config, &repo.state(), MemoryStore::new()).await;
    cluster.settle().await;
    let without = repo.remove("apps/b.yaml").commit("Drop the folder");
    cluster.settle().await;
    let status = cluster.status().await;
    assert_eq!(status.error.unwrap().kind, SourceErrorKind::PathNotFound);
    assert_eq!((status.observed_commit, status.applied_commit), (Some(without), Some(applied)));
    assert_eq!(cluster.names().await, ["b"]);
}

/// Returns the output of a program without the machine's settings.
fn run(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    let output = command.env_remove("SSH_AUTH_SOCK").output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

// Would fail if a commit were taken for known because its error is the same as that of another.
#[tokio::test]
async fn each_commit_is_the_observed_one_while_the_signers_cannot_be_read() {
    let mut repo = Repo::new(pods(["a"]));
    let (key, signers) = (repo.state().with_file_name("key"), repo.state().with_file_name("signers"));
    run("ssh-keygen", &["-q", "-N", "", "-C", "", "-t", "ed25519", "-f", key.to_str().unwrap()]);
    let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    std::fs::write(&signers, format!("* {public}")).unwrap();
    let (at, key) = (repo.path(), format!("user.signingkey={}", key.display()));
    let git = |args: &[&str]| {
        let settings = ["-c", "gpg.format=ssh", "-c", key.as_str(), "-c", "user.name=Ada"];
        let place = ["-C", at.to_str().unwrap(), "-c", "user.email=ada@example.org"];
        run("git", &[&place[..], &settings[..], args].concat())
    };
    let signed = git(&["commit-tree", "-S", "main^{tree}", "-m", "Signed"]);
    git(&["update-ref", "refs/heads/main", &signed]);
    let mut config = repo.config();
    config.signatures = crate::git::SignaturePolicy::from_files(Some(signers.clone()), None);
    let mut cluster = Cluster::with(config, &repo.state(), MemoryStore::new()).await;
    cluster.settle().await;
    assert_eq!(cluster.status().await.applied_commit, Some(signed));
    std::fs::remove_file(&signers).unwrap();
    for message in ["Second", "Third"] {
        let commit = repo.commit(message);
        cluster.settle().await;
        let status = cluster.status().await;
        assert_eq!(status.error.unwrap().kind, SourceErrorKind::SignatureInvalid);
        assert_eq!(status.observed_commit, Some(commit), "{message}");
    }
}

#[tokio::test]
async fn an_etcd_that_was_lost_is_filled_again_by_the_same_process() {
    let repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.store.lose_everything();
    // The new etcd counts from 1: the same process leads it with the same revision.
    let lead = cluster.store.txn(vec![], vec![Op::put(Key::Leader, "{}")]).await.unwrap();
    assert_eq!(lead, TxnOutcome::Committed(cluster.fence.create_revision));
    let waits = cluster.run().await.error.expect("it looks for its own writes first");
    assert!(waits.contains("not seen yet"), "{waits}");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b"]);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn preflight_says_what_is_wrong_in_one_line() {
    let mut repo = Repo::new(pods(["a"]));
    repo.set("apps/b.yaml", pod("b", "one")).commit("Apps");
    let empty = Repo::new(super::kit::Files::new());
    type Wrong = (&'static str, fn(&mut SourceConfig));
    let wrong: [Wrong; 4] = [
        ("no Git repository at /nowhere", |config| config.url = "/nowhere".to_owned()),
        ("has no branch `none`", |config| config.reference = Reference::Branch("none".to_owned())),
        ("has no folder `none`", |config| config.path = "none".to_owned()),
        ("source name `A b`", |config| config.name = "A b".to_owned()),
    ];
    for (says, spoil) in wrong {
        let (state, mut config) = (tempfile::tempdir().unwrap(), repo.config());
        spoil(&mut config);
        let error = preflight(&config, state.path()).await.unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    }
    assert!(preflight(&empty.config(), &empty.state()).await.is_ok(), "somebody will push");
    assert!(preflight(&repo.config(), &repo.state()).await.is_ok());
    // After one successful fetch, the daemon starts without the remote.
    std::fs::remove_dir_all(repo.path()).unwrap();
    assert!(preflight(&repo.config(), &repo.state()).await.is_ok());
}

#[tokio::test]
async fn a_daemon_does_not_start_on_an_unsigned_commit() {
    const SIGNER: &str =
        "* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHZW0yWgHQbuBE0WLWJcyy46HpY3wQEo0Hk+Ug5Tnbn2\n";
    let repo = Repo::new(pods(["a"]));
    let signers = repo.state().with_extension("signers");
    std::fs::write(&signers, SIGNER).unwrap();
    let mut config = repo.config();
    config.signatures = crate::git::SignaturePolicy::from_files(Some(signers), None);
    // The folder is missing, too, but the signature is checked first.
    config.path = "none".to_owned();
    let error = preflight(&config, &repo.state()).await.unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::SignatureInvalid, "{error}");
}
