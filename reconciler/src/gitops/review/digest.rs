//! The content of a plan, and its hash. Pure.
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
use crate::gitops::plan::{Act, Step, StepReason, SyncPlan};
use crate::gitops::prune::{Hold, Prune};

/// Digits of a hash that are shown; they are enough to name one.
const SHOWN_DIGITS: usize = 16;
/// Most differences that are reported.
const REPORTED_MAX: usize = 10;

/// What a plan does, and nothing of where it comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Digest {
    /// By object: what is done, content before and after.
    entries: BTreeMap<ObjectRef, Entry>,
    /// Why removals are held, in one word, and which.
    held: Option<(&'static str, Vec<ObjectRef>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    action: Action,
    before: Option<String>,
    after: Option<String>,
}

impl Digest {
    /// Of a plan made against `live`.
    pub fn of(plan: &SyncPlan, live: &Table<ObjectRef, Object>) -> Self {
        let steps: Vec<&Step> = plan.steps.iter().filter(|step| !is_move(step)).collect();
        // Hashing is most of what a review of many objects takes.
        let entries = spread(&steps, |step| {
            let before = live.get(&step.object).map(|live| content(&live.value));
            let after = match &step.act {
                Act::Create(object) | Act::Update(object) | Act::Replace(object) => Some(content(object)),
                Act::Delete => None,
            };
            (step.object.clone(), Entry { action: Action::of(&step.act), before, after })
        });
        Self { entries: entries.into_iter().collect(), held: held(&plan.prune) }
    }

    /// SHA-256 in 64 hex digits.
    pub fn hash(&self) -> String {
        let mut lines: Vec<String> = Vec::with_capacity(self.entries.len() + 1);
        let or_none = |hash: &Option<String>| hash.clone().unwrap_or_else(|| "-".to_owned());
        for (object, entry) in &self.entries {
            let (before, after) = (or_none(&entry.before), or_none(&entry.after));
            lines.push(format!("{} {} {before} {after}", entry.action, in_hash(object)));
        }
        if let Some((why, objects)) = &self.held {
            let objects: Vec<String> = objects.iter().map(in_hash).collect();
            lines.push(format!("held {why} {}", objects.join(" ")));
        }
        content_hash(&lines)
    }

    /// This plan does nothing but what `whole` does, and of `whole` all else is so already in `live`.
    pub fn is_rest_of(&self, whole: &Self, live: &Table<ObjectRef, Object>) -> bool {
        let is_done = |object: &ObjectRef, entry: &Entry| {
            live.get(object).map(|live| content(&live.value)) == entry.after
        };
        self.held == whole.held
            && self.entries.iter().all(|(object, entry)| whole.entries.get(object) == Some(entry))
            && whole
                .entries
                .iter()
                .all(|(object, entry)| self.entries.contains_key(object) || is_done(object, entry))
    }

    /// How this plan differs from the `reviewed` one, at most a few lines; empty if it does not.
    pub fn differences(&self, reviewed: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (object, entry) in &self.entries {
            match reviewed.entries.get(object) {
                None => lines.push(format!("{object}: {} was not in the review", entry.action)),
                Some(other) if other.action != entry.action => {
                    lines.push(format!("{object}: {} where the review has {}", entry.action, other.action));
                }
                Some(other) if other.after != entry.after => {
                    lines.push(format!("{object}: its content differs from the review"));
                }
                Some(other) if other.before != entry.before => {
                    lines.push(format!("{object}: what it replaces differs from the review"));
                }
                Some(_) => {}
            }
        }
        for (object, entry) in &reviewed.entries {
            if !self.entries.contains_key(object) {
                lines
                    .push(format!("{object}: {} of the review was not needed or not possible", entry.action));
            }
        }
        match (&self.held, &reviewed.held) {
            (Some((why, objects)), other) if other.as_ref().map(|(_, o)| o) != Some(objects) => {
                lines.push(format!("{} removals are held ({why})", objects.len()));
            }
            (None, Some((_, objects))) => lines.push(format!("{} removals are not held", objects.len())),
            _ => {}
        }
        let more = lines.len().saturating_sub(REPORTED_MAX);
        lines.truncate(REPORTED_MAX);
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        lines
    }
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

fn held(prune: &Prune) -> Option<(&'static str, Vec<ObjectRef>)> {
    let Prune::Held { why, objects } = prune else { return None };
    let why = match why {
        Hold::Incomplete(_) => "incomplete",
        Hold::Quarantine(_) => "quarantine",
        Hold::Protected(_) => "protected",
        Hold::Empty => "empty",
        Hold::UnrelatedHistory { .. } => "unrelated",
        Hold::Everything { .. } => "everything",
        Hold::Budget { .. } => "budget",
    };
    let mut objects = objects.clone();
    objects.sort();
    Some((why, objects))
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
