//! Ages in the format of kubectl.
//!
//! The steps are those of `HumanDuration` in k8s.io/apimachinery `pkg/util/duration`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::object::Object;
use schema::snapshot::Snapshot;

/// The time from `then` to `now`: `5s`, `3m12s`, `4h`, `2d`.
pub fn age(then: Timestamp, now: Timestamp) -> String {
    human_duration(now.as_second().saturating_sub(then.as_second()))
}

/// Formats seconds in at most two units, coarser for longer times.
pub fn human_duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two((minutes, "m"), (seconds % 60, "s")),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two((hours, "h"), (minutes % 60, "m")),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two((days, "d"), (hours % 24, "h")),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two((days / 365, "y"), (days % 365, "d")),
        _ => format!("{}y", days / 365),
    }
}

fn two((whole, unit): (i64, &str), (rest, rest_unit): (i64, &str)) -> String {
    if rest == 0 { format!("{whole}{unit}") } else { format!("{whole}{unit}{rest}{rest_unit}") }
}

/// Time at which each commit was applied.
pub(super) struct AppliedAt<'a>(BTreeMap<&'a str, Timestamp>);

impl<'a> AppliedAt<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        let revisions = snapshot.revisions.values().map(|revision| &revision.value);
        Self(revisions.map(|revision| (revision.commit.as_str(), revision.applied_at)).collect())
    }

    pub(super) fn time(&self, commit: &str) -> Option<Timestamp> {
        self.0.get(commit).copied()
    }

    /// Time since the object was first applied; since its last change if an older version applied it, and empty if
    /// that is no longer known.
    pub(super) fn age(&self, object: &Object, now: Timestamp) -> String {
        let since = object.created_at.or_else(|| self.time(&object.provenance.commit));
        since.map(|then| age(then, now)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (192, "3m12s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (14_400, "4h"),
            (14_460, "4h1m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (300_000_000, "9y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn an_object_is_as_old_as_its_first_version() {
        let snapshot = snapshot();
        let changed = |commit: &str, created_at: Option<Timestamp>| {
            let object = put_object(&mut Snapshot::default(), "web", commit);
            AppliedAt::new(&snapshot).age(&Object { created_at, ..object }, at(100))
        };
        assert_eq!([changed(C1, Some(at(30))), changed(C2, Some(at(30)))], ["70s", "70s"]);
        // As an older version wrote it.
        assert_eq!([changed(C2, None), changed(C3, None)], ["40s", ""]);
    }
}
