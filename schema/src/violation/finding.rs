//! Findings of a kind's `validate`, by path; the manifest loader turns paths into lines.

use super::path::{OwnedStep, Path};
use super::{Rule, Severity};

/// Most findings kept, for errors and for others each. Far more than are reported for a file, since some merely
/// echo another mistake.
const KEPT_MAX: usize = 4000;

/// A problem, or something noteworthy, at a path of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Path of the value.
    pub at: Vec<OwnedStep>,
    /// True if the key is meant, not its value.
    pub on_key: bool,
    /// The broken rule.
    pub rule: &'static Rule,
    /// Description of the problem.
    pub message: String,
    /// Advice; empty if the message includes it.
    pub help: String,
}

/// Collects findings, so that one run reports them all. If there are very many, the first are kept and the others
/// counted.
#[derive(Debug, Default)]
pub struct Findings {
    items: Vec<Finding>,
    errors: usize,
    others: usize,
    /// Receives the help of a finding that is not kept.
    not_kept: Option<Finding>,
}

impl Findings {
    /// Adds a finding about the value at `at`. The message gets the path in front, as in
    /// Kubernetes' `spec.containers[0].name: Required value`.
    pub fn add(&mut self, rule: &'static Rule, at: &Path<'_>, message: impl AsRef<str>) -> &mut Finding {
        let count = if rule.severity == Severity::Error { &mut self.errors } else { &mut self.others };
        *count += 1;
        let (at, message) = if *count <= KEPT_MAX {
            (at.steps(), format!("{at}: {}", message.as_ref()))
        } else {
            (Vec::new(), String::new())
        };
        let finding = Finding { at, on_key: false, rule, message, help: String::new() };
        if *count > KEPT_MAX {
            return self.not_kept.insert(finding);
        }
        self.items.push(finding);
        self.items.last_mut().expect("one was just pushed")
    }

    /// Adds the note that the value at `at` has no effect: `why`.
    pub fn left_out(&mut self, at: &Path<'_>, why: &str) {
        let note = self.add(&super::rules::NO_EFFECT, at, "").on_key();
        note.message = format!("`{at}` has no effect here and is left out: {why}");
    }

    /// Returns the number of findings, including those not kept.
    pub fn count(&self) -> usize {
        self.errors + self.others
    }

    /// Returns the kept findings, in the order in which they were added.
    pub fn into_vec(self) -> Vec<Finding> {
        self.items
    }
}

impl Finding {
    /// Sets the advice.
    pub fn help(&mut self, help: impl Into<String>) -> &mut Self {
        self.help = help.into();
        self
    }

    /// Points at the key instead of its value.
    pub fn on_key(&mut self) -> &mut Self {
        self.on_key = true;
        self
    }
}
