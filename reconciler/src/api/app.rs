//! What every handler reads.

use std::sync::{Arc, LazyLock};

use schema::control::LoopRuns;
use schema::store::SharedStore;
use schema::store::reflector::SnapshotReader;
use tokio::sync::Semaphore;

use crate::blobs::Blobs;
use crate::runs::Waiting;
use crate::webhooks::{Counts, Intake};

pub struct ApiDeps {
    pub snapshot: SnapshotReader,
    pub store: SharedStore,
    /// The door of `POST /v1/sync`.
    pub intake: Arc<Intake>,
    pub blobs: Blobs,
    /// What webhooks came to; none where they stay out.
    pub hooks: Option<Arc<Counts>>,
    /// Runs that are asked for and have not begun.
    pub waiting_runs: Waiting,
    /// The last run of each loop of this process.
    pub loops: LoopRuns,
    pub identity: String,
    pub version: String,
}

pub(super) struct Shared {
    pub(super) deps: ApiDeps,
    /// Asks nodes for logs; made at the first request, as making it reads all CAs of the machine.
    pub(super) nodes: LazyLock<reqwest::Client>,
    pub(super) log_streams: Arc<Semaphore>,
    pub(super) blob_streams: Arc<Semaphore>,
    /// Simulations of changes; each takes a core as long as it lasts.
    pub(super) simulations: Arc<Semaphore>,
    /// Runs that are gone through again to be shown; each takes a core and tens of megabytes as long as it lasts.
    pub(super) replays: Arc<Semaphore>,
    /// Requests for runs, whose bodies are read.
    pub(super) starts: Semaphore,
}

pub(super) type App = axum::extract::State<Arc<Shared>>;
