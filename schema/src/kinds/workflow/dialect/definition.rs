//! `spec.definition`: a state machine as JSON or YAML text, as AWS templates contain it, or as a mapping. With
//! `spec.definitionPath` it is in another file.

use std::collections::HashSet;

use crate::document::edit::{below, entries_mut, entry, mapping, put, take, text};
use crate::document::node::Budget;
use crate::document::{edit, json, yaml};
use crate::manifest::dialects::{Entry, Mark, Node, Notes, Value};
use crate::violation::rules;

/// Replaces the definition by its fields. Returns false if there is none.
pub(super) fn splice(spec: &mut Node, notes: &mut Notes<'_>) -> bool {
    if let Some(elsewhere) = spec.entry("definitionPath").map(|entry| entry.mark) {
        // Fields next to `definitionPath` stay, and are reported.
        merge(into_entries(empty_machine(elsewhere)), spec);
    }
    let Some(definition) = take(spec, "definition").or_else(|| take(spec, "Definition")) else {
        return false;
    };
    let key = definition.key.clone();
    let machine = match &definition.value.value {
        Value::Scalar { text, .. } => {
            let read = read(text, definition.mark, definition.value.mark, notes);
            if read.as_ref().is_some_and(|node| node.entries().is_none()) {
                not_a_machine(&key, definition.mark, notes);
            }
            read
        }
        Value::Sequence(_) => {
            not_a_machine(&key, definition.mark, notes);
            None
        }
        Value::Mapping(_) => Some(definition.value),
    };
    let Some(machine) = machine.filter(|machine| machine.entries().is_some()) else {
        // Stands for the unread machine, so that missing fields are not reported as well.
        merge(into_entries(empty_machine(definition.mark)), spec);
        return true;
    };
    notes.older(definition.mark, &key, "its fields in spec");
    let twice = merge(into_entries(machine), spec);
    if let Some(first) = twice.first() {
        // The schema walk reports the duplicates as an unknown field.
        let (mark, twice) = (first.mark, Node { mark: first.mark, value: Value::Mapping(twice) });
        put(spec, entry(&key, mark, twice));
    }
    true
}

/// Returns a machine without states, so that missing fields are not reported.
fn empty_machine(mark: Mark) -> Node {
    mapping(mark, [("startAt", text(mark, "")), ("states", mapping(mark, []))])
}

fn not_a_machine(key: &str, mark: Mark, notes: &mut Notes<'_>) {
    let message = format!("spec.{key}: expected a state machine");
    let help = "write its JSON or YAML here, or its fields into spec";
    notes.error(mark, &rules::WRONG_TYPE, message, help);
}

fn read(text: &str, key: Mark, value: Mark, notes: &mut Notes<'_>) -> Option<Node> {
    let is_json = text.trim_start().starts_with('{');
    let parse = if is_json { json::parse } else { yaml::parse };
    let mut parsed = parse(text, *notes.budget);
    *notes.budget = parsed.left;
    let place = |mark: Mark| file_mark(mark, key, value);
    let roots = parsed.roots.len();
    if let Some(failure) = parsed.failure {
        notes.error(place(failure.mark), failure.rule, failure.message, &failure.help);
        return None;
    }
    let mut root = (roots == 1).then(|| parsed.roots.pop()).flatten().or_else(|| {
        let message = format!("spec.definition: expected one state machine, found {roots} documents");
        notes.error(value, &rules::WRONG_TYPE, message, "");
        None
    })?;
    for problem in root.problems {
        notes.error(place(problem.mark), problem.rule, problem.message, &problem.help);
    }
    shift(&mut root.node, &place);
    Some(root.node)
}

/// Maps a position in the text to one in the file. A block of text begins below its key, so its lines and columns
/// are known; text in quotes may contain escapes, so only its beginning is known.
fn file_mark(inner: Mark, key: Mark, value: Mark) -> Mark {
    if value.line == key.line || inner.line == 0 {
        return value;
    }
    Mark { line: value.line + inner.line - 1, column: value.column + inner.column - 1 }
}

fn shift(node: &mut Node, place: &dyn Fn(Mark) -> Mark) {
    node.mark = place(node.mark);
    match &mut node.value {
        Value::Scalar { .. } => {}
        Value::Sequence(items) => items.iter_mut().for_each(|item| shift(item, place)),
        Value::Mapping(entries) => {
            for entry in entries {
                entry.mark = place(entry.mark);
                shift(&mut entry.value, place);
            }
        }
    }
}

/// Parses text in quotes as a single JSON value, all of which gets the position `mark`.
pub(super) fn parse_json(text: &str, mark: Mark, budget: &mut Budget) -> Result<Node, String> {
    let parsed = json::parse(text, *budget);
    *budget = parsed.left;
    if let Some(failure) = parsed.failure {
        return Err(failure.message);
    }
    let Ok([root]) = <[_; 1]>::try_from(parsed.roots) else {
        return Err("expected one JSON value".to_owned());
    };
    if let Some(problem) = root.problems.into_iter().next() {
        return Err(problem.message);
    }
    let mut node = root.node;
    shift(&mut node, &|_| mark);
    Ok(node)
}

// Helpers for rewriting the states of a machine.

/// Final state that older forms do not write, because a missing next ended the run there.
pub(super) struct EndState {
    name: String,
    mark: Option<Mark>,
}

impl EndState {
    /// Creates a final state with a name that no other state has.
    pub(super) fn new<'a>(taken: &(impl Iterator<Item = &'a str> + Clone)) -> Self {
        Self { name: free_name("end", taken), mark: None }
    }

    /// Returns the name, for a field at `mark` that leads to the state.
    pub(super) fn name(&mut self, mark: Mark) -> &str {
        self.mark.get_or_insert(mark);
        &self.name
    }

    /// Adds the state to the others, if something leads to it.
    pub(super) fn add_to(self, states: &mut Vec<Entry>) {
        let Some(mark) = self.mark else { return };
        let state = mapping(mark, [("type", text(mark, "Succeed"))]);
        states.push(entry(&self.name, mark, state));
    }
}

/// Returns `name`, or a numbered variant of it, that no state has.
pub(super) fn free_name<'a>(name: &str, taken: &(impl Iterator<Item = &'a str> + Clone)) -> String {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| !taken.clone().any(|taken| taken == name)).unwrap_or_default()
}

/// True if the entry names a next state.
pub(super) fn names_a_state(entry: &Entry) -> bool {
    !entry.value.is_null() && entry.value.text() != Some("")
}

/// Moves the entries of one mapping into another. Returns those that exist there already, to be reported as unknown.
pub(super) fn merge(from: Vec<Entry>, to: &mut Node) -> Vec<Entry> {
    let Some(to) = entries_mut(to) else { return from };
    let there: HashSet<String> = to.iter().map(|entry| entry.key.clone()).collect();
    let (twice, once): (Vec<Entry>, Vec<Entry>) =
        from.into_iter().partition(|entry| there.contains(&entry.key));
    // A key that is duplicated in one mapping was reported as such.
    let mut moved = HashSet::new();
    to.extend(once.into_iter().filter(|entry| moved.insert(entry.key.clone())));
    twice
}

/// Returns the entries of a mapping.
pub(super) fn into_entries(node: Node) -> Vec<Entry> {
    match node.value {
        Value::Mapping(entries) => entries,
        _ => Vec::new(),
    }
}

/// Returns each state of the machine `node`.
fn states_in(node: &mut Node) -> impl Iterator<Item = &mut Entry> {
    below(node, &["states"]).and_then(entries_mut).into_iter().flatten()
}

/// Calls `act` with each state of the machine and of the machines inside. The parser limits the depth of the tree.
pub(super) fn each_state(machine: &mut Node, act: &mut dyn FnMut(&str, &mut Node)) {
    for state in states_in(machine) {
        act(&state.key, &mut state.value);
        if let Some(inner) = below(&mut state.value, &["itemProcessor"]) {
            each_state(inner, act);
        }
        let branches = below(&mut state.value, &["branches"]).and_then(edit::items_mut);
        branches.into_iter().flatten().for_each(|branch| each_state(branch, act));
    }
}

/// Takes an entry unless its value is null.
pub(super) fn take_non_null(node: &mut Node, key: &str) -> Option<Entry> {
    take(node, key).filter(|entry| !entry.value.is_null())
}
