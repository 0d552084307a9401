//! What `validate` of a kind finds, by path; the manifest loader turns paths into lines.

use super::path::{OwnedStep, Path};
use super::{Rule, Severity};

/// Most findings that are kept, of errors and of others each. Far more than are reported for a file, since
/// some are only the echo of another mistake.
const KEPT_MAX: usize = 4000;

/// Something wrong or noteworthy at a path of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub at: Vec<OwnedStep>,
    /// The key is meant, not its value.
    pub on_key: bool,
    /// Which rule.
    pub rule: &'static Rule,
    /// What is wrong.
    pub message: String,
    /// What to do; empty when the message says it.
    pub help: String,
}

/// Collects findings, so that one run names them all. Of very many, the first are kept and the others
/// counted.
#[derive(Debug, Default)]
pub struct Findings {
    items: Vec<Finding>,
    errors: usize,
    others: usize,
    /// Takes the help of one that is not kept.
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.errors + self.others
    }

    /// The findings that were kept, in the order in which they were added.
    pub fn into_vec(self) -> Vec<Finding> {
        self.items
    }
}

impl Finding {
    /// Says what to do.
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
