//! Checks of a state and of the consistency of its fields.

use super::paths::PathKind;
use super::{paths, rule};
use crate::document::nearest::suggestion;
use crate::kinds::workflow::{
    ChoiceState, FailState, MapState, ParallelState, Retrier, State, TaskState, WaitState,
};
use crate::names::is_name;
use crate::violation::{Findings, Path, rules};

/// Checks the state at `at`, except for the machines inside.
pub(super) fn check(state: &State, at: &Path<'_>, findings: &mut Findings) {
    onward(state, at, findings);
    data(state, at, findings);
    check_errors(state, at, findings);
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
    match state.transition() {
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
    paths::nullable(input.as_ref(), PathKind::Any, &at.field("inputPath"), findings);
    paths::nullable(output.as_ref(), PathKind::Any, &at.field("outputPath"), findings);
    paths::nullable(result.as_ref(), PathKind::Reference, &at.field("resultPath"), findings);
    let (template, template_name, selector) = match state {
        State::Task(s) => (&s.parameters, "parameters", &s.result_selector),
        State::Pass(s) => (&s.parameters, "parameters", &None),
        State::Parallel(s) => (&s.parameters, "parameters", &s.result_selector),
        State::Map(s) => (&s.item_selector, "itemSelector", &s.result_selector),
        State::Choice(_) | State::Wait(_) | State::Succeed(_) | State::Fail(_) => return,
    };
    paths::check_payload(template.as_ref(), &at.field(template_name), findings);
    paths::check_payload(selector.as_ref(), &at.field("resultSelector"), findings);
}

fn task(task: &TaskState, at: &Path<'_>, findings: &mut Findings) {
    let (namespace, name) = task.function.split_once('/').unwrap_or(("default", &task.function));
    if !is_name(namespace) || !is_name(name) {
        let message = format!("Invalid value: `{}` is not a valid Function name", task.function);
        findings.add(&rules::INVALID_NAME, &at.field("function"), message);
    }
    for (name, seconds, path) in [
        ("timeoutSeconds", task.timeout_seconds, &task.timeout_seconds_path),
        ("heartbeatSeconds", task.heartbeat_seconds, &task.heartbeat_seconds_path),
    ] {
        let path_name = format!("{name}Path");
        let here = at.field(&path_name);
        paths::optional(path.as_deref(), PathKind::Single, &here, findings);
        if seconds.is_some() && path.is_some() {
            let message = format!("Forbidden: `{name}` is set as well");
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
        let message = format!("Forbidden: `{first}` is set as well");
        findings.add(&rules::EXCLUSIVE, &at.field(other), message).on_key().help("keep one of them");
    }
    paths::optional(wait.seconds_path.as_deref(), PathKind::Single, &at.field("secondsPath"), findings);
    paths::optional(wait.timestamp_path.as_deref(), PathKind::Single, &at.field("timestampPath"), findings);
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
            path => paths::optional(path.as_deref(), PathKind::Single, &here, findings),
        }
        if text.is_some() && path.is_some() {
            let message = format!("Forbidden: `{name}` is set as well");
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
    paths::optional(map.items_path.as_deref(), PathKind::Single, &at.field("itemsPath"), findings);
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
        paths::optional(path.as_deref(), PathKind::Single, &here, findings);
        if number > 0 && path.is_some() {
            let message = format!("Forbidden: `{name}` is set as well");
            findings.add(&rules::EXCLUSIVE, &here, message).on_key().help("keep one of them");
        }
    }
}

// Checks of retriers and catchers: names of errors, and numbers.

const ALL: &str = "States.ALL";

/// Errors that the engine itself raises, named as in the Amazon States Language.
const STATES: [&str; 13] = [
    ALL,
    "States.BranchFailed",
    "States.DataLimitExceeded",
    "States.ExceedToleratedFailureThreshold",
    "States.HeartbeatTimeout",
    "States.IntrinsicFailure",
    "States.NoChoiceMatched",
    "States.ParameterPathFailure",
    "States.Permissions",
    "States.ResultPathMatchFailure",
    "States.Runtime",
    "States.TaskFailed",
    "States.Timeout",
];

/// Checks the state's retriers and catchers.
pub(super) fn check_errors(state: &State, at: &Path<'_>, findings: &mut Findings) {
    let (retriers, catchers) = state.handlers();
    let retry = at.field("retry");
    for (index, retrier) in retriers.iter().enumerate() {
        let here = retry.index(index);
        names(&retrier.error_equals, index + 1 == retriers.len(), &here.field("errorEquals"), findings);
        numbers(retrier, &here, findings);
    }
    let catch = at.field("catch");
    for (index, catcher) in catchers.iter().enumerate() {
        let here = catch.index(index);
        names(&catcher.error_equals, index + 1 == catchers.len(), &here.field("errorEquals"), findings);
        paths::nullable(
            catcher.result_path.as_ref(),
            PathKind::Reference,
            &here.field("resultPath"),
            findings,
        );
    }
}

fn names(names: &[String], is_last: bool, at: &Path<'_>, findings: &mut Findings) {
    if names.is_empty() {
        findings
            .add(&rules::REQUIRED, at, "Required value: at least one error")
            .on_key()
            .help("`States.ALL` matches any error");
    }
    for (index, name) in names.iter().enumerate() {
        let here = at.index(index);
        if name == ALL && (names.len() > 1 || !is_last) {
            let message = format!("Invalid value: `{ALL}` must be the only error, in the last entry");
            findings
                .add(&rules::RETRY, &here, message)
                .help("it matches any error: entries after it have no effect");
        } else if name.starts_with("States.") && !STATES.contains(&name.as_str()) {
            let message =
                format!("Invalid value: unknown error `{name}`; `States.` is reserved for the engine");
            findings.add(&rules::RETRY, &here, message).help(suggestion(name, STATES));
        } else if name.is_empty() {
            findings.add(&rules::RETRY, &here, "Invalid value: the name of an error is empty");
        }
    }
}

fn numbers(retrier: &Retrier, at: &Path<'_>, findings: &mut Findings) {
    let Some(longest) = retrier.max_delay_seconds else { return };
    if longest <= retrier.interval_seconds {
        let message = format!(
            "Invalid value: {longest}: must be more than intervalSeconds ({})",
            retrier.interval_seconds
        );
        findings.add(&rules::RETRY, &at.field("maxDelaySeconds"), message);
    }
}
