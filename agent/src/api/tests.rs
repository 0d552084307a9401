//! The API's handlers, and who may use them, over real TLS.

use std::net::SocketAddr;

use schema::control::{Loop as _, Observation};
use schema::trust::MaybeTls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::converge::usage::{UsageDeps, UsageLoop};
use crate::http::outgoing;
use crate::metrics::Traffic;
use crate::testing::{TestAuthority, connect_with, own_container};
use crate::worlds::cgroups::{FakeCgroups, LinkTraffic, Sample};
use crate::worlds::docker::{FakeDocker, NewContainer};
use crate::worlds::host::{DiskUsage, FakeDisk};
use crate::worlds::netlink::host_link_name;

/// Docker's name of that start of container `web`.
fn web(attempt: u32) -> String {
    own_container("i", "front", "u1", "web", attempt).name
}

async fn api() -> Api {
    let docker = FakeDocker::with_images(&["i"]);
    for (container, attempt) in [("POD", 0), ("web", 3), ("web", 4), ("side", 0)] {
        let id = docker.create(&own_container("i", "front", "u1", container, attempt)).await.unwrap();
        docker.start(&id).await.unwrap();
    }
    Api {
        docker: Arc::new(docker),
        instance: "mk8s".into(),
        state_dir: PathBuf::new(),
        loops: LoopRuns::default(),
        resources: watch::channel(None).1,
        jobs: JobFiles::none(),
    }
}

/// Starts the API of a node with these certificates.
async fn serving(api: Api, trust: TrustReader) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, api, trust, CancellationToken::new()));
    address
}

/// Sends a GET; returns the status and the whole response, which must be small if the connection is to last.
async fn get(client: &mut MaybeTls, path: &str, connection: &str) -> (u16, String) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: {connection}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let mut response = vec![0; 12];
    client.read_exact(&mut response).await.unwrap();
    if connection == "close" {
        client.read_to_end(&mut response).await.unwrap();
    } else {
        // hyper sends a small response as a whole.
        let mut rest = [0; 4096];
        let length = client.read(&mut rest).await.unwrap();
        response.extend_from_slice(&rest[..length]);
    }
    let text = String::from_utf8(response).unwrap();
    (text[9..12].parse().unwrap(), text)
}

#[test]
fn reconcilers_read_everything_nodes_only_images_and_others_nothing() {
    let peer = |name: &str| Peer { identity: name.parse().unwrap(), key: format!("key of {name}") };
    let (logs, images) = ("/v1/logs/default/front/web", "/v1/images/0123");
    let says = |client: Option<&str>, method: &Method, path: &str| {
        let client = client.map(peer);
        let revoked = |key: &str| key == "key of reconciler-former";
        let denied = may_read(client.as_ref(), revoked, method, path).err();
        denied.map_or(200, |denied| Refusal::from(denied).0.as_u16())
    };
    for (client, path, status) in [
        (Some("reconciler-r1"), logs, 200),
        (Some("reconciler-r1"), images, 200),
        (Some("reconciler-r1"), "/metrics", 200),
        (Some("reconciler-former"), logs, 401),
        (Some("node-n2"), images, 200),
        (Some("node-n2"), logs, 403),
        (Some("node-n2"), "/v1/images", 403),
        (Some("user-ada"), images, 403),
        (Some("etcd"), images, 403),
        (None, images, 401),
        (None, "/v1/healthz", 401),
    ] {
        assert_eq!(says(client, &Method::GET, path), status, "{client:?} {path}");
    }
    assert_eq!(says(Some("node-n2"), &Method::HEAD, images), 403);
}

// Seen red without `refuse_others` in the router.
#[tokio::test]
async fn a_client_is_known_by_its_certificate() {
    let authority = TestAuthority::new();
    let at = serving(api().await, authority.reader("node-n1")).await;
    let logs = "/v1/logs/default/front/web";
    for (client, path, status) in [
        ("reconciler-r1", logs, 200),
        ("node-n2", logs, 403),
        ("node-n2", "/v1/images/0123456789abcdef", 404),
        ("user-ada", logs, 403),
    ] {
        let mut tls = authority.connect(client, at).await;
        assert_eq!(get(&mut tls, path, "close").await.0, status, "{client} {path}");
    }
    let nobody = outgoing::to_probed("test", reqwest::redirect::Policy::none()).unwrap();
    let refused = nobody.get(format!("https://{at}{logs}")).send().await.unwrap();
    assert_eq!(refused.status(), 401);
    assert!(refused.text().await.unwrap().contains("needs a certificate"));
    assert!(nobody.get(format!("http://{at}{logs}")).send().await.is_err(), "not without TLS");
}

// Would fail with a check at the handshake alone.
#[tokio::test]
async fn a_revoked_key_is_refused_on_a_connection_that_began_before() {
    let (authority, folder) = (TestAuthority::new(), tempfile::tempdir().unwrap());
    let keeper = authority.keeper("node-n1", folder.path());
    let at = serving(api().await, keeper.reader()).await;
    let own = authority.credentials("reconciler-r1");
    let mut client = connect_with(&own, at).await;
    assert_eq!(get(&mut client, "/v1/healthz", "keep-alive").await.0, 200);
    let key = own.certificate().public_key().unwrap().fingerprint().unwrap();
    keeper.revoke([(key, Timestamp::MAX)].into()).unwrap();
    let (status, text) = get(&mut client, "/v1/healthz", "close").await;
    assert!(status == 401 && text.contains("the key of reconciler-r1 was revoked"), "{text}");
}

/// Samples a node with two pods twice: each of their three containers uses 2 s of CPU and reads 5 bytes in between.
async fn sampled() -> watch::Receiver<Option<Arc<Resources>>> {
    let (docker, cgroups) = (Arc::new(FakeDocker::with_images(&["i"])), Arc::new(FakeCgroups::default()));
    let (disk, state) = (FakeDisk::default(), tempfile::tempdir().unwrap());
    disk.set(DiskUsage { used_bytes: 30, free_bytes: 70 });
    let (figures, resources) = watch::channel(None);
    let mut usage = UsageLoop::new(UsageDeps {
        instance: "mk8s".into(),
        state_dir: state.path().into(),
        docker: docker.clone(),
        cgroups: cgroups.clone(),
        disk: Arc::new(disk),
        memory_bytes: 8192,
        records: watch::channel(None).0,
        resources: figures,
    });
    let mut ids = Vec::new();
    for (pod, container) in [("front", "web"), ("front", "side"), ("back", "app"), ("back", "POD")] {
        let new = own_container("i", pod, &format!("uid-{pod}"), container, 0);
        ids.push(docker.create(&new).await.unwrap());
        docker.start(ids.last().unwrap()).await.unwrap();
    }
    let links = [("eth0".to_owned(), 1, 2), (host_link_name("mk8s", "uid-front"), 30, 40)];
    let links = links.map(|(name, input, output)| (name, Traffic { input, output })).into();
    cgroups.set_traffic(LinkTraffic { links, uplink: Some("eth0".to_owned()) });
    cgroups.set("", 60_000_000_000, 1000);
    for (cpu_ns, input) in [(10_000_000_000, 7), (12_000_000_000, 12)] {
        for id in &ids {
            let io = Some(Traffic { input, output: 0 });
            cgroups.put(id, Sample { cpu_ns, memory_bytes: 100, io });
        }
        let Observation::Ready(observed) = usage.observe().await.unwrap() else { panic!("ready") };
        let plan = UsageLoop::plan(&observed, Timestamp::now());
        let outcome = usage.act(&observed, plan).await;
        usage.report(observed, outcome).await.unwrap();
    }
    resources
}

#[tokio::test]
async fn metrics_have_the_figures_of_the_node_and_of_each_pod() {
    let authority = TestAuthority::new();
    let api = Api { resources: sampled().await, ..api().await };
    let at = serving(api, authority.reader("node-n1")).await;
    let mut client = authority.connect("reconciler-r1", at).await;
    let (status, text) = get(&mut client, "/metrics", "close").await;
    assert!(status == 200 && text.contains(&format!("content-type: {CONTENT_TYPE}\r\n")), "{text}");
    let value = |series: &str| -> Option<f64> {
        let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        found.map(|value| value.parse().unwrap())
    };
    for (series, wanted) in [
        ("node_cpu_seconds_total", 60.0),
        ("node_memory_working_set_bytes", 1000.0),
        ("node_memory_total_bytes", 8192.0),
        ("node_network_receive_bytes_total", 1.0),
        ("node_network_transmit_bytes_total", 2.0),
        ("node_filesystem_free_bytes", 70.0),
        ("node_filesystem_total_bytes", 100.0),
        ("containers_running", 3.0),
        (concat!("build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
    ] {
        assert_eq!(value(&format!("minik8s_{series}")), Some(wanted), "{series}");
    }
    for (family, front, back) in [
        ("cpu_seconds_total", Some(4.0), Some(2.0)),
        ("memory_working_set_bytes", Some(200.0), Some(100.0)),
        ("network_receive_bytes_total", Some(40.0), None),
        ("network_transmit_bytes_total", Some(30.0), None),
        ("disk_read_bytes_total", Some(10.0), Some(5.0)),
        ("disk_written_bytes_total", Some(0.0), Some(0.0)),
        ("volume_bytes", None, None),
    ] {
        let of = |pod: &str| value(&format!("minik8s_pod_{family}{{namespace=\"default\",pod=\"{pod}\"}}"));
        assert_eq!((of("front"), of("back")), (front, back), "{family}");
    }
    assert!(value("process_resident_memory_bytes").is_some_and(|bytes| bytes > 0.0));
    assert!(value("minik8s_rules_repairs_total").is_some());
}

async fn ask(path: &str, query: LogQuery) -> (StatusCode, String) {
    let parts: Vec<String> = path.split('/').map(str::to_owned).collect();
    let path = Path((parts[0].clone(), parts[1].clone(), parts[2].clone()));
    let answer = logs(State(api().await), path, Query(query)).await.into_response();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn the_newest_start_is_read_and_with_previous_the_one_before() {
    let now = ask("default/front/web", LogQuery::default()).await;
    assert_eq!(now, (StatusCode::OK, format!("log of {}\n", web(4))));
    let previous = LogQuery { previous: Some("true".into()), ..LogQuery::default() };
    assert_eq!(ask("default/front/web", previous).await.1, format!("log of {}\n", web(3)));
}

// Seen red with `Which::Former` for `ended`: the run before the last.
#[tokio::test]
async fn of_a_container_that_waits_to_be_started_again_the_last_run_is_read() {
    let api = api().await;
    let rows = api.docker.list("mk8s").await.unwrap();
    let last = rows.iter().find(|row| row.name == web(4)).unwrap();
    api.docker.stop(&last.id, Duration::ZERO).await.unwrap();
    // The next attempt is created but not running yet.
    api.docker.create(&own_container("i", "front", "u1", "web", 5)).await.unwrap();
    let path = Path(("default".into(), "front".into(), "web".into()));
    let query = LogQuery { previous: Some("ended".into()), ..LogQuery::default() };
    let answer = logs(State(api), path, Query(query)).await.into_response();
    assert_eq!(
        axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap(),
        format!("log of {}\n", web(4))
    );
}

#[tokio::test]
async fn an_unknown_container_is_answered_with_those_there_are() {
    let (status, body) = ask("default/front/nope", LogQuery::default()).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("its containers are: side, web"), "{body}");
    assert!(ask("default/gone/web", LogQuery::default()).await.1.contains("has no containers on this node"));
}

#[tokio::test]
async fn bytes_that_are_no_text_pass_unchanged_and_in_order() {
    let api = api().await;
    let pieces: Vec<Bytes> = vec![vec![0xff, 0xc3].into(), vec![0x28, 0, b'\n', 0xfe].into()];
    let docker = FakeDocker::with_images(&["i"]);
    docker.engine().written.insert(web(4), pieces.clone());
    let all = pieces.concat();
    for row in api.docker.list("mk8s").await.unwrap() {
        let new = NewContainer {
            name: row.name.clone(),
            image: "i".into(),
            labels: row.labels.clone(),
            ..NewContainer::default()
        };
        docker.create(&new).await.unwrap();
    }
    let api = Api { docker: Arc::new(docker), ..api };
    let path = Path(("default".into(), "front".into(), "web".into()));
    let answer = logs(State(api), path, Query(LogQuery::default())).await.into_response();
    assert_eq!(axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap(), all);
}

#[tokio::test]
async fn a_wrong_since_or_flag_is_a_400_that_says_what_to_write() {
    let since = LogQuery { since: Some("soon".into()), ..LogQuery::default() };
    let (status, body) = ask("default/front/web", since).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body.contains("write an age (90s"), "{body}");
    let flag = LogQuery { timestamps: Some("perhaps".into()), ..LogQuery::default() };
    assert_eq!(ask("default/front/web", flag).await.0, StatusCode::BAD_REQUEST);
}
