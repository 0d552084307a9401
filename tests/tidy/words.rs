//! Wording of the three crates: openings of doc comments, module headers, names of types.

use crate::structure::{of_crate, production};
use crate::{CRATES, Source, check, rust};

/// Openings that make a question or a relative clause of a doc comment.
const QUESTIONS: [&str; 8] = ["What", "How", "Where", "Why", "Who", "Whom", "Whose", "Whether"];

/// Openings without a noun of their own.
const FRAGMENTS: [&str; 9] = ["It", "Its", "One", "Those", "Of", "All", "As", "None", "Such"];

/// Most doc comments that may open with a word of either list, in per mille.
const OPENINGS_MAX: usize = 20;

/// Most types that may be named by a bare participle, in per mille.
const PARTICIPLES_MAX: usize = 10;

/// Participles without the ending -ed.
const IRREGULAR: [&str; 60] = [
    "Begun",
    "Bound",
    "Broken",
    "Brought",
    "Built",
    "Caught",
    "Chosen",
    "Cut",
    "Done",
    "Drawn",
    "Driven",
    "Due",
    "Fallen",
    "Fed",
    "Forgotten",
    "Found",
    "Frozen",
    "Given",
    "Gone",
    "Grown",
    "Heard",
    "Held",
    "Hidden",
    "Hung",
    "Kept",
    "Known",
    "Laid",
    "Led",
    "Left",
    "Lost",
    "Made",
    "Meant",
    "Met",
    "Overdue",
    "Paid",
    "Put",
    "Read",
    "Risen",
    "Said",
    "Seen",
    "Sent",
    "Shown",
    "Shut",
    "Sold",
    "Spent",
    "Split",
    "Spread",
    "Stolen",
    "Stuck",
    "Taken",
    "Told",
    "Torn",
    "Understood",
    "Unseen",
    "Withheld",
    "Woken",
    "Won",
    "Worn",
    "Wound",
    "Written",
];

/// Nouns that end like participles, and the design's own word.
const NOUNS: [&str; 7] = ["Bed", "Deed", "Feed", "Need", "Observed", "Seed", "Speed"];

/// The workflow state `Task` of Amazon's States Language.
const TASK_STATES: &str = "kinds/workflow/";

/// A block of doc comment lines: line of its beginning, and text without the marks.
struct Comment {
    line: usize,
    is_header: bool,
    text: String,
}

fn comments(text: &str) -> Vec<Comment> {
    let mut found: Vec<Comment> = Vec::new();
    let mut is_open = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let marked = [("//!", true), ("///", false)]
            .into_iter()
            .find_map(|(mark, is_header)| Some((line.strip_prefix(mark)?, is_header)));
        match (marked, found.last_mut()) {
            (Some((rest, is_header)), Some(last)) if is_open && last.is_header == is_header => {
                last.text.push_str(rest);
            }
            (Some((rest, is_header)), _) => {
                found.push(Comment { line: index + 1, is_header, text: rest.to_owned() });
            }
            _ => {}
        }
        is_open = marked.is_some();
    }
    found
}

impl Comment {
    fn opens_with(&self, words: &[&str]) -> bool {
        let first = self.text.trim_start().split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        words.contains(&first)
    }

    /// True if the first sentence is a question, by its opening or its mark.
    fn is_question(&self) -> bool {
        let sentence = self.text.split_inclusive(['.', '?']).next().unwrap_or_default();
        self.opens_with(&QUESTIONS) || sentence.ends_with('?')
    }
}

/// Names of the types that a file defines, each with its line.
fn types(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let line = match line.strip_prefix("pub(") {
            Some(rest) => rest.split_once(") ").map_or(line, |(_, rest)| rest),
            None => line.strip_prefix("pub ").unwrap_or(line),
        };
        let name =
            ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|word| line.strip_prefix(word));
        if let Some(name) = name {
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            found.push((index + 1, &name[..end]));
        }
    }
    found
}

fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().skip(1).all(char::is_lowercase);
    IRREGULAR.contains(&name) || is_one_word && name.ends_with("ed") && !NOUNS.contains(&name)
}

/// Fails if more of `total` than `per_mille` allows are in `found`.
fn within(per_mille: usize, found: &[String], total: usize, what: &str) {
    assert!(total > 500, "found only {total}: the rule is broken");
    let most = total * per_mille / 1000;
    let places = found.join("\n");
    assert!(found.len() <= most, "{} of {total} {what}, {most} at most:\n{places}", found.len());
}

fn production_files(files: &[Source]) -> Vec<&Source> {
    CRATES.iter().flat_map(|name| of_crate(files, name)).collect()
}

#[test]
fn doc_comments_open_with_a_noun_or_a_verb() {
    let files = rust();
    let (mut total, mut questions, mut fragments, mut headers) = (0, Vec::new(), Vec::new(), Vec::new());
    for file in production_files(&files) {
        for comment in comments(production(&file.text)) {
            let place = format!("{}:{}: {}", file.path, comment.line, comment.text.trim());
            if comment.is_header {
                headers.extend(comment.is_question().then_some(place));
                continue;
            }
            total += 1;
            if comment.opens_with(&QUESTIONS) {
                questions.push(place);
            } else if comment.opens_with(&FRAGMENTS) {
                fragments.push(place);
            }
        }
    }
    check(&headers);
    within(OPENINGS_MAX, &questions, total, "doc comments open like questions");
    within(OPENINGS_MAX, &fragments, total, "doc comments open without a noun");
}

#[test]
fn types_are_named_by_nouns() {
    let files = rust();
    let (mut total, mut participles, mut tasks) = (0, Vec::new(), Vec::new());
    for file in production_files(&files) {
        for (line, name) in types(production(&file.text)) {
            total += 1;
            let place = format!("{}:{line}: {name}", file.path);
            if name == "Task" && !file.path.contains(TASK_STATES) {
                tasks.push(format!("{place}: only a workflow's state has this name"));
            }
            participles.extend(is_participle(name).then_some(place));
        }
    }
    check(&tasks);
    within(PARTICIPLES_MAX, &participles, total, "types are named by a participle");
}

#[test]
fn the_rules_of_wording_find_what_they_should() {
    let text = "//! How it works.\n\n/// Whether so.\n/// Its end.\nstruct Held;\n/// The end.\npub(super) enum Exited {}\n";
    let found = comments(text);
    assert!(found.len() == 3 && found[0].is_header && found[0].is_question());
    assert!(found[1].opens_with(&QUESTIONS) && !found[2].opens_with(&FRAGMENTS));
    assert_eq!(types(text), [(5, "Held"), (7, "Exited")]);
    assert!(is_participle("Held") && is_participle("Exited"));
    assert!(!is_participle("Observed") && !is_participle("PodSeed") && !is_participle("BoundPod"));
}
