//! Problems found in one document, bounded: a file may be nothing but mistakes.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::limits;
use super::limits::VIOLATIONS_MAX;
use super::node::{Budget, Mark, Problem};
use crate::violation::{OwnedStep, Rule, Severity, TEXT_MAX_CHARS, Violation, rules, shell_word, shortened};

/// Most problems kept of a document, for errors and for others each: more than are reported, since the first of the
/// file are reported, and they are found in another order.
pub(crate) const KEPT_MAX: usize = 2 * VIOLATIONS_MAX;

/// Problems in the order in which they were found. Only the first are kept, the others counted; errors are never
/// dropped in favor of others.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    kept: Vec<Problem>,
    errors: usize,
    others: usize,
}

impl Problems {
    pub(crate) fn push(&mut self, problem: Problem) {
        let is_error = problem.rule.severity == Severity::Error;
        let count = if is_error { &mut self.errors } else { &mut self.others };
        *count += 1;
        if *count <= KEPT_MAX {
            self.kept.push(problem);
        }
    }

    /// Adds all of `from`, including those only counted.
    pub(crate) fn append(&mut self, from: Problems) {
        let (errors, others) = (self.errors + from.errors, self.others + from.others);
        from.kept.into_iter().for_each(|problem| self.push(problem));
        (self.errors, self.others) = (errors, others);
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Returns the kept problems, and the number of dropped ones.
    pub(crate) fn into_parts(self) -> (Vec<Problem>, usize) {
        let left_out = (self.errors + self.others).saturating_sub(self.kept.len());
        (self.kept, left_out)
    }
}

impl From<Vec<Problem>> for Problems {
    fn from(found: Vec<Problem>) -> Self {
        let mut problems = Self::default();
        found.into_iter().for_each(|problem| problems.push(problem));
        problems
    }
}

/// Places of mistakes: findings near one only follow from it.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    at: BTreeSet<Vec<OwnedStep>>,
    is_full: bool,
}

impl Faults {
    pub(crate) fn push(&mut self, at: Vec<OwnedStep>) {
        if self.at.len() < KEPT_MAX {
            self.at.insert(at);
        } else {
            self.is_full = true;
        }
    }

    pub(crate) fn append(&mut self, from: Faults) {
        self.is_full |= from.is_full;
        from.at.into_iter().for_each(|at| self.push(at));
    }

    /// True if a mistake is at a place that is `meant`.
    pub(crate) fn any(&self, meant: impl Fn(&[OwnedStep]) -> bool) -> bool {
        self.is_full || self.at.iter().any(|at| meant(at))
    }

    /// True if a mistake is at this place, around it or inside it. If there are too many mistakes to keep their
    /// places, every place counts.
    pub(crate) fn any_near(&self, place: &[OwnedStep]) -> bool {
        let inside = || {
            let from = (Bound::Included(place), Bound::Unbounded);
            self.at.range::<[OwnedStep], _>(from).next().is_some_and(|fault| fault.starts_with(place))
        };
        let around = || (0..place.len()).any(|steps| self.at.contains(&place[..steps]));
        self.is_full || inside() || around()
    }
}

/// Turns a problem into a violation of the file. In its help, `{file}` and `{line}` stand for the place, in a command.
pub(crate) fn violation(file: &str, problem: Problem, object: Option<&str>) -> Violation {
    let Problem { mark: Mark { line, column }, rule, message, mut help } = problem;
    if help.contains("{file}") {
        help = help.replace("{line}", &line.to_string()).replace("{file}", &shell_word(file));
    }
    Violation {
        file: file.to_owned(),
        line,
        column,
        severity: rule.severity,
        rule: rule.id.to_owned(),
        message: shortened(message, TEXT_MAX_CHARS),
        help: shortened(help, TEXT_MAX_CHARS),
        object: object.map(|object| shortened(object.to_owned(), TEXT_MAX_CHARS)),
    }
}

/// Reports an object that is larger than what fits under one key.
pub(crate) fn object_too_large(mark: Mark, bytes: usize) -> Problem {
    let message = format!("the object has {bytes} bytes as JSON; the limit is {}", limits::OBJECT_MAX_BYTES);
    Problem::new(mark, &rules::TOO_LARGE, message)
        .help("move big text into files of the repository and mount them with a repo volume")
}

/// Returns the note that `what`, found at `mark`, has no effect: `why`.
pub(crate) fn left_out(mark: Mark, what: &str, why: &str) -> Problem {
    let message = format!("`{what}` has no effect here and is left out: {why}");
    Problem::new(mark, &rules::NO_EFFECT, message)
}

// Notes and errors that a rewrite adds.

/// Collects the notes and errors of a rewrite.
pub(crate) struct Notes<'a> {
    problems: &'a mut Problems,
    /// Remaining budget of the file: some spellings hold text that is parsed in turn.
    pub(crate) budget: &'a mut Budget,
    /// Kind in the manifest, if it is read as another one: messages name it.
    pub(crate) kind_word: Option<&'static str>,
    is_whole: bool,
}

impl<'a> Notes<'a> {
    pub(crate) fn new(problems: &'a mut Problems, budget: &'a mut Budget) -> Self {
        Self { problems, budget, kind_word: None, is_whole: true }
    }

    /// True if every older spelling was carried over.
    pub(crate) fn is_complete(&self) -> bool {
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
        self.problems.push(left_out(mark, old, why));
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

#[cfg(test)]
mod tests {
    use super::super::node::Mark;
    use super::*;
    use crate::violation::rules;

    fn steps(text: &str) -> Vec<OwnedStep> {
        text.split('.')
            .filter(|step| !step.is_empty())
            .map(|step| OwnedStep::Field(step.to_owned()))
            .collect()
    }

    #[test]
    fn near_is_the_same_place_one_around_and_one_inside() {
        let mut faults = Faults::default();
        for at in ["spec.a.b", "spec.b", "spec.c.d.e"] {
            faults.push(steps(at));
        }
        for (place, is_near) in [
            ("", true),
            ("spec", true),
            ("spec.a", true),
            ("spec.a.b.c", true),
            ("spec.a.c", false),
            ("spec.ab", false),
            ("spec.b", true),
            ("spec.c.d", true),
            ("spec.c.dd", false),
            ("metadata", false),
        ] {
            assert_eq!(faults.any_near(&steps(place)), is_near, "{place}");
        }
        assert!(!Faults::default().any_near(&steps("")));
    }

    #[test]
    fn very_many_problems_are_counted_and_an_error_is_among_those_kept() {
        let problem = |rule| Problem::new(Mark::default(), rule, "");
        let many = || vec![problem(&rules::NAME_STYLE); 3 * KEPT_MAX];
        let mut problems = Problems::from(many());
        assert!(!problems.has_errors());
        problems.append(Problems::from(many()));
        problems.push(problem(&rules::REQUIRED));
        assert!(problems.has_errors());
        let (kept, left_out) = problems.into_parts();
        assert_eq!((kept.len(), left_out), (KEPT_MAX + 1, 5 * KEPT_MAX));
        assert!(kept.iter().any(|problem| problem.rule == &rules::REQUIRED));
    }
}
