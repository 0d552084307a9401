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
use schema::violation::grouped;

use super::Action;
use crate::gitops::load::spread::spread;
use crate::gitops::plan::{Step, StepReason, SyncPlan};
use crate::gitops::prune::{Prune, PruneHold};
use crate::simulate::placements::Placement;

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
        let line = format!("{} {} {before} {after}", Action::from_act(&step.act), in_hash(&step.object));
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

fn word_of(why: &PruneHold) -> &'static str {
    match why {
        PruneHold::Incomplete(_) => "incomplete",
        PruneHold::Quarantine(_) => "quarantine",
        PruneHold::Protected(_) => "protected",
        PruneHold::Empty => "empty",
        PruneHold::UnrelatedHistory { .. } => "unrelated",
        PruneHold::Everything { .. } => "everything",
        PruneHold::Budget { .. } => "budget",
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

// Nodes that new pods would get, in readable form. Pure.

/// Limit on lines for pods.
const LINES_MAX: usize = 40;
/// Limit on reasons for fitting nowhere, and on pods named for each.
const NAMED_MAX: usize = 10;

/// Formats a line per reason for fitting nowhere, then a line per other pod; pods beyond the limit are counted by node.
pub(super) fn lines(placements: &[Placement]) -> Vec<String> {
    let name = |one: &Placement| format!("{}/{}", one.namespace, one.pod);
    let unplaced = placements.iter().filter(|one| one.node.is_none());
    let mut lines = grouped(unplaced.map(|one| (name(one), format!("no node: {}", one.why))), NAMED_MAX);
    let mut placed = placements.iter().filter_map(|one| Some((name(one), one.node.as_deref()?)));
    let shown = placed.by_ref().take(LINES_MAX - lines.len());
    lines.extend(shown.map(|(pod, node)| format!("{pod} -> {node}")));
    let mut more: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, node) in placed {
        *more.entry(node).or_default() += 1;
    }
    if !more.is_empty() {
        let counts: Vec<String> = more.iter().map(|(node, count)| format!("{count} on {node}")).collect();
        lines.push(format!("{} more: {}", more.values().sum::<usize>(), counts.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(pod: usize, node: Option<&str>) -> Placement {
        let (namespace, pod) = ("default".to_owned(), format!("web-{pod}"));
        Placement { namespace, pod, node: node.map(str::to_owned), why: "0/2 nodes fit".to_owned() }
    }

    #[test]
    fn what_fits_nowhere_comes_first_and_many_are_counted() {
        let mut all: Vec<Placement> = (0..50).map(|number| placement(number, Some("n1"))).collect();
        all.extend([placement(50, None), placement(51, None)]);
        let lines = lines(&all);
        assert_eq!(lines.len(), LINES_MAX + 1);
        // The reason is given once.
        assert_eq!(lines[0], "default/web-50, default/web-51: no node: 0/2 nodes fit");
        assert_eq!(lines[1], "default/web-0 -> n1");
        assert_eq!(lines[LINES_MAX], "11 more: 11 on n1");
        assert!(super::lines(&[]).is_empty());
    }
}
