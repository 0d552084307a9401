//! Triggers, which start runs of workflows and functions.

mod validate;

use cronexpr::{Crontab, MakeTimestamp, parse_crontab};
use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use crate::codec::is_default;

pub(super) use validate::validate;

/// Starts runs on a schedule, for commits, or on calls. Exactly one of the three must be set.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Trigger {
    /// Name, unique among the triggers of the object. Ids of its runs begin with it.
    pub name: String,
    /// Starts runs at the times of a schedule.
    pub schedule: Option<Schedule>,
    /// Starts a run for each applied commit of the object's repository that changed matching paths.
    pub on_commit: Option<OnCommit>,
    /// Starts a run for each `POST /v1/calls/<kind>/<namespace>/<object>/<trigger>` with the token. The body is the
    /// input.
    pub on_call: Option<OnCall>,
    /// Input of the runs. By default a schedule passes `{"trigger": …, "time": …}`, a commit
    /// `{"trigger": …, "commit": …, "author": …, "subject": …, "paths": […]}`, and a call its body.
    pub params: Option<Json>,
}

/// Commits that changed certain paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct OnCommit {
    /// Patterns in the syntax of `.gitignore`, from the root of the repository: `/data/`, `*.csv`, `!*.tmp.csv`.
    /// Every commit matches if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// HTTP calls that carry the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct OnCall {
    /// SHA-256 of the token, in hex: `printf %s "$TOKEN" | sha256sum`. Generate tokens with `openssl rand -hex 32`:
    /// a token that a person makes up can be guessed from its hash.
    pub token_sha256: String,
}

/// Event that starts the runs of a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriggerEvent<'a> {
    /// Times of a schedule.
    Schedule(&'a Schedule),
    /// Applied commits.
    Commit(&'a OnCommit),
    /// HTTP calls.
    Call(&'a OnCall),
}

impl Trigger {
    /// Returns the event that starts the runs; `None` if the trigger is not valid.
    pub fn event(&self) -> Option<TriggerEvent<'_>> {
        let schedule = self.schedule.as_ref().map(TriggerEvent::Schedule);
        let commit = self.on_commit.as_ref().map(TriggerEvent::Commit);
        schedule.or(commit).or(self.on_call.as_ref().map(TriggerEvent::Call))
    }

    /// Returns the id of the run that the trigger starts for `key`. Trigger names have no dots, so no two triggers
    /// share an id.
    pub fn run_id(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    /// Returns the trigger that alone may start a run with this id: its name comes before the first dot.
    pub fn owner_of<'t>(triggers: &'t [Trigger], run: &str) -> Option<&'t Trigger> {
        let (name, _) = run.split_once('.')?;
        triggers.iter().find(|trigger| trigger.name == name)
    }
}

// Ticks of a schedule. Pure except for the rules of time zones, which come from the machine's database, or from
// the program if the machine has none.

/// Recurring times of the calendar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Schedule {
    /// Cron expression of five fields: minute, hour, day of the month, month, day of the week. Or one of `@hourly`,
    /// `@daily`, `@weekly`, `@monthly`, `@yearly`.
    pub cron: String,
    /// Time zone of the expression, for example `Europe/Berlin`; defaults to `UTC`.
    #[serde(default = "utc", skip_serializing_if = "is_utc")]
    pub time_zone: String,
    /// Handling of times that passed while no reconciler ran; defaults to `run`, a single run for all of them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missed: MissedPolicy,
}

fn utc() -> String {
    "UTC".to_owned()
}

fn is_utc(zone: &str) -> bool {
    zone == "UTC"
}

/// Handling of times that passed while no reconciler ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MissedPolicy {
    /// A single run for all of them.
    #[default]
    Run,
    /// No run.
    Skip,
}

/// Reason why a schedule has no ticks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The expression does not have five fields.
    #[error("has {0} field{s}, not 5", s = if *.0 == 1 { "" } else { "s" })]
    Fields(usize),
    /// The expression begins with `@`, but is not the name of a schedule.
    #[error("unknown schedule name")]
    Name,
    /// The expression can't be parsed.
    #[error("{0}")]
    Expression(String),
    /// The time zone does not exist.
    #[error("unknown time zone")]
    TimeZone,
    /// The time never comes.
    #[error("this time never occurs")]
    Never,
}

/// A parsed schedule.
///
/// Clock changes skip or repeat an hour. With fixed hours each day has its ticks once, as in Vixie's cron, and
/// those of a skipped hour come an hour later. With `*` as hours (also `*/2`) ticks follow the elapsed time.
#[derive(Debug, Clone)]
pub struct Ticks {
    zone: TimeZone,
    /// In the zone with `*` as hours, otherwise in wall clock time as if it were UTC.
    crontab: Crontab,
    is_hourly: bool,
}

/// Names of schedules, as in Vixie's cron, and their fields.
const NAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

impl Schedule {
    /// Returns the five fields of a named schedule, or the expression as written.
    fn expression(&self) -> Result<&str, ScheduleError> {
        let written = self.cron.trim();
        match NAMES.iter().find(|(name, _)| *name == written) {
            Some((_, fields)) => Ok(fields),
            None if written.starts_with('@') => Err(ScheduleError::Name),
            None => Ok(written),
        }
    }

    /// Parses the schedule.
    ///
    /// # Errors
    /// Fails if the schedule has no ticks, with the reason.
    pub fn ticks(&self) -> Result<Ticks, ScheduleError> {
        let zone = TimeZone::get(&self.time_zone).map_err(|_| ScheduleError::TimeZone)?;
        let fields: Vec<&str> = self.expression()?.split_ascii_whitespace().collect();
        let [_, hours, ..] = fields[..] else { return Err(ScheduleError::Fields(fields.len())) };
        if fields.len() != 5 {
            return Err(ScheduleError::Fields(fields.len()));
        }
        let is_hourly = hours.starts_with('*');
        let of_zone = if is_hourly { &*self.time_zone } else { "UTC" };
        let crontab = parse_crontab(&format!("{} {of_zone}", fields.join(" ")));
        let crontab = crontab.map_err(|error| ScheduleError::Expression(reason(&error.to_string())))?;
        let ticks = Ticks { zone, crontab, is_hourly };
        // The four years that are searched from here have a 29th of February.
        if ticks.after(Timestamp::UNIX_EPOCH).is_some() { Ok(ticks) } else { Err(ScheduleError::Never) }
    }
}

/// Returns the last line of an error, which follows the expression, without the mark of the position.
fn reason(error: &str) -> String {
    error.lines().last().unwrap_or_default().trim_start_matches([' ', '^']).to_owned()
}

impl Ticks {
    /// Returns the first tick after `time`.
    pub fn after(&self, time: Timestamp) -> Option<Timestamp> {
        if self.is_hourly {
            return self.next_after(time);
        }
        let mut on_the_wall = Offset::UTC.to_timestamp(self.zone.to_datetime(time)).ok()?;
        loop {
            on_the_wall = self.next_after(on_the_wall)?;
            let there = self.zone.to_ambiguous_timestamp(Offset::UTC.to_datetime(on_the_wall));
            let tick = there.compatible().ok()?;
            if tick > time {
                return Some(tick);
            }
        }
    }

    fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        let from = MakeTimestamp::from_second(time.as_second()).ok()?;
        Some(self.crontab.find_next(from).ok()?.timestamp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(cron: &str, zone: &str) -> Schedule {
        Schedule { cron: cron.to_owned(), time_zone: zone.to_owned(), missed: MissedPolicy::Run }
    }

    /// Returns the ticks after `from`, with the offset of the zone.
    fn ticks(cron: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let ticks = schedule(cron, zone).ticks().unwrap();
        let mut at: Timestamp = from.parse().unwrap();
        let tz = TimeZone::get(zone).unwrap();
        let mut found = Vec::new();
        for _ in 0..count {
            at = ticks.after(at).unwrap();
            found.push(at.to_zoned(tz.clone()).strftime("%m-%d %H:%M %:z").to_string());
        }
        found
    }

    #[test]
    fn ticks_are_those_of_the_expression_in_its_zone() {
        for (cron, zone, from, wanted) in [
            ("*/5 * * * *", "UTC", "2026-11-23T16:05:00Z", ["11-23 16:10 +00:00", "11-23 16:15 +00:00"]),
            (
                "0 9 * * MON-FRI",
                "Asia/Tokyo",
                "2026-11-20T09:00:00+09:00",
                ["11-23 09:00 +09:00", "11-24 09:00 +09:00"],
            ),
            (
                "30 18 1 * *",
                "America/New_York",
                "2026-10-31T00:00:00Z",
                ["11-01 18:30 -05:00", "12-01 18:30 -05:00"],
            ),
            ("@hourly", "UTC", "2026-11-23T16:05:00Z", ["11-23 17:00 +00:00", "11-23 18:00 +00:00"]),
            ("@daily", "Europe/Berlin", "2026-11-23T16:05:00Z", ["11-24 00:00 +01:00", "11-25 00:00 +01:00"]),
            ("@weekly", "UTC", "2026-11-23T16:05:00Z", ["11-29 00:00 +00:00", "12-06 00:00 +00:00"]),
            ("@monthly", "UTC", "2026-11-23T16:05:00Z", ["12-01 00:00 +00:00", "01-01 00:00 +00:00"]),
            ("@yearly", "UTC", "2026-11-23T16:05:00Z", ["01-01 00:00 +00:00", "01-01 00:00 +00:00"]),
            ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", ["02-29 00:00 +00:00", "02-29 00:00 +00:00"]),
        ] {
            assert_eq!(ticks(cron, zone, from, 2), wanted, "{cron} {zone}");
        }
    }

    // Seen red with the zone's own crontab for fixed hours: the day in spring has none.
    #[test]
    fn each_day_has_its_tick_once_where_the_clock_is_changed() {
        let spring = ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T03:00:00+01:00", 2);
        assert_eq!(spring, ["03-29 03:30 +02:00", "03-30 02:30 +02:00"]);
        let autumn = ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T03:00:00+02:00", 2);
        assert_eq!(autumn, ["10-25 02:30 +02:00", "10-26 02:30 +01:00"]);
    }

    #[test]
    fn every_half_hour_is_half_an_hour_where_the_clock_is_changed() {
        let spring = ticks("*/30 * * * *", "Europe/Berlin", "2026-03-29T01:00:00+01:00", 3);
        assert_eq!(spring, ["03-29 01:30 +01:00", "03-29 03:00 +02:00", "03-29 03:30 +02:00"]);
        let autumn = ticks("*/30 * * * *", "Europe/Berlin", "2026-10-25T02:00:00+02:00", 4);
        assert_eq!(
            autumn,
            ["10-25 02:30 +02:00", "10-25 02:00 +01:00", "10-25 02:30 +01:00", "10-25 03:00 +01:00"]
        );
    }

    #[test]
    fn what_has_no_ticks_is_reported() {
        for (cron, zone, error) in [
            ("* * * *", "UTC", ScheduleError::Fields(4)),
            ("0 * * * * *", "UTC", ScheduleError::Fields(6)),
            ("daily", "UTC", ScheduleError::Fields(1)),
            ("@dayly", "UTC", ScheduleError::Name),
            ("@reboot", "UTC", ScheduleError::Name),
            ("0 0 30 2 *", "UTC", ScheduleError::Never),
            ("0 0 * * *", "Mars/Olympus", ScheduleError::TimeZone),
        ] {
            assert_eq!(schedule(cron, zone).ticks().unwrap_err(), error, "{cron}");
        }
        assert_eq!(ScheduleError::Fields(1).to_string(), "has 1 field, not 5");
        assert!(matches!(schedule("61 * * * *", "UTC").ticks(), Err(ScheduleError::Expression(_))));
    }
}
