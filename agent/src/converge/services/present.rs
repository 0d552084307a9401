//! Extracts the services' existing rules from the text of `iptables-save`. Pure.
//!
//! Of our chains only a fingerprint is kept: the rules of 1,000 services are 5 MB of text.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher as _};

use super::names::ServiceNames;
use crate::packet_rules::chain::ChainRef;
use crate::packet_rules::saved::{
    ChainText, SavedLine, SavedRules, each_word, flag_value, saved_lines, words,
};

/// Fingerprint of a chain's rules in order, word by word, regardless of quoting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fingerprint {
    pub rules: usize,
    hash: u64,
}

impl ChainText for Fingerprint {
    fn rules(&self) -> usize {
        self.rules
    }
}

/// Builds a fingerprint rule by rule.
#[derive(Default)]
struct FingerprintBuilder {
    rules: usize,
    hasher: DefaultHasher,
}

impl FingerprintBuilder {
    fn rule(&mut self, rule: &str) {
        self.rules += 1;
        each_word(rule, |word| {
            self.hasher.write(word.as_bytes());
            // Never a byte of UTF-8 text: other word boundaries give another hash.
            self.hasher.write_u8(0xFF);
        });
        self.hasher.write_u8(0xFE);
    }

    fn finish(&self) -> Fingerprint {
        Fingerprint { rules: self.rules, hash: self.hasher.finish() }
    }
}

/// Returns the fingerprint of these rules, each without `-A CHAIN`.
pub fn fingerprint<'a>(rules: impl Iterator<Item = &'a str>) -> Fingerprint {
    let mut prints = FingerprintBuilder::default();
    rules.for_each(|rule| prints.rule(rule));
    prints.finish()
}

/// Existing rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExistingRules {
    pub chains: BTreeMap<ChainRef, Fingerprint>,
    /// Kernel chains that contain our jumps, with all their rules.
    pub bases: SavedRules,
    /// Chains of ours that foreign rules lead to: they can't be removed.
    pub held: BTreeSet<ChainRef>,
}

/// Parses the output of `iptables-save`.
pub fn present(text: &str, names: &ServiceNames) -> ExistingRules {
    let bases: BTreeSet<ChainRef> = names.jumps().into_iter().map(|jump| jump.base).collect();
    let mut present = ExistingRules::default();
    let mut ours: BTreeMap<ChainRef, FingerprintBuilder> = BTreeMap::new();
    for line in saved_lines(text) {
        match line {
            SavedLine::Chain(chain) if names.is_ours(&chain) => drop(ours.entry(chain).or_default()),
            SavedLine::Chain(chain) if bases.contains(&chain) => {
                present.bases.entry(chain).or_default();
            }
            SavedLine::Chain(_) => {}
            SavedLine::Rule(chain, rule) => {
                if let Some(prints) = ours.get_mut(&chain) {
                    prints.rule(rule);
                    continue;
                }
                let rule = words(rule);
                let target = flag_value(&rule, "-j").or_else(|| flag_value(&rule, "-g"));
                let to = target.map(|to| ChainRef::new(chain.table, to)).filter(|to| names.is_ours(to));
                present.held.extend(to);
                if let Some(rules) = present.bases.get_mut(&chain) {
                    rules.push(rule);
                }
            }
        }
    }
    present.chains = ours.into_iter().map(|(chain, prints)| (chain, prints.finish())).collect();
    present
}
