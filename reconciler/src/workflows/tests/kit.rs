//! A leader on an in-memory store.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schema::codec::{decode, encode};
use schema::control::{Loop as _, Nudge, Observation};
use schema::keys::{Key, ROOT, prefix};
use schema::kinds::Kind;
use schema::manifest::load_file;
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::WorkflowRecord;
use schema::store::election::{Fence, FenceReader};
use schema::store::memory::MemoryStore;
use schema::store::reflector::SnapshotReader;
use schema::store::{Op, SharedStore, reflector};
use schema::testing::{object_of, take_lead};
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::super::records::{Origin, RunHead, RunId};
use super::super::{RunRequestOutcome, WorkflowsDeps, WorkflowsLoop, request_run};

pub(super) struct Kit {
    pub(super) memory: Arc<MemoryStore>,
    pub(super) store: SharedStore,
    pub(super) snapshot: SnapshotReader,
    the_loop: WorkflowsLoop,
    last_look: Result<(), String>,
    fence: Fence,
    stop: CancellationToken,
}

impl Drop for Kit {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Kit {
    pub(super) async fn new() -> Self {
        let memory = Arc::new(MemoryStore::new());
        let store: SharedStore = memory.clone();
        let stop = CancellationToken::new();
        let fence = take_lead(store.as_ref()).await;
        let (snapshot, reflecting) =
            reflector::reflect(Arc::clone(&store), vec![ROOT.to_owned()], stop.clone());
        tokio::spawn(reflecting);
        let the_loop = a_loop(&store, &snapshot, fence);
        Self { memory, store, snapshot, the_loop, last_look: Ok(()), fence, stop }
    }

    /// Ends the process and makes another one lead: in-memory state is gone.
    pub(super) async fn crash(&mut self) {
        self.fence = take_lead(self.store.as_ref()).await;
        self.the_loop = a_loop(&self.store, &self.snapshot, self.fence);
    }

    /// Puts a workflow as gitops writes it.
    pub(super) async fn push(&self, name: &str, generation: u64, spec: &str) {
        self.push_kind(Kind::Workflow, name, generation, spec).await;
    }

    /// Like `push`, for any kind.
    pub(super) async fn push_kind(&self, kind: Kind, name: &str, generation: u64, spec: &str) {
        let text = format!(
            "apiVersion: minik8s.io/v1\nkind: {}\nmetadata: {{name: {name}}}\nspec: {spec}\n",
            kind.as_str()
        );
        let loaded = load_file("w.yaml", text.as_bytes());
        assert!(!loaded.has_errors(), "{:?}", loaded.violations);
        let resource = loaded.documents[0].object.resource.clone();
        let object = Object { generation, ..object_of(name, resource) };
        self.put(&object_key(kind, name), encode(&object).unwrap()).await;
    }

    pub(super) async fn put(&self, key: &Key, value: Vec<u8>) {
        let _ = self.store.txn(Vec::new(), vec![Op::put(key, value)]).await.unwrap();
    }

    /// Marks etcd as holding everything in Git.
    pub(super) async fn settle(&self) {
        let settled = schema::records::SettledRecord::default();
        self.put(&Key::Settled("n1".into()), encode(&settled).unwrap()).await;
    }

    pub(super) async fn remove(&self, name: &str) {
        self.remove_kind(Kind::Workflow, name).await;
    }

    pub(super) async fn remove_kind(&self, kind: Kind, name: &str) {
        let _ = self.store.txn(Vec::new(), vec![Op::delete(object_key(kind, name))]).await.unwrap();
    }

    pub(super) async fn ask(&self, workflow: &str, run: &str, input: Json) -> RunRequestOutcome {
        let origin = Origin::Request { reconciler: "r0".into() };
        self.ask_as(&id(workflow, run), input, origin).await
    }

    pub(super) async fn ask_as(&self, run: &RunId, input: Json, origin: Origin) -> RunRequestOutcome {
        request_run(&self.store, run, input, origin, Timestamp::now()).await.unwrap()
    }

    /// Runs once on everything in the store.
    pub(super) async fn look(&mut self) {
        self.look_at(Timestamp::now()).await;
        assert_eq!(self.last_look, Ok(()));
    }

    /// Like `look`, at this time.
    pub(super) async fn look_at(&mut self, now: Timestamp) {
        self.caught_up().await;
        let seen = match self.the_loop.observe().await.unwrap() {
            Observation::Ready(seen) => seen,
            Observation::NotReady(why) => panic!("{why}"),
        };
        let plan = WorkflowsLoop::plan(&seen, now);
        let done = self.the_loop.act(&seen, plan).await;
        self.last_look =
            self.the_loop.report(seen, done).await.map(|_| ()).map_err(|error| error.to_string());
    }

    /// Waits until the snapshot has everything in the store.
    pub(super) async fn caught_up(&self) {
        let (newest, mut snapshot) = (self.memory.revision(), self.snapshot.clone());
        // The snapshot lacks the revisions of runs: writing a key that it watches makes it as new.
        let _ = self.store.txn(Vec::new(), vec![Op::put(Key::Rules("n1".into()), "{\"revision\":1}")]).await;
        while snapshot.current().revision <= newest {
            snapshot.changed().await;
        }
    }

    /// Runs once; may fail.
    pub(super) async fn try_to_look(&mut self) {
        self.look_at(Timestamp::now()).await;
        assert!(self.last_look.is_err(), "nothing failed");
    }

    /// Runs until `is` returns a value, at most for as long as a test may take.
    pub(super) async fn until<T>(&mut self, what: &str, mut is: impl AsyncFnMut(&Self) -> Option<T>) -> T {
        for _ in 0..2_000 {
            self.look().await;
            if let Some(found) = is(self).await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{what}: not in time")
    }

    pub(super) async fn head(&self, workflow: &str, run: &str) -> Option<RunHead> {
        let found = self.store.get(&id(workflow, run).head().to_string()).await.unwrap();
        found.map(|found| decode(&found.value).unwrap())
    }

    /// Head of a run, once the run has ended.
    pub(super) async fn ended(&mut self, workflow: &str, run: &str) -> RunHead {
        self.until("the run ends", async |kit: &Self| {
            kit.head(workflow, run).await.filter(|head| !head.is_running())
        })
        .await
    }

    pub(super) async fn record(&self, workflow: &str) -> Option<WorkflowRecord> {
        let key = Key::Workflow(NamespacedName::new("default", workflow)).to_string();
        self.store.get(&key).await.unwrap().map(|found| decode(&found.value).unwrap())
    }

    pub(super) async fn count(&self, prefix: &str) -> usize {
        self.store.list(prefix).await.unwrap().items.len()
    }

    pub(super) async fn journal_keys(&self, workflow: &str, run: &str) -> usize {
        self.count(&format!("{}default/{workflow}/{run}/", prefix::RUN_JOURNALS)).await
    }
}

fn a_loop(store: &SharedStore, snapshot: &SnapshotReader, fence: Fence) -> WorkflowsLoop {
    WorkflowsLoop::new(WorkflowsDeps {
        store: Arc::clone(store),
        snapshot: snapshot.clone(),
        fence: FenceReader::fixed(Some(fence)),
        last_known: watch::Sender::new(Arc::default()).subscribe(),
        nudge: Nudge::new().0,
        etcd: watch::Sender::new(Arc::default()).subscribe(),
        local_nodes: Arc::new(["n1".to_owned()].into()),
        trust: None,
    })
}

fn object_key(kind: Kind, name: &str) -> Key {
    Key::Object(ObjectRef { kind, namespace: "default".into(), name: name.into() })
}

pub(super) fn id(workflow: &str, run: &str) -> RunId {
    RunId::new(NamespacedName::new("default", workflow), run)
}

/// Workflow that counts to `{"until": n}` in three states per round.
pub(super) const COUNTS: &str = "
  startAt: count
  states:
    count: {type: Pass, parameters: {n.$: 'States.MathAdd($.n, 1)', until.$: $.until}, next: enough}
    enough:
      type: Choice
      choices: [{variable: $.n, numericLessThanPath: $.until, next: count}]
      default: done
    done: {type: Succeed, outputPath: $.n}";

pub(super) fn count_to(until: u32) -> Json {
    json!({"n": 0, "until": until})
}
