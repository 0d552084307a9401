//! Selects the sources that should run again because an object need not wait any longer. Pure.
//!
//! A run costs a query to the remote. So a source is woken once for each wait that is over, and not more often than
//! `GAP`; if it makes no progress then (its remote is away), its next poll does.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use schema::meta::ObjectRef;
use schema::snapshot::Snapshot;

use schema::snapshot::health::trouble;

/// Least time between two wake-ups of a source.
const GAP: SignedDuration = SignedDuration::from_secs(2);

/// Objects that may proceed and their dependencies, by source.
pub type Released = BTreeMap<String, BTreeSet<(ObjectRef, ObjectRef)>>;

/// Returns the waits of the configured sources that are over: the dependency is healthy and waits for nothing itself.
pub fn released(snapshot: &Snapshot, configured: &BTreeSet<String>) -> Released {
    let statuses = || configured.iter().filter_map(|name| Some((name, &snapshot.sources.get(name)?.value)));
    let waiting: BTreeSet<&ObjectRef> =
        statuses().flat_map(|(_, status)| status.waiting.iter().map(|waiting| &waiting.object)).collect();
    let well = |on: &ObjectRef| {
        !waiting.contains(on)
            && snapshot.objects.get(on).is_some_and(|live| trouble(snapshot, &live.value).is_none())
    };
    let mut out = Released::new();
    for (name, status) in statuses() {
        for wait in status.waiting.iter().filter(|wait| well(&wait.on)) {
            out.entry(name.clone()).or_default().insert((wait.object.clone(), wait.on.clone()));
        }
    }
    out
}

/// Waits that sources were woken for, while they last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Woken {
    released: Released,
    at: BTreeMap<String, Timestamp>,
}

impl Woken {
    /// Returns the sources to wake, and the time to ask again if some must wait for that.
    pub fn next(&mut self, released: &Released, now: Timestamp) -> (Vec<String>, Option<Timestamp>) {
        let (mut wake, mut again_at) = (Vec::new(), None::<Timestamp>);
        // A wait that starts again is news when it is over again.
        self.released.retain(|source, waits| {
            waits.retain(|wait| released.get(source).is_some_and(|now| now.contains(wait)));
            !waits.is_empty()
        });
        for (source, waits) in released {
            if self.released.get(source).is_some_and(|before| waits.is_subset(before)) {
                continue;
            }
            let earliest = self.at.get(source).and_then(|at| at.checked_add(GAP).ok());
            match earliest.filter(|earliest| now < *earliest) {
                Some(earliest) => again_at = Some(again_at.map_or(earliest, |at| at.min(earliest))),
                None => {
                    self.released.insert(source.clone(), waits.clone());
                    self.at.insert(source.clone(), now);
                    wake.push(source.clone());
                }
            }
        }
        (wake, again_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(waits: &[(&str, &str, &str)]) -> Released {
        let reference = |name: &str| ObjectRef {
            kind: schema::kinds::Kind::Pod,
            namespace: "default".to_owned(),
            name: name.to_owned(),
        };
        let mut out = Released::new();
        for (source, object, on) in waits {
            out.entry((*source).to_owned()).or_default().insert((reference(object), reference(on)));
        }
        out
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + ms).unwrap()
    }

    #[test]
    fn a_source_is_woken_once_for_each_wait_that_is_over() {
        let mut woken = Woken::default();
        let (one, two) = (released(&[("a", "x", "db")]), released(&[("a", "x", "db"), ("b", "y", "db")]));
        assert_eq!(woken.next(&one, at(0)).0, ["a"]);
        for second in 1..100 {
            assert_eq!(woken.next(&one, at(second * 1_000)), (vec![], None), "stale for {second} s");
        }
        assert_eq!(woken.next(&two, at(100_000)).0, ["b"], "the other is not asked for it");
        // The dependency was unhealthy in between.
        assert_eq!(woken.next(&released(&[]), at(103_000)).0, [""; 0]);
        assert_eq!(woken.next(&one, at(104_000)).0, ["a"]);
    }

    #[test]
    fn what_comes_and_goes_quickly_does_not_wake_more_often_than_the_gap_and_is_not_forgotten() {
        let mut woken = Woken::default();
        let over = released(&[("a", "x", "db")]);
        let mut times = Vec::new();
        for ms in (0..10_000).step_by(100) {
            let (wake, again_at) =
                woken.next(&if ms % 200 == 0 { over.clone() } else { released(&[]) }, at(ms));
            if !wake.is_empty() {
                times.push(ms);
            } else if ms % 200 == 0 {
                assert!(again_at.is_some_and(|again| again > at(ms)), "it would be forgotten");
            }
        }
        assert_eq!(times, [0, 2_000, 4_000, 6_000, 8_000]);
    }
}
