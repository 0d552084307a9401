//! Costs of 300 probes, printed; only the number of threads is asserted.
//!
//! The book writes their results to disk on threads of its runtime's pool. A burst of writes may use several, as a
//! thread that has just written is not idle immediately. So the book has its own runtime here, with named threads
//! that
//! are left out of the count.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agent::converge::pods::probe::health_store::HealthBook;
use agent::converge::pods::probe::machine::{Action, Check, ProbeKind, ProbeTarget, Targets, Timing};
use agent::converge::pods::probe::perform::ActionRunner;
use agent::converge::pods::probe::runner::ProbeRunner;
use agent::worlds::docker::FakeDocker;
use agent::worlds::prober::{HttpRequest, RealProber};
use jiff::Timestamp;
use schema::control::Nudge;
use schema::meta::NamespacedName;
use schema::store::events::EventRecorder;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[path = "../../schema/tests/support/ports.rs"]
mod ports;

const WINDOW: Duration = Duration::from_secs(5);

/// Name of the threads that write to disk.
const WRITER: &str = "book";

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Counts the threads of this process, without the writers.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread that has ended meanwhile has no name to read.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.trim_end() != WRITER).count()
}

/// Runs the book on its own threads until `shutdown`.
fn write_apart(book: HealthBook, shutdown: CancellationToken) -> JoinHandle<()> {
    let write = move || {
        let runtime = Builder::new_current_thread().enable_time().thread_name(WRITER).build().unwrap();
        runtime.block_on(book.run(shutdown));
    };
    std::thread::Builder::new().name(WRITER.to_owned()).spawn(write).unwrap()
}

/// User and system time of this process, in hundredths of a second.
fn cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_probes_cost_no_thread() {
    let state = tempfile::tempdir().unwrap();
    std::fs::create_dir(state.path().join("agent")).unwrap();
    std::fs::write(state.path().join("index.html"), "ok").unwrap();
    let port = ports::free_port();
    let server = Command::new("busybox")
        .args(["httpd", "-f", "-p", &format!("127.0.0.1:{port}"), "-h"])
        .arg(state.path())
        .spawn()
        .unwrap();
    let _server = Server(server);
    let book = HealthBook::open(state.path(), Nudge::new().0);
    let shutdown = CancellationToken::new();
    let asker =
        ActionRunner { docker: Arc::new(FakeDocker::default()), prober: Arc::new(RealProber::default()) };
    let before = threads();
    let writer = write_apart(book.clone(), shutdown.clone());
    let (wanted, targets) = watch::channel(Arc::default());
    tokio::spawn(
        ProbeRunner::new(asker, book.clone(), EventRecorder::disabled()).run(targets, shutdown.clone()),
    );
    let second = Duration::from_secs(1);
    let timing = Timing {
        initial_delay: Duration::ZERO,
        period: second,
        timeout: second * 5,
        success_threshold: 1,
        failure_threshold: 3,
    };
    let http = Action::HttpGet(HttpRequest { url: format!("http://127.0.0.1:{port}/"), headers: Vec::new() });
    let tcp = Action::TcpSocket { host: "127.0.0.1".into(), port };
    let target = |_| ProbeTarget {
        pod: NamespacedName::new("default", "web"),
        container: "web".into(),
        started_at: Some(Timestamp::now() - Duration::from_secs(3600)),
        checks: [(ProbeKind::Readiness, &http), (ProbeKind::Liveness, &tcp)]
            .map(|(kind, action)| (kind, Check { action: action.clone(), timing }))
            .into(),
        former: None,
    };
    let all: Targets = (0..150).map(|n| (format!("c{n}"), target(n))).collect();
    wanted.send_replace(Arc::new(all));
    let began = Instant::now();
    while book.kept().values().filter(|known| known.health.ready).count() < 150 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", book.kept());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (ticks, mut most) = (cpu(), 0);
    let began = Instant::now();
    while began.elapsed() < WINDOW {
        most = most.max(threads());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let share = (cpu() - ticks) as f64 / began.elapsed().as_secs_f64();
    println!(
        "300 probes (150 httpGet, 150 tcpSocket) each second: {before} threads before, {most} at most, {share:.1} % of a core (debug build)"
    );
    assert!(most <= before, "{before} threads became {most}");
    shutdown.cancel();
    writer.join().unwrap();
}
