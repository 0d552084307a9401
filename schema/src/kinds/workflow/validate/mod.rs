//! What a workflow's fields must say beyond their types. One file for each thing that is checked.

mod errors;
mod machine;
mod paths;
mod payload;
mod rule;
mod state;

use super::WorkflowSpec;
use crate::kinds::trigger;
use crate::violation::{Findings, Path};

/// Checks the spec at `at`.
pub(super) fn workflow(spec: &WorkflowSpec, at: &Path<'_>, findings: &mut Findings) {
    let mut names = machine::Names::new();
    machine::check(spec.machine(), at, &mut names, 0, findings);
    trigger::validate(&spec.triggers, at, findings);
}
