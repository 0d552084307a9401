//! Rewrites `numericNotEquals` and similar operators, which the Amazon States Language lacks, as `not` of the
//! positive rule.

use super::parts::each_state;
use crate::manifest::dialects::tree::{below, entry, items_mut, put, take};
use crate::manifest::dialects::{Node, Notes, Value};

const TYPES: [&str; 4] = ["numeric", "string", "boolean", "timestamp"];

/// Rewrites the rules of every Choice.
pub(super) fn not_equals(spec: &mut Node, notes: &mut Notes<'_>) {
    each_state(spec, &mut |_, state| {
        for choice in below(state, &["choices"]).and_then(items_mut).into_iter().flatten() {
            rule(choice, notes);
        }
    });
}

fn rule(node: &mut Node, notes: &mut Notes<'_>) {
    for joined in ["and", "or"] {
        for inner in below(node, &[joined]).and_then(items_mut).into_iter().flatten() {
            rule(inner, notes);
        }
    }
    if let Some(inner) = below(node, &["not"]) {
        return rule(inner, notes);
    }
    let positive = |key: &str| {
        let kind = key.strip_suffix("NotEquals")?;
        TYPES.iter().find(|known| known.eq_ignore_ascii_case(kind)).map(|known| format!("{known}Equals"))
    };
    let written = node.entries().into_iter().flatten();
    let Some((old, new)) =
        written.filter_map(|entry| Some((entry.key.clone(), positive(&entry.key)?))).next()
    else {
        return;
    };
    let (Some(variable), Some(mut comparison)) = (take(node, "variable"), take(node, &old)) else { return };
    notes.older(comparison.mark, &old, &format!("not: {{variable, {new}}}"));
    let mark = comparison.mark;
    comparison.key = new;
    let inner = Node { mark, value: Value::Mapping(vec![variable, comparison]) };
    put(node, entry("not", mark, inner));
}
