//! Files of the repository and secrets that pods need on this node.
//!
//! `cache` has the content on disk, ciphertext of secrets among it; `secrets` decrypts it in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schema::control::lock;
use schema::files::{BlobRef, ContentRef, Files, file_name, of_content, of_secret};
use schema::records::PodInstance;
use tokio::time::Instant;

pub mod cache;
pub mod secrets;
#[cfg(test)]
mod tests;
pub mod unpack;

pub use cache::{Cache, CacheError, Ensured};
pub use secrets::{Keys, SecretError};

use crate::worlds::blobs::BlobSource;
use secrets::Place;

/// How often content that no pod names is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(300);

/// What pods get their files from.
pub struct PodFiles {
    cache: Arc<Cache>,
    keys: Keys,
    swept: Mutex<Option<Instant>>,
}

impl PodFiles {
    /// Below `state_dir`, from `source`, decrypted with `keys`.
    pub fn new(state_dir: &Path, source: Arc<dyn BlobSource>, keys: Keys) -> Self {
        Self { cache: Arc::new(Cache::new(state_dir, source)), keys, swept: Mutex::default() }
    }

    /// Whom to encrypt secrets for; none while this node has no identity.
    pub fn recipient(&self) -> Option<&str> {
        self.keys.recipient()
    }

    /// Has content on this node.
    pub async fn ensure(&self, path: &str, blob: &BlobRef) -> Result<Ensured, CacheError> {
        self.cache.ensure(path, blob).await
    }

    /// Where content lies once it is ensured.
    pub fn folder(&self, blob: &BlobRef) -> PathBuf {
        self.cache.folder(blob)
    }

    /// The plain text of a secret that the pod names, fetched where it is not here. The caller keeps it
    /// in memory alone.
    pub async fn secret_bytes(&self, pod: &PodInstance, name: &str) -> Result<Vec<u8>, SecretError> {
        self.secret_of(&pod.files, name).await
    }

    /// The same of what else names secrets.
    pub async fn secret_of(&self, files: &Files, name: &str) -> Result<Vec<u8>, SecretError> {
        let found = of_secret(files, name);
        let (path, blob) = found.ok_or_else(|| SecretError::NotNamed(format!("secret {name}")))?;
        let no_content = |why: String| SecretError::NoContent(why);
        self.ensure(path, blob).await.map_err(|error| no_content(error.to_string()))?;
        let file: PathBuf = self.cache.folder(blob).join(file_name(path));
        let ciphertext = fs::read(&file)
            .map_err(|error| no_content(format!("cannot read {}: {error}", file.display())))?;
        self.keys.decrypt(Place { name, path }, &ciphertext)
    }

    /// The values by key of a secret or an object that the pod names; the same holds for secrets.
    pub async fn values(
        &self,
        pod: &PodInstance,
        of: &ContentRef,
    ) -> Result<BTreeMap<String, Vec<u8>>, SecretError> {
        if let ContentRef::Secret(name) = of {
            return Ok(secrets::entries(&self.secret_bytes(pod, name).await?));
        }
        let (path, blob) = of_content(&pod.files, of).ok_or_else(|| SecretError::NotNamed(of.to_string()))?;
        self.ensure(path, blob).await.map_err(|error| SecretError::NoContent(error.to_string()))?;
        let folder = self.cache.folder(blob);
        let read = || -> io::Result<BTreeMap<String, Vec<u8>>> {
            let entries = fs::read_dir(&folder)?.map(|entry| {
                let entry = entry?;
                Ok((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?))
            });
            entries.collect()
        };
        read().map_err(|error| SecretError::NoContent(format!("cannot read {}: {error}", folder.display())))
    }

    /// Removes, now and then, what is not among the digests that pods name. Does not wait for it.
    pub fn sweep_when_due(&self, named: impl FnOnce() -> BTreeSet<String>) {
        let mut swept = lock(&self.swept);
        if swept.is_some_and(|at| at.elapsed() < SWEEP_EVERY) {
            return;
        }
        *swept = Some(Instant::now());
        let (cache, named) = (Arc::clone(&self.cache), named());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = cache.sweep(&named) {
                tracing::warn!(%error, "could not remove files that no pod needs");
            }
        });
    }
}
