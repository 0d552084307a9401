//! Files of the repository and secrets that pods need on this node.
//!
//! `cache` keeps content on disk, including the ciphertext of secrets; `secrets` decrypts it in memory, with the
//! node's own identity or the cluster's, which `identity` holds.

pub mod registry_logins;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schema::content_refs::{
    BlobRef, ContentRef, Files, IDENTITY_FILE, SECRETS_FOLDER, file_name, find_content, find_secret,
};
use schema::control::lock;
use schema::records::{ClusterSettings, PodInstance};
use schema::secrets::format;
use schema::secrets::format::Format;
use tokio::sync::watch;
use tokio::time::Instant;

pub mod cache;
mod identity;
pub mod identity_loop;
#[cfg(test)]
mod secret_tests;
pub mod secrets;
#[cfg(test)]
mod tests;
pub mod unpack;

pub use cache::{Cache, CacheError, EnsureOutcome};
pub use secrets::{Keys, SecretError};

use crate::worlds::blobs::BlobSource;
use identity::ClusterKeys;
use secrets::{SecretLocation, SecretUse};

/// Interval at which content that no pod names is removed.
const SWEEP_EVERY: Duration = Duration::from_secs(300);

/// Provides pods with their files and secrets.
pub struct PodFiles {
    cache: Arc<Cache>,
    keys: Keys,
    cluster: ClusterKeys,
    /// Source of the Cluster object, or the first source if there is no such object; empty while unknown.
    home: Mutex<String>,
    swept: Mutex<Option<Instant>>,
    /// Digests that jobs need until they are gone.
    job_digests: Mutex<BTreeSet<String>>,
}

impl PodFiles {
    /// Creates a provider that caches below `state_dir`, fetches from `source` and decrypts with `keys`.
    pub fn new(state_dir: &Path, source: Arc<dyn BlobSource>, keys: Keys) -> Self {
        let cache = Arc::new(Cache::new(state_dir, source));
        Self {
            cache,
            keys,
            cluster: ClusterKeys::new(),
            home: Mutex::default(),
            swept: Mutex::default(),
            job_digests: Mutex::default(),
        }
    }

    /// Recipient to encrypt secrets to; `None` while this node has no identity.
    pub fn recipient(&self) -> Option<&str> {
        self.keys.recipient()
    }

    /// Recipient of the cluster's identity on this node; `None` while it has none.
    pub fn cluster_recipient(&self) -> watch::Receiver<Option<String>> {
        self.cluster.recipients()
    }

    /// Adopts settings: the wanted version of the cluster's identity, and the source of secrets that name none.
    pub fn follow(&self, settings: &ClusterSettings) {
        self.cluster.want(settings.identity.as_ref());
        settings.source.clone_into(&mut lock(&self.home));
    }

    /// True if exactly this version of the cluster's identity is loaded.
    pub fn has_identity(&self, wanted: Option<&BlobRef>) -> bool {
        self.cluster.has(wanted)
    }

    /// Loads the wanted version. If it can't be fetched or read, the previous one stays; if it is not encrypted to
    /// this node, the previous one is dropped.
    pub async fn load_identity(&self) -> Result<(), SecretError> {
        let Some(blob) = self.cluster.wanted() else {
            self.cluster.replace(None);
            return Ok(());
        };
        let path = format!("{SECRETS_FOLDER}/{IDENTITY_FILE}");
        let ciphertext = self.ciphertext(&path, &blob).await?;
        let plain = self.keys.decrypt(SecretLocation { name: "cluster", path: &path }, &ciphertext, &[]);
        match plain.and_then(|plain| secrets::identities(&plain, &path)) {
            Ok(identities) => {
                tracing::info!(digest = blob.digest, "cluster identity loaded");
                self.cluster.replace(Some((blob, identities)));
                Ok(())
            }
            Err(SecretError::NotForUs { recipient, .. }) => {
                self.cluster.replace(None);
                Err(SecretError::NotAmongRecipients { recipient })
            }
            Err(SecretError::Damaged { why, .. }) => Err(SecretError::IdentityDamaged { path, why }),
            Err(other) => Err(other),
        }
    }

    /// Ensures that content is on this node.
    pub async fn ensure(&self, path: &str, blob: &BlobRef) -> Result<EnsureOutcome, CacheError> {
        self.cache.ensure(path, blob).await
    }

    /// Folder of content that has been ensured.
    pub fn folder(&self, blob: &BlobRef) -> PathBuf {
        self.cache.folder(blob)
    }

    /// Returns the format and raw values of a secret among `files`, for use in `namespace`; fetches it if missing.
    /// The caller must keep them in memory only.
    pub async fn open_secret(
        &self,
        files: &Files,
        namespace: &str,
        name: &str,
    ) -> Result<(Format, Vec<u8>), SecretError> {
        let found = find_secret(files, name);
        let (path, blob) = found.ok_or_else(|| SecretError::NotNamed(format!("secret {name}")))?;
        let ciphertext = self.ciphertext(path, blob).await?;
        let taken = if self.cluster.is_current() { Ok(()) } else { self.load_identity().await };
        let held = self.cluster.loaded();
        let identities = held.as_ref().map_or(&[][..], |held| &held.identities);
        let place = SecretLocation { name, path };
        let plain = match (self.keys.decrypt(place, &ciphertext, identities), taken) {
            // The reason why the cluster's identity is missing is more helpful.
            (Err(SecretError::NotForUs { .. }), Err(why)) => return Err(why),
            (plain, _) => plain?,
        };
        let home = lock(&self.home).clone();
        let home = Some(home.as_str()).filter(|home| !home.is_empty());
        let wanted = SecretUse { place, namespace, source: &blob.source, home };
        let (format, values) = wanted.check(&plain)?;
        Ok((format, values.to_vec()))
    }

    async fn ciphertext(&self, path: &str, blob: &BlobRef) -> Result<Vec<u8>, SecretError> {
        self.ensure(path, blob).await.map_err(|error| SecretError::NoContent(error.to_string()))?;
        let file: PathBuf = self.cache.folder(blob).join(file_name(path));
        fs::read(&file)
            .map_err(|error| SecretError::NoContent(format!("cannot read {}: {error}", file.display())))
    }

    /// Returns the values by key of a secret or an object that the pod names. The caller must keep secrets in
    /// memory only.
    pub async fn values(
        &self,
        pod: &PodInstance,
        of: &ContentRef,
    ) -> Result<BTreeMap<String, Vec<u8>>, SecretError> {
        if let ContentRef::Secret(name) = of {
            return self.secret_values(&pod.files, &pod.namespace, name).await;
        }
        let (path, blob) =
            find_content(&pod.files, of).ok_or_else(|| SecretError::NotNamed(of.to_string()))?;
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

    /// Returns the values by key of a secret among `files`, for use in `namespace`.
    pub async fn secret_values(
        &self,
        files: &Files,
        namespace: &str,
        name: &str,
    ) -> Result<BTreeMap<String, Vec<u8>>, SecretError> {
        let (format, values) = self.open_secret(files, namespace, name).await?;
        let unreadable = |why: format::PlaintextError| SecretError::Plaintext {
            name: name.to_owned(),
            why: why.to_string(),
        };
        format::entries(format, &values).map_err(unreadable)
    }

    /// Protects content from sweeps: digests that jobs need until they are gone.
    pub fn hold_for_jobs(&self, digests: BTreeSet<String>) {
        *lock(&self.job_digests) = digests;
    }

    /// True if the last sweep began `SWEEP_EVERY` ago or earlier, or never.
    pub fn is_sweep_due(&self) -> bool {
        lock(&self.swept).is_none_or(|at| at.elapsed() >= SWEEP_EVERY)
    }

    /// Returns the work of removing content that no job or cluster needs and that pods have not `named`.
    pub fn sweep(&self, named: BTreeSet<String>) -> impl Future<Output = ()> + Send + 'static {
        *lock(&self.swept) = Some(Instant::now());
        let removal = self.removal(named);
        async move {
            if let Err(error) = tokio::task::spawn_blocking(removal).await {
                tracing::error!(%error, "removal of unused files crashed");
            }
        }
    }

    fn removal(&self, mut named: BTreeSet<String>) -> impl FnOnce() + Send + 'static {
        named.extend(self.cluster.wanted().map(|blob| blob.digest));
        named.extend(lock(&self.job_digests).iter().cloned());
        let cache = Arc::clone(&self.cache);
        move || {
            if let Err(error) = cache.sweep(&named) {
                tracing::warn!(%error, "unused files not removed");
            }
        }
    }

    /// Sweeps synchronously.
    #[cfg(test)]
    pub fn sweep_now(&self, named: BTreeSet<String>) {
        self.removal(named)();
    }
}
