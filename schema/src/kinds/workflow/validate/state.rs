//! Checks of a state and of the consistency of its fields.

use super::paths::{self, Sort};
use super::{errors, payload, rule};
use crate::kinds::names::is_name;
use crate::kinds::workflow::{ChoiceState, FailState, MapState, ParallelState, State, TaskState, WaitState};
use crate::violation::{Findings, Path, rules};

/// Checks the state at `at`, except for the machines inside.
pub(super) fn check(state: &State, at: &Path<'_>, findings: &mut Findings) {
    onward(state, at, findings);
    data(state, at, findings);
    errors::check(state, at, findings);
    match state {
        State::Task(task) => self::task(task, at, findings),
        State::Choice(choice) => self::choice(choice, at, findings),
        State::Wait(wait) => self::wait(wait, at, findings),
        State::Fail(fail) => self::fail(fail, at, findings),
        State::Parallel(parallel) => self::parallel(parallel, at, findings),
        State::Map(map) => self::map(map, at, findings),
        State::Pass(_) | State::Succeed(_) => {}
    }
}

fn onward(state: &State, at: &Path<'_>, findings: &mut Findings) {
    match state.onward() {
        Some((Some(_), true)) => {
            findings
                .add(&rules::EXCLUSIVE, &at.field("end"), "Forbidden: the state has a `next` as well")
                .on_key()
                .help("keep one of them");
        }
        Some((None, false)) => {
            let message = format!("Required value: a {} needs `next` or `end: true`", state.kind());
            findings.add(&rules::EXCLUSIVE, at, message).on_key();
        }
        _ => {}
    }
}

/// Checks the fields that process the state's input and result.
fn data(state: &State, at: &Path<'_>, findings: &mut Findings) {
    let (input, output, result) = match state {
        State::Task(s) => (&s.input_path, &s.output_path, &s.result_path),
        State::Pass(s) => (&s.input_path, &s.output_path, &s.result_path),
        State::Parallel(s) => (&s.input_path, &s.output_path, &s.result_path),
        State::Map(s) => (&s.input_path, &s.output_path, &s.result_path),
        State::Choice(s) => (&s.input_path, &s.output_path, &None),
        State::Wait(s) => (&s.input_path, &s.output_path, &None),
        State::Succeed(s) => (&s.input_path, &s.output_path, &None),
        State::Fail(_) => (&None, &None, &None),
    };
    paths::nullable(input.as_ref(), Sort::Any, &at.field("inputPath"), findings);
    paths::nullable(output.as_ref(), Sort::Any, &at.field("outputPath"), findings);
    paths::nullable(result.as_ref(), Sort::Reference, &at.field("resultPath"), findings);
    let (template, template_name, selector) = match state {
        State::Task(s) => (&s.parameters, "parameters", &s.result_selector),
        State::Pass(s) => (&s.parameters, "parameters", &None),
        State::Parallel(s) => (&s.parameters, "parameters", &s.result_selector),
        State::Map(s) => (&s.item_selector, "itemSelector", &s.result_selector),
        State::Choice(_) | State::Wait(_) | State::Succeed(_) | State::Fail(_) => return,
    };
    payload::check(template.as_ref(), &at.field(template_name), findings);
    payload::check(selector.as_ref(), &at.field("resultSelector"), findings);
}

fn task(task: &TaskState, at: &Path<'_>, findings: &mut Findings) {
    let (namespace, name) = task.function.split_once('/').unwrap_or(("default", &task.function));
    if !is_name(namespace) || !is_name(name) {
        let message = format!("Invalid value: `{}` can't be the name of a Function", task.function);
        findings.add(&rules::INVALID_NAME, &at.field("function"), message);
    }
    for (name, seconds, path) in [
        ("timeoutSeconds", task.timeout_seconds, &task.timeout_seconds_path),
        ("heartbeatSeconds", task.heartbeat_seconds, &task.heartbeat_seconds_path),
    ] {
        let path_name = format!("{name}Path");
        let here = at.field(&path_name);
        paths::optional(path.as_deref(), Sort::Single, &here, findings);
        if seconds.is_some() && path.is_some() {
            let message = format!("Forbidden: `{name}` is there as well");
            findings.add(&rules::EXCLUSIVE, &here, message).on_key().help("keep one of them");
        }
    }
    if let (Some(heartbeat), Some(timeout)) = (task.heartbeat_seconds, task.timeout_seconds)
        && heartbeat >= timeout
    {
        let message = format!("Invalid value: {heartbeat}: must be less than timeoutSeconds ({timeout})");
        findings.add(&rules::TIMEOUT, &at.field("heartbeatSeconds"), message);
    }
}

fn choice(choice: &ChoiceState, at: &Path<'_>, findings: &mut Findings) {
    let here = at.field("choices");
    if choice.choices.is_empty() {
        findings.add(&rules::REQUIRED, &here, "Required value: at least one rule").on_key();
    }
    for (index, rule) in choice.choices.iter().enumerate() {
        rule::check(rule, &here.index(index), 0, findings);
    }
}

fn wait(wait: &WaitState, at: &Path<'_>, findings: &mut Findings) {
    let ways = [
        ("seconds", wait.seconds.is_some()),
        ("secondsPath", wait.seconds_path.is_some()),
        ("timestamp", wait.timestamp.is_some()),
        ("timestampPath", wait.timestamp_path.is_some()),
    ];
    let mut set = ways.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name);
    let Some(first) = set.next() else {
        let message = "Required value: exactly one of `seconds`, `secondsPath`, `timestamp`, `timestampPath`";
        findings.add(&rules::EXCLUSIVE, at, message).on_key();
        return;
    };
    for other in set {
        let message = format!("Forbidden: `{first}` is there as well");
        findings.add(&rules::EXCLUSIVE, &at.field(other), message).on_key().help("keep one of them");
    }
    paths::optional(wait.seconds_path.as_deref(), Sort::Single, &at.field("secondsPath"), findings);
    paths::optional(wait.timestamp_path.as_deref(), Sort::Single, &at.field("timestampPath"), findings);
    if let Some(timestamp) = &wait.timestamp {
        rule::timestamp(timestamp, &at.field("timestamp"), findings);
    }
}

fn fail(fail: &FailState, at: &Path<'_>, findings: &mut Findings) {
    for (name, text, path_name, path) in [
        ("error", &fail.error, "errorPath", &fail.error_path),
        ("cause", &fail.cause, "causePath", &fail.cause_path),
    ] {
        let here = at.field(path_name);
        match path {
            Some(text) if text.starts_with("States.") => paths::expression(text, &here, findings),
            path => paths::optional(path.as_deref(), Sort::Single, &here, findings),
        }
        if text.is_some() && path.is_some() {
            let message = format!("Forbidden: `{name}` is there as well");
            findings.add(&rules::EXCLUSIVE, &here, message).on_key().help("keep one of them");
        }
    }
}

fn parallel(parallel: &ParallelState, at: &Path<'_>, findings: &mut Findings) {
    if parallel.branches.is_empty() {
        findings.add(&rules::REQUIRED, &at.field("branches"), "Required value: at least one branch").on_key();
    }
}

fn map(map: &MapState, at: &Path<'_>, findings: &mut Findings) {
    paths::optional(map.items_path.as_deref(), Sort::Single, &at.field("itemsPath"), findings);
    for (name, number, path) in [
        ("maxConcurrency", map.max_concurrency, &map.max_concurrency_path),
        ("toleratedFailureCount", map.tolerated_failure_count, &map.tolerated_failure_count_path),
        (
            "toleratedFailurePercentage",
            map.tolerated_failure_percentage,
            &map.tolerated_failure_percentage_path,
        ),
    ] {
        let path_name = format!("{name}Path");
        let here = at.field(&path_name);
        paths::optional(path.as_deref(), Sort::Single, &here, findings);
        if number > 0 && path.is_some() {
            let message = format!("Forbidden: `{name}` is there as well");
            findings.add(&rules::EXCLUSIVE, &here, message).on_key().help("keep one of them");
        }
    }
}
