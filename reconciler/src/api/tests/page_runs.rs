//! The page: runs of workflows, and Slurm jobs with their results.

use schema::kinds::job::{JobPhase, JobSpec, JobStatus};
use schema::kinds::workflow::WorkflowSpec;
use schema::meta::NamespacedName;
use schema::records::{JobDependencyState, JobOrder, JobReport, ResultFile, ResultKind, UnfetchedFiles};

use super::page::{event_with, text};
use super::*;

const HOSTILE: &str = "<script>alert(1)</script>\"'\u{202e}";

fn spec() -> Value {
    json!({"startAt": "begin", "states": {
        "begin": {"type": "Choice", "default": "spare", "choices": [
            {"variable": "$.text", "isPresent": true, "next": "wait"}]},
        "wait": {"type": "Wait", "seconds": 60, "next": HOSTILE},
        HOSTILE: {"type": "Fail", "error": HOSTILE, "cause": HOSTILE},
        "spare": {"type": "Succeed"}}})
}

/// Serves the API beside a Workflow object.
async fn with_flow() -> Api {
    let mut snapshot = with_web();
    let spec: WorkflowSpec = serde_json::from_value(spec()).unwrap();
    let object = object_of("flow", spec);
    snapshot.objects.insert(object.reference(), versioned(object));
    Api::over(snapshot).await
}

fn flow() -> NamespacedName {
    NamespacedName::new("default", "flow")
}

fn head(phase: &str) -> Value {
    let mut head = json!({"definition": "ab", "origin": {"by": "request", "reconciler": HOSTILE}, "startedAt": at(0),
                          "phase": phase, "state": "begin"});
    if phase != "Running" {
        head["finishedAt"] = json!(at(70));
        head["state"] = HOSTILE.into();
        head["error"] = HOSTILE.into();
    }
    head
}

/// Stores a run that waits in its second state.
async fn put_run(api: &Api, run: &str) {
    let begun = json!({"begun": {"input": {"inline": {"text": HOSTILE}}}});
    let entries = json!({"entries": [{"at": at(1), "event": {"type": "continue"}}]});
    for (key, value) in [
        (Key::RunDefinition(flow(), "ab".into()), spec()),
        (Key::RunHead(flow(), run.into()), head("Running")),
        (Key::RunEntries(flow(), run.into(), 0), begun),
        (Key::RunEntries(flow(), run.into(), 1), entries),
    ] {
        api.put(key, value.to_string().into_bytes()).await;
    }
}

/// Ends it in its last state.
async fn end_run(api: &Api, run: &str) {
    let entries = json!({"entries": [
        {"at": at(61), "event": {"type": "due", "timer": 1}},
        {"at": at(62), "event": {"type": "continue"}}]});
    let put = |key: Key, value: Value| Op::put(key, value.to_string().into_bytes());
    let ops = vec![
        put(Key::RunEntries(flow(), run.into(), 2), entries),
        put(Key::RunHead(flow(), run.into()), head("Failed")),
    ];
    let _ = api.store.txn(Vec::new(), ops).await.unwrap();
}

fn assert_is_safe(path: &str, html: &str) {
    let is_hostile = html.contains("<script>alert") || html.contains(['\u{202e}', '\u{1b}']);
    assert!(!is_hostile, "{path}: {html}");
    for inline in [" style=", "<style", " onclick=", "javascript:"] {
        assert!(!html.contains(inline), "{path}: {inline}");
    }
}

#[tokio::test]
async fn a_run_shows_its_path_its_data_and_its_events_as_text() {
    let api = with_flow().await;
    put_run(&api, "r1").await;
    let path = "/runs/default/flow/r1";
    let (status, html, _) = text(&api, path).await;
    assert_eq!(status, 200, "{html}");
    assert_is_safe(path, &html);
    for part in [
        "<span class=\"state good\">Running</span>",
        "/object/Workflow/default/flow",
        "<p>Path: begin → wait</p>",
        "<g class=\"taken\"><title>begin → wait: $.text isPresent true</title>",
        "◐ wait",
        "1.000 s",
        "WaitStateEntered",
        "&#34;text&#34;: &#34;&#60;script&#62;alert",
        "a request to &#60;script&#62;alert",
    ] {
        assert!(html.contains(part), "no {part} in {html}");
    }
    end_run(&api, "r1").await;
    let (_, html, _) = text(&api, path).await;
    assert_is_safe(path, &html);
    for part in [
        "<span class=\"state bad\">Failed</span>",
        "▲ &#60;script&#62;alert(1)&#60;/…",
        "ExecutionFailed",
        "61.000 s",
    ] {
        assert!(html.contains(part), "no {part} in {html}");
    }
    assert!(!html.contains("◐ wait") && html.contains("✓ wait"), "{html}");
    for (path, status) in
        [("/runs/default/flow/r2", 404), ("/runs/default/flow/a%2Fb", 400), ("/runs/default", 404)]
    {
        assert_eq!(text(&api, path).await.0, status, "{path}");
    }
}

#[tokio::test]
async fn the_page_of_a_run_is_live_until_the_run_has_ended() {
    let api = with_flow().await;
    put_run(&api, "r1").await;
    let (_, html, _) = text(&api, "/runs/default/flow/r1").await;
    let have = html.split("data-have=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let url = format!("http://{}/changes?of=/runs/default/flow/r1&have={have}", api.address);
    let mut stream = reqwest::get(&url).await.unwrap().bytes_stream().boxed();
    end_run(&api, "r1").await;
    let event = event_with(&mut stream, ">Failed</span>").await;
    assert!(event.contains("ExecutionFailed") && event.contains("\"run-graph\""), "{event}");
    assert!(!event.contains("\"run-data\""), "the data did not change: {event}");
    // Nothing reads the run again.
    put_run(&api, "r1").await;
    let more = tokio::time::timeout(Duration::from_secs(5), stream.next()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test]
async fn a_workflow_lists_its_newest_runs() {
    let api = with_flow().await;
    let path = "/object/Workflow/default/flow";
    let (_, none, _) = text(&api, path).await;
    assert!(none.contains("<section id=\"runs-of-workflow\">") && none.contains("No run is kept"), "{none}");
    for number in 0..60 {
        let phase = if number == 59 { "Running" } else { "Failed" };
        api.put(Key::RunHead(flow(), format!("r{number:02}")), head(phase).to_string().into_bytes()).await;
    }
    let other = NamespacedName::new("default", "flow-2");
    api.put(Key::RunHead(other, "foreign-run".into()), head("Failed").to_string().into_bytes()).await;
    let (_, html, _) = text(&api, path).await;
    assert_is_safe(path, &html);
    let links = |run: &str| html.contains(&format!("<a href=\"/runs/default/flow/{run}\">{run}</a>"));
    assert!(links("r59") && links("r10") && !links("r09") && !html.contains("foreign-run"), "{html}");
    assert!(html.contains("There are older runs") && html.contains("state good\">Running"), "{html}");
    assert!(html.contains("&#60;script&#62;alert"), "{html}");
    // Other objects have no runs.
    assert!(!text(&api, "/object/Pod/default/web").await.1.contains("runs-of-workflow"));
    api.store.refuse_everything(true);
    let (status, html, _) = text(&api, path).await;
    assert!(status == 200 && html.contains("The runs could not be read"), "{status} {html}");
}

const DIGEST: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// Adds a job that has ended on node n1 with these files.
fn put_job(snapshot: &mut Snapshot, files: &[&str]) {
    let spec = JobSpec { run_commands: vec!["true".to_owned()], ..JobSpec::default() };
    let (object, id) = (object_of("sum", spec.clone()), NamespacedName::new("default", "sum"));
    let order = JobOrder {
        uid: "u".to_owned(),
        hash: object.hash.clone(),
        spec,
        files: Default::default(),
        created_at: at(0),
        dependency: JobDependencyState::None,
        reached: true,
        former: Vec::new(),
        deleting: false,
    };
    let status = JobStatus {
        phase: JobPhase::Failed,
        slurm_id: Some(4711),
        state: "OUT_OF_MEMORY".to_owned(),
        reason: HOSTILE.to_owned(),
        nodes: "g[1-2]".to_owned(),
        ..JobStatus::default()
    };
    let file = |path: &&str| ResultFile {
        path: (*path).to_owned(),
        size: 2048,
        digest: DIGEST.to_owned(),
        kind: ResultKind::Output,
        is_truncated: false,
        unreadable: String::new(),
    };
    let report = JobReport {
        uid: "u".to_owned(),
        hash: object.hash.clone(),
        status,
        login: "ada@login:22".to_owned(),
        started_at: Some(at(0)),
        ended_at: Some(at(90)),
        results: files.iter().map(file).collect(),
        unfetched: UnfetchedFiles { count: 3, paths: Vec::new() },
        ..JobReport::default()
    };
    snapshot.objects.insert(object.reference(), versioned(object));
    snapshot.put(&Key::Job("n1".to_owned(), id.clone()), &order, 1);
    snapshot.put(&Key::JobReport("n1".to_owned(), id), &report, 1);
}

#[tokio::test]
async fn a_job_shows_its_state_in_slurm_and_its_files() {
    let mut snapshot = with_web();
    put_job(&mut snapshot, &["out/sum.txt", HOSTILE, "page.html"]);
    let path = "/object/Job/default/sum";
    let (status, html, _) = text(&Api::over(snapshot).await, path).await;
    assert_eq!(status, 200, "{html}");
    assert_is_safe(path, &html);
    let base = format!("/v1/jobs/default/sum/results/{DIGEST}?path=");
    for part in [
        "<span class=\"state bad\">Failed</span>",
        "<dt>Slurm job</dt><dd>4711</dd>",
        "<dt>Slurm state</dt><dd>OUT_OF_MEMORY</dd>",
        "<dt>Nodes</dt><dd>g[1-2]</dd>",
        "<dt>Elapsed</dt><dd>90s</dd>",
        "<dt>Login</dt><dd>ada@login:22</dd>",
        "<dt>Reason</dt><dd>&#60;script&#62;alert",
        "<a href=\"/v1/jobs/default/sum/output\">",
        &format!("<a href=\"{base}out%2Fsum.txt&#38;view=true\"><bdi>out/sum.txt</bdi></a>"),
        &format!("<a href=\"{base}out%2Fsum.txt\" download>Download</a>"),
        "<bdi>page.html</bdi></td>",
        "<bdi>&#60;script&#62;alert",
        "3 more files are only on the login host",
    ] {
        assert!(html.contains(part), "no {part} in {html}");
    }
    assert!(!html.contains("page.html&#38;view"), "it could run a script: {html}");
}

#[tokio::test]
async fn what_a_job_wrote_runs_nothing_in_a_browser() {
    let hostile = || async { "<script>alert(1)</script>" };
    let node = Router::new()
        .route(&format!("/v1/jobs/default/sum/results/{DIGEST}"), get(hostile))
        .route("/v1/jobs/default/sum/output", get(hostile));
    let node = bind_and_serve(node).await;
    let mut snapshot = with_node_api(format!("http://{node}"));
    put_job(&mut snapshot, &["sum.txt", "page.html", "plot.png"]);
    let api = Api::over(snapshot).await;
    let result = |path: &str| format!("/v1/jobs/default/sum/results/{DIGEST}?path={path}");
    for (path, kind, place) in [
        (result("sum.txt"), "text/plain; charset=utf-8", "attachment"),
        (result("sum.txt&view=true"), "text/plain; charset=utf-8", "inline"),
        (result("plot.png&view=true"), "image/png", "inline"),
        (result("page.html"), "application/octet-stream", "attachment"),
        (result("page.html&view=true"), "application/octet-stream", "attachment"),
        ("/v1/jobs/default/sum/output".to_owned(), "text/plain; charset=utf-8", ""),
    ] {
        let (status, body, headers) = text(&api, &path).await;
        assert_eq!((status, body.as_str()), (200, "<script>alert(1)</script>"), "{path}");
        let header = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap());
        assert_eq!(header("content-type"), kind, "{path}");
        assert!(header("content-disposition").starts_with(place), "{path}: {headers:?}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        let policy = header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && policy.contains("sandbox"), "{path}: {policy}");
    }
}
