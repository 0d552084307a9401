//! The agent's read-only HTTP API: logs of containers and builds on this node, images of functions, health and metrics.
//!
//! Reads Docker's listing and logs; changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use schema::control::LoopRuns;
use schema::kinds::function::{IMAGE_PREFIX, image_hash};
use schema::meta::NamespacedName;
use schema::metrics::CONTENT_TYPE;
use schema::names::HostNames;
use schema::since::Since;
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncSeekExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::names;
use crate::converge::builds::log_path;
use crate::converge::slurm::{JobFiles, Piece};
use crate::http::routes::{self, Bounds};
use crate::metrics::{METRICS, Resources};
use crate::worlds::docker::{Docker, DockerError, EngineState, ListedContainer, LogOptions};

/// State shared by the API's handlers.
#[derive(Clone)]
pub struct Api {
    pub docker: Arc<dyn Docker>,
    pub instance: String,
    pub state_dir: PathBuf,
    pub loops: LoopRuns,
    /// Figures of the node and its pods; `None` before the first sample.
    pub resources: watch::Receiver<Option<Arc<Resources>>>,
    pub jobs: JobFiles,
    /// Names by which the API may be addressed.
    pub hosts: HostNames,
}

/// Routes: `GET /metrics`, `GET /v1/healthz`, `GET /v1/loops`, `GET /v1/images/<hash>`, `GET
/// /v1/builds/<hash>/log`, `GET /v1/jobs/<ns>/<name>/output?stderr=&from=`, `GET
/// /v1/jobs/<ns>/<name>/results/<digest>` and `GET
/// /v1/logs/<ns>/<pod>/<container>?follow=&tail=&previous=&since=&timestamps=`.
pub fn router(api: Api) -> Router {
    let hosts = Arc::new(api.hosts.clone());
    Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/healthz", get(healthz))
        .route("/v1/loops", get(loops))
        .route("/v1/images/{hash}", get(image))
        .route("/v1/builds/{hash}/log", get(build_log))
        .route("/v1/jobs/{namespace}/{name}/output", get(job_output))
        .route("/v1/jobs/{namespace}/{name}/results/{digest}", get(job_result))
        .route("/v1/logs/{namespace}/{pod}/{container}", get(logs))
        .layer(from_fn_with_state(hosts, refuse_foreign))
        .with_state(api)
}

/// Refuses requests that a browser may have sent for somebody else's page. Nothing here takes a POST.
async fn refuse_foreign(State(names): State<Arc<HostNames>>, request: Request, next: Next) -> Response {
    match names.check(&routes::origin_of(request.headers(), request.uri())) {
        Ok(()) => next.run(request).await,
        Err(foreign) => {
            let status = StatusCode::from_u16(foreign.status()).unwrap_or(StatusCode::FORBIDDEN);
            Refusal(status, foreign.to_string(), foreign.help("minik8s-agent run")).into_response()
        }
    }
}

/// Limits of the API's connections. One client may hold 256, as many as a reconciler follows logs. An idle connection
/// lives longer than clients keep theirs, which is 90 s for reqwest, so that no request meets a closing one. Followed
/// streams do not end by themselves, so shutdown waits only briefly.
const BOUNDS: Bounds = Bounds {
    connections: 1024,
    head_bytes: 64 * 1024,
    head: Duration::from_secs(10),
    idle: Duration::from_secs(120),
    drain: Duration::from_secs(1),
};

/// Serves the API until `shutdown`.
pub async fn serve(listener: TcpListener, api: Api, shutdown: CancellationToken) {
    routes::serve("the agent's API", listener, BOUNDS, router(api), shutdown).await;
}

/// Returns the metrics of the agent, for Prometheus.
async fn metrics(State(api): State<Api>) -> Response {
    let resources = api.resources.borrow().clone();
    let text = METRICS.text(&api.loops, resources.as_deref());
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

async fn healthz() -> Response {
    axum::Json(json!({"ok": true})).into_response()
}

async fn loops(State(api): State<Api>) -> Response {
    axum::Json(json!({"items": api.loops.statuses()})).into_response()
}

/// Streams a function's image to a node that lacks it.
async fn image(State(api): State<Api>, Path(hash): Path<String>) -> Result<Response, Refusal> {
    let reference = format!("{IMAGE_PREFIX}{hash}");
    let known = if image_hash(&reference).is_some() { api.docker.image(&reference).await? } else { None };
    if known.is_none() {
        let what = format!("this node has no image {reference}");
        return Err(Refusal(StatusCode::NOT_FOUND, what, "another node may have it".to_owned()));
    }
    let pieces = api.docker.save(&reference).map(|piece| piece.map_err(std::io::Error::other));
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], Body::from_stream(pieces)).into_response())
}

/// Returns the log of an image build.
async fn build_log(State(api): State<Api>, Path(hash): Path<String>) -> Result<Response, Refusal> {
    let is_hash = image_hash(&format!("{IMAGE_PREFIX}{hash}")).is_some();
    let read = if is_hash { std::fs::read(log_path(&api.state_dir, &hash)).ok() } else { None };
    let Some(log) = read else {
        let help = "the image was built on another node, or its log was removed with it".to_owned();
        return Err(Refusal(StatusCode::NOT_FOUND, "this node has no log of that build".to_owned(), help));
    };
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], log).into_response())
}

/// Query parameters of a job's output.
#[derive(Debug, Default, Deserialize)]
struct OutputQuery {
    stderr: Option<String>,
    /// Offset of the first byte to return.
    from: Option<u64>,
}

/// Returns the output of a Slurm job, complete or so far.
async fn job_output(
    State(api): State<Api>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<OutputQuery>,
) -> Result<Response, Refusal> {
    let stderr = flag("stderr", query.stderr.as_deref())?;
    let pieces = api.jobs.output(&NamespacedName::new(namespace, name), stderr, query.from).await;
    let pieces = pieces
        .map_err(|why| Refusal(StatusCode::NOT_FOUND, why, "see `minik8s describe job/NAME`".to_owned()))?;
    let body = Body::from_stream(futures::stream::iter(pieces).then(open_piece).try_flatten());
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

/// Opens a piece of a job's output as a stream.
async fn open_piece(piece: Piece) -> std::io::Result<BoxStream<'static, std::io::Result<Bytes>>> {
    match piece {
        Piece::Bytes(bytes) => Ok(futures::stream::iter([Ok(Bytes::from(bytes))]).boxed()),
        Piece::File { path, from } => {
            let mut file = tokio::fs::File::open(path).await?;
            file.seek(std::io::SeekFrom::Start(from)).await?;
            Ok(tokio_util::io::ReaderStream::new(file).boxed())
        }
    }
}

/// Returns a result file of a Slurm job.
async fn job_result(
    State(api): State<Api>,
    Path((namespace, name, digest)): Path<(String, String, String)>,
) -> Result<Response, Refusal> {
    let file = api.jobs.result(&NamespacedName::new(namespace, name), &digest);
    let opened = match file {
        Some(file) => tokio::fs::File::open(file).await.ok(),
        None => None,
    };
    let Some(file) = opened else {
        let help = "see `minik8s results job/NAME`".to_owned();
        return Err(Refusal(StatusCode::NOT_FOUND, "this node has no such result".to_owned(), help));
    };
    let body = Body::from_stream(tokio_util::io::ReaderStream::new(file));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// Query parameters of a container's log.
#[derive(Debug, Default, Deserialize)]
struct LogQuery {
    follow: Option<String>,
    previous: Option<String>,
    tail: Option<String>,
    since: Option<String>,
    timestamps: Option<String>,
}

/// An error response: status, error and help.
#[derive(Debug)]
struct Refusal(StatusCode, String, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, error, help) = self;
        (status, axum::Json(json!({"error": error, "help": help}))).into_response()
    }
}

impl From<DockerError> for Refusal {
    fn from(error: DockerError) -> Self {
        let (status, help) = match error {
            DockerError::NotFound { .. } => {
                (StatusCode::NOT_FOUND, "try again; the container was just replaced")
            }
            _ if error.is_outage() => (StatusCode::SERVICE_UNAVAILABLE, "start Docker on the node"),
            _ => (StatusCode::BAD_GATEWAY, "see the agent's log on the node"),
        };
        Self(status, error.to_string(), help.to_owned())
    }
}

async fn logs(
    State(api): State<Api>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Refusal> {
    let options = options(&query, Timestamp::now())?;
    let rows = api.docker.list(&api.instance).await?;
    let id = find(&rows, &namespace, &pod, &container, requested_run(query.previous.as_deref())?)?;
    let stream = api.docker.logs(&id, &options).await?;
    let body = Body::from_stream(stream.map(|piece| piece.map_err(std::io::Error::other)));
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

fn options(query: &LogQuery, now: Timestamp) -> Result<LogOptions, Refusal> {
    let wrong = |what: &str, help: &str| {
        Refusal(StatusCode::BAD_REQUEST, format!("`{what}` cannot be read"), help.to_owned())
    };
    let tail = match query.tail.as_deref().filter(|t| !t.is_empty() && *t != "all") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| wrong("tail", "write a number of lines"))?),
    };
    let since = match query.since.as_deref().filter(|t| !t.is_empty()) {
        None => None,
        Some(text) => {
            let since = text.parse::<Since>().map_err(|why| wrong("since", &why))?;
            Some(since.time(now).unwrap_or(Timestamp::UNIX_EPOCH))
        }
    };
    let timestamps = flag("timestamps", query.timestamps.as_deref())?;
    Ok(LogOptions { follow: flag("follow", query.follow.as_deref())?, tail, since, timestamps })
}

fn flag(name: &str, text: Option<&str>) -> Result<bool, Refusal> {
    match text {
        None | Some("false" | "0") => Ok(false),
        Some("" | "true" | "1") => Ok(true),
        Some(other) => Err(Refusal(
            StatusCode::BAD_REQUEST,
            format!("`{name}={other}` cannot be read"),
            "write true or false".to_owned(),
        )),
    }
}

/// The run of a container whose log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContainerRun {
    Newest,
    Former,
    /// The newest run that has exited, for a container that waits to be restarted.
    Ended,
}

fn requested_run(previous: Option<&str>) -> Result<ContainerRun, Refusal> {
    match previous {
        Some("ended") => Ok(ContainerRun::Ended),
        other => flag("previous", other)
            .map(|former| if former { ContainerRun::Former } else { ContainerRun::Newest }),
    }
}

/// Finds the ID of the container of that run.
fn find(
    rows: &[ListedContainer],
    namespace: &str,
    pod: &str,
    container: &str,
    which: ContainerRun,
) -> Result<String, Refusal> {
    let label = |row: &ListedContainer, key: &str| row.labels.get(key).cloned().unwrap_or_default();
    let attempt = |row: &ListedContainer| label(row, names::ATTEMPT).parse::<u32>().unwrap_or_default();
    let of_pod: Vec<&ListedContainer> = rows
        .iter()
        .filter(|row| label(row, names::NAMESPACE) == namespace && label(row, names::POD) == pod)
        .collect();
    if of_pod.is_empty() {
        return Err(Refusal(
            StatusCode::NOT_FOUND,
            format!("pod {namespace}/{pod} has no containers on this node"),
            "see `minik8s get pods -A -o wide` for the node of each pod".to_owned(),
        ));
    }
    let mut by_uid: BTreeMap<String, Vec<&ListedContainer>> = BTreeMap::new();
    for row in of_pod.iter().filter(|row| label(row, names::CONTAINER) == container) {
        // A container that was created but never started has no log yet.
        if row.state != EngineState::Created || which == ContainerRun::Newest {
            by_uid.entry(label(row, names::UID)).or_default().push(row);
        }
    }
    // While a pod replaces another of the same name, take the newer one.
    let newest = by_uid.into_values().max_by_key(|starts| starts.iter().map(|row| row.created_at).max());
    let Some(mut starts) = newest else {
        let there: BTreeSet<String> =
            of_pod.iter().map(|row| label(row, names::CONTAINER)).filter(|c| c != names::PAUSE).collect();
        let there: Vec<String> = there.into_iter().collect();
        return Err(Refusal(
            StatusCode::NOT_FOUND,
            format!("pod {namespace}/{pod} has no container {container} on this node"),
            format!("its containers are: {}", there.join(", ")),
        ));
    };
    starts.sort_by_key(|row| std::cmp::Reverse((attempt(row), row.created_at)));
    let wanted = match which {
        ContainerRun::Newest => starts.first(),
        ContainerRun::Former => starts.get(1),
        ContainerRun::Ended => starts.iter().find(|row| row.state == EngineState::Exited),
    };
    wanted.map(|row| row.id.clone()).ok_or_else(|| {
        Refusal(
            StatusCode::NOT_FOUND,
            format!("container {container} of pod {namespace}/{pod} has no previous run"),
            "leave out previous".to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use schema::control::{Loop as _, Observation};

    use super::*;
    use crate::converge::usage::{UsageDeps, UsageLoop};
    use crate::metrics::Traffic;
    use crate::testing::own_container;
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
            hosts: HostNames::new(["node1.lan".to_owned()]),
        }
    }

    // Seen red without `refuse_foreign` in the router.
    #[tokio::test]
    async fn a_page_under_a_foreign_name_reads_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/logs/default/front/web", listener.local_addr().unwrap());
        tokio::spawn(serve(listener, api().await, CancellationToken::new()));
        let client = reqwest::Client::new();
        for (host, origin, status) in [
            ("127.0.0.1:7071", None, 200),
            ("node1.lan:7071", None, 200),
            ("evil.example:7071", None, 421),
            ("127.0.0.1:7071", Some("http://evil.example"), 403),
        ] {
            let mut request = client.get(&url).header(header::HOST, host);
            if let Some(origin) = origin {
                request = request.header(header::ORIGIN, origin);
            }
            assert_eq!(request.send().await.unwrap().status(), status, "{host} {origin:?}");
        }
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
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/metrics", listener.local_addr().unwrap());
        let api = Api { resources: sampled().await, ..api().await };
        tokio::spawn(serve(listener, api, CancellationToken::new()));
        let answer = reqwest::get(&url).await.unwrap();
        assert_eq!(answer.headers()[header::CONTENT_TYPE], CONTENT_TYPE);
        let text = answer.text().await.unwrap();
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
            let of =
                |pod: &str| value(&format!("minik8s_pod_{family}{{namespace=\"default\",pod=\"{pod}\"}}"));
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
        assert!(
            ask("default/gone/web", LogQuery::default()).await.1.contains("has no containers on this node")
        );
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
}
