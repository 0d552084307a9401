//! What a source owns, written down beside its mirror, so that losing etcd releases no held removal.
//!
//! Reads and writes `<state>/reconciler/owned/<source>.json`, decides nothing: the plan measures what
//! an empty etcd has lost like anything else that Git has not. Without the file all goes on as in a
//! new cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use schema::meta::ObjectRef;
use schema::object::Object;
use schema::world::Table;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::plan::{Act, Kept, Situation, SyncPlan};
use super::prune::{Prune, is_protected};

/// The file, and what of it is needed all the time.
pub(super) struct Memory {
    path: PathBuf,
    /// Digest of what was last written.
    written: Option<[u8; 32]>,
    is_read: bool,
    /// Objects that etcd lost, and that no commit has named again or removed.
    pub(super) lost: BTreeMap<ObjectRef, Kept>,
    /// What a held prune was measured against.
    pub(super) held_of: Option<u64>,
    /// Newest commit whose removals were all done.
    pub(super) base: Option<String>,
}

/// As it lies on the disk: objects by the commit that set them.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    owned: BTreeMap<String, BTreeSet<ObjectRef>>,
    lost: BTreeMap<String, BTreeSet<ObjectRef>>,
    protected: BTreeSet<ObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_of: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<String>,
}

impl Memory {
    pub(super) fn new(state_dir: &Path, source: &str) -> Self {
        let path = state_dir.join("reconciler").join("owned").join(format!("{source}.json"));
        Self { path, written: None, is_read: false, lost: BTreeMap::new(), held_of: None, base: None }
    }

    /// Remembers what etcd does not know. `is_new`: it knows nothing of the source at all, so what
    /// the source owned there is lost.
    pub(super) async fn recall(
        &mut self,
        is_new: bool,
        live: &Table<ObjectRef, Object>,
    ) -> Result<(), io::Error> {
        if self.is_read && !is_new {
            return Ok(());
        }
        let kind = match tokio::fs::read(&self.path).await {
            Ok(bytes) => serde_json::from_slice::<Record>(&bytes).unwrap_or_else(|error| {
                tracing::warn!(path = %self.path.display(), %error, "what the source owned can't be read");
                Record::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Record::default(),
            Err(error) => return Err(error),
        };
        self.is_read = true;
        let Record { owned, lost, protected, held_of, base } = kind;
        let owned = if is_new { owned } else { BTreeMap::new() };
        for (commit, objects) in owned.into_iter().chain(lost) {
            for object in objects.into_iter().filter(|object| !live.contains_key(object)) {
                let kept = Kept { commit: commit.clone(), is_protected: protected.contains(&object) };
                self.lost.insert(object, kept);
            }
        }
        (self.held_of, self.base) = (held_of, base);
        Ok(())
    }

    /// Writes down what is owned once `plan` is carried out, ahead of it, if that is news.
    pub(super) async fn keep(&mut self, situation: &Situation, plan: &SyncPlan) -> Result<(), io::Error> {
        self.lost.retain(|object, _| plan.lost.contains(object));
        self.held_of = matches!(plan.prune, Prune::Held { .. }).then_some(plan.prune_of);
        self.base = situation.lineage.base.clone().or(self.base.take());
        let kind = self.kind(situation, plan);
        let bytes = serde_json::to_vec(&kind).map_err(io::Error::other)?;
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        if self.written == Some(digest) {
            return Ok(());
        }
        let path = self.path.clone();
        let write = move || write(&path, &bytes);
        tokio::task::spawn_blocking(write).await.unwrap_or_else(|error| Err(io::Error::other(error)))?;
        self.written = Some(digest);
        Ok(())
    }

    fn kind(&self, situation: &Situation, plan: &SyncPlan) -> Record {
        let mut kind = Record { held_of: self.held_of, base: self.base.clone(), ..Record::default() };
        let live = situation.live.iter().map(|(object, live)| (object, &live.value));
        let live = live.filter(|(_, object)| object.provenance.source == situation.source);
        let created = plan.steps.iter().filter_map(|step| match &step.act {
            Act::Create(object) => Some((&step.object, &**object)),
            Act::Update(_) | Act::Replace(_) | Act::Delete => None,
        });
        for (object, value) in live.chain(created) {
            kind.owned.entry(value.provenance.commit.clone()).or_default().insert(object.clone());
            if is_protected(&value.metadata) {
                kind.protected.insert(object.clone());
            }
        }
        for (object, kept) in &self.lost {
            kind.lost.entry(kept.commit.clone()).or_default().insert(object.clone());
            if kept.is_protected {
                kind.protected.insert(object.clone());
            }
        }
        kind
    }
}

/// All of it or nothing.
fn write(path: &Path, bytes: &[u8]) -> Result<(), io::Error> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
