//! State shared by every handler.

use std::sync::{Arc, LazyLock};

use schema::control::LoopRuns;
use schema::names::HostNames;
use schema::store::SharedStore;
use schema::store::reflector::SnapshotReader;
use tokio::sync::Semaphore;

use crate::blobs::Blobs;
use crate::webhooks::{Counts, Intake};
use crate::workflows::RequestQueue;

pub struct ApiDeps {
    pub snapshot: SnapshotReader,
    pub store: SharedStore,
    /// Handles `POST /v1/sync`.
    pub intake: Arc<Intake>,
    pub blobs: Blobs,
    /// Webhook counters; `None` if webhooks are off.
    pub hooks: Option<Arc<Counts>>,
    /// Runs that were requested and have not started.
    pub waiting_runs: RequestQueue,
    /// The last run of each loop of this process.
    pub loops: LoopRuns,
    pub identity: String,
    pub version: String,
    /// Names by which the API may be addressed.
    pub hosts: HostNames,
}

pub(super) struct ApiState {
    pub(super) deps: ApiDeps,
    /// Client for the APIs of nodes; built at the first request, because building it loads all CAs of the machine.
    pub(super) nodes: LazyLock<reqwest::Client>,
    pub(super) log_streams: Arc<Semaphore>,
    pub(super) blob_streams: Arc<Semaphore>,
    /// Limits simulations of changes; each occupies a core while it lasts.
    pub(super) simulations: Arc<Semaphore>,
    /// Limits replays of runs for display; each occupies a core and tens of megabytes while it lasts.
    pub(super) replays: Arc<Semaphore>,
    /// Limits requests for runs, because each reads a body.
    pub(super) starts: Semaphore,
}

pub(super) type App = axum::extract::State<Arc<ApiState>>;
