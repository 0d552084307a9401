//! The `Workflow` kind: names, links, defaults.

use std::collections::BTreeMap;

use super::super::links::{FieldLocation, Reference};
use super::super::{Descriptor, Kind, KindSpec, Links, OlderSpellings};
use super::{Catcher, Machine, NullablePath, Retrier, Rule, State, WorkflowSpec, dialect, validate};
use crate::content_refs::normalize_path;
use crate::kinds::trigger::Trigger;
use crate::meta::{ObjectMeta, ObjectRef};
use crate::violation::{Findings, Path, field_path};

impl KindSpec for WorkflowSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "workflows",
        short_names: &["wf"],
        failure_is_final: true,
        older: OlderSpellings::for_own_kind(dialect::rewrite),
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links {
        references: Self::references,
        extra_position_paths: |spec| {
            spec.definition_path.iter().map(|_| field_path(&["spec", "definitionPath"])).collect()
        },
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::workflow(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        self.comment = None;
        if let Some(path) = &mut self.definition_path {
            *path = normalize_path(path);
        }
        states(&mut self.states);
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self.run_hash() != after.run_hash()
    }

    fn triggers(&self) -> &[Trigger] {
        &self.triggers
    }
}

impl WorkflowSpec {
    fn references(&self, metadata: &ObjectMeta) -> Vec<Reference<'_>> {
        let found = self.functions().into_iter().map(|(path, name)| {
            let (namespace, name) = name.split_once('/').unwrap_or((&metadata.namespace, name));
            let target =
                ObjectRef { namespace: namespace.to_owned(), ..metadata.reference(Kind::Function, name) };
            Reference { at: FieldLocation::Steps(path), target, port: None, is_optional: false }
        });
        found.collect()
    }
}

// Normalization to one spelling for each meaning, so that equal machines have equal hashes: comments are removed,
// and a path of `$` becomes the default.

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
