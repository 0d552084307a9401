//! Hash of a plan's effect. Pure.
//!
//! Reads a plan and the live objects; decides when two plans are the same: the same objects become the same.
//! Commits, files and lines are left out, so that the plan a reviewer read and the one executed after the merge
//! have the same hash if nothing else changed in between.

use std::collections::BTreeMap;

use schema::codec::content_hash;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::Table;

use super::Action;
use crate::gitops::load::spread::spread;
use crate::gitops::plan::{Step, StepReason, SyncPlan};
use crate::gitops::prune::{Hold, Prune};

/// Number of hash digits shown; they are enough to name one.
const SHOWN_DIGITS: usize = 16;

/// Returns the SHA-256 of the effect of a plan made against `live`, in 64 hex digits.
pub fn plan_hash(plan: &SyncPlan, live: &Table<ObjectRef, Object>) -> String {
    let steps = plan.steps.iter().filter(|step| !is_move(step));
    // Hashing takes most of the time of a review of many objects.
    let lines = spread(plan.steps.len(), steps, |step: &Step| {
        let before = live.get(&step.object).map(|live| content(&live.value));
        let after = step.object_after().map(|object| content(object));
        let [before, after] = [before, after].map(|hash| hash.unwrap_or_else(|| "-".to_owned()));
        let line = format!("{} {} {before} {after}", Action::of(&step.act), in_hash(&step.object));
        (step.object.clone(), line)
    });
    let by_object: BTreeMap<ObjectRef, String> = lines.into_iter().collect();
    let mut lines: Vec<String> = by_object.into_values().collect();
    if let Prune::Held { why, objects } = &plan.prune {
        let mut objects = objects.clone();
        objects.sort();
        let objects: Vec<String> = objects.iter().map(in_hash).collect();
        lines.push(format!("held {} {}", word_of(why), objects.join(" ")));
    }
    content_hash(&lines)
}

/// Formats an object for the hash only: a change of its display must not change the hash of a plan.
fn in_hash(ObjectRef { kind, namespace, name }: &ObjectRef) -> String {
    format!("{kind}/{namespace}/{name}")
}

/// True if only the place in the repository changes.
fn is_move(step: &Step) -> bool {
    matches!(step.why, StepReason::Moved { .. })
}

/// Hashes everything that an object's manifest says.
fn content(object: &Object) -> String {
    let says = (&object.api_version, &object.metadata, &object.resource);
    // Hashed as before if there are no files: a plan reviewed before an upgrade is the same plan after it.
    if object.files.is_empty() { content_hash(&says) } else { content_hash(&(says, &object.files)) }
}

fn word_of(why: &Hold) -> &'static str {
    match why {
        Hold::Incomplete(_) => "incomplete",
        Hold::Quarantine(_) => "quarantine",
        Hold::Protected(_) => "protected",
        Hold::Empty => "empty",
        Hold::UnrelatedHistory { .. } => "unrelated",
        Hold::Everything { .. } => "everything",
        Hold::Budget { .. } => "budget",
    }
}

/// Shortens a hash to the digits shown.
pub fn short_hash(hash: &str) -> &str {
    hash.get(..SHOWN_DIGITS).unwrap_or(hash)
}

/// True if two hashes are of the same plan, even if one is shortened.
pub fn same_hash(one: &str, other: &str) -> bool {
    let digits = one.len().min(other.len());
    digits >= SHOWN_DIGITS && one.get(..digits) == other.get(..digits)
}
