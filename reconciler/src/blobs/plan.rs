//! Which content goes. Pure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use schema::files::Files;
use schema::snapshot::Snapshot;

/// How long unreferenced content stays, for a push back to it and for slow agents.
pub const KEPT: SignedDuration = SignedDuration::from_hours(1);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Still referred to: its hour begins anew.
    pub keep: Vec<String>,
    /// Nothing has referred to it for an hour.
    pub remove: Vec<String>,
}

impl schema::control::Plan for Sweep {
    fn is_empty(&self) -> bool {
        self.remove.is_empty()
    }
}

/// Digests that objects, templates and pods refer to: a pod of a former revision may still wait for its files.
pub fn live(snapshot: &Snapshot) -> BTreeSet<&str> {
    all(snapshot).flat_map(Files::values).map(|blob| blob.digest.as_str()).collect()
}

pub fn all(snapshot: &Snapshot) -> impl Iterator<Item = &Files> {
    let objects = snapshot.objects.values().map(|object| &object.value.files);
    let templates = snapshot.templates.values().map(|template| &template.value.files);
    objects.chain(templates).chain(snapshot.pods.values().map(|pod| &pod.value.files))
}

/// Decides about what is on disk: digests, and when each was last referred to.
pub fn plan(on_disk: &[(String, Timestamp)], live: &BTreeSet<&str>, now: Timestamp) -> Sweep {
    let mut sweep = Sweep::default();
    for (digest, last) in on_disk {
        if live.contains(digest.as_str()) {
            sweep.keep.push(digest.clone());
        } else if now.duration_since(*last) > KEPT {
            sweep.remove.push(digest.clone());
        }
    }
    sweep
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_refers_to_goes_after_an_hour() {
        let now = Timestamp::from_second(1_900_000_000).unwrap();
        let ago = |minutes: i64| now - SignedDuration::from_mins(minutes);
        let on_disk = [("live", 600), ("young", 59), ("old", 61)].map(|(name, m)| (name.to_owned(), ago(m)));
        let sweep = plan(&on_disk, &BTreeSet::from(["live"]), now);
        assert_eq!(sweep, Sweep { keep: vec!["live".into()], remove: vec!["old".into()] });
    }
}
