//! What of the services' rules is in the kernel, out of the text of `iptables-save`. Pure.
//!
//! Of a chain of ours only a fingerprint is kept: the rules of 1,000 services are 5 MB of text.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::names::ServiceNames;
use crate::converge::network::parse::{SavedLine, SavedRules, after, saved_lines, words};
use crate::converge::network::render::ChainRef;

/// Of a chain's rules in order, word by word, however they are quoted.
pub type Fingerprint = u64;

/// The fingerprint of these rules, each without `-A CHAIN`.
pub fn fingerprint<'a>(rules: impl Iterator<Item = &'a str>) -> Fingerprint {
    let mut hasher = DefaultHasher::new();
    rules.for_each(|rule| words(rule).hash(&mut hasher));
    hasher.finish()
}

/// What is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Present {
    /// Our chains.
    pub chains: BTreeMap<ChainRef, Fingerprint>,
    /// The kernel's chains in which our jumps stand, with all their rules.
    pub bases: SavedRules,
    /// Chains of ours to which rules of others lead: they can't be removed.
    pub held: BTreeSet<ChainRef>,
}

/// Reads what `iptables-save` printed.
pub fn present(text: &str, names: &ServiceNames) -> Present {
    let bases: BTreeSet<ChainRef> = names.jumps().into_iter().map(|jump| jump.base).collect();
    let mut present = Present::default();
    let mut hashers: BTreeMap<ChainRef, DefaultHasher> = BTreeMap::new();
    for line in saved_lines(text) {
        match line {
            SavedLine::Chain(chain) if names.is_ours(&chain) => drop(hashers.entry(chain).or_default()),
            SavedLine::Chain(chain) if bases.contains(&chain) => {
                present.bases.entry(chain).or_default();
            }
            SavedLine::Chain(_) => {}
            SavedLine::Rule(chain, rule) => {
                let rule = words(rule);
                if let Some(hasher) = hashers.get_mut(&chain) {
                    rule.hash(hasher);
                    continue;
                }
                let target = after(&rule, "-j").or_else(|| after(&rule, "-g"));
                let to = target.map(|to| ChainRef::new(chain.table, to)).filter(|to| names.is_ours(to));
                present.held.extend(to);
                if let Some(rules) = present.bases.get_mut(&chain) {
                    rules.push(rule);
                }
            }
        }
    }
    present.chains = hashers.into_iter().map(|(chain, hasher)| (chain, hasher.finish())).collect();
    present
}
