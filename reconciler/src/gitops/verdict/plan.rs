//! Verdicts on applied commits, and sources that are no longer configured. Pure.
//!
//! Reads revisions, statuses of sources, objects and the reports of nodes; decides verdicts. A final verdict stays:
//! a commit that once failed its deadline is bad, even after a restart.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use schema::kinds::Health;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::records::{
    ChangeCounts, Revision, SourceError, SourceErrorKind, SourceState, SourceStatus, Verdict,
};
use schema::snapshot::health::{deadline_or, deadline_seconds, health, progressed_at, trouble, unsteady};
use schema::snapshot::{Snapshot, VersionedValue};

use crate::gitops::gate;
use crate::gitops::gate::progress_deadline;
use schema::violation::{grouped, plural};

/// Limit on reasons of a verdict, and on objects named for each.
const NAMED_MAX: usize = 10;

/// Decisions to write down.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// Revisions whose verdict is now known, with the version that they replace.
    pub decided: Vec<(Revision, i64)>,
    /// Statuses of sources that are no longer configured, with the version that they replace.
    pub orphaned: Vec<(SourceStatus, i64)>,
    /// Waits that are over: their sources should run again.
    pub released: FinishedWaits,
    /// Sources to wake now for these waits.
    pub wake: Vec<String>,
    /// Waits that sources were woken for, including these.
    pub woken: WakeHistory,
    /// Time of the next run even if nothing changes: the next deadline.
    pub again_at: Option<Timestamp>,
}

impl schema::control::Plan for Verdicts {
    fn is_empty(&self) -> bool {
        self.decided.is_empty() && self.orphaned.is_empty() && self.wake.is_empty()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

/// Decides, and selects sources to wake for waits that they were not woken for before.
pub fn plan_and_wake(
    snapshot: &Snapshot,
    configured: &BTreeSet<String>,
    woken: &WakeHistory,
    now: Timestamp,
) -> Verdicts {
    let mut out = plan(snapshot, configured, now);
    out.woken = woken.clone();
    let (wake, wake_again_at) = out.woken.next(&out.released, now);
    out.wake = wake;
    out.again_at = out.again_at.into_iter().chain(wake_again_at).min();
    out
}

/// Decides without wake-ups. `configured`: names of all sources that this reconciler keeps.
pub fn plan(snapshot: &Snapshot, configured: &BTreeSet<String>, now: Timestamp) -> Verdicts {
    let mut out = Verdicts::default();
    let newest: BTreeMap<&str, u64> =
        snapshot.revisions.keys().map(|(source, sequence)| (source.as_str(), *sequence)).collect();
    let undecided = || snapshot.revisions.iter().filter(|(_, revision)| revision.value.decided_at.is_none());
    // Many sources with as many objects each: objects are grouped once, not searched for each source.
    let mut objects: BTreeMap<(&str, &str), Vec<&Object>> = BTreeMap::new();
    for object in
        snapshot.objects.values().map(|object| &object.value).filter(|_| undecided().next().is_some())
    {
        let from = &object.provenance;
        objects.entry((&from.source, &from.commit)).or_default().push(object);
    }
    for ((source, sequence), revision) in undecided() {
        let is_newest = newest.get(source.as_str()) == Some(sequence);
        let own = objects.get(&(source.as_str(), revision.value.commit.as_str()));
        let own = own.map_or(&[][..], Vec::as_slice);
        if let Some(verdict) = judge(snapshot, &revision.value, (own, is_newest), now, &mut out.again_at) {
            let decided = Revision { verdict, decided_at: Some(now), ..revision.value.clone() };
            out.decided.push((decided, revision.mod_revision));
        }
    }
    for (name, status) in &snapshot.sources {
        if !configured.contains(name) {
            out.orphaned.extend(orphaned(status, now));
        }
    }
    out.released = finished_waits(snapshot, configured);
    out
}

/// Returns the verdict on a commit by the objects that it changed and no later commit did; `None` while one of them
/// may still become healthy. A commit that was applied only in part remains known as such.
fn judge(
    snapshot: &Snapshot,
    revision: &Revision,
    (objects, is_newest): (&[&Object], bool),
    now: Timestamp,
    again_at: &mut Option<Timestamp>,
) -> Option<Verdict> {
    let status = snapshot.sources.get(&revision.source).map(|status| &status.value);
    let released_at = status.and_then(|status| status.released_at);
    // Only objects of the newest commit wait. A wait for an object that waits itself has no deadline yet.
    let waiting = || status.filter(|_| is_newest).into_iter().flat_map(|status| &status.waiting);
    let waits = waiting().filter_map(|waiting| {
        let within = progress_deadline(snapshot, &waiting.on);
        Some(Trouble {
            object: waiting.object.clone(),
            why: format!("it waits for {}: {}", waiting.on, waiting.why),
            began_at: gate::deadline(snapshot, waiting, now)?,
            within,
        })
    });
    let waits: Vec<Trouble> = waits.collect();
    let first = waits.iter().map(Trouble::ends_at).chain(first_deadline(snapshot, revision, objects)).min();
    // A commit may have 10,000 objects. Before the first deadline, one unhealthy object is enough to leave it open.
    let is_early = first > Some(now);
    let mut judged = Vec::with_capacity(if is_early { 0 } else { objects.len() });
    for object in objects {
        let object = JudgedObject::of(snapshot, object);
        if is_early && object.trouble.is_some() {
            *again_at = again_at.iter().copied().chain(first).min();
            return None;
        }
        judged.push(object);
    }
    let objects = judged;
    let (troubles, is_open) = troubles(snapshot, revision, &objects, released_at, now);
    let all = || troubles.iter().chain(&waits);
    if all().any(|trouble| trouble.has_failed(now)) {
        // An object that waits for another has time left.
        let waits = waits.iter().filter(|wait| wait.has_failed(now));
        return Some(Verdict::Bad { why: why_bad(troubles.iter().chain(waits), &revision.verdict, now) });
    }
    // An object that counts as ready as soon as it runs may end a moment later, and a verdict is final.
    let steady = objects.iter().filter(|judged| judged.trouble.is_none());
    let steady_at = steady.filter_map(|judged| unsteady(snapshot, judged.object, now)).map(|u| u.steady_at);
    let next = all().map(Trouble::ends_at).chain(steady_at).min();
    if next.is_none() && !is_open && waiting().next().is_none() {
        let ChangeCounts { create, update, replace, moved, .. } = revision.counts;
        let is_whole = objects.len() as u64 >= (create + update + replace).saturating_sub(moved);
        return match (&revision.verdict, is_whole) {
            // A newer commit is being applied.
            (_, false) if is_newest => None,
            (Verdict::Degraded { why }, _) => Some(Verdict::Degraded { why: why.clone() }),
            (_, true) => Some(Verdict::Good),
            (_, false) => Some(Verdict::Superseded),
        };
    }
    *again_at = again_at.iter().copied().chain(next).min();
    None
}

/// Returns the earliest time at which an object of the revision may have failed: its deadline if it made no
/// progress since it was applied.
fn first_deadline(snapshot: &Snapshot, revision: &Revision, objects: &[&Object]) -> Option<Timestamp> {
    let default = snapshot.cluster().defaults.progress_deadline_seconds;
    let within = objects.iter().map(|object| deadline_or(object, default)).min()?;
    revision.applied_at.checked_add(SignedDuration::from_secs(within.into())).ok()
}

/// Returns the troubles of a revision's objects, and whether the verdict is open otherwise: a node that does not
/// answer proves nothing about its pods, until it answers or they are on another node.
fn troubles(
    snapshot: &Snapshot,
    revision: &Revision,
    objects: &[JudgedObject<'_>],
    released_at: Option<Timestamp>,
    now: Timestamp,
) -> (Vec<Trouble>, bool) {
    let is_open = objects.iter().any(|judged| judged.is_silent);
    // An object without pods, such as a service, makes progress with the commit's pods.
    let newest_progress =
        LazyCell::new(|| objects.iter().filter_map(|it| progressed_at(snapshot, it.object, now)).max());
    let mut troubles = Vec::new();
    for JudgedObject { object, trouble, is_silent } in objects {
        let Some(why) = trouble.clone() else { continue };
        let has_pods = object.resource.pod(&object.metadata).is_some();
        if is_open && (!has_pods || *is_silent) {
            continue;
        }
        let progress = if has_pods { progressed_at(snapshot, object, now) } else { *newest_progress };
        let released_at = released_at.filter(|_| !object.metadata.depends_on.is_empty());
        let began_at = progress.into_iter().chain(released_at).fold(revision.applied_at, Timestamp::max);
        let within = SignedDuration::from_secs(deadline_seconds(snapshot, object).into());
        troubles.push(Trouble { object: object.reference(), why, began_at, within });
    }
    (troubles, is_open)
}

/// An object that a commit changed, with its health.
struct JudgedObject<'a> {
    object: &'a Object,
    /// Reason why it is not healthy, if its kind can fail commits.
    trouble: Option<String>,
    /// Set if its node does not answer.
    is_silent: bool,
}

impl<'a> JudgedObject<'a> {
    fn of(snapshot: &Snapshot, object: &'a Object) -> Self {
        let is_awaited = object.kind().descriptor().fails_commits;
        let health = is_awaited.then(|| health(snapshot, object));
        let is_silent = matches!(health, Some(Health::Unknown { .. }));
        let trouble = health.and_then(|health| health.why().map(str::to_owned));
        Self { object, trouble, is_silent }
    }
}

/// An object that is not healthy yet.
struct Trouble {
    object: ObjectRef,
    why: String,
    /// Time at which it was applied, last came closer to being healthy, or no longer had to wait.
    began_at: Timestamp,
    /// Time that it may go without progress.
    within: SignedDuration,
}

impl Trouble {
    fn ends_at(&self) -> Timestamp {
        self.began_at.checked_add(self.within).unwrap_or(Timestamp::MAX)
    }

    fn has_failed(&self, now: Timestamp) -> bool {
        self.ends_at() <= now
    }
}

/// Names the objects that have failed, then those that are not healthy yet: the verdict is final, so no later one
/// would name them.
fn why_bad<'a>(troubles: impl Iterator<Item = &'a Trouble>, before: &Verdict, now: Timestamp) -> String {
    let (failed, open): (Vec<_>, Vec<_>) = troubles.partition(|trouble| trouble.has_failed(now));
    let failed = failed.into_iter().map(|Trouble { object, why, within, .. }| {
        (object.to_string(), format!("not healthy within {} s: {why}", within.as_secs()))
    });
    let open = open
        .into_iter()
        .map(|Trouble { object, why, .. }| (object.to_string(), format!("not healthy yet: {why}")));
    let mut parts = grouped(failed.chain(open), NAMED_MAX);
    if let Verdict::Degraded { why } = before {
        parts.push(format!("also, {why}"));
    }
    // A reason may have several lines.
    let gap = if parts.iter().any(|part| part.contains('\n')) { "\n" } else { "; " };
    parts.join(gap)
}

/// Reports, once, a source that is no longer configured. Its objects stay.
fn orphaned(status: &VersionedValue<SourceStatus>, now: Timestamp) -> Option<(SourceStatus, i64)> {
    let before = &status.value;
    if before.error.as_ref().is_some_and(|error| error.kind == SourceErrorKind::NotConfigured) {
        return None;
    }
    let message = format!(
        "source {} is no longer configured and leaves {} behind, never updated or removed: \
         configure it again, or remove the manifests from its repository first",
        before.name,
        plural(before.objects, "object")
    );
    let error = SourceError { kind: SourceErrorKind::NotConfigured, message, since: now };
    let after = SourceStatus { state: SourceState::Failed, error: Some(error), ..before.clone() };
    Some((after, status.mod_revision))
}

// Selects the sources that should run again because an object need not wait any longer. Pure.
//
// A run costs a query to the remote. So a source is woken once for each wait that is over, and not more often than
// `GAP`; if it makes no progress then (its remote is away), its next poll does.

/// Least time between two wake-ups of a source.
const GAP: SignedDuration = SignedDuration::from_secs(2);

/// Objects that may proceed and their dependencies, by source.
pub type FinishedWaits = BTreeMap<String, BTreeSet<(ObjectRef, ObjectRef)>>;

/// Returns the waits of the configured sources that are over: the dependency is healthy and waits for nothing itself.
pub fn finished_waits(snapshot: &Snapshot, configured: &BTreeSet<String>) -> FinishedWaits {
    let statuses = || configured.iter().filter_map(|name| Some((name, &snapshot.sources.get(name)?.value)));
    let waiting: BTreeSet<&ObjectRef> =
        statuses().flat_map(|(_, status)| status.waiting.iter().map(|waiting| &waiting.object)).collect();
    let well = |on: &ObjectRef| {
        !waiting.contains(on)
            && snapshot.objects.get(on).is_some_and(|live| trouble(snapshot, &live.value).is_none())
    };
    let mut out = FinishedWaits::new();
    for (name, status) in statuses() {
        for wait in status.waiting.iter().filter(|wait| well(&wait.on)) {
            out.entry(name.clone()).or_default().insert((wait.object.clone(), wait.on.clone()));
        }
    }
    out
}

/// Waits that sources were woken for, while they last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WakeHistory {
    released: FinishedWaits,
    at: BTreeMap<String, Timestamp>,
}

impl WakeHistory {
    /// Returns the sources to wake, and the time to ask again if some must wait for that.
    pub fn next(&mut self, released: &FinishedWaits, now: Timestamp) -> (Vec<String>, Option<Timestamp>) {
        let (mut wake, mut again_at) = (Vec::new(), None::<Timestamp>);
        // A wait that starts again is news when it is over again.
        self.released.retain(|source, waits| {
            waits.retain(|wait| released.get(source).is_some_and(|now| now.contains(wait)));
            !waits.is_empty()
        });
        for (source, waits) in released {
            if self.released.get(source).is_some_and(|before| waits.is_subset(before)) {
                continue;
            }
            let earliest = self.at.get(source).and_then(|at| at.checked_add(GAP).ok());
            match earliest.filter(|earliest| now < *earliest) {
                Some(earliest) => again_at = Some(again_at.map_or(earliest, |at| at.min(earliest))),
                None => {
                    self.released.insert(source.clone(), waits.clone());
                    self.at.insert(source.clone(), now);
                    wake.push(source.clone());
                }
            }
        }
        (wake, again_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(waits: &[(&str, &str, &str)]) -> FinishedWaits {
        let reference = |name: &str| ObjectRef {
            kind: schema::kinds::Kind::Pod,
            namespace: "default".to_owned(),
            name: name.to_owned(),
        };
        let mut out = FinishedWaits::new();
        for (source, object, on) in waits {
            out.entry((*source).to_owned()).or_default().insert((reference(object), reference(on)));
        }
        out
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + ms).unwrap()
    }

    #[test]
    fn a_source_is_woken_once_for_each_wait_that_is_over() {
        let mut woken = WakeHistory::default();
        let (one, two) = (released(&[("a", "x", "db")]), released(&[("a", "x", "db"), ("b", "y", "db")]));
        assert_eq!(woken.next(&one, at(0)).0, ["a"]);
        for second in 1..100 {
            assert_eq!(woken.next(&one, at(second * 1_000)), (vec![], None), "stale for {second} s");
        }
        assert_eq!(woken.next(&two, at(100_000)).0, ["b"], "the other is not asked for it");
        // The dependency was unhealthy in between.
        assert_eq!(woken.next(&released(&[]), at(103_000)).0, [""; 0]);
        assert_eq!(woken.next(&one, at(104_000)).0, ["a"]);
    }

    #[test]
    fn what_comes_and_goes_quickly_does_not_wake_more_often_than_the_gap_and_is_not_forgotten() {
        let mut woken = WakeHistory::default();
        let over = released(&[("a", "x", "db")]);
        let mut times = Vec::new();
        for ms in (0..10_000).step_by(100) {
            let (wake, again_at) =
                woken.next(&if ms % 200 == 0 { over.clone() } else { released(&[]) }, at(ms));
            if !wake.is_empty() {
                times.push(ms);
            } else if ms % 200 == 0 {
                assert!(again_at.is_some_and(|again| again > at(ms)), "it would be forgotten");
            }
        }
        assert_eq!(times, [0, 2_000, 4_000, 6_000, 8_000]);
    }
}
