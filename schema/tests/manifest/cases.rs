//! Invalid manifests as a table: each breaks one rule at one position. `§` marks the position and is removed.

use schema::violation::{Severity, Violation, rules as known};

use super::{load, rule_at};

/// Rule, and the text with its mark.
pub(crate) type Case = (&'static str, String);

/// Removes the mark; returns the text, and `line:column` of the mark.
pub(crate) fn unmarked(marked: &str) -> (String, String) {
    let before = marked.split('§').next().unwrap_or_default();
    assert!(before.len() < marked.len(), "no mark in {marked}");
    let (line, column) = (
        before.matches('\n').count() + 1,
        before.rsplit('\n').next().unwrap_or_default().chars().count() + 1,
    );
    (marked.replacen('§', "", 1), format!("{line}:{column}"))
}

/// True for all violations but notes on older spellings.
fn is_told(violation: &Violation) -> bool {
    violation.severity != Severity::Note || violation.rule == known::NO_EFFECT.id
}

/// Asserts that each case breaks exactly its rule at its position.
#[track_caller]
pub(crate) fn check(cases: &[Case]) {
    let mut wrong = String::new();
    for (rule, marked) in cases {
        let (text, place) = unmarked(marked);
        let reported = load(&text).violations;
        let found: Vec<String> = reported.iter().filter(|one| is_told(one)).map(rule_at).collect();
        let wanted = vec![format!("{rule} {place}")];
        if found != wanted {
            wrong.push_str(&format!("{text}wanted {wanted:?}\nfound  {found:?}\n\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Messages of each case without notes on older spellings, one per line.
pub(crate) fn messages(cases: &[Case]) -> String {
    let reported = |(_, marked): &Case| load(&unmarked(marked).0).violations;
    let reported = cases.iter().flat_map(reported);
    let reported = reported.filter(is_told);
    reported.map(|violation| format!("{violation}\n")).collect()
}

/// A document of `kind` and `api_version` whose spec is `spec`, indented by two.
pub(crate) fn document(api_version: &str, kind: &str, spec: &str) -> String {
    let indented: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!("apiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: web\nspec:\n{indented}")
}
