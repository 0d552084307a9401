//! Wiring of trust: its loop, and the admission of others.

use std::sync::Arc;
use std::time::Duration;

use schema::control::{Row, Runtime};
use schema::snapshot::Snapshot;
use schema::store::etcd::{Access, LazyStore};
use schema::store::reflector::SnapshotReader;
use tokio::sync::watch;

use super::trust_row;
use crate::config::ServeConfig;
use crate::controllers::Deps;
use crate::git::identity_file;
use crate::trust::{
    Admission, AdmissionDeps, EtcdUsers, OwnTrust, TrustDeps, TrustLoop, TrustSettings, endpoints,
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
    let problems = the_loop.problems();
    runtime.drive(trust_row(&deps.snapshot, &deps.fence), the_loop);
    (problems, Arc::new(admission))
}
