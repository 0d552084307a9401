//! Checks of retriers and catchers: names of errors, and numbers.

use crate::kinds::workflow::{Retrier, State};
use crate::manifest::nearest::suggestion;
use crate::violation::{Findings, Path, rules};

use super::paths::{self, Sort};

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
pub(super) fn check(state: &State, at: &Path<'_>, findings: &mut Findings) {
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
        paths::nullable(catcher.result_path.as_ref(), Sort::Reference, &here.field("resultPath"), findings);
    }
}

fn names(names: &[String], is_last: bool, at: &Path<'_>, findings: &mut Findings) {
    if names.is_empty() {
        findings
            .add(&rules::REQUIRED, at, "Required value: at least one error")
            .on_key()
            .help("`States.ALL` is any error");
    }
    for (index, name) in names.iter().enumerate() {
        let here = at.index(index);
        if name == ALL && (names.len() > 1 || !is_last) {
            let message = format!("Invalid value: `{ALL}` must be the only error, in the last entry");
            findings
                .add(&rules::RETRY, &here, message)
                .help("it is any error: what comes after it never counts");
        } else if name.starts_with("States.") && !STATES.contains(&name.as_str()) {
            let message =
                format!("Invalid value: unknown error `{name}`; names with `States.` are the engine's");
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
