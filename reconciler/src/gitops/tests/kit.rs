//! A repository, a store and the loop between them, run step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use git2::{Oid, Repository, Signature, Time};
use schema::codec;
use schema::control::{Loop, Next, Observation, Plan as _};
use schema::keys::Key;
use schema::object::Object;
use schema::records::{Revision, SourceStatus};
use schema::store::election::{Fence, FenceReader};
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::reflector::{WorldPublisher, WorldReader};
use schema::store::{Op, Store, TxnOutcome};
use schema::world::{Change, World};
use tempfile::TempDir;

use super::crash::CrashingStore;
use crate::git::SourceConfig;
use crate::gitops::SourceLoop;

/// Path and content of all files.
pub(super) type Files = BTreeMap<String, String>;

/// A pod's manifest.
pub(super) fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: main\n    image: {image}\n"
    )
}

/// One pod per file, `a.yaml` and so on.
pub(super) fn pods(names: impl IntoIterator<Item = impl ToString>) -> Files {
    let file = |name: String| (format!("{name}.yaml"), pod(&name, "one"));
    names.into_iter().map(|name| file(name.to_string())).collect()
}

/// `p0`, `p1`, ….
pub(super) fn many(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|n| format!("p{n}"))
}

/// A bare repository that tests commit to.
pub(super) struct Repo {
    dir: TempDir,
    pub(super) files: Files,
    commits: i64,
}

impl Repo {
    pub(super) fn new(files: Files) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Repository::init_bare(dir.path().join("repo.git")).unwrap();
        let mut repo = Self { dir, files, commits: 0 };
        if !repo.files.is_empty() {
            repo.commit("First");
        }
        repo
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("repo.git")
    }

    pub(super) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(super) fn mirror(&self) -> PathBuf {
        self.state().join("reconciler/mirrors/main")
    }

    pub(super) fn git(&self) -> Repository {
        Repository::open_bare(self.path()).unwrap()
    }

    pub(super) fn set(&mut self, path: &str, text: impl Into<String>) -> &mut Self {
        self.files.insert(path.to_owned(), text.into());
        self
    }

    pub(super) fn remove(&mut self, path: &str) -> &mut Self {
        self.files.remove(path).unwrap();
        self
    }

    /// Commits `files` on `main`.
    pub(super) fn commit(&mut self, message: &str) -> String {
        let git = self.git();
        let parent = git.find_reference("refs/heads/main").ok().and_then(|head| head.target());
        self.commit_on(parent, message)
    }

    /// Commits `files` with no parent, and moves `main` there.
    pub(super) fn commit_orphan(&mut self, message: &str) -> String {
        self.commit_on(None, message)
    }

    pub(super) fn commit_on(&mut self, parent: Option<Oid>, message: &str) -> String {
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

    pub(super) fn config(&self) -> SourceConfig {
        SourceConfig::branch("main", self.path().to_str().unwrap(), "main")
    }
}

/// Writes files as nested trees.
pub(super) fn write_tree(git: &Repository, files: &Files) -> Oid {
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

/// A store, what a reflector would show of it, and the loop.
pub(super) struct Cluster {
    pub(super) store: MemoryStore,
    pub(super) fence: Fence,
    crashing: CrashingStore,
    world: World,
    known: BTreeMap<String, i64>,
    publisher: WorldPublisher,
    reader: WorldReader,
    pub(super) sync: SourceLoop,
    config: SourceConfig,
    state: PathBuf,
}

/// What one run came to.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) steps: usize,
    pub(super) error: Option<String>,
    pub(super) next: Option<Next>,
}

impl Cluster {
    pub(super) async fn new(repo: &Repo) -> Self {
        Self::with(repo.config(), &repo.state(), MemoryStore::new()).await
    }

    pub(super) async fn with(config: SourceConfig, state: &Path, store: MemoryStore) -> Self {
        let leader = Key::Leader.to_string();
        let fence = match store.get(&leader).await.unwrap() {
            Some(found) => found.create_revision,
            None => match store.txn(vec![], vec![Op::put(&leader, "{}")]).await.unwrap() {
                TxnOutcome::Committed(revision) => revision,
                TxnOutcome::Conflict => unreachable!("there are no guards"),
            },
        };
        let fence = Fence { create_revision: fence };
        let world = World { synced: true, ..World::default() };
        let (publisher, reader) = WorldReader::channel(world.clone());
        let crashing = CrashingStore::new(store.clone());
        let sync = new_loop(&config, state, &crashing, &reader, fence);
        let known = BTreeMap::new();
        Self {
            store,
            fence,
            crashing,
            world,
            known,
            publisher,
            reader,
            sync,
            config,
            state: state.to_owned(),
        }
    }

    /// The same store with a loop that remembers nothing: the process was started anew.
    pub(super) fn restart(&mut self) {
        self.sync = new_loop(&self.config, &self.state, &self.crashing, &self.reader, self.fence);
    }

    /// The loop's process dies at the write after `writes` more; `lost`: that one is still done.
    pub(super) fn crash_after(&self, writes: u32, lost: bool) {
        self.crashing.set(Some((writes + 1, lost)));
    }

    /// The loop can write again.
    pub(super) fn heal(&self) {
        self.crashing.set(None);
    }

    /// What a reflector does.
    pub(super) async fn reflect(&mut self) -> &World {
        let listing = self.store.list("/minik8s/").await.unwrap();
        let mut gone: BTreeSet<String> = self.known.keys().cloned().collect();
        for item in listing.items {
            gone.remove(&item.key);
            if self.known.insert(item.key.clone(), item.mod_revision) == Some(item.mod_revision) {
                continue;
            }
            let (key, value) = (item.key, item.value);
            let (create_revision, mod_revision) = (item.create_revision, item.mod_revision);
            self.world.apply(&Change::Put { key, value, create_revision, mod_revision });
        }
        for key in gone {
            self.known.remove(&key);
            self.world.apply(&Change::Delete { key });
        }
        self.world.revision = listing.revision;
        self.publisher.publish(self.world.clone());
        &self.world
    }

    /// One run of the loop.
    pub(super) async fn run(&mut self) -> Ran {
        self.reflect().await;
        self.step().await
    }

    /// One run of the loop on the world as it was last reflected.
    pub(super) async fn step(&mut self) -> Ran {
        let observed = match self.sync.observe().await {
            Ok(Observation::Ready(observed)) => observed,
            Ok(Observation::NotReady(why)) => return Ran { steps: 0, error: Some(why), next: None },
            Err(error) => return Ran { steps: 0, error: Some(error.to_string()), next: None },
        };
        let plan = SourceLoop::plan(&observed, jiff::Timestamp::now());
        let steps = plan.steps.len();
        assert_eq!(plan.is_empty(), steps == 0);
        let outcome = self.sync.act(&observed, plan).await;
        match self.sync.report(observed, outcome).await {
            Ok(next) => Ran { steps, error: None, next: Some(next) },
            Err(error) => Ran { steps, error: Some(error.to_string()), next: None },
        }
    }

    /// Runs until nothing is left to do.
    pub(super) async fn settle(&mut self) {
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

    pub(super) async fn status(&self) -> SourceStatus {
        let found = self.store.get("/minik8s/sources/main").await.unwrap().expect("a status");
        codec::decode(&found.value).unwrap()
    }

    pub(super) async fn objects(&self) -> BTreeMap<String, Object> {
        let items = self.store.list("/minik8s/objects/").await.unwrap().items;
        let object = |value: &[u8]| codec::decode::<Object>(value).unwrap();
        items
            .iter()
            .map(|item| (item.key.rsplit('/').next().unwrap().to_owned(), object(&item.value)))
            .collect()
    }

    pub(super) async fn names(&self) -> Vec<String> {
        self.objects().await.into_keys().collect()
    }

    pub(super) async fn revisions(&self) -> Vec<Revision> {
        let items = self.store.list("/minik8s/revisions/main/").await.unwrap().items;
        items.iter().map(|item| codec::decode(&item.value).unwrap()).collect()
    }
}

fn new_loop(
    config: &SourceConfig,
    state: &Path,
    store: &CrashingStore,
    world: &WorldReader,
    fence: Fence,
) -> SourceLoop {
    let fence = FenceReader::fixed(Some(fence));
    let events = EventRecorder::disabled();
    SourceLoop::new(config.clone(), state.to_owned(), Arc::new(store.clone()), world.clone(), fence, events)
}
