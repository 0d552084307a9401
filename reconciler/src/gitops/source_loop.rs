//! The loop of one source: look at the remote, plan against what is live, write, tell.
//!
//! Reads the remote, the mirror and the world; decides in `plan.rs`; writes through `apply.rs`. What
//! it remembers between runs is a cache: a fresh loop at any moment comes to the same state. A run
//! that finds nothing new costs one ls-remote and writes nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use git2::Oid;
use jiff::Timestamp;
use schema::codec;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::keys::Key;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::{EventType, Revision, SourceStatus};
use schema::store::election::{Fence, FenceReader};
use schema::store::events::{EventDraft, EventRecorder};
use schema::store::reflector::WorldReader;
use schema::store::{Guard, Op, SharedStore};
use schema::world::{Table, World};

use super::apply::{self, Applied, Stopped};
use super::history;
use super::plan::{self, Situation, SyncPlan};
use super::prune::Lineage;
use super::read::{Loaded, read_commit, read_lineage};
use super::status::{self, Problem, Run, short};
use crate::git::{GitError, Remote, SourceConfig};

/// How long a run waits to see its own last writes.
const CATCH_UP_MAX: Duration = Duration::from_secs(2);
/// When to look again after something changed under a plan.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);
/// Old revisions removed along with one new one.
const EXPIRED_PER_RUN_MAX: usize = 50;

/// Keeps etcd's objects of one source as its repository has them.
pub struct SourceLoop {
    config: Arc<SourceConfig>,
    remote: Remote,
    store: SharedStore,
    world: WorldReader,
    fence: FenceReader,
    events: EventRecorder,
    /// The commit read last.
    loaded: Option<Loaded>,
    /// What the last plan found to be as it should.
    settled: Option<Settled>,
    /// Newest revision of the store that this loop wrote.
    written: i64,
}

/// A state of the world in which there is nothing to do.
struct Settled {
    commit: Oid,
    objects: Table<ObjectRef, Object>,
    status: i64,
}

/// What one run saw.
pub struct Observed {
    started: Instant,
    fence: Fence,
    world: Arc<World>,
    /// Newest commit at the remote.
    head: Option<String>,
    problem: Option<Problem>,
    /// None: nothing was ever read.
    loaded: Option<Loaded>,
    /// None: nothing changed since all was as it should be.
    situation: Option<Situation>,
}

/// What one run did.
pub struct Outcome {
    plan: Option<SyncPlan>,
    applied: Applied,
}

impl SourceLoop {
    /// The loop of `config`, mirrored below `state_dir`. Touches nothing yet.
    pub fn new(
        config: SourceConfig,
        state_dir: PathBuf,
        store: SharedStore,
        world: WorldReader,
        fence: FenceReader,
        events: EventRecorder,
    ) -> Self {
        let config = Arc::new(config);
        let remote = Remote::new(Arc::clone(&config), &state_dir);
        let events = events.reporting_as("gitops");
        Self { config, remote, store, world, fence, events, loaded: None, settled: None, written: 0 }
    }

    /// The world, once it has this loop's own writes.
    async fn caught_up(&mut self) -> Result<Arc<World>, String> {
        let deadline = tokio::time::Instant::now() + CATCH_UP_MAX;
        loop {
            let world = self.world.current();
            if !world.synced {
                return Err("etcd is not listed yet".to_owned());
            }
            if world.revision >= self.written {
                return Ok(world);
            }
            if tokio::time::timeout_at(deadline, self.world.changed()).await.is_err() {
                return Err("the last writes are not seen yet".to_owned());
            }
        }
    }

    /// Asks the remote, and reads its commit if it is another one.
    async fn look(&mut self, applied: Option<String>) -> Result<Oid, GitError> {
        let head = self.remote.ls_remote().await?;
        if self.loaded.as_ref().is_some_and(|loaded| loaded.head == head) {
            return Ok(head);
        }
        // What was fetched counts: the branch may have moved on since it was asked.
        let head = self.remote.fetch().await?;
        let loaded = match self.read(head, applied.clone()).await {
            Err(error @ GitError::MirrorBroken { .. }) => {
                tracing::warn!(source = %self.config.name, %error, "making the mirror anew");
                self.loaded = None;
                let head = self.remote.rebuild().await?;
                self.read(head, applied).await?
            }
            other => other?,
        };
        let head = loaded.head;
        self.loaded = Some(loaded);
        Ok(head)
    }

    async fn read(&self, head: Oid, applied: Option<String>) -> Result<Loaded, GitError> {
        let (mirror, before) = (self.remote.mirror().clone(), self.loaded.clone());
        self.blocking(move || read_commit(&mirror, head, before.as_ref(), applied.as_deref())).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, GitError> + Send + 'static,
    ) -> Result<T, GitError> {
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| {
            let why = format!("reading it panicked: {error}");
            Err(GitError::RemoteUnreachable { url: self.config.shown_url(), why })
        })
    }

    fn is_settled(&self, world: &World) -> bool {
        let (Some(settled), Some(loaded)) = (&self.settled, &self.loaded) else { return false };
        let status = world.sources.get(&self.config.name).map_or(0, |status| status.mod_revision);
        settled.commit == loaded.head && settled.status == status && settled.objects.ptr_eq(&world.objects)
    }

    async fn situation(
        &self,
        world: &World,
        incomplete: Option<String>,
    ) -> Result<Option<Situation>, GitError> {
        let Some(loaded) = &self.loaded else { return Ok(None) };
        let source = &self.config.name;
        let commits = plan::commits_in_question(source, &loaded.manifests, &world.objects);
        let lineage = if commits.is_empty() {
            Lineage::default()
        } else {
            let (mirror, head) = (self.remote.mirror().clone(), loaded.head);
            let base = history::base(&world.revisions, source);
            self.blocking(move || read_lineage(&mirror, head, base, commits)).await?
        };
        Ok(Some(Situation {
            source: source.clone(),
            commit: Arc::clone(&loaded.commit),
            manifests: loaded.manifests.clone(),
            live: world.objects.clone(),
            malformed: malformed_objects(world),
            lineage,
            incomplete,
        }))
    }

    /// Writes status and revision if they differ from what is there.
    async fn record(
        &mut self,
        observed: &Observed,
        status: &SourceStatus,
        revision: Option<&Revision>,
    ) -> Result<Recorded, LoopError> {
        let name = &self.config.name;
        let before = observed.world.sources.get(name);
        if revision.is_none() && before.is_some_and(|before| before.value == *status) {
            return Ok(Recorded::Unchanged(before.map_or(0, |before| before.mod_revision)));
        }
        let context = format!("cannot write the status of source {name}");
        let key = Key::Source(name.clone()).to_string();
        let guard = match before {
            Some(before) => Guard::ModRevision(key.clone(), before.mod_revision),
            None if observed.world.malformed.contains_key(&key) => apply::guard_of_present(&self.store, &key)
                .await
                .map_err(|error| LoopError::new(&context, error))?,
            None => Guard::Absent(key.clone()),
        };
        let encoded = codec::encode(status).map_err(|error| LoopError::new(&context, error))?;
        let (mut guards, mut ops) = (vec![guard], vec![Op::put(&key, encoded)]);
        if let Some(revision) = revision {
            let key = Key::Revision(name.clone(), revision.sequence).to_string();
            let encoded = codec::encode(revision).map_err(|error| LoopError::new(&context, error))?;
            guards.push(Guard::Absent(key.clone()));
            ops.push(Op::put(key, encoded));
            let expired = history::expired(&observed.world.revisions, name, EXPIRED_PER_RUN_MAX);
            ops.extend(expired.into_iter().map(|sequence| Op::delete(Key::Revision(name.clone(), sequence))));
        }
        let written = apply::record(&self.store, observed.fence, guards, ops)
            .await
            .map_err(|error| LoopError::new(&context, error))?;
        Ok(written.map_or(Recorded::Conflict, Recorded::Written))
    }

    fn tell(&self, before: Option<&SourceStatus>, after: &SourceStatus, revision: Option<&Revision>) {
        for news in status::news(before, after, revision) {
            self.events.record(EventDraft {
                kind: if news.warning { EventType::Warning } else { EventType::Normal },
                object_kind: "Source".to_owned(),
                namespace: String::new(),
                name: self.config.name.clone(),
                reason: news.reason.to_owned(),
                message: news.message,
            });
        }
    }
}

/// What became of a write of status.
enum Recorded {
    /// It was so already, since this revision.
    Unchanged(i64),
    /// It is so since this revision.
    Written(i64),
    /// Something changed meanwhile, or another one leads.
    Conflict,
}

#[async_trait]
impl Loop for SourceLoop {
    type Observed = Observed;
    type Plan = SyncPlan;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "gitops"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let Some(fence) = self.fence.current() else {
            return Ok(Observation::NotReady("another reconciler leads".to_owned()));
        };
        let world = match self.caught_up().await {
            Ok(world) => world,
            Err(why) => return Ok(Observation::NotReady(why)),
        };
        let started = Instant::now();
        let applied =
            world.sources.get(&self.config.name).and_then(|status| status.value.applied_commit.clone());
        let (head, mut problem) = match self.look(applied).await {
            Ok(head) => (Some(head.to_string()), None),
            Err(error) => (None, Some(Problem { kind: error.kind(), message: error.to_string() })),
        };
        let mut situation = None;
        if problem.is_some() || !self.is_settled(&world) {
            let incomplete = problem.as_ref().map(|problem| problem.message.clone());
            match self.situation(&world, incomplete).await {
                Ok(found) => situation = found,
                Err(error) => problem = Some(Problem { kind: error.kind(), message: error.to_string() }),
            }
        }
        let loaded = self.loaded.clone();
        Ok(Observation::Ready(Observed { started, fence, world, head, problem, loaded, situation }))
    }

    fn plan(observed: &Observed, _now: Timestamp) -> SyncPlan {
        observed.situation.as_ref().map(plan::plan).unwrap_or_default()
    }

    async fn act(&mut self, observed: &Observed, plan: SyncPlan) -> Outcome {
        if observed.situation.is_none() {
            return Outcome { plan: None, applied: Applied::default() };
        }
        if !plan.steps.is_empty() {
            let steps = apply::summary(&plan.steps);
            let commit = observed.loaded.as_ref().map(|loaded| short(&loaded.commit.id));
            tracing::info!(source = %self.config.name, commit, ?steps, "applying");
        }
        let applied = apply::apply(&self.store, observed.fence, &plan.steps).await;
        Outcome { plan: Some(plan), applied }
    }

    async fn report(&mut self, observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        let Outcome { plan, applied } = outcome;
        self.written = self.written.max(applied.revision);
        self.settled = None;
        if matches!(applied.stopped, Some(Stopped::FenceLost)) {
            return Ok(Next::Interval);
        }
        let settled_before = plan.is_none() && observed.problem.is_none();
        let previous = observed.world.sources.get(&self.config.name).map(|status| &status.value);
        let conflict = (!applied.conflicts.is_empty()).then(|| {
            format!("{} object(s) changed in etcd meanwhile; it is tried again", applied.conflicts.len())
        });
        let failure =
            applied.stopped.as_ref().map(|why| format!("cannot apply to etcd: {why}; it is tried again"));
        let (status, revision) = if settled_before && observed.loaded.is_some() {
            // Nothing was planned because nothing changed: the status stands as it is.
            (previous.cloned(), None)
        } else {
            let run = Run {
                config: &self.config,
                previous,
                head: observed.head.clone(),
                commit: observed.loaded.as_ref().map(|loaded| &*loaded.commit),
                plan: plan.as_ref(),
                problem: observed.problem.clone(),
                failure: failure.clone().or_else(|| conflict.clone()),
                next_sequence: self.next_sequence(&observed.world, previous),
                duration_ms: u64::try_from(observed.started.elapsed().as_millis()).unwrap_or(u64::MAX),
                now: Timestamp::now(),
            };
            let (status, revision) = status::fold(&run);
            (Some(status), revision)
        };
        let Some(status) = status else { return Ok(Next::Interval) };
        // A conflict passes by itself within moments and is no news for the status.
        if conflict.is_some() && failure.is_none() {
            return Ok(Next::After(AFTER_CONFLICT));
        }
        let recorded = self.record(&observed, &status, revision.as_ref()).await?;
        match recorded {
            Recorded::Conflict => return Ok(Next::After(AFTER_CONFLICT)),
            Recorded::Written(at) => {
                self.written = self.written.max(at);
                self.tell(previous, &status, revision.as_ref());
            }
            Recorded::Unchanged(_) => {}
        }
        if let Some(why) = applied.stopped {
            return Err(LoopError::new(format!("cannot apply source {}", self.config.name), why));
        }
        let (Recorded::Written(at) | Recorded::Unchanged(at)) = recorded else { return Ok(Next::Interval) };
        let wrote_objects = applied.done > 0;
        if let (Some(loaded), None, false) = (&observed.loaded, &observed.problem, wrote_objects) {
            self.settled =
                Some(Settled { commit: loaded.head, objects: observed.world.objects.clone(), status: at });
        }
        Ok(Next::Interval)
    }
}

impl SourceLoop {
    fn next_sequence(&self, world: &World, previous: Option<&SourceStatus>) -> u64 {
        history::next_sequence(
            &world.revisions,
            &self.config.name,
            previous.map_or(0, |status| status.revision),
        )
    }
}

fn malformed_objects(world: &World) -> BTreeSet<ObjectRef> {
    let object = |key: &String| match key.parse() {
        Ok(Key::Object(object)) => Some(object),
        _ => None,
    };
    world.malformed.keys().filter_map(object).collect()
}
