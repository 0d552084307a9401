//! A lost etcd releases no held removal, and no other object may take over anything that the held object still owns.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::Config;
use schema::kinds::metadata::PRUNE_ANNOTATION;
use schema::records::{SourceErrorKind, SourceState};
use schema::store::memory::MemoryStore;
use schema::violation::rules;

use super::kit::{Cluster, Files, Repo, many, pod, pods};
use super::proofs::{applied, situation};
use crate::gitops::plan::plan;

/// The same source and state directory with an empty etcd.
async fn at_empty_etcd(repo: &Repo) -> Cluster {
    Cluster::with(repo.config(), &repo.state(), MemoryStore::new()).await
}

async fn is_held(cluster: &mut Cluster, says: &str) {
    for restarted in [false, true] {
        if restarted {
            cluster.restart();
        }
        cluster.settle().await;
        let status = cluster.status().await;
        let why = status.held_prune.clone().expect("it is held").why;
        assert!(status.state == SourceState::Degraded && why.contains(says), "{why}");
    }
}

#[tokio::test]
async fn a_held_removal_stays_held_in_an_empty_etcd_until_a_commit_releases_it() {
    let mut repo = Repo::new(pods(many(20)));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.files = pods(many(2));
    repo.files.extend(pods((0..100).map(|n| format!("new{n}"))));
    repo.commit("Much less, and much that is new");
    is_held(&mut cluster, "18 of 20").await;
    // Losing etcd more than once changes nothing.
    for _ in 0..2 {
        cluster = at_empty_etcd(&repo).await;
        is_held(&mut cluster, "18 of 20").await;
        assert_eq!(cluster.names().await.len(), 102);
    }
    repo.commit("It is meant\n\nMinik8s-Allow-Prune: true");
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Synced);
    let mut cluster = at_empty_etcd(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn a_commit_is_measured_against_what_the_lost_etcd_held() {
    type Danger = fn(&mut Repo) -> String;
    let many_fewer: Danger = |repo| {
        repo.files = pods(many(5));
        repo.commit("x")
    };
    let unrelated: Danger = |repo| {
        repo.remove("p7.yaml");
        repo.commit_orphan("x")
    };
    for (danger, says) in [(many_fewer, "15 of 20"), (unrelated, "no common history")] {
        let mut repo = Repo::new(pods(many(20)));
        Cluster::new(&repo).await.settle().await;
        danger(&mut repo);
        let mut cluster = at_empty_etcd(&repo).await;
        is_held(&mut cluster, says).await;
        // Objects named again are no longer missed.
        repo.files = pods(many(20));
        repo.commit("All again");
        cluster.settle().await;
        assert_eq!(cluster.status().await.state, SourceState::Synced);
    }
    // A permitted removal blocks nothing.
    let mut repo = Repo::new(pods(many(20)));
    Cluster::new(&repo).await.settle().await;
    repo.remove("p7.yaml").commit("One less");
    let mut cluster = at_empty_etcd(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn what_only_an_annotation_keeps_is_missed_in_an_empty_etcd() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let kept = pod("kept", "one")
        .replace("  name: kept", &format!("  name: kept\n  annotations: {{{PRUNE_ANNOTATION}: \"false\"}}"));
    repo.set("kept.yaml", kept).commit("First");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.remove("kept.yaml").commit("Git has it no more\n\nMinik8s-Allow-Prune: true");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "kept"]);
    let mut cluster = at_empty_etcd(&repo).await;
    is_held(&mut cluster, PRUNE_ANNOTATION).await;
    repo.set("kept.yaml", pod("kept", "one")).commit("Name it");
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn a_repository_that_never_held_a_manifest_is_synced() {
    let mut repo = Repo::new([("README.md".to_owned(), "x".to_owned())].into());
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let status = cluster.status().await;
    assert_eq!((status.state, status.objects, status.error), (SourceState::Synced, 0, None));
    repo.set("a.yaml", pod("a", "one")).commit("The first");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a"]);
}

#[tokio::test]
async fn a_repository_without_a_commit_is_pending_until_one_is_pushed() {
    let mut repo = Repo::new(Files::new());
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let status = cluster.status().await;
    let error = status.error.unwrap();
    assert_eq!((status.state, error.kind), (SourceState::Pending, SourceErrorKind::NoCommit));
    let why = error.message;
    assert!(why.ends_with("holds no commit yet; push one to its branch `main`"), "{why}");
    repo.set("a.yaml", pod("a", "one")).commit("The first");
    cluster.settle().await;
    assert_eq!(
        (cluster.status().await.state, cluster.names().await),
        (SourceState::Synced, vec!["a".to_owned()])
    );
}

// Seen red with the same kind as for a repository without a commit: pending.
#[tokio::test]
async fn a_branch_that_is_not_there_beside_others_has_failed() {
    let repo = Repo::new(pods(["a"]));
    let mut config = repo.config();
    config.reference = crate::git::Reference::Branch("mian".to_owned());
    let mut cluster = Cluster::with(config, &repo.state(), MemoryStore::new()).await;
    cluster.settle().await;
    let status = cluster.status().await;
    let error = status.error.unwrap();
    assert_eq!((status.state, error.kind), (SourceState::Failed, SourceErrorKind::ReferenceNotFound));
    assert!(error.message.contains("no branch `mian`; it has: main;"), "{}", error.message);
}

#[tokio::test]
async fn a_commit_without_manifests_is_never_synced_unless_it_says_that_it_is_meant() {
    let mut repo = Repo::new(pods(["a"]));
    repo.remove("a.yaml").set("README.md", "x".to_owned()).commit("Without");
    // Only the history shows that there were manifests.
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let status = cluster.status().await;
    assert_eq!((status.state, status.error.unwrap().kind), (SourceState::Failed, SourceErrorKind::Empty));
    assert_eq!(status.applied_commit, None);
    repo.commit("Nothing yet\n\nMinik8s-Allow-Prune: true");
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

fn on_port(name: &str, port: u8) -> String {
    let spec = format!(
        "nodeName: n1\n  containers:\n  - ports: [{{containerPort: 80, hostPort: {}}}]\n    name",
        8000 + u16::from(port)
    );
    pod(name, "one").replace("containers:\n  - name", &spec)
}

#[tokio::test]
async fn nobody_gets_the_port_of_a_pod_whose_removal_is_held() {
    let mut repo = Repo::new(pods(many(20)));
    repo.set("old.yaml", on_port("old", 1)).commit("First");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.files = pods(many(2));
    repo.set("new.yaml", on_port("new", 1)).commit("Much less");
    cluster.settle().await;
    let status = cluster.status().await;
    assert_eq!(status.quarantined[0].violations[0].rule, rules::PORT_CLASH.id);
    assert!(!cluster.names().await.contains(&"new".to_owned()));
    repo.commit("It is meant\n\nMinik8s-Allow-Prune: true");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["new", "p0", "p1"]);
}

proptest! {
    #![proptest_config(Config { cases: 128, failure_persistence: None, ..Config::default() })]

    #[test]
    fn what_only_one_can_have_has_one_owner_whatever_is_held(
        before in Just((0_u8..24).collect::<Vec<_>>()).prop_shuffle(),
        after in proptest::collection::btree_map(0_u8..30, 0_u8..24, 0..24),
        (released, incomplete, broken) in any::<(bool, bool, bool)>(),
    ) {
        let files = |pods: &mut dyn Iterator<Item = (u8, u8)>| -> Files {
            pods.map(|(name, port)| (format!("{name}.yaml"), on_port(&format!("p{name}"), port))).collect()
        };
        let first = files(&mut (0_u8..24).zip(before));
        let none = schema::snapshot::Table::new();
        let live = applied(&none, &plan(&situation(&first, &none)).steps);
        let mut second = files(&mut after.into_iter());
        if broken {
            second.insert("x.yaml".to_owned(), "kind: Pod\n".to_owned());
        }
        let mut next = situation(&second, &live);
        std::sync::Arc::make_mut(&mut next.commit).allows_prune = released;
        next.incomplete = incomplete.then(|| "no answer".to_owned());
        let left = applied(&live, &plan(&next).steps);
        let mut owned = BTreeSet::new();
        for object in left.values() {
            let has = object.value.resource.exclusives(&object.value.metadata);
            for one in has.into_iter().filter(|one| !one.shares).map(|one| one.resource) {
                prop_assert!(owned.insert(one.clone()), "{one} has two owners");
            }
        }
    }
}
