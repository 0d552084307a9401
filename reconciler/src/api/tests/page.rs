//! The page: what it shows, what it escapes, what its stream sends.

use futures::stream::BoxStream;
use jiff::SignedDuration;
use schema::control::lock;
use schema::kinds::Resource;
use schema::kinds::pod::PodStatus;

use super::*;

pub(super) async fn text(api: &Api, path: &str) -> (u16, String, reqwest::header::HeaderMap) {
    let answer = reqwest::get(format!("http://{}{path}", api.address)).await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    (status, answer.text().await.unwrap(), headers)
}

#[tokio::test]
async fn every_page_is_readable_without_its_script() {
    let api = Api::over(with_web()).await;
    for (path, parts) in [
        ("/", &["Every object is healthy", "n1", "Latest commits", "Synced"][..]),
        ("/tree", &["Pod/default/web", "apps/web.yaml:3", "1 object, page 1 of 1"]),
        ("/tree?kind=Service", &["No object matches"]),
        ("/tree?health=unhealthy", &["No object matches"]),
        ("/object/Pod/default/web", &["Healthy", "apps/web.yaml:3", "container/app", "Spec"]),
        ("/nodes/n1", &["Ready", "192.0.2.7", "default/web", "1 on this node"]),
        ("/network", &["There are no services", "There are no hosts", "n1", "nothing yet"]),
        ("/history", &["Change 2", "Ada"]),
        ("/history/main/1", &["Change 1", "No timeline"]),
    ] {
        let (status, html, headers) = text(&api, path).await;
        assert_eq!(status, 200, "{path}: {html}");
        for part in parts {
            assert!(html.contains(part), "{path}: no {part} in {html}");
        }
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("require-trusted-types-for"));
        for inline in [" style=", "<style", " onclick=", "javascript:", "<script>"] {
            assert!(!html.contains(inline), "{path}: {inline}");
        }
    }
    for asset in ["page.css", "page.js", "icon.svg"] {
        assert_eq!(text(&api, &format!("/assets/{asset}")).await.0, 200, "{asset}");
    }
}

#[tokio::test]
async fn the_overview_mentions_targets_that_did_not_accept_a_message() {
    let mut snapshot = with_web();
    let message = json!({"event": "node", "state": "failure", "title": "node n1 is not ready"});
    let entry = json!({"target": "ops", "subject": "nodes", "wanted": message, "sequence": 1, "since": at(0),
        "failures": 3, "error": "connection refused"});
    snapshot.put(&Key::Outbox("ops".to_owned(), "nodes".to_owned()), &entry, 43);
    for (snapshot, is_shown) in [(snapshot, true), (with_web(), false)] {
        let (_, html, _) = text(&Api::over(snapshot).await, "/").await;
        assert_eq!(html.contains("1 target of notifications did not accept"), is_shown, "{html}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_an_error_with_a_page() {
    let api = Api::over(with_web()).await;
    for (path, status, part) in [
        ("/object/Pod/default/nope", 404, "there is no Pod nope in namespace default"),
        ("/object/Nonsense/default/web", 404, "unknown kind"),
        ("/history/main/77", 404, "not in the history"),
        ("/nodes/nope", 404, "there is no node nope"),
        ("/logs/default/nope", 404, "there is no pod nope in namespace default"),
        ("/logs/default/we%20b", 400, "not a valid pod name"),
        ("/tree?kind=nonsense", 404, "unknown kind"),
        ("/tree?health=bad", 400, "not a health"),
        ("/tree?sort=colour", 400, "no such order"),
        ("/tree?label=%3D%3D%3D", 400, "selector"),
        ("/tree?nonsense=1", 400, "unknown field"),
    ] {
        let (code, html, _) = text(&api, path).await;
        assert_eq!(code, status, "{path}: {html}");
        assert!(html.contains(part) && html.contains("</html>"), "{path}: {html}");
    }
    // An address without a route is a page for browsers, and JSON for others.
    let url = format!("http://{}/nowhere", api.address);
    let request = reqwest::Client::new().get(&url).header("accept", "text/html,*/*;q=0.8");
    let html = request.send().await.unwrap().text().await.unwrap();
    assert!(html.contains("there is nothing at /nowhere") && html.contains("</html>"), "{html}");
    let (status, json, _) = text(&api, "/nowhere").await;
    assert!(status == 404 && json.starts_with('{'), "{status} {json}");
}

// Seen red with `|safe` on a subject.
#[tokio::test]
async fn hostile_text_stays_text() {
    let hostile = "<script>alert(1)</script>\"'\u{202e}\u{1b}[31m";
    let mut snapshot = with_web();
    let mut revision = revision(3, C3);
    revision.subject = hostile.to_owned();
    revision.author = hostile.to_owned();
    snapshot.revisions.insert(("main".to_owned(), 3), versioned(revision));
    put_pod(
        &mut snapshot,
        "hostile",
        PodStatus { message: hostile.to_owned(), ..pod_waiting("ErrImagePull", hostile) },
    );
    let api = Api::over(snapshot).await;
    // The last says why the pod has no log yet.
    let of_pod = ["/object/Pod/default/hostile", "/nodes/n1", "/logs/default/hostile"];
    let with_text = ["/", "/history", "/history/main/3"].into_iter().chain(of_pod);
    for path in with_text.chain(["/tree"]) {
        let (status, html, _) = text(&api, path).await;
        assert_eq!(status, 200, "{path}");
        assert!(
            !html.contains("<script>alert") && !html.contains('\u{202e}') && !html.contains('\u{1b}'),
            "{path}: {html}"
        );
        let is_shown = html.contains("&#60;script&#62;alert") || html.contains("&lt;script&gt;alert");
        assert!(is_shown || path == "/tree", "{path}: {html}");
    }
}

/// Reads events of a stream until one has this text, and returns it.
pub(super) async fn event_with(
    stream: &mut BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    wanted: &str,
) -> String {
    let mut seen = String::new();
    loop {
        let chunk = tokio::time::timeout(Duration::from_secs(60), stream.next()).await;
        let chunk = chunk.unwrap_or_else(|_| panic!("no {wanted} in {seen}")).expect("it goes on").unwrap();
        seen.push_str(&String::from_utf8_lossy(&chunk));
        if seen.contains(wanted) && seen.ends_with("\n\n") {
            return seen;
        }
    }
}

// Seen red with all parts in each event.
#[tokio::test]
async fn a_tab_gets_the_parts_that_changed_and_after_a_pause_those_that_it_lacks() {
    let (publisher, reader) = SnapshotReader::channel(with_web());
    let api = Api::reading("n1", reader).await;
    let (_, html, _) = text(&api, "/").await;
    let have = html.split("data-have=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let url = format!("http://{}/changes?of=/&have={have}", api.address);
    let mut stream = reqwest::get(&url).await.unwrap().bytes_stream().boxed();
    let mut snapshot = with_web();
    put_pod(&mut snapshot, "second", pod_waiting("ErrImagePull", "no such image"));
    publisher.publish(snapshot);
    let event = event_with(&mut stream, "ErrImagePull").await;
    assert!(event.contains("event: parts") && event.contains("\"unhealthy\""), "{event}");
    assert!(!event.contains("\"commits\""), "the commits did not change: {event}");
    drop(stream);
    // What the id says is not sent again.
    let id = event.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    let again = reqwest::Client::new().get(&url).header("last-event-id", &id).send().await.unwrap();
    let mut again = again.bytes_stream().boxed();
    let mut healthy = with_web();
    put_pod(&mut healthy, "second", running());
    publisher.publish(healthy);
    let event = event_with(&mut again, "Every object is healthy").await;
    assert!(!event.contains("ErrImagePull"), "{event}");
    let wrong = text(&api, "/changes?of=/nonsense").await;
    assert_eq!(wrong.0, 404, "{}", wrong.1);
}

#[tokio::test]
async fn the_tree_goes_from_sources_to_containers_in_the_order_asked_for() {
    let mut snapshot = with_web();
    put_pod(&mut snapshot, "another", pod_waiting("ErrImagePull", "no such image"));
    let api = Api::over(snapshot).await;
    let order = |html: &str| {
        let [another, web] =
            ["another", "web"].map(|name| html.find(&format!("/object/Pod/default/{name}\"")));
        another.unwrap() < web.unwrap()
    };
    let (_, html, _) = text(&api, "/tree").await;
    for part in
        ["Source main</th>", "<details id=\"below-Pod/default/web\">", "/logs/default/web?container=app"]
    {
        assert!(html.contains(part), "no {part} in {html}");
    }
    assert!(order(&html), "by name: {html}");
    let (_, by_health, _) = text(&api, "/tree?sort=health").await;
    assert!(order(&by_health) && !by_health.contains("Source main</th>"), "{by_health}");
    let (_, by_file, _) = text(&api, "/tree?sort=file").await;
    assert!(by_file.contains("aria-sort=\"ascending\"><a id=\"sort-file\""), "{by_file}");
}

#[tokio::test]
async fn lists_are_paged() {
    let mut snapshot = with_web();
    for number in 0..250 {
        put_pod(&mut snapshot, &format!("pod-{number:03}"), running());
    }
    let api = Api::over(snapshot).await;
    let (_, first, _) = text(&api, "/tree?kind=Pod").await;
    assert!(first.contains("251 objects, page 1 of 3") && first.contains("pod-099"), "{first}");
    assert!(
        first.contains("/tree?kind=Pod&#38;page=2") || first.contains("/tree?kind=Pod&amp;page=2"),
        "{first}"
    );
    let (_, last, _) = text(&api, "/tree?kind=Pod&page=3").await;
    assert!(last.contains("pod-249") && !last.contains("pod-099") && !last.contains("page=4"), "{last}");
    assert!(first.len() < 200_000, "{}", first.len());
}

#[tokio::test]
async fn conditions_stand_above_the_yaml_and_a_part_without_content_keeps_its_place() {
    let mut snapshot = with_web();
    put_function(&mut snapshot, "resize");
    let conditions = json!({"ready": "Unknown", "since": at(0)});
    let conditions = serde_json::from_value(conditions).unwrap();
    snapshot.node_conditions.insert("n1".to_owned(), versioned(conditions));
    let api = Api::over(snapshot).await;
    let (_, pod, _) = text(&api, "/object/Pod/default/web").await;
    let (table, yaml) = (pod.find("<h2>Conditions</h2>"), pod.find("spec-yaml"));
    assert!(table.is_some() && table < yaml && pod.contains("<td class=\"name\">Ready</td>"), "{pod}");
    let (_, node, _) = text(&api, "/nodes/n1").await;
    assert!(node.contains("HeartbeatExpired") && node.contains("<section id=\"conditions\">"), "{node}");
    // The script replaces only sections that the page has.
    let (_, function, _) = text(&api, "/object/Function/default/resize").await;
    for part in ["conditions", "rollout"] {
        assert!(function.contains(&format!("<section id=\"{part}\"></section>")), "{part}: {function}");
    }
    assert!(!pod.contains("id=\"chart\""), "only autoscalers have a chart: {pod}");
}

#[tokio::test]
async fn an_autoscaler_shows_its_last_hour_once_there_are_samples() {
    let mut snapshot = with_web();
    let spec = json!({"scaleTargetRef": {"kind": "Pod", "name": "web"}, "minReplicas": 1, "maxReplicas": 4,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 50}}}]});
    let spec = serde_json::from_value(spec).unwrap();
    let scaler = object_of("web", Resource::HorizontalPodAutoscaler(spec));
    snapshot.objects.insert(scaler.reference(), versioned(scaler));
    let api = Api::over(snapshot.clone()).await;
    let path = "/object/HorizontalPodAutoscaler/default/web";
    let (_, before, _) = text(&api, path).await;
    assert!(before.contains("has no sample yet") && !before.contains("<svg"), "{before}");
    for ago in [30, 15, 0] {
        snapshot.revision += 1;
        let then = Timestamp::now().checked_sub(SignedDuration::from_secs(ago)).unwrap();
        lock(&api.samples).record(&snapshot, then);
    }
    let (_, after, _) = text(&api, path).await;
    for part in [
        "<section id=\"chart\">",
        "role=\"img\" aria-label=\"The last hour: current pods now 1, 1 to 1; wanted pods now –",
        "<tr><td class=\"name\">target of cpu utilization</td><td class=\"num\">50%</td>",
        "<polyline class=\"line\"",
    ] {
        assert!(after.contains(part), "no {part} in {after}");
    }
    assert!(!after.contains(" style="), "{after}");
}

#[tokio::test]
async fn the_page_of_a_workload_shows_its_rollout() {
    let mut snapshot = with_web();
    let spec = r#"{"replicas": 3, "selector": {}, "template": {"spec": {"containers": []}}}"#;
    let object = object_of("shop", Resource::ReplicaSet(serde_json::from_str(spec).unwrap()));
    let id = object.reference();
    snapshot.objects.insert(id.clone(), versioned(object));
    let record = json!({"objectHash": "", "commit": C2, "wanted": "bbbbbbbbbb", "good": "aaaaaaaaaa",
        "startedAt": at(60), "progressedAt": at(70), "best": {"updated": 0, "available": 0, "old": 3},
        "failure": {"at": at(90), "reason": "ErrImagePull", "message": "no <such> image; template aaaaaaaa serves again"},
        "steps": [{"at": at(60), "message": "rollout of template bbbbbbbb began"}],
        "status": {"observedGeneration": 1, "desiredReplicas": 3, "conditions": [{"type": "Progressing",
            "status": "False", "reason": "ErrImagePull", "lastTransitionTime": at(90)}]}});
    snapshot.rollouts.insert(id, versioned(serde_json::from_value(record).unwrap()));
    let api = Api::over(snapshot).await;
    let (_, html, _) = text(&api, "/object/ReplicaSet/default/shop").await;
    for part in [
        "<span class=\"state bad\">Rolled back</span>",
        "template aaaaaaaa serves again",
        "start pods of template aaaaaaaa",
        "rollout of template bbbbbbbb began",
        "<td class=\"name\">Progressing</td>",
    ] {
        assert!(html.contains(part), "no {part} in {html}");
    }
    assert!(!html.contains("<such>"), "{html}");
}

#[tokio::test]
async fn a_pod_says_where_it_runs() {
    let api = Api::over(with_web()).await;
    let (_, html, _) = text(&api, "/object/Pod/default/web").await;
    for part in ["<dt>Node</dt><dd><a href=\"/nodes/n1\">n1</a></dd>", "<dt>Containers</dt><dd>1/1 ready"] {
        assert!(html.contains(part), "no {part} in {html}");
    }
}
