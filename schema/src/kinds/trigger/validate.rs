//! What triggers must say beyond their types.

use std::collections::BTreeSet;

use super::{ScheduleError, Trigger};
use crate::kinds::names;
use crate::violation::{Findings, Path, rules};

/// Longest name: the ids of runs have a time behind it.
const NAME_MAX_CHARS: usize = 40;
/// Most triggers of an object.
const COUNT_MAX: usize = 20;

/// Checks the field `triggers` of the spec at `at`.
pub(in crate::kinds) fn validate(triggers: &[Trigger], at: &Path<'_>, findings: &mut Findings) {
    let at = at.field("triggers");
    if triggers.len() > COUNT_MAX {
        let message = format!("Too many: {} triggers, of which there may be {COUNT_MAX}", triggers.len());
        findings.add(&rules::OUT_OF_RANGE, &at, message);
    }
    let mut seen = BTreeSet::new();
    for (index, trigger) in triggers.iter().enumerate() {
        let here = at.index(index);
        let name = trigger.name.as_str();
        if !names::is_dns_label(name) || name.len() > NAME_MAX_CHARS {
            let message = format!("Invalid value: `{}`: can't be the name of a trigger", name.escape_debug());
            let help = format!("write small letters, digits and '-', {NAME_MAX_CHARS} at most");
            findings.add(&rules::INVALID_NAME, &here.field("name"), message).help(help);
        } else if !seen.insert(name) {
            let message = format!("Duplicate value: `{name}`");
            findings.add(&rules::DUPLICATE_NAME, &here.field("name"), message);
        }
        let Err(error) = trigger.schedule.ticks() else { continue };
        let (field, value, help) = match error {
            ScheduleError::TimeZone => {
                ("timeZone", &trigger.schedule.time_zone, "write one as `Europe/Berlin` or `UTC`")
            }
            _ => (
                "cron",
                &trigger.schedule.cron,
                "write minute, hour, day of the month, month and day of the week, as `30 2 * * MON-FRI`",
            ),
        };
        let message = format!("Invalid value: `{}`: {error}", value.escape_debug());
        findings.add(&rules::SCHEDULE, &here.field("schedule").field(field), message).help(help);
    }
}
