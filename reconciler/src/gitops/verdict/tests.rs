//! Verdicts over time.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::kinds::Kind;
use schema::kinds::function::ImageState;
use schema::kinds::job::JobPhase;
use schema::kinds::pod::PodPhase;
use schema::meta::NamespacedName;
use schema::records::{FunctionImage, FunctionRecord, SourceErrorKind, SourceState, Verdict};
use schema::snapshot::{Snapshot, VersionedValue, health};

use super::plan::{Verdicts, plan};
use crate::gitops::tests::kit::{Cluster, JOB, Repo, pod, pods};

async fn decided(cluster: &mut Cluster, after: i64) -> Verdicts {
    let applied = cluster.revisions().await.last().map_or(Timestamp::UNIX_EPOCH, |r| r.applied_at);
    let now = applied + SignedDuration::from_secs(after);
    plan(cluster.reflect().await, &["main".to_owned()].into(), now)
}

fn verdicts(verdicts: &Verdicts) -> Vec<(u64, Verdict)> {
    verdicts.decided.iter().map(|(revision, _)| (revision.sequence, revision.verdict.clone())).collect()
}

#[tokio::test]
async fn a_commit_is_good_once_all_that_it_changed_is_healthy() {
    let repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Running, true).await;
    let early = decided(&mut cluster, 1).await;
    assert_eq!((verdicts(&early), early.again_at.is_some()), (vec![], true));
    cluster.report("b", PodPhase::Succeeded, false).await;
    assert_eq!(verdicts(&decided(&mut cluster, 300).await), [(1, Verdict::Good)]);
}

// Seen red with the latest of the deadlines instead of the first: still open after 5 s.
#[tokio::test]
async fn a_commit_is_looked_at_again_when_the_first_of_its_objects_may_have_failed() {
    let set = "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: web}\nspec:\n  progressDeadlineSeconds: 5\n  \
        selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    \
        spec: {containers: [{name: main, image: i}]}\n";
    let files = [("a.yaml".to_owned(), pod("a", "one")), ("web.yaml".to_owned(), set.to_owned())];
    let repo = Repo::new(files.into());
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let applied = cluster.revisions().await[0].applied_at;
    let early = decided(&mut cluster, 4).await;
    assert_eq!((verdicts(&early), early.again_at), (vec![], Some(applied + SignedDuration::from_secs(5))));
    let late = verdicts(&decided(&mut cluster, 5).await);
    // The verdict is final, so it also names what has time left.
    let why = "ReplicaSet/default/web: not healthy within 5 s: its pods are not created yet; \
               Pod/default/a: not healthy yet: its pod is not created yet"
        .to_owned();
    assert_eq!(late, [(1, Verdict::Bad { why })]);
}

#[tokio::test]
async fn a_verdict_names_all_that_are_bad_with_a_reason_once_and_counts_the_rest() {
    let repo = Repo::new(pods((0..13).map(|number| format!("p{number:02}"))));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("p00", PodPhase::Failed, false).await;
    for number in 1..13 {
        cluster.report(&format!("p{number:02}"), PodPhase::Pending, false).await;
    }
    let late = verdicts(&decided(&mut cluster, 120).await);
    let [(1, Verdict::Bad { why })] = &late[..] else { panic!("{late:?}") };
    let named: Vec<String> = (0..10).map(|number| format!("Pod/default/p{number:02}")).collect();
    assert_eq!(*why, format!("{} and 3 more: not healthy within 120 s: it is not ready", named.join(", ")));
}

// Seen red without the check of `unsteady`: good immediately.
#[tokio::test]
async fn a_pod_that_only_began_to_run_makes_no_commit_good() {
    let repo = Repo::new(pods(["a"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Running, true).await;
    let applied = cluster.revisions().await[0].applied_at;
    let mut snapshot = cluster.reflect().await.clone();
    let (place, status) = snapshot.pod_status.iter().next().map(|(p, s)| (p.clone(), s.clone())).unwrap();
    let mut judged = |restart_count: u32, ran: i64| {
        let now = applied + SignedDuration::from_secs(60);
        let started_at = now - SignedDuration::from_secs(ran);
        let container = serde_json::json!({"name": "main", "image": "i", "ready": true, "restartCount": restart_count,
            "state": {"running": {"startedAt": started_at}}});
        let mut status = (*status).clone();
        status.value.container_statuses = vec![serde_json::from_value(container).unwrap()];
        snapshot.pod_status.insert(place.clone(), Arc::new(status));
        let reported = plan(&snapshot, &["main".to_owned()].into(), now);
        (reported.decided.len(), reported.again_at.map(|at| at.duration_since(now).as_secs()))
    };
    assert_eq!([judged(0, 0), judged(0, 1)], [(0, Some(1)), (1, None)]);
    assert_eq!([judged(1, 4), judged(1, 10)], [(0, Some(6)), (1, None)]);
}

#[tokio::test]
async fn a_commit_is_bad_after_its_deadline_and_stays_so_until_another_comes() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Running, true).await;
    cluster.report("b", PodPhase::Pending, false).await;
    assert!(decided(&mut cluster, 119).await.decided.is_empty());
    let late = decided(&mut cluster, 120).await;
    let bad = Verdict::Bad { why: "Pod/default/b: not healthy within 120 s: it is not ready".to_owned() };
    assert_eq!(verdicts(&late), [(1, bad.clone())]);
    cluster.write_verdicts(&late).await;
    // The verdict is stored: no later run changes it, and a restarted process remembers it.
    cluster.report("b", PodPhase::Running, true).await;
    cluster.restart();
    cluster.settle().await;
    assert!(decided(&mut cluster, 500).await.decided.is_empty());
    assert_eq!(cluster.revisions().await[0].verdict, bad);
    // The next commit is judged by its own changes.
    repo.set("a.yaml", pod("a", "two")).commit("Next");
    cluster.settle().await;
    assert!(decided(&mut cluster, 1).await.decided.is_empty());
    cluster.report("a", PodPhase::Running, true).await;
    assert_eq!(verdicts(&decided(&mut cluster, 2).await), [(2, Verdict::Good)]);
}

// Seen red without the progress of a job: bad while it uploads.
#[tokio::test]
async fn a_commit_is_not_bad_while_its_job_gets_on() {
    let mut repo = Repo::new(pods(["a"]));
    repo.set("sum.yaml", JOB).commit("And a job");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Running, true).await;
    let applied = cluster.revisions().await[0].applied_at;
    cluster.report_job("sum", JobPhase::Uploading, applied).await;
    assert!(decided(&mut cluster, 500).await.decided.is_empty());
    // Seen red without the check of the node: an upload that no node reports is progress for ever.
    let silent = Snapshot { heartbeats: Default::default(), ..cluster.reflect().await.clone() };
    let job =
        silent.objects.values().find(|object| object.value.kind() == Kind::Job).expect("there is a job");
    let later = applied + SignedDuration::from_secs(500);
    assert_eq!(health::progressed_at(&silent, &job.value, later), Some(applied));
    // Seen red without the check of the reason: never bad.
    cluster.report_job_with("sum", JobPhase::Uploading, applied, "permission denied").await;
    assert!(matches!(verdicts(&decided(&mut cluster, 500).await)[..], [(1, Verdict::Bad { .. })]));
    let second = SignedDuration::from_secs(1);
    cluster.report_job("sum", JobPhase::Submitting, applied + second * 500).await;
    assert!(decided(&mut cluster, 619).await.decided.is_empty());
    let bad = Verdict::Bad { why: "Job/default/sum: not healthy within 120 s: Submitting".to_owned() };
    assert_eq!(verdicts(&decided(&mut cluster, 620).await), [(1, bad)]);
    cluster.report_job("sum", JobPhase::Queued, applied + second * 610).await;
    assert_eq!(verdicts(&decided(&mut cluster, 611).await), [(1, Verdict::Good)]);
}

// Seen red with the time counted from the push although the image is built: bad at 120 s, before its rollout even
// began.
#[tokio::test]
async fn a_commit_with_a_function_has_its_time_from_when_the_image_is_there() {
    let function =
        "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: hello}\nspec: {source: code}\n";
    let mut repo = Repo::new(pods(["a"]));
    repo.set("hello.yaml", function).set("code/main.py", "def main(params):\n    return {}\n");
    repo.commit("And a function");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Running, true).await;
    let applied = cluster.revisions().await[0].applied_at;
    let mut snapshot = cluster.reflect().await.clone();
    let object = snapshot.objects.values().find(|object| object.value.kind() == Kind::Function);
    let object = object.expect("there is a function").value.clone();
    let after = |seconds: i64| applied + SignedDuration::from_secs(seconds);
    let judged = |snapshot: &Snapshot, seconds: i64| {
        verdicts(&plan(snapshot, &["main".to_owned()].into(), after(seconds)))
    };
    let bad = |why: &str| {
        let why = format!("Function/default/hello: not healthy within 120 s: {why}");
        vec![(1, Verdict::Bad { why })]
    };
    let mut record = |hash: &str, state: ImageState, ready_at: Option<i64>| {
        let reference = "minik8s.local/function:0".to_owned();
        let image = FunctionImage { reference, id: None, state, nodes: Vec::new(), registry: None };
        let record = FunctionRecord {
            hash: hash.to_owned(),
            images: vec![image],
            image_ready_at: ready_at.map(after),
            ..FunctionRecord::default()
        };
        let stored = VersionedValue { value: record, create_revision: 1, mod_revision: 1 };
        snapshot.functions.insert(NamespacedName::new("default", "hello"), Arc::new(stored));
        snapshot.clone()
    };
    let building = ImageState::Building { node: "n1".to_owned() };
    assert_eq!(judged(&record(&object.hash, building.clone(), None), 500), []);
    let built = record(&object.hash, ImageState::Ready, Some(500));
    assert_eq!(judged(&built, 619), []);
    assert_eq!(judged(&built, 620), bad("its first replica is not created yet"));
    assert_eq!(judged(&record(&object.hash, ImageState::Ready, Some(501)), 500), []);
    // A rollout that makes progress has its time from then.
    let mut rolled = record(&object.hash, ImageState::Ready, Some(500));
    let rollout = serde_json::json!({"objectHash": object.hash, "commit": "", "wanted": "new", "startedAt": after(510),
        "progressedAt": after(510), "best": {"updated": 0, "available": 0, "old": 0},
        "status": {"observedGeneration": object.generation, "desiredReplicas": 1}});
    let rollout = VersionedValue {
        value: serde_json::from_value(rollout).unwrap(),
        create_revision: 1,
        mod_revision: 1,
    };
    rolled.rollouts.insert(object.reference(), Arc::new(rollout));
    assert_eq!(judged(&rolled, 629), []);
    assert!(matches!(judged(&rolled, 630)[..], [(1, Verdict::Bad { .. })]));
    // Seen red without the check of the hash: open for as long as the former version is being built.
    let former = record("former", building, None);
    assert_eq!(judged(&former, 120), bad("the functions controller has not processed this version yet"));
}

// Seen red without `is_open`: bad at 120 s, for the pods and for the service.
#[tokio::test]
async fn a_node_that_does_not_answer_leaves_the_verdict_open() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
                   spec: {selector: {app: a}, ports: [{port: 80}]}\n";
    repo.set("service.yaml", service).commit("And a service");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    for name in ["a", "b"] {
        cluster.report(name, PodPhase::Running, true).await;
    }
    let all = cluster.reflect().await.clone();
    let mut silent = all.clone();
    silent.heartbeats = Default::default();
    let applied = cluster.revisions().await[0].applied_at;
    let judged = |snapshot: &Snapshot, after: i64| {
        verdicts(&plan(snapshot, &["main".to_owned()].into(), applied + SignedDuration::from_secs(after)))
    };
    assert_eq!([judged(&silent, 120), judged(&silent, 300)], [[], []]);
    assert!(
        matches!(judged(&all, 300)[..], [(1, Verdict::Bad { .. })]),
        "it answers, and the service is not well"
    );
    // The failure of another pod still counts.
    let bound = silent.pods.keys().find(|pod| pod.name == "b").unwrap().clone();
    silent.pods.remove(&bound);
    assert!(matches!(judged(&silent, 300)[..], [(1, Verdict::Bad { .. })]));
}

// Seen red with nodes that never registered counted as silent: the verdict stays open for ever.
#[tokio::test]
async fn a_node_that_never_registered_holds_no_verdict_up() {
    let mut repo = Repo::new(pods(["a"]));
    repo.set("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: gpu-1}\n").commit("A node to come");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Succeeded, false).await;
    assert_eq!(verdicts(&decided(&mut cluster, 1).await), [(1, Verdict::Good)]);
}

#[tokio::test]
async fn a_newer_commit_supersedes_only_the_objects_that_it_changes() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.set("a.yaml", pod("a", "two")).commit("Next");
    cluster.settle().await;
    cluster.report("a", PodPhase::Running, true).await;
    cluster.report("b", PodPhase::Pending, false).await;
    let early = decided(&mut cluster, 1).await;
    assert_eq!(verdicts(&early), [(2, Verdict::Good)]);
    cluster.write_verdicts(&early).await;
    let why = "Pod/default/b: not healthy within 120 s: it is not ready".to_owned();
    assert_eq!(verdicts(&decided(&mut cluster, 120).await), [(1, Verdict::Bad { why })]);
    cluster.report("b", PodPhase::Running, true).await;
    assert_eq!(verdicts(&decided(&mut cluster, 1).await), [(1, Verdict::Superseded)]);
}

#[tokio::test]
async fn the_deadline_counts_from_the_last_progress_and_is_the_clusters() {
    let repo = Repo::new(pods(["a"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Pending, false).await;
    let applied = cluster.revisions().await[0].applied_at;
    let mut snapshot = cluster.reflect().await.clone();
    let (place, status) = snapshot.pod_status.iter().next().map(|(p, s)| (p.clone(), s.clone())).unwrap();
    let at = |after: i64| applied + SignedDuration::from_secs(after);
    let mut is_bad = |restarts: u32, now: i64| {
        let container = serde_json::json!({"name": "main", "image": "i", "ready": false,
            "restartCount": restarts, "state": {"running": {"startedAt": at(100)}}});
        let mut status = (*status).clone();
        status.value.container_statuses = vec![serde_json::from_value(container).unwrap()];
        snapshot.pod_status.insert(place.clone(), Arc::new(status));
        !plan(&snapshot, &["main".to_owned()].into(), at(now)).decided.is_empty()
    };
    assert_eq!([is_bad(0, 219), is_bad(0, 220)], [false, true]);
    assert_eq!([is_bad(1, 119), is_bad(1, 120)], [false, true], "a restart is no progress");
    let settings = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\n\
                    spec: {defaults: {progressDeadlineSeconds: 300}}\n";
    let mut repo = Repo::new(pods(["a"]));
    repo.set("cluster.yaml", settings).commit("A longer deadline");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Pending, false).await;
    assert!(decided(&mut cluster, 299).await.decided.is_empty());
    assert_eq!(decided(&mut cluster, 300).await.decided.len(), 1);
}

#[tokio::test]
async fn what_the_next_commit_removes_makes_this_one_not_good() {
    let mut repo = Repo::new(pods(["a", "b", "c"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    for name in ["a", "b"] {
        cluster.report(name, PodPhase::Running, true).await;
    }
    cluster.report("c", PodPhase::Pending, false).await;
    assert!(decided(&mut cluster, 1).await.decided.is_empty());
    // The moment after the next commit removed it, before that revision is written.
    let revision = cluster.revisions().await.remove(0);
    let mut snapshot = cluster.reflect().await.clone();
    let id = snapshot.objects.keys().find(|id| id.name == "c").unwrap().clone();
    snapshot.objects.remove(&id);
    let now = revision.applied_at + SignedDuration::from_secs(2);
    assert!(plan(&snapshot, &["main".to_owned()].into(), now).decided.is_empty());
    repo.remove("c.yaml").commit("Without");
    cluster.settle().await;
    assert_eq!(verdicts(&decided(&mut cluster, 1).await)[0], (1, Verdict::Superseded));
}

#[tokio::test]
async fn what_waits_keeps_a_commit_from_being_good_and_turns_it_bad() {
    let mut repo = Repo::new(pods(["db"]));
    repo.set(
        "web.yaml",
        pod("web", "one").replace("  name: web\nspec", "  name: web\n  dependsOn: [Pod/db]\nspec"),
    );
    repo.commit("Both");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("db", PodPhase::Running, true).await;
    let ready = decided(&mut cluster, 1).await;
    assert!(!ready.released.is_empty() && ready.decided.is_empty());
    cluster.report("db", PodPhase::Running, false).await;
    let db = format!("{:?}", verdicts(&decided(&mut cluster, 239).await));
    assert!(db.contains("Pod/default/db: not healthy") && !db.contains("Pod/default/web"), "{db}");
    let stuck = decided(&mut cluster, 241).await;
    assert!(stuck.released.is_empty());
    let why = format!("{:?}", verdicts(&stuck));
    assert!(why.contains("Pod/default/web: not healthy within 120 s: it waits for Pod/default/db"), "{why}");
}

// Seen red with a deadline for an object whose dependency waits itself.
#[tokio::test]
async fn what_waits_for_one_that_waits_itself_has_no_deadline_yet() {
    let repo = Repo::new(pods(["a"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Running, true).await;
    let applied = cluster.revisions().await[0].applied_at;
    let mut snapshot = cluster.reflect().await.clone();
    let reference = |name: &str| schema::meta::ObjectRef {
        kind: Kind::Pod,
        namespace: "default".to_owned(),
        name: name.to_owned(),
    };
    let mut status = (*snapshot.sources["main"]).clone();
    let mut decided = |why: &str, since: Option<Timestamp>| {
        let why = why.to_owned();
        status.value.waiting =
            vec![schema::records::WaitingObject { object: reference("d"), on: reference("c"), why, since }];
        snapshot.sources.insert("main".to_owned(), Arc::new(status.clone()));
        verdicts(&plan(&snapshot, &["main".to_owned()].into(), applied + SignedDuration::from_secs(600)))
    };
    assert_eq!(decided("it waits itself", Some(applied)), []);
    assert_eq!(decided("it is removed once nothing waits", None), []);
    assert!(matches!(decided("it is not ready", Some(applied))[..], [(1, Verdict::Bad { .. })]));
}

#[tokio::test]
async fn a_service_gets_on_as_the_pods_of_its_commit_do() {
    let mut repo = Repo::new(pods(["a"]));
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
                   spec: {selector: {app: a}, ports: [{port: 80}]}\n";
    repo.set("service.yaml", service).commit("And a service");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    cluster.report("a", PodPhase::Pending, false).await;
    let applied = cluster.revisions().await[0].applied_at;
    let mut snapshot = cluster.reflect().await.clone();
    let (place, status) = snapshot.pod_status.iter().next().map(|(p, s)| (p.clone(), s.clone())).unwrap();
    let at = |after: i64| applied + SignedDuration::from_secs(after);
    let mut status = (*status).clone();
    status.value.start_time = Some(at(100));
    snapshot.pod_status.insert(place, Arc::new(status));
    let is_bad = |now: i64| !plan(&snapshot, &["main".to_owned()].into(), at(now)).decided.is_empty();
    assert_eq!([is_bad(219), is_bad(220)], [false, true]);
}

#[tokio::test]
async fn no_source_is_woken_for_what_waits_itself_or_by_the_waits_of_others() {
    let after = |name: &str, on: &str| {
        let text = format!("  name: {name}\n  dependsOn: [Pod/{on}]\nspec");
        pod(name, "two").replace(&format!("  name: {name}\nspec"), &text)
    };
    let mut repo = Repo::new(pods(["a", "b", "c"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    for name in ["a", "b", "c"] {
        cluster.report(name, PodPhase::Running, true).await;
    }
    repo.set("a.yaml", pod("a", "two")).set("b.yaml", after("b", "a")).set("c.yaml", after("c", "b"));
    repo.commit("A chain");
    cluster.settle().await;
    cluster.report("a", PodPhase::Running, false).await;
    cluster.settle().await;
    let waiting: Vec<_> = cluster.status().await.waiting.iter().map(ToString::to_string).collect();
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    // The old b is healthy, but the new one is still to come.
    assert_eq!(decided(&mut cluster, 1).await.released, [].into());
    cluster.report("a", PodPhase::Running, true).await;
    let ready = decided(&mut cluster, 1).await.released;
    assert_eq!(ready["main"].iter().map(|(object, _)| object.name.as_str()).collect::<Vec<_>>(), ["b"]);
    let none = std::collections::BTreeSet::new();
    assert_eq!(plan(cluster.reflect().await, &none, Timestamp::UNIX_EPOCH).released, [].into());
}

#[tokio::test]
async fn a_source_that_is_not_configured_any_more_says_so_and_keeps_its_objects() {
    let repo = Repo::new(pods(["a"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let none = std::collections::BTreeSet::new();
    let reported = plan(cluster.reflect().await, &none, Timestamp::UNIX_EPOCH);
    assert_eq!(reported.orphaned.len(), 1);
    cluster.write_verdicts(&reported).await;
    let status = cluster.status().await;
    assert_eq!(
        (status.state, status.error.unwrap().kind),
        (SourceState::Failed, SourceErrorKind::NotConfigured)
    );
    assert!(plan(cluster.reflect().await, &none, Timestamp::UNIX_EPOCH).orphaned.is_empty(), "reported once");
    assert_eq!(cluster.names().await, ["a"]);
    // Configured again, its loop takes over.
    cluster.restart();
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}
