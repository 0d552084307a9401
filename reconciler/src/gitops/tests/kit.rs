//! A repository, a store and the source loop between them, run step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use git2::{Oid, Repository, Signature, Time};
use jiff::Timestamp;
use schema::codec;
use schema::control::{Loop, Next, Observation, Plan as _};
use schema::keys::Key;
use schema::kinds::Resource;
use schema::kinds::job::{JobPhase, JobStatus};
use schema::kinds::pod::{PodPhase, PodStatus};
use schema::meta::NamespacedName;
use schema::object::Object;
use schema::records::{JobDependencyState, JobOrder, JobReport, Revision, SourceStatus};
use schema::snapshot::{Change, Snapshot};
use schema::store::election::{Fence, FenceReader};
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::reflector::{SnapshotPublisher, SnapshotReader};
use schema::store::{Op, Store, TxnOutcome};
use schema::testing::{binding, condition, heartbeat, instance_of, pod_ref, take_lead};
use tempfile::TempDir;
use tokio::sync::watch;

use super::crash::CrashingStore;
use crate::git::SourceConfig;
use crate::gitops::SourceLoop;
use crate::gitops::offline::Request;
use crate::gitops::verdict::plan::Verdicts;
use crate::last_known::LastKnown;

/// Content of every file, by path.
pub(in crate::gitops) type Files = BTreeMap<String, String>;

/// A pod's manifest.
pub(in crate::gitops) fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: main\n    image: {image}\n"
    )
}

/// A file for each pod, `a.yaml` and so on.
pub(in crate::gitops) fn pods(names: impl IntoIterator<Item = impl ToString>) -> Files {
    let file = |name: String| (format!("{name}.yaml"), pod(&name, "one"));
    names.into_iter().map(|name| file(name.to_string())).collect()
}

/// The job `sum`, for the login that the Cluster object names.
pub(in crate::gitops) const JOB: &str =
    "apiVersion: minik8s.io/v1\nkind: Job\nmetadata: {name: sum}\nspec: {runCommands: [\"true\"]}\n";

/// `p0`, `p1`, ….
pub(in crate::gitops) fn many(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|n| format!("p{n}"))
}

/// The review request of a CI job for merging `head` into `base`.
pub(in crate::gitops) fn merge_of<'a>(repo: &'a Path, base: &'a str, head: &'a str) -> Request<'a> {
    Request {
        repo,
        base: Some(base),
        head,
        folder: "",
        source: "main",
        strict: false,
        in_place: false,
        live: None,
        effects: crate::cli::kinds::effects,
    }
}

/// A bare repository for tests to commit to.
pub(in crate::gitops) struct Repo {
    dir: TempDir,
    pub(in crate::gitops) files: Files,
    commits: i64,
}

impl Repo {
    pub(in crate::gitops) fn new(files: Files) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Repository::init_bare(dir.path().join("repo.git")).unwrap();
        let mut repo = Self { dir, files, commits: 0 };
        if !repo.files.is_empty() {
            repo.commit("First");
        }
        repo
    }

    pub(in crate::gitops) fn path(&self) -> PathBuf {
        self.dir.path().join("repo.git")
    }

    pub(in crate::gitops) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(in crate::gitops) fn mirror(&self) -> PathBuf {
        self.state().join("reconciler/mirrors/main")
    }

    pub(in crate::gitops) fn git(&self) -> Repository {
        Repository::open_bare(self.path()).unwrap()
    }

    pub(in crate::gitops) fn set(&mut self, path: &str, text: impl Into<String>) -> &mut Self {
        self.files.insert(path.to_owned(), text.into());
        self
    }

    pub(in crate::gitops) fn remove(&mut self, path: &str) -> &mut Self {
        self.files.remove(path).unwrap();
        self
    }

    /// Commits `files` on `main`.
    pub(in crate::gitops) fn commit(&mut self, message: &str) -> String {
        let git = self.git();
        let parent = git.find_reference("refs/heads/main").ok().and_then(|head| head.target());
        self.commit_on(parent, message)
    }

    /// Commits `files` without a parent and moves `main` there.
    pub(in crate::gitops) fn commit_orphan(&mut self, message: &str) -> String {
        self.commit_on(None, message)
    }

    pub(in crate::gitops) fn commit_on(&mut self, parent: Option<Oid>, message: &str) -> String {
        self.commits += 1;
        let git = self.git();
        let tree = write_tree(&git, &self.files);
        let time = Time::new(1_700_000_000 + self.commits, 0);
        let author = Signature::new("Ada", "ada@example.org", &time).unwrap();
        let parents: Vec<_> = parent.into_iter().map(|id| git.find_commit(id).unwrap()).collect();
        let tree = git.find_tree(tree).unwrap();
        let id =
            git.commit(None, &author, &author, message, &tree, &parents.iter().collect::<Vec<_>>()).unwrap();
        git.reference("refs/heads/main", id, true, "test").unwrap();
        id.to_string()
    }

    pub(in crate::gitops) fn config(&self) -> SourceConfig {
        SourceConfig::branch("main", self.path().to_str().unwrap(), "main")
    }
}

/// Writes files as nested trees.
fn write_tree(git: &Repository, files: &Files) -> Oid {
    let mut builder = git.treebuilder(None).unwrap();
    let mut folders: BTreeMap<&str, Files> = BTreeMap::new();
    for (path, text) in files {
        match path.split_once('/') {
            Some((folder, rest)) => {
                folders.entry(folder).or_default().insert(rest.to_owned(), text.clone());
            }
            None => {
                builder.insert(path, git.blob(text.as_bytes()).unwrap(), 0o100_644).unwrap();
            }
        }
    }
    for (folder, files) in folders {
        builder.insert(folder, write_tree(git, &files), 0o040_000).unwrap();
    }
    builder.write().unwrap()
}

/// A store, its reflected snapshot, and the source loop.
pub(in crate::gitops) struct Cluster {
    pub(in crate::gitops) store: MemoryStore,
    pub(in crate::gitops) fence: Fence,
    crashing: CrashingStore,
    snapshot: Snapshot,
    known: BTreeMap<String, i64>,
    publisher: SnapshotPublisher,
    reader: SnapshotReader,
    pub(in crate::gitops) sync: SourceLoop,
    config: SourceConfig,
    state: PathBuf,
}

/// Outcome of one run.
#[derive(Debug)]
pub(in crate::gitops) struct Ran {
    pub(in crate::gitops) steps: usize,
    pub(in crate::gitops) error: Option<String>,
    pub(in crate::gitops) next: Option<Next>,
    /// Time at which the plan asks to run again.
    pub(in crate::gitops) again_at: Option<Timestamp>,
}

impl Ran {
    fn failed(why: String) -> Self {
        Self { steps: 0, error: Some(why), next: None, again_at: None }
    }
}

impl Cluster {
    pub(in crate::gitops) async fn new(repo: &Repo) -> Self {
        Self::with(repo.config(), &repo.state(), MemoryStore::new()).await
    }

    pub(in crate::gitops) async fn with(config: SourceConfig, state: &Path, store: MemoryStore) -> Self {
        let fence = match store.get(&Key::Leader.to_string()).await.unwrap() {
            Some(found) => Fence { create_revision: found.create_revision },
            None => take_lead(&store).await,
        };
        let snapshot = Snapshot { synced: true, ..Snapshot::default() };
        let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
        let crashing = CrashingStore::new(store.clone());
        let sync = new_loop(&config, state, &crashing, &reader, fence);
        let known = BTreeMap::new();
        Self {
            store,
            fence,
            crashing,
            snapshot,
            known,
            publisher,
            reader,
            sync,
            config,
            state: state.to_owned(),
        }
    }

    /// Restarts the process: the same store, with a loop that remembers nothing.
    pub(in crate::gitops) fn restart(&mut self) {
        self.sync = new_loop(&self.config, &self.state, &self.crashing, &self.reader, self.fence);
    }

    /// Restarts the process with the state that it kept of a lost etcd.
    pub(in crate::gitops) fn knows(&mut self, last: LastKnown) {
        let restarted = new_loop(&self.config, &self.state, &self.crashing, &self.reader, self.fence);
        self.sync = restarted.with_last_known(watch::channel(Arc::new(last)).1);
    }

    /// Takes the lead again after another process led for a while.
    pub(in crate::gitops) async fn lead_again(&mut self) {
        self.fence = take_lead(&self.store).await;
        self.sync.fence = FenceReader::fixed(Some(self.fence));
    }

    /// Kills the loop's process at the write after `writes` more; if `lost`, that write is still carried out.
    pub(in crate::gitops) fn crash_after(&self, writes: u32, lost: bool) {
        self.crashing.set(Some((writes + 1, lost)));
    }

    /// Lets the loop write again.
    pub(in crate::gitops) fn heal(&self) {
        self.crashing.set(None);
    }

    /// Updates the snapshot from the store, as a reflector does.
    pub(in crate::gitops) async fn reflect(&mut self) -> &Snapshot {
        let listing = self.store.list("/minik8s/").await.unwrap();
        let mut gone: BTreeSet<String> = self.known.keys().cloned().collect();
        for item in listing.items {
            gone.remove(&item.key);
            if self.known.insert(item.key.clone(), item.mod_revision) == Some(item.mod_revision) {
                continue;
            }
            let (key, value) = (item.key, item.value);
            let (create_revision, mod_revision) = (item.create_revision, item.mod_revision);
            self.snapshot.apply(&Change::Put { key, value, create_revision, mod_revision });
        }
        for key in gone {
            self.known.remove(&key);
            self.snapshot.apply(&Change::Delete { key });
        }
        self.snapshot.revision = listing.revision;
        self.publisher.publish(self.snapshot.clone());
        &self.snapshot
    }

    /// Runs the loop once on a fresh snapshot.
    pub(in crate::gitops) async fn run(&mut self) -> Ran {
        self.reflect().await;
        self.step().await
    }

    /// Runs the loop once on the last reflected snapshot.
    pub(in crate::gitops) async fn step(&mut self) -> Ran {
        let observed = match self.sync.observe().await {
            Ok(Observation::Ready(observed)) => observed,
            Ok(Observation::NotReady(why)) => return Ran::failed(why),
            Err(error) => return Ran::failed(error.to_string()),
        };
        let plan = SourceLoop::plan(&observed, Timestamp::now() + self.sync.ahead);
        let (steps, again_at) = (plan.steps.len(), plan.replan_at());
        assert_eq!(plan.is_empty(), steps == 0);
        let outcome = self.sync.act(&observed, plan).await;
        match self.sync.report(observed, outcome).await {
            Ok(next) => Ran { steps, error: None, next: Some(next), again_at },
            Err(error) => Ran { steps, ..Ran::failed(error.to_string()) },
        }
    }

    /// True if the next run makes a plan, because something changed.
    pub(in crate::gitops) async fn plans(&mut self) -> bool {
        self.reflect().await;
        match self.sync.observe().await.unwrap() {
            Observation::Ready(observed) => observed.is_planned(),
            Observation::NotReady(why) => panic!("{why}"),
        }
    }

    /// Runs the loop until nothing is left to do.
    pub(in crate::gitops) async fn settle(&mut self) {
        for _ in 0..10 {
            let before = self.store.revision();
            let ran = self.run().await;
            if ran.steps == 0 && ran.error.is_none() && self.store.revision() == before {
                self.reflect().await;
                return;
            }
        }
        panic!("the loop does not come to rest: {:#?}", self.status().await);
    }

    /// Creates the pod of an object and its node's report, in place of the other controllers.
    pub(in crate::gitops) async fn report(&mut self, name: &str, phase: PodPhase, ready: bool) {
        let object = self.objects().await.remove(name).expect("the object is live");
        let (instance, pod) = (instance_of(&object), pod_ref(name));
        let status = PodStatus {
            uid: instance.uid.clone(),
            hash: instance.hash.clone(),
            phase,
            conditions: vec![condition("Ready", ready, Timestamp::UNIX_EPOCH)],
            ..PodStatus::default()
        };
        let writes = vec![
            put(&Key::Heartbeat("n1".into()), &heartbeat()),
            put(&Key::Pod(pod.clone()), &instance),
            put(&Key::Binding("n1".into(), pod.clone()), &binding("n1", &instance)),
            put(&Key::PodStatus("n1".into(), pod), &status),
        ];
        let written = self.store.txn(vec![], writes).await.unwrap();
        assert!(matches!(written, TxnOutcome::Committed(_)));
    }

    /// Gives the job `name` to a node that reports `phase` since `since`.
    pub(in crate::gitops) async fn report_job(&mut self, name: &str, phase: JobPhase, since: Timestamp) {
        self.report_job_with(name, phase, since, "").await;
    }

    /// Like `report_job`, with a reason that hinders the job.
    pub(in crate::gitops) async fn report_job_with(
        &mut self,
        name: &str,
        phase: JobPhase,
        since: Timestamp,
        reason: &str,
    ) {
        let object = self.objects().await.remove(name).expect("the object is live");
        let Resource::Job(spec) = object.resource else { panic!("{name} is not a job") };
        let order = JobOrder {
            uid: "1".to_owned(),
            hash: object.hash,
            spec: (*spec).clone(),
            files: BTreeMap::new(),
            created_at: since,
            dependency: JobDependencyState::None,
            reached: false,
            former: Vec::new(),
            deleting: false,
        };
        let status = JobStatus { phase, reason: reason.to_owned(), ..JobStatus::default() };
        let report = JobReport { uid: order.uid.clone(), status, since, ..JobReport::default() };
        let job = NamespacedName::new("default", name);
        let mut writes = vec![put(&Key::JobReport("n1".into(), job.clone()), &report)];
        if !self.known.contains_key(&Key::Job("n1".into(), job.clone()).to_string()) {
            writes.push(put(&Key::Heartbeat("n1".into()), &heartbeat()));
            writes.push(put(&Key::Job("n1".into(), job), &order));
        }
        let written = self.store.txn(vec![], writes).await.unwrap();
        assert!(matches!(written, TxnOutcome::Committed(_)));
    }

    /// Writes the verdicts on revisions and sources.
    pub(in crate::gitops) async fn write_verdicts(&mut self, verdicts: &Verdicts) {
        let revision = |r: &Revision| put(&Key::Revision(r.source.clone(), r.sequence), r);
        let mut writes: Vec<Op> = verdicts.decided.iter().map(|(r, _)| revision(r)).collect();
        writes.extend(verdicts.orphaned.iter().map(|(s, _)| put(&Key::Source(s.name.clone()), s)));
        let written = self.store.txn(vec![], writes).await.unwrap();
        assert!(matches!(written, TxnOutcome::Committed(_)));
    }

    pub(in crate::gitops) async fn status(&self) -> SourceStatus {
        let found = self.store.get("/minik8s/sources/main").await.unwrap().expect("a status");
        codec::decode(&found.value).unwrap()
    }

    pub(in crate::gitops) async fn objects(&self) -> BTreeMap<String, Object> {
        let items = self.store.list("/minik8s/objects/").await.unwrap().items;
        let object = |value: &[u8]| codec::decode::<Object>(value).unwrap();
        items
            .iter()
            .map(|item| (item.key.rsplit('/').next().unwrap().to_owned(), object(&item.value)))
            .collect()
    }

    pub(in crate::gitops) async fn names(&self) -> Vec<String> {
        self.objects().await.into_keys().collect()
    }

    pub(in crate::gitops) async fn revisions(&self) -> Vec<Revision> {
        let items = self.store.list("/minik8s/revisions/main/").await.unwrap().items;
        items.iter().map(|item| codec::decode(&item.value).unwrap()).collect()
    }
}

fn put(key: &Key, value: &impl serde::Serialize) -> Op {
    Op::put(key, codec::encode(value).unwrap())
}

fn new_loop(
    config: &SourceConfig,
    state: &Path,
    store: &CrashingStore,
    snapshot: &SnapshotReader,
    fence: Fence,
) -> SourceLoop {
    let fence = FenceReader::fixed(Some(fence));
    let events = EventRecorder::disabled();
    SourceLoop::new(
        config.clone(),
        state.to_owned(),
        Arc::new(store.clone()),
        snapshot.clone(),
        fence,
        events,
    )
}
