//! The program as a person runs it, against the API over a snapshot made of etcd's JSON:
//! output, number of lines and exit code.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking, as tests do.

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::sync::Arc;

use futures::StreamExt;
use reconciler::api::{ApiDeps, Caller, CommitPair, ComparisonError, Comparisons, router};
use reconciler::upkeep::DefragRequests;
use reconciler::webhooks::{Intake, SourceTarget};
use schema::control::Nudge;
use schema::keys::{Key, prefix};
use schema::records::{RequestAnswer, SyncRequest};
use schema::snapshot::{Change, Snapshot};
use schema::store::election::FenceReader;
use schema::store::memory::MemoryStore;
use schema::store::reflector::{SnapshotPublisher, SnapshotReader};
use schema::store::{Store, WatchEvent};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;

mod kinds;

const C1: &str = "1111111111111111111111111111111111111111";
const C2: &str = "2222222222222222222222222222222222222222";

fn put(snapshot: &mut Snapshot, key: &str, value: &Value) {
    snapshot.apply(&Change::Put {
        key: format!("/minik8s/{key}"),
        value: value.to_string().into_bytes().into(),
        create_revision: 1,
        mod_revision: 1,
    });
}

fn source(applied: &str) -> Value {
    json!({
        "name": "main", "url": "/srv/repo.git", "reference": "main", "state": "Synced",
        "observedCommit": C2, "appliedCommit": applied, "revision": 1, "objects": 2,
    })
}

/// Pod `web` runs with two containers, pod `db` waits for its image.
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
    put(&mut snapshot, "sources/main", &source(C2));
    put(
        &mut snapshot,
        "nodes/n1",
        &json!({
            "name": "n1", "addresses": ["192.0.2.7"], "cpu": "2", "memory": "4Gi", "maxPods": 110,
            "versions": {"agent": "0.1.0", "docker": "20.10.24", "kernel": "6.1", "os": "Debian", "arch": "amd64"},
            "api": "http://127.0.0.1:1", "registeredAt": "2026-01-01T00:00:00Z",
        }),
    );
    put(&mut snapshot, "heartbeats/n1", &json!({"since": "2026-01-01T00:00:00Z"}));
    let provenance =
        |file: &str| json!({"source": "main", "commit": C2, "author": "Ada <a@b>", "file": file, "line": 1});
    let waits = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
    let runs = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    for (name, containers, ready, state) in
        [("web", vec!["app", "side"], "True", runs), ("db", vec!["app"], "False", waits)]
    {
        let spec: Vec<Value> = containers.iter().map(|c| json!({"name": c, "image": "i:1"})).collect();
        let spec = json!({"containers": spec});
        let pod = json!({
            "namespace": "default", "name": name, "uid": name, "hash": "h", "commit": C2, "spec": spec,
            "owner": {"kind": "Pod", "name": name},
        });
        let statuses: Vec<Value> = containers
            .iter()
            .map(|c| {
                json!({"name": c, "image": "i:1", "ready": ready == "True", "restartCount": 0, "state": state})
            })
            .collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec, "hash": "h",
            "generation": 1, "provenance": provenance(&format!("apps/{name}.yaml")),
        });
        put(&mut snapshot, &format!("objects/Pod/default/{name}"), &object);
        put(&mut snapshot, &format!("pods/default/{name}"), &pod);
        put(
            &mut snapshot,
            &format!("bindings/n1/default/{name}"),
            &json!({"node": "n1", "pod": pod, "reason": "only node"}),
        );
        put(
            &mut snapshot,
            &format!("status/n1/pods/default/{name}"),
            &json!({
                "uid": name, "hash": "h", "phase": "Pending", "containerStatuses": statuses,
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            }),
        );
    }
    assert!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed);
    snapshot
}

/// Stands in for the reflector and the leader: every request is observed, and answered immediately.
async fn answer_all(mut snapshot: Snapshot, publisher: SnapshotPublisher, store: Arc<MemoryStore>) {
    let mut changes = store.watch(prefix::REQUESTS, 1).await.unwrap();
    while let Some(Ok(batch)) = changes.next().await {
        for event in batch.events {
            let WatchEvent::Put(put) = event else { continue };
            let request: SyncRequest = serde_json::from_slice(&put.value).unwrap();
            let (request_revision, at) = (put.mod_revision, request.received_at);
            let answer = RequestAnswer { request_revision, at, commit: None };
            snapshot.put(&Key::Request(request.id.clone()), &request, request_revision);
            snapshot.put(&Key::Answer(request.id), &answer, request_revision);
        }
        publisher.publish(snapshot.clone());
    }
}

async fn serve(snapshot: Snapshot) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = Arc::new(MemoryStore::new());
    let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
    tokio::spawn(answer_all(snapshot, publisher, Arc::clone(&store)));
    let snapshot = reader;
    let target = SourceTarget::of_branch("main", "main", Nudge::default());
    let deps = ApiDeps {
        ui: true,
        trust: None,
        blobs: reconciler::blobs::Blobs::new(std::path::Path::new("/nonexistent")),
        intake: Arc::new(Intake::new(vec![target], snapshot.clone(), store.clone(), "host-1")),
        waiting_runs: reconciler::workflows::RequestQueue::default(),
        fence: FenceReader::fixed(None),
        hooks: None,
        etcd: tokio::sync::watch::Sender::new(Arc::default()).subscribe(),
        defrag_requests: DefragRequests::new(store.clone(), "host-1".to_owned(), Nudge::default()),
        snapshot,
        autoscaler_samples: Arc::default(),
        comparisons: Comparisons::new(Arc::new(|_: &CommitPair| Err(ComparisonError::NoMirror))),
        store,
        loops: Default::default(),
        identity: "host-1".to_owned(),
        version: "9.9.9".to_owned(),
        hosts: schema::names::HostNames::default(),
        local_nodes: Arc::default(),
        admission: None,
        trust_problems: tokio::sync::watch::Sender::new(Arc::default()).subscribe(),
    };
    let router = router(deps).layer(axum::Extension(Caller::Local { uid: 0 }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn run(server: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minik8s"));
    command.args(arguments).env("MINIK8S_SERVER", server).stdin(Stdio::null()).kill_on_drop(true);
    tokio::time::timeout(std::time::Duration::from_secs(30), command.output()).await.unwrap().unwrap()
}

#[track_caller]
fn check(output: &Output, code: i32, stdout: &str, stderr: &str) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let got = (output.status.code(), text(&output.stdout), text(&output.stderr));
    assert_eq!(got, (Some(code), stdout.to_owned(), stderr.to_owned()));
}

#[tokio::test]
async fn an_unreachable_reconciler_is_one_line_that_says_what_to_do() {
    // Nothing listens on port 1 of loopback.
    let line = "minik8s: cannot reach the reconciler at http://127.0.0.1:1: connection refused; \
                start it with 'minik8s up', or name it with --server or MINIK8S_SERVER\n";
    for arguments in [&["status"][..], &["get", "pods"], &["logs", "web"], &["sync"], &["events"]] {
        check(&run("http://127.0.0.1:1", arguments).await, 1, "", line);
    }
}

#[tokio::test]
async fn wrong_usage_is_one_line_and_code_2() {
    for (arguments, line) in [
        (
            &["get", "podz"][..],
            "minik8s: invalid value 'podz' for '<KIND>': unknown kind `podz`; did you mean `pods`?\n",
        ),
        (&["describe", "pod"], "minik8s: a name is missing; write pod/NAME\n"),
        (&["get", "pod/a", "b"], "minik8s: two names are given; leave out b\n"),
        (
            &["logs", "node/n1"],
            "minik8s: node/n1: only pods, functions, runs and jobs have logs; write pod/NAME\n",
        ),
        (
            &["status", "--server", "http://x"],
            "minik8s: --server http://x: everything but loopback needs TLS; write it as unix:///run/minik8s/api.sock, \
             https://HOST:PORT, or http:// on loopback\n",
        ),
    ] {
        check(&run("http://127.0.0.1:1", arguments).await, 2, "", line);
    }
}

#[tokio::test]
async fn a_mistake_in_a_list_of_sources_is_reported_before_anything_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let (file, state) = (dir.path().join("sources.yaml"), dir.path().join("state"));
    std::fs::write(
        &file,
        "- name: apps\n  repo: /srv/apps.git\n- name: base\n  repo: /srv/base.git\n  poll: 1\n",
    )
    .unwrap();
    let [file, state] = [&file, &state].map(|path| path.to_str().unwrap());
    let lines = format!(
        "minik8s: --sources {file}: source `base` has an invalid poll: `1` is not a time; write a number with ms, s, m, h or d, \
         for example 5s; see docs/operations.md, \"Repositories and credentials\"\n"
    );
    let serve = ["serve", "--sources", file, "--state-dir", state];
    check(&run("http://127.0.0.1:1", &serve).await, 2, "", &lines);
    // Only root gets past the check of the user.
    if nix::unistd::geteuid().is_root() {
        let up = ["up", "--sources", file, "--state-dir", state, "--detach"];
        check(&run("http://127.0.0.1:1", &up).await, 1, "", &lines);
    }
    assert!(!std::path::Path::new(state).exists());
}

#[tokio::test]
async fn get_prints_tables_names_json_and_yaml() {
    let server = format!("http://{}", serve(snapshot()).await);
    let table = "NAME   READY   STATUS         RESTARTS   AGE   WHY\n\
                 db     0/1     ErrImagePull   0          -     container app: no such image\n\
                 web    2/2     Pending        0          -     -\n";
    check(&run(&server, &["get", "po"]).await, 0, table, "");
    check(&run(&server, &["get", "pods", "-A", "-o", "name"]).await, 0, "pod/db\npod/web\n", "");
    let nobody = "no pods in namespace other; -A shows all namespaces\n";
    check(&run(&server, &["get", "pods", "-n", "other"]).await, 0, "", nobody);
    let missing = "minik8s: there is no pod nobody in namespace default; see 'minik8s get pods -A'\n";
    check(&run(&server, &["get", "pod", "nobody"]).await, 1, "", missing);

    let list: Value =
        serde_json::from_slice(&run(&server, &["get", "pods", "-o", "json"]).await.stdout).unwrap();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    let one: Value =
        serde_json::from_slice(&run(&server, &["get", "pod/web", "-o", "json"]).await.stdout).unwrap();
    assert_eq!((&one["name"], &one["file"]), (&json!("web"), &json!("apps/web.yaml:1")));
    let yaml = run(&server, &["get", "node", "n1", "-o", "yaml"]).await;
    assert!(String::from_utf8_lossy(&yaml.stdout).starts_with("name: n1\nstatus: Ready\n"));
}

#[tokio::test]
async fn an_empty_list_before_the_first_commit_says_so() {
    let empty = Snapshot { synced: true, ..Snapshot::default() };
    let server = format!("http://{}", serve(empty).await);
    let line = "no pods in namespace default; -A shows all namespaces; no commit is applied yet\n";
    check(&run(&server, &["get", "pods"]).await, 0, "", line);
    check(&run(&server, &["get", "nodes"]).await, 0, "", "no nodes\n");
    let line =
        "minik8s: not healthy after 0.3s: the reconciler is starting: it has fetched no repository yet\n";
    check(&run(&server, &["wait", "--for", "healthy", "--timeout", "300ms"]).await, 1, "", line);
}

#[tokio::test]
async fn wait_ends_with_0_when_reached_and_1_when_not() {
    let server = format!("http://{}", serve(snapshot()).await);
    let synced = &["wait", "--for", "synced", "--commit", C2];
    check(&run(&server, synced).await, 0, "commit 2222222 is applied\n", "");
    let healthy = &["wait", "--for", "healthy", "--timeout", "300ms"];
    let line =
        "minik8s: not healthy after 0.3s: pod default/db: ErrImagePull: container app: no such image\n";
    check(&run(&server, healthy).await, 1, "", line);
    let unseen = &["wait", "--for", "synced", "--commit", C1, "--timeout", "300ms"];
    let line = "minik8s: not synced after 0.3s: commit 1111111 is not fetched yet (source main: newest commit \
         2222222); is it pushed?\n";
    check(&run(&server, unseen).await, 1, "", line);
    let wrong = run(&server, &["wait", "--for", "synced", "--commit", "HEAD"]).await;
    assert_eq!(wrong.status.code(), Some(1));
}

// Seen red without a check of `missing`: code 0.
#[tokio::test]
async fn wait_for_synced_fails_when_a_commit_is_applied_in_part() {
    let mut part = snapshot();
    let mut status = source(C2);
    status["heldPrune"] =
        json!({"commit": C2, "why": "push the trailer", "deletes": 12, "owned": 12, "objects": []});
    put(&mut part, "sources/main", &status);
    let server = format!("http://{}", serve(part).await);
    let output = run(&server, &["wait", "--for", "synced", "--timeout", "1h"]).await;
    let line = "minik8s: not synced: commit 2222222 is applied in part: source main: prune of 12 objects is held: \
                push the trailer\n";
    check(&output, 1, "", line);
}

#[tokio::test]
async fn a_revision_has_a_page_and_logs_of_no_pod_say_so() {
    let mut snapshot = snapshot();
    let revision = json!({
        "source": "main", "sequence": 1, "commit": C2, "author": "Ada <a@b>", "subject": "First",
        "committedAt": "2026-01-01T00:00:00Z", "appliedAt": "2026-01-01T00:00:01Z", "durationMs": 7,
        "counts": {"create": 2, "update": 0, "replace": 0, "delete": 0, "unchanged": 0, "quarantined": 0, "held": 0},
        "verdict": {"state": "bad", "why": "not healthy within 120 s"}, "decidedAt": "2026-01-01T00:02:01Z",
    });
    put(&mut snapshot, "revisions/main/0000000001", &revision);
    assert!(snapshot.malformed.is_empty(), "{:?}", snapshot.malformed);
    let server = format!("http://{}", serve(snapshot).await);
    for name in ["rev/1", "revision/2222", "rev/main/1"] {
        let page = String::from_utf8(run(&server, &["describe", name]).await.stdout).unwrap();
        for line in [
            "Revision:      1\n",
            "Status:        Bad\n",
            "Why:           not healthy within 120 s\n",
            "Changes:       2 created\n",
        ] {
            assert!(page.contains(line), "{name}: {line} in\n{page}");
        }
    }
    // Without a verdict, the reason is the objects that the commit waits for.
    let mut open = revision.clone();
    open["verdict"] = json!({"state": "applied"});
    open["decidedAt"] = Value::Null;
    let mut undecided = self::snapshot();
    put(&mut undecided, "revisions/main/0000000001", &open);
    assert!(undecided.malformed.is_empty(), "{:?}", undecided.malformed);
    let waits = run(&format!("http://{}", serve(undecided).await), &["describe", "rev/1"]).await;
    let page = String::from_utf8(waits.stdout).unwrap();
    assert!(page.contains("Decided:       not yet: pod default/db: ErrImagePull: "), "{page}");
    let none = "minik8s: revision 9 not found; see 'minik8s history'\n";
    check(&run(&server, &["describe", "rev", "9"]).await, 1, "", none);
    let none = "minik8s: no pod in namespace default matches app=x\n";
    check(&run(&server, &["logs", "-l", "app=x"]).await, 1, "", none);
}

#[tokio::test]
async fn wait_gives_up_at_once_when_only_a_change_can_help() {
    let mut failing = snapshot();
    let mut status = source(C1);
    status["error"] =
        json!({"kind": "PathNotFound", "message": "no folder prod", "since": "2026-01-01T00:00:00Z"});
    put(&mut failing, "sources/main", &status);
    let server = format!("http://{}", serve(failing).await);
    // It would last an hour if the wait were not given up.
    let output = run(&server, &["wait", "--for", "healthy", "--commit", C2, "--timeout", "1h"]).await;
    check(&output, 1, "", "minik8s: not healthy: source main: PathNotFound: no folder prod\n");
}

#[tokio::test]
async fn a_sync_that_is_waited_for_fails_unless_the_commit_is_applied_whole() {
    let mut degraded = snapshot();
    let mut status = source(C2);
    status["state"] = json!("Degraded");
    status["quarantined"] = json!([{"file": "apps/db.yaml", "commit": C2, "author": "Bob", "violations": [{
        "file": "apps/db.yaml", "line": 7, "column": 3, "severity": "error", "rule": "unknown-field",
        "message": "unknown field `imagee`", "help": "did you mean `image`?"}], "violationsTotal": 1}]);
    put(&mut degraded, "sources/main", &status);
    assert!(degraded.malformed.is_empty(), "{:?}", degraded.malformed);
    let server = format!("http://{}", serve(degraded).await);
    let line = "minik8s: source main: 2222222 is applied in part: apps/db.yaml:7:3: error[unknown-field]: unknown \
                field `imagee` (did you mean `image`?) (commit 2222222, Bob)\n";
    let output = run(&server, &["sync", "--wait"]).await;
    check(&output, 1, "source main: Degraded at commit 2222222\n", line);
}

#[tokio::test]
async fn an_object_of_a_quarantined_file_is_described_with_what_is_wrong_there() {
    let mut degraded = snapshot();
    let mut status = source(C2);
    status["quarantined"] = json!([{"file": "apps/db.yaml", "commit": C1, "author": "Bob", "violations": [{
        "file": "apps/db.yaml", "line": 7, "column": 3, "severity": "error", "rule": "unknown-field",
        "message": "unknown field `imagee`", "help": "did you mean `image`?", "object": "Pod/default/new"}],
        "violationsTotal": 1}]);
    put(&mut degraded, "sources/main", &status);
    assert!(degraded.malformed.is_empty(), "{:?}", degraded.malformed);
    let server = format!("http://{}", serve(degraded).await);
    let error = "apps/db.yaml:7:3: error[unknown-field]: unknown field `imagee` (did you mean `image`?)";
    let page = String::from_utf8(run(&server, &["describe", "pod/db"]).await.stdout).unwrap();
    let head = format!(
        "Quarantined:   apps/db.yaml of commit 1111111 by Bob is not applied; commit 2222222 runs instead\n\
         {:15}{error}\nName:          db\n",
        ""
    );
    assert!(page.starts_with(&head), "{page}");
    // Also one that is not there yet.
    let line = format!(
        "minik8s: there is no pod new in namespace default; see 'minik8s get pods -A'; apps/db.yaml of commit 1111111 \
         by Bob is not applied; there is no earlier version of the object; {error}\n"
    );
    check(&run(&server, &["describe", "pod/new"]).await, 1, "", &line);
    let other = String::from_utf8(run(&server, &["describe", "pod/web"]).await.stdout).unwrap();
    assert!(other.starts_with("Name:          web\n"), "{other}");
}

#[tokio::test]
async fn logs_say_which_containers_there_are() {
    let server = format!("http://{}", serve(snapshot()).await);
    let line = "minik8s: pod default/web has 2 containers; name one with -c (container=): app, side\n";
    check(&run(&server, &["logs", "pod/web"]).await, 1, "", line);
}

#[tokio::test]
async fn status_version_sync_describe_and_completion_answer() {
    let server = format!("http://{}", serve(snapshot()).await);
    for (arguments, words) in [
        (
            &["status"][..],
            &["source   main: Synced at 2222222", "pods     1/2 ready", "nodes    1/1 ready"][..],
        ),
        (&["version"], &["client  0.1.0", "server  9.9.9 (host-1 at http://127.0.0.1:"]),
        (&["sync"], &["is fetching the repository"]),
        (&["sync", "--wait"], &["source main: Synced at commit 2222222"]),
        (
            &["describe", "pod/web"],
            &["Set by:        apps/web.yaml:1 of source main", "none in the last hour"],
        ),
        (&["describe", "no", "n1"], &["Pods:          2 of 110"]),
        (&["completion", "bash"], &["_minik8s"]),
        (&["completion", "fish"], &["complete -c minik8s"]),
        (&["get", "sources"], &["main   Synced   2222222"]),
    ] {
        let output = run(&server, arguments).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        for word in words {
            assert!(text.contains(word), "{arguments:?}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "colours in a pipe: {text:?}");
    }
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_failure() {
    let server = format!("http://{}", serve(snapshot()).await);
    let mut child = Command::new(env!("CARGO_BIN_EXE_minik8s"))
        .args(["get", "pods"])
        .env("MINIK8S_SERVER", server)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().await.unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
