//! Objects that wait for others, strict sources, and steps that fail alone.

use jiff::{SignedDuration, Timestamp};
use schema::codec;
use schema::keys::Key;
use schema::kinds::job::JobPhase;
use schema::kinds::pod::{PodPhase, PodStatus};
use schema::meta::NamespacedName;
use schema::records::{SourceErrorKind, SourceState};
use schema::snapshot::Snapshot;
use schema::store::memory::MemoryStore;
use schema::store::{Op, Store, TxnOutcome};

use super::kit::{Cluster, JOB, Repo, pod, pods};
use crate::gitops::verdict::plan::plan;

fn after(name: &str, image: &str, dependencies: &str) -> String {
    pod(name, image).replace(
        &format!("  name: {name}\nspec"),
        &format!("  name: {name}\n  dependsOn: [{dependencies}]\nspec"),
    )
}

async fn waiting(cluster: &Cluster) -> Vec<String> {
    cluster.status().await.waiting.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn an_object_waits_until_what_it_depends_on_is_healthy_and_holds_nothing_up() {
    let mut repo = Repo::new(pods(["a", "z"]));
    repo.set("web.yaml", after("web", "one", "Pod/db"));
    repo.set("db.yaml", pod("db", "one"));
    repo.set("front.yaml", after("front", "one", "Pod/web"));
    let commit = repo.commit("All at once");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "db", "z"]);
    let status = cluster.status().await;
    assert_eq!((status.state, status.objects), (SourceState::Waiting, 3));
    assert_eq!(status.applied_commit, Some(commit));
    assert_eq!(
        waiting(&cluster).await,
        [
            "Pod/default/web waits for Pod/default/db: its pod is not created yet",
            "Pod/default/front waits for Pod/default/web: it waits itself",
        ]
    );
    assert_eq!(cluster.revisions().await[0].counts.waiting, 2);

    // Nothing is written while nothing changes, not even by a loop that remembers nothing.
    let before = cluster.store.revision();
    cluster.restart();
    cluster.settle().await;
    assert_eq!(cluster.store.revision(), before);
    // Planning or resting, it runs again at the deadline. Seen red without `due` in a plan that rests.
    let due = cluster.run().await.again_at;
    assert!(due.is_some_and(|due| due > Timestamp::now()) && !cluster.plans().await);
    cluster.restart();
    assert_eq!((cluster.plans().await, cluster.run().await.again_at), (true, due));

    cluster.report("db", PodPhase::Running, false).await;
    cluster.settle().await;
    assert_eq!(waiting(&cluster).await[0], "Pod/default/web waits for Pod/default/db: it is not ready");
    cluster.report("db", PodPhase::Running, true).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "db", "web", "z"]);
    cluster.report("web", PodPhase::Succeeded, false).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "db", "front", "web", "z"]);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
    assert_eq!(cluster.revisions().await.len(), 1, "one commit, one revision");
}

// Seen red with only pods, bindings, heartbeats, services and routes compared: it waited for its deadline.
#[tokio::test]
async fn a_report_of_a_job_alone_releases_what_waits_for_it() {
    let mut repo = Repo::new(pods(["a"]));
    repo.set("web.yaml", after("web", "one", "Job/sum")).set("sum.yaml", JOB).commit("After the job");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report_job("sum", JobPhase::Submitting, Timestamp::UNIX_EPOCH).await;
    cluster.settle().await;
    assert_eq!(waiting(&cluster).await, ["Pod/default/web waits for Job/default/sum: Submitting"]);
    cluster.report_job("sum", JobPhase::Queued, Timestamp::UNIX_EPOCH).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "sum", "web"]);
}

#[tokio::test]
async fn a_newer_commit_finds_nothing_in_its_way() {
    let mut repo = Repo::new(pods(["db"]));
    repo.set("web.yaml", after("web", "one", "Pod/db")).commit("Wait");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["db"]);
    repo.set("web.yaml", pod("web", "two")).commit("Do not wait");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["db", "web"]);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn a_change_waits_for_a_change_of_what_it_depends_on_but_a_label_does_not() {
    let mut repo = Repo::new(pods(["db"]));
    repo.set("web.yaml", after("web", "one", "Pod/db")).commit("Both");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("db", PodPhase::Running, true).await;
    cluster.settle().await;
    let first = cluster.objects().await;

    repo.set("db.yaml", pod("db", "two")).set("web.yaml", after("web", "two", "Pod/db")).commit("Both");
    cluster.run().await;
    cluster.reflect().await;
    let second = cluster.objects().await;
    assert_ne!(second["db"].hash, first["db"].hash);
    assert_eq!(second["web"], first["web"], "the new db is not up yet");
    let labelled = after("web", "one", "Pod/db").replace("  name: web", "  name: web\n  labels: {a: b}");
    repo.set("web.yaml", labelled).commit("Label");
    cluster.settle().await;
    assert_eq!(cluster.objects().await["web"].metadata.labels["a"], "b");
}

#[tokio::test]
async fn each_wait_of_a_chain_ends_at_a_deadline_of_its_own() {
    let mut repo = Repo::new(pods(["db", "old"]));
    repo.commit("First");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.set("web.yaml", after("web", "one", "Pod/db")).set("front.yaml", after("front", "one", "Pod/web"));
    repo.remove("old.yaml").commit("On a database that never comes");
    cluster.settle().await;
    let second = SignedDuration::from_secs(1);
    for (passed, names) in [
        (119, ["db", "old"].as_slice()),
        // The second wait begins only now, and removals wait for it, too.
        (1, &["db", "old", "web"]),
        (119, &["db", "old", "web"]),
        (2, &["db", "front", "web"]),
    ] {
        cluster.sync.ahead += second * passed;
        cluster.settle().await;
        assert_eq!(cluster.names().await, names);
    }
    assert_eq!(cluster.status().await.state, SourceState::Synced);
    // The object released last has its full time to become healthy.
    let released = cluster.status().await.released_at.expect("a wait ended");
    let sources = ["main".to_owned()].into();
    let verdicts =
        |snapshot: &Snapshot, after: i32| plan(snapshot, &sources, released + second * after).decided;
    assert!(verdicts(cluster.reflect().await, 119).iter().all(|(revision, _)| revision.sequence == 1));
    assert!(verdicts(cluster.reflect().await, 120).iter().any(|(revision, _)| revision.sequence == 2));
}

#[tokio::test]
async fn a_change_of_what_is_waited_for_begins_the_wait_anew_but_a_restart_does_not() {
    let mut repo = Repo::new(pods(["db"]));
    repo.set("web.yaml", after("web", "one", "Pod/db")).commit("First");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let second = SignedDuration::from_secs(1);
    cluster.sync.ahead += second * 100;
    repo.set("db.yaml", pod("db", "two")).commit("Mend it");
    cluster.settle().await;
    cluster.sync.ahead += second * 100;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["db"]);
    cluster.restart();
    cluster.sync.ahead = second * 221;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["db", "web"]);
}

// Seen red with a deadline that counts from the start of the wait: released at 121 s.
#[tokio::test]
async fn a_wait_lasts_while_what_it_is_for_gets_on() {
    let mut repo = Repo::new(pods(["db"]));
    repo.set("web.yaml", after("web", "one", "Pod/db")).commit("First");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("db", PodPhase::Pending, false).await;
    let key = Key::PodStatus("n1".into(), NamespacedName::new("default", "db")).to_string();
    let stored = cluster.store.get(&key).await.unwrap().unwrap();
    let mut status: PodStatus = codec::decode(&stored.value).unwrap();
    let second = SignedDuration::from_secs(1);
    status.start_time = Some(Timestamp::now() + second * 100);
    let got_on = vec![Op::put(&key, codec::encode(&status).unwrap())];
    assert!(matches!(cluster.store.txn(vec![], got_on).await.unwrap(), TxnOutcome::Committed(_)));
    for (passed, names) in [(121, ["db"].as_slice()), (98, &["db"]), (2, &["db", "web"])] {
        cluster.sync.ahead += second * passed;
        cluster.settle().await;
        assert_eq!(cluster.names().await, names);
    }
}

#[tokio::test]
async fn what_is_removed_outlives_what_waits() {
    let mut repo = Repo::new(pods(["db", "z"]));
    repo.set("web.yaml", after("web", "one", "Pod/db")).commit("First");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("db", PodPhase::Running, true).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["db", "web", "z"]);

    // Another database: the old web needs the old database, and runs until the new one is up.
    repo.remove("db.yaml").set("db2.yaml", pod("db2", "one")).set("web.yaml", after("web", "two", "Pod/db2"));
    repo.commit("Another database");
    for restarted in [false, true] {
        if restarted {
            cluster.restart();
        }
        cluster.settle().await;
        assert_eq!(cluster.names().await, ["db", "db2", "web", "z"]);
        let status = cluster.status().await;
        assert_eq!((status.state, status.objects, status.held_prune), (SourceState::Waiting, 4, None));
        assert_eq!(
            waiting(&cluster).await[1],
            "Pod/default/db waits for Pod/default/web: it is removed once nothing waits"
        );
    }
    cluster.report("db2", PodPhase::Running, true).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["db2", "web", "z"]);

    // A rename: the old object stays until the new one can be created.
    cluster.report("db2", PodPhase::Running, false).await;
    repo.remove("web.yaml").set("web2.yaml", after("web2", "two", "Pod/db2")).commit("Another name");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["db2", "web", "z"]);
    cluster.report("db2", PodPhase::Running, true).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["db2", "web2", "z"]);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn a_removal_that_gives_up_a_port_that_a_new_pod_takes_does_not_wait() {
    let on_port = |name: &str, port: u16| {
        let spec = format!(
            "nodeName: n1\n  containers:\n  - ports: [{{containerPort: 80, hostPort: {port}}}]\n    name"
        );
        pod(name, "one").replace("containers:\n  - name", &spec)
    };
    let mut repo = Repo::new(pods(["db", "z"]));
    repo.set("old.yaml", on_port("old", 8080)).set("other.yaml", on_port("other", 9090)).commit("First");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.remove("old.yaml").remove("other.yaml").set("new.yaml", on_port("new", 8080));
    repo.set("web.yaml", after("web", "one", "Pod/db")).commit("Another name");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["db", "new", "other", "z"]);
}

#[tokio::test]
async fn a_strict_source_applies_all_or_nothing() {
    let mut repo = Repo::new(pods(["a", "b", "c"]));
    let mut config = repo.config();
    config.strict = true;
    let mut cluster = Cluster::with(config, &repo.state(), MemoryStore::new()).await;
    cluster.settle().await;
    let (before, good) = (cluster.objects().await, cluster.status().await.applied_commit);
    repo.set("a.yaml", pod("a", "two")).remove("c.yaml").set("d.yaml", pod("d", "one"));
    repo.set("b.yaml", pod("b", "two").replace("image", "imgae")).commit("Break b");
    for restarted in [false, true] {
        if restarted {
            cluster.restart();
        }
        cluster.settle().await;
        assert_eq!(cluster.objects().await, before);
        let status = cluster.status().await;
        let error = status.error.unwrap();
        assert_eq!((status.state, error.kind), (SourceState::Failed, SourceErrorKind::Refused));
        assert!(error.message.contains("b.yaml") && error.message.contains("strict"), "{}", error.message);
        assert_eq!((&status.applied_commit, status.quarantined.len()), (&good, 1));
    }
    repo.set("b.yaml", pod("b", "two")).commit("Mend b");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "d"]);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

#[tokio::test]
async fn trouble_with_the_remote_that_stays_the_same_costs_no_further_plan() {
    let repo = Repo::new(pods(["a"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    std::fs::rename(repo.path(), repo.path().with_extension("away")).unwrap();
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Failed);
    assert!(!cluster.plans().await);
    // A manual change in etcd is still repaired.
    let by_hand = vec![Op::delete("/minik8s/objects/Pod/default/a")];
    let written = cluster.store.txn(vec![], by_hand).await.unwrap();
    assert!(matches!(written, TxnOutcome::Committed(_)));
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a"]);
    std::fs::rename(repo.path().with_extension("away"), repo.path()).unwrap();
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}
