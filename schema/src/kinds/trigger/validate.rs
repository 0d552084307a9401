//! Checks of triggers beyond the schema.

use std::collections::BTreeSet;

use super::{NAMES, OnCall, OnCommit, Schedule, ScheduleError, Trigger};
use crate::document::nearest::suggestion;
use crate::names;
use crate::violation::{Findings, Path, rules};

/// Maximum length of a name, to which ids of runs append a time or a commit.
const NAME_MAX_CHARS: usize = 40;
/// Maximum number of triggers of an object.
const COUNT_MAX: usize = 20;
/// Maximum number of patterns of a trigger.
const PATTERNS_MAX: usize = 100;
/// Number of hex digits of a SHA-256.
const SHA256_DIGITS: usize = 64;
/// SHA-256 of an empty token: the output of `printf %s "$TOKEN" | sha256sum` if `TOKEN` is not set.
const SHA256_OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Checks the field `triggers` of the spec at `at`.
pub(in crate::kinds) fn validate(triggers: &[Trigger], at: &Path<'_>, findings: &mut Findings) {
    let at = at.field("triggers");
    if triggers.len() > COUNT_MAX {
        let message = format!("Too many: {} triggers; at most {COUNT_MAX}", triggers.len());
        findings.add(&rules::OUT_OF_RANGE, &at, message);
    }
    let mut seen = BTreeSet::new();
    for (index, trigger) in triggers.iter().enumerate() {
        let here = at.index(index);
        let name = trigger.name.as_str();
        if !names::is_dns_label(name) || name.len() > NAME_MAX_CHARS {
            let message = format!("Invalid value: `{}`: not a valid trigger name", name.escape_debug());
            let help = format!("use lower case letters, digits and '-', at most {NAME_MAX_CHARS} characters");
            findings.add(&rules::INVALID_NAME, &here.field("name"), message).help(help);
        } else if !seen.insert(name) {
            let message = format!("Duplicate value: `{name}`");
            findings.add(&rules::DUPLICATE_NAME, &here.field("name"), message);
        }
        event_fields(trigger, &here, findings);
    }
}

fn event_fields(trigger: &Trigger, here: &Path<'_>, findings: &mut Findings) {
    let given = [
        ("schedule", trigger.schedule.is_some()),
        ("onCommit", trigger.on_commit.is_some()),
        ("onCall", trigger.on_call.is_some()),
    ];
    let mut given = given.iter().filter(|(_, is_given)| *is_given).map(|(field, _)| *field);
    match (given.next(), given.next()) {
        (None, _) => {
            let help =
                "write `schedule`, `onCommit` or `onCall`; see 'minik8s explain workflow.spec.triggers'";
            findings.add(&rules::REQUIRED, here, "Required value: the event that starts runs").help(help);
        }
        (Some(first), Some(second)) => {
            let message = format!("Forbidden: may not be set together with `{first}`");
            let help = "write a trigger for each";
            findings.add(&rules::EXCLUSIVE, &here.field(second), message).on_key().help(help);
        }
        (Some(_), None) => {}
    }
    if let Some(written) = &trigger.schedule {
        schedule(written, &here.field("schedule"), findings);
    }
    if let Some(written) = &trigger.on_commit {
        commits(written, &here.field("onCommit"), findings);
    }
    if let Some(written) = &trigger.on_call {
        token(written, &here.field("onCall"), findings);
    }
}

fn schedule(schedule: &Schedule, at: &Path<'_>, findings: &mut Findings) {
    let Err(error) = schedule.ticks() else { return };
    let fields = "write minute, hour, day of month, month and day of week, for example `30 2 * * MON-FRI`";
    let (field, value, help) = match error {
        ScheduleError::TimeZone => {
            ("timeZone", &schedule.time_zone, "for example `Europe/Berlin` or `UTC`".to_owned())
        }
        ScheduleError::Name => {
            ("cron", &schedule.cron, suggestion(&schedule.cron, NAMES.map(|(name, _)| name)))
        }
        _ => ("cron", &schedule.cron, fields.to_owned()),
    };
    let message = format!("Invalid value: `{}`: {error}", value.escape_debug());
    findings.add(&rules::SCHEDULE, &at.field(field), message).help(help);
}

fn commits(commits: &OnCommit, at: &Path<'_>, findings: &mut Findings) {
    let at = at.field("paths");
    let count = commits.paths.len();
    if count > PATTERNS_MAX {
        let message = format!("Too many: {count} patterns; at most {PATTERNS_MAX}");
        findings.add(&rules::OUT_OF_RANGE, &at, message);
    }
    for (index, pattern) in commits.paths.iter().enumerate() {
        let fits_nothing = pattern.trim().is_empty() || pattern.starts_with('#');
        let leads_out = pattern.split('/').any(|part| part == ".." || part == ".");
        if fits_nothing || leads_out {
            let message = format!("Invalid value: `{}`: no path can match it", pattern.escape_debug());
            let help = "write it as in a `.gitignore` at the root of the repository, for example `/data/` or `*.csv`";
            findings.add(&rules::INVALID_PATH, &at.index(index), message).help(help);
        }
    }
    if count > 0 && commits.paths.iter().all(|pattern| pattern.starts_with('!')) {
        let message = "Invalid value: all patterns begin with `!` and exclude paths, so nothing can match";
        findings.add(&rules::INVALID_PATH, &at, message).help("write `*` first");
    }
}

fn token(call: &OnCall, at: &Path<'_>, findings: &mut Findings) {
    let digits = &call.token_sha256;
    if digits.len() != SHA256_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        // The message does not show the value, which may be the token itself.
        let message = "Invalid value: must be a SHA-256, which is 64 hex digits";
        let help = "write the output of `printf %s \"$TOKEN\" | sha256sum`";
        findings.add(&rules::WRONG_TYPE, &at.field("tokenSha256"), message).help(help);
    } else if digits.eq_ignore_ascii_case(SHA256_OF_NOTHING) {
        let message = "Invalid value: this is the SHA-256 of an empty token";
        let help = "make a token, for example with `openssl rand -hex 32`, and write its SHA-256";
        findings.add(&rules::WRONG_TYPE, &at.field("tokenSha256"), message).help(help);
    }
}
