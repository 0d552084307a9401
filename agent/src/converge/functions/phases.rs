//! Durations of the phases of calls, sent to the caller on request and summed up; and recent failures. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::StatusCode;
use jiff::{SignedDuration, Timestamp};
use schema::records::{CallFailure, ReplicaStart};
use serde_json::{Value, json};

/// Phases of one call, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Phases(Vec<(&'static str, Duration)>);

impl Phases {
    /// Creates the phases of a call that waited for a place at a replica from `from` for `queued`. If it waited for
    /// the replica itself, the phases of that replica's start fill the time; work done before the call arrived does
    /// not count.
    pub(super) fn new(from: Timestamp, queued: Duration, replica: Option<ReplicaStart>) -> Self {
        let mut phases = vec![("queued", queued)];
        let to = from.checked_add(queued).unwrap_or(from);
        if let Some(start) = replica.filter(|start| start.imported > from && !queued.is_zero()) {
            let ReplicaStart { scheduled, created, started, imported } = start;
            let mut before = from;
            let ends = [
                ("scheduled", scheduled),
                ("created", created),
                ("started", started),
                ("imported", imported),
                // From the replica's node to the gateways.
                ("routed", to),
            ];
            for (name, end) in ends {
                // Another node's clock may be wrong.
                let end = end.max(before).min(to);
                phases.push((name, Duration::try_from(end.duration_since(before)).unwrap_or_default()));
                before = end;
            }
        }
        Self(phases)
    }

    /// Adds the last phase and the total.
    pub(super) fn ended(mut self, handled: Option<Duration>, total: Duration) -> Self {
        self.0.extend(handled.map(|handled| ("handled", handled)));
        self.0.push(("total", total));
        self
    }

    /// Returns the wait for a replica with its phases, if that replica had to be started; empty otherwise.
    pub(super) fn cold_start(&self) -> &[(&'static str, Duration)] {
        let routed = self.0.iter().position(|(name, _)| *name == "routed");
        routed.and_then(|last| self.0.get(..=last)).unwrap_or_default()
    }

    /// Returns the total duration, once the call has ended.
    pub(super) fn total(&self) -> Duration {
        self.0.last().filter(|(name, _)| *name == "total").map(|(_, took)| *took).unwrap_or_default()
    }

    /// Formats the `Server-Timing` header, in milliseconds.
    pub(super) fn header(&self) -> String {
        let millis =
            |(name, took): &(&str, Duration)| format!("{name};dur={:.3}", took.as_secs_f64() * 1000.0);
        self.0.iter().map(millis).collect::<Vec<_>>().join(", ")
    }
}

/// Totals of one function's calls through this node, since its gateway started.
#[derive(Debug, Default)]
pub(super) struct Tally {
    answers: BTreeMap<u16, u64>,
    phases: BTreeMap<&'static str, (u64, Duration)>,
}

impl Tally {
    /// Adds a call.
    pub(super) fn add(&mut self, status: StatusCode, phases: &Phases) {
        *self.answers.entry(status.as_u16()).or_default() += 1;
        for (name, took) in &phases.0 {
            let (calls, sum) = self.phases.entry(name).or_default();
            *calls += 1;
            *sum += *took;
        }
    }

    /// Returns the number of calls by status, and for each phase the number of calls and their total time.
    pub(super) fn to_json(&self) -> Value {
        let phase = |(name, (calls, sum)): (&&str, &(u64, Duration))| {
            ((*name).to_owned(), json!({"calls": calls, "seconds": sum.as_secs_f64()}))
        };
        let answers = self.answers.iter().map(|(status, calls)| (status.to_string(), json!(calls)));
        let phases = self.phases.iter().map(phase);
        json!({"answers": Value::Object(answers.collect()), "phases": Value::Object(phases.collect())})
    }
}

/// Maximum number of failures kept for each function.
const FAILURES_MAX: usize = 3;
/// Time for which a failure is reported.
const FAILURES_SHOWN: SignedDuration = SignedDuration::from_hours(1);
/// Maximum bytes of a failure's type, and of its message.
const FAILURE_BYTES: (usize, usize) = (60, 200);
/// Largest answer that is searched for an error.
const LOOKED_INTO_BYTES: usize = 64 * 1024;

/// Newest failures of one function's calls.
#[derive(Debug, Default)]
pub(super) struct Failures(Vec<CallFailure>);

impl Failures {
    /// Adds a failure of this type and message.
    pub(super) fn add(&mut self, (kind, message): (&str, &str), now: Timestamp) {
        let (kind, message) = (truncated(kind, FAILURE_BYTES.0), truncated(message, FAILURE_BYTES.1));
        let is_alike = |one: &CallFailure| (one.kind.as_str(), one.message.as_str()) == (kind, message);
        let before = self.0.iter().position(is_alike).map(|at| self.0.remove(at));
        let count = before.map_or(0, |before| before.count) + 1;
        let (kind, message) = (kind.to_owned(), message.to_owned());
        self.0.insert(0, CallFailure { kind, message, count, last: now });
        self.0.truncate(FAILURES_MAX);
    }

    /// Returns the failures to report, the newest first.
    pub(super) fn recent(&self, now: Timestamp) -> Vec<CallFailure> {
        let is_recent = |one: &&CallFailure| now.duration_since(one.last) < FAILURES_SHOWN;
        self.0.iter().filter(is_recent).cloned().collect()
    }
}

/// Returns type and message of the error in a replica's answer.
pub(super) fn error_in(body: &[u8]) -> (String, String) {
    let read = if body.len() > LOOKED_INTO_BYTES { &[][..] } else { body };
    let answer: Value = serde_json::from_slice(read).unwrap_or_default();
    let part = |name: &str, instead: &str| answer["error"][name].as_str().unwrap_or(instead).to_owned();
    (part("type", "Error"), part("message", ""))
}

fn truncated(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_000_000 + millis).unwrap()
    }

    #[test]
    fn failures_alike_are_one_and_the_newest_come_first() {
        let mut failures = Failures::default();
        for (second, kind) in ["A", "B", "A", "C", "D", "A"].into_iter().enumerate() {
            failures.add((kind, &"ä".repeat(150)), at(1000 * i64::try_from(second).unwrap()));
        }
        let recent =
            |now| failures.recent(now).into_iter().map(|one| (one.kind, one.count)).collect::<Vec<_>>();
        let expected = [("A", 3), ("D", 1), ("C", 1)].map(|(kind, count)| (kind.to_owned(), count));
        assert_eq!(recent(at(5000)), expected);
        assert_eq!(failures.recent(at(5000))[0].message, "ä".repeat(100));
        assert_eq!(recent(at(3_600_000 + 4500)), expected[..1], "an hour later");
        let body = br#"{"error": {"type": "ValueError", "message": "no"}}"#;
        assert_eq!(error_in(body), ("ValueError".to_owned(), "no".to_owned()));
        assert_eq!(error_in(b"{}"), ("Error".to_owned(), String::new()));
    }

    fn start(scheduled: i64, created: i64, started: i64, imported: i64) -> Option<ReplicaStart> {
        let (scheduled, created) = (at(scheduled), at(created));
        Some(ReplicaStart { scheduled, created, started: at(started), imported: at(imported) })
    }

    fn server_timing(queued: u64, replica: Option<ReplicaStart>) -> String {
        Phases::new(at(0), Duration::from_millis(queued), replica).header()
    }

    // Seen red with phases that always begin at the end of the previous one, whatever the time of the call.
    #[test]
    fn the_phases_of_a_start_fill_the_wait_and_no_more() {
        assert_eq!(
            server_timing(500, start(10, 110, 310, 460)),
            "queued;dur=500.000, scheduled;dur=10.000, created;dur=100.000, started;dur=200.000, \
             imported;dur=150.000, routed;dur=40.000"
        );
        let late = server_timing(100, start(-300, -200, -100, 60));
        assert!(late.contains("started;dur=0.000, imported;dur=60.000, routed;dur=40.000"), "{late}");
        let clock_is_ahead = server_timing(100, start(10, 5000, 6000, 7000));
        assert!(clock_is_ahead.contains("created;dur=90.000, started;dur=0.000"), "{clock_is_ahead}");
        assert_eq!(
            server_timing(3, start(-300, -200, -100, -60)),
            "queued;dur=3.000",
            "it waited for a place only"
        );
        assert_eq!(server_timing(0, start(1, 2, 3, 4)), "queued;dur=0.000");
    }

    #[test]
    fn only_a_call_that_waited_for_a_start_was_a_cold_one() {
        let cold = |queued: u64, start| {
            let queued = Duration::from_millis(queued);
            let phases = Phases::new(at(0), queued, start).ended(Some(queued), queued * 2);
            let sum: Duration = phases.cold_start().iter().skip(1).map(|(_, took)| *took).sum();
            (phases.cold_start().iter().map(|(name, _)| *name).collect::<Vec<_>>(), sum)
        };
        let (names, sum) = cold(500, start(10, 110, 310, 460));
        assert_eq!(names, ["queued", "scheduled", "created", "started", "imported", "routed"]);
        assert_eq!(sum, Duration::from_millis(500));
        assert!(cold(3, start(-300, -200, -100, -60)).0.is_empty() && cold(3, None).0.is_empty());
    }

    #[test]
    fn calls_are_counted_by_their_answer_and_their_phases_add_up() {
        let mut tally = Tally::default();
        let second = Duration::from_secs(1);
        for _ in 0..2 {
            let phases = Phases::new(at(0), second, None).ended(Some(second), second * 3);
            tally.add(StatusCode::OK, &phases);
        }
        tally.add(StatusCode::GATEWAY_TIMEOUT, &Phases::default());
        let both = |seconds: f64| json!({"calls": 2, "seconds": seconds});
        let phases = json!({"queued": both(2.0), "handled": both(2.0), "total": both(6.0)});
        assert_eq!(tally.to_json(), json!({"answers": {"200": 2, "504": 1}, "phases": phases}));
    }
}
