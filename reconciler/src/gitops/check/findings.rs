//! Bounded findings of the checks across objects: one file of a megabyte may name a hundred thousand missing
//! objects. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use schema::manifest::limits::VIOLATIONS_MAX;
use schema::violation::{Violation, rules};

/// Limit on findings kept over all files. Above it, each file still gets one: the reason for its quarantine.
const KEPT_MAX: usize = 250_000;

/// Violations by file.
#[derive(Debug, Default)]
pub(super) struct Findings {
    files: BTreeMap<Arc<str>, OfFile>,
    kept: usize,
}

#[derive(Debug, Default)]
struct OfFile {
    kept: Vec<Violation>,
    left_out: usize,
}

impl OfFile {
    /// Keeps the first `most`, without duplicates. Returns the number removed.
    fn cut(&mut self, most: usize) -> usize {
        let before = self.kept.len();
        self.kept.sort_by(|one, other| order(one).cmp(&order(other)));
        self.kept.dedup();
        self.left_out += self.kept.len().saturating_sub(most);
        self.kept.truncate(most);
        before - self.kept.len()
    }
}

/// Orders errors first, then by place.
fn order(violation: &Violation) -> impl Ord + '_ {
    (violation.severity, violation)
}

impl Findings {
    pub(super) fn add(&mut self, file: &Arc<str>, violation: Violation) {
        let of_file = self.files.entry(Arc::clone(file)).or_default();
        if self.kept >= KEPT_MAX && !of_file.kept.is_empty() {
            of_file.left_out += 1;
            return;
        }
        of_file.kept.push(violation);
        self.kept += 1;
        // Not at each addition, so that everything is sorted only a few times.
        if of_file.kept.len() >= 2 * VIOLATIONS_MAX {
            self.kept -= of_file.cut(VIOLATIONS_MAX);
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Violation> {
        self.files.values().flat_map(|of_file| &of_file.kept)
    }

    /// Merges the findings into earlier violations, in the order of places. A file's own violations come first if
    /// there are more than are reported.
    pub(super) fn join(
        mut self,
        mut own: BTreeMap<Arc<str>, Vec<Violation>>,
    ) -> BTreeMap<Arc<str>, Vec<Violation>> {
        for (file, violations) in &mut own {
            let mut of_file = self.files.remove(file).unwrap_or_default();
            // A file without own errors is here because of these findings, and has room for them.
            of_file.cut(VIOLATIONS_MAX.saturating_sub(violations.len()));
            violations.append(&mut of_file.kept);
            if of_file.left_out > 0 {
                let message =
                    format!("{} more violations across objects of this file are not shown", of_file.left_out);
                violations.push(Violation::of(&rules::MORE_VIOLATIONS, &**file, (0, 0), message));
            }
            violations.sort();
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(line: u32, message: &str) -> Violation {
        Violation::of(&rules::DANGLING_TARGET, "a.yaml", (line, 1), message)
    }

    /// Seen red without a bound per file, and with one that kept the first that came.
    #[test]
    fn of_very_many_the_first_are_reported_and_how_many_are_not() {
        let (file, mut findings): (Arc<str>, _) = (Arc::from("a.yaml"), Findings::default());
        for line in (1..=104_896).rev() {
            findings.add(&file, violation(line, "there is no Pod/default/x"));
        }
        assert!(findings.kept < 2 * VIOLATIONS_MAX);
        let own = vec![violation(7, "its own"); 10];
        let all = findings.join(BTreeMap::from([(Arc::clone(&file), own)]));
        let all = &all["a.yaml"];
        assert_eq!(all.len(), VIOLATIONS_MAX + 1);
        assert_eq!(all[0].message, "103906 more violations across objects of this file are not shown");
        assert_eq!((all[1].line, all[VIOLATIONS_MAX].line), (1, 990));
    }

    /// Seen red without the bound on all files.
    #[test]
    fn of_very_many_files_each_is_shown_one() {
        let mut findings = Findings::default();
        let files: Vec<Arc<str>> = (0..700).map(|number| Arc::from(format!("{number:03}.yaml"))).collect();
        for file in &files {
            for line in 1..=900 {
                findings.add(file, violation(line, "there is no Pod/default/x"));
            }
        }
        assert!(findings.kept <= KEPT_MAX + files.len());
        let all = findings.join(files.iter().map(|file| (Arc::clone(file), Vec::new())).collect());
        assert_eq!(all["000.yaml"].len(), 900);
        let last: Vec<&str> = all["699.yaml"].iter().map(|one| one.rule.as_str()).collect();
        assert_eq!(last, ["more-violations", "dangling-target"]);
    }

    /// Seen red without `dedup`.
    #[test]
    fn what_is_found_twice_is_reported_once() {
        let (file, mut findings): (Arc<str>, _) = (Arc::from("a.yaml"), Findings::default());
        (0..5000).for_each(|number| findings.add(&file, violation(number % 2, "the same")));
        let all = findings.join(BTreeMap::from([(file, Vec::new())]));
        assert_eq!(all["a.yaml"].len(), 2);
    }
}
