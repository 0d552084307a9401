//! Decides which ticks of a trigger get a run, and the input of that run. Pure.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::trigger::{MissedPolicy, Schedule, Ticks, Trigger};
use schema::records::{TriggerRecord, TriggerStart};
use serde_json::{Value as Json, json};

/// Age from which on a tick is missed: a change of leader takes less.
const LATE: SignedDuration = SignedDuration::from_secs(60);
/// Maximum number of missed ticks that are counted one by one; of a longer time only the end is counted.
const COUNTED_MAX: u32 = 1_000;
/// Length of that end.
const COUNTED_SPAN: SignedDuration = SignedDuration::from_hours(48);

/// Decision on a trigger.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TriggerDecision {
    /// New record of the trigger.
    pub record: TriggerRecord,
    /// Run that the trigger starts, also in the record.
    pub start: Option<TriggerStart>,
}

/// Decides on all ticks of the schedule until now; `None` if there are none.
///
/// A new or changed schedule has its first tick after now. If several ticks are due, the newest gets a run, which
/// stands for the others.
pub(super) fn decide(
    (trigger, schedule): (&Trigger, &Schedule),
    before: Option<&TriggerRecord>,
    now: Timestamp,
) -> Option<TriggerDecision> {
    let known = before.filter(|before| before.schedule.as_ref() == Some(schedule));
    if known.is_some_and(|known| known.next.is_none_or(|next| next > now)) {
        return None;
    }
    let ticks = schedule.ticks().ok()?;
    let mut record = TriggerRecord {
        schedule: Some(schedule.clone()),
        next: ticks.after(now),
        last: before.and_then(|before| before.last.clone()),
        skipped: known.map_or(0, |known| known.skipped),
    };
    let Some(first) = known.and_then(|known| known.next) else {
        return Some(TriggerDecision { record, start: None });
    };
    let (tick, missed) = newest(&ticks, first, now);
    let is_late = now.duration_since(tick) > LATE;
    if is_late && schedule.missed == MissedPolicy::Skip {
        record.skipped = record.skipped.saturating_add(missed + 1);
        return Some(TriggerDecision { record, start: None });
    }
    let run = trigger.run_id(&tick.strftime("%Y%m%dT%H%MZ").to_string());
    let missed = record.skipped.saturating_add(missed);
    let start = TriggerStart { run, tick: Some(tick), commit: None, started_at: now, missed };
    record.skipped = 0;
    record.last = Some(start.clone());
    Some(TriggerDecision { record, start: Some(start) })
}

/// Returns the newest due tick, and the number of due ticks before it.
fn newest(ticks: &Ticks, first: Timestamp, now: Timestamp) -> (Timestamp, u32) {
    let is_due = |tick: &Timestamp| *tick <= now;
    let (mut newest, mut missed) = (first, 0);
    while let Some(tick) = ticks.after(newest).filter(is_due) {
        missed += 1;
        let end = (missed == COUNTED_MAX).then(|| ticks.after(now - COUNTED_SPAN)).flatten();
        newest = end.filter(is_due).map_or(tick, |end| end.max(tick));
    }
    (newest, missed)
}

/// Returns the input of a tick's run.
pub(super) fn input(trigger: &Trigger, tick: Timestamp) -> Json {
    let written = trigger.params.clone();
    written.unwrap_or_else(|| json!({"trigger": trigger.name, "time": tick.to_string()}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trigger(cron: &str, missed: MissedPolicy) -> Trigger {
        let schedule = Schedule { cron: cron.into(), time_zone: "UTC".into(), missed };
        Trigger {
            name: "tick".into(),
            schedule: Some(schedule),
            on_commit: None,
            on_call: None,
            params: None,
        }
    }

    fn decide(trigger: &Trigger, before: Option<&TriggerRecord>, now: Timestamp) -> Option<TriggerDecision> {
        super::decide((trigger, trigger.schedule.as_ref().unwrap()), before, now)
    }

    fn at(text: &str) -> Timestamp {
        format!("2026-11-{text}Z").parse().unwrap()
    }

    /// Returns the record after decisions at these times, and the runs they started with their missed ticks.
    fn looks(trigger: &Trigger, times: &[&str]) -> (Option<TriggerRecord>, Vec<(String, u32)>) {
        let (mut record, mut runs) = (None, Vec::new());
        for time in times {
            if let Some(decision) = decide(trigger, record.as_ref(), at(time)) {
                runs.extend(decision.start.map(|start| (start.run, start.missed)));
                record = Some(decision.record);
            }
        }
        (record, runs)
    }

    #[test]
    fn each_tick_starts_one_run_however_often_it_is_looked_at() {
        let every_5 = trigger("*/5 * * * *", MissedPolicy::Run);
        let times =
            ["23T16:03:00", "23T16:04:59", "23T16:05:00", "23T16:05:00", "23T16:07:00", "23T16:10:30"];
        let (record, runs) = looks(&every_5, &times);
        assert_eq!(runs, [("tick.20261123T1605Z".to_owned(), 0), ("tick.20261123T1610Z".to_owned(), 0)]);
        let record = record.unwrap();
        assert_eq!(record.next, Some(at("23T16:15:00")));
        assert_eq!(record.last.unwrap().started_at, at("23T16:10:30"));
    }

    #[test]
    fn the_first_sight_of_a_schedule_starts_nothing_of_the_past() {
        let (record, runs) = looks(&trigger("* * * * *", MissedPolicy::Run), &["23T16:05:00"]);
        assert_eq!((record.unwrap().next, runs.len()), (Some(at("23T16:06:00")), 0));
        // Another expression is another schedule, and the record of the last run stays.
        let (before, _) = looks(&trigger("* * * * *", MissedPolicy::Run), &["23T16:05:00", "23T16:06:00"]);
        let daily = trigger("0 3 * * *", MissedPolicy::Run);
        let changed = decide(&daily, before.as_ref(), at("23T18:00:00")).unwrap();
        assert_eq!((changed.start, changed.record.next), (None, Some(at("24T03:00:00"))));
        assert_eq!(changed.record.last, before.unwrap().last);
    }

    #[test]
    fn what_was_missed_has_one_run_or_none_as_configured() {
        let times = ["23T16:00:30", "23T16:01:00", "23T16:06:10", "23T16:07:00"];
        let (_, runs) = looks(&trigger("* * * * *", MissedPolicy::Run), &times);
        let names: Vec<_> = runs.iter().map(|(run, missed)| (&run[14..], *missed)).collect();
        assert_eq!(names, [("1601Z", 0), ("1606Z", 4), ("1607Z", 0)]);

        let hourly = ["23T16:30:00", "23T19:30:00", "23T20:00:59"];
        let (_, runs) = looks(&trigger("0 * * * *", MissedPolicy::Run), &hourly);
        assert_eq!(runs, [("tick.20261123T1900Z".to_owned(), 2), ("tick.20261123T2000Z".to_owned(), 0)]);
        let (record, runs) = looks(&trigger("0 * * * *", MissedPolicy::Skip), &hourly[..2]);
        assert_eq!((record.unwrap().skipped, runs.len()), (3, 0));
        // The next run in time reports the ticks without a run.
        let (record, runs) = looks(&trigger("0 * * * *", MissedPolicy::Skip), &hourly);
        assert_eq!(runs, [("tick.20261123T2000Z".to_owned(), 3)]);
        assert_eq!(record.unwrap().skipped, 0);
    }

    #[test]
    fn after_weeks_the_newest_tick_is_found_without_counting_all() {
        let (_, runs) = looks(&trigger("* * * * *", MissedPolicy::Run), &["01T00:00:00", "28T12:34:10"]);
        let [(run, missed)] = &runs[..] else { panic!("{runs:?}") };
        assert_eq!(run, "tick.20261128T1234Z");
        assert!((COUNTED_MAX..5_000).contains(missed), "{missed}");
    }

    #[test]
    fn a_clock_that_was_set_back_starts_nothing_twice() {
        let (_, runs) = looks(
            &trigger("* * * * *", MissedPolicy::Run),
            &["23T16:00:30", "23T16:01:00", "23T15:00:00", "23T16:01:30"],
        );
        assert_eq!(runs.len(), 1);
    }

    #[test]
    fn the_input_is_the_params_or_says_when() {
        let mut ticks = trigger("* * * * *", MissedPolicy::Run);
        let tick = at("23T16:05:00");
        assert_eq!(input(&ticks, tick), json!({"trigger": "tick", "time": "2026-11-23T16:05:00Z"}));
        ticks.params = Some(json!({"n": 1}));
        assert_eq!(input(&ticks, tick), json!({"n": 1}));
    }
}
