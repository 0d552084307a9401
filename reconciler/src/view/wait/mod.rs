//! Progress of the cluster toward a commit, with the first pending item. Healthy: the commit is fully applied, its
//! objects (those that no later commit changed) are healthy, and pods of removed objects are gone from live nodes.
//! Failed: the commit can't become healthy without a change.

use jiff::Timestamp;
use schema::keys::prefix;
use schema::kinds::{Health, Kind};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{PodInstance, Revision, SourceErrorKind, SourceStatus, Verdict};
use schema::snapshot::Snapshot;
use schema::snapshot::health::{health, trouble, unsteady};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::pods::index::PodIndex;
use super::pods::row;
use super::services::unprogrammed_node;
use super::short;

/// Minimum number of digits that identify a commit.
const COMMIT_DIGITS_MIN: usize = 7;

/// Progress of the cluster toward a commit.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitState {
    /// Set once the commit, or a later one, is applied.
    pub synced: bool,
    /// Set if the commit is synced and everything in it exists and is ready.
    pub healthy: bool,
    /// Set if the commit can't become healthy without a change.
    pub failed: bool,
    /// First pending or failed item; empty when healthy.
    pub why: String,
    /// Parts of a synced commit that are not applied: quarantined files, held prunes, waiting objects.
    pub missing: Option<String>,
    /// Full id of the commit, once it was observed.
    pub commit: Option<String>,
}

impl WaitState {
    /// Returns the state while etcd refuses writes: nothing new is observed, so only what was asked for by its commit
    /// can be reached.
    pub fn while_etcd_is_full(self, why: &str, is_of_commit: bool) -> Self {
        if self.healthy && is_of_commit {
            return self;
        }
        let synced = self.synced && is_of_commit;
        Self { synced, healthy: false, failed: false, why: why.to_owned(), ..self }
    }
}

/// Returns the progress toward `commit` (at least 7 digits), or toward the newest observed commit of each source.
pub fn wait_state(snapshot: &Snapshot, commit: Option<&str>, now: Timestamp) -> WaitState {
    if !snapshot.synced {
        return waiting("the reconciler is starting: it has not read etcd yet");
    }
    if snapshot.sources.is_empty() {
        return waiting("the reconciler is starting: it has fetched no repository yet");
    }
    let all = || snapshot.sources.values().map(|source| &source.value);
    let mut targets: Vec<Target<'_>> =
        all().filter_map(|source| Target::find(snapshot, source, commit)).collect();
    if targets.is_empty() {
        return unknown_commit(all(), commit);
    }
    if commit.is_none() && targets.len() < snapshot.sources.len() {
        return unknown_commit(all().filter(|source| source.observed_commit.is_none()), commit);
    }
    targets.sort_by_key(|target| target.source.name.as_str());
    // First the parts that need a change.
    let missing = targets.iter().find_map(Target::missing);
    let missing = missing.or_else(|| targets.iter().find_map(Target::pending_part));
    let judged = judge(snapshot, &targets, commit.is_some(), now);
    let mut state = WaitState { synced: true, missing, ..judged };
    if let Some(target) = targets.iter().find(|target| !target.is_synced()) {
        state = target.not_synced();
    }
    WaitState { commit: Some(targets[0].commit.to_owned()), ..state }
}

fn waiting(why: impl Into<String>) -> WaitState {
    WaitState { why: why.into(), ..WaitState::default() }
}

fn failed(why: impl Into<String>) -> WaitState {
    WaitState { failed: true, ..waiting(why) }
}

/// A source that has the commit, with the commit's place in its history.
struct Target<'a> {
    snapshot: &'a Snapshot,
    source: &'a SourceStatus,
    commit: &'a str,
    revision: Option<&'a Revision>,
}

impl<'a> Target<'a> {
    fn find(snapshot: &'a Snapshot, source: &'a SourceStatus, wanted: Option<&str>) -> Option<Self> {
        let newest = source.observed_commit.as_deref();
        let is_wanted = |commit: &str| match wanted {
            None => Some(commit) == newest,
            Some(wanted) => {
                commit == wanted || wanted.len() >= COMMIT_DIGITS_MIN && commit.starts_with(wanted)
            }
        };
        // The last match, because a branch may return to an old commit.
        let revision = snapshot.revisions_of(&source.name).rfind(|revision| is_wanted(&revision.commit));
        let applied = source.applied_commit.as_deref();
        let commit = [applied, newest, revision.map(|r| r.commit.as_str())];
        let commit = commit.into_iter().flatten().find(|commit| is_wanted(commit))?;
        Some(Self { snapshot, source, commit, revision })
    }

    fn is_synced(&self) -> bool {
        self.source.applied_commit.as_deref() == Some(self.commit)
            || self.revision.is_some_and(|revision| revision.sequence <= self.source.revision)
    }

    /// True if the commit is the one applied now, not an earlier one.
    fn is_newest(&self) -> bool {
        self.source.applied_commit.as_deref() == Some(self.commit)
    }

    fn not_synced(&self) -> WaitState {
        let (name, commit) = (&self.source.name, short(self.commit));
        let Some(error) = &self.source.error else {
            return waiting(format!("source {name}: commit {commit} is fetched and being applied"));
        };
        let why = format!("source {name}: {:?}: {}", error.kind, error.message);
        if needs_a_change(error.kind) { failed(why) } else { waiting(why) }
    }

    /// Part of the commit that is not applied and needs a change.
    fn missing(&self) -> Option<String> {
        let name = &self.source.name;
        let quarantined = || self.source.quarantined.iter().filter(|file| self.is_affected_by(&file.commit));
        if let Some(file) = quarantined().next() {
            let first = file.violations.first().map_or_else(|| file.file.clone(), ToString::to_string);
            let more = match quarantined().count() - 1 {
                0 => String::new(),
                1 => "; and 1 more file".to_owned(),
                more => format!("; and {more} more files"),
            };
            return Some(format!("source {name}: quarantined: {first}{more}"));
        }
        if let Some(held) = self.source.held_prune.as_ref().filter(|held| self.is_affected_by(&held.commit)) {
            return Some(format!("source {name}: prune of {} objects is held: {}", held.deletes, held.why));
        }
        None
    }

    /// True if the object belongs to the source and, with `only_own`, to the commit.
    fn includes(&self, object: &Object, only_own: bool) -> bool {
        object.provenance.source == self.source.name && (!only_own || object.provenance.commit == self.commit)
    }

    /// True if the pod may belong to an object that the commit removed. Holds for every pod if the commit removes
    /// more later, removed too many objects to name, or is older than the kept history.
    fn may_have_removed(&self, pod: &NamespacedName) -> bool {
        let Some(Revision { counts, removed, .. }) = self.revision else { return true };
        let names_all = counts.delete == removed.len() as u64 && counts.held + counts.waiting == 0;
        let workload = PodInstance::workload_in_name(&pod.name);
        let is_owner = |object: &ObjectRef| {
            let has_name = || pod.name == object.name || workload == Some(&object.name);
            // Copies of a pod are removed with its autoscaler.
            let is_its = object.kind == Kind::HorizontalPodAutoscaler || has_name();
            object.namespace == pod.namespace && is_its
        };
        !names_all || removed.iter().any(is_owner)
    }

    /// First part of the commit that is not written yet. Commits before the newest no longer wait.
    fn pending_part(&self) -> Option<String> {
        let first = self.source.waiting.first().filter(|_| self.is_newest())?;
        Some(format!("source {}: {first}", self.source.name))
    }

    /// True if the commit may still replace or remove the object, which waits for others until then.
    fn may_replace(&self, object: &Object) -> bool {
        let SourceStatus { waiting, waiting_total, .. } = self.source;
        let is_listed = waiting.iter().any(|wait| wait.object == object.reference());
        self.is_newest() && (is_listed || *waiting_total > waiting.len() as u64)
    }

    /// Reason that the commit can't become healthy without a change.
    fn failure_reason(&self) -> Option<String> {
        if let Some(missing) = self.missing() {
            return Some(missing);
        }
        let name = &self.source.name;
        match self.revision.map(|revision| &revision.verdict) {
            Some(Verdict::Bad { why }) => {
                Some(format!("source {name}: commit {}: {why}", short(self.commit)))
            }
            Some(Verdict::Degraded { .. } | Verdict::Applied | Verdict::Good | Verdict::Superseded)
            | None => None,
        }
    }

    /// True if this target's commit has the problem that `commit` introduced: problems of later commits don't count.
    fn is_affected_by(&self, commit: &str) -> bool {
        let since = || {
            let mut history = self.snapshot.revisions_of(&self.source.name);
            history.find(|revision| revision.commit == commit).map(|revision| revision.sequence)
        };
        let own = || self.revision.map(|revision| revision.sequence);
        commit == self.commit
            || self.is_newest()
            || since().zip(own()).is_some_and(|(since, own)| since <= own)
    }
}

/// True if waiting alone does not resolve the error.
fn needs_a_change(kind: SourceErrorKind) -> bool {
    match kind {
        SourceErrorKind::AuthenticationFailed
        | SourceErrorKind::PathNotFound
        | SourceErrorKind::CommitUnreadable
        | SourceErrorKind::SignatureInvalid
        | SourceErrorKind::Empty
        | SourceErrorKind::Refused
        | SourceErrorKind::NotConfigured => true,
        SourceErrorKind::RemoteUnreachable
        | SourceErrorKind::ReferenceNotFound
        | SourceErrorKind::NoCommit
        | SourceErrorKind::MirrorBroken
        | SourceErrorKind::ApplyFailed => false,
    }
}

fn unknown_commit<'a>(sources: impl Iterator<Item = &'a SourceStatus>, commit: Option<&str>) -> WaitState {
    let mut seen = Vec::new();
    for source in sources {
        if let Some(error) = &source.error {
            let why = format!("source {}: {:?}: {}", source.name, error.kind, error.message);
            let hopeless = error.kind == SourceErrorKind::AuthenticationFailed;
            return if hopeless { failed(why) } else { waiting(why) };
        }
        let newest = source.observed_commit.as_deref().map_or("not known yet", short);
        seen.push(format!("source {}: newest commit {newest}", source.name));
    }
    match commit {
        Some(commit) => {
            let (commit, seen) = (short(commit), seen.join(", "));
            waiting(format!("commit {commit} is not fetched yet ({seen}); is it pushed?"))
        }
        None => waiting(seen.join(", ")),
    }
}

/// Health of targets that are all synced: of their commits' own objects only, or of all their objects.
fn judge(snapshot: &Snapshot, targets: &[Target<'_>], only_own: bool, now: Timestamp) -> WaitState {
    if let Some(why) = targets.iter().find_map(Target::failure_reason) {
        return failed(why);
    }
    // An unreadable key may hold an object or a pod: nothing is healthy until it can be read.
    if let Some((key, why)) = snapshot.malformed.iter().find(|(key, _)| holds_desired_state(key)) {
        return waiting(format!("etcd's {key} can't be read: {why}"));
    }
    let index = PodIndex::new(snapshot);
    let is_target = |object: &&Object| targets.iter().any(|target| target.includes(object, only_own));
    let owned = || snapshot.objects.values().map(|object| &object.value).filter(is_target);
    // Pods first, because the problem of a pod explains why a service has none.
    let is_pod = |object: &&Object| object.kind() == Kind::Pod;
    let ordered = || owned().filter(is_pod).chain(owned().filter(move |object| !is_pod(object)));
    let state = |object: &Object| match object.kind() {
        Kind::Pod => Some(bare_pod(&index, object, now)).filter(|state| !state.healthy),
        _ => pending_state(snapshot, object),
    };
    // A failed object ends the wait, whatever else is on its way.
    let is_final = |object: &&Object| {
        has_failed(snapshot, object) && !targets.iter().any(|target| target.may_replace(object))
    };
    if let Some(failed) = ordered().filter(is_final).find_map(state) {
        return failed;
    }
    if let Some(why) = targets.iter().find_map(Target::pending_part) {
        return waiting(why);
    }
    let unwell = ordered().find_map(state);
    // A commit does not wait for removals by other commits.
    let is_awaited =
        |pod: &NamespacedName| !only_own || targets.iter().any(|target| target.may_have_removed(pod));
    let unwell = unwell.or_else(|| lingering_pod(&index, is_awaited));
    unwell.unwrap_or(WaitState { healthy: true, ..WaitState::default() })
}

fn holds_desired_state(key: &str) -> bool {
    [prefix::OBJECTS, prefix::PODS, prefix::BINDINGS].iter().any(|prefix| key.starts_with(prefix))
}

fn bare_pod(index: &PodIndex<'_>, object: &Object, now: Timestamp) -> WaitState {
    let pod = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    let commit = short(&object.provenance.commit);
    let Some((pod, instance)) = index.snapshot.pods.get_key_value(&pod) else {
        return waiting(format!("pod {pod}: waiting for the workloads controller to create it"));
    };
    if instance.value.hash != object.hash {
        return waiting(format!(
            "pod {pod}: waiting for the workloads controller to process commit {commit}"
        ));
    }
    let row = row(index, pod, Timestamp::UNIX_EPOCH);
    let why = || format!("pod {pod}: {}: {}", row.status, row.why);
    let health = health(index.snapshot, object);
    // The pod itself runs, so its health is about its copies.
    let of_copies = |why: &str| format!("copies of pod {pod}: {why}");
    let is_ready = row.why.is_empty();
    match health {
        Health::Degraded { why } if is_ready => failed(of_copies(&why)),
        Health::Progressing { why } if is_ready => waiting(of_copies(&why)),
        Health::Healthy => match unsteady(index.snapshot, object, now) {
            Some(unsteady) => waiting(format!("pod {pod}: {unsteady}")),
            None => WaitState { healthy: true, ..WaitState::default() },
        },
        Health::Degraded { .. } => failed(why()),
        Health::Progressing { .. } | Health::Unknown { .. } => waiting(why()),
    }
}

/// Reason to wait for an object other than a pod.
fn pending_state(snapshot: &Snapshot, object: &Object) -> Option<WaitState> {
    let id = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    // A host has no rules.
    let on_nodes = || unprogrammed_node(snapshot, &id).filter(|_| object.kind() == Kind::Service);
    let why = trouble(snapshot, object).or_else(on_nodes)?;
    let why = format!("{} {id}: {why}", object.kind().as_str().to_lowercase());
    Some(if has_failed(snapshot, object) { failed(why) } else { waiting(why) })
}

/// True if only another commit can repair the object.
fn has_failed(snapshot: &Snapshot, object: &Object) -> bool {
    (object.kind() == Kind::Pod || object.kind().descriptor().failure_is_final)
        && matches!(health(snapshot, object), Health::Degraded { .. })
}

/// Finds a pod of a removed object on a live node. Pods that a workload removes are not awaited.
fn lingering_pod(index: &PodIndex<'_>, is_awaited: impl Fn(&NamespacedName) -> bool) -> Option<WaitState> {
    let snapshot = index.snapshot;
    let has_workload = |pod: &NamespacedName| {
        let is_owner = |object: &Object| {
            let is_copied = || {
                let of = object.reference();
                snapshot.autoscalers.values().any(|record| record.value.target == of)
            };
            object.metadata.namespace == pod.namespace
                && (object.kind() != Kind::Pod || is_copied())
                && object.resource.pod(&object.metadata).is_some()
                && PodInstance::workload_in_name(&pod.name) == Some(&object.metadata.name)
        };
        snapshot.objects.values().any(|object| is_owner(&object.value))
    };
    let gone = |(node, pod): &&(String, NamespacedName)| {
        !snapshot.pods.contains_key(pod)
            && snapshot.node_is_ready(node)
            && is_awaited(pod)
            && !has_workload(pod)
    };
    let mut bound = snapshot.bindings.keys().chain(snapshot.pod_status.keys());
    let (node, pod) = bound.find(gone)?;
    Some(waiting(format!("pod {pod}: Terminating: node {node} is stopping it")))
}

#[cfg(test)]
mod tests;
