//! Checks of a workflow beyond the schema, one file per subject.

mod paths;
mod rule;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use super::{MachineRef, NESTING_MAX, STATE_NAME_MAX_CHARS, State, WorkflowSpec};
use crate::document::nearest::suggestion;
use crate::kinds::trigger;
use crate::names;
use crate::violation::{Findings, Path, rules};

/// Checks the spec at `at`.
pub(super) fn workflow(spec: &WorkflowSpec, at: &Path<'_>, findings: &mut Findings) {
    if let Some(path) = &spec.definition_path {
        definition_path(path, spec, at, findings);
    }
    if !spec.is_undefined() {
        let mut names = Names::new();
        check(spec.machine(), at, &mut names, 0, findings);
    }
    trigger::validate(&spec.triggers, at, findings);
}

fn definition_path(path: &str, spec: &WorkflowSpec, at: &Path<'_>, findings: &mut Findings) {
    let here = at.field("definitionPath");
    let help = "put the file into this repository and write its path from the root, for example `flows/order.asl.json`";
    names::check_with_help(path, help, &here, findings);
    if !spec.states.is_empty() {
        let message = "Forbidden: may not be set together with `states`";
        let help = "keep the state machine in the file, or write it here";
        findings.add(&rules::EXCLUSIVE, &here, message).on_key().help(help);
    }
}

// Checks of a machine's graph: its start, the targets of its states, and that it can end.

/// Names of states found so far in the whole workflow, with their paths.
type Names = BTreeMap<String, String>;

/// Checks the machine at `at` and those inside; `depth` is the number of machines around it.
fn check(machine: MachineRef<'_>, at: &Path<'_>, names: &mut Names, depth: usize, findings: &mut Findings) {
    let states = at.field("states");
    if depth >= NESTING_MAX {
        let message = format!("machines are nested more than {NESTING_MAX} deep");
        findings.add(&rules::TOO_DEEP, at, message).help("move the inner ones into a workflow of their own");
        return;
    }
    if machine.states.is_empty() {
        findings.add(&rules::REQUIRED, &states, "Required value: at least one state").on_key();
    }
    for (name, state) in machine.states {
        let here = states.field(name);
        check_name(name, &here, names, findings);
        state::check(state, &here, findings);
        match state {
            State::Parallel(parallel) => {
                let branches = here.field("branches");
                for (index, branch) in parallel.branches.iter().enumerate() {
                    check(branch.as_ref(), &branches.index(index), names, depth + 1, findings);
                }
            }
            State::Map(map) => {
                check(map.item_processor.as_ref(), &here.field("itemProcessor"), names, depth + 1, findings);
            }
            _ => {}
        }
    }
    let leads_on = transitions(machine, at, findings);
    if leads_on && !machine.states.is_empty() {
        reachability(machine, at, findings);
    }
}

fn check_name(name: &str, at: &Path<'_>, names: &mut Names, findings: &mut Findings) {
    if name.is_empty() || name.chars().count() > STATE_NAME_MAX_CHARS {
        let message = format!("Invalid value: a state's name has 1 to {STATE_NAME_MAX_CHARS} characters");
        findings.add(&rules::INVALID_NAME, at, message).on_key();
    }
    match names.get(name) {
        Some(first) => {
            let message = format!("Duplicate value: a state `{name}` is also at {first}");
            findings
                .add(&rules::DUPLICATE_NAME, at, message)
                .on_key()
                .help("names must be unique in the whole workflow to keep a run's history unambiguous");
        }
        None => drop(names.insert(name.to_owned(), at.to_string())),
    }
}

/// Checks that every state that is named exists. Returns false if one does not.
fn transitions(machine: MachineRef<'_>, at: &Path<'_>, findings: &mut Findings) -> bool {
    let mut all_exist = true;
    let mut target = |at: &Path<'_>, name: &str| {
        if !machine.states.contains_key(name) {
            all_exist = false;
            let help = suggestion(name, machine.states.keys().map(String::as_str));
            findings.add(&rules::NOT_FOUND, at, format!("this machine has no state `{name}`")).help(help);
        }
    };
    target(&at.field("startAt"), machine.start_at);
    let states = at.field("states");
    for (name, state) in machine.states {
        each_target(state, &states.field(name), &mut target);
    }
    all_exist
}

/// Calls `visit` with each field that names a state to go to.
fn each_target(state: &State, at: &Path<'_>, visit: &mut dyn FnMut(&Path<'_>, &str)) {
    if let Some((Some(next), _)) = state.transition() {
        visit(&at.field("next"), next);
    }
    let catch = at.field("catch");
    for (index, catcher) in state.handlers().1.iter().enumerate() {
        visit(&catch.index(index).field("next"), &catcher.next);
    }
    let State::Choice(choice) = state else { return };
    let choices = at.field("choices");
    for (index, rule) in choice.choices.iter().enumerate() {
        if let Some(next) = &rule.next {
            visit(&choices.index(index).field("next"), next);
        }
    }
    if let Some(default) = &choice.default {
        visit(&at.field("default"), default);
    }
}

/// Checks that each state can be reached and that the machine can end.
fn reachability(machine: MachineRef<'_>, at: &Path<'_>, findings: &mut Findings) {
    let mut reached: BTreeSet<&str> = BTreeSet::new();
    let mut open = vec![machine.start_at.to_owned()];
    while let Some(name) = open.pop() {
        let Some((name, state)) = machine.states.get_key_value(&name) else { continue };
        if reached.insert(name) {
            each_target(state, &Path::ROOT, &mut |_, target| open.push(target.to_owned()));
        }
    }
    let states = at.field("states");
    for name in machine.states.keys().filter(|name| !reached.contains(name.as_str())) {
        findings
            .add(&rules::UNREACHABLE_STATE, &states.field(name), format!("no state leads to `{name}`"))
            .on_key()
            .help("name it in a next, a default or a choice, or remove it");
    }
    let ends = |name: &&&str| machine.states.get(**name).is_some_and(State::is_terminal);
    // A state with both `next` and `end`, or with neither, was reported already.
    let is_open = |state: &State| state.transition().is_some_and(|(next, end)| next.is_some() == end);
    if !reached.iter().any(|name| ends(&name)) && !machine.states.values().any(is_open) {
        findings
            .add(&rules::NO_END, &states, "no reachable state ends the machine")
            .on_key()
            .help("give one `end: true`, or add a Succeed or Fail");
    }
}
