//! What `minik8s serve` runs, as a table: who reads what, who nudges whom, how it ends.
//!
//! Starts in the order in which things fail: whatever a user got wrong ends in one line before
//! anything has an effect. Only an etcd that does not answer is no mistake of the user once the
//! state directory was in use. Afterwards every task is critical: the death of one ends the process.

mod advertise;
mod sources;

use std::future::IntoFuture as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{FutureExt as _, stream};
use schema::control::shutdown::Tasks;
use schema::control::{Driver, LastRun, Loop, Nudge, logging};
use schema::keys::ROOT;
use schema::snapshot::Snapshot;
use schema::store::election::{self, FenceReader, Standing};
use schema::store::etcd::{Access, LazyStore};
use schema::store::events::{EventRecorder, RECONCILER};
use schema::store::reflector::{self, SnapshotReader};
use schema::store::{SharedStore, StoreError};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api::{self, ApiDeps};
use crate::blobs::{BlobStore, Blobs, SweepLoop};
use crate::config::{LogFormat, ServeConfig};
use crate::controllers::nodes::Nodes;
use crate::controllers::scheduler::Scheduler;
use crate::controllers::services::Services;
use crate::controllers::workloads::Workloads;
use crate::controllers::{Deps, Shell};
use crate::git::{self, SourceConfig};
use crate::gitops::{self, SourceLoop, VerdictLoop};
use crate::state_dir::StateDirLock;
use crate::webhooks::{self, Follower, Hooks, Intake, SourceTarget};

/// How long etcd may take to answer at the start: it is often started at the same time.
const ETCD_PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries to end the term of the process before, while etcd does not answer.
const RELEASE_RETRY: Duration = Duration::from_millis(500);
/// The leader's lease: after so long without a sign of life another one may lead.
const LEADER_TTL: Duration = Duration::from_secs(15);
/// Controllers look again after so long even if nothing changed.
const CONTROLLER_INTERVAL: Duration = Duration::from_secs(60);
/// How often content on disk that nothing refers to is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);
/// Least time between two nudges because of the snapshot, so that a burst of changes is planned once.
/// The first change of a burst is passed on at once.
const NUDGE_GAP: Duration = Duration::from_millis(10);
/// How long requests under way, such as a followed log, may go on after shutdown.
const API_DRAIN: Duration = Duration::from_secs(2);

/// Runs the reconciler until `shutdown`, then ends what is under way and gives up the lead.
///
/// # Errors
/// One line that says what, where, why and what to do: what keeps it from starting, or which task
/// ended before it should.
pub async fn serve(config: ServeConfig, shutdown: CancellationToken) -> anyhow::Result<()> {
    logging::init(config.log.log_level.as_deref(), config.log.log_format == LogFormat::Json)?;
    // Boxed: it is large, and lives only as long as the start.
    let Some(started) = shutdown.run_until_cancelled(Box::pin(start(config))).await else { return Ok(()) };
    let tasks = started?;
    let asked = stream::once(shutdown.cancelled_owned().map(|()| "shutdown").boxed());
    tasks.run_until(asked).await.context("the reconciler ended before it should; see its log")
}

/// The table.
async fn start(config: ServeConfig) -> anyhow::Result<Tasks> {
    // What may be wrong, least effect first.
    let listener = listen("--listen", config.listen).await?;
    let hooks = match &config.webhooks {
        None => None,
        Some(hooks) => {
            webhooks::read_secrets(&hooks.secret_file)?;
            Some((listen("--webhook-listen", hooks.listen).await?, hooks.secret_file.clone()))
        }
    };
    let store = open_store(&config.etcd, StateDirLock::was_taken(&config.own_dir())).await?;
    check_state_dir(&config.own_dir())?;
    look_ahead(&config).await?;
    let state_dir = StateDirLock::take(&config.own_dir())?;

    let mut tasks = Tasks::new();
    let token = tasks.token();
    let (working, all_done) = mpsc::channel(1);

    // What everything stands on. One watch on all of etcd, so that the snapshot's revision says that
    // everything up to it is in: whoever waits for a write of its own relies on that.
    let mut is_over = state_dir.end_former_lease(store.as_ref()).await;
    let fence = stand_for_election(&mut tasks, &store, advertise::standing(&config), all_done);
    tasks.spawn_critical("leader lease", {
        let (fence, token, store) = (fence.clone(), token.clone(), Arc::clone(&store));
        async move {
            let noted = async {
                // Who leads itself waits for nobody.
                while !is_over && fence.current().is_none() {
                    sleep(RELEASE_RETRY).await;
                    is_over = state_dir.end_former_lease(store.as_ref()).await;
                }
                state_dir.record_leases(fence).await;
            };
            // Cancel-safe: a note that is not written costs the next start a wait.
            token.run_until_cancelled(noted).await;
        }
    });
    let (snapshot, reflector) = reflector::spawn(Arc::clone(&store), vec![ROOT.to_owned()], token.clone());
    tasks.adopt_critical("reflector", reflector);
    let events = EventRecorder::spawn(Arc::clone(&store), RECONCILER, "reconciler", token.clone());

    // Loops. Each is nudged by what it reads.
    let service_cidr = config.settings.service_cidr;
    let deps = Deps {
        store: Arc::clone(&store),
        snapshot: snapshot.clone(),
        fence: fence.clone(),
        events: events.clone(),
        settings: config.settings,
    };
    let mut loops = Loops { tasks: &mut tasks, working };
    let sources: Vec<_> = config
        .sources
        .iter()
        .map(|source| {
            let (store, events) = (Arc::clone(&store), events.clone());
            let state_dir = config.state_dir.clone();
            let source_loop =
                SourceLoop::new(source.clone(), state_dir, store, snapshot.clone(), fence.clone(), events)
                    .serving(service_cidr);
            loops.drive("gitops", source.poll, source_loop)
        })
        .collect();
    let (nudges, last_runs): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
    // One nudge for "look now": it wakes every source, and its last run is the last of any.
    let (sync, asked) = Nudge::new();
    let verdicts = VerdictLoop::new(
        config.sources.iter().map(|source| source.name.clone()).zip(nudges.iter().cloned()).collect(),
        Arc::clone(&store),
        snapshot.clone(),
        fence.clone(),
        &deps.events,
    );
    let controllers = [
        loops.drive("verdicts", CONTROLLER_INTERVAL, verdicts).0,
        loops.drive("nodes", CONTROLLER_INTERVAL, Shell::<Nodes>::new(deps.clone())).0,
        loops.drive("workloads", CONTROLLER_INTERVAL, Shell::<Workloads>::new(deps.clone())).0,
        loops.drive("services", CONTROLLER_INTERVAL, Shell::<Services>::new(deps.clone())).0,
        loops.drive("scheduler", CONTROLLER_INTERVAL, Shell::<Scheduler>::new(deps)).0,
    ];
    // Its own clock is all that wakes it: what goes has an hour.
    loops.drive("blobs", SWEEP_INTERVAL, SweepLoop::new(BlobStore::new(&config.state_dir), snapshot.clone()));
    drop(loops);
    let targets = config.sources.iter().zip(&nudges);
    let targets = targets.map(|(source, nudge)| SourceTarget {
        source: source.name.clone(),
        follows: source.reference.clone(),
        nudge: nudge.clone(),
    });
    let intake = Intake::new(targets.collect(), snapshot.clone(), Arc::clone(&store), config.name.clone());
    let intake = Arc::new(intake);
    let follower = Follower {
        snapshot: snapshot.clone(),
        fence: fence.clone(),
        store: Arc::clone(&store),
        intake: Arc::clone(&intake),
        runs: last_runs.clone(),
        identity: config.name.clone(),
    };
    tasks.spawn_critical("deliveries", follower.run(token.clone()));
    let (last_run, last_sync) = watch::channel(None);
    tasks.spawn_critical("sources", {
        let token = token.clone();
        async move {
            // Cancel-safe: both only wait, and hold nothing when they are dropped.
            token.run_until_cancelled(sources::fan_out(asked, nudges, last_runs, last_run)).await;
        }
    });
    tasks.spawn_critical("nudges", pass_on(snapshot.clone(), fence, controllers, sync, token.clone()));

    // Who asks.
    let counts = hooks.map(|(listener, secret_file)| {
        let counts = Arc::new(webhooks::Counts::default());
        let hooks = Hooks::new(Arc::clone(&intake), secret_file, Arc::clone(&counts));
        tasks.spawn_critical("webhooks", webhooks::serve(listener, hooks, token.clone()));
        counts
    });

    // Who looks.
    let api = api::router(ApiDeps {
        blobs: Blobs::new(&config.state_dir),
        snapshot,
        store,
        intake,
        hooks: counts,
        last_sync: Some(last_sync),
        identity: config.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    tasks.spawn_critical("api", answer(listener, api, token));
    tracing::info!(
        name = config.name,
        listen = %config.listen,
        etcd = config.etcd.endpoints.join(","),
        sources = config.sources.iter().map(described).collect::<Vec<_>>().join(", "),
        "reconciler started"
    );
    Ok(tasks)
}

/// A mistake in what `serve` was told is best told at once. Of several repositories one may well be
/// away: that is no reason not to run the others, and each tells its own trouble in its status.
async fn look_ahead(config: &ServeConfig) -> anyhow::Result<()> {
    for source in &config.sources {
        let checked = match config.sources.len() {
            1 => gitops::preflight(source, &config.state_dir).await,
            _ => source.check().and_then(|()| git::check_keys(source)),
        };
        checked.with_context(|| format!("source {}", source.name))?;
    }
    Ok(())
}

fn described(source: &SourceConfig) -> String {
    format!("{}: {} {}", source.name, source.shown_url(), source.reference)
}

async fn listen(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) => bail!(
            "cannot listen on {address}: {}; stop what listens there, or give {flag} another address",
            text_of(&error)
        ),
    }
}

/// A first start says at once that `--etcd` is wrong. Later ones wait: etcd may take long to come back, and
/// who restarts the reconciler when it ends may give up.
async fn open_store(access: &Access, has_served: bool) -> anyhow::Result<SharedStore> {
    let store = LazyStore::new(access.clone());
    match store.connect(ETCD_PATIENCE).await {
        Ok(()) => {}
        Err(error @ StoreError::Connect { .. }) if has_served => {
            tracing::warn!("{error}; this reconciler goes on as soon as it answers");
        }
        Err(error @ StoreError::Connect { .. }) => {
            bail!("{error}; start etcd there, or give --etcd its address")
        }
        Err(error) => bail!("{error}; look at etcd's log"),
    }
    Ok(Arc::new(store))
}

fn check_state_dir(dir: &Path) -> anyhow::Result<()> {
    let checked = std::fs::create_dir_all(dir).and_then(|()| tempfile::tempfile_in(dir));
    match checked {
        Ok(_) => Ok(()),
        Err(error) => bail!(
            "cannot write to the state directory {}: {}; give --state-dir a directory that this user may write",
            dir.display(),
            text_of(&error)
        ),
    }
}

/// An error of the system without the path that `tempfile` and others add to it.
fn text_of(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_lowercase(),
        None => error.kind().to_string(),
    }
}

/// Stands for election. The lead is given up only once every loop has ended, so that what they
/// are writing is still theirs to write.
fn stand_for_election(
    tasks: &mut Tasks,
    store: &SharedStore,
    standing: Standing,
    mut all_done: mpsc::Receiver<()>,
) -> FenceReader {
    let resign = CancellationToken::new();
    let (fence, election) = election::spawn(Arc::clone(store), standing, LEADER_TTL, resign.clone());
    tasks.adopt_critical("election", election);
    let token = tasks.token();
    tasks.spawn_critical("resignation", async move {
        token.cancelled().await;
        // Nothing is ever sent: this is none when the last loop has dropped its end.
        let _ = all_done.recv().await;
        resign.cancel();
    });
    fence
}

/// Starts loops as critical tasks.
struct Loops<'a> {
    tasks: &'a mut Tasks,
    /// Every loop holds one until it ends.
    working: mpsc::Sender<()>,
}

impl Loops<'_> {
    fn drive<L: Loop>(
        &mut self,
        name: &'static str,
        interval: Duration,
        the_loop: L,
    ) -> (Nudge, watch::Receiver<Option<LastRun>>) {
        let (nudge, nudged) = Nudge::new();
        let (last_run, last) = watch::channel(None);
        let working = self.working.clone();
        let driven = Driver::every(interval).run(the_loop, nudged, self.tasks.token(), last_run);
        self.tasks.spawn_critical(name, async move {
            driven.await;
            drop(working);
        });
        (nudge, last)
    }
}

/// A change of the snapshot is looked at by every controller; a change of the lead by all.
pub(crate) async fn pass_on<const N: usize>(
    mut snapshot: SnapshotReader,
    mut fence: FenceReader,
    controllers: [Nudge; N],
    sync: Nudge,
    token: CancellationToken,
) {
    let mut synced = false;
    let mut planned: Option<Arc<Snapshot>> = None;
    loop {
        let lead_changed = tokio::select! {
            // Cancel-safe: a cancelled token stays so.
            () = token.cancelled() => return,
            // Cancel-safe: a change that nobody was told of is told at the next call.
            () = snapshot.changed() => false,
            // Cancel-safe, likewise.
            () = fence.changed() => true,
        };
        let now = snapshot.current();
        // Each node writes its usage every 15 s: with many nodes that is all the time.
        let same = planned.replace(Arc::clone(&now)).is_some_and(|before| now.plans_as(&before));
        if same && !lead_changed {
            continue;
        }
        let newly_synced = !synced && now.synced;
        synced |= newly_synced;
        if lead_changed || newly_synced {
            sync.nudge();
        }
        for controller in &controllers {
            controller.nudge();
        }
        sleep(NUDGE_GAP).await;
    }
}

/// Serves the API until shutdown, and requests under way a little longer.
async fn answer(
    listener: TcpListener,
    router: axum::Router,
    token: CancellationToken,
) -> Result<(), std::io::Error> {
    let served = axum::serve(listener, router).with_graceful_shutdown(token.clone().cancelled_owned());
    let given_up = async {
        token.cancelled().await;
        sleep(API_DRAIN).await;
    };
    tokio::select! {
        // Both end the API for good: what is dropped with the other is no longer wanted.
        ended = served.into_future() => ended,
        () = given_up => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::config::ServeArgs;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        serve: ServeArgs,
    }

    /// Why the daemon does not start with these flags.
    async fn refused(flags: &[&str]) -> String {
        let always = ["minik8s", "--repo", "/nowhere/cluster.git", "--log-level", "error"];
        let cli = Cli::parse_from(always.iter().chain(flags));
        let config = ServeConfig::try_from(cli.serve).unwrap();
        let error = Box::pin(start(config)).await.expect_err("it does not start");
        let line = format!("{error:#}");
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }

    fn free_port() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_one_line_and_comes_before_anything_else() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let line = refused(&["--listen", &address, "--state-dir", "/proc/nowhere"]).await;
        assert_eq!(
            line,
            format!(
                "cannot listen on {address}: address already in use; \
                 stop what listens there, or give --listen another address"
            )
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_etcd_that_is_dead_is_one_line_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let etcd = format!("http://{}", free_port());
        let line =
            refused(&["--listen", "127.0.0.1:0", "--etcd", &etcd, "--state-dir", state.to_str().unwrap()])
                .await;
        assert!(line.starts_with(&format!("cannot connect to etcd at {etcd}: ")), "{line}");
        assert!(line.ends_with("; start etcd there, or give --etcd its address"), "{line}");
        assert!(!state.exists());
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_is_one_line() {
        let line = check_state_dir(Path::new("/proc/nowhere/reconciler")).unwrap_err().to_string();
        assert_eq!(
            line,
            "cannot write to the state directory /proc/nowhere/reconciler: no such file or directory; \
             give --state-dir a directory that this user may write"
        );
    }

    /// Seen red without the comparison in `pass_on`.
    #[tokio::test(start_paused = true)]
    async fn what_nodes_use_wakes_no_controller() {
        let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
        let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
        let store: SharedStore = Arc::new(schema::store::memory::MemoryStore::new());
        let token = CancellationToken::new();
        let (fence, _election) =
            election::spawn(Arc::clone(&store), "r1".to_owned(), LEADER_TTL, token.clone());
        let (controller, nudged) = Nudge::new();
        let passing = tokio::spawn(pass_on(reader, fence, [controller], Nudge::new().0, token.clone()));
        let write = |snapshot: &mut Snapshot, key: schema::keys::Key, revision: i64| {
            snapshot.put(&key, &schema::records::Settled::default(), revision);
            publisher.publish(snapshot.clone());
        };
        let usage = schema::records::NodeUsage {
            at: jiff::Timestamp::UNIX_EPOCH,
            window_seconds: 15,
            cpu: 0,
            memory: 0,
            pods: Default::default(),
            left_out: String::new(),
        };
        // The lead, and the first snapshot: looked at once each, at most.
        write(&mut snapshot, schema::keys::Key::Settled("n1".to_owned()), 1);
        while tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await.is_ok() {}
        for revision in 2..5 {
            snapshot.put(&schema::keys::Key::Usage("n1".to_owned()), &usage, revision);
            publisher.publish(snapshot.clone());
            let woken = tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await;
            assert!(woken.is_err(), "a write of usage woke a controller");
        }
        write(&mut snapshot, schema::keys::Key::Settled("n2".to_owned()), 5);
        tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await.unwrap();
        token.cancel();
        passing.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_lead_is_given_up_only_after_the_last_loop_has_ended() {
        let store: SharedStore = Arc::new(schema::store::memory::MemoryStore::new());
        let mut tasks = Tasks::new();
        let (working, all_done) = mpsc::channel(1);
        let mut fence = stand_for_election(&mut tasks, &store, "r1".to_owned().into(), all_done);
        fence.changed().await;
        assert!(fence.current().is_some());
        let token = tasks.token();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn_critical("loop", async move {
            token.cancelled().await;
            let _ = finished.await;
            drop(working);
        });
        let stop = stream::once(async { "stop" }.boxed());
        let running = tokio::spawn(tasks.run_until(stop));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert!(fence.current().is_some(), "a loop is still at work");
        finish.send(()).unwrap();
        running.await.unwrap().unwrap();
        assert!(fence.current().is_none());
        assert!(election::leader(store.as_ref()).await.unwrap().is_none());
    }
}
