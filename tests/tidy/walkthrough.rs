//! docs/walkthrough.md leads to files and functions that exist, and stays as short as it promises to be.

use std::collections::BTreeSet;
use std::fs;

use crate::{CRATES, check, mentions, names, root};

const PAGE: &str = "docs/walkthrough.md";

/// The walks by their headings, with the most files that each may name.
const WALKS: [(&str, usize); 3] = [
    ("A Pod, from a push to Running", 12),
    ("A Function, from a push to its first call", 12),
    ("A container exits", 6),
];
/// Fewest files of a walk: with fewer it would not be one.
const FILES_MIN: usize = 3;

/// Heading of the index, and its fewest rows.
const INDEX: &str = "Where is the rule for …?";
const RULES_MIN: usize = 30;

/// Keywords that precede a name where it is defined.
const DEFINITIONS: [&str; 8] = ["fn", "struct", "enum", "trait", "const", "static", "type", "mod"];

/// A row of a table whose second column is a file and whose third names functions and types of it.
#[derive(Debug, PartialEq)]
struct Row<'a> {
    path: &'a str,
    names: Vec<&'a str>,
}

/// Parses a line of the page; `None` if it is no such row.
fn row(line: &str) -> Option<Row<'_>> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim).skip(1);
    let path = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
    let names = cells.next()?.split('`').skip(1).step_by(2).collect();
    path.contains('/').then_some(Row { path, names })
}

/// Returns the text below a heading, up to the next one; empty if there is no such heading.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let mut parts = page.split("\n## ").skip(1);
    parts.find_map(|part| part.strip_prefix(heading)?.strip_prefix('\n')).unwrap_or_default()
}

/// Returns the sources of the crates that a section names anywhere, each once.
fn source_files(section: &str) -> BTreeSet<String> {
    let is_source = |path: &String| {
        let in_crate = CRATES.iter().any(|name| path.starts_with(&format!("{name}/src/")));
        in_crate && path.ends_with(".rs")
    };
    mentions(section).into_iter().filter(is_source).collect()
}

/// True if the text defines something of this name.
fn defines(text: &str, name: &str) -> bool {
    DEFINITIONS.iter().any(|keyword| {
        let definition = format!("{keyword} {name}");
        text.contains(&definition) && text.lines().any(|line| names(line, &definition))
    })
}

/// Returns what is wrong with the page; `read` returns the text of a file, or `None` if it does not exist.
fn complaints(page: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (walk, most) in WALKS {
        let count = source_files(section(page, walk)).len();
        if !(FILES_MIN..=most).contains(&count) {
            complaints.push(format!("\"{walk}\" names {count} files, {FILES_MIN} to {most} are meant"));
        }
    }
    let rules = section(page, INDEX).lines().filter_map(row).count();
    if rules < RULES_MIN {
        complaints.push(format!("\"{INDEX}\" has {rules} rows, {RULES_MIN} at least"));
    }
    for (number, row) in page.lines().enumerate().filter_map(|(number, line)| Some((number + 1, row(line)?)))
    {
        let Some(text) = read(row.path) else {
            complaints.push(format!("line {number}: {} does not exist", row.path));
            continue;
        };
        if row.names.is_empty() {
            complaints.push(format!("line {number}: names no function or type of {}", row.path));
        }
        let missing = row.names.iter().filter(|name| !defines(&text, name));
        complaints
            .extend(missing.map(|name| format!("line {number}: {} does not define `{name}`", row.path)));
    }
    complaints
}

// Seen red with sixteen names from before they were changed.
#[test]
fn the_walkthrough_leads_to_files_and_functions_that_exist() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap_or_default();
    assert!(!page.is_empty(), "{PAGE} does not exist");
    let found = complaints(&page, |path| fs::read_to_string(root().join(path)).ok());
    check(&found.iter().map(|complaint| format!("{PAGE}: {complaint}")).collect::<Vec<_>>());
}

#[test]
fn a_walk_that_is_too_long_and_a_name_that_moved_are_found() {
    let files: Vec<String> =
        (0..13).map(|n| format!("| {n} | `agent/src/{n}.rs` | `run` | a → b |")).collect();
    let walk = |at: usize, count: usize| format!("\n## {}\n\n{}\n", WALKS[at].0, files[..count].join("\n"));
    let rule = "| backoff | `agent/src/0.rs` | `run`, `Run` | 10 s |\n";
    let page = |counts: [usize; 3], rules: usize| {
        let walks: String = counts.into_iter().enumerate().map(|(at, count)| walk(at, count)).collect();
        format!("{walks}\n## {INDEX}\n\n| rule | file | names |\n|---|---|---|\n{}", rule.repeat(rules))
    };
    let text = |_: &str| Some("pub async fn run() {}\npub(super) struct Run;\n".to_owned());
    assert_eq!(complaints(&page([12, 12, 6], 30), text), [""; 0]);
    assert_eq!(complaints(&page([13, 2, 7], 29), text).len(), 4);
    let moved =
        complaints(&page([12, 12, 6], 30), |_| Some("fn run_all() { run() }\nstruct Run;".to_owned()));
    assert_eq!(moved.len(), 60, "{moved:?}");
    assert_eq!(complaints(&page([12, 12, 6], 30), |_| None).len(), 60);
    assert_eq!(row("| where | file | names |"), None);
}
