//! State shared by every handler.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use schema::control::LoopRuns;
use schema::names::HostNames;
use schema::store::SharedStore;
use schema::store::election::FenceReader;
use schema::store::reflector::SnapshotReader;
use schema::trust::TrustReader;
use tokio::sync::{Semaphore, watch};

use super::comparisons::Comparisons;
use crate::blobs::Blobs;
use crate::listener::AddressCounts;
use crate::outgoing::DaemonClient;
use crate::trust::Admission;
use crate::upkeep::{DefragRequests, UpkeepState};
use crate::view::AutoscalerSamples;
use crate::webhooks::{Counts, Intake};
use crate::workflows::RequestQueue;

/// Maximum number of concurrent requests for runs, each with a body of up to 512 KiB; a quarter for one address, all but
/// a quarter for loopback.
pub(super) const STARTS_MAX: usize = 32;

pub struct ApiDeps {
    /// Set if the web page is served, too.
    pub ui: bool,
    /// Credentials of this reconciler, which have the revoked keys; `None` if it serves no certified callers.
    pub trust: Option<TrustReader>,
    pub snapshot: SnapshotReader,
    /// The last hour of each autoscaler, for its chart.
    pub autoscaler_samples: Arc<Mutex<AutoscalerSamples>>,
    pub store: SharedStore,
    /// Handles `POST /v1/sync`.
    pub intake: Arc<Intake>,
    pub blobs: Blobs,
    /// Comparisons of the commits in the mirrors, for the page.
    pub comparisons: Comparisons,
    /// Webhook counters; `None` if webhooks are off.
    pub hooks: Option<Arc<Counts>>,
    /// Runs that were requested and have not started.
    pub waiting_runs: RequestQueue,
    /// Held while this process leads.
    pub fence: FenceReader,
    /// State of etcd and of the disks, as this process saw it last.
    pub etcd: watch::Receiver<Arc<UpkeepState>>,
    /// Sentences about what a person should know of the trust between machines.
    pub trust_problems: watch::Receiver<Arc<Vec<String>>>,
    /// Handles `POST /v1/etcd/defrag`.
    pub defrag_requests: DefragRequests,
    /// Admits machines and people; `None` if nobody is admitted here.
    pub admission: Option<Arc<Admission>>,
    /// The last run of each loop of this process.
    pub loops: LoopRuns,
    pub identity: String,
    pub version: String,
    /// Names by which the API may be addressed.
    pub hosts: HostNames,
    /// Names of the nodes on this machine, whose servers may listen on loopback.
    pub local_nodes: Arc<BTreeSet<String>>,
}

pub(super) struct ApiState {
    pub(super) deps: ApiDeps,
    /// Client for the APIs of nodes.
    pub(super) nodes: DaemonClient,
    pub(super) log_streams: Arc<Semaphore>,
    pub(super) blob_streams: Arc<Semaphore>,
    /// Limits open pages that are kept up to date.
    pub(super) tabs: Arc<Semaphore>,
    /// Limits collections of this reconciler's metrics; each reads every object.
    pub(super) collections: Arc<Semaphore>,
    /// Limits requests for the metrics of nodes; each holds up to 8 MiB.
    pub(super) node_metrics: Semaphore,
    /// Limits simulations of changes; each occupies a core while it lasts.
    pub(super) simulations: Arc<Semaphore>,
    /// Limits replays of runs for display; each occupies a core and tens of megabytes while it lasts.
    pub(super) replays: Arc<Semaphore>,
    /// Limits requests for runs, because each reads a body.
    pub(super) starts: Semaphore,
    /// Requests for runs of each address, so that bodies that do not come hold up nobody else's.
    pub(super) starts_of: Arc<AddressCounts>,
}

pub(super) type App = axum::extract::State<Arc<ApiState>>;
