//! `minik8s serve`: a table of its tasks, with their inputs, wake-ups and shutdown. Every task is critical: the end
//! of one ends the process.

mod comparer;
mod keep;
mod prepare;
mod trust;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use futures::{FutureExt as _, stream};
use schema::control::{LastRunReader, Nudge, Row, Runtime, lock, logging};
use schema::keys::ROOT;
use schema::snapshot::Snapshot;
use schema::store::election::FenceReader;
use schema::store::events::{EventRecorder, RECONCILER};
use schema::store::reflector::SnapshotReader;
use schema::store::{SharedStore, reflector};
use schema::trust::TrustReader;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::prepare::{StartupResources, described, prepare};
use super::workflows::{RequestQueue, WorkflowsDeps, WorkflowsLoop};
use crate::api::ApiDeps;
use crate::blobs::{BlobStore, Blobs, SweepLoop};
use crate::config::{LogFormat, ServeConfig};
use crate::controllers::autoscaler::Autoscaler;
use crate::controllers::functions::Functions;
use crate::controllers::jobs::Jobs;
use crate::controllers::nodes::Nodes;
use crate::controllers::scheduler::Scheduler;
use crate::controllers::services::{Rules, Services};
use crate::controllers::settings::ClusterSettings;
use crate::controllers::workloads::Workloads;
use crate::controllers::{Deps, Shell};
use crate::gitops::{SourceLoop, TimelineLoop, VerdictLoop};
use crate::listener::{Bounds, Listening};
use crate::metrics::METRICS;
use crate::notifications::target::OwnAddresses;
use crate::notifications::{Courier, NotificationDeps, NotificationLoop};
use crate::upkeep::{DefragRequests, OBSERVE_INTERVAL, RealMembers, UpkeepDeps, UpkeepLoop, UpkeepState};
use crate::view::AutoscalerSamples;
use crate::webhooks::calls::CallState;
use crate::webhooks::{AnswersLoop, Hooks, Intake, SourceTarget, calls};
use crate::{api, listener, webhooks};

/// Interval at which unreferenced content is searched for on disk; it stays for an hour.
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);
/// Interval of the samples of autoscalers: that of the autoscaler's evaluations.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(15);
/// Limits of each of the API's two listeners: twice as many connections as followed logs, each of which takes one and
/// another to a node. An idle connection lives longer than both daemons keep theirs, so that no request meets a closing
/// one.
const API_BOUNDS: Bounds = Bounds {
    connections: 512,
    per_address: 128,
    head_bytes: 64 * 1024,
    head_wait: Duration::from_secs(10),
    keeps_alive: true,
    lasts: None,
    drain: Duration::from_secs(2),
};

/// Runs the reconciler until `shutdown`, then finishes work in progress and gives up the lead.
pub async fn serve(config: ServeConfig, shutdown: CancellationToken) -> anyhow::Result<()> {
    logging::init(config.log.log_level.as_deref(), config.log.log_format == LogFormat::Json)?;
    // Boxed: the future is large, and lives only during startup.
    let Some(started) = shutdown.run_until_cancelled(Box::pin(start(config))).await else { return Ok(()) };
    let mut runtime = started?;
    runtime.report_to_service_manager();
    let asked = stream::once(shutdown.cancelled_owned().map(|()| "shutdown").boxed());
    runtime.run_until(asked).await.context("the reconciler ended unexpectedly; see its log")
}

fn drive_controllers(runtime: &mut Runtime, deps: &Deps) {
    let row = || controller_row(&deps.snapshot, &deps.fence, WAKE_GAP);
    runtime.drive(row(), Shell::<Nodes>::new(deps.clone()));
    runtime.drive(row(), Shell::<ClusterSettings>::new(deps.clone()));
    runtime.drive(row(), Shell::<Workloads>::new(deps.clone()));
    runtime.drive(row(), Shell::<Services>::new(deps.clone()));
    runtime.drive(rules_row(&deps.snapshot, &deps.fence), Shell::<Rules>::new(deps.clone()));
    let row_of_usage = autoscaler_row(&deps.snapshot, &deps.fence);
    runtime.drive(row_of_usage, Shell::<Autoscaler>::new(deps.clone()));
    runtime.drive(functions_row(&deps.snapshot, &deps.fence), Shell::<Functions>::new(deps.clone()));
    runtime.drive(row(), Shell::<Jobs>::new(deps.clone()));
    runtime.drive(row(), Shell::<Scheduler>::new(deps.clone()));
}

/// Drives the loops that follow applied commits. `wakes` nudge the sources.
fn follow_commits(runtime: &mut Runtime, deps: &Deps, wakes: BTreeMap<String, Nudge>) {
    let (store, snapshot, fence) = (&deps.store, &deps.snapshot, &deps.fence);
    let verdicts = VerdictLoop::new(wakes, Arc::clone(store), snapshot.clone(), fence.clone(), &deps.events);
    runtime.drive(controller_row(snapshot, fence, VERDICTS_GAP), verdicts);
    let timelines = TimelineLoop::new(Arc::clone(store), snapshot.clone(), fence.clone());
    runtime.drive(timelines_row(snapshot, fence), timelines);
}

/// Drives the loop of workflow runs, which requests for runs and ending runs also wake.
fn drive_workflows(
    runtime: &mut Runtime,
    deps: &Deps,
    (config, trust): (&ServeConfig, &TrustReader),
    etcd: EtcdStateReader,
) -> RequestQueue {
    let waiting = RequestQueue::limited_to(config.run_bytes_per_minute);
    let store = Arc::clone(&deps.store);
    let follows = waiting.clone();
    let row = workflows_row(&deps.snapshot, &deps.fence).wake_by(|nudge| follows.follow(store, nudge));
    let the_loop = WorkflowsLoop::new(WorkflowsDeps {
        store: Arc::clone(&deps.store),
        snapshot: deps.snapshot.clone(),
        fence: deps.fence.clone(),
        last_known: deps.last_known.clone(),
        nudge: row.nudge(),
        etcd,
        local_nodes: Arc::clone(&config.local_nodes),
        trust: Some(trust.clone()),
    });
    runtime.drive(row, the_loop);
    waiting
}

type EtcdStateReader = watch::Receiver<Arc<UpkeepState>>;

/// Drives the upkeep of etcd; returns its state, and the receiver of requests.
fn drive_upkeep(
    runtime: &mut Runtime,
    deps: &Deps,
    (config, trust): (&ServeConfig, &TrustReader),
) -> (EtcdStateReader, DefragRequests) {
    let row = upkeep_row(&deps.snapshot, &deps.fence);
    let requests = DefragRequests::new(Arc::clone(&deps.store), config.name.clone(), row.nudge());
    let upkeep = UpkeepDeps {
        store: Arc::clone(&deps.store),
        snapshot: deps.snapshot.clone(),
        fence: deps.fence.clone(),
        events: deps.events.reporting_as("etcd-upkeep"),
        requests: requests.clone(),
        endpoints: config.etcd.endpoints.clone(),
        state_dir: config.state_dir.clone(),
        is_on: config.etcd_upkeep,
    };
    let the_loop = UpkeepLoop::new(
        upkeep,
        RealMembers::new(config.etcd.clone(), config.etcd_quota, Some(trust.clone())),
    );
    let state = the_loop.state();
    runtime.drive(row, the_loop);
    (state, requests)
}

/// Drives the loop of notifications, and the courier that delivers its messages.
fn drive_notifications(runtime: &mut Runtime, deps: &Deps, config: &ServeConfig, etcd: EtcdStateReader) {
    let row = notifications_row(&deps.snapshot, &deps.fence, etcd.clone());
    let (courier, queue) = Courier::new(deps.fence.clone(), row.nudge());
    let notifications = NotificationDeps {
        store: Arc::clone(&deps.store),
        snapshot: deps.snapshot.clone(),
        fence: deps.fence.clone(),
        etcd,
        sources: config.sources.clone(),
        state_dir: config.state_dir.clone(),
        own_addresses: OwnAddresses {
            ranges: vec![config.settings.cluster_cidr, config.settings.service_cidr],
            etcd: config.etcd.endpoints.clone(),
            cluster_name: config.cluster_name.clone(),
        },
        page_url: config.page_url.clone(),
    };
    let token = runtime.token();
    runtime.task_like_loop("courier", courier.run(token));
    runtime.drive(row, NotificationLoop::new(notifications, queue));
}

/// Samples the autoscalers for their charts: on every reconciler, because each serves the page.
fn sample_autoscalers(runtime: &mut Runtime, snapshot: &SnapshotReader) -> Arc<Mutex<AutoscalerSamples>> {
    let samples: Arc<Mutex<AutoscalerSamples>> = Arc::default();
    let (snapshot, kept) = (snapshot.clone(), Arc::clone(&samples));
    let sample = move || lock(&kept).record(&snapshot.current(), jiff::Timestamp::now());
    runtime.follow_blocking("autoscaler samples", Row::every(SAMPLE_INTERVAL), sample);
    samples
}

/// Serves the API to certified callers, and through its socket to users of this machine.
fn serve_api(runtime: &mut Runtime, listening: [Listening; 2], api: &Router) {
    for (name, listening) in ["api", "api socket"].into_iter().zip(listening) {
        let serving = listener::serve(listening, API_BOUNDS, api.clone(), runtime.token());
        runtime.task(name, serving);
    }
}

/// Serves webhooks; returns their counters.
fn serve_hooks(
    runtime: &mut Runtime,
    listening: Listening,
    intake: &Arc<Intake>,
    (secret_file, calls): (PathBuf, CallState),
) -> Arc<webhooks::Counts> {
    let counts = Arc::new(webhooks::Counts::default());
    let hooks = Hooks::new(Arc::clone(intake), secret_file, Arc::clone(&counts));
    runtime.task("webhooks", webhooks::serve(listening, hooks, calls::router(calls), runtime.token()));
    counts
}

/// Starts the reflector, with a single watch on all of etcd: a loop that waits for its own write relies on the snapshot's
/// revision.
fn reflect(runtime: &mut Runtime, store: &SharedStore) -> SnapshotReader {
    let all = vec![ROOT.to_owned()];
    let (snapshot, reflecting) = reflector::reflect(Arc::clone(store), all, runtime.token());
    runtime.task("reflector", reflecting);
    snapshot
}

/// Starts the event writer, which runs until shutdown.
fn write_events(runtime: &mut Runtime, store: &SharedStore) -> EventRecorder {
    let (events, writing) =
        EventRecorder::writing(Arc::clone(store), RECONCILER, "reconciler", runtime.token());
    runtime.task("events", writing);
    events
}

fn log_start(config: &ServeConfig) {
    tracing::info!(
        name = config.name,
        listen = %config.listen,
        etcd = ?config.etcd.endpoints,
        sources = ?config.sources.iter().map(described).collect::<Vec<_>>(),
        "reconciler started"
    );
}

async fn start(config: ServeConfig) -> anyhow::Result<Runtime> {
    let StartupResources { api: listening, hooks, etcd, state_dir, trust: initial, candidate } =
        prepare(&config).await?;
    let store: SharedStore = METRICS.store.metered(Arc::clone(&etcd) as _);
    let (mut runtime, trusted) = (Runtime::new(), initial.own.keeper.reader());

    let fence = keep::stand(&mut runtime, &store, candidate, state_dir).await;
    let snapshot = reflect(&mut runtime, &store);
    trust::follow_members(&mut runtime, etcd, &snapshot, &config.etcd);
    let events = write_events(&mut runtime, &store);

    let keep = keep::KeepLoop::open(&config.own_dir(), snapshot.clone());
    let deps = Deps {
        store: Arc::clone(&store),
        snapshot: snapshot.clone(),
        fence: fence.clone(),
        last_known: keep.newest(),
        events,
        settings: config.settings.clone(),
    };
    let (targets, runs) = drive_sources(&mut runtime, &deps, &config);
    let wakes = targets.iter().map(|target| (target.source.clone(), target.nudge.clone())).collect();
    follow_commits(&mut runtime, &deps, wakes);
    drive_controllers(&mut runtime, &deps);
    let (etcd, defrag_requests) = drive_upkeep(&mut runtime, &deps, (&config, &trusted));
    let waiting_runs = drive_workflows(&mut runtime, &deps, (&config, &trusted), etcd.clone());
    drive_notifications(&mut runtime, &deps, &config, etcd.clone());
    let (trust_problems, admission) = trust::drive(&mut runtime, &deps, &config, initial);
    let sweep = SweepLoop::new(BlobStore::new(&config.state_dir), snapshot.clone());
    runtime.drive(Row::every(SWEEP_INTERVAL), sweep);
    runtime.drive(keep.row(), keep);

    let intake = Intake::new(targets, snapshot.clone(), Arc::clone(&store), config.name.clone());
    let intake = Arc::new(intake);
    let row = answers_row(&snapshot, &fence, &runs);
    let answers = AnswersLoop::new(&intake, fence.clone(), runs);
    runtime.drive(row, answers);
    let calls = CallState::new(&store, &snapshot, &config.name, &waiting_runs);
    let counts = hooks.map(|(listening, file)| serve_hooks(&mut runtime, listening, &intake, (file, calls)));

    let api = api::router(ApiDeps {
        ui: config.ui,
        trust: Some(trusted),
        blobs: Blobs::new(&config.state_dir),
        comparisons: comparer::comparisons(&config.sources, &config.state_dir),
        autoscaler_samples: sample_autoscalers(&mut runtime, &snapshot),
        snapshot,
        store,
        intake,
        hooks: counts,
        waiting_runs,
        fence,
        etcd,
        trust_problems,
        admission: Some(admission),
        defrag_requests,
        loops: runtime.runs(),
        identity: config.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        hosts: config.hosts.clone(),
        local_nodes: Arc::clone(&config.local_nodes),
    });
    serve_api(&mut runtime, listening, &api);
    log_start(&config);
    Ok(runtime)
}

/// Drives the loop of each source; returns what wakes them, and their last runs.
fn drive_sources(
    runtime: &mut Runtime,
    deps: &Deps,
    config: &ServeConfig,
) -> (Vec<SourceTarget>, Vec<LastRunReader>) {
    let (mut targets, mut runs) = (Vec::new(), Vec::new());
    for source in &config.sources {
        let row = source_row(source.poll, &deps.snapshot, &deps.fence);
        let (name, follows, nudge) = (source.name.clone(), source.reference.clone(), row.nudge());
        let (snapshot, fence) = (deps.snapshot.clone(), deps.fence.clone());
        let (dir, store, events) = (config.state_dir.clone(), Arc::clone(&deps.store), deps.events.clone());
        let the_loop = SourceLoop::new(source.clone(), dir, store, snapshot, fence, events)
            .with_ranges(config.settings.cluster_cidr, config.settings.service_cidr)
            .with_last_known(deps.last_known.clone());
        runs.push(runtime.drive_as(format!("gitops/{name}"), row, the_loop));
        targets.push(SourceTarget { source: name, follows, nudge });
    }
    (targets, runs)
}

// Wake-ups and intervals of the reconciler's loops.

/// Interval at which controllers run even if nothing changed.
const CONTROLLER_INTERVAL: Duration = Duration::from_secs(60);
/// Longest run of a source: a fetch lasts as long as the remote keeps sending.
const FETCH_MAX: Duration = Duration::from_secs(3_600);
/// Shortest time between two wake-ups of a controller by the snapshot.
const WAKE_GAP: Duration = Duration::from_millis(10);
/// Shortest time between wake-ups for verdicts, which are for people: a run may check every object of a commit.
const VERDICTS_GAP: Duration = Duration::from_millis(250);
/// Shortest time between wake-ups for notifications, which are for people, too.
const NEWS_GAP: Duration = Duration::from_millis(250);
/// Shortest time between wake-ups for notifications by the space on nodes' disks: a thousand nodes report it every 15 s.
const DISKS_GAP: Duration = Duration::from_secs(15);
/// Shortest time between wake-ups of the autoscaler: a thousand nodes report their usage every 15 s.
const USAGE_GAP: Duration = Duration::from_secs(1);
/// Longest wait before answers that could not be written are retried.
const ANSWERS_RETRY_MAX: Duration = Duration::from_secs(2);

/// Row of a source: woken by its interval, a change of leader and the first synced snapshot.
pub(crate) fn source_row(poll: Duration, snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let mut synced = snapshot.clone();
    Row::every(poll).may_take(FETCH_MAX).wake_on(fence.clone()).wake_by(|nudge| async move {
        synced.synced().await;
        nudge.nudge();
        std::future::pending().await
    })
}

/// Row of a controller: woken by changes of the snapshot and the lead, but not by usage, which each node writes
/// every 15 s, nor by sync requests.
fn controller_row(snapshot: &SnapshotReader, fence: &FenceReader, gap: Duration) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| !now.is_same_for_plans(before);
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), gap, is_news)
}

/// Row of the timelines: woken by what they note.
fn timelines_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.bindings.ptr_eq(&before.bindings)
            || !now.pod_status.ptr_eq(&before.pod_status)
            || !now.services.ptr_eq(&before.services)
            || !now.programmed.ptr_eq(&before.programmed)
            || !now.revisions.ptr_eq(&before.revisions)
            || now.synced != before.synced
    };
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), WAKE_GAP, is_news)
}

/// Row of the autoscaler, which also wakes when nodes report usage.
fn autoscaler_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.is_same_for_plans(before) || !now.usage.ptr_eq(&before.usage)
    };
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), USAGE_GAP, is_news)
}

/// Row of the functions controller, which wakes immediately when gateways report calls: someone may be waiting for
/// the first replica.
fn functions_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.is_same_for_plans(before) || !now.demand.ptr_eq(&before.demand)
    };
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), WAKE_GAP, is_news)
}

/// Row of the rules controller, which wakes only when nodes report their rules, come or go: a pod may be waiting to
/// end.
fn rules_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.rules.ptr_eq(&before.rules)
            || !now.heartbeats.ptr_eq(&before.heartbeats)
            || !now.programmed.ptr_eq(&before.programmed)
            || now.malformed != before.malformed
            || now.synced != before.synced
    };
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), WAKE_GAP, is_news)
}

/// Row of workflows: woken by changes of objects and of the records of runs and triggers.
fn workflows_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.objects.ptr_eq(&before.objects)
            || !now.workflows.ptr_eq(&before.workflows)
            || !now.triggers.ptr_eq(&before.triggers)
            || !now.settled.ptr_eq(&before.settled)
            || now.synced != before.synced
    };
    Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_if(snapshot.clone(), WAKE_GAP, is_news)
}

/// Row of notifications: woken by what they report, by their own outbox, and by the state of etcd; the courier wakes it
/// with results.
fn notifications_row(snapshot: &SnapshotReader, fence: &FenceReader, etcd: EtcdStateReader) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.outbox.ptr_eq(&before.outbox)
            || !now.sources.ptr_eq(&before.sources)
            || !now.revisions.ptr_eq(&before.revisions)
            || !now.rollouts.ptr_eq(&before.rollouts)
            || !now.nodes.ptr_eq(&before.nodes)
            || !now.node_conditions.ptr_eq(&before.node_conditions)
            || !now.jobs.ptr_eq(&before.jobs)
            || !now.job_reports.ptr_eq(&before.job_reports)
            || !now.settings.ptr_eq(&before.settings)
            || now.synced != before.synced
    };
    let is_usage = |before: &Snapshot, now: &Snapshot| !now.usage.ptr_eq(&before.usage);
    let row = Row::every(CONTROLLER_INTERVAL).wake_on(fence.clone()).wake_on(etcd);
    row.wake_if(snapshot.clone(), NEWS_GAP, is_news).wake_if(snapshot.clone(), DISKS_GAP, is_usage)
}

/// Row of etcd's upkeep: woken by requests. A failed act must not delay the next status.
fn upkeep_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| !now.defrag_requests.ptr_eq(&before.defrag_requests);
    let row = Row::every(OBSERVE_INTERVAL).backoff_max(OBSERVE_INTERVAL).wake_on(fence.clone());
    row.wake_if(snapshot.clone(), WAKE_GAP, is_news)
}

/// Row of the answers: woken by runs of sources' loops, and by changes of requests and sources.
pub(crate) fn answers_row(snapshot: &SnapshotReader, fence: &FenceReader, runs: &[LastRunReader]) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.requests.ptr_eq(&before.requests)
            || !now.answers.ptr_eq(&before.answers)
            || !now.sources.ptr_eq(&before.sources)
            || now.synced != before.synced
    };
    // Someone waits for the answer: after an outage of etcd it must be written soon.
    let row = Row::every(CONTROLLER_INTERVAL).backoff_max(ANSWERS_RETRY_MAX).wake_on(fence.clone());
    let row = row.wake_if(snapshot.clone(), WAKE_GAP, is_news);
    runs.iter().cloned().fold(row, Row::wake_on)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::{FutureExt as _, stream};
    use schema::control::Runtime;
    use schema::store::SharedStore;
    use schema::store::election;
    use tokio_util::sync::CancellationToken;

    use super::keep::LEADER_TTL;
    use super::*;

    /// Seen red without the comparison in `controller_row`, and with it alone in `autoscaler_row`.
    #[tokio::test(start_paused = true)]
    async fn what_nodes_use_and_program_wakes_only_those_who_read_it() {
        let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
        let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
        let store: SharedStore = Arc::new(schema::store::memory::MemoryStore::new());
        let token = CancellationToken::new();
        let (fence, election) =
            election::stand_for_election(Arc::clone(&store), "r1".to_owned(), LEADER_TTL, token.clone());
        tokio::spawn(election);
        let (woken, nudged) = Nudge::new();
        let answers_woken = woken.clone();
        let (scaler_woken, scaler_nudged) = Nudge::new();
        let (rules_woken, rules_nudged) = Nudge::new();
        let mut runtime = Runtime::new();
        runtime.follow("controller", controller_row(&reader, &fence, WAKE_GAP), move || woken.nudge());
        runtime.follow("answers", answers_row(&reader, &fence, &[]), move || answers_woken.nudge());
        runtime.follow("autoscaler", autoscaler_row(&reader, &fence), move || scaler_woken.nudge());
        runtime.follow("rules", rules_row(&reader, &fence), move || rules_woken.nudge());
        let stop = stream::once(token.clone().cancelled_owned().map(|()| "stop").boxed());
        let running = tokio::spawn(runtime.run_until(stop));
        let write = |snapshot: &mut Snapshot, key: schema::keys::Key, revision: i64| {
            snapshot.put(&key, &schema::records::SettledRecord::default(), revision);
            publisher.publish(snapshot.clone());
        };
        let usage = schema::records::NodeUsage {
            at: jiff::Timestamp::UNIX_EPOCH,
            window_seconds: 15,
            cpu: 0,
            memory: 0,
            disk: None,
            pods: Default::default(),
            left_out: String::new(),
        };
        // The lead and the first snapshot wake each loop once, at most.
        write(&mut snapshot, schema::keys::Key::Settled("n1".to_owned()), 1);
        while tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await.is_ok() {}
        while tokio::time::timeout(Duration::from_secs(2), scaler_nudged.wait()).await.is_ok() {}
        while tokio::time::timeout(Duration::from_secs(1), rules_nudged.wait()).await.is_ok() {}
        for revision in 2..5 {
            snapshot.put(&schema::keys::Key::Usage("n1".to_owned()), &usage, revision);
            publisher.publish(snapshot.clone());
            let woken = tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await;
            assert!(woken.is_err(), "a write of usage woke a controller");
            tokio::time::timeout(Duration::from_secs(2), scaler_nudged.wait()).await.unwrap();
        }
        let rules = schema::keys::Key::Rules("n1".to_owned());
        snapshot.put(&rules, &schema::records::RulesStatus::default(), 5);
        publisher.publish(snapshot.clone());
        tokio::time::timeout(Duration::from_secs(1), rules_nudged.wait()).await.unwrap();
        let woken = tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await;
        assert!(woken.is_err(), "a report of rules woke a controller");
        write(&mut snapshot, schema::keys::Key::Settled("n2".to_owned()), 6);
        tokio::time::timeout(Duration::from_secs(1), nudged.wait()).await.unwrap();
        token.cancel();
        running.await.unwrap().unwrap();
    }
}
