//! `minik8s serve`: a table of its tasks, with their inputs, wake-ups and shutdown. Every task is critical: the end
//! of one ends the process.

mod advertise;
mod keep;
mod lead;
mod prepare;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::{FutureExt as _, stream};
use schema::control::{Row, Runtime, logging};
use schema::keys::ROOT;
use schema::store::SharedStore;
use schema::store::election;
use schema::store::events::{EventRecorder, RECONCILER};
use schema::store::reflector;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::prepare::{Ground, described, prepare};
use self::rows::{VERDICTS_GAP, WAKE_GAP, autoscaler_row, controller_row, functions_row, workflows_row};
pub(crate) use self::rows::{answers_row, source_row};
use crate::api::{self, ApiDeps};
use crate::blobs::{BlobStore, Blobs, SweepLoop};
use crate::config::{LogFormat, ServeConfig};
use crate::controllers::autoscaler::Autoscaler;
use crate::controllers::functions::Functions;
use crate::controllers::jobs::Jobs;
use crate::controllers::nodes::Nodes;
use crate::controllers::scheduler::Scheduler;
use crate::controllers::services::Services;
use crate::controllers::settings::ClusterSettings;
use crate::controllers::workloads::Workloads;
use crate::controllers::{Deps, Shell};
use crate::gitops::{SourceLoop, VerdictLoop};
use crate::listener::{self, Bounds};
use crate::runs::{Waiting, WorkflowsDeps, WorkflowsLoop};
use crate::webhooks::calls::{self, CallState};
use crate::webhooks::{self, AnswersLoop, Hooks, Intake, SourceTarget};

/// Interval at which unreferenced content is searched for on disk; it stays for an hour.
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);
/// Longest time for agents to learn of a new leader: they look the leader up this often, for a few seconds.
const LEADER_UNKNOWN_MAX: Duration = election::LOOKED_UP_EVERY.saturating_add(Duration::from_secs(15));
/// Limits of the API's connections: twice as many as followed logs, each of which takes one and another to a node.
/// An idle connection lives longer than clients keep theirs, which is 90 s for reqwest, so that no request meets a
/// closing one.
const API_BOUNDS: Bounds = Bounds {
    connections: 512,
    of_address: 128,
    head_bytes: 64 * 1024,
    head_wait: Duration::from_secs(120),
    keeps_alive: true,
    lasts: None,
    drain: Duration::from_secs(2),
};

/// Runs the reconciler until `shutdown`, then finishes work in progress and gives up the lead.
pub async fn serve(config: ServeConfig, shutdown: CancellationToken) -> anyhow::Result<()> {
    logging::init(config.log.log_level.as_deref(), config.log.log_format == LogFormat::Json)?;
    // Boxed: the future is large, and lives only during startup.
    let Some(started) = shutdown.run_until_cancelled(Box::pin(start(config))).await else { return Ok(()) };
    let runtime = started?;
    let asked = stream::once(shutdown.cancelled_owned().map(|()| "shutdown").boxed());
    runtime.run_until(asked).await.context("the reconciler ended before it should; see its log")
}

fn drive_controllers(runtime: &mut Runtime, deps: &Deps) {
    let row = || controller_row(&deps.snapshot, &deps.fence, WAKE_GAP);
    runtime.drive(row(), Shell::<Nodes>::new(deps.clone()));
    runtime.drive(row(), Shell::<ClusterSettings>::new(deps.clone()));
    runtime.drive(row(), Shell::<Workloads>::new(deps.clone()));
    runtime.drive(row(), Shell::<Services>::new(deps.clone()));
    let row_of_usage = autoscaler_row(&deps.snapshot, &deps.fence);
    runtime.drive(row_of_usage, Shell::<Autoscaler>::new(deps.clone()));
    runtime.drive(functions_row(&deps.snapshot, &deps.fence), Shell::<Functions>::new(deps.clone()));
    runtime.drive(row(), Shell::<Jobs>::new(deps.clone()));
    runtime.drive(row(), Shell::<Scheduler>::new(deps.clone()));
}

/// Drives the loop of workflow runs, which requests for runs and ending runs also wake.
fn drive_workflows(runtime: &mut Runtime, deps: &Deps) -> Waiting {
    let (store, waiting) = (Arc::clone(&deps.store), Waiting::default());
    let follows = waiting.clone();
    let row = workflows_row(&deps.snapshot, &deps.fence).wake_by(|nudge| follows.follow(store, nudge));
    let the_loop = WorkflowsLoop::new(WorkflowsDeps {
        store: Arc::clone(&deps.store),
        snapshot: deps.snapshot.clone(),
        fence: deps.fence.clone(),
        last_known: deps.last_known.clone(),
        nudge: row.nudge(),
        unknown_for: LEADER_UNKNOWN_MAX,
    });
    runtime.drive(row, the_loop);
    waiting
}

/// Serves webhooks; returns their counters.
fn serve_hooks(
    runtime: &mut Runtime,
    listener: TcpListener,
    intake: &Arc<Intake>,
    (secret_file, calls): (PathBuf, CallState),
) -> Arc<webhooks::Counts> {
    let counts = Arc::new(webhooks::Counts::default());
    let hooks = Hooks::new(Arc::clone(intake), secret_file, Arc::clone(&counts));
    runtime.task("webhooks", webhooks::serve(listener, hooks, calls::router(calls), runtime.token()));
    counts
}

/// Starts the event writer, which runs until shutdown.
fn write_events(runtime: &mut Runtime, store: &SharedStore) -> EventRecorder {
    let (events, writing) =
        EventRecorder::writing(Arc::clone(store), RECONCILER, "reconciler", runtime.token());
    runtime.task("events", writing);
    events
}

async fn start(config: ServeConfig) -> anyhow::Result<Runtime> {
    let Ground { listener, hooks, store, state_dir } = prepare(&config).await?;
    let mut runtime = Runtime::new();
    let token = runtime.token();

    // A single watch on all of etcd: a loop that waits for its own write relies on the snapshot's revision.
    let fence = lead::stand(&mut runtime, &store, advertise::standing(&config), state_dir).await;
    let (snapshot, reflecting) = reflector::reflect(Arc::clone(&store), vec![ROOT.to_owned()], token.clone());
    runtime.task("reflector", reflecting);
    let events = write_events(&mut runtime, &store);

    let (mut targets, mut runs) = (Vec::new(), Vec::new());
    for source in &config.sources {
        let row = source_row(source.poll, &snapshot, &fence);
        let (name, follows, nudge) = (source.name.clone(), source.reference.clone(), row.nudge());
        let (snapshot, fence) = (snapshot.clone(), fence.clone());
        let (dir, store, events) = (config.state_dir.clone(), Arc::clone(&store), events.clone());
        let the_loop = SourceLoop::new(source.clone(), dir, store, snapshot, fence, events)
            .serving(config.settings.service_cidr);
        runs.push(runtime.drive_as(format!("gitops/{name}"), row, the_loop));
        targets.push(SourceTarget { source: name, follows, nudge });
    }
    let wakes = targets.iter().map(|target| (target.source.clone(), target.nudge.clone())).collect();

    let keep = keep::KeepLoop::open(&config.own_dir(), snapshot.clone());
    let deps = Deps {
        store: Arc::clone(&store),
        snapshot: snapshot.clone(),
        fence: fence.clone(),
        last_known: keep.newest(),
        events,
        settings: config.settings.clone(),
    };
    let verdicts = VerdictLoop::new(wakes, Arc::clone(&store), snapshot.clone(), fence.clone(), &deps.events);
    runtime.drive(controller_row(&snapshot, &fence, VERDICTS_GAP), verdicts);
    drive_controllers(&mut runtime, &deps);
    let waiting_runs = drive_workflows(&mut runtime, &deps);
    let sweep = SweepLoop::new(BlobStore::new(&config.state_dir), snapshot.clone());
    runtime.drive(Row::every(SWEEP_INTERVAL), sweep);
    runtime.drive(keep.row(), keep);

    let intake = Intake::new(targets, snapshot.clone(), Arc::clone(&store), config.name.clone());
    let intake = Arc::new(intake);
    let row = answers_row(&snapshot, &fence, &runs);
    let answers = AnswersLoop::new(&intake, fence, runs);
    runtime.drive(row, answers);
    let calls = CallState::new(&store, &snapshot, &config.name, &waiting_runs);
    let counts = hooks.map(|(listener, file)| serve_hooks(&mut runtime, listener, &intake, (file, calls)));

    let api = api::router(ApiDeps {
        blobs: Blobs::new(&config.state_dir),
        snapshot,
        store,
        intake,
        hooks: counts,
        waiting_runs,
        loops: runtime.runs(),
        identity: config.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    runtime.task("api", listener::serve(listener, API_BOUNDS, move |_| api.clone(), token));
    tracing::info!(
        name = config.name,
        listen = %config.listen,
        etcd = config.etcd.endpoints.join(","),
        sources = config.sources.iter().map(described).collect::<Vec<_>>().join(", "),
        "reconciler started"
    );
    Ok(runtime)
}
