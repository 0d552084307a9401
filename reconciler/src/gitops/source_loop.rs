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
use schema::store::{Guard, Op, SharedStore, StoreError};
use schema::world::{Table, Versioned, World};

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
    /// Something was fetched since the mirror was last looked after.
    fetched: bool,
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
    /// The status as it was written ahead of the plan, and its revision.
    ahead: Option<(SourceStatus, i64)>,
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
        Self {
            config,
            remote,
            store,
            world,
            fence,
            events,
            loaded: None,
            fetched: false,
            settled: None,
            written: 0,
        }
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
            if std::mem::take(&mut self.fetched) {
                let mirror = self.remote.mirror().clone();
                self.blocking(move || mirror.tidy(head)).await?;
            }
            return Ok(head);
        }
        self.fetched = true;
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
            held_of: world
                .sources
                .get(source)
                .and_then(|status| status.value.held_prune.as_ref())
                .map(|held| held.owned),
            incomplete,
        }))
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
        let (Some(_), Some(loaded)) = (&observed.situation, &observed.loaded) else {
            return Outcome { plan: None, ahead: None, applied: Applied::default() };
        };
        if !plan.steps.is_empty() {
            let steps = apply::summary(&plan.steps);
            tracing::info!(source = %self.config.name, commit = short(&loaded.commit.id), ?steps, "applying");
        }
        let previous = observed.previous(&self.config.name).map(|status| &status.value);
        let ahead = match status::hold_ahead(&self.config, previous, &loaded.commit, &plan) {
            None => None,
            Some(status) => match self.write_ahead(observed, status).await {
                Ok(written) => Some(written),
                Err(stopped) => {
                    let applied = Applied { stopped: Some(stopped), ..Applied::default() };
                    return Outcome { plan: Some(plan), ahead: None, applied };
                }
            },
        };
        let applied = apply::apply(&self.store, observed.fence, &plan.steps).await;
        Outcome { plan: Some(plan), ahead, applied }
    }

    async fn report(&mut self, observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        self.written = self.written.max(outcome.applied.revision);
        self.settled = None;
        match &outcome.applied.stopped {
            // Another one leads, and the next run sees that; it is no error.
            Some(Stopped::FenceLost) => return Ok(Next::Interval),
            // A conflict passes by itself within moments and is no news for the status.
            None if !outcome.applied.conflicts.is_empty() => return Ok(Next::After(AFTER_CONFLICT)),
            _ => {}
        }
        let before = observed.before(&self.config.name, &outcome);
        if outcome.plan.is_none() && observed.problem.is_none() {
            // Nothing was planned because nothing changed: the status stands as it is.
            self.settle(&observed, before.map_or(0, |(_, revision)| revision));
            return Ok(Next::Interval);
        }
        let (status, revision) = self.fold(&observed, &outcome, before.map(|(status, _)| status));
        let unchanged = revision.is_none() && before.is_some_and(|(before, _)| *before == status);
        let at = match before {
            Some((_, at)) if unchanged => at,
            _ => match self.record(&observed, before.map(|(_, at)| at), &status, revision.as_ref()).await? {
                None => return Ok(Next::After(AFTER_CONFLICT)),
                Some(at) => {
                    let told = observed.previous(&self.config.name).map(|status| &status.value);
                    self.tell(told, &status, revision.as_ref());
                    at
                }
            },
        };
        let complete = outcome.applied.is_complete();
        if let Some(why) = outcome.applied.stopped {
            return Err(LoopError::new(format!("cannot apply source {}", self.config.name), why));
        }
        if observed.problem.is_none() && complete && outcome.applied.done == 0 {
            self.settle(&observed, at);
        }
        Ok(Next::Interval)
    }
}

impl Observed {
    fn previous(&self, source: &str) -> Option<&Versioned<SourceStatus>> {
        self.world.sources.get(source).map(|status| &**status)
    }

    /// The status that a new one replaces, with its revision.
    fn before<'a>(&'a self, source: &str, outcome: &'a Outcome) -> Option<(&'a SourceStatus, i64)> {
        let ahead = outcome.ahead.as_ref().map(|(status, at)| (status, *at));
        ahead.or_else(|| self.previous(source).map(|status| (&status.value, status.mod_revision)))
    }
}

impl SourceLoop {
    fn fold(
        &self,
        observed: &Observed,
        outcome: &Outcome,
        previous: Option<&SourceStatus>,
    ) -> (SourceStatus, Option<Revision>) {
        let stopped = outcome.applied.stopped.as_ref();
        let last = previous.map_or(0, |status| status.revision);
        status::fold(&Run {
            config: &self.config,
            previous,
            head: observed.head.clone(),
            commit: observed.loaded.as_ref().map(|loaded| &*loaded.commit),
            plan: outcome.plan.as_ref(),
            problem: observed.problem.clone(),
            failure: stopped.map(|why| format!("cannot apply to etcd: {why}; it is tried again")),
            next_sequence: history::next_sequence(&observed.world.revisions, &self.config.name, last),
            duration_ms: u64::try_from(observed.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            now: Timestamp::now(),
        })
    }

    /// There is nothing to do until the commit, an object or the status is another.
    fn settle(&mut self, observed: &Observed, status: i64) {
        if let Some(loaded) = &observed.loaded {
            self.settled =
                Some(Settled { commit: loaded.head, objects: observed.world.objects.clone(), status });
        }
    }

    async fn write_ahead(
        &mut self,
        observed: &Observed,
        status: SourceStatus,
    ) -> Result<(SourceStatus, i64), Stopped> {
        let before = observed.previous(&self.config.name).map(|status| status.mod_revision);
        let key = Key::Source(self.config.name.clone()).to_string();
        let guard = self.guard_of_status(observed, &key, before).await?;
        let encoded = codec::encode(&status).map_err(|why| Stopped::EncodeStatus { why })?;
        match apply::record(&self.store, observed.fence, vec![guard], vec![Op::put(key, encoded)]).await? {
            Some(at) => {
                self.written = self.written.max(at);
                Ok((status, at))
            }
            None => Err(Stopped::StatusChanged),
        }
    }

    async fn guard_of_status(
        &self,
        observed: &Observed,
        key: &str,
        before: Option<i64>,
    ) -> Result<Guard, StoreError> {
        match before {
            Some(revision) => Ok(Guard::ModRevision(key.to_owned(), revision)),
            None if observed.world.malformed.contains_key(key) => {
                apply::guard_of_present(&self.store, key).await
            }
            None => Ok(Guard::Absent(key.to_owned())),
        }
    }

    /// Writes the status, replacing the one of revision `before`, and the revision with it.
    /// `None`: something changed meanwhile.
    async fn record(
        &mut self,
        observed: &Observed,
        before: Option<i64>,
        status: &SourceStatus,
        revision: Option<&Revision>,
    ) -> Result<Option<i64>, LoopError> {
        let name = &self.config.name;
        let context = format!("cannot write the status of source {name}");
        let key = Key::Source(name.clone()).to_string();
        let guard = self.guard_of_status(observed, &key, before).await;
        let mut guards = vec![guard.map_err(|error| LoopError::new(&context, error))?];
        let encoded = codec::encode(status).map_err(|error| LoopError::new(&context, error))?;
        let mut ops = vec![Op::put(&key, encoded)];
        if let Some(revision) = revision {
            let key = Key::Revision(name.clone(), revision.sequence).to_string();
            let encoded = codec::encode(revision).map_err(|error| LoopError::new(&context, error))?;
            guards.push(Guard::Absent(key.clone()));
            ops.push(Op::put(key, encoded));
            let expired = history::expired(&observed.world.revisions, name, EXPIRED_PER_RUN_MAX);
            ops.extend(expired.into_iter().map(|sequence| Op::delete(Key::Revision(name.clone(), sequence))));
        }
        let recorded = apply::record(&self.store, observed.fence, guards, ops).await;
        let at = recorded.map_err(|error| LoopError::new(&context, error))?;
        self.written = self.written.max(at.unwrap_or_default());
        Ok(at)
    }
}

fn malformed_objects(world: &World) -> BTreeSet<ObjectRef> {
    let object = |key: &String| match key.parse() {
        Ok(Key::Object(object)) => Some(object),
        _ => None,
    };
    world.malformed.keys().filter_map(object).collect()
}
