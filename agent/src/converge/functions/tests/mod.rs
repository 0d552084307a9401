//! The assignment of places to calls and their return; and calls over real loopback sockets.

mod bodies;
mod tls;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use schema::codec::encode;
use schema::control::{Loop as _, LoopRuns, Observation};
use schema::kinds::function::ImageState;
use schema::meta::NamespacedName;
use schema::records::{CallLimits, FunctionImage, FunctionRecord, Replica, Trouble};
use schema::testing::{subnet, versioned};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::Functions;
use super::call_queue::{Admission, Calls, Lease, QueueOutcome};
use super::caller_policy::PodAddresses;
use super::phases::Phases;
use crate::catalog::Catalog;
use crate::desired::StateOrigin;
use crate::http::acceptor::ConnectionPlace as Admitted;
use crate::http::body::Budget;
use crate::http::server::{Caller, Handler as _};
use crate::metrics::METRICS;
use crate::standby::{Handover, Role};
use crate::testing::TestAuthority;

fn id() -> NamespacedName {
    NamespacedName::new("default", "hello")
}

fn limits() -> CallLimits {
    CallLimits { concurrency: 1, queue_length: 2, ..CallLimits::default() }
}

/// A function with this many replicas.
fn record(replicas: u8) -> FunctionRecord {
    let replica = |number| Replica {
        pod: format!("hello-{number}"),
        node: "n1".to_owned(),
        address: format!("10.244.0.{number}:8080").parse().unwrap(),
        start: None,
    };
    let image = FunctionImage {
        reference: "minik8s.local/function:0".to_owned(),
        id: None,
        state: ImageState::Ready,
        nodes: Vec::new(),
        registry: None,
    };
    FunctionRecord {
        images: vec![image],
        replicas: (1..=replicas).map(replica).collect(),
        calls: limits(),
        ..FunctionRecord::default()
    }
}

fn calls(replicas: u8) -> Calls {
    let calls = Calls::new(Timestamp::UNIX_EPOCH);
    follow(&calls, &record(replicas));
    calls
}

fn follow(calls: &Calls, record: &FunctionRecord) {
    calls.follow([(&id(), record)].into_iter());
}

fn state(calls: &Calls) -> (u32, u32) {
    let (waiting, at_replicas, _) = calls.state(&id());
    (waiting, at_replicas)
}

fn enter(calls: &Calls) -> Admission {
    calls.enter(&id(), &limits(), None)
}

fn at(place: Admission) -> Lease {
    match place {
        Admission::At(lease) => lease,
        other => panic!("{other:?}"),
    }
}

fn waits(place: Admission) -> tokio::sync::oneshot::Receiver<QueueOutcome> {
    match place {
        Admission::Waits(wait) => wait,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn calls_wait_in_turn_for_the_replicas_that_come() {
    let calls = calls(0);
    let (mut first, mut second) = (waits(enter(&calls)), waits(enter(&calls)));
    assert!(matches!(enter(&calls), Admission::Full), "two may wait");
    assert_eq!(state(&calls), (2, 0));
    follow(&calls, &record(1));
    let Ok(QueueOutcome::Replica(lease)) = first.try_recv() else { panic!("the first is served") };
    assert!(second.try_recv().is_err(), "one call at a time");
    assert_eq!(state(&calls), (1, 1));
    drop(lease);
    assert!(matches!(second.try_recv(), Ok(QueueOutcome::Replica(_))));
    assert_eq!(state(&calls), (0, 0), "the second gave its place back, too");
}

// Seen red with `queue_length` alone: such a function slept forever.
#[tokio::test]
async fn one_call_may_wait_for_a_function_without_replicas_even_where_none_may_wait() {
    let none_waits = FunctionRecord { calls: CallLimits { queue_length: 0, ..limits() }, ..record(0) };
    let calls = calls(0);
    follow(&calls, &none_waits);
    let mut first = waits(enter(&calls));
    assert!(matches!(enter(&calls), Admission::Full));
    follow(&calls, &FunctionRecord { replicas: record(1).replicas, ..none_waits });
    let Ok(QueueOutcome::Replica(lease)) = first.try_recv() else { panic!("it is served") };
    assert!(matches!(enter(&calls), Admission::Full), "there is a replica");
    drop(lease);
}

// Seen red without `fitted`: no demand was written until some failures were an hour old.
#[tokio::test]
async fn the_demand_of_many_functions_fits_a_value_and_keeps_those_with_calls() {
    for (count, all_fit) in [(1000, false), (150, true)] {
        let (calls, record) = (Calls::new(Timestamp::UNIX_EPOCH), record(1));
        let name = |number: u32| NamespacedName::new("default", format!("function-{number}"));
        let ids: Vec<NamespacedName> = (0..count).map(name).collect();
        calls.follow(ids.iter().map(|id| (id, &record)));
        let mut leases: Vec<Lease> = ids.iter().map(|id| at(calls.enter(id, &limits(), None))).collect();
        let under_way = leases.split_off(leases.len() - 10);
        drop(leases);
        for id in &ids {
            calls.note_failure(
                id,
                ("ConnectionError", &format!("{id} {}", "cannot reach the database ".repeat(8))),
            );
        }
        let demand = calls.demand();
        encode(&demand).unwrap();
        let is_there = |id: &NamespacedName| demand.functions.contains_key(&id.to_string());
        assert!(ids.iter().rev().take(10).all(is_there), "{count}");
        assert_eq!((ids.iter().all(is_there), demand.failures.len() > 10), (all_fit, all_fit), "{count}");
        drop(under_way);
    }
}

// Seen red with an address in place of a lease.
#[tokio::test]
async fn a_caller_that_goes_as_it_gets_its_place_gives_it_back() {
    let calls = calls(0);
    let wait = waits(enter(&calls));
    follow(&calls, &record(1));
    assert_eq!(state(&calls), (0, 1), "it was given the place");
    drop(wait);
    assert_eq!(state(&calls), (0, 0));
    drop(at(enter(&calls)));
}

#[tokio::test(start_paused = true)]
async fn who_refused_gets_none_for_a_while_and_who_was_not_reached_comes_last() {
    let calls = calls(2);
    let first = at(enter(&calls));
    let busy = first.address();
    calls.mark_full(&id(), busy, Duration::from_millis(50));
    drop(first);
    let other = at(enter(&calls));
    assert_ne!(other.address(), busy);
    assert!(matches!(enter(&calls), Admission::Waits(_)), "the one is full, the other has a call");
    tokio::time::advance(Duration::from_millis(60)).await;
    let again: SocketAddr = at(enter(&calls)).address();
    assert_eq!(again, busy);
    calls.shun(&id(), again);
    drop(other);
    for _ in 0..3 {
        assert_ne!(at(enter(&calls)).address(), again);
    }
}

// Seen red without `load` in the rank of `pick`: the turn alone decides.
#[tokio::test]
async fn of_replicas_that_take_several_calls_the_one_with_the_fewest_gets_the_next() {
    let calls = Calls::new(Timestamp::UNIX_EPOCH);
    let limits = CallLimits { concurrency: 10, ..limits() };
    follow(&calls, &FunctionRecord { calls: limits, ..record(2) });
    let first = at(enter(&calls));
    let loaded = first.address();
    for call in 0..4 {
        assert_ne!(at(enter(&calls)).address(), loaded, "{call}: the other one has none");
    }
    let others = [at(enter(&calls)), at(enter(&calls)), at(enter(&calls))];
    let at_loaded = others.iter().filter(|lease| lease.address() == loaded).count();
    assert_eq!(at_loaded, 1, "two each");
}

// Seen red with every trouble taken for the end.
#[tokio::test]
async fn only_what_never_ran_and_cannot_start_is_answered_at_once() {
    let calls = calls(0);
    let trouble = Trouble { reason: "CrashLoopBackOff".to_owned(), message: "SyntaxError".to_owned() };
    let serves = FunctionRecord { trouble: Some(trouble), has_good: true, ..record(0) };
    let mut wait = waits(enter(&calls));
    follow(&calls, &serves);
    assert!(wait.try_recv().is_err(), "a version of it has run");
    follow(&calls, &FunctionRecord { has_good: false, ..serves });
    assert!(matches!(wait.try_recv(), Ok(QueueOutcome::NoReplica(why)) if why == "SyntaxError"));
    let mut gone = waits(calls.enter(&NamespacedName::new("default", "other"), &limits(), None));
    calls.follow([(&id(), &record(0))].into_iter());
    assert!(matches!(gone.try_recv(), Ok(QueueOutcome::Gone)));
}

/// Starts a replica that answers each call with its body, and keeps no connection open.
async fn echoes() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut said = Vec::new();
                let body = loop {
                    stream.read_buf(&mut said).await.unwrap();
                    let text = String::from_utf8_lossy(&said).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                    if length.parse() == Ok(body.len()) {
                        break body.to_owned();
                    }
                };
                let length = body.len();
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                stream.write_all((head + &body).as_bytes()).await.unwrap();
            });
        }
    });
    address
}

/// Reads a call, up to its body, as a replica does.
async fn read_call(stream: &mut TcpStream) {
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("\r\n\r\n{") {
        stream.read_buf(&mut said).await.unwrap();
    }
}

/// Starts a replica that gives these answers in order and repeats the last; also returns its count of calls.
async fn says(answers: &'static [&'static str]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            read_call(&mut stream).await;
            let call = count.fetch_add(1, Ordering::SeqCst);
            stream.write_all(answers[call.min(answers.len() - 1)].as_bytes()).await.unwrap();
        }
    });
    (address, asked)
}

/// Starts a replica that answers one call after `wait`, on a paused clock that jumps there.
async fn answers_after(wait: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_call(&mut stream).await;
        // Pausing earlier would let the clock run ahead of bytes still in transit.
        tokio::time::pause();
        tokio::time::sleep(wait).await;
        tokio::time::resume();
        // The gateway may have abandoned the call.
        let _ = stream.write_all(DONE.as_bytes()).await;
    });
    address
}

const DONE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\n{\"x\": 1}";
const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nX-Minik8s-Busy: 1\r\nContent-Length: 0\r\n\
                    Connection: close\r\n\r\n";

/// Starts a gateway to these replicas with limits that no test reaches; returns its URL of the function, and its
/// task.
async fn gateway(replicas: &[SocketAddr], timeout_seconds: u32) -> (String, JoinHandle<()>) {
    let replica = |address: &SocketAddr| {
        let SocketAddr::V4(address) = *address else { panic!("{address}") };
        Replica { pod: format!("hello-{address}"), node: "n1".to_owned(), address, start: None }
    };
    let calls = CallLimits {
        timeout_seconds,
        cold_start_timeout_seconds: 60,
        concurrency: 10,
        request_body_bytes: 1000,
        response_body_bytes: 1000,
        ..limits()
    };
    let replicas = replicas.iter().map(replica).collect();
    let functions = functions(FunctionRecord { replicas, calls, ..record(0) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/default/hello", listener.local_addr().unwrap());
    let (listeners, opened) = mpsc::channel(1);
    listeners.send(listener).await.unwrap();
    (url, tokio::spawn(super::serve(functions, opened, None, CancellationToken::new())))
}

#[tokio::test]
async fn a_replica_of_another_function_at_an_old_address_costs_no_call() {
    let (other, _) = says(&[
        "HTTP/1.1 421 Misdirected Request\r\nX-Minik8s-Busy: other-function\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n",
    ])
    .await;
    let (url, serving) = gateway(&[other, echoes().await], 60).await;
    let client = reqwest::Client::new();
    for call in 0..6 {
        let answer = client.post(&url).body("{\"x\": 1}").send().await.unwrap();
        assert_eq!(answer.status(), 200, "{call}");
        assert_eq!(answer.text().await.unwrap(), "{\"x\": 1}");
    }
    serving.abort();
}

// Seen red with a busy replica's 503 taken for the function's answer.
#[tokio::test]
async fn a_call_that_a_busy_replica_refuses_goes_to_another_one() {
    let (busy, asked) = says(&[BUSY]).await;
    let (url, serving) = gateway(&[busy, echoes().await], 60).await;
    let client = reqwest::Client::new();
    for call in 0..4 {
        let answer = client.post(&url).body("{\"x\": 1}").send().await.unwrap();
        assert_eq!(answer.status(), 200, "{call}");
        assert_eq!(answer.text().await.unwrap(), "{\"x\": 1}");
    }
    assert!(asked.load(Ordering::SeqCst) > 0, "it was asked");
    serving.abort();
}

// Seen red like the test above.
#[tokio::test]
async fn a_call_whose_only_replica_is_busy_waits_and_is_sent_there_again() {
    let (only, asked) = says(&[BUSY, BUSY, DONE]).await;
    let (url, serving) = gateway(&[only], 60).await;
    let answer = reqwest::Client::new().post(&url).body("{}").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), asked.load(Ordering::SeqCst)), (200, 3));
    serving.abort();
}

#[tokio::test]
async fn each_call_is_counted_once_by_the_class_of_its_answer() {
    let SocketAddr::V4(address) = echoes().await else { panic!("no IPv4 address") };
    let replica = Replica { pod: "counted-0".to_owned(), node: "n1".to_owned(), address, start: None };
    let calls = CallLimits {
        timeout_seconds: 60,
        cold_start_timeout_seconds: 60,
        request_body_bytes: 10,
        response_body_bytes: 1000,
        ..limits()
    };
    // No other test calls a function of this name.
    let id = NamespacedName::new("default", "counted");
    let record = FunctionRecord { replicas: vec![replica], calls, ..record(0) };
    let functions = functions_of(id, record);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/default/counted", listener.local_addr().unwrap());
    let (listeners, opened) = mpsc::channel(1);
    listeners.send(listener).await.unwrap();
    let serving = tokio::spawn(super::serve(functions, opened, None, CancellationToken::new()));
    let client = reqwest::Client::new();
    for (body, status) in [("{}", 200), ("{\"x\": 1}", 200), ("{\"text\": \"too long\"}", 413)] {
        assert_eq!(client.post(&url).body(body).send().await.unwrap().status(), status, "{body}");
    }
    let of = "namespace=\"default\",function=\"counted\"";
    let counted =
        |code: &str| METRICS.value(&format!("minik8s_function_calls_total{{{of},code=\"{code}\"}}"));
    assert_eq!(["2xx", "4xx", "5xx"].map(counted), [2.0, 1.0, 0.0]);
    let durations = format!("minik8s_function_call_duration_seconds_count{{{of}}}");
    assert_eq!(METRICS.value(&durations), 3.0);
    assert_eq!(METRICS.value(&format!("minik8s_function_cold_starts_total{{{of}}}")), 0.0);
    serving.abort();
}

// Would fail with series that stay, and with a call that ends later and creates them again.
#[tokio::test]
async fn the_series_of_a_function_go_with_it() {
    // No other test has a function of this name.
    let (calls, id) = (Calls::new(Timestamp::UNIX_EPOCH), NamespacedName::new("default", "brief"));
    let has_series = || METRICS.text(&LoopRuns::default(), None).contains("function=\"brief\"");
    calls.follow([(&id, &record(0))].into_iter());
    assert!(has_series());
    calls.follow(std::iter::empty());
    assert!(!has_series());
    calls.count(&id, hyper::StatusCode::OK, &Phases::default());
    assert!(!has_series());
}

// Seen red with a call limited to 60 s.
#[tokio::test]
async fn a_call_may_run_as_long_as_the_function_says_and_no_longer() {
    let client = reqwest::Client::new();
    for (answers_at, status, ended_at) in [(300, 200, 300), (599, 200, 599), (700, 504, 602)] {
        let replica = answers_after(Duration::from_secs(answers_at)).await;
        let (url, serving) = gateway(&[replica], 600).await;
        let began = Instant::now();
        let answer = client.post(&url).body("{}").send().await.unwrap();
        assert_eq!(answer.status(), status, "{answers_at}");
        let took = began.elapsed().as_secs();
        assert!((ended_at..ended_at + 60).contains(&took), "{answers_at}: {took}");
        serving.abort();
    }
}

#[tokio::test]
async fn a_call_that_comes_between_a_look_at_the_functions_and_what_follows_is_not_sent_away() {
    let (catalogs, catalog) =
        watch::channel(Arc::new(Catalog { known_from: StateOrigin::Etcd, ..Catalog::default() }));
    let (calls, state) = (Calls::new(Timestamp::UNIX_EPOCH), tempfile::tempdir().unwrap());
    let handover = Handover::for_agent(state.path());
    let deps = deps_of(state.path(), "127.0.0.1:0".parse().unwrap(), (catalog, calls.clone()), handover);
    let (mut functions, _serving) = super::FunctionsLoop::new(deps, CancellationToken::new());
    let Observation::Ready(observed) = functions.observe().await.unwrap() else { panic!("ready") };
    let mut newest = Catalog { known_from: StateOrigin::Etcd, ..Catalog::default() };
    newest.functions.insert(id(), versioned(record(0)));
    catalogs.send_replace(Arc::new(newest));
    let mut wait = waits(enter(&calls));
    let plan = super::plan::FunctionsPlan {
        listen: Vec::new(),
        ..super::FunctionsLoop::plan(&observed, Timestamp::now())
    };
    assert!(plan.follow);
    let _ = functions.act(&observed, plan).await;
    assert!(wait.try_recv().is_err(), "it waits for its replica");
    assert_eq!(calls.demand().functions.len(), 1);
}

// Seen red: after `up --advertise` the port stayed that of the bridge alone, which nobody served.
#[tokio::test]
async fn the_port_of_all_addresses_is_not_kept_by_the_bridge_of_a_former_agent() {
    let state = tempfile::tempdir().unwrap();
    let listen = |ip: &str, port: u16| std::net::TcpListener::bind((ip, port)).unwrap();
    let former = listen("127.0.0.1", 0);
    let port = former.local_addr().unwrap().port();
    let sockets =
        vec![(Role::Functions, former.into()), (Role::PodFunctions, listen("127.0.0.2", port).into())];
    let (_, catalog) = watch::channel(Arc::new(Catalog::default()));
    let calls = Calls::new(Timestamp::UNIX_EPOCH);
    let all = ([0, 0, 0, 0], port).into();
    let deps = deps_of(state.path(), all, (catalog, calls), Handover::from_sockets(sockets));
    let (mut functions, _serving) = super::FunctionsLoop::new(deps, CancellationToken::new());
    let Observation::Ready(observed) = functions.observe().await.unwrap() else { panic!("ready") };
    let plan = super::FunctionsLoop::plan(&observed, Timestamp::now());
    assert_eq!(functions.act(&observed, plan).await.failed, None);
}

/// Dependencies of a loop that listens there.
fn deps_of(
    state_dir: &Path,
    listen: SocketAddr,
    (catalog, calls): (watch::Receiver<Arc<Catalog>>, Calls),
    handover: Handover,
) -> super::FunctionsDeps {
    let keys = crate::files::Keys::open(&state_dir.join("age-identity.txt")).unwrap();
    let store = Arc::new(schema::store::memory::MemoryStore::new());
    let source = crate::worlds::blobs::Reconcilers::new(Vec::new(), store);
    super::FunctionsDeps {
        listen,
        subnet: watch::channel(None).1,
        catalog,
        calls,
        files: Arc::new(crate::files::PodFiles::new(state_dir, Arc::new(source), keys)),
        handover,
        trust: TestAuthority::new().reader("node-n1"),
        hosts: schema::names::HostNames::default(),
    }
}

/// Functions of a node with pods in 10.244.0.0/24.
fn functions(record: FunctionRecord) -> Functions {
    functions_of(id(), record)
}

/// [`functions`] with a function of this name.
fn functions_of(id: NamespacedName, record: FunctionRecord) -> Functions {
    let calls = Calls::new(Timestamp::UNIX_EPOCH);
    calls.follow([(&id, &record)].into_iter());
    let mut catalog = Catalog { known_from: StateOrigin::Etcd, ..Catalog::default() };
    catalog.functions.insert(id, versioned(record));
    let subnet = subnet("10.244.0.0/24");
    let (_, known) = watch::channel(PodAddresses::from_catalog(&catalog, Some(&subnet)));
    let (_, newest) = watch::channel(Arc::new(catalog));
    Functions::new(newest, known, calls, None)
}

// Would fail with 403 for a closed function, and with the address of a browser taken for its page.
#[tokio::test]
async fn strangers_cannot_tell_names_apart_and_pages_of_others_call_only_public_functions() {
    let closed = functions(record(0));
    let public = CallLimits { public: true, ..limits() };
    let open = functions(FunctionRecord { calls: public, ..record(0) });
    let ask = async |functions: &Functions, path: &str, from: &str, (host, origin): (&str, Option<&str>)| {
        let (mut client, server) = tokio::io::duplex(64 << 10);
        let (functions, from) = (functions.clone(), from.parse().unwrap());
        let serving = tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| {
                let places = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
                let caller = Caller::new(from, false, Arc::new(Admitted::new(places, None)), 0);
                let functions = functions.clone();
                async move { Ok::<_, std::convert::Infallible>(functions.handle(request, caller, None).await) }
            });
            let io = hyper_util::rt::TokioIo::new(server);
            hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
        });
        let origin = origin.map(|origin| format!("Origin: {origin}\r\n")).unwrap_or_default();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{origin}\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        serving.await.unwrap().unwrap();
        let body = said.split_once("\r\n\r\n").unwrap().1.to_owned();
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let name = path.rsplit('/').next().unwrap();
        (said[9..12].parse::<u16>().unwrap(), body["error"].to_string().replace(name, "NAME"))
    };
    let (stranger, pod, own) = ("198.51.100.1", "10.244.0.5", "192.0.2.7:8081");
    let there = ask(&closed, "/default/hello", stranger, (own, None)).await;
    let missing = ask(&closed, "/default/nobody", stranger, (own, None)).await;
    assert_eq!((there.0, &there), (404, &missing));
    assert!(there.1.contains("public: true"), "{}", there.1);
    for (functions, from, origin, status) in [
        (&closed, pod, None, 200),
        (&closed, pod, Some("http://192.0.2.7:8081"), 200),
        (&closed, pod, Some("http://evil.example"), 403),
        (&closed, pod, Some("null"), 403),
        (&closed, stranger, Some("http://evil.example"), 404),
        (&open, stranger, Some("http://evil.example"), 200),
    ] {
        let (answered, error) = ask(functions, "/default/hello", from, (own, origin)).await;
        assert_eq!(answered, status, "{from} {origin:?}: {error}");
    }
    // The name of a page was pointed here.
    let (answered, error) = ask(&closed, "/default/hello", pod, ("evil.example:8081", None)).await;
    assert_eq!(answered, 403, "{error}");
}

// Would fail with the bridge left out: pods did not reach a gateway on loopback, nor pods of other nodes one elsewhere.
#[test]
fn a_gateway_at_one_address_is_at_the_pods_bridge_too() {
    let own = subnet("10.244.3.0/24");
    let listens = |given: &str, subnet: Option<&schema::records::Subnet>| -> Vec<String> {
        let all = super::plan::addresses(given.parse().unwrap(), subnet);
        all.into_iter().map(|(_, at)| at.to_string()).collect()
    };
    assert_eq!(listens("127.0.0.1:8081", Some(&own)), ["127.0.0.1:8081", "10.244.3.1:8081"]);
    assert_eq!(listens("127.0.0.1:8081", None), ["127.0.0.1:8081"]);
    assert_eq!(listens("0.0.0.0:8081", Some(&own)), ["0.0.0.0:8081"]);
    assert_eq!(listens("192.0.2.7:8081", Some(&own)), ["192.0.2.7:8081", "10.244.3.1:8081"]);
    assert_eq!(listens("10.244.3.1:8081", Some(&own)), ["10.244.3.1:8081"]);
}
