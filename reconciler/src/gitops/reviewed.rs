//! Comparison of the applied with the reviewed plan: the hash in a trailer against that of the executed plan.
//! Blocking where it reads Git.

use git2::Oid;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::PlanRecord;
use schema::snapshot::Table;
use schema::store::election::Fence;

use super::plan::SyncPlan;
use super::review::{plan_hash, same_hash, short_hash};
use crate::git::{self, GitError, Mirror};

/// The first plan of a source's newest commit.
#[derive(Debug, Default)]
pub(super) struct Planned {
    first: Option<Begun>,
}

/// The plan that a commit was started with.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    commit: Oid,
    /// Fence by which this process led at that time.
    fence: Fence,
    hash: String,
    /// Set if a part of the commit may have been applied before, by a process that ended or another leader.
    may_be_rest: bool,
}

impl Planned {
    /// Keeps the first plan of a commit: after a conflict, or while objects wait for others, a later plan is only
    /// the rest.
    pub(super) fn begin(
        &mut self,
        commit: Oid,
        fence: Fence,
        plan: &SyncPlan,
        live: &Table<ObjectRef, Object>,
    ) {
        let led_since = self.first.as_ref().filter(|known| known.fence == fence);
        if led_since.is_none_or(|known| known.commit != commit) {
            let may_be_rest = led_since.is_none();
            self.first = Some(Begun { commit, fence, hash: plan_hash(plan, live), may_be_rest });
        }
    }

    /// Returns the first plan of `commit`.
    pub(super) fn of(&self, commit: Oid) -> Option<Begun> {
        self.first.clone().filter(|known| known.commit == commit)
    }
}

/// Builds the record of an executed plan. `applied` is the commit before it.
pub(super) fn record(mirror: &Mirror, begun: Begun, applied: Option<&str>) -> Result<PlanRecord, GitError> {
    let Begun { commit, hash, may_be_rest, .. } = begun;
    let Some(applied) = applied else {
        let why = "the first commit that is applied here".to_owned();
        return Ok(PlanRecord { hash, reviewed: None, matches: None, why });
    };
    let repository = mirror.open()?;
    let broken = |error: git2::Error| mirror.broken(&error);
    let reviewed = git::plan_trailer(&repository, commit, applied).map_err(broken)?;
    let parent = repository.find_commit(commit).map_err(broken)?.parent_ids().next();
    let is_next = parent.is_some_and(|parent| parent.to_string() == applied);
    let (matches, why) = match &reviewed {
        None => (None, "no commit since the one before has the trailer `Minik8s-Plan`".to_owned()),
        Some(reviewed) if same_hash(reviewed, &hash) => (Some(true), String::new()),
        Some(_) if may_be_rest => {
            (None, "a part of it may have been applied before this reconciler led".to_owned())
        }
        Some(_) if !is_next => {
            (None, "several commits were applied at once, or history was rewritten".to_owned())
        }
        Some(reviewed) => {
            (Some(false), format!("the plan {} was made for another base or head", short_hash(reviewed)))
        }
    };
    Ok(PlanRecord { hash, reviewed, matches, why })
}
