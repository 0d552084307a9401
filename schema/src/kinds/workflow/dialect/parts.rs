//! Helpers for rewriting the states of a machine.

use std::collections::HashSet;

use crate::manifest::dialects::tree::{self, below, entries_mut, take};
use crate::manifest::dialects::{Entry, Mark, Node, Value};

/// Final state that older forms do not write, because a missing next ended the run there.
pub(super) struct End {
    name: String,
    mark: Option<Mark>,
}

impl End {
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
        let state = tree::mapping(mark, [("type", tree::text(mark, "Succeed"))]);
        states.push(tree::entry(&self.name, mark, state));
    }
}

/// Returns `name`, or a numbered variant of it, that no state has.
pub(super) fn free_name<'a>(name: &str, taken: &(impl Iterator<Item = &'a str> + Clone)) -> String {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| !taken.clone().any(|taken| taken == name)).unwrap_or_default()
}

/// True if the entry names a next state.
pub(super) fn target(entry: &Entry) -> bool {
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
pub(super) fn emptied(node: Node) -> Vec<Entry> {
    match node.value {
        Value::Mapping(entries) => entries,
        _ => Vec::new(),
    }
}

/// Returns each state of the machine `node`.
fn states_of(node: &mut Node) -> impl Iterator<Item = &mut Entry> {
    below(node, &["states"]).and_then(entries_mut).into_iter().flatten()
}

/// Calls `act` with each state of the machine and of the machines inside. The parser limits the depth of the tree.
pub(super) fn each_state(machine: &mut Node, act: &mut dyn FnMut(&str, &mut Node)) {
    for state in states_of(machine) {
        act(&state.key, &mut state.value);
        if let Some(inner) = below(&mut state.value, &["itemProcessor"]) {
            each_state(inner, act);
        }
        let branches = below(&mut state.value, &["branches"]).and_then(tree::items_mut);
        branches.into_iter().flatten().for_each(|branch| each_state(branch, act));
    }
}

/// Takes an entry unless its value is null.
pub(super) fn take_written(node: &mut Node, key: &str) -> Option<Entry> {
    take(node, key).filter(|entry| !entry.value.is_null())
}
