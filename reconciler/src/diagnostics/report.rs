//! Findings of a check, in order, with totals.

use std::collections::BTreeSet;

use schema::violation::{Severity, Violation, rules};
use serde::Serialize;

use schema::violation::plural;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub violations: Vec<Violation>,
    pub objects: usize,
    /// Number of files meant as manifests.
    pub files: usize,
    /// Workflow test cases that were run.
    pub cases: CaseCounts,
}

/// Numbers of passed and failed workflow test cases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CaseCounts {
    pub passed: usize,
    pub failed: usize,
}

impl CaseCounts {
    /// Counts a test case.
    pub fn add(&mut self, holds: bool) {
        let count = if holds { &mut self.passed } else { &mut self.failed };
        *count += 1;
    }

    /// `3 workflow test cases passed`; `None` without any.
    fn summary(self) -> Option<String> {
        let all = plural(self.passed + self.failed, "workflow test case");
        match self {
            Self { passed: 0, failed: 0 } => None,
            Self { failed: 0, .. } => Some(format!("{all} passed")),
            Self { passed, .. } => Some(format!("{passed} of {all} passed")),
        }
    }
}

impl Report {
    /// Creates a report of these violations, without duplicates.
    pub fn new(violations: impl IntoIterator<Item = Violation>, objects: usize, files: usize) -> Self {
        let violations: BTreeSet<Violation> = violations.into_iter().collect();
        Self { violations: violations.into_iter().collect(), objects, files, cases: CaseCounts::default() }
    }

    pub fn count(&self, severity: Severity) -> usize {
        self.violations.iter().filter(|violation| violation.severity == severity).count()
    }

    /// True if nothing keeps a file from being applied.
    pub fn is_ok(&self) -> bool {
        self.count(Severity::Error) == 0
    }

    /// `3 errors, 1 warning in 2 files; 14 objects`; `at least 3 errors` if a file has more than are shown.
    pub fn summary(&self) -> String {
        let cases = self.cases.summary().map(|cases| format!("; {cases}"));
        self.without_cases() + &cases.unwrap_or_default()
    }

    fn without_cases(&self) -> String {
        let total = format!("{} in {}", plural(self.objects, "object"), plural(self.files, "file"));
        if self.violations.is_empty() {
            return format!("no errors, no warnings; {total}");
        }
        let counts = [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Note, "note")];
        let shown = counts.map(|(severity, word)| (self.count(severity), word));
        let shown: Vec<String> = shown
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| plural(count, word))
            .collect();
        let places: BTreeSet<&str> =
            self.violations.iter().map(|violation| violation.file.as_str()).collect();
        let at_least = if self.violations.iter().any(is_truncation_note) { "at least " } else { "" };
        format!(
            "{at_least}{} in {}; {}",
            shown.join(", "),
            plural(places.len(), "file"),
            plural(self.objects, "object")
        )
    }
}

/// True for the note that a file has more violations than are shown.
pub fn is_truncation_note(violation: &Violation) -> bool {
    violation.rule == rules::MORE_VIOLATIONS.id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(file: &str, line: u32, severity: Severity) -> Violation {
        Violation {
            file: file.to_owned(),
            line,
            column: 1,
            severity,
            rule: "quantity".to_owned(),
            message: "m".to_owned(),
            help: String::new(),
            object: None,
        }
    }

    #[test]
    fn the_summary_counts_what_there_is() {
        assert_eq!(Report::new([], 14, 9).summary(), "no errors, no warnings; 14 objects in 9 files");
        let found = [
            violation("b.yaml", 1, Severity::Error),
            violation("a.yaml", 9, Severity::Warning),
            violation("a.yaml", 2, Severity::Error),
            violation("a.yaml", 2, Severity::Error),
        ];
        let report = Report::new(found, 1, 9);
        assert_eq!(report.summary(), "2 errors, 1 warning in 2 files; 1 object");
        let order: Vec<_> = report.violations.iter().map(|v| (v.file.as_str(), v.line)).collect();
        assert_eq!(order, [("a.yaml", 2), ("a.yaml", 9), ("b.yaml", 1)], "in order, and each once");
        assert!(!report.is_ok());
    }

    #[test]
    fn the_summary_says_how_many_cases_of_workflows_passed() {
        let with = |passed, failed| {
            Report { cases: CaseCounts { passed, failed }, ..Report::new([], 1, 1) }.summary()
        };
        assert_eq!(with(3, 0), "no errors, no warnings; 1 object in 1 file; 3 workflow test cases passed");
        assert_eq!(
            with(2, 1),
            "no errors, no warnings; 1 object in 1 file; 2 of 3 workflow test cases passed"
        );
    }

    #[test]
    fn of_a_file_with_more_than_are_reported_the_summary_does_not_count_all() {
        let more = Violation {
            rule: rules::MORE_VIOLATIONS.id.to_owned(),
            ..violation("a.yaml", 0, Severity::Note)
        };
        let report = Report::new([violation("a.yaml", 1, Severity::Error), more], 1, 1);
        assert_eq!(report.summary(), "at least 1 error, 1 note in 1 file; 1 object");
    }

    #[test]
    fn warnings_and_notes_alone_are_no_failure() {
        assert!(Report::new([violation("a.yaml", 1, Severity::Warning)], 1, 1).is_ok());
    }
}
