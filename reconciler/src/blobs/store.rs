//! The folder of content: one archive per digest. Blocking.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use git2::Repository;
use jiff::Timestamp;
use schema::files::{BlobRef, is_digest};

use crate::git::content::{self, ContentError, Found};

/// `<state>/reconciler/blobs`.
#[derive(Debug, Clone)]
pub struct BlobStore {
    dir: PathBuf,
}

impl BlobStore {
    /// The store below `state_dir`. Touches nothing.
    pub fn new(state_dir: &Path) -> Self {
        Self { dir: state_dir.join("reconciler").join("blobs") }
    }

    /// The whole archive is there, as far as its size tells. Agents verify the digest.
    pub fn has(&self, blob: &BlobRef) -> bool {
        fs::metadata(self.path(&blob.digest)).is_ok_and(|meta| meta.is_file() && meta.len() == blob.size)
    }

    /// Makes the archive of what was found at `path` of a commit and keeps it.
    pub fn make(
        &self,
        repository: &Repository,
        found: Found,
        path: &str,
        is_secret: bool,
    ) -> Result<BlobRef, ContentError> {
        let failed = |source: io::Error| ContentError::Write { path: path.to_owned(), source };
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&self.dir).map_err(failed)?;
        let (made, kind) = {
            let writer = BufWriter::new(file.as_file_mut());
            let (made, kind) = content::archive(repository, found, path, is_secret, writer)?;
            let written = made.writer.into_inner().map_err(|error| failed(error.into_error()))?;
            written.sync_data().map_err(failed)?;
            ((made.digest, made.size), kind)
        };
        let blob = BlobRef { digest: made.0, size: made.1, kind };
        file.persist(self.path(&blob.digest)).map_err(|error| failed(error.error))?;
        Ok(blob)
    }

    /// Opens an archive; none if it is not there whole.
    pub fn open(&self, blob: &BlobRef) -> io::Result<Option<File>> {
        match File::open(self.path(&blob.digest)) {
            Ok(file) => Ok((file.metadata()?.len() == blob.size).then_some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All digests, and when each was last kept.
    pub fn list(&self) -> io::Result<Vec<(String, Timestamp)>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let Ok(modified) = entry.metadata().and_then(|meta| meta.modified()) else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            // What a run that was killed left is told by its name, and goes with the others.
            if is_digest(&name) || name.starts_with(".new-") {
                found.push((name, Timestamp::try_from(modified).unwrap_or(Timestamp::UNIX_EPOCH)));
            }
        }
        Ok(found)
    }

    /// Its hour begins anew.
    pub fn keep(&self, name: &str) -> io::Result<()> {
        File::options().write(true).open(self.dir.join(name))?.set_modified(SystemTime::now())
    }

    /// Removes one.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.dir.join(name))
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.dir.join(digest)
    }
}
