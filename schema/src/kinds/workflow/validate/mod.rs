//! Checks of a workflow beyond the schema, one file per subject.

mod errors;
mod machine;
mod paths;
mod payload;
mod rule;
mod state;

use super::WorkflowSpec;
use crate::kinds::{repo_path, trigger};
use crate::violation::{Findings, Path, rules};

/// Checks the spec at `at`.
pub(super) fn workflow(spec: &WorkflowSpec, at: &Path<'_>, findings: &mut Findings) {
    if let Some(path) = &spec.definition_path {
        definition_path(path, spec, at, findings);
    }
    if !spec.is_undefined() {
        let mut names = machine::Names::new();
        machine::check(spec.machine(), at, &mut names, 0, findings);
    }
    trigger::validate(&spec.triggers, at, findings);
}

fn definition_path(path: &str, spec: &WorkflowSpec, at: &Path<'_>, findings: &mut Findings) {
    let here = at.field("definitionPath");
    let help = "put the file into this repository and write its path from the root, for example `flows/order.asl.json`";
    repo_path::check_with(path, help, &here, findings);
    if !spec.states.is_empty() {
        let message = "Forbidden: may not be set beside `states`";
        let help = "leave the state machine to the file, or write it here";
        findings.add(&rules::EXCLUSIVE, &here, message).on_key().help(help);
    }
}
