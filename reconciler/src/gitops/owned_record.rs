//! Record of the objects that a source owns, next to its mirror, so that losing etcd releases no held removal.
//!
//! Reads and writes `<state>/reconciler/owned/<source>.json`, decides nothing: the plan treats objects of a lost
//! etcd like any others missing from Git. Without the file, everything proceeds as in a new cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use schema::control::DiskRecord;
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::Table;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use sha2::{Digest as _, Sha256};

use super::plan::{Act, LostObject, PlanInput, SyncPlan};
use super::prune::{Prune, is_protected};

/// The file, and the parts of it that are needed all the time.
pub(super) struct OwnedRecord {
    disk: DiskRecord,
    /// Digest of the bytes last written.
    written: Option<[u8; 32]>,
    /// Inputs of the bytes last written.
    made_of: Option<RecordInputs>,
    is_read: bool,
    /// Objects that a lost etcd held, and that no commit has named again or removed.
    pub(super) lost: BTreeMap<ObjectRef, LostObject>,
    /// Number of owned objects that a held prune was measured against.
    pub(super) held_of: Option<u64>,
    /// Newest commit whose removals were all done.
    pub(super) base: Option<String>,
}

/// Inputs from which the whole record follows, if nothing is created.
struct RecordInputs {
    live: Table<ObjectRef, Object>,
    lost: BTreeMap<ObjectRef, LostObject>,
    held_of: Option<u64>,
    base: Option<String>,
}

/// Format on disk: objects by the commit that set them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    owned: BTreeMap<String, BTreeSet<ObjectRef>>,
    lost: BTreeMap<String, BTreeSet<ObjectRef>>,
    protected: BTreeSet<ObjectRef>,
    held_of: Option<u64>,
    base: Option<String>,
}

/// Borrowed form of the record for writing: of 10,000 objects no name is copied, and sorted input costs one pass.
#[skip_serializing_none]
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct RecordRef<'a> {
    owned: BTreeMap<&'a str, Vec<&'a ObjectRef>>,
    lost: BTreeMap<&'a str, Vec<&'a ObjectRef>>,
    protected: Vec<&'a ObjectRef>,
    held_of: Option<u64>,
    base: Option<&'a str>,
}

impl OwnedRecord {
    pub(super) fn new(state_dir: &Path, source: &str) -> Self {
        let path = state_dir.join("reconciler").join("owned").join(format!("{source}.json"));
        Self {
            disk: DiskRecord::new(path),
            written: None,
            made_of: None,
            is_read: false,
            lost: BTreeMap::new(),
            held_of: None,
            base: None,
        }
    }

    /// Loads the objects that etcd does not know. `is_new`: etcd knows nothing of the source at all, so everything
    /// that the source owned there is lost.
    pub(super) async fn load_lost(
        &mut self,
        is_new: bool,
        live: &Table<ObjectRef, Object>,
    ) -> Result<(), io::Error> {
        if self.is_read && !is_new {
            return Ok(());
        }
        let disk = self.disk.clone();
        let read = tokio::task::spawn_blocking(move || disk.read::<Record>());
        let record = match read.await.map_err(io::Error::other)? {
            Ok(record) => record.unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(path = %self.disk.path().display(), %error, "record of the source's objects not read");
                Record::default()
            }
            Err(error) => return Err(error),
        };
        self.is_read = true;
        let Record { owned, lost, protected, held_of, base } = record;
        let owned = if is_new { owned } else { BTreeMap::new() };
        for (commit, objects) in owned.into_iter().chain(lost) {
            for object in objects.into_iter().filter(|object| !live.contains_key(object)) {
                let kept = LostObject { commit: commit.clone(), is_protected: protected.contains(&object) };
                self.lost.insert(object, kept);
            }
        }
        (self.held_of, self.base) = (held_of, base);
        Ok(())
    }

    /// Writes the objects owned after `plan`, ahead of its execution, if the record changed.
    pub(super) async fn save(&mut self, situation: &PlanInput, plan: &SyncPlan) -> Result<(), io::Error> {
        self.lost.retain(|object, _| plan.lost.contains(object));
        self.held_of = matches!(plan.prune, Prune::Held { .. }).then_some(plan.prune_baseline.owned);
        self.base = situation.lineage.base.clone().or(self.base.take());
        let creates = plan.steps.iter().any(|step| matches!(step.act, Act::Create(_)));
        if !creates && self.made_of.as_ref().is_some_and(|made_of| self.is_made_of(made_of, situation)) {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&self.record(situation, plan)).map_err(io::Error::other)?;
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        if self.written == Some(digest) {
            self.made_of = (!creates).then(|| self.made_of(situation));
            return Ok(());
        }
        self.made_of = None;
        let disk = self.disk.clone();
        tokio::task::spawn_blocking(move || disk.write_bytes(&bytes))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))?;
        self.written = Some(digest);
        self.made_of = (!creates).then(|| self.made_of(situation));
        Ok(())
    }

    fn made_of(&self, situation: &PlanInput) -> RecordInputs {
        let (live, lost) = (situation.live.clone(), self.lost.clone());
        RecordInputs { live, lost, held_of: self.held_of, base: self.base.clone() }
    }

    /// Compares identities, not objects: an equal table elsewhere in memory counts as different.
    fn is_made_of(&self, made_of: &RecordInputs, situation: &PlanInput) -> bool {
        let RecordInputs { live, lost, held_of, base } = made_of;
        live.ptr_eq(&situation.live) && (lost, held_of, base) == (&self.lost, &self.held_of, &self.base)
    }

    fn record<'a>(&'a self, situation: &'a PlanInput, plan: &'a SyncPlan) -> RecordRef<'a> {
        let mut record =
            RecordRef { held_of: self.held_of, base: self.base.as_deref(), ..RecordRef::default() };
        let live = situation.live.iter().map(|(object, live)| (object, &live.value));
        let live = live.filter(|(_, object)| object.provenance.source == situation.source);
        let created = plan.steps.iter().filter_map(|step| match &step.act {
            Act::Create(object) => Some((&step.object, &**object)),
            Act::Update(_) | Act::Replace(_) | Act::Delete => None,
        });
        for (object, value) in live.chain(created) {
            record.owned.entry(&value.provenance.commit).or_default().push(object);
            if is_protected(&value.metadata) {
                record.protected.push(object);
            }
        }
        for (object, kept) in &self.lost {
            record.lost.entry(&kept.commit).or_default().push(object);
            if kept.is_protected {
                record.protected.push(object);
            }
        }
        let lists = record.owned.values_mut().chain([&mut record.protected]);
        // Only created objects are not in their place yet.
        lists.for_each(|objects| objects.sort());
        record
    }
}
