//! Review of a plan: each change with its fields and its effects on what runs.
//!
//! Reads a plan and the situation that it was made from, decides the words and the order. The same for a pull
//! request and for what the reconciler applies. Pure: same input, same bytes.

use std::collections::BTreeMap;

use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::violation::{OwnedStep, Severity, Violation};
use serde::Serialize;

use super::diff::FILES;
use super::plan::{PlanInput, Step, StepReason, SyncPlan};
use super::prune::Prune;
use crate::simulate::placements::{ObjectChanges, Placement};
use crate::simulate::workflow::cases::CaseResult;
use schema::violation::plural;

mod capacity;
pub(crate) mod change;
mod digest;
pub(crate) mod effects;
mod escape;
mod markdown;
#[cfg(test)]
mod tests;
mod text;

pub use change::{Action, Change, Field};
pub use digest::{plan_hash, same_hash, short_hash};
pub use effects::Effect;
use effects::EffectsOf;
pub use effects::NodeRoom;
pub use markdown::{BYTES_MAX, MARKER, markdown, no_review};
pub use text::text;

/// Limit on named held removals.
const HELD_SHOWN_MAX: usize = 100;

/// A plan in readable form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Review {
    /// Warnings that a reader must not miss.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Commit to change from, or the name of its revision.
    pub base: String,
    /// Commit to change to.
    pub head: String,
    /// SHA-256 of the plan's effect.
    pub hash: String,
    /// Number of objects by action.
    pub summary: Summary,
    /// Changes in the order in which they are applied.
    pub changes: Vec<Change>,
    /// Errors, warnings and notes on the head's files.
    pub violations: Vec<Violation>,
    /// Fate of objects that are no longer in the head.
    pub prune: PruneView,
    /// Shortages on the nodes; empty without a server.
    pub capacity: Vec<String>,
    /// Nodes that new and moved pods would get now; empty without a server.
    pub placements: Vec<Placement>,
    /// Results of the test cases next to workflows, in `<workflow>.tests.yaml`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workflow_tests: Vec<WorkflowTests>,
    /// Remarks on how the plan was made.
    pub notes: Vec<String>,
    /// Changed and removed objects, with which a server places their pods.
    #[serde(skip)]
    pub objects: ObjectChanges,
}

/// Test cases of a workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkflowTests {
    pub workflow: String,
    /// File with the cases.
    pub file: String,
    /// Results in the order of the file.
    pub cases: Vec<CaseResult>,
}

/// Number of objects by action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// New objects.
    pub create: u64,
    /// Objects that change without interrupting what runs.
    pub update: u64,
    /// Objects of which everything that runs is stopped and started again.
    pub replace: u64,
    /// Removed objects.
    pub delete: u64,
    /// Unchanged objects.
    pub unchanged: u64,
    /// Files that can't be applied.
    pub quarantined: u64,
}

/// Fate of objects that are no longer in the head.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PruneView {
    /// Number of these objects, held or not.
    pub deletes: u64,
    /// Set if they stay until released.
    pub held: bool,
    /// Reason, and the way to release them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// First of the held objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<String>,
    /// Objects protected by annotation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
}

/// Base of a plan, and knowledge of the cluster besides its objects.
#[derive(Debug, Clone, Copy)]
pub struct ReviewContext<'a> {
    /// Live commit, or the one that is taken to be live.
    pub base: &'a str,
    /// Live nodes; `None` without a server.
    pub nodes: Option<&'a [NodeRoom]>,
    /// Running pods of each workload, whatever number Git asks for; empty without a server.
    pub running: &'a BTreeMap<ObjectRef, u32>,
    /// Remarks on how the plan was made.
    pub notes: &'a [String],
    /// Returns what computes the effects of changes of a kind.
    pub(crate) effects: fn(Kind) -> EffectsOf,
}

/// Reviews a plan, for people to read.
pub fn review(situation: &PlanInput, plan: &SyncPlan, frame: &ReviewContext<'_>) -> Review {
    let planned = effects::PlannedObjects::new(&situation.live, &plan.steps, frame.running, frame.nodes);
    let mut endpoints = effects::service::lost_endpoints(&planned, &plan.steps);
    let changes = plan
        .steps
        .iter()
        .map(|step| change(situation, &planned, step, frame.effects, &mut endpoints))
        .collect();
    let counts = plan.counts();
    let summary = Summary {
        create: counts.create,
        update: counts.update,
        replace: counts.replace,
        delete: counts.delete,
        unchanged: counts.unchanged,
        quarantined: counts.quarantined,
    };
    Review {
        warnings: Vec::new(),
        base: frame.base.to_owned(),
        head: situation.commit.id.clone(),
        hash: plan_hash(plan, &situation.live),
        summary,
        changes,
        violations: violations(situation, plan),
        prune: prune(situation, plan),
        capacity: frame.nodes.map(|nodes| capacity::missing(&planned, nodes)).unwrap_or_default(),
        placements: Vec::new(),
        workflow_tests: Vec::new(),
        notes: frame.notes.to_vec(),
        objects: object_changes(plan),
    }
}

fn object_changes(plan: &SyncPlan) -> ObjectChanges {
    let mut changes = ObjectChanges::default();
    for step in &plan.steps {
        match step.object_after() {
            Some(object) => changes.put.push((**object).clone()),
            None => changes.delete.push(step.object.clone()),
        }
    }
    changes
}

fn change(
    situation: &PlanInput,
    planned: &effects::PlannedObjects<'_>,
    step: &Step,
    effects_of: fn(Kind) -> EffectsOf,
    endpoints: &mut BTreeMap<ObjectRef, Vec<Effect>>,
) -> Change {
    let ObjectRef { kind, namespace, name } = step.object.clone();
    let place = match step.object_after() {
        Some(object) => Some(&object.provenance),
        None => situation.live.get(&step.object).map(|live| &live.value.provenance),
    };
    let fields: Vec<Field> = match &step.why {
        StepReason::Changed(fields) => fields
            .iter()
            .map(|field| Field {
                path: field.path(),
                from: field.from.clone(),
                to: field.to.clone(),
                line: None,
                hidden: field.hidden,
                files: Vec::new(),
                steps: field.steps.clone(),
            })
            .collect(),
        _ => Vec::new(),
    };
    let reason = match &step.why {
        StepReason::Changed(_) => reason(&fields),
        other => other.to_string(),
    };
    let mut effects = effects::of(planned, step, &fields, effects_of);
    effects.extend(endpoints.remove(&step.object).unwrap_or_default());
    Change {
        action: Action::from_act(&step.act),
        kind,
        namespace,
        name,
        file: place.map(|place| place.file.clone()).unwrap_or_default(),
        line: place.map_or(0, |place| place.line),
        fields,
        effects,
        reason,
    }
}

/// Formats `spec.replicas changed`; the fields themselves are shown next to it.
fn reason(fields: &[Field]) -> String {
    const NAMED_MAX: usize = 3;
    let named: Vec<&str> = fields.iter().take(NAMED_MAX).map(|field| field.path.as_str()).collect();
    match (named.is_empty(), fields.len().saturating_sub(NAMED_MAX)) {
        (true, _) => "etcd was changed by hand".to_owned(),
        (false, 0) => format!("{} changed", named.join(", ")),
        (false, more) => format!("{} and {more} more changed", named.join(", ")),
    }
}

/// Returns the violations of quarantined files, with those found across files, and of all others.
fn violations(situation: &PlanInput, plan: &SyncPlan) -> Vec<Violation> {
    let good = situation.manifests.iter().filter(|(file, _)| !plan.quarantined.contains_key(*file));
    let mut all: Vec<Violation> =
        good.flat_map(|(_, manifest)| manifest.violations.iter().cloned()).collect();
    all.extend(plan.quarantined.values().flatten().cloned());
    all.extend(plan.remarks.iter().cloned());
    all.sort();
    all.dedup();
    all
}

fn prune(situation: &PlanInput, plan: &SyncPlan) -> PruneView {
    let protected = plan.protected.iter().map(ToString::to_string).collect();
    if plan.refused {
        return PruneView { protected, ..PruneView::default() };
    }
    match &plan.prune {
        Prune::Nothing => PruneView { protected, ..PruneView::default() },
        Prune::Remove(objects) => {
            let why = match situation.commit.allows_prune {
                true => {
                    "released by the trailer Minik8s-Allow-Prune of this commit; a merge commit must have it, too"
                }
                false => "",
            };
            PruneView {
                deletes: objects.len() as u64,
                why: why.to_owned(),
                protected,
                ..PruneView::default()
            }
        }
        Prune::Held { why, objects } => PruneView {
            deletes: objects.len() as u64,
            held: true,
            why: why.to_string(),
            objects: objects.iter().take(HELD_SHOWN_MAX).map(ToString::to_string).collect(),
            protected,
        },
    }
}

impl Review {
    /// True if nothing changes and nothing is held.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.prune.deletes == 0
    }

    /// True if a file of the head can't be applied.
    pub fn has_errors(&self) -> bool {
        self.violations.iter().any(|violation| violation.severity == Severity::Error)
    }

    /// Returns the number of passing cases of workflows, and of all cases.
    fn cases(&self) -> (usize, usize) {
        let all = self.workflow_tests.iter().flat_map(|tests| &tests.cases);
        let (held, failed): (Vec<_>, Vec<_>) = all.partition(|case| case.failure.is_none());
        (held.len(), held.len() + failed.len())
    }

    /// Formats each case of a workflow, failing ones first.
    fn case_lines(&self) -> Vec<String> {
        let all =
            self.workflow_tests.iter().flat_map(|tests| tests.cases.iter().map(move |case| (tests, case)));
        let mut lines: Vec<_> = all
            .map(|(WorkflowTests { workflow, .. }, case)| match &case.failure {
                Some(failure) => (0, format!("FAIL {workflow} {}: {failure}", case.case)),
                None => (1, format!("pass {workflow} {}", case.case)),
            })
            .collect();
        lines.sort_by_key(|(rank, _)| *rank);
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// Fills in the lines of fields. `line` finds a line by file, line of the document and field.
    pub fn locate(&mut self, mut line: impl FnMut(&str, u32, &[OwnedStep]) -> Option<u32>) {
        for change in &mut self.changes {
            for field in change.fields.iter_mut().filter(|field| field.to.is_some()) {
                field.line = line(&change.file, change.line, &field.steps);
            }
        }
    }

    /// Fills in the changed files of folders. `changed` finds them by the folder's path.
    pub fn name_files(&mut self, mut changed: impl FnMut(&str) -> Vec<String>) {
        for field in self.changes.iter_mut().flat_map(|change| &mut change.fields) {
            if let [OwnedStep::Field(first), OwnedStep::Field(path)] = field.steps.as_slice()
                && first == FILES
                && field.from.is_some()
                && field.to.is_some()
            {
                field.files = changed(path);
            }
        }
    }

    /// Formats the review as indented JSON.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// Formats `2 to create, 1 to delete`.
    pub(crate) fn headline(&self) -> String {
        let Summary { create, update, replace, delete, quarantined, .. } = self.summary;
        let counts = [
            (create, "to create"),
            (update, "to update in place"),
            (replace, "to replace"),
            (delete, "to delete"),
        ];
        let mut parts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if parts.is_empty() {
            parts.push("no changes".to_owned());
        }
        if self.prune.held {
            parts.push(format!("{} held", plural(self.prune.deletes, "removal")));
        }
        if quarantined > 0 {
            parts.push(format!("{} quarantined", plural(quarantined, "file")));
        }
        parts.join(", ")
    }
}
