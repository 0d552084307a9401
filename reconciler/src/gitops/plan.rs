//! Plan of the writes that make etcd match Git, with reasons, and of everything not done, with reasons. Pure.
//!
//! Reads parsed files and live objects, decides every write in order. Made against the live state each time: after
//! a crash, a conflict or a manual change in etcd, the next plan is what remains.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ipnet::Ipv4Net;
use jiff::Timestamp;
use schema::kinds::cluster::{PodSecurity, PrunePolicy, cluster_reference};
use schema::kinds::{Kind, Resource};
use schema::meta::ObjectRef;
use schema::object::{Object, Provenance};
use schema::records::{ChangeCounts, PodSecurityRecord, WaitingObject};
use schema::snapshot::{Table, VersionedValue};
use schema::violation::Violation;

use super::check::{self, CommitLimits, Declaration, Documents, Scene, removed, warn_of_addresses};
use super::diff::{FieldChange, changes, file_changes};
use super::load::Manifests;
use super::load::contents::with_contents;
use super::load::spread::spread;
use super::prune::{Evidence, Lineage, Prune, Share, is_protected, prune};
use crate::git::CommitMeta;
use schema::kinds::links::{dependencies, hashed_content};

/// Inputs of a plan.
#[derive(Debug, Clone)]
pub struct PlanInput {
    /// Name of the source.
    pub source: String,
    /// Commit that the files belong to.
    pub commit: Arc<CommitMeta>,
    pub manifests: Manifests,
    /// Live objects of all sources.
    pub live: Table<ObjectRef, Object>,
    /// Objects whose key holds something unreadable.
    pub malformed: BTreeSet<ObjectRef>,
    /// History, as far as a prune needs it.
    pub lineage: Lineage,
    /// Baseline of the prune that is still held.
    pub held: Option<PruneBaseline>,
    /// Etcd's revision as of `live`.
    pub revision: i64,
    /// Objects that the source owned in a lost etcd, and that may still run.
    pub lost: BTreeMap<ObjectRef, LostObject>,
    /// Limits on the commit from outside of it.
    pub limits: CommitLimits,
    /// Service range, if known.
    pub service_cidr: Option<Ipv4Net>,
    /// Reason why the files may be incomplete, for example a remote that can't be reached.
    pub incomplete: Option<String>,
}

/// Baseline of a held prune: the objects that the source owned when it was first held. Objects that a commit adds
/// must not make its removals look few, neither in the next run nor under the next commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PruneBaseline {
    /// Number of objects.
    pub owned: u64,
    /// Etcd's revision at that time; 0 if unknown.
    pub since: i64,
}

/// An object that a lost etcd held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostObject {
    /// The commit that set it.
    pub commit: String,
    /// Set if its annotation keeps it whatever Git says.
    pub is_protected: bool,
}

/// Plan for one source.
#[derive(Debug, Clone, Default)]
pub struct SyncPlan {
    /// Writes, in order: puts by kind, then removals in reverse.
    pub steps: Vec<Step>,
    /// Number of objects that need no write.
    pub unchanged: u64,
    /// Decision on removals.
    pub prune: Prune,
    /// Objects missing from Git but protected by annotation.
    pub protected: Vec<ObjectRef>,
    /// Files that can't be applied: their objects stay as they are.
    pub quarantined: BTreeMap<Arc<str>, Vec<Violation>>,
    /// Number of objects that the source owns once all steps are done.
    pub owned: u64,
    /// Baseline of the decision on removals, and of a held one from now on.
    pub prune_baseline: PruneBaseline,
    /// Objects of a lost etcd whose removal is held.
    pub lost: BTreeSet<ObjectRef>,
    /// Set if the commit holds no manifest without declaring that as intended, and an earlier commit did.
    pub empty: bool,
    /// Warnings and notes of the checks across objects.
    pub remarks: Vec<Violation>,
    /// Objects that wait for others; see [`super::gate`].
    pub waiting: Vec<WaitingObject>,
    /// Objects that waited until their deadline and are written now.
    pub overdue: Vec<WaitingObject>,
    /// Time of the first deadline of a wait.
    pub due: Option<Timestamp>,
    /// Set if the source is strict and a file can't be applied, so nothing is.
    pub refused: bool,
    /// Restrictions on pods that the commit replaces, and must meet until another one comes.
    pub replaced_pod_security: Vec<PodSecurityRecord>,
}

/// A single write.
#[derive(Debug, Clone)]
pub struct Step {
    pub object: ObjectRef,
    pub act: Act,
    /// State that the write replaces, for its guard.
    pub precondition: Precondition,
    pub why: StepReason,
}

/// Action of a step.
#[derive(Debug, Clone)]
pub enum Act {
    /// Writes a new object.
    Create(Arc<Object>),
    /// Writes an object without interrupting what runs: labels, a number of replicas, ports of a service.
    Update(Arc<Object>),
    /// Writes an object so that what runs is stopped and started again.
    Replace(Arc<Object>),
    /// Removes the object.
    Delete,
}

/// State that etcd must hold for the step to apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// No such key.
    Nothing,
    /// The key at this revision.
    Revision(i64),
    /// Unreadable data; its revision is not known yet.
    Unreadable,
}

/// Reason for a step.
#[derive(Debug, Clone, PartialEq)]
pub enum StepReason {
    /// In Git but not in etcd.
    Missing,
    /// These fields differ.
    Changed(Vec<FieldChange>),
    /// Only its place in the repository changed, from this `file:line`.
    Moved { from: String },
    /// No longer in Git.
    Removed,
    /// The data in etcd is no object.
    Unreadable,
}

impl fmt::Display for StepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepReason::Missing => f.write_str("not there yet"),
            StepReason::Changed(fields) => {
                let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
                f.write_str(&fields.join("; "))
            }
            StepReason::Moved { from } => write!(f, "moved from {from}"),
            StepReason::Removed => f.write_str("no longer in the repository"),
            StepReason::Unreadable => f.write_str("etcd holds no readable object"),
        }
    }
}

impl schema::control::Plan for SyncPlan {
    fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.due
    }
}

impl SyncPlan {
    /// Counts the steps by action, and everything not done.
    pub fn counts(&self) -> ChangeCounts {
        let count = |of: fn(&Act) -> bool| self.steps.iter().filter(|step| of(&step.act)).count() as u64;
        ChangeCounts {
            create: count(|act| matches!(act, Act::Create(_))),
            update: count(|act| matches!(act, Act::Update(_))),
            moved: self.steps.iter().filter(|step| matches!(step.why, StepReason::Moved { .. })).count()
                as u64,
            replace: count(|act| matches!(act, Act::Replace(_))),
            delete: count(|act| matches!(act, Act::Delete)),
            unchanged: self.unchanged,
            quarantined: self.quarantined.len() as u64,
            held: match &self.prune {
                Prune::Held { objects, .. } => objects.len() as u64,
                Prune::Nothing | Prune::Remove(_) => 0,
            },
            waiting: self.waiting.len() as u64,
        }
    }

    /// Sets the creation time of the objects that the plan creates, and of those that an older version created without
    /// one.
    #[must_use]
    pub fn with_creation_time(mut self, now: Timestamp) -> Self {
        for step in &mut self.steps {
            if let Act::Create(object) | Act::Update(object) | Act::Replace(object) = &mut step.act
                && object.created_at.is_none()
            {
                Arc::make_mut(object).created_at = Some(now);
            }
        }
        self
    }

    /// Makes the plan all or nothing: a single file that can't be applied blocks the whole commit.
    #[must_use]
    pub fn all_or_nothing(mut self) -> Self {
        if !self.quarantined.is_empty() {
            let created = self.steps.iter().filter(|step| matches!(step.act, Act::Create(_))).count();
            self.owned -= created as u64;
            self.steps.clear();
            self.refused = true;
        }
        self
    }
}

impl Step {
    /// Returns the object as the step writes it; `None` for a removal.
    pub fn object_after(&self) -> Option<&Arc<Object>> {
        match &self.act {
            Act::Create(object) | Act::Update(object) | Act::Replace(object) => Some(object),
            Act::Delete => None,
        }
    }
}

/// Groups steps that may run in parallel, one group after the other: of one kind, and none depends on another of
/// its group. Removals keep their order, to be done one by one.
pub fn waves(steps: &[Step]) -> Vec<&[Step]> {
    let mut waves = Vec::new();
    let mut first = 0;
    let mut in_wave: BTreeSet<&ObjectRef> = BTreeSet::new();
    let sort = |step: &Step| (step.object.kind, matches!(step.act, Act::Delete));
    for (at, step) in steps.iter().enumerate() {
        let waits_for = |object: &Arc<Object>| {
            dependencies(&object.metadata).any(|dependency| in_wave.contains(&dependency))
        };
        let another = at > first && sort(&steps[at - 1]) != sort(step);
        if another || step.object_after().is_some_and(waits_for) {
            waves.push(&steps[first..at]);
            first = at;
            in_wave.clear();
        }
        in_wave.insert(&step.object);
    }
    if first < steps.len() {
        waves.push(&steps[first..]);
    }
    waves
}

/// Decides the plan of a source.
pub fn plan(situation: &PlanInput) -> SyncPlan {
    let (manifests, remarks) = with_contents(&situation.source, &situation.manifests, &situation.live);
    let documents = Documents::from_manifests(&situation.source, &manifests, &situation.live);
    let PlanInput { source, live, limits, commit, .. } = situation;
    let mut scene = check::fit(&documents, source, live, limits, &commit.id);
    // The decision on removals stands whatever the second check finds: that only keeps more of the live objects.
    let removals = removals(situation, &documents, &scene);
    if removals.prune.is_held() && !documents.absent.is_empty() {
        check::recheck_staying(&mut scene);
    }
    let checked = check::finish(&documents, scene);
    let mut plan = SyncPlan::default();
    let wanted = &checked.wanted;
    let steps = spread(wanted.len(), wanted.iter(), |(object, declared)| put(situation, object, declared));
    plan.unchanged = steps.iter().filter(|step| step.is_none()).count() as u64;
    plan.steps = steps.into_iter().flatten().collect();
    plan_removals(situation, removals, &mut plan);
    plan.replaced_pod_security = replaced(limits, &commit.id, &plan.steps);
    plan.quarantined = checked.quarantined;
    plan.remarks = remarks;
    plan.remarks.extend(checked.remarks);
    plan.remarks.extend(warn_of_addresses(&situation.manifests, situation.service_cidr));
    plan
}

/// Returns the restrictions on pods to remember while `commit` is the newest: once its Cluster object is live, nothing
/// else tells what was in force before.
fn replaced(limits: &CommitLimits, commit: &str, steps: &[Step]) -> Vec<PodSecurityRecord> {
    let before = check::in_force_before(&limits.pod_security, commit);
    let changes = steps.iter().any(|step| step.object.kind == Kind::Cluster);
    let is_replaced = |record: &&&PodSecurityRecord| {
        record.policy != PodSecurity::default() && (changes || record.until.is_some())
    };
    let record = |record: &&PodSecurityRecord| PodSecurityRecord {
        until: Some(commit.to_owned()),
        ..(*record).clone()
    };
    let mut replaced: Vec<_> = before.iter().filter(is_replaced).map(record).collect();
    replaced.dedup();
    replaced
}

fn put(situation: &PlanInput, object: &ObjectRef, declared: &Declaration<'_>) -> Option<Step> {
    let step = |act, over, why| Some(Step { object: object.clone(), act, precondition: over, why });
    let place = |commit: &str, author: &str| Provenance {
        source: situation.source.clone(),
        commit: commit.to_owned(),
        author: author.to_owned(),
        file: declared.file.to_string(),
        line: declared.document.line,
    };
    let here = || place(&situation.commit.id, &situation.commit.author);
    let Some(live) = declared.live else {
        let new = Act::Create(built(declared, here(), 1));
        return match situation.malformed.contains(object) {
            true => step(new, Precondition::Unreadable, StepReason::Unreadable),
            false => step(new, Precondition::Nothing, StepReason::Missing),
        };
    };
    let VersionedValue { value: live, mod_revision, .. } = live;
    let over = Precondition::Revision(*mod_revision);
    // Compared in full and not by the stored hash alone: a manual change may affect one without the other.
    let same_spec = live.hash == declared.document.hash && live.resource == declared.document.object.resource;
    let same_words = live.metadata == declared.document.object.metadata
        && live.api_version == declared.document.object.api_version;
    let same_spec = same_spec && live.files == declared.document.files;
    if !same_spec || !same_words {
        let draft = &declared.document.object;
        let mut fields = changes((&live.metadata, &live.resource), (&draft.metadata, &draft.resource));
        fields.extend(file_changes(&live.files, &declared.document.files));
        let another = live.hash != declared.document.hash;
        let object = built(declared, here(), live.generation + u64::from(another));
        // A hash that is not the resource's was changed manually, and pods follow the hash.
        let replaced = live.resource.is_replaced_by(&draft.resource)
            || draft.resource.kind().descriptor().labels_propagate
                && live.metadata.labels != draft.metadata.labels
            || live.resource == draft.resource && another
            || hashed_content(&live.resource, &live.files)
                != hashed_content(&draft.resource, &declared.document.files);
        let act = if replaced { Act::Replace(object) } else { Act::Update(object) };
        return step(act, over, StepReason::Changed(fields));
    }
    let (file, line) = (&live.provenance.file, live.provenance.line);
    if **file == **declared.file && line == declared.document.line {
        return None;
    }
    let moved = built(declared, place(&live.provenance.commit, &live.provenance.author), live.generation);
    step(Act::Update(moved), over, StepReason::Moved { from: format!("{file}:{line}") })
}

fn built(declared: &Declaration<'_>, provenance: Provenance, generation: u64) -> Arc<Object> {
    let draft = &declared.document.object;
    Arc::new(Object {
        api_version: draft.api_version.clone(),
        metadata: draft.metadata.clone(),
        resource: draft.resource.clone(),
        provenance,
        files: declared.document.files.clone(),
        hash: declared.document.hash.clone(),
        generation,
        created_at: declared.live.and_then(|live| live.value.created_at),
    })
}

/// Returns the policy of the live Cluster object. A commit can't loosen the policy that holds it: once its own
/// Cluster object is live, its removals stay held until another commit arrives.
fn prune_policy(situation: &PlanInput) -> Option<PrunePolicy> {
    let Some(live) = situation.live.get(&cluster_reference()) else { return Some(PrunePolicy::default()) };
    if situation.held.is_some() && live.value.provenance.commit == situation.commit.id {
        return None;
    }
    match &live.value.resource {
        Resource::Cluster(cluster) => Some(cluster.prune.clone()),
        _ => Some(PrunePolicy::default()),
    }
}

/// Decision on removals.
struct Removals {
    prune: Prune,
    protected: Vec<ObjectRef>,
    /// Number of live objects of the source.
    owned: usize,
    prune_of: PruneBaseline,
    lost: BTreeSet<ObjectRef>,
    empty: bool,
}

fn removals(situation: &PlanInput, documents: &Documents<'_>, scene: &Scene<'_>) -> Removals {
    let is_own = |live: &VersionedValue<Object>| live.value.provenance.source == situation.source;
    let owned = situation.live.values().filter(|live| is_own(live)).count();
    let (mut absent, mut protected) = (BTreeMap::new(), Vec::new());
    for (object, live) in &documents.absent {
        // Objects of a quarantined file are kept with the file, not held back from removal.
        if scene.quarantined.contains_key(live.value.provenance.file.as_str()) {
            continue;
        }
        if is_protected(&live.value.metadata) {
            protected.push((*object).clone());
            continue;
        }
        absent.insert(*object, live.value.provenance.commit.as_str());
    }
    let is_lost = |object: &ObjectRef| !situation.live.contains_key(object);
    let was_lost = situation.lost.keys().filter(|object| is_lost(object)).count();
    let lost = lost(situation);
    absent.extend(lost.iter().map(|(object, kept)| (*object, kept.commit.as_str())));
    let empty = documents.manifest_files == 0;
    let all = owned + was_lost;
    let now = Share { removals: absent.len(), owned: all };
    let began = situation.held.map(|held| {
        let owned = all.min(usize::try_from(held.owned).unwrap_or(all));
        // Objects created since were not part of the baseline, and so do not count against it.
        let is_newer = |object: &ObjectRef| {
            held.since > 0 && situation.live.get(object).is_some_and(|live| live.create_revision > held.since)
        };
        Share { removals: absent.keys().filter(|object| !is_newer(object)).count(), owned }
    });
    let policy = prune_policy(situation);
    let is_over = |share: Share| share.hold(policy.as_ref()).is_some();
    let prune_of = match situation.held {
        // The removals fit the old baseline again, but exceed the present one, which replaces it.
        Some(_) if !began.is_some_and(is_over) && is_over(now) => None,
        held => held,
    };
    let prune_of = prune_of.unwrap_or(PruneBaseline { owned: all as u64, since: situation.revision });
    let prune_of = PruneBaseline { owned: prune_of.owned.min(all as u64), ..prune_of };
    let prune = prune(&Evidence {
        owned: all,
        at_first_hold: began,
        absent,
        quarantined: scene.quarantined.keys().map(|file| &**file).collect(),
        incomplete: situation.incomplete.as_deref(),
        lost_protected: lost.values().filter(|kept| kept.is_protected).count(),
        empty,
        released: situation.commit.allows_prune,
        lineage: &situation.lineage,
        policy,
    });
    let is_held = prune.is_held();
    let lost = lost.into_keys().filter(|_| is_held).cloned().collect();
    let may_be_empty = situation.commit.allows_prune || all == 0 && situation.lineage.is_unused;
    let empty = empty && !may_be_empty;
    Removals { prune, protected, owned, prune_of, lost, empty }
}

/// Returns the objects of a lost etcd that no document names: they may still run.
fn lost(situation: &PlanInput) -> BTreeMap<&ObjectRef, &LostObject> {
    let mut lost: BTreeMap<&ObjectRef, &LostObject> = situation.lost.iter().collect();
    lost.retain(|object, _| !situation.live.contains_key(*object));
    if !lost.is_empty() {
        for draft in situation.manifests.values().flat_map(|manifest| &manifest.documents) {
            lost.remove(&draft.reference);
        }
    }
    lost
}

fn plan_removals(situation: &PlanInput, removals: Removals, plan: &mut SyncPlan) {
    plan.protected = removals.protected;
    plan.empty = removals.empty;
    plan.prune_baseline = removals.prune_of;
    plan.prune = removals.prune;
    plan.lost = removals.lost;
    let created = plan.steps.iter().filter(|step| matches!(step.act, Act::Create(_))).count();
    plan.owned = (removals.owned + created) as u64;
    if let Prune::Remove(objects) | Prune::Held { objects, .. } = &mut plan.prune {
        removed(objects, &situation.live);
    }
    let Prune::Remove(objects) = &plan.prune else { return };
    for object in objects {
        let Some(live) = situation.live.get(object) else { continue };
        let over = Precondition::Revision(live.mod_revision);
        plan.steps.push(Step {
            object: object.clone(),
            act: Act::Delete,
            precondition: over,
            why: StepReason::Removed,
        });
        plan.owned -= 1;
    }
}
