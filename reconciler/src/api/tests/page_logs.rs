//! The page of a pod's logs: side by side, over one stream, which ends when they have.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::{StatusCode, Uri};

use super::page::{event_with, text};
use super::*;

/// Page of the containers of the pod, side by side.
const ALL: &str = "/logs/default/pair?container=*";

/// Serves the logs of a pod: containers `one` and `two` ran, `three` runs once this is set.
async fn with_pair(three_runs: Arc<AtomicBool>) -> Api {
    let two = |uri: Uri| async move {
        let is_followed = uri.query().unwrap_or_default().contains("follow=true");
        let more = if is_followed { "2026-01-01T00:00:03Z later from two\n" } else { "" };
        format!("2026-01-01T00:00:02Z <i>from</i> two\n{more}")
    };
    let three = move || {
        let runs = three_runs.load(Ordering::Relaxed);
        async move {
            let problem = r#"{"error":"container three <never> ran","help":"see its status"}"#;
            let line = "2026-01-01T00:00:04Z from three\n";
            if runs { (StatusCode::OK, line) } else { (StatusCode::NOT_FOUND, problem) }
        }
    };
    let router = Router::new()
        .route("/v1/logs/default/pair/one", get(|| async { "2026-01-01T00:00:01.123456789Z from one\n" }))
        .route("/v1/logs/default/pair/two", get(two))
        .route("/v1/logs/default/pair/three", get(three));
    let node = bind_and_serve(router).await;
    let mut snapshot = with_node_api(format!("http://{node}"));
    let object = object("pair", pod_spec(&["one", "two", "three"]));
    snapshot.objects.insert(object.reference(), versioned(object.clone()));
    let instance = put_instance(&mut snapshot, &object);
    bind(&mut snapshot, &instance, "n1");
    report(&mut snapshot, &instance, "n1", running());
    Api::over(snapshot).await
}

/// Path of the stream of a page, which has the marks that the page names.
async fn stream_of(api: &Api, page: &str) -> String {
    let (status, html, _) = text(api, page).await;
    assert_eq!(status, 200, "{html}");
    let have = html.split("data-have=\"").nth(1).unwrap().split('"').next().unwrap();
    format!("/changes?of={}&have={have}", page.replace('?', "%3F").replace('=', "%3D"))
}

#[tokio::test]
async fn logs_of_several_containers_are_side_by_side_with_the_problems_of_others() {
    let api = with_pair(Arc::default()).await;
    let (_, all, _) = text(&api, ALL).await;
    for part in [
        "<option value=\"*\" selected>all, side by side</option>",
        "<h2>one</h2>",
        "id=\"lines-0\"",
        "<time datetime=\"2026-01-01T00:00:01.123456789Z\">2026-01-01T00:00:01.123Z</time> from one",
        "id=\"lines-1\"",
        "&#60;i&#62;from&#60;/i&#62; two",
        "container=two\" download",
        "<p class=\"card problem\">container three &#60;never&#62; ran",
        "data-have=\"after:2026-01-01T00:00:01.123456789Z,after:2026-01-01T00:00:02Z,after:\"",
    ] {
        assert!(all.contains(part), "no {part} in {all}");
    }
    let (_, first, _) = text(&api, "/logs/default/pair").await;
    assert!(first.contains("<option selected>one</option>") && first.contains("from one"), "{first}");
    assert!(first.contains("aria-label=\"Lines of the log\"") && !first.contains("lines-1"), "{first}");
    let (_, only, _) = text(&api, "/logs/default/web?container=*").await;
    assert!(!only.contains("side by side") && !only.contains("lines-1"), "it has one container: {only}");
}

#[tokio::test]
async fn one_stream_continues_each_log_and_begins_the_one_that_starts_later() {
    let three_runs = Arc::new(AtomicBool::new(false));
    let api = with_pair(Arc::clone(&three_runs)).await;
    let url = format!("http://{}{}", api.address, stream_of(&api, ALL).await);
    let mut stream = reqwest::get(&url).await.unwrap().bytes_stream().boxed();
    let event = event_with(&mut stream, "later from two").await;
    assert!(event.contains("\"problem\":\"container three &#60;never&#62; ran"), "{event}");
    assert!(
        event.contains("\"id\":\"lines-1\"") && !event.contains("lines-0"),
        "one has no new line: {event}"
    );
    assert!(!event.contains("&#60;i&#62;"), "a line that the tab has: {event}");
    three_runs.store(true, Ordering::Relaxed);
    let event = event_with(&mut stream, "event: end").await;
    assert!(event.contains("\"id\":\"lines-2\"") && event.contains("from three"), "{event}");
    let marks = "after:2026-01-01T00:00:01.123456789Z,after:2026-01-01T00:00:03Z,after:2026-01-01T00:00:04Z";
    assert!(event.contains(&format!("id: {marks}\n")), "{event}");
    assert!(stream.next().await.is_none(), "the stream ends with the logs");
}

#[tokio::test]
async fn an_ended_log_ends_its_stream_and_one_that_cannot_be_read_is_an_error() {
    let api = with_pair(Arc::default()).await;
    let of = stream_of(&api, "/logs/default/pair?container=one").await;
    let (status, events, _) = text(&api, &of).await;
    assert!(status == 200 && events == "event: end\ndata: {}\n\n", "{status} {events}");
    let of = stream_of(&api, "/logs/default/pair?container=three").await;
    let (status, body, _) = text(&api, &of).await;
    assert!(status == 404 && body.contains("never"), "{status} {body}");
}
