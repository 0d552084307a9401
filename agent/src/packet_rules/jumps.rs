//! Plans the insertion of jumps into the kernel's chains and the removal of our chains, with the reason for each
//! change. Pure.
//!
//! Jumps are repaired by `iptables-restore`, in the transaction that writes the chains to which they lead; the
//! `iptables` crate would repair each with a separate call, and leave gaps in between.

use std::collections::BTreeSet;
use std::fmt;

use super::chain::{ChainRef, Jump};
use super::restore::RuleChange;
use super::saved::{SavedRules, Words, flag_value, join_words, words};

/// Reason for changing a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleReason {
    Missing,
    Differs,
    Shadowed,
    /// The rule was a duplicate, or a wrong jump into our chain.
    Surplus,
}

impl fmt::Display for RuleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleReason::Missing => "was missing",
            RuleReason::Differs => "differed",
            RuleReason::Shadowed => "was shadowed by a rule that matches all packets",
            RuleReason::Surplus => "was surplus",
        })
    }
}

/// Plans the changes that place the jump among the existing rules `there`, exactly once, and before every rule that
/// takes all packets or leads to a chain that `hides` it.
pub fn jump_changes(
    jump: &Jump,
    there: &[Words],
    hides: impl Fn(&str) -> bool,
    changes: &mut Vec<(RuleChange, RuleReason)>,
) {
    let wanted = words(&jump.rule);
    let leads_to_ours = |rule: &&Words| flag_value(rule, "-j") == Some(&jump.to);
    let first = there.iter().position(|rule| *rule == wanted);
    let before_ours = |rule: &Words| takes_all(rule) || flag_value(rule, "-j").is_some_and(&hides);
    let shadowed = first.is_some_and(|at| there[..at].iter().any(before_ours));
    let keep = first.filter(|_| !shadowed);
    for (at, rule) in there.iter().enumerate().filter(|(_, rule)| leads_to_ours(rule)) {
        if keep != Some(at) {
            let why = if shadowed && first == Some(at) { RuleReason::Shadowed } else { RuleReason::Surplus };
            let delete = RuleChange::DeleteJump { base: jump.base.clone(), rule: join_words(rule) };
            changes.push((delete, why));
        }
    }
    if keep.is_none() {
        let why = if shadowed { RuleReason::Shadowed } else { RuleReason::Missing };
        changes.push((RuleChange::InsertJump { base: jump.base.clone(), rule: jump.rule.clone() }, why));
    }
}

/// True if no packet passes this rule. A rule with a condition is someone's intent and stays before ours; so does a
/// jump into another's chain, or two programs would swap places forever.
fn takes_all(rule: &Words) -> bool {
    let target = match rule.as_slice() {
        [flag, target, ..] if flag == "-j" => target,
        _ => return false,
    };
    matches!(target.as_str(), "ACCEPT" | "DROP" | "REJECT" | "RETURN" | "MASQUERADE")
}

/// Plans the removal of the chains `ours`: jumps first, then the chains.
pub fn removal(ours: &BTreeSet<ChainRef>, saved: &SavedRules) -> Vec<RuleChange> {
    let leads_to_ours = |base: &ChainRef, rule: &Words| {
        flag_value(rule, "-j").is_some_and(|to| ours.contains(&ChainRef::new(base.table, to)))
    };
    let mut changes = Vec::new();
    for (base, rules) in saved.iter().filter(|(chain, _)| !ours.contains(chain)) {
        for rule in rules.iter().filter(|rule| leads_to_ours(base, rule)) {
            changes.push(RuleChange::DeleteJump { base: base.clone(), rule: join_words(rule) });
        }
    }
    let there = ours.iter().filter(|chain| saved.contains_key(chain));
    changes.extend(there.map(|chain| RuleChange::DropChain { chain: chain.clone() }));
    changes
}
