//! What to write so that etcd says what Git says, and why; and what is not done, and why. Pure.
//!
//! Reads parsed files and live objects, decides every write in order. It is made against what is
//! live each time: after a crash, a conflict or a hand in etcd, the next plan is what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use schema::meta::ObjectRef;
use schema::object::{Object, Provenance};
use schema::records::ChangeCounts;
use schema::violation::Violation;
use schema::world::{Table, Versioned};

use super::check::{Checked, Claim, check};
use super::diff::{FieldChange, changes};
use super::load::Manifests;
use super::prune::{Evidence, Lineage, PRUNE_ANNOTATION, Prune, prune};
use crate::git::CommitMeta;

/// All that a plan is made from.
#[derive(Debug, Clone)]
pub struct Situation {
    /// Name of the source.
    pub source: String,
    /// The commit that the files are of.
    pub commit: Arc<CommitMeta>,
    /// Its files.
    pub manifests: Manifests,
    /// Live objects of all sources.
    pub live: Table<ObjectRef, Object>,
    /// Objects whose key holds something unreadable.
    pub malformed: BTreeSet<ObjectRef>,
    /// History, as far as a prune asks for it.
    pub lineage: Lineage,
    /// How many objects the source owned when the prune that is still held was first held.
    pub held_of: Option<u64>,
    /// Why the files may not be all there is, for example a remote that can't be reached.
    pub incomplete: Option<String>,
}

/// The decision for one source.
#[derive(Debug, Clone, Default)]
pub struct SyncPlan {
    /// Writes, in order: puts by kind, then removals in reverse.
    pub steps: Vec<Step>,
    /// Objects that are as they should be.
    pub unchanged: u64,
    /// What was decided on removals.
    pub prune: Prune,
    /// Objects that Git has not, and that their annotation keeps.
    pub protected: Vec<ObjectRef>,
    /// Files that can't be applied: their objects stay as they are.
    pub quarantined: BTreeMap<Arc<str>, Vec<Violation>>,
    /// Objects that the source owns once all steps are done.
    pub owned: u64,
    /// Objects that the decision on removals was measured against.
    pub prune_of: u64,
    /// The commit holds no manifest, although the source owns objects.
    pub empty: bool,
}

/// One write.
#[derive(Debug, Clone)]
pub struct Step {
    /// Which object.
    pub object: ObjectRef,
    /// What of it.
    pub act: Act,
    /// What the write replaces, for its guard.
    pub over: Over,
    /// Why.
    pub why: Why,
}

/// What a step does.
#[derive(Debug, Clone)]
pub enum Act {
    /// Writes a new object.
    Create(Arc<Object>),
    /// Writes an object whose pods live on: labels, annotations, place in the repository.
    Update(Arc<Object>),
    /// Writes an object with another spec: pods are replaced.
    Replace(Arc<Object>),
    /// Removes the object.
    Delete,
}

/// What a step finds in etcd, or does not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// No such key.
    Nothing,
    /// The key as of this revision.
    Revision(i64),
    /// Something unreadable; its revision is not known yet.
    Unreadable,
}

/// Why a step is taken.
#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    /// Git has it and etcd has not.
    Missing,
    /// These fields differ.
    Changed(Vec<FieldChange>),
    /// Only its place in the repository changed.
    Moved {
        /// `file:line` before.
        from: String,
    },
    /// Git has it no more.
    Removed,
    /// What etcd holds is no object.
    Unreadable,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Missing => f.write_str("not there yet"),
            Why::Changed(fields) => {
                let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
                f.write_str(&fields.join("; "))
            }
            Why::Moved { from } => write!(f, "moved from {from}"),
            Why::Removed => f.write_str("no longer in the repository"),
            Why::Unreadable => f.write_str("etcd holds no readable object"),
        }
    }
}

impl schema::control::Plan for SyncPlan {
    fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl SyncPlan {
    /// How many steps there are of each sort, and what is not done.
    pub fn counts(&self) -> ChangeCounts {
        let count = |of: fn(&Act) -> bool| self.steps.iter().filter(|step| of(&step.act)).count() as u64;
        ChangeCounts {
            create: count(|act| matches!(act, Act::Create(_))),
            update: count(|act| matches!(act, Act::Update(_))),
            replace: count(|act| matches!(act, Act::Replace(_))),
            delete: count(|act| matches!(act, Act::Delete)),
            unchanged: self.unchanged,
            quarantined: self.quarantined.len() as u64,
            held: match &self.prune {
                Prune::Held { objects, .. } => objects.len() as u64,
                Prune::Nothing | Prune::Remove(_) => 0,
            },
        }
    }
}

/// Decides.
pub fn plan(situation: &Situation) -> SyncPlan {
    let checked = check(&situation.source, &situation.manifests, &situation.live);
    let mut plan = SyncPlan::default();
    for (object, claim) in &checked.wanted {
        match put(situation, object, claim) {
            Some(step) => plan.steps.push(step),
            None => plan.unchanged += 1,
        }
    }
    plan_removals(situation, &checked, &mut plan);
    plan.quarantined = checked.quarantined;
    plan
}

fn put(situation: &Situation, object: &ObjectRef, claim: &Claim<'_>) -> Option<Step> {
    let step = |act, over, why| Some(Step { object: object.clone(), act, over, why });
    let place = |commit: &str, author: &str| Provenance {
        source: situation.source.clone(),
        commit: commit.to_owned(),
        author: author.to_owned(),
        file: claim.file.to_string(),
        line: claim.draft.line,
    };
    let here = || place(&situation.commit.id, &situation.commit.author);
    let Some(live) = claim.live else {
        let new = Act::Create(built(claim, here(), 1));
        return match situation.malformed.contains(object) {
            true => step(new, Over::Unreadable, Why::Unreadable),
            false => step(new, Over::Nothing, Why::Missing),
        };
    };
    let Versioned { value: live, mod_revision, .. } = live;
    let over = Over::Revision(*mod_revision);
    // Compared in full and not by the stored hash alone: a hand may have changed one without the other.
    let same_spec = live.hash == claim.draft.hash && live.resource == claim.draft.object.resource;
    let same_words =
        live.metadata == claim.draft.object.metadata && live.api_version == claim.draft.object.api_version;
    if !same_spec || !same_words {
        let draft = &claim.draft.object;
        let fields = changes((&live.metadata, &live.resource), (&draft.metadata, &draft.resource));
        let another = live.hash != claim.draft.hash;
        let object = built(claim, here(), live.generation + u64::from(another));
        let act = if same_spec { Act::Update(object) } else { Act::Replace(object) };
        return step(act, over, Why::Changed(fields));
    }
    let (file, line) = (&live.provenance.file, live.provenance.line);
    if **file == **claim.file && line == claim.draft.line {
        return None;
    }
    let moved = built(claim, place(&live.provenance.commit, &live.provenance.author), live.generation);
    step(Act::Update(moved), over, Why::Moved { from: format!("{file}:{line}") })
}

fn built(claim: &Claim<'_>, provenance: Provenance, generation: u64) -> Arc<Object> {
    let draft = &claim.draft.object;
    Arc::new(Object {
        api_version: draft.api_version.clone(),
        metadata: draft.metadata.clone(),
        resource: draft.resource.clone(),
        provenance,
        hash: claim.draft.hash.clone(),
        generation,
    })
}

fn plan_removals(situation: &Situation, checked: &Checked<'_>, plan: &mut SyncPlan) {
    let is_own = |live: &Versioned<Object>| live.value.provenance.source == situation.source;
    let owned = situation.live.values().filter(|live| is_own(live)).count();
    let mut absent = BTreeMap::new();
    for (object, live) in &checked.absent {
        // What a quarantined file held is kept with the file, not held back from removal.
        if checked.quarantined.contains_key(live.value.provenance.file.as_str()) {
            continue;
        }
        if live.value.metadata.annotations.get(PRUNE_ANNOTATION).is_some_and(|value| value == "false") {
            plan.protected.push((*object).clone());
            continue;
        }
        absent.insert(*object, live.value.provenance.commit.as_str());
    }
    let empty = checked.manifest_files == 0;
    plan.empty = empty && owned > 0 && !situation.commit.allows_prune;
    // What the commit itself adds must not make its removals look few: not in the next run, nor
    // under the next commit. So a held prune is measured against what there was when it began.
    let prune_of =
        situation.held_of.map_or(owned, |held_of| owned.min(usize::try_from(held_of).unwrap_or(owned)));
    plan.prune_of = prune_of as u64;
    plan.prune = prune(&Evidence {
        owned: prune_of,
        absent,
        quarantined: checked.quarantined.keys().map(|file| &**file).collect(),
        incomplete: situation.incomplete.as_deref(),
        empty,
        released: situation.commit.allows_prune,
        lineage: &situation.lineage,
    });
    let created = plan.steps.iter().filter(|step| matches!(step.act, Act::Create(_))).count();
    plan.owned = (owned + created) as u64;
    let Prune::Remove(objects) = &plan.prune else { return };
    plan.owned -= objects.len() as u64;
    for object in objects {
        let Some(live) = situation.live.get(object) else { continue };
        let over = Over::Revision(live.mod_revision);
        plan.steps.push(Step { object: object.clone(), act: Act::Delete, over, why: Why::Removed });
    }
}
