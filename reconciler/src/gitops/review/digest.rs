//! The hash of what a plan does. Pure.
//!
//! Reads a plan and what is live; decides what makes two plans the same: the same objects become
//! the same. Commits, files and lines are left out, so that the plan that a reviewer read and the
//! one that is carried out after the merge have one hash if nothing else changed meanwhile.

use std::collections::BTreeMap;

use schema::codec::content_hash;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::Table;

use super::Action;
use crate::gitops::load::spread::spread;
use crate::gitops::plan::{Step, StepReason, SyncPlan};
use crate::gitops::prune::{Hold, Prune};

/// Digits of a hash that are shown; they are enough to name one.
const SHOWN_DIGITS: usize = 16;

/// SHA-256 of what a plan made against `live` does, in 64 hex digits.
pub fn plan_hash(plan: &SyncPlan, live: &Table<ObjectRef, Object>) -> String {
    let steps = plan.steps.iter().filter(|step| !is_move(step));
    // Hashing is most of what a review of many objects takes.
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

/// Not as it is shown: how objects are shown must not change the hash of a plan.
fn in_hash(ObjectRef { kind, namespace, name }: &ObjectRef) -> String {
    format!("{kind}/{namespace}/{name}")
}

/// Only the place in the repository changes.
fn is_move(step: &Step) -> bool {
    matches!(step.why, StepReason::Moved { .. })
}

/// The hash of all that an object's manifest says.
fn content(object: &Object) -> String {
    let says = (&object.api_version, &object.metadata, &object.resource);
    // Without files as ever: what was reviewed before an upgrade is the same plan after it.
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

/// The digits of a hash that are shown.
pub fn short_hash(hash: &str) -> &str {
    hash.get(..SHOWN_DIGITS).unwrap_or(hash)
}

/// Two hashes are of one plan, one of them maybe cut to what is shown.
pub fn same_hash(one: &str, other: &str) -> bool {
    let digits = one.len().min(other.len());
    digits >= SHOWN_DIGITS && one.get(..digits) == other.get(..digits)
}
