//! Metrics, the targets of Prometheus, and the metrics of nodes.

use axum::http::{StatusCode, header};
use futures::future::join_all;
use schema::metrics::CONTENT_TYPE;
use schema::store::election::{Fence, LeaderRecord};

use super::*;

impl Api {
    /// Serves the API of a reconciler that leads.
    async fn leading(snapshot: Snapshot) -> Self {
        let store = Arc::new(MemoryStore::new());
        let fence = FenceReader::fixed(Some(Fence { create_revision: 1 }));
        let deps = ApiDeps { fence, ..deps(SnapshotReader::fixed(snapshot), &store) };
        Self::with("n1", store, deps).await
    }

    /// Makes the reconciler of this name the leader.
    async fn is_led_by(&self, id: &str) {
        let leader = LeaderRecord { id: id.to_owned(), since: at(0), api: None };
        self.put(Key::Leader, encode(&leader).unwrap()).await;
    }

    /// Status, content type and text of an answer.
    async fn text(&self, path: &str) -> (u16, String, String) {
        let answer = reqwest::get(format!("http://{}{path}", self.address)).await.unwrap();
        let kind = answer.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        (answer.status().as_u16(), kind.unwrap_or_default(), answer.text().await.unwrap())
    }
}

#[tokio::test]
async fn only_the_leader_has_the_metrics_of_the_cluster() {
    let has = |text: &str, line: &str| text.lines().any(|found| found.starts_with(line));
    for (api, leads) in [(Api::leading(with_web()).await, true), (Api::over(with_web()).await, false)] {
        assert_eq!(api.get("/nothing").await.0, 404);
        let (status, kind, text) = api.text("/metrics").await;
        assert_eq!((status, kind.as_str()), (200, CONTENT_TYPE));
        let leader = format!("minik8s_leader {}", u8::from(leads));
        for line in [
            leader.as_str(),
            "minik8s_build_info{version=\"9.9.9\"} 1",
            "process_start_time_seconds ",
            "minik8s_api_requests_total{code=\"4xx\"} ",
        ] {
            assert!(has(&text, line), "{line}:\n{text}");
        }
        assert_eq!(has(&text, "minik8s_node_ready{node=\"n1\"} 1"), leads, "{text}");
        assert_eq!(has(&text, "minik8s_pods{"), leads, "{text}");
    }
}

#[tokio::test]
async fn before_etcd_is_read_a_leader_has_its_own_metrics_and_no_list_of_nodes() {
    let api = Api::leading(Snapshot::default()).await;
    let (status, _, text) = api.text("/metrics").await;
    assert!(status == 200 && text.contains("minik8s_leader 1"), "{text}");
    assert_eq!(api.get("/v1/metrics/targets").await.0, 503);
}

// Would fail with a list of the follower alone: Prometheus would drop all nodes while etcd is away.
#[tokio::test]
async fn a_follower_has_no_targets_while_nobody_else_is_known_to_lead() {
    let api = Api::over(with_web()).await;
    let status = async || api.get("/v1/metrics/targets").await.0;
    assert_eq!(status().await, 503, "nobody leads");
    api.is_led_by("host-1").await;
    assert_eq!(status().await, 503, "it lost its own term");
    api.is_led_by("host-2").await;
    assert_eq!(status().await, 200);
    api.store.slow_gets(Duration::from_secs(60));
    let begun = std::time::Instant::now();
    assert_eq!(status().await, 503, "etcd is slow");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    api.store.slow_gets(Duration::ZERO);
    api.store.refuse_everything(true);
    let (status, body) = api.get("/v1/metrics/targets").await;
    assert_eq!(
        (status, &body["error"]),
        (503, &json!("no reconciler is known to lead, so the nodes to scrape are unknown"))
    );
}

// Would fail with the name of every node.
#[tokio::test]
async fn the_targets_are_this_reconciler_and_for_a_leader_its_nodes() {
    let mut snapshot = with_web();
    snapshot.nodes.insert("a/b".to_owned(), versioned(node_record("a/b")));
    let own = |host: &str| {
        json!({"targets": [host], "labels": {"job": "minik8s", "component": "reconciler", "instance": "host-1",
            "__metrics_path__": "/metrics"}})
    };
    let node = |host: &str, name: &str, path: &str| {
        json!({"targets": [host], "labels": {"job": "minik8s", "component": "agent", "instance": name, "node": name,
            "__metrics_path__": path}})
    };
    let follower = Api::over(snapshot.clone()).await;
    follower.is_led_by("host-2").await;
    let host = follower.address.to_string();
    assert_eq!(follower.get("/v1/metrics/targets").await, (200, json!([own(&host)])));
    let leader = Api::leading(snapshot).await;
    let url = format!("http://{}/v1/metrics/targets", leader.address);
    let answer = reqwest::Client::new().get(url).header(header::HOST, "api.example:7070").send().await;
    let answer = answer.unwrap();
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
    let host = "api.example:7070";
    let wanted = json!([own(host), node(host, "n1", "/v1/nodes/n1/metrics")]);
    assert_eq!(answer.json::<Value>().await.unwrap(), wanted);
}

/// A snapshot whose node `n1` answers a request for its metrics in this way.
async fn with_metrics_of(answer: impl IntoResponse + Clone + Send + Sync + 'static) -> Snapshot {
    let answer = move || {
        let answer = answer.clone();
        async move { answer }
    };
    let node = bind_and_serve(Router::new().route("/metrics", get(answer))).await;
    with_node_api(format!("http://{node}"))
}

// Seen in a browser, a page of a node's own would run as one of the reconciler's.
#[tokio::test]
async fn metrics_of_a_node_are_passed_on_as_text_and_no_other_type() {
    let metrics = "# TYPE minik8s_build_info gauge\nminik8s_build_info{version=\"1\"} 1.0\n";
    for kind in [CONTENT_TYPE, "text/html"] {
        let snapshot = with_metrics_of(([(header::CONTENT_TYPE, kind)], metrics)).await;
        let (status, kind, text) = Api::over(snapshot).await.text("/v1/nodes/n1/metrics").await;
        assert_eq!((status, kind.as_str(), text.as_str()), (200, CONTENT_TYPE, metrics));
    }
}

#[tokio::test]
async fn a_node_that_has_no_metrics_for_prometheus_is_an_error_that_names_it() {
    let api = Api::over(with_node_api("http://127.0.0.1:1".to_owned())).await;
    for (path, status, why) in [
        ("nobody", 404, "there is no node nobody"),
        ("..%2fn1", 400, "is not a valid node name"),
        ("n1", 502, "cannot read the metrics of node n1 at http://127.0.0.1:1: connection refused"),
    ] {
        let (answered, body) = api.get(&format!("/v1/nodes/{path}/metrics")).await;
        assert_eq!(answered, status, "{path}: {body}");
        assert!(body["error"].as_str().unwrap().contains(why), "{path}: {body}");
    }
    let large = with_metrics_of("x".repeat((8 << 20) + 1)).await;
    let broken = with_metrics_of(StatusCode::INTERNAL_SERVER_ERROR).await;
    let elsewhere = with_node_api("http://169.254.169.254:80".to_owned());
    // A server at the address in the node's record that is somebody else's.
    let foreign = with_metrics_of("node_load1 0.5\n").await;
    for (snapshot, why) in [
        (large, "they are larger than 8 MiB"),
        (broken, "it answered 500 Internal Server Error"),
        (elsewhere, "not at one of the node's own addresses"),
        (foreign, "not a minik8s agent"),
    ] {
        let (status, body) = Api::over(snapshot).await.get("/v1/nodes/n1/metrics").await;
        assert_eq!(status, 502, "{body}");
        assert!(body["error"].as_str().unwrap().contains(why), "{body}");
    }
}

#[tokio::test]
async fn a_node_that_does_not_answer_in_time_is_a_504_and_holds_one_of_sixteen_places() {
    let silent = Router::new().route("/metrics", get(std::future::pending::<String>));
    let node = bind_and_serve(silent).await;
    let api = Api::over(with_node_api(format!("http://{node}"))).await;
    let answers = join_all((0..17).map(|_| api.get("/v1/nodes/n1/metrics"))).await;
    let (late, busy): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(status, _)| *status == 504);
    assert_eq!((late.len(), busy.len()), (16, 1));
    assert!(late[0].1["error"].as_str().unwrap().ends_with("no answer within 5s"), "{late:?}");
    assert_eq!(busy[0].0, 503, "{busy:?}");
}
