//! A kind is a row: what differs by kind is in one place of each crate that knows kinds.

use std::collections::BTreeSet;

use schema::kinds::Kind;

use super::structure::{is_test, production};
use super::{CRATES, Source, code, names, rust};

/// Files that may list all kinds: the list itself, which generates enums and descriptors, and the rows of the snapshot
/// and of the reconciler.
const ROWS: [&str; 3] =
    ["schema/src/kinds/mod.rs", "schema/src/snapshot/rows.rs", "reconciler/src/cli/kinds.rs"];

/// Kinds that the production code of a file names in the patterns of arms, or in lines of `kinds!`.
fn kinds_of_arms(file: &Source) -> BTreeSet<Kind> {
    let mut found = BTreeSet::new();
    for (_, line) in code(production(&file.text)) {
        // What an arm returns may name any kind.
        let pattern = line.split_once("=>").map_or(line, |(pattern, _)| pattern).trim();
        let is_arm = pattern.len() < line.trim().len() || pattern.starts_with('|') || pattern.contains(" | ");
        found.extend(Kind::ALL.into_iter().filter(|kind| {
            let variants = ["Kind", "Resource", "Self"].map(|name| format!("{name}::{kind}"));
            let is_line = pattern.starts_with(&format!("{kind} ")) && pattern.ends_with("Spec,");
            // rustfmt may put the first of several variants on a line of its own.
            let is_alone = || variants.iter().any(|one| pattern == one || pattern == format!("{one}(_)"));
            is_line || is_alone() || is_arm && variants.iter().any(|one| names(pattern, one))
        }));
    }
    found
}

/// Files with arms for more than half of all kinds.
fn files_that_list_kinds<'a>(files: impl Iterator<Item = &'a Source>) -> Vec<&'a str> {
    let listing = files.filter(|file| kinds_of_arms(file).len() * 2 > Kind::ALL.len());
    listing.map(|file| file.path.as_str()).collect()
}

#[test]
fn what_differs_by_kind_is_one_row_in_each_room_that_knows_kinds() {
    let files = rust();
    let of_crates = files
        .iter()
        .filter(|file| CRATES.iter().any(|name| file.path.starts_with(&format!("{name}/src/"))))
        .filter(|file| !is_test(&file.path));
    let mut found = files_that_list_kinds(of_crates);
    found.sort_by_key(|path| ROWS.iter().position(|row| row == path));
    found.sort_by_key(|path| !ROWS.contains(path));
    assert_eq!(found, ROWS, "left: files with arms for more than half of all kinds; right: those that may");
}

#[test]
fn the_rule_about_rows_sees_what_it_should() {
    let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let arms = |form: &dyn Fn(Kind) -> String| Kind::ALL.map(form).concat();
    let files = [
        source("one_arm_each.rs", &arms(&|kind| format!("        Kind::{kind} => f(),\n"))),
        source("specs.rs", &arms(&|kind| format!("Resource::{kind}(spec) => spec.f(),\n"))),
        source("one_default.rs", &arms(&|kind| format!("    | Resource::{kind}(_)\n"))),
        source("on_one_line.rs", &arms(&|kind| format!("Kind::{kind} | "))),
        source("list.rs", &arms(&|kind| format!("    {kind} module::{kind}Spec,\n"))),
        source(
            "tests_at_the_end.rs",
            &format!("#[cfg(test)]\nmod tests {{\n{}}}\n", arms(&|kind| format!("Kind::{kind} => 1,\n"))),
        ),
        source("results.rs", &arms(&|kind| format!("Key::{kind}(id) => of(Kind::{kind}, id),\n"))),
        source("values.rs", &arms(&|kind| format!("let x = f(Kind::{kind});\n"))),
        source("comments.rs", &arms(&|kind| format!("// Kind::{kind} => 1\n"))),
        source(
            "few.rs",
            "match kind {\n    Kind::Pod | Kind::ReplicaSet => 1,\n    Kind::Node => 2,\n    _ => 0,\n}\n",
        ),
    ];
    let listing = ["one_arm_each.rs", "specs.rs", "one_default.rs", "on_one_line.rs", "list.rs"];
    assert_eq!(files_that_list_kinds(files.iter()), listing);
}
