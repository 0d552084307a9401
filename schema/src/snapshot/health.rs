//! Health of each object: one function for all callers, so that no two answers differ. Pure.
//!
//! What differs by kind is in the kind's row, in `rows`.

use jiff::Timestamp;

use super::Snapshot;
use super::rows::row;
use crate::kinds::Health;
use crate::kinds::pod::UnsteadyContainer;
use crate::object::Object;

/// Returns the health of a live object.
pub fn health(snapshot: &Snapshot, object: &Object) -> Health {
    row(object).health(snapshot, object)
}

/// Returns the reason why an object is not healthy, if its kind fails commits.
pub fn trouble(snapshot: &Snapshot, object: &Object) -> Option<String> {
    let is_awaited = object.kind().descriptor().fails_commits;
    health(snapshot, object).why().filter(|_| is_awaited).map(str::to_owned)
}

/// Returns the seconds without progress after which an unhealthy object has failed.
pub fn deadline_seconds(snapshot: &Snapshot, object: &Object) -> u32 {
    deadline_or(object, snapshot.cluster().defaults.progress_deadline_seconds)
}

/// Like [`deadline_seconds`], with the cluster's default as an argument.
pub fn deadline_or(object: &Object, default: u32) -> u32 {
    object.resource.deadline_seconds(default)
}

/// Returns the time at which the object last came closer to being healthy. A restart is not progress, so a crash
/// loop reaches its deadline.
pub fn progressed_at(snapshot: &Snapshot, object: &Object, now: Timestamp) -> Option<Timestamp> {
    row(object).progressed_at(snapshot, object, now)
}

/// True if the records that nodes need for the object exist; for a pod, those of this version. Not waited for: a
/// name, an address or a port that others hold.
pub fn is_complete(snapshot: &Snapshot, object: &Object) -> bool {
    row(object).is_complete(snapshot, object)
}

/// Returns a healthy pod that may not stay so: it has run for too short a time to know.
pub fn unsteady<'a>(
    snapshot: &'a Snapshot,
    object: &Object,
    now: Timestamp,
) -> Option<UnsteadyContainer<'a>> {
    row(object).unsteady(snapshot, object, now)
}
