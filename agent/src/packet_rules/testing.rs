//! Text model of the kernel's rules, for tests.

use std::collections::BTreeMap;

/// Kernel state without any rule.
pub(crate) const BARE: &str = "\
*filter
:INPUT - [0:0]
:FORWARD - [0:0]
:OUTPUT - [0:0]
COMMIT
*nat
:PREROUTING - [0:0]
:OUTPUT - [0:0]
:POSTROUTING - [0:0]
COMMIT
";

/// Returns the kernel's state after restoring `input` on top of `there`.
pub(crate) fn after_restore(there: &str, input: &str) -> String {
    let mut tables: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for text in [there, input] {
        let mut table = String::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let chains = tables.entry(table.clone()).or_default();
            match words[0] {
                "-A" => {
                    let rules = chains.get_mut(words[1]).expect("a rule of a chain that is not there");
                    rules.push(words[2..].join(" "));
                }
                "-I" => chains.entry(words[1].into()).or_default().insert(0, words[3..].join(" ")),
                "-D" => {
                    let rules = chains.get_mut(words[1]).expect("a rule of a chain that is not there");
                    let at = rules.iter().position(|rule| *rule == words[2..].join(" "));
                    rules.remove(at.expect("a rule that is not there can't be deleted"));
                }
                "-X" => {
                    let rules = chains.remove(words[1]).expect("a chain that is not there");
                    let jump = format!("-j {}", words[1]);
                    assert!(rules.is_empty(), "{line}: it has rules");
                    assert!(!chains.values().flatten().any(|rule| rule.ends_with(&jump)), "{line}: in use");
                }
                _ if line.starts_with('*') => table = line[1..].to_owned(),
                _ if line.starts_with(':') => {
                    chains.insert(words[0][1..].to_owned(), Vec::new());
                }
                _ => {}
            }
        }
    }
    let mut text = String::new();
    for (table, chains) in tables.iter().filter(|(table, _)| !table.is_empty()) {
        text.push_str(&format!("*{table}\n"));
        chains.keys().for_each(|chain| text.push_str(&format!(":{chain} - [0:0]\n")));
        for (chain, rules) in chains {
            rules.iter().for_each(|rule| text.push_str(&format!("-A {chain} {rule}\n")));
        }
        text.push_str("COMMIT\n");
    }
    text
}
