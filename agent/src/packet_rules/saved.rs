//! Parser for the output of `iptables-save`, restricted to requested chains. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::chain::{ChainRef, Table};

/// Words of a rule, without `-A CHAIN`; quotes are resolved.
pub type Words = Vec<String>;

/// Chains with their rules in order.
pub type SavedRules = BTreeMap<ChainRef, Vec<Words>>;

/// A line of a known table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SavedLine<'a> {
    Chain(ChainRef),
    /// A rule of this chain, without `-A CHAIN`.
    Rule(ChainRef, &'a str),
}

/// Returns the chains and rules in the text of `iptables-save`, in order.
pub fn saved_lines(text: &str) -> impl Iterator<Item = SavedLine<'_>> {
    let mut table = None;
    text.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = match name.trim() {
                "filter" => Some(Table::Filter),
                "mangle" => Some(Table::Mangle),
                "nat" => Some(Table::Nat),
                _ => None,
            };
            return None;
        }
        let table = table?;
        if let Some(declared) = line.strip_prefix(':') {
            let name = declared.split(' ').next().unwrap_or_default();
            return Some(SavedLine::Chain(ChainRef::new(table, name)));
        }
        let rule = line.strip_prefix("-A ")?;
        let (name, rule) = rule.split_once(' ').unwrap_or((rule, ""));
        Some(SavedLine::Rule(ChainRef::new(table, name), rule))
    })
}

/// Extracts the chains selected by `wanted` from the text of `iptables-save`. Missing chains are absent from the
/// result.
pub fn saved_rules(text: &str, wanted: impl Fn(&ChainRef) -> bool) -> SavedRules {
    let mut saved = SavedRules::new();
    for line in saved_lines(text) {
        match line {
            SavedLine::Chain(chain) if wanted(&chain) => drop(saved.entry(chain).or_default()),
            SavedLine::Chain(_) => {}
            SavedLine::Rule(chain, rule) => {
                if let Some(rules) = saved.get_mut(&chain) {
                    rules.push(words(rule));
                }
            }
        }
    }
    saved
}

/// Splits a rule into words: blanks separate, double quotes group, a backslash escapes the next character.
pub fn words(rule: &str) -> Words {
    let mut words = Words::new();
    each_word(rule, |word| words.push(word.to_owned()));
    words
}

/// Passes each of the [`words`] of a rule to `take`, without allocating a list: the rules of 1,000 services have
/// half a million.
pub fn each_word(rule: &str, mut take: impl FnMut(&str)) {
    if !rule.contains(['"', '\\']) {
        rule.split([' ', '\t']).filter(|word| !word.is_empty()).for_each(take);
        return;
    }
    let mut word = String::new();
    let (mut is_begun, mut is_quoted) = (false, false);
    let mut characters = rule.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => is_quoted = !is_quoted,
            '\\' => word.extend(characters.next()),
            ' ' | '\t' if !is_quoted => {
                if is_begun {
                    take(&word);
                }
                word.clear();
                is_begun = false;
                continue;
            }
            other => word.push(other),
        }
        is_begun = true;
    }
    if is_begun {
        take(&word);
    }
}

/// Joins words to a rule, quoted where necessary.
pub fn join_words(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,!+=@".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\"")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// Returns the value after a flag.
pub fn flag_value<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == flag)?;
    words.get(at + 1).map(String::as_str)
}

// Rules that iptables prints differently from how they were written, as some versions do; without this module a
// loop would rewrite them forever. Pure. A foreign change must not pass for a spelling: a chain is in doubt only
// if it reads differently from the text written last, with the same number of rules. It is written once more, and
// is a spelling if it reads the same again right after. An empty chain is never one.

/// Comparable form of a chain's rules.
pub trait ChainText: Clone + PartialEq {
    /// Returns the number of rules.
    fn rules(&self) -> usize;
}

impl ChainText for Vec<Words> {
    fn rules(&self) -> usize {
        self.len()
    }
}

/// Written and printed form by chain.
pub type KnownSpellings<T> = BTreeMap<ChainRef, (T, T)>;

/// Chains that may have another spelling, with their printed form from before the second write.
pub type Doubts<T> = BTreeMap<ChainRef, T>;

/// Written rules, and their known spellings in this iptables.
#[derive(Debug)]
pub struct Spellings<T> {
    written: BTreeMap<ChainRef, T>,
    known: Arc<KnownSpellings<T>>,
}

impl<T> Default for Spellings<T> {
    fn default() -> Self {
        Self { written: BTreeMap::new(), known: Arc::default() }
    }
}

impl<T: ChainText> Spellings<T> {
    /// Returns the known spellings.
    pub fn known(&self) -> Arc<KnownSpellings<T>> {
        Arc::clone(&self.known)
    }

    /// Records that the chain was written while it read as in `there`. Adds it to `doubts` if that may be another
    /// spelling.
    pub fn wrote(&mut self, chain: &ChainRef, text: T, there: Option<&T>, doubts: &mut Doubts<T>) {
        if let Some(there) = there.filter(|there| may_be_spelling(&text, there))
            && self.written.get(chain) == Some(&text)
        {
            doubts.insert(chain.clone(), there.clone());
        }
        self.written.insert(chain.clone(), text);
    }

    /// Records that the chain was removed.
    pub fn dropped(&mut self, chain: &ChainRef) {
        self.written.remove(chain);
        if self.known.contains_key(chain) {
            Arc::make_mut(&mut self.known).remove(chain);
        }
    }

    /// Learns spellings from a read directly after the write, with no other change in between.
    pub fn learn<'a>(&mut self, doubts: Doubts<T>, printed: impl Fn(&ChainRef) -> Option<&'a T>)
    where
        T: 'a,
    {
        for (chain, before) in doubts {
            let Some(written) = self.written.get(&chain) else { continue };
            if printed(&chain) == Some(&before) && may_be_spelling(written, &before) {
                tracing::info!(%chain, "other spelling of a chain's rules learned from iptables");
                Arc::make_mut(&mut self.known).insert(chain, (written.clone(), before));
            }
        }
    }
}

/// True if the forms differ, but have the same number of rules, and at least one.
fn may_be_spelling<T: ChainText>(written: &T, printed: &T) -> bool {
    written != printed && written.rules() == printed.rules() && printed.rules() > 0
}

/// True if only this agent has changed rules since `before`, given that its write took this many
/// [`loud_steps`](crate::worlds::iptables::loud_steps). If the kernel does not count changes, this is assumed: the
/// time in between is short.
pub fn only_we_wrote(before: Option<u32>, steps: u32, after: Option<u32>) -> bool {
    before.is_none() || after == before.map(|count| count.wrapping_add(steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_resolve_quotes_and_backslashes() {
        let rule = r#"-m comment --comment "a \"b\" c" --comment "" -j  X"#;
        assert_eq!(words(rule), ["-m", "comment", "--comment", "a \"b\" c", "--comment", "", "-j", "X"]);
    }

    #[test]
    fn words_make_a_rule_that_gives_the_same_words() {
        for rule in
            [r#"-m comment --comment "a \"b\\ c" -j X"#, "-s 10.0.0.0/8 ! -o br0 -j Y", r#"--comment """#]
        {
            assert_eq!(words(&join_words(&words(rule))), words(rule));
        }
    }

    #[test]
    fn only_wanted_chains_of_the_right_table_are_taken() {
        let text = "*nat\n:X - [0:0]\n:OUTPUT ACCEPT [1:2]\n-A X -j RETURN\n-A OUTPUT -j X\nCOMMIT\n\
                    *raw\n:X - [0:0]\n-A X -j DROP\nCOMMIT\n*filter\n:X - [0:0]\nCOMMIT\n";
        let saved = saved_rules(text, |chain| chain.chain == "X");
        assert_eq!(saved[&ChainRef::new(Table::Nat, "X")], [vec!["-j".to_owned(), "RETURN".to_owned()]]);
        assert!(saved[&ChainRef::new(Table::Filter, "X")].is_empty());
        assert_eq!(saved.len(), 2);
    }
}
