//! Which steps of a plan wait, because what their object depends on is not healthy yet. Pure.
//!
//! A step that waits is taken out of the plan with its reason. No other addition or change is held up
//! by it; removals are, because what runs meanwhile is the version before, and may need what goes.
//! The plan is made anew when the snapshot changes, so a step waits as long as its reason holds and what it waits
//! for gets on, but not past a deadline without progress: something dead must not keep what would mend it away. A newer commit
//! finds nothing under way that it would have to break off.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::{SourceStatus, Waiting};
use schema::snapshot::Snapshot;

use super::plan::{Act, Step, SyncPlan};
use schema::kinds::links::dependencies;
use schema::snapshot::health::{deadline_seconds, progressed_at, trouble};

/// Why a removal waits.
const REMOVED_LAST: &str = "it is removed once nothing waits";

/// Why an object waits for one that waits. Its deadline does not count yet.
const WAITS_ITSELF: &str = "it waits itself";
/// Why an object waits for one that is written by the same plan. Its deadline begins anew.
const IS_APPLIED: &str = "it is being applied";

/// How the object of an earlier step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It is written by this plan.
    Written,
    /// It waits itself.
    Waits,
}

/// Takes the steps out that have to wait. Only what brings pods up or replaces them waits: labels,
/// annotations and the place in the repository are written at once. A step whose deadline is over
/// goes on, and is reported. How long each waits already is in the status of `source`.
pub fn gate(mut plan: SyncPlan, snapshot: &Snapshot, source: &str, now: Timestamp) -> SyncPlan {
    let depends =
        |step: &Step| step.object_after().is_some_and(|object| !object.metadata.depends_on.is_empty());
    if !plan.steps.iter().any(depends) {
        return plan;
    }
    let known = snapshot.sources.get(source).map(|status| &status.value);
    let mut before: BTreeMap<ObjectRef, Before> = BTreeMap::new();
    let mut steps = Vec::with_capacity(plan.steps.len());
    for step in plan.steps {
        let (Act::Create(object) | Act::Replace(object)) = &step.act else {
            steps.push(step);
            continue;
        };
        let wait = blocked(snapshot, &before, object).map(|(on, why)| {
            let since = since(known, &step.object, &on, &why, now);
            Waiting { object: step.object.clone(), on, why, since: Some(since) }
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
                before.insert(step.object, Before::Waits);
            }
            None => {
                before.insert(step.object.clone(), Before::Written);
                steps.push(step);
            }
        }
    }
    plan.steps = steps;
    keep_removals(&mut plan, snapshot);
    plan
}

/// Since when the deadline of a wait counts: since what the object waits for waits no more itself
/// and was last written.
fn since(
    known: Option<&SourceStatus>,
    object: &ObjectRef,
    on: &ObjectRef,
    why: &str,
    now: Timestamp,
) -> Timestamp {
    let Some(known) = known else { return now };
    let is_truncated = known.waiting_total > known.waiting.len() as u64;
    let waits = |wait: &&Waiting| wait.object == *object && wait.why != REMOVED_LAST;
    // A status lists only the first. Others have waited as long as those that wait for the same.
    let alike = |wait: &&Waiting| is_truncated && wait.on == *on && wait.why != REMOVED_LAST;
    let before = known.waiting.iter().find(waits).or_else(|| known.waiting.iter().rfind(alike));
    let goes_on = |before: &&Waiting| {
        (before.why == WAITS_ITSELF) == (why == WAITS_ITSELF)
            && (before.why == IS_APPLIED || why != IS_APPLIED)
    };
    before.filter(goes_on).and_then(|before| before.since).map_or(now, |since| since.min(now))
}

/// When a wait is over, unless what it is for gets on; none while that waits itself, and for a removal.
pub(super) fn deadline(snapshot: &Snapshot, wait: &Waiting, now: Timestamp) -> Option<Timestamp> {
    let since = wait.since.filter(|_| wait.why != WAITS_ITSELF)?;
    let since = progress(snapshot, &wait.on, now).map_or(since, |progress| progress.max(since));
    since.checked_add(patience(snapshot, &wait.on)).ok()
}

/// When an object last came closer to being healthy; one without pods gets on as the pods of its commit do.
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

/// How long an object may go on without progress.
pub(super) fn patience(snapshot: &Snapshot, object: &ObjectRef) -> SignedDuration {
    let default = || snapshot.cluster().defaults.progress_deadline_seconds;
    let live = snapshot.objects.get(object);
    let seconds = live.map_or_else(default, |live| deadline_seconds(snapshot, &live.value));
    SignedDuration::from_secs(seconds.into())
}

/// While something waits, removals wait, too: what replaces them may be among what waits. But what
/// only one can have, and a step of this plan takes, is given up by the one that goes.
fn keep_removals(plan: &mut SyncPlan, snapshot: &Snapshot) {
    let Some(first) = plan.waiting.first().map(|waiting| waiting.object.clone()) else { return };
    let has = |object: &Object| object.resource.exclusives(&object.metadata).into_iter();
    // Whether all that take it only share it.
    let mut taken: BTreeMap<_, bool> = BTreeMap::new();
    for used in plan.steps.iter().filter_map(Step::object_after).flat_map(|object| has(object)) {
        *taken.entry(used.what).or_insert(true) &= used.shares;
    }
    let is_taken = |live: &Object| {
        has(live).any(|used| taken.get(&used.what).is_some_and(|shared| !(used.shares && *shared)))
    };
    let stays = |step: &Step| {
        let live = snapshot.objects.get(&step.object);
        matches!(step.act, Act::Delete) && !live.is_some_and(|live| is_taken(&live.value))
    };
    let (kept, steps): (Vec<Step>, Vec<Step>) = std::mem::take(&mut plan.steps).into_iter().partition(stays);
    plan.steps = steps;
    plan.owned += kept.len() as u64;
    plan.waiting.extend(kept.into_iter().map(|step| Waiting {
        object: step.object,
        on: first.clone(),
        why: REMOVED_LAST.to_owned(),
        since: None,
    }));
}

/// The first dependency that is not healthy, and why.
fn blocked(
    snapshot: &Snapshot,
    before: &BTreeMap<ObjectRef, Before>,
    object: &Object,
) -> Option<(ObjectRef, String)> {
    dependencies(&object.metadata).find_map(|on| {
        let why = match (before.get(&on), snapshot.objects.get(&on)) {
            (Some(Before::Waits), _) => Some(WAITS_ITSELF.to_owned()),
            (Some(Before::Written), _) => Some(IS_APPLIED.to_owned()),
            (None, Some(live)) => trouble(snapshot, &live.value),
            (None, None) => Some("it is not there".to_owned()),
        };
        why.map(|why| (on, why))
    })
}
