//! The loop of one source: look at the remote, plan against what is live, write, tell.
//!
//! Reads the remote, the mirror and the world; decides in `plan.rs`; writes through `apply.rs` and
//! `record.rs`. What it remembers between runs is a cache: a fresh loop at any moment comes to the
//! same state. A run that finds nothing new costs one ls-remote and writes nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use git2::Oid;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use schema::keys::Key;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::{Revision, SourceStatus};
use schema::store::election::{Fence, FenceReader};
use schema::store::events::EventRecorder;
use schema::store::reflector::WorldReader;
use schema::store::{SharedStore, newest_revision};
use schema::world::{Table, Versioned, World};

use super::apply::{self, Applied, Stopped};
use super::check::commits_in_question;
use super::head::Head;
use super::history;
use super::plan::{self, Situation, SyncPlan};
use super::read::Loaded;
use super::record::{Place, RecordError, tell};
use super::status::{self, Problem, Run, short};
use crate::git::{GitError, SourceConfig};

/// How long a run waits to see its own last writes.
const CATCH_UP_MAX: Duration = Duration::from_secs(2);
/// When to look again after something changed under a plan.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);

/// Keeps etcd's objects of one source as its repository has them.
pub struct SourceLoop {
    config: Arc<SourceConfig>,
    head: Head,
    store: SharedStore,
    world: WorldReader,
    fence: FenceReader,
    events: EventRecorder,
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
    #[expect(
        clippy::too_many_arguments,
        clippy::needless_pass_by_value,
        reason = "one row of the daemon's wiring"
    )]
    pub fn new(
        config: SourceConfig,
        state_dir: PathBuf,
        store: SharedStore,
        world: WorldReader,
        fence: FenceReader,
        events: EventRecorder,
    ) -> Self {
        let config = Arc::new(config);
        let head = Head::new(Arc::clone(&config), &state_dir);
        let events = events.reporting_as("gitops");
        Self { config, head, store, world, fence, events, settled: None, written: 0 }
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

    /// A write newer than all that etcd has went to another etcd, which was lost with it: there is
    /// nothing to wait for.
    async fn doubt_written(&mut self) {
        // Etcd may be away, too: the next run asks again.
        if newest_revision(self.store.as_ref()).await.is_ok_and(|newest| newest < self.written) {
            self.written = 0;
        }
    }

    /// Nothing changed since all was as it should be; a problem that is gone is a change, too.
    fn is_settled(&self, world: &World, problem: bool) -> bool {
        let (Some(settled), Some(loaded)) = (&self.settled, self.head.loaded()) else { return false };
        let status = world.sources.get(&self.config.name);
        let cleared = !problem && status.is_some_and(|status| status.value.error.is_some());
        settled.commit == loaded.head
            && settled.status == status.map_or(0, |status| status.mod_revision)
            && settled.objects.ptr_eq(&world.objects)
            && !cleared
    }

    async fn situation(
        &self,
        world: &World,
        incomplete: Option<String>,
    ) -> Result<Option<Situation>, GitError> {
        let Some(loaded) = self.head.loaded() else { return Ok(None) };
        let source = &self.config.name;
        let commits = commits_in_question(source, &loaded.manifests, &world.objects);
        let lineage = self.head.lineage(history::base(&world.revisions, source), commits).await?;
        let status = world.sources.get(source);
        Ok(Some(Situation {
            source: source.clone(),
            commit: Arc::clone(&loaded.commit),
            manifests: loaded.manifests.clone(),
            live: world.objects.clone(),
            malformed: malformed_objects(world),
            lineage,
            held_of: status.and_then(|status| status.value.held_prune.as_ref()).map(|held| held.owned),
            incomplete,
        }))
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
            Err(why) => {
                self.doubt_written().await;
                return Ok(Observation::NotReady(why));
            }
        };
        let started = Instant::now();
        let applied =
            world.sources.get(&self.config.name).and_then(|status| status.value.applied_commit.clone());
        let problem_of = |error: &GitError| Problem { kind: error.kind(), message: error.to_string() };
        let (head, mut problem) = match self.head.look(applied).await {
            Ok(head) => (Some(head.to_string()), None),
            Err(error) => (None, Some(problem_of(&error))),
        };
        // Looking may have taken long: the plan is for what is there now.
        let world = self.world.current();
        let mut situation = None;
        if !self.is_settled(&world, problem.is_some()) {
            let incomplete = problem.as_ref().map(|problem| problem.message.clone());
            match self.situation(&world, incomplete).await {
                Ok(found) => situation = found,
                Err(error) => problem = Some(problem_of(&error)),
            }
        }
        let loaded = self.head.loaded().cloned();
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
        let previous = observed.before(&self.config.name).map(|(status, _)| status);
        let ahead = match status::hold_ahead(&self.config, previous, &loaded.commit, &plan) {
            None => None,
            Some(status) => {
                match self.place(observed, observed.before(&self.config.name)).write(&status, None).await {
                    Ok(at) => Some((status, at)),
                    Err(error) => {
                        let applied = Applied { stopped: Some(Stopped::Ahead(error)), ..Applied::default() };
                        return Outcome { plan: Some(plan), ahead: None, applied };
                    }
                }
            }
        };
        let applied = apply::apply(&self.store, observed.fence, &plan.steps).await;
        Outcome { plan: Some(plan), ahead, applied }
    }

    async fn report(&mut self, observed: Observed, outcome: Outcome) -> Result<Next, LoopError> {
        let ahead = outcome.ahead.as_ref().map(|(status, at)| (status, *at));
        self.written = self.written.max(outcome.applied.revision).max(ahead.map_or(0, |(_, at)| at));
        let settled_before = self.settled.take();
        match &outcome.applied.stopped {
            // Another one leads, and the next run sees that; it is no error.
            Some(Stopped::FenceLost | Stopped::Ahead(RecordError::FenceLost)) => return Ok(Next::Interval),
            Some(Stopped::Ahead(RecordError::Changed)) => return Ok(Next::After(AFTER_CONFLICT)),
            // A conflict passes by itself within moments and is no news for the status.
            None if !outcome.applied.conflicts.is_empty() => return Ok(Next::After(AFTER_CONFLICT)),
            _ => {}
        }
        if outcome.plan.is_none() && observed.problem.is_none() {
            // Nothing was planned because nothing changed: the status stands as it is.
            self.settled = settled_before;
            return Ok(Next::Interval);
        }
        let before = ahead.or_else(|| observed.before(&self.config.name));
        let (status, revision) = self.fold(&observed, &outcome, before.map(|(status, _)| status));
        let unchanged = revision.is_none() && before.is_some_and(|(before, _)| *before == status);
        let at = match before {
            Some((_, at)) if unchanged => at,
            _ => match self.place(&observed, before).write(&status, revision.as_ref()).await {
                Ok(at) => at,
                Err(RecordError::FenceLost) => return Ok(Next::Interval),
                Err(RecordError::Changed) => return Ok(Next::After(AFTER_CONFLICT)),
                Err(error) => return Err(self.failed(error)),
            },
        };
        if !unchanged {
            self.written = self.written.max(at);
            let told = observed.before(&self.config.name).map(|(status, _)| status);
            tell(&self.events, told, &status, revision.as_ref());
        }
        if let Some(why) = outcome.applied.stopped {
            return Err(self.failed(why));
        }
        // Not planned because nothing changed, or planned and nothing left to do.
        let rests = match &outcome.plan {
            None => settled_before.is_some(),
            Some(plan) => plan.steps.is_empty() && observed.problem.is_none(),
        };
        if let (true, Some(loaded)) = (rests, &observed.loaded) {
            let objects = observed.world.objects.clone();
            self.settled = Some(Settled { commit: loaded.head, objects, status: at });
        }
        Ok(Next::Interval)
    }
}

impl Observed {
    /// The status of the source as it was seen, with its revision.
    fn before(&self, source: &str) -> Option<(&SourceStatus, i64)> {
        let found: Option<&Versioned<SourceStatus>> = self.world.sources.get(source).map(|status| &**status);
        found.map(|status| (&status.value, status.mod_revision))
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

    fn place<'a>(&'a self, observed: &'a Observed, before: Option<(&SourceStatus, i64)>) -> Place<'a> {
        let before = before.map(|(_, at)| at);
        Place { store: &self.store, fence: observed.fence, world: &observed.world, before }
    }

    fn failed(&self, why: impl std::error::Error + Send + Sync + 'static) -> LoopError {
        LoopError::new(format!("cannot apply source {}", self.config.name), why)
    }
}

fn malformed_objects(world: &World) -> BTreeSet<ObjectRef> {
    let object = |key: &String| match key.parse() {
        Ok(Key::Object(object)) => Some(object),
        _ => None,
    };
    world.malformed.keys().filter_map(object).collect()
}
