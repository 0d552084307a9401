//! Workflow runs on a private etcd, with an HTTP server in place of functions: cost of a transition compared with one
//! transaction of the same etcd, overhead of a step on top of its call, many concurrent runs, and kept runs.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use axum::serve::Listener;
use harness::manifests::COUNTS;
use harness::{Change, Cluster, ClusterOptions, Context, Result, ensure, eventually, secs};
use jiff::{SignedDuration, Timestamp};
use schema::keys::{Key, prefix};
use schema::store::etcd::EtcdStore;
use schema::store::{Guard, Op, SharedStore, TxnOutcome};
use schema::trust::{Credentials, MaybeTls, accept};
use serde_json::{Value, json};

use crate::Scale;
use crate::figures::{Row, Series, Table, ms};
use crate::idle::resident_mib;
use crate::pods::sync;

/// Concurrent runs that loop.
const LOOPS: usize = 32;
/// Calls of one run, one after another.
const CALLS: usize = 200;
/// Concurrent runs, at the limit, and the calls of each.
const AT_ONCE: (usize, usize) = (500, 10);
/// Clients that request these runs.
const CLIENTS: usize = 16;
/// Workflows whose runs are kept, up to 10,000 per workflow.
const KEPT: usize = 10;
/// Maximum number of runs waiting to start.
const WAITING: usize = 900;

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions { poll: "1h", ..ClusterOptions::default() })?;
    cluster.start_etcd()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let credentials = Credentials::load(&cluster.trust.node("stand-in")?)?;
    let calls = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let listener = TlsListener { listener, credentials };
        let no_op = Router::new().route("/{namespace}/{name}", post(async || "{}"));
        tokio::spawn(async move { axum::serve(listener, no_op).await });
        Ok::<_, harness::Error>(address)
    })?;
    register(&cluster, &calls)?;
    cluster.reconcilers[0].start()?;
    cluster.wait_reconciler(0)?;
    cluster.repo.push(&flows(), "Flows")?;
    sync(&cluster)?;
    eventually("the workflows are known", secs(30), || {
        ensure!(cluster.etcd.list(prefix::WORKFLOWS)?.len() == 3 + KEPT, "not yet");
        Ok(())
    })?;
    let mut api = Http::connect(&cluster.socket(0))?;
    cluster.run_story(|cluster| {
        transitions(cluster, &mut api, &runtime, scale, table)?;
        steps(cluster, &mut api, &calls, table)?;
        at_once(cluster, &mut api, table)?;
        kept(cluster, scale, table)
    })
}

/// Accepts calls as the stand-in's gateway.
struct TlsListener {
    listener: tokio::net::TcpListener,
    credentials: Credentials,
}

impl Listener for TlsListener {
    type Io = MaybeTls;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (MaybeTls, SocketAddr) {
        loop {
            let Ok((stream, peer)) = self.listener.accept().await else { continue };
            // One client at a time: a reconciler keeps its connections.
            if let Ok((tls, _)) = accept(stream, &self.credentials).await {
                return (MaybeTls::Tls(tls), peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Registers a node whose gateway is our server.
fn register(cluster: &Cluster, calls: &str) -> Result<()> {
    let at = Timestamp::now();
    let node = json!({
        "name": "stand-in", "addresses": ["127.0.0.1"], "cpu": "64", "memory": "256Gi", "maxPods": 110,
        "versions": {"agent": "", "docker": "", "kernel": "", "os": "", "arch": ""},
        "api": "https://192.0.2.1:7071", "calls": format!("https://{calls}"), "registeredAt": at,
    });
    for (key, value) in
        [(Key::Node("stand-in".into()), node), (Key::Heartbeat("stand-in".into()), json!({"since": at}))]
    {
        cluster.etcd.etcdctl(&["put", &key.to_string(), &value.to_string()])?;
    }
    Ok(())
}

fn flows() -> Vec<Change> {
    let flow = |name: &str, rest: &str| {
        let head = format!("apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {{name: {name}}}\nspec:");
        Change::write(format!("{name}.yaml"), format!("{head}{rest}"))
    };
    let chain = |calls: usize| {
        let states = (1..=calls).map(|n| match n {
            n if n == calls => format!("    s{n}: {{type: Task, function: f, end: true}}\n"),
            n => format!("    s{n}: {{type: Task, function: f, next: s{}}}\n", n + 1),
        });
        format!("\n  startAt: s1\n  states:\n{}", states.collect::<String>())
    };
    let mut flows = vec![flow("loop", COUNTS), flow("chain", &chain(CALLS)), flow("many", &chain(AT_ONCE.1))];
    let one_state = "\n  runsHistoryLimit: 10000\n  startAt: a\n  states: {a: {type: Pass, end: true}}\n";
    // Never built: the calls go to our server.
    let function = "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: f}\nspec: {image: none:1}\n";
    flows.push(Change::write("f.yaml", function));
    flows.extend((0..KEPT).map(|number| flow(&format!("kept-{number}"), one_state)));
    flows
}

/// A kept connection for one request at a time.
struct Http<S = UnixStream>(BufReader<S>);

impl Http {
    fn connect(socket: &Path) -> Result<Self> {
        Ok(Self(BufReader::new(UnixStream::connect(socket)?)))
    }
}

impl<S: Read + Write> Http<S> {
    fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json");
        let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        self.0.get_mut().write_all(request.as_bytes())?;
        let (mut code, mut length, mut line) = (0, 0, String::new());
        loop {
            line.clear();
            self.0.read_line(&mut line)?;
            let text = line.trim().to_ascii_lowercase();
            if let Some(status) = text.strip_prefix("http/1.1 ") {
                code = status.split(' ').next().context("no status")?.parse()?;
            } else if let Some(bytes) = text.strip_prefix("content-length: ") {
                length = bytes.parse()?;
            } else if text.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((code, String::from_utf8(body)?))
    }

    /// Requests a run, and retries while too many wait.
    fn start(&mut self, workflow: &str, run: &str, input: &Value) -> Result<()> {
        let path = format!("/v1/workflows/default/{workflow}/runs");
        let body = json!({"input": input, "id": run}).to_string();
        eventually("the run is taken", secs(60), || {
            let (code, said) = self.ask("POST", &path, &body)?;
            ensure!(code == 202, "{code} {said}");
            Ok(())
        })
    }

    /// Runs of a workflow, once `count` have ended.
    fn ended(&mut self, workflow: &str, count: usize) -> Result<Vec<Value>> {
        let path = format!("/v1/runs?namespace=default&workflow={workflow}&limit=1000");
        eventually("the runs end", secs(1_200), || {
            let runs: Value = serde_json::from_str(&self.ask("GET", &path, "")?.1)?;
            let runs = runs["items"].as_array().context("no list")?;
            let ended = runs.iter().filter(|run| run["phase"] != "Running").count();
            ensure!(ended == count, "{ended} of {count}");
            ensure!(runs.iter().all(|run| run["phase"] == "Succeeded"), "one failed: {:?}", runs.first());
            Ok(runs.clone())
        })
    }
}

fn took(run: &Value) -> Result<Duration> {
    let time = |name: &str| -> Result<Timestamp> { Ok(run[name].as_str().context("no time")?.parse()?) };
    let took: SignedDuration = time("finishedAt")?.duration_since(time("startedAt")?);
    Ok(Duration::try_from(took)?)
}

/// Time from the first start to the last end.
fn span(runs: &[Value]) -> Result<Duration> {
    let times = |name: &str| -> Result<Vec<Timestamp>> {
        runs.iter().map(|run| Ok(run[name].as_str().context("no time")?.parse()?)).collect()
    };
    let (first, last) = (times("startedAt")?.into_iter().min(), times("finishedAt")?.into_iter().max());
    let span = last.context("no runs")?.duration_since(first.context("no runs")?);
    Ok(Duration::try_from(span)?)
}

fn transitions(
    cluster: &Cluster,
    api: &mut Http,
    runtime: &tokio::runtime::Runtime,
    scale: Scale,
    table: &mut Table,
) -> Result<()> {
    let rounds = scale.transitions / 2;
    let input = json!({"n": 0, "until": rounds});
    let per_second = |count: usize, took: Duration| count as f64 / took.as_secs_f64();
    api.start("loop", "alone", &input)?;
    let alone = span(&api.ended("loop", 1)?)?;
    for number in 0..LOOPS {
        api.start("loop", &format!("r{number}"), &input)?;
    }
    let runs = api.ended("loop", LOOPS + 1)?;
    let together: Vec<Value> = runs.into_iter().filter(|run| run["id"] != "alone").collect();
    let together = span(&together)?;
    for (what, writers, took, budget) in
        [("alone", 1, alone, ""), ("of 32 runs at once", LOOPS, together, "≥ 500/s")]
    {
        let each = 2 * rounds + 1;
        let (took_bare, bare_count) = runtime.block_on(bare(cluster, writers, each))?;
        let (ours, bare) = (per_second(writers * each, took), per_second(bare_count, took_bare));
        table.add(Row {
            what: &format!("transitions of a run {what}, beside transactions of etcd"),
            ours: format!("{ours:.0}/s"),
            bare: format!("{bare:.0}/s"),
            ratio: format!("{:.2} ×", bare / ours),
            budget,
        });
    }
    Ok(())
}

/// Runs etcd transactions as small as a transition's, by writers that each wait for their previous one.
async fn bare(cluster: &Cluster, writers: usize, each: usize) -> Result<(Duration, usize)> {
    let store: SharedStore = Arc::new(EtcdStore::connect(&cluster.etcd.root(), secs(5)).await?);
    let start = Instant::now();
    let writing = (0..writers).map(|writer| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for number in 0..each {
                let key = format!("/minik8s-tests/bare/{writers}/{writer}/{number}");
                let value =
                    r#"{"entries":[{"at":"2026-11-23T16:00:00.000000Z","event":{"type":"continue"}}]}"#;
                let done = store.txn(vec![Guard::Absent(key.clone())], vec![Op::put(&key, value)]).await?;
                ensure!(matches!(done, TxnOutcome::Committed(_)), "{key} is there");
            }
            Ok(())
        })
    });
    for one in writing.collect::<Vec<_>>() {
        one.await??;
    }
    Ok((start.elapsed(), writers * each))
}

/// Measures the overhead of a step compared with its call alone.
fn steps(cluster: &Cluster, api: &mut Http, calls: &str, table: &mut Table) -> Result<()> {
    let mut direct = Http(BufReader::new(TcpStream::connect(calls)?));
    let mut series = Series::default();
    for _ in 0..CALLS {
        let start = Instant::now();
        ensure!(direct.ask("POST", "/default/f", "{}")?.0 == 200, "it does not answer");
        series.add(start.elapsed());
    }
    api.start("chain", "one", &json!({}))?;
    let [run] = &api.ended("chain", 1)?[..] else { return Err(harness::Error::msg("more than one run")) };
    let step = took(run)? / u32::try_from(CALLS)?;
    let bare = series.percentile(50);
    table.add(Row {
        what: &format!("a step of a run of {CALLS} calls, beside the call alone"),
        ours: ms(step),
        bare: ms(bare),
        ratio: format!("+ {}", ms(step.saturating_sub(bare))),
        budget: "",
    });
    println!("memory of the reconciler then: {:.0} MiB", resident_mib(cluster.reconcilers[0].pid()?)?);
    Ok(())
}

/// Requests runs from many concurrent clients, each of the workflow for its number.
fn ask_for(
    cluster: &Cluster,
    numbers: Range<usize>,
    workflow: impl Fn(usize) -> String + Sync,
) -> Result<()> {
    let socket = cluster.socket(0);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (socket, workflow, numbers) = (&socket, &workflow, numbers.clone());
                scope.spawn(move || -> Result<()> {
                    let mut api = Http::connect(socket)?;
                    let mut own = numbers.skip(client).step_by(CLIENTS);
                    own.try_for_each(|number| {
                        api.start(&workflow(number), &format!("r{number:06}"), &json!({}))
                    })
                })
            })
            .collect();
        asking.into_iter().try_for_each(|one| one.join().expect("no panic"))
    })
}

fn at_once(cluster: &Cluster, api: &mut Http, table: &mut Table) -> Result<()> {
    let (count, calls) = AT_ONCE;
    ask_for(cluster, 0..count, |_| "many".to_owned())?;
    let runs = api.ended("many", count)?;
    let mut series = Series::default();
    for run in &runs {
        series.add(took(run)?);
    }
    let ours = format!("p50 {}, slowest {}", ms(series.percentile(50)), ms(series.percentile(100)));
    let what = format!("{count} runs of {calls} calls at once, from its beginning to its end");
    table.add(Row { what: &what, ours, ..Row::default() });
    let per_second = (count * calls) as f64 / span(&runs)?.as_secs_f64();
    let what = format!("calls of {count} runs at once");
    table.add(Row { what: &what, ours: format!("{per_second:.0}/s"), ..Row::default() });
    println!("of {count} runs {} were under way at one time", most_at_once(&runs)?);
    println!("memory of the reconciler then: {:.0} MiB", resident_mib(cluster.reconcilers[0].pid()?)?);
    Ok(())
}

/// Maximum number of concurrent runs.
fn most_at_once(runs: &[Value]) -> Result<i64> {
    let mut changes = Vec::new();
    for run in runs {
        for (name, change) in [("startedAt", 1), ("finishedAt", -1)] {
            let at: Timestamp = run[name].as_str().context("no time")?.parse()?;
            changes.push((at, change));
        }
    }
    changes.sort_unstable();
    let counts = changes.iter().scan(0, |count, (_, change)| {
        *count += change;
        Some(*count)
    });
    Ok(counts.max().unwrap_or_default())
}

/// Measures the cost of many ended runs.
fn kept(cluster: &Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    let pid = cluster.reconcilers[0].pid()?;
    let (memory, size) = (resident_mib(pid)?, in_use(cluster)?);
    let start = Instant::now();
    for first in (0..scale.kept_runs).step_by(WAITING) {
        let last = scale.kept_runs.min(first + WAITING);
        ask_for(cluster, first..last, |number| format!("kept-{}", number % KEPT))?;
        eventually("they begin", secs(300), || waiting(cluster))?;
    }
    eventually("all have ended", secs(300), || {
        for record in cluster.etcd.list(prefix::WORKFLOWS)? {
            let record: Value = serde_json::from_str(&record.value)?;
            ensure!(record["running"] == 0, "{} run", record["running"]);
        }
        Ok(())
    })?;
    let (per_second, count) = (scale.kept_runs as f64 / start.elapsed().as_secs_f64(), scale.kept_runs);
    table.add(Row {
        what: &format!("{count} runs of one state, asked for by {CLIENTS} clients"),
        ours: format!("{per_second:.0}/s"),
        ..Row::default()
    });
    let (memory, size) = (resident_mib(pid)? - memory, in_use(cluster)?.saturating_sub(size));
    table.add(Row {
        what: &format!("{count} runs kept: etcd, reconciler"),
        ours: format!("{} MiB, {memory:.0} MiB", size >> 20),
        ..Row::default()
    });
    Ok(())
}

fn waiting(cluster: &Cluster) -> Result<()> {
    let keys = cluster.etcd.etcdctl(&["get", "--prefix", "--keys-only", prefix::RUN_REQUESTS])?;
    ensure!(keys.trim().is_empty(), "{} wait", keys.split_whitespace().count());
    Ok(())
}

/// Bytes in use in etcd's database file.
fn in_use(cluster: &Cluster) -> Result<u64> {
    let status = cluster.etcd.etcdctl(&["endpoint", "status", "-w", "json"])?;
    let status: Value = serde_json::from_str(&status)?;
    status[0]["Status"]["dbSizeInUse"].as_u64().context("no size")
}
