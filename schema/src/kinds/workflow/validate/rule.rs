//! Checks of Choice rules.

use serde_json::Value as Json;

use super::paths::{self, PathKind};
use crate::kinds::workflow::{self, NESTING_MAX, Operand, Operator, Rule};
use crate::violation::{Findings, Path, rules};

/// Checks a rule at `at`; `depth` is the number of rules around it.
pub(super) fn check(rule: &Rule, at: &Path<'_>, depth: usize, findings: &mut Findings) {
    if depth >= NESTING_MAX {
        let message = format!("rules are nested more than {NESTING_MAX} deep");
        findings.add(&rules::TOO_DEEP, at, message).help("split it into several Choice states");
        return;
    }
    next(rule, at, depth, findings);
    let joined = [("and", rule.and.is_some()), ("or", rule.or.is_some()), ("not", rule.not.is_some())];
    let joined: Vec<&str> = joined.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
    match (joined.as_slice(), &rule.variable, rule.comparisons.len()) {
        ([], Some(variable), _) => comparison(rule, variable, at, findings),
        ([_], None, 0) => {}
        ([], None, 0) => {
            let message = "Required value: exactly one of `and`, `or`, `not`, or `variable` with an operator";
            findings.add(&rules::EXCLUSIVE, at, message);
        }
        ([], None, _) => {
            let path = at.field("variable");
            findings.add(&rules::MISSING_FIELD, &path, "Required value: the path of the value to compare");
        }
        ([first, ..], _, _) => {
            let message =
                "Forbidden: a rule has exactly one of `and`, `or`, `not`, or `variable` with an operator";
            findings
                .add(&rules::EXCLUSIVE, &at.field(first), message)
                .on_key()
                .help("put the others into it");
        }
    }
    for (name, list) in [("and", &rule.and), ("or", &rule.or)] {
        let (Some(list), here) = (list, at.field(name)) else { continue };
        if list.is_empty() {
            findings.add(&rules::REQUIRED, &here, "Required value: at least one rule").on_key();
        }
        for (index, rule) in list.iter().enumerate() {
            check(rule, &here.index(index), depth + 1, findings);
        }
    }
    if let Some(inner) = &rule.not {
        check(inner, &at.field("not"), depth + 1, findings);
    }
}

fn next(rule: &Rule, at: &Path<'_>, depth: usize, findings: &mut Findings) {
    match (&rule.next, depth) {
        (None, 0) => {
            let message = "Required value: the state to go to if the rule matches";
            findings.add(&rules::MISSING_FIELD, &at.field("next"), message);
        }
        (Some(_), 1..) => {
            findings
                .add(&rules::EXCLUSIVE, &at.field("next"), "Forbidden: a nested rule has no `next`")
                .on_key()
                .help("set `next` on the outer rule");
        }
        _ => {}
    }
}

fn comparison(rule: &Rule, variable: &str, at: &Path<'_>, findings: &mut Findings) {
    paths::check(variable, PathKind::Single, &at.field("variable"), findings);
    let mut comparisons = rule.comparisons.iter();
    let Some((operator, operand)) = comparisons.next() else {
        let message = "Required value: an operator, for example `numericEquals`";
        findings.add(&rules::EXCLUSIVE, at, message);
        return;
    };
    for (other, _) in comparisons {
        let message = format!("Forbidden: the rule already has the operator `{operator}`");
        findings
            .add(&rules::EXCLUSIVE, &at.field(other.as_str()), message)
            .on_key()
            .help("join two rules with `and`");
    }
    self::operand(*operator, operand, &at.field(operator.as_str()), findings);
}

fn operand(operator: Operator, operand: &Json, at: &Path<'_>, findings: &mut Findings) {
    let text = operand.as_str().unwrap_or_default();
    match operator.operand() {
        Operand::Path => paths::check(text, PathKind::Single, at, findings),
        Operand::Timestamp => timestamp(text, at, findings),
        Operand::Text | Operand::Number | Operand::Bool => {}
    }
}

/// Checks a point in time.
pub(super) fn timestamp(text: &str, at: &Path<'_>, findings: &mut Findings) {
    if workflow::timestamp(text).is_none() {
        let message = format!("Invalid value: `{text}` is not a timestamp of RFC 3339");
        findings.add(&rules::TIMESTAMP, at, message).help("for example `2030-01-31T12:00:00Z`");
    }
}
