//! What `validate` of a kind finds, by path; the manifest loader turns paths into lines.

use super::Rule;
use super::path::{OwnedStep, Path};

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

/// Collects findings, so that one run names them all.
#[derive(Debug, Default)]
pub struct Findings {
    items: Vec<Finding>,
}

impl Findings {
    /// Adds a finding about the value at `at`. The message gets the path in front, as in
    /// Kubernetes' `spec.containers[0].name: Required value`.
    pub fn add(&mut self, rule: &'static Rule, at: &Path<'_>, message: impl AsRef<str>) -> &mut Finding {
        self.items.push(Finding {
            at: at.steps(),
            on_key: false,
            rule,
            message: format!("{at}: {}", message.as_ref()),
            help: String::new(),
        });
        self.items.last_mut().expect("one was just pushed")
    }

    /// All findings, in the order in which they were added.
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
