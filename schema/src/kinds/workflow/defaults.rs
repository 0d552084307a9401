//! Normalization to one spelling for each meaning, so that equal machines have equal hashes: comments are removed,
//! and a path of `$` becomes the default.

use std::collections::BTreeMap;

use super::{Catcher, Machine, NullablePath, Retrier, Rule, State};

/// Normalizes the states of a machine and of the machines inside.
pub(super) fn states(states: &mut BTreeMap<String, State>) {
    states.values_mut().for_each(state);
}

fn machine(machine: &mut Machine) {
    machine.comment = None;
    states(&mut machine.states);
}

fn state(state: &mut State) {
    match state {
        State::Task(task) => {
            task.comment = None;
            paths([&mut task.input_path, &mut task.result_path, &mut task.output_path]);
            handlers(&mut task.retry, &mut task.catch);
        }
        State::Choice(choice) => {
            choice.comment = None;
            paths([&mut choice.input_path, &mut choice.output_path]);
            choice.choices.iter_mut().for_each(rule);
        }
        State::Pass(pass) => {
            pass.comment = None;
            paths([&mut pass.input_path, &mut pass.result_path, &mut pass.output_path]);
        }
        State::Wait(wait) => {
            wait.comment = None;
            paths([&mut wait.input_path, &mut wait.output_path]);
        }
        State::Succeed(succeed) => {
            succeed.comment = None;
            paths([&mut succeed.input_path, &mut succeed.output_path]);
        }
        State::Fail(fail) => fail.comment = None,
        State::Parallel(parallel) => {
            parallel.comment = None;
            paths([&mut parallel.input_path, &mut parallel.result_path, &mut parallel.output_path]);
            handlers(&mut parallel.retry, &mut parallel.catch);
            parallel.branches.iter_mut().for_each(machine);
        }
        State::Map(map) => {
            map.comment = None;
            paths([&mut map.input_path, &mut map.result_path, &mut map.output_path]);
            if map.items_path.as_deref() == Some("$") {
                map.items_path = None;
            }
            handlers(&mut map.retry, &mut map.catch);
            machine(&mut map.item_processor);
        }
    }
}

fn handlers(retry: &mut [Retrier], catch: &mut [Catcher]) {
    for retrier in retry {
        retrier.comment = None;
    }
    for catcher in catch {
        catcher.comment = None;
        path(&mut catcher.result_path);
    }
}

fn rule(written: &mut Rule) {
    written.comment = None;
    let below = [&mut written.and, &mut written.or].into_iter().flatten().flatten();
    below.for_each(rule);
    if let Some(below) = &mut written.not {
        rule(below);
    }
}

fn paths<const N: usize>(written: [&mut Option<NullablePath>; N]) {
    written.into_iter().for_each(path);
}

fn path(path: &mut Option<NullablePath>) {
    if path.as_ref().is_some_and(|path| path.0.as_deref() == Some("$")) {
        *path = None;
    }
}
