//! A real etcd, its content, and the source loop on it.

use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use jiff::Timestamp;
use schema::codec;
use schema::control::{Loop as _, Observation};
use schema::keys::{Key, ROOT, prefix};
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::SourceStatus;
use schema::store::election::{Fence, FenceReader};
use schema::store::events::EventRecorder;
use schema::store::reflector::{self, SnapshotReader};
use schema::store::{Op, SharedStore, TxnOutcome};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::support::PrivateEtcd;
use crate::git::SourceConfig;
use crate::gitops::SourceLoop;

/// Longest wait for the reflector to catch up with etcd.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum number of runs of the loop for one commit.
const RUNS_MAX: usize = 40;

/// etcd, the reflector, and the loop.
pub(super) struct Site {
    store: SharedStore,
    snapshot: SnapshotReader,
    fence: Fence,
    config: SourceConfig,
    state: PathBuf,
    sync: SourceLoop,
    _reflector: DropGuard,
    _etcd: PrivateEtcd,
}

impl Site {
    pub(super) async fn new(config: SourceConfig, state: PathBuf) -> Self {
        let etcd = PrivateEtcd::start();
        let store: SharedStore = Arc::new(etcd.connect().await);
        let written = store.txn(vec![], vec![Op::put(Key::Leader, "{}")]).await.unwrap();
        let TxnOutcome::Committed(create_revision) = written else { unreachable!("there are no guards") };
        let fence = Fence { create_revision };
        let token = CancellationToken::new();
        let (mut snapshot, reflecting) =
            reflector::reflect(Arc::clone(&store), vec![ROOT.to_owned()], token.clone());
        tokio::spawn(reflecting);
        snapshot.synced().await;
        let sync = new_loop(&config, &state, &store, &snapshot, fence);
        Self { store, snapshot, fence, config, state, sync, _reflector: token.drop_guard(), _etcd: etcd }
    }

    /// Restarts the process, which remembers nothing.
    pub(super) fn restart(&mut self) {
        self.sync = new_loop(&self.config, &self.state, &self.store, &self.snapshot, self.fence);
    }

    /// Restarts the process with an empty state directory.
    pub(super) fn restart_elsewhere(&mut self) {
        let _ = std::fs::remove_dir_all(&self.state);
        self.restart();
    }

    /// Starts a run, kills its process at its `waits`-th wait, wherever that is, and restarts it.
    pub(super) async fn killed(&mut self, waits: u32) {
        self.catch_up().await;
        {
            let mut left = waits;
            let mut run = pin!(run(&mut self.sync));
            poll_fn(|context| {
                if left == 0 {
                    return Poll::Ready(());
                }
                left -= 1;
                run.as_mut().poll(context).map(drop)
            })
            .await;
        }
        self.restart();
    }

    /// Runs the loop until nothing is left to do.
    pub(super) async fn settle(&mut self, hint: &str) {
        let mut said = Vec::new();
        for _ in 0..RUNS_MAX {
            self.catch_up().await;
            match run(&mut self.sync).await {
                Ok(false) => return,
                Ok(true) => {}
                Err(why) => said.push(why),
            }
        }
        panic!("{hint}: the loop does not come to rest: {said:?}\n{:#?}", self.status().await);
    }

    /// Waits until the reflector shows the present content of etcd.
    async fn catch_up(&mut self) {
        let newest = self.store.list(&Key::Leader.to_string()).await.unwrap().revision;
        let seen = async {
            while self.snapshot.current().revision < newest {
                self.snapshot.changed().await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.expect("the reflector follows etcd");
    }

    pub(super) async fn status(&self) -> SourceStatus {
        let found = self.store.get(&Key::Source("main".to_owned()).to_string()).await.unwrap();
        codec::decode(&found.expect("a status").value).unwrap()
    }

    /// Objects read directly from etcd.
    pub(super) async fn objects(&self) -> BTreeMap<ObjectRef, Object> {
        let items = self.store.list(prefix::OBJECTS).await.unwrap().items.into_iter();
        items
            .map(|item| {
                let object: Object = codec::decode(&item.value).unwrap();
                assert_eq!(item.key, Key::Object(object.reference()).to_string());
                (object.reference(), object)
            })
            .collect()
    }
}

fn new_loop(
    config: &SourceConfig,
    state: &std::path::Path,
    store: &SharedStore,
    snapshot: &SnapshotReader,
    fence: Fence,
) -> SourceLoop {
    let fence = FenceReader::fixed(Some(fence));
    let events = EventRecorder::disabled();
    SourceLoop::new(config.clone(), state.to_owned(), Arc::clone(store), snapshot.clone(), fence, events)
}

/// Runs the loop once; returns true if there was something to decide.
async fn run(sync: &mut SourceLoop) -> Result<bool, String> {
    let observed = match sync.observe().await {
        Ok(Observation::Ready(observed)) => observed,
        Ok(Observation::NotReady(why)) => return Err(why),
        Err(error) => return Err(error.to_string()),
    };
    let decides = observed.is_planned();
    let plan = SourceLoop::plan(&observed, Timestamp::now());
    let outcome = sync.act(&observed, plan).await;
    sync.report(observed, outcome).await.map(|_| decides).map_err(|error| error.to_string())
}
