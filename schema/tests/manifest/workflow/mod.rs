//! Workflows: valid ones, invalid ones, other spellings, and state machines written by others.

mod bad;
mod corpora;
mod good;
mod spellings;

use schema::kinds::Resource;
use schema::kinds::workflow::WorkflowSpec;
use schema::manifest::ManifestFile;
use schema::violation::Severity;

use super::{load, rules};

/// A workflow whose spec is `spec`, indented by two.
fn workflow(spec: &str) -> String {
    let mut text = "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata:\n  name: flow\nspec:\n".to_owned();
    for line in spec.lines() {
        text.push_str("  ");
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// A workflow that starts at `a` and has these states.
fn states(states: &str) -> String {
    let lines: String = states.lines().map(|line| format!("  {line}\n")).collect();
    workflow(&format!("startAt: a\nstates:\n{lines}"))
}

/// The only workflow of a file without errors or warnings, with its hash.
fn only(loaded: &ManifestFile) -> (&WorkflowSpec, String) {
    let reported: Vec<_> =
        loaded.violations.iter().filter(|violation| violation.severity != Severity::Note).collect();
    assert!(reported.is_empty(), "{reported:#?}");
    let [document] = loaded.documents.as_slice() else { panic!("{loaded:#?}") };
    let Resource::Workflow(spec) = &document.object.resource else { panic!("{document:#?}") };
    (spec, document.object.hash())
}
