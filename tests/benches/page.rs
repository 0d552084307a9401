//! The page of a cluster of 5,000 nodes and 150,000 pods: size and time of each page, CPU and memory of open tabs, and
//! frames in Chromium.
//!
//! The reconciler's own router serves a snapshot in memory on loopback, within this process: figures of CPU and memory
//! include the client's end of each stream, and leave out the reflector.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Browser, Context, Result, ensure, eventually, holds, secs};
use reconciler::api::{ApiDeps, Caller, CommitPair, ComparisonError, Comparisons, router};
use reconciler::upkeep::DefragRequests;
use reconciler::webhooks::{Intake, SourceTarget};
use schema::control::Nudge;
use schema::snapshot::Snapshot;
use schema::store::SharedStore;
use schema::store::election::{Fence, FenceReader};
use schema::store::memory::MemoryStore;
use schema::store::reflector::{SnapshotPublisher, SnapshotReader};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::Scale;
use crate::figures::{Row, Series, Table, ms};
use crate::idle::{cpu_time, resident_mib};
use crate::large_cluster::{change, snapshot};

const PAGES: [&str; 7] = [
    "/",
    "/tree",
    "/tree?health=unhealthy",
    "/object/ReplicaSet/default/web-000",
    "/nodes/node-0000",
    "/network",
    "/history",
];
const VISITS: usize = 10;
const CHANGE_EVERY: Duration = Duration::from_millis(100);
const BUSY: Duration = Duration::from_secs(5);
/// Duration of the rest: a tab renders its page once in that time, because the page shows ages.
const REST: Duration = Duration::from_secs(10);
/// Streams open at the same time.
const STREAMS: usize = 100;
/// Bytes beyond which a stream has sent its first event, too, and not the head of its answer alone.
const HEAD_BYTES_MAX: usize = 2_048;
/// Collects the longest frame, and counts replaced parts.
const COLLECT: &str = "window.longest = 0; window.replaced = 0; let last = performance.now(); \
    const frame = () => { const now = performance.now(); window.longest = Math.max(window.longest, now - last); \
    last = now; requestAnimationFrame(frame); }; requestAnimationFrame(frame); \
    new MutationObserver((all) => { window.replaced += all.length; }) \
    .observe(document.querySelector('main'), {childList: true, subtree: true});";

pub(crate) fn measure(_: Scale, table: &mut Table) -> Result<()> {
    let mut server = Server::start(snapshot()?)?;
    println!("memory with the snapshot: {:.0} MiB", resident_mib(std::process::id())?);
    PAGES.iter().try_for_each(|path| server.visits(path, table))?;
    let alone = cpu_of(|| server.keep_changing())?;
    PAGES.iter().try_for_each(|path| server.tab(path, alone, table))?;
    server.streams(table)?;
    server.frames(table)
}

/// The router over the newest of the published snapshots.
pub(crate) struct Server {
    runtime: Runtime,
    pub(crate) address: SocketAddr,
    snapshot: Snapshot,
    publisher: SnapshotPublisher,
    /// Number of changes so far.
    changes: usize,
}

impl Server {
    pub(crate) fn start(snapshot: Snapshot) -> Result<Self> {
        let runtime = Runtime::new()?;
        let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
        let address = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?;
            let router = router(deps(reader)).layer(axum::Extension(Caller::Local { uid: 0 }));
            tokio::spawn(async move { axum::serve(listener, router).await });
            Ok::<_, harness::Error>(address)
        })?;
        Ok(Self { runtime, address, snapshot, publisher, changes: 0 })
    }

    /// Opens a page on a connection of its own; returns the time to the first byte, and the page.
    fn visit(&self, path: &str) -> Result<(Duration, String)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        let start = Instant::now();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(secs(60)))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = vec![0];
        stream.read_exact(&mut answer)?;
        let first = start.elapsed();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8(answer)?;
        let (head, html) = answer.split_once("\r\n\r\n").context("no head")?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        Ok((first, html.to_owned()))
    }

    fn visits(&self, path: &str, table: &mut Table) -> Result<()> {
        let (mut series, bytes) = (Series::default(), self.visit(path)?.1.len());
        for _ in 0..VISITS {
            series.add(self.visit(path)?.0);
        }
        let what = format!("page {path}: time to the first byte, size");
        let ours = format!("p50 {}, {:.0} KB", ms(series.percentile(50)), bytes as f64 / 1000.0);
        table.add(Row { what: &what, ours, budget: "≤ 100 ms, ≤ 200 KB", ..Row::default() });
        Ok(())
    }

    /// Publishes a changed snapshot ten times a second, for [`BUSY`].
    fn keep_changing(&mut self) {
        let (start, mut next) = (Instant::now(), Instant::now());
        while start.elapsed() < BUSY {
            change(&mut self.snapshot, self.changes);
            self.changes += 1;
            self.publisher.publish(self.snapshot.clone());
            next += CHANGE_EVERY;
            // The load is a rate; there is no condition to wait for.
            sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Opens the stream of a page, as the page's script does.
    fn open(&self, path: &str, have: &str) -> Tab {
        let of = path.replace('?', "%3F").replace('=', "%3D");
        let request = format!("GET /changes?of={of}&have={have} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        let (address, received) = (self.address, Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&received);
        let mut reading = JoinSet::new();
        let read = async move {
            let Ok(mut stream) = tokio::net::TcpStream::connect(address).await else { return };
            let Ok(()) = stream.write_all(request.as_bytes()).await else { return };
            let mut buffer = vec![0; 4_096];
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        };
        reading.spawn_on(read, self.runtime.handle());
        Tab { _reading: reading, received }
    }

    /// Measures the CPU time of one open tab. `alone`: CPU time of the same changes without a tab.
    fn tab(&mut self, path: &str, alone: Duration, table: &mut Table) -> Result<()> {
        let (_, html) = self.visit(path)?;
        let have = html.split("data-have=\"").nth(1).and_then(|rest| rest.split('"').next());
        let tab = self.open(path, have.context("no hashes")?);
        // A tab renders its page when it is opened.
        holds("it settles", secs(2), || Ok(()))?;
        let rest = cpu_of(|| sleep(REST))?;
        let before = tab.received();
        ensure!(before > 0, "the stream of {path} does not answer");
        let busy = cpu_of(|| self.keep_changing())?.saturating_sub(alone);
        let rate = (tab.received() - before) as f64 / 1000.0 / BUSY.as_secs_f64();
        let per_second = |cpu: Duration, during: Duration| ms(cpu.div_f64(during.as_secs_f64()));
        let what = format!("tab of {path}: CPU per s at rest, at 10 changes/s; events (in process)");
        let ours = format!("{}, {}, {rate:.0} KB/s", per_second(rest, REST), per_second(busy, BUSY));
        table.add(Row { what: &what, ours, ..Row::default() });
        Ok(())
    }

    fn streams(&self, table: &mut Table) -> Result<()> {
        let before = resident_mib(std::process::id())?;
        let tabs: Vec<Tab> = (0..STREAMS).map(|_| self.open("/", "")).collect();
        eventually("every stream has sent its first event", secs(300), || {
            let begun = tabs.iter().filter(|tab| tab.received() > HEAD_BYTES_MAX).count();
            ensure!(begun == STREAMS, "{begun} of {STREAMS}");
            Ok(())
        })?;
        holds("it settles", secs(2), || Ok(()))?;
        let what = format!("memory with {STREAMS} open streams of / (in process: both ends)");
        let ours = format!("{before:.0} → {:.0} MiB", resident_mib(std::process::id())?);
        table.add(Row { what: &what, ours, ..Row::default() });
        Ok(())
    }

    /// Measures the longest frame of each page. The browser needs root for its namespace.
    fn frames(&mut self, table: &mut Table) -> Result<()> {
        if !Browser::is_installed() {
            println!("frames are not measured: chromedriver is not installed");
            return Ok(());
        }
        let dir = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let browser = Browser::start(dir.path(), port)?;
        for path in PAGES {
            browser.open(&format!("http://{}{path}", self.address))?;
            browser.shows("live")?;
            browser.run(COLLECT)?;
            self.keep_changing();
            let collected = browser.run("return [window.longest, window.replaced]")?;
            let what = format!("longest frame of {path} in Chromium at 10 changes/s, parts replaced");
            let ours = format!("{:.1} ms, {}", collected[0].as_f64().context("no frames")?, collected[1]);
            table.add(Row { what: &what, ours, budget: "≤ 100 ms", ..Row::default() });
        }
        Ok(())
    }
}

/// An open stream, and the number of bytes that it has received.
struct Tab {
    /// Aborted when it is dropped.
    _reading: JoinSet<()>,
    received: Arc<AtomicUsize>,
}

impl Tab {
    fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }
}

/// CPU time of this process during `work`.
fn cpu_of(work: impl FnOnce()) -> Result<Duration> {
    let before = cpu_time(std::process::id())?;
    work();
    Ok(cpu_time(std::process::id())?.saturating_sub(before))
}

fn deps(snapshot: SnapshotReader) -> ApiDeps {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let target = SourceTarget::of_branch("main", "main", Nudge::default());
    let intake = Intake::new(vec![target], snapshot.clone(), Arc::clone(&store), "bench");
    ApiDeps {
        admission: None,
        ui: true,
        trust: None,
        snapshot,
        autoscaler_samples: Arc::default(),
        intake: Arc::new(intake),
        blobs: reconciler::blobs::Blobs::new(std::path::Path::new("/nonexistent")),
        comparisons: Comparisons::new(Arc::new(|_: &CommitPair| Err(ComparisonError::NoMirror))),
        hooks: None,
        waiting_runs: reconciler::workflows::RequestQueue::default(),
        fence: FenceReader::fixed(Some(Fence { create_revision: 1 })),
        etcd: tokio::sync::watch::Sender::new(Arc::default()).subscribe(),
        trust_problems: tokio::sync::watch::Sender::new(Arc::default()).subscribe(),
        defrag_requests: DefragRequests::new(Arc::clone(&store), "bench".to_owned(), Nudge::default()),
        store,
        loops: Default::default(),
        identity: "bench".to_owned(),
        version: "bench".to_owned(),
        hosts: schema::names::HostNames::default(),
        local_nodes: Arc::default(),
    }
}
