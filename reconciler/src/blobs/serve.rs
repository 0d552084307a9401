//! Opens content for an agent. Blocking.
//!
//! Reads the world, the store and the mirrors; writes the store where something is missing in it. Only
//! what a live object or pod refers to is given out.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use git2::{Oid, Repository};
use schema::files::{BlobKind, BlobRef, is_digest};
use schema::world::World;

use super::{BlobStore, plan};
use crate::git::content;

/// Content can't be given out.
#[derive(Debug, thiserror::Error)]
pub enum BlobsError {
    /// Not 64 hex digits.
    #[error("{0:?} is no digest")]
    Digest(String),
    /// Nothing that is live.
    #[error("nothing in this cluster refers to {0}")]
    Unreferred(String),
    /// Neither here nor in a mirror.
    #[error("this reconciler does not have {0}")]
    Absent(String),
    /// The disk.
    #[error("cannot read {digest}: {source}")]
    Read {
        /// Which.
        digest: String,
        /// Why.
        source: io::Error,
    },
}

/// What content is served from.
#[derive(Debug, Clone)]
pub struct Blobs {
    store: BlobStore,
    mirrors: PathBuf,
}

impl Blobs {
    /// Below the state directory. Touches nothing.
    pub fn new(state_dir: &Path) -> Self {
        let mirrors = state_dir.join("reconciler").join("mirrors");
        Self { store: BlobStore::new(state_dir), mirrors }
    }

    /// The archive with this digest, and its size.
    pub fn open(&self, world: &World, digest: &str) -> Result<(File, u64), BlobsError> {
        if !is_digest(digest) {
            return Err(BlobsError::Digest(digest.to_owned()));
        }
        let found = plan::all(world).flat_map(|files| files.values()).find(|blob| blob.digest == digest);
        let blob = found.ok_or_else(|| BlobsError::Unreferred(digest.to_owned()))?;
        let failed = |source| BlobsError::Read { digest: digest.to_owned(), source };
        if let Some(file) = self.store.open(blob).map_err(failed)? {
            return Ok((file, blob.size));
        }
        self.make_again(world, blob);
        let file = self.store.open(blob).map_err(failed)?;
        file.map(|file| (file, blob.size)).ok_or_else(|| BlobsError::Absent(digest.to_owned()))
    }

    /// From the mirror, at the commit that set an object that refers to it: what a commit holds at a
    /// path never changes. What can't be made is still absent afterwards.
    fn make_again(&self, world: &World, blob: &BlobRef) {
        for object in world.objects.values() {
            let Some((path, _)) = object.value.files.iter().find(|(_, b)| b.digest == blob.digest) else {
                continue;
            };
            let provenance = &object.value.provenance;
            // A source's name is a file name; nothing else leads to a mirror.
            let Ok(repository) = Repository::open_bare(self.mirrors.join(&provenance.source)) else {
                continue;
            };
            let Ok(commit) = Oid::from_str(&provenance.commit) else { continue };
            let is_secret = blob.kind == BlobKind::Secret;
            let made = content::find(&repository, commit, path)
                .and_then(|found| self.store.make(&repository, found, path, is_secret));
            match made {
                Ok(made) if made == *blob => return,
                Ok(_) => {}
                Err(error) => tracing::debug!(path, %error, "content can't be made again"),
            }
        }
    }
}
