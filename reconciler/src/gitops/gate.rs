//! Gate of a plan: holds back steps whose dependencies are not healthy yet. Pure.
//!
//! A step that waits is taken out of the plan with its reason. It holds up no other addition or change, only
//! removals: meanwhile the previous version runs, and may need what goes. The plan is made again when the snapshot
//! changes, so a step waits as long as its reason holds and its dependency makes progress, but not past a deadline
//! without progress: something dead must not block its own repair. A newer commit finds nothing in progress that it
//! would have to abort.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::{SourceStatus, WaitingObject};
use schema::snapshot::Snapshot;

use super::plan::{Act, Step, SyncPlan};
use schema::kinds::links::dependencies;
use schema::snapshot::health::{deadline_seconds, progressed_at, trouble};

/// Reason why a removal waits.
const REMOVED_LAST: &str = "it is removed once nothing waits";

/// Reason for waiting for an object that waits itself. Its deadline does not count yet.
const WAITS_ITSELF: &str = "it waits itself";
/// Reason for waiting for an object that the same plan writes. Its deadline starts again.
const IS_APPLIED: &str = "it is being applied";

/// State of an earlier step's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EarlierStep {
    /// Written by this plan.
    Written,
    /// Waits for dependencies of its own.
    Waits,
}

/// Takes out the steps that must wait. Only steps that start or replace pods wait: labels, annotations and the
/// place in the repository are written immediately. A step whose deadline has passed goes ahead, and is reported.
/// The status of `source` records how long each has waited.
pub fn gate(mut plan: SyncPlan, snapshot: &Snapshot, source: &str, now: Timestamp) -> SyncPlan {
    let depends =
        |step: &Step| step.object_after().is_some_and(|object| !object.metadata.depends_on.is_empty());
    if !plan.steps.iter().any(depends) {
        return plan;
    }
    let known = snapshot.sources.get(source).map(|status| &status.value);
    let mut before: BTreeMap<ObjectRef, EarlierStep> = BTreeMap::new();
    let mut steps = Vec::with_capacity(plan.steps.len());
    for step in plan.steps {
        let (Act::Create(object) | Act::Replace(object)) = &step.act else {
            steps.push(step);
            continue;
        };
        let wait = blocked(snapshot, &before, object).map(|(on, why)| {
            let since = since(known, &step.object, &on, &why, now);
            WaitingObject { object: step.object.clone(), on, why, since: Some(since) }
        });
        let wait = match wait.map(|wait| (deadline(snapshot, &wait, now), wait)) {
            Some((Some(ends_at), wait)) if ends_at <= now => {
                plan.overdue.push(wait);
                None
            }
            Some((ends_at, wait)) => {
                plan.due = [plan.due, ends_at].into_iter().flatten().min();
                Some(wait)
            }
            None => None,
        };
        match wait {
            Some(wait) => {
                plan.waiting.push(wait);
                plan.owned -= u64::from(matches!(step.act, Act::Create(_)));
                before.insert(step.object, EarlierStep::Waits);
            }
            None => {
                before.insert(step.object.clone(), EarlierStep::Written);
                steps.push(step);
            }
        }
    }
    plan.steps = steps;
    keep_removals(&mut plan, snapshot);
    plan
}

/// Returns the time from which the deadline of a wait counts: the dependency no longer waits itself, and was last
/// written.
fn since(
    known: Option<&SourceStatus>,
    object: &ObjectRef,
    on: &ObjectRef,
    why: &str,
    now: Timestamp,
) -> Timestamp {
    let Some(known) = known else { return now };
    let is_truncated = known.waiting_total > known.waiting.len() as u64;
    let waits = |wait: &&WaitingObject| wait.object == *object && wait.why != REMOVED_LAST;
    // A status lists only the first waits. Others have waited as long as those for the same object.
    let alike = |wait: &&WaitingObject| is_truncated && wait.on == *on && wait.why != REMOVED_LAST;
    let before = known.waiting.iter().find(waits).or_else(|| known.waiting.iter().rfind(alike));
    let goes_on = |before: &&WaitingObject| {
        (before.why == WAITS_ITSELF) == (why == WAITS_ITSELF)
            && (before.why == IS_APPLIED || why != IS_APPLIED)
    };
    before.filter(goes_on).and_then(|before| before.since).map_or(now, |since| since.min(now))
}

/// Returns the end of a wait unless the dependency makes progress; `None` while that waits itself, and for a removal.
pub(super) fn deadline(snapshot: &Snapshot, wait: &WaitingObject, now: Timestamp) -> Option<Timestamp> {
    let since = wait.since.filter(|_| wait.why != WAITS_ITSELF)?;
    let since = progress(snapshot, &wait.on, now).map_or(since, |progress| progress.max(since));
    since.checked_add(progress_deadline(snapshot, &wait.on)).ok()
}

/// Time of an object's last progress towards health; an object without pods makes progress with the pods of its
/// commit.
fn progress(snapshot: &Snapshot, object: &ObjectRef, now: Timestamp) -> Option<Timestamp> {
    let live = &snapshot.objects.get(object)?.value;
    if live.resource.pod(&live.metadata).is_some() {
        return progressed_at(snapshot, live, now);
    }
    let is_beside = |other: &&Object| {
        other.provenance.source == live.provenance.source && other.provenance.commit == live.provenance.commit
    };
    let beside = snapshot.objects.values().map(|object| &object.value).filter(is_beside);
    beside.filter_map(|object| progressed_at(snapshot, object, now)).max()
}

/// Returns the time that an object may go without progress.
pub(super) fn progress_deadline(snapshot: &Snapshot, object: &ObjectRef) -> SignedDuration {
    let default = || snapshot.cluster().defaults.progress_deadline_seconds;
    let live = snapshot.objects.get(object);
    let seconds = live.map_or_else(default, |live| deadline_seconds(snapshot, &live.value));
    SignedDuration::from_secs(seconds.into())
}

/// Holds removals while anything waits: their replacement may be among the waiting steps. Objects that hold an
/// exclusive resource which a step of this plan takes are removed all the same.
fn keep_removals(plan: &mut SyncPlan, snapshot: &Snapshot) {
    let Some(first) = plan.waiting.first().map(|waiting| waiting.object.clone()) else { return };
    let has = |object: &Object| object.resource.exclusives(&object.metadata).into_iter();
    // True if all takers only share the resource.
    let mut taken: BTreeMap<_, bool> = BTreeMap::new();
    for used in plan.steps.iter().filter_map(Step::object_after).flat_map(|object| has(object)) {
        *taken.entry(used.resource).or_insert(true) &= used.shares;
    }
    let is_taken = |live: &Object| {
        has(live).any(|used| taken.get(&used.resource).is_some_and(|shared| !(used.shares && *shared)))
    };
    let stays = |step: &Step| {
        let live = snapshot.objects.get(&step.object);
        matches!(step.act, Act::Delete) && !live.is_some_and(|live| is_taken(&live.value))
    };
    let (kept, steps): (Vec<Step>, Vec<Step>) = std::mem::take(&mut plan.steps).into_iter().partition(stays);
    plan.steps = steps;
    plan.owned += kept.len() as u64;
    plan.waiting.extend(kept.into_iter().map(|step| WaitingObject {
        object: step.object,
        on: first.clone(),
        why: REMOVED_LAST.to_owned(),
        since: None,
    }));
}

/// Returns the first dependency that is not healthy, with the reason.
fn blocked(
    snapshot: &Snapshot,
    before: &BTreeMap<ObjectRef, EarlierStep>,
    object: &Object,
) -> Option<(ObjectRef, String)> {
    dependencies(&object.metadata).find_map(|on| {
        let why = match (before.get(&on), snapshot.objects.get(&on)) {
            (Some(EarlierStep::Waits), _) => Some(WAITS_ITSELF.to_owned()),
            (Some(EarlierStep::Written), _) => Some(IS_APPLIED.to_owned()),
            (None, Some(live)) => trouble(snapshot, &live.value),
            (None, None) => Some("it is not there".to_owned()),
        };
        why.map(|why| (on, why))
    })
}
