//! Wiring of trust: its loop, and the admission of others.

use std::sync::Arc;
use std::time::Duration;

use schema::control::{Row, Runtime};
use schema::snapshot::Snapshot;
use schema::store::election::FenceReader;
use schema::store::etcd::{Access, LazyStore};
use schema::store::reflector::SnapshotReader;
use tokio::sync::watch;

use crate::config::ServeConfig;
use crate::controllers::Deps;
use crate::git::identity_file;
use crate::trust::{
    Admission, AdmissionDeps, EtcdUsers, OwnTrust, RemovedError, TRUST_INTERVAL, TRUST_MAX, TrustDeps,
    TrustLoop, TrustSettings, endpoints,
};

/// Trust of this reconciler when it starts.
pub(super) struct InitialTrust {
    pub(super) own: OwnTrust,
    pub(super) settings: TrustSettings,
    /// URL at which others reach the own API.
    pub(super) api: Option<String>,
    /// age recipient of this reconciler.
    pub(super) recipient: Option<String>,
}

/// Least time between two changes of etcd's addresses.
const ADDRESSES_GAP: Duration = Duration::from_secs(1);

/// Shortest time between wake-ups of trust: a push may change many objects.
const TRUST_GAP: Duration = Duration::from_millis(250);

/// Has the store use the addresses that etcd's members publish, besides the given ones.
pub(super) fn follow_members(
    runtime: &mut Runtime,
    store: Arc<LazyStore>,
    snapshot: &SnapshotReader,
    given: &Access,
) {
    let is_news = |before: &Snapshot, now: &Snapshot| !now.trust.ptr_eq(&before.trust);
    let row = Row::when_woken().wake_if(snapshot.clone(), ADDRESSES_GAP, is_news);
    let (snapshot, given) = (snapshot.clone(), given.clone());
    runtime.follow("addresses of etcd", row, move || {
        if let Some(trust) = snapshot.current().trust.get(&()) {
            store.set_endpoints(endpoints(&given, &trust.value.etcd));
        }
    });
}

/// Drives the loop of trust; returns the problems that it finds, and the admission.
pub(super) fn drive(
    runtime: &mut Runtime,
    deps: &Deps,
    config: &ServeConfig,
    initial: InitialTrust,
) -> (watch::Receiver<Arc<Vec<String>>>, Arc<Admission>) {
    let own = initial.own.keeper.current().identity().clone();
    let admission = Admission::new(AdmissionDeps {
        store: Arc::clone(&deps.store),
        snapshot: deps.snapshot.clone(),
        events: deps.events.clone(),
        own: initial.own.clone(),
        accounts: Box::new(EtcdUsers::new(config.etcd.clone(), own)),
        owns_etcd: config.owns_etcd,
        etcd: config.etcd.endpoints.clone(),
        api: initial.api.iter().cloned().collect(),
        lifetime: config.certificate_lifetime,
    });
    let the_loop = TrustLoop::new(TrustDeps {
        store: Arc::clone(&deps.store),
        snapshot: deps.snapshot.clone(),
        fence: deps.fence.clone(),
        events: deps.events.clone(),
        last_known: deps.last_known.clone(),
        own: initial.own,
        settings: initial.settings,
        state_dir: config.state_dir.clone(),
        access: config.etcd.clone(),
        api: initial.api,
        recipient: initial.recipient,
        identity_file: identity_file(&config.state_dir),
        owns_etcd: config.owns_etcd,
    });
    let (problems, removed) = (the_loop.problems(), the_loop.removed());
    let shutdown = runtime.token();
    // Ends the process: who was removed neither leads nor admits.
    runtime.task("membership", async move {
        match shutdown.run_until_cancelled(removed.cancelled()).await {
            Some(()) => Err(RemovedError),
            None => Ok(()),
        }
    });
    runtime.drive(trust_row(&deps.snapshot, &deps.fence), the_loop);
    (problems, Arc::new(admission))
}

/// Row of trust: woken by who belongs to the cluster, by what nodes trust, and by Git, which declares nodes gone.
fn trust_row(snapshot: &SnapshotReader, fence: &FenceReader) -> Row {
    let is_news = |before: &Snapshot, now: &Snapshot| {
        !now.identities.ptr_eq(&before.identities)
            || !now.revoked.ptr_eq(&before.revoked)
            || !now.trust.ptr_eq(&before.trust)
            || !now.authorities.ptr_eq(&before.authorities)
            || !now.nodes.ptr_eq(&before.nodes)
            || !now.objects.ptr_eq(&before.objects)
            || now.synced != before.synced
    };
    let row = Row::every(TRUST_INTERVAL).may_take(TRUST_MAX).wake_on(fence.clone());
    row.wake_if(snapshot.clone(), TRUST_GAP, is_news)
}
