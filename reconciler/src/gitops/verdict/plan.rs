//! What became of each applied commit, and which sources nobody configures any more. Pure.
//!
//! Reads revisions, statuses of sources, objects and what nodes report; decides verdicts. A verdict
//! that is final stays: a commit that once failed its deadline is bad, also after a restart.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use schema::kinds::Resource;
use schema::kinds::replica_set::DEFAULT_PROGRESS_DEADLINE_SECONDS;
use schema::object::Object;
use schema::records::{
    ChangeCounts, Revision, SourceError, SourceErrorKind, SourceState, SourceStatus, Verdict,
};
use schema::snapshot::{Snapshot, Versioned};

use super::wake::{Released, Woken, released};
use schema::snapshot::health::{trouble, unsteady};

/// So many objects are named in the reason of a verdict.
const NAMED_MAX: usize = 5;

/// What to write down.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// Revisions whose verdict is known now, and the version that they replace.
    pub decided: Vec<(Revision, i64)>,
    /// Sources that no reconciler is configured with, and the version that they replace.
    pub orphaned: Vec<(SourceStatus, i64)>,
    /// What waits and may go on: its source should look again.
    pub released: Released,
    /// The sources to wake for that now.
    pub wake: Vec<String>,
    /// What sources were woken for, these included.
    pub woken: Woken,
    /// When to look again even if nothing changes: the next deadline.
    pub again_at: Option<Timestamp>,
}

impl schema::control::Plan for Verdicts {
    fn is_empty(&self) -> bool {
        self.decided.is_empty() && self.orphaned.is_empty() && self.wake.is_empty()
    }

    fn again_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

/// Decides, and wakes what was not woken for the same before.
pub fn plan_and_wake(
    snapshot: &Snapshot,
    configured: &BTreeSet<String>,
    woken: &Woken,
    now: Timestamp,
) -> Verdicts {
    let mut out = plan(snapshot, configured, now);
    out.woken = woken.clone();
    let (wake, wake_again_at) = out.woken.next(&out.released, now);
    out.wake = wake;
    out.again_at = out.again_at.into_iter().chain(wake_again_at).min();
    out
}

/// Decides. `configured`: names of all sources that this reconciler keeps.
pub fn plan(snapshot: &Snapshot, configured: &BTreeSet<String>, now: Timestamp) -> Verdicts {
    let mut out = Verdicts::default();
    let newest = newest(snapshot);
    for ((source, sequence), revision) in &snapshot.revisions {
        if revision.value.decided_at.is_some() {
            continue;
        }
        let verdict = if newest.get(source.as_str()) == Some(sequence) {
            judge(snapshot, &revision.value, now, &mut out.again_at)
        } else {
            superseded(&revision.value)
        };
        if let Some(verdict) = verdict {
            let decided = Revision { verdict, decided_at: Some(now), ..revision.value.clone() };
            out.decided.push((decided, revision.mod_revision));
        }
    }
    for (name, status) in &snapshot.sources {
        if !configured.contains(name) {
            out.orphaned.extend(orphaned(status, now));
        }
    }
    out.released = released(snapshot, configured);
    out
}

fn newest(snapshot: &Snapshot) -> BTreeMap<&str, u64> {
    snapshot.revisions.keys().map(|(source, sequence)| (source.as_str(), *sequence)).collect()
}

/// A newer commit ends the watch. What was applied only in part stays known as that.
fn superseded(revision: &Revision) -> Option<Verdict> {
    Some(match &revision.verdict {
        Verdict::Degraded { why } => Verdict::Degraded { why: why.clone() },
        _ => Verdict::Superseded,
    })
}

fn judge(
    snapshot: &Snapshot,
    revision: &Revision,
    now: Timestamp,
    again_at: &mut Option<Timestamp>,
) -> Option<Verdict> {
    let touched = |object: &&Object| {
        object.provenance.source == revision.source && object.provenance.commit == revision.commit
    };
    let objects: Vec<&Object> = snapshot.objects.values().map(|o| &o.value).filter(touched).collect();
    let status = snapshot.sources.get(&revision.source).map(|status| &status.value);
    let waiting = status.into_iter().flat_map(|status| &status.waiting).map(ToString::to_string);
    let unwell = objects
        .iter()
        .filter_map(|object| trouble(snapshot, object).map(|why| format!("{}: {why}", object.reference())));
    let mut troubles = unwell.chain(waiting).peekable();
    if troubles.peek().is_none() {
        if is_being_undone(snapshot, revision) {
            return None;
        }
        // What is called ready as soon as it runs may end a moment later, and a verdict is final.
        let steady_at =
            objects.iter().filter_map(|object| unsteady(snapshot, object, now)).map(|u| u.steady_at);
        if let Some(steady_at) = steady_at.max() {
            *again_at = Some(again_at.map_or(steady_at, |before: Timestamp| before.min(steady_at)));
            return None;
        }
        return Some(match &revision.verdict {
            Verdict::Degraded { why } => Verdict::Degraded { why: why.clone() },
            _ => Verdict::Good,
        });
    }
    let deadline = deadline(&objects);
    let ends_at = began(revision, status, deadline).checked_add(seconds(deadline)).ok()?;
    if now < ends_at {
        // The first that is not well says enough: this runs at each change of the snapshot.
        *again_at = Some(again_at.map_or(ends_at, |before: Timestamp| before.min(ends_at)));
        return None;
    }
    let troubles: Vec<String> = troubles.collect();
    Some(Verdict::Bad { why: why_bad(&troubles, deadline, &revision.verdict) })
}

/// The source has fewer objects than this commit left: a newer one is being applied, and what it
/// removes is no sign of health.
fn is_being_undone(snapshot: &Snapshot, revision: &Revision) -> bool {
    let of_source =
        snapshot.objects.values().filter(|o| o.value.provenance.source == revision.source).count();
    let ChangeCounts { create, update, replace, unchanged, .. } = revision.counts;
    u64::try_from(of_source).unwrap_or(u64::MAX) < create + update + replace + unchanged
}

/// Since when the objects of a revision have their time: each wait has one of its own, and what
/// waited begins when it is released.
fn began(revision: &Revision, status: Option<&SourceStatus>, deadline: u32) -> Timestamp {
    let released = status.and_then(|status| status.released_at);
    let waits = status.iter().flat_map(|status| &status.waiting).filter_map(|waiting| waiting.since);
    let ends_at = waits.max().and_then(|since| since.checked_add(seconds(deadline)).ok());
    [released, ends_at].into_iter().flatten().fold(revision.applied_at, Timestamp::max)
}

fn seconds(seconds: u32) -> SignedDuration {
    SignedDuration::from_secs(seconds.into())
}

fn why_bad(troubles: &[String], deadline: u32, before: &Verdict) -> String {
    let named = troubles.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    let more = troubles.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let besides = match before {
        Verdict::Degraded { why } => format!("; besides, {why}"),
        _ => String::new(),
    };
    format!("not healthy within {deadline} s: {named}{more}{besides}")
}

/// The longest time that an object of the commit asks for.
fn deadline(objects: &[&Object]) -> u32 {
    objects.iter().map(|object| patience(Some(object))).fold(patience(None), u32::max)
}

/// Seconds that an object has to become healthy.
pub(in crate::gitops) fn patience(object: Option<&Object>) -> u32 {
    let least = DEFAULT_PROGRESS_DEADLINE_SECONDS;
    match object.map(|object| &object.resource) {
        Some(Resource::ReplicaSet(set)) => set.progress_deadline_seconds.max(least),
        _ => least,
    }
}

/// A source whose objects stay because nobody speaks for them any more; told once.
fn orphaned(status: &Versioned<SourceStatus>, now: Timestamp) -> Option<(SourceStatus, i64)> {
    let before = &status.value;
    if before.error.as_ref().is_some_and(|error| error.kind == SourceErrorKind::NotConfigured) {
        return None;
    }
    let message = format!(
        "source {} is no longer configured; its {} object(s) stay as they are, and are never removed: \
         configure it again, or remove them from its repository first",
        before.name, before.objects
    );
    let error = SourceError { kind: SourceErrorKind::NotConfigured, message, since: now };
    let after = SourceStatus { state: SourceState::Failed, error: Some(error), ..before.clone() };
    Some((after, status.mod_revision))
}
