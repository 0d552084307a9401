//! Changes of rules, and their text for `iptables-restore --noflush`. Pure.
//!
//! iptables 1.8 walks the list of a transaction's chains for each line: 11,000 chains take 2.3 s in one
//! transaction, 0.8 s in parts (1.8.9, two cores). So chains to which no rule leads yet, or any more, are written
//! before the transaction that affects traffic, and removed after it, in the order of the changes: with chains
//! sorted by name, `iptables-save` takes 1.1 s instead of 0.3 s to sort its output.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::chain::{ChainRef, Table};

/// Maximum number of chains in one transaction if there are more: few enough that walking the list costs nothing
/// yet, while the transaction itself costs little.
pub const PART: usize = 128;

/// A change of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleChange {
    /// Sets the rules of the chain, each without `-A CHAIN`; creates the chain if it is missing.
    WriteChain { chain: ChainRef, rules: Vec<String> },
    /// Inserts the rule as the first of a chain of the kernel.
    InsertJump { base: ChainRef, rule: String },
    /// Deletes one occurrence of the rule from a chain of the kernel.
    DeleteJump { base: ChainRef, rule: String },
    /// Removes the chain, to which no rule may lead any more.
    DropChain { chain: ChainRef },
}

impl RuleChange {
    fn chain(&self) -> &ChainRef {
        match self {
            RuleChange::WriteChain { chain, .. } | RuleChange::DropChain { chain } => chain,
            RuleChange::InsertJump { base, .. } | RuleChange::DeleteJump { base, .. } => base,
        }
    }

    /// Returns the chain to declare, which empties it before rules are added.
    fn declares(&self) -> Option<&str> {
        match self {
            RuleChange::WriteChain { chain, .. } | RuleChange::DropChain { chain } => Some(&chain.chain),
            RuleChange::InsertJump { .. } | RuleChange::DeleteJump { .. } => None,
        }
    }
}

impl fmt::Display for RuleChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleChange::WriteChain { chain, .. } | RuleChange::DropChain { chain } => write!(f, "{chain}"),
            RuleChange::InsertJump { base, rule } | RuleChange::DeleteJump { base, rule } => {
                write!(f, "{base} {rule}")
            }
        }
    }
}

/// Renders the changes as one input of `iptables-restore --noflush`; empty without changes. A declared chain is
/// emptied first, in the same transaction of its table.
pub fn restore_input<'a>(changes: impl IntoIterator<Item = &'a RuleChange>) -> String {
    let mut text = String::new();
    write_transactions(&changes.into_iter().collect::<Vec<_>>(), &mut text);
    text
}

/// Renders the changes like [`restore_input`]; with many changes, the chains of `unreached`, to which no active
/// rule leads yet, are written ahead, and surplus chains are removed last, in transactions of `part` chains.
pub fn restore_in_parts(changes: &[RuleChange], unreached: &BTreeSet<ChainRef>, part: usize) -> String {
    if changes.len() <= part {
        return restore_input(changes);
    }
    let mut text = String::new();
    let (mut ahead, mut in_order, mut at_once) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut surplus: Vec<&RuleChange> = Vec::new();
    for change in changes {
        match change {
            RuleChange::WriteChain { chain, rules } if unreached.contains(chain) => {
                ahead.insert(chain, (change, rules.as_slice()));
                in_order.push(chain);
            }
            RuleChange::DropChain { .. } => surplus.push(change),
            _ => at_once.push(change),
        }
    }
    // Each after the chains to which its rules lead.
    let (mut seen, mut leaves_first) = (BTreeSet::new(), Vec::new());
    for chain in in_order {
        order_chain(chain, &ahead, &mut seen, &mut leaves_first);
    }
    for chains in leaves_first.chunks(part) {
        write_transactions(chains, &mut text);
    }
    write_transactions(&at_once, &mut text);
    // All are emptied before any is removed: they lead to each other.
    let empty = |chain: &ChainRef| RuleChange::WriteChain { chain: chain.clone(), rules: Vec::new() };
    let emptied: Vec<RuleChange> = surplus.iter().map(|change| empty(change.chain())).collect();
    for changes in emptied.iter().collect::<Vec<_>>().chunks(part).chain(surplus.chunks(part)) {
        write_transactions(changes, &mut text);
    }
    text
}

/// Appends `chain` after the chains to which it leads. Chains lead a few levels deep, and never in a circle.
fn order_chain<'a>(
    chain: &ChainRef,
    chains: &BTreeMap<&'a ChainRef, (&'a RuleChange, &'a [String])>,
    seen: &mut BTreeSet<&'a ChainRef>,
    order: &mut Vec<&'a RuleChange>,
) {
    let Some((known, (change, rules))) = chains.get_key_value(chain) else { return };
    if !seen.insert(known) {
        return;
    }
    for (_, to) in rules.iter().filter_map(|rule| rule.rsplit_once("-j ")) {
        order_chain(&ChainRef::new(chain.table, to), chains, seen, order);
    }
    order.push(change);
}

/// Writes one transaction for each affected table.
fn write_transactions(changes: &[&RuleChange], text: &mut String) {
    for table in [Table::Filter, Table::Mangle, Table::Nat] {
        let of_table: Vec<&RuleChange> =
            changes.iter().filter(|c| c.chain().table == table).copied().collect();
        if of_table.is_empty() {
            continue;
        }
        line(text, format_args!("*{table}"));
        // Sorted like iptables keeps them: many chains in another order take six times as long.
        for chain in of_table.iter().filter_map(|change| change.declares()).collect::<BTreeSet<_>>() {
            line(text, format_args!(":{chain} - [0:0]"));
        }
        for change in &of_table {
            match change {
                RuleChange::WriteChain { chain, rules } => {
                    for rule in rules {
                        line(text, format_args!("-A {} {rule}", chain.chain));
                    }
                }
                RuleChange::InsertJump { base, rule } => {
                    line(text, format_args!("-I {} 1 {rule}", base.chain));
                }
                RuleChange::DeleteJump { base, rule } => {
                    line(text, format_args!("-D {} {rule}", base.chain));
                }
                RuleChange::DropChain { .. } => {}
            }
        }
        for change in &of_table {
            if let RuleChange::DropChain { chain } = change {
                line(text, format_args!("-X {}", chain.chain));
            }
        }
        line(text, format_args!("COMMIT"));
    }
}

fn line(text: &mut String, arguments: fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("a string takes every write");
}
