//! Times of the steps of a commit's pods, from differences between snapshots. Pure.
//!
//! A pod may be bound before the revision of its commit is written, so pods are followed by commit, whether there is a
//! revision or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use jiff::{SignedDuration, Timestamp};
use schema::kinds::pod::PodMilestones;
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{Binding, PodInstance, PodTimeline, Revision, TIMELINE_PODS_MAX, Timeline};
use schema::snapshot::{Snapshot, Table, VersionedValue};

/// Longest wait, after the verdict, for nodes to route clients to the commit's pods.
const PROGRAMMED_MAX: SignedDuration = SignedDuration::from_secs(5);
/// Time after which a commit without a revision is forgotten: it is not being applied.
const FORGET_AFTER: SignedDuration = SignedDuration::from_mins(30);

/// A commit: source and full hex id.
type Commit = (String, String);

/// Pods of the commits that are being applied, as far as this process has followed them.
#[derive(Debug, Clone, Default)]
pub struct SeenCommits {
    /// The last snapshot that was compared; `None` at first.
    before: Option<Arc<Snapshot>>,
    commits: BTreeMap<Commit, SeenCommit>,
}

#[derive(Debug, Clone)]
struct SeenCommit {
    since: Timestamp,
    pods: OrdMap<NamespacedName, Arc<SeenPod>>,
    /// Ready pods that are endpoints of a service, with the revision of its record that nodes have not programmed yet.
    unprogrammed: OrdMap<NamespacedName, i64>,
}

#[derive(Debug, Clone)]
struct SeenPod {
    uid: String,
    object: String,
    node: String,
    bound_at: Option<Timestamp>,
    milestones: PodMilestones,
    reported_at: Option<Timestamp>,
    programmed_at: Option<Timestamp>,
}

/// Timelines to write, and the state for the next run.
#[derive(Debug, Default)]
pub struct Timelines {
    /// Revisions with their complete timeline, with the version that they replace.
    pub completed: Vec<(Revision, i64)>,
    pub seen: SeenCommits,
    /// Time at which a timeline is completed even if nothing changes.
    pub again_at: Option<Timestamp>,
}

impl schema::control::Plan for Timelines {
    fn is_empty(&self) -> bool {
        self.completed.is_empty()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

/// Notes what changed since the last snapshot, and completes the timelines of the commits whose verdict is final.
pub fn plan(snapshot: &Arc<Snapshot>, seen: &SeenCommits, now: Timestamp) -> Timelines {
    let mut seen = seen.clone();
    seen.note(snapshot, now);
    let mut out = Timelines::default();
    for ((source, _), revision) in &snapshot.revisions {
        let Some(timeline) = revision.value.timeline.as_ref().filter(|it| it.decided.is_none()) else {
            continue;
        };
        let Some(decided_at) = revision.value.decided_at else { continue };
        let commit = (source.clone(), revision.value.commit.clone());
        let followed = seen.commits.get(&commit);
        let waits_until = decided_at.checked_add(PROGRAMMED_MAX).unwrap_or(now);
        if now < waits_until && followed.is_some_and(|commit| !commit.unprogrammed.is_empty()) {
            out.again_at = out.again_at.into_iter().chain([waits_until]).min();
            continue;
        }
        // A pod that was replaced before it was ready held up nobody.
        let is_left = |(name, pod): &(&NamespacedName, &Arc<SeenPod>)| {
            let bound = || snapshot.bindings.get(&(pod.node.clone(), (*name).clone()));
            pod.reported_at.is_some() || bound().is_some_and(|bound| bound.value.pod.uid == pod.uid)
        };
        let pods = followed.into_iter().flat_map(|commit| &commit.pods).filter(is_left).collect();
        let timeline = complete(timeline, pods, decided_at);
        let value = Revision { timeline: Some(timeline), ..revision.value.clone() };
        out.completed.push((value, revision.mod_revision));
    }
    out.seen = seen;
    out
}

impl SeenCommits {
    fn note(&mut self, snapshot: &Arc<Snapshot>, now: Timestamp) {
        let before = self.before.replace(Arc::clone(snapshot));
        let binds_nothing = before.as_ref().is_some_and(|it| it.bindings.ptr_eq(&snapshot.bindings));
        if self.commits.is_empty() && binds_nothing {
            return;
        }
        let is_done = |revision: &Revision| {
            revision.timeline.as_ref().is_none_or(|timeline| timeline.decided.is_some())
        };
        let revisions = || snapshot.revisions.values().map(|revision| &revision.value);
        let commit = |revision: &Revision| (revision.source.clone(), revision.commit.clone());
        let open: BTreeSet<Commit> = revisions().filter(|it| !is_done(it)).map(commit).collect();
        let done: BTreeSet<Commit> = revisions().filter(|it| is_done(it)).map(commit).collect();
        let is_being_applied = |commit: &Commit| open.contains(commit) || !done.contains(commit);
        self.commits.retain(|commit, seen| {
            open.contains(commit) || !done.contains(commit) && now.duration_since(seen.since) < FORGET_AFTER
        });
        // What the first snapshot holds happened at an unknown time, but may be ready only later.
        let bound_at = before.as_ref().map(|_| now);
        let nothing = Arc::new(Snapshot::default());
        let before = before.unwrap_or(nothing);
        for ((node, pod), binding, former) in changed(&before.bindings, &snapshot.bindings) {
            let is_same = |former: &Binding| former.pod.uid == binding.pod.uid;
            let commit = commit_of(snapshot, &binding.pod);
            let Some(commit) = commit.filter(|commit| is_being_applied(commit)) else { continue };
            // A changed label binds no pod.
            if former.is_some_and(is_same) || bound_at.is_none() && !open.contains(&commit) {
                continue;
            }
            let of = self.commits.entry(commit).or_insert_with(|| SeenCommit::new(now));
            let fresh = SeenPod {
                uid: binding.pod.uid.clone(),
                object: owner(&binding.pod).to_string(),
                node: node.clone(),
                bound_at,
                milestones: PodMilestones::default(),
                reported_at: None,
                programmed_at: None,
            };
            of.pods.insert(pod.clone(), Arc::new(fresh));
        }
        if self.commits.is_empty() {
            return;
        }
        for ((_, name), status, _) in changed(&before.pod_status, &snapshot.pod_status) {
            for pod in self.pods_named(name).filter(|pod| pod.uid == status.uid) {
                if pod.reported_at.is_none() {
                    pod.milestones = status.milestones;
                    pod.reported_at = status.is_ready().then_some(now);
                }
            }
        }
        self.note_endpoints(&before, snapshot, now);
    }

    fn note_endpoints(&mut self, before: &Snapshot, snapshot: &Snapshot, now: Timestamp) {
        for (service, record) in changed_entries(&before.services, &snapshot.services) {
            for endpoint in record.value.endpoints.iter().filter_map(|endpoint| endpoint.pod.as_ref()) {
                let name = NamespacedName::new(&service.namespace, endpoint);
                for commit in self.commits.values_mut() {
                    // A pod that is not ready is no endpoint: an earlier pod of this name still is.
                    let pod = commit.pods.get(&name).filter(|pod| pod.reported_at.is_some());
                    if pod.is_some_and(|pod| pod.programmed_at.is_none()) {
                        commit.unprogrammed.entry(name.clone()).or_insert(record.mod_revision);
                    }
                }
            }
        }
        let programmed = snapshot.programmed.get(&()).map_or(0, |programmed| programmed.value.revision);
        for commit in self.commits.values_mut() {
            let (done, left) =
                std::mem::take(&mut commit.unprogrammed)
                    .into_iter()
                    .partition::<OrdMap<NamespacedName, i64>, _>(|(_, since)| *since <= programmed);
            commit.unprogrammed = left;
            for name in done.keys() {
                commit.pods.get_mut(name).into_iter().for_each(|pod| {
                    Arc::make_mut(pod).programmed_at = Some(now);
                });
            }
        }
    }

    fn pods_named(&mut self, name: &NamespacedName) -> impl Iterator<Item = &mut SeenPod> {
        self.commits.values_mut().filter_map(move |commit| commit.pods.get_mut(name).map(Arc::make_mut))
    }
}

impl SeenCommit {
    fn new(since: Timestamp) -> Self {
        Self { since, pods: OrdMap::new(), unprogrammed: OrdMap::new() }
    }
}

fn owner(pod: &PodInstance) -> ObjectRef {
    ObjectRef { kind: pod.owner.kind, namespace: pod.namespace.clone(), name: pod.owner.name.clone() }
}

/// Returns the source and commit that last changed the pod's object.
fn commit_of(snapshot: &Snapshot, pod: &PodInstance) -> Option<Commit> {
    let object = snapshot.objects.get(&owner(pod))?;
    Some((object.value.provenance.source.clone(), pod.commit.clone()))
}

/// Returns the entries of `now` that are new or changed, with their former values.
fn changed<'a, K: Ord + 'a, V: PartialEq + 'a>(
    before: &'a Table<K, V>,
    now: &'a Table<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V, Option<&'a V>)> {
    before.diff(now).filter_map(|item| match item {
        DiffItem::Add(key, value) => Some((key, &value.value, None)),
        DiffItem::Update { old: (_, old), new: (key, new) } => Some((key, &new.value, Some(&old.value))),
        DiffItem::Remove(..) => None,
    })
}

fn changed_entries<'a, K: Ord + 'a, V: PartialEq + 'a>(
    before: &'a Table<K, V>,
    now: &'a Table<K, V>,
) -> impl Iterator<Item = (&'a K, &'a Arc<VersionedValue<V>>)> {
    before.diff(now).filter_map(|item| match item {
        DiffItem::Add(key, value) | DiffItem::Update { new: (key, value), .. } => Some((key, value)),
        DiffItem::Remove(..) => None,
    })
}

/// Completes a timeline with the times of the commit's pods.
fn complete(
    timeline: &Timeline,
    mut pods: Vec<(&NamespacedName, &Arc<SeenPod>)>,
    decided_at: Timestamp,
) -> Timeline {
    let after = |at: Timestamp| milliseconds(timeline.seen_at, at);
    // Not reached before the last pod has.
    let last = |time: fn(&SeenPod) -> Option<Timestamp>| {
        let times: Option<Vec<Timestamp>> = pods.iter().map(|(_, pod)| time(pod)).collect();
        times?.into_iter().max().map(after)
    };
    let (bound, ready) = (last(|pod| pod.bound_at), last(|pod| pod.reported_at));
    let programmed = pods.iter().filter_map(|(_, pod)| pod.programmed_at).max().map(after);
    // A pod that is not ready comes before all that are.
    pods.sort_by_key(|(_, pod)| std::cmp::Reverse(pod.reported_at.unwrap_or(Timestamp::MAX)));
    let count = pods.len() as u64;
    pods.truncate(TIMELINE_PODS_MAX);
    let slowest = pods.into_iter().map(|(name, pod)| {
        let PodMilestones { received, image, created, started, ready } = pod.milestones;
        let between = |from: Option<Timestamp>, to: Option<Timestamp>| Some(milliseconds(from?, to?));
        PodTimeline {
            object: pod.object.clone(),
            pod: name.to_string(),
            node: Some(pod.node.clone()),
            bound: pod.bound_at.map(after),
            image: between(received, image),
            created: between(image, created),
            started: between(created, started),
            ready: between(started, ready),
            reported: pod.reported_at.map(after),
            programmed: pod.programmed_at.map(after),
        }
    });
    Timeline {
        bound,
        ready,
        programmed,
        decided: Some(after(decided_at)),
        pods: count,
        slowest: slowest.collect(),
        ..timeline.clone()
    }
}

/// Returns the milliseconds from one time to another; 0 if a clock was set back in between.
pub fn milliseconds(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.duration_since(from).as_millis()).unwrap_or(0)
}
