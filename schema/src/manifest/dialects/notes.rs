//! Notes and errors that a rewrite adds.

use crate::manifest::parse::budget::Budget;
use crate::manifest::parse::node::{Mark, Problem};
use crate::manifest::problems::Problems;
use crate::violation::{Rule, rules};

/// Collects the notes and errors of a rewrite.
pub(crate) struct Notes<'a> {
    problems: &'a mut Problems,
    /// Remaining budget of the file: some spellings hold text that is parsed in turn.
    pub(crate) budget: &'a mut Budget,
    is_whole: bool,
}

impl<'a> Notes<'a> {
    pub(super) fn new(problems: &'a mut Problems, budget: &'a mut Budget) -> Self {
        Self { problems, budget, is_whole: true }
    }

    /// True if every older spelling was carried over.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Notes that `old`, found at `mark`, is written `new` today.
    pub(crate) fn older(&mut self, mark: Mark, old: &str, new: &str) {
        let message = format!("`{old}` is an older spelling, read as `{new}`");
        self.problems.push(Problem::new(mark, &rules::OLDER_SPELLING, message));
    }

    /// Notes how a construct of other systems, found at `mark`, is read.
    pub(crate) fn remark(&mut self, mark: Mark, message: &str) {
        self.problems.push(Problem::new(mark, &rules::OLDER_SPELLING, message));
    }

    /// Notes that `old`, found at `mark`, has no effect: `why`.
    pub(crate) fn dropped(&mut self, mark: Mark, old: &str, why: &str) {
        let message = format!("`{old}` has no effect here and is left out: {why}");
        self.problems.push(Problem::new(mark, &rules::OLDER_SPELLING, message));
    }

    /// Reports an older spelling that can't be carried over; what the spec lacks because of that is not reported
    /// again.
    pub(crate) fn error(&mut self, mark: Mark, rule: &'static Rule, message: String, help: &str) {
        self.is_whole = false;
        self.mistake(mark, rule, message, help);
    }

    /// Reports a mistake in an older spelling whose replacement breaks no rule.
    pub(crate) fn mistake(&mut self, mark: Mark, rule: &'static Rule, message: String, help: &str) {
        self.problems.push(Problem::new(mark, rule, message).help(help));
    }
}
