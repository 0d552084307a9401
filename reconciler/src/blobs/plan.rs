//! Selects the content to keep and to remove. Pure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use schema::files::Files;
use schema::records::JobOrder;
use schema::snapshot::Snapshot;

/// Time that unreferenced content stays, for a push that returns to it and for slow agents.
pub const KEPT: SignedDuration = SignedDuration::from_hours(1);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Content that is still referenced: its hour restarts.
    pub keep: Vec<String>,
    /// Content without a reference for an hour.
    pub remove: Vec<String>,
}

impl schema::control::Plan for Sweep {
    fn is_empty(&self) -> bool {
        self.remove.is_empty()
    }
}

/// Digests that objects, templates, pods and job orders refer to: a pod of a former revision may still wait for its
/// files, and cancelling a removed job needs its login.
pub fn live(snapshot: &Snapshot) -> BTreeSet<&str> {
    all(snapshot).flat_map(Files::values).map(|blob| blob.digest.as_str()).collect()
}

pub fn all(snapshot: &Snapshot) -> impl Iterator<Item = &Files> {
    let objects = snapshot.objects.values().map(|object| &object.value.files);
    let templates = snapshot.templates.values().map(|template| &template.value.files);
    let jobs = snapshot.jobs.values().flat_map(|order| of_job(&order.value));
    objects.chain(templates).chain(snapshot.pods.values().map(|pod| &pod.value.files)).chain(jobs)
}

fn of_job(order: &JobOrder) -> impl Iterator<Item = &Files> {
    std::iter::once(&order.files).chain(order.former.iter().map(|former| &former.files))
}

/// Decides on the content on disk, given as digests with the time of the last reference.
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

    // Seen red without orders: the login of a removed job can no longer be fetched.
    #[test]
    fn what_an_order_names_is_live_without_its_object() {
        use schema::codec::encode;
        use schema::keys::Key;
        use schema::meta::NamespacedName;
        use schema::records::{FormerJob, JobDependencyState};
        let files = |digest: &str| {
            let blob = schema::files::BlobRef {
                digest: digest.to_owned(),
                size: 1,
                kind: schema::files::BlobKind::Secret,
                texts: Vec::new(),
                source: String::new(),
            };
            Files::from([("secrets/slurm.age".to_owned(), blob)])
        };
        let mut order = JobOrder {
            uid: "one".to_owned(),
            hash: String::new(),
            spec: schema::kinds::job::JobSpec::default(),
            files: files("before"),
            created_at: Timestamp::UNIX_EPOCH,
            dependency: JobDependencyState::None,
            reached: true,
            former: Vec::new(),
            deleting: true,
        };
        order.former = vec![FormerJob::of(&order)];
        order.files = files("now");
        let mut snapshot = Snapshot::default();
        let key = Key::Job("n1".to_owned(), NamespacedName::new("default", "sum")).to_string();
        let value = encode(&order).unwrap().into();
        snapshot.apply(&schema::snapshot::Change::Put { key, value, create_revision: 1, mod_revision: 1 });
        assert_eq!(live(&snapshot), BTreeSet::from(["before", "now"]));
    }

    #[test]
    fn what_nothing_refers_to_goes_after_an_hour() {
        let now = Timestamp::from_second(1_900_000_000).unwrap();
        let ago = |minutes: i64| now - SignedDuration::from_mins(minutes);
        let on_disk = [("live", 600), ("young", 59), ("old", 61)].map(|(name, m)| (name.to_owned(), ago(m)));
        let sweep = plan(&on_disk, &BTreeSet::from(["live"]), now);
        assert_eq!(sweep, Sweep { keep: vec!["live".into()], remove: vec!["old".into()] });
    }
}
