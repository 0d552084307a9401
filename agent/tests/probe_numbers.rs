//! What 300 probes cost: printed, not judged, but for the threads.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::converge::pods::probe::book::HealthBook;
use agent::converge::pods::probe::machine::ProbeKind;
use agent::converge::pods::probe::machine::Timing;
use agent::converge::pods::probe::perform::Asker;
use agent::converge::pods::probe::runner::ProbeRunner;
use agent::converge::pods::probe::target::{Action, Check, ProbeTarget, Targets};
use agent::worlds::docker::FakeDocker;
use agent::worlds::prober::{HttpRequest, RealProber};
use jiff::Timestamp;
use schema::control::Nudge;
use schema::meta::NamespacedName;
use schema::store::events::EventRecorder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[path = "../../schema/tests/support/ports.rs"]
mod ports;

const WINDOW: Duration = Duration::from_secs(5);

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
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
    let asker = Asker { docker: Arc::new(FakeDocker::default()), prober: Arc::new(RealProber::default()) };
    let before = threads();
    tokio::spawn(book.clone().run(shutdown.clone()));
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
    // One more may write the results to disk.
    assert!(most <= before + 2, "{before} threads became {most}");
    shutdown.cancel();
}
