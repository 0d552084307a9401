//! Content on this node's disk: `<state>/agent/blobs/<digest>/`, unpacked, shared by all pods of the node.
//!
//! Fetched from a reconciler, verified, and moved into place in one step; verified again before each use. Cached
//! content is usable without a reconciler.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use schema::content_refs::{BlobRef, is_digest};
use schema::control::lock;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::unpack::{digest, is_as_unpacked, own_folder, unpack};
use crate::names;
use crate::worlds::blobs::BlobSource;

/// Number of archives fetched concurrently.
const FETCHES: usize = 4;
/// Name prefix, before the digest, of a folder that someone changed and that was set aside.
const ASIDE: &str = ".old-";
/// Time that content stays after the last pod that names it.
const KEPT: Duration = Duration::from_secs(3600);

/// Failure to bring content to this node.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error(
        "cannot fetch {path} of the repository: {why}; retrying. Check that a reconciler runs and that this node reaches it (--reconciler)"
    )]
    Fetch { path: String, why: String },
    #[error(
        "the content of {path} does not match its digest; it is fetched again. Check the reconciler's disk"
    )]
    Digest { path: String },
    #[error("cannot unpack {path} below {}: {why}; check this node's disk", dir.display())]
    Disk { path: String, dir: PathBuf, why: String },
}

/// Outcome of ensuring content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnsureOutcome {
    Was,
    Fetched,
    /// The existing content had been changed by someone, and was fetched again.
    Repaired,
}

/// The folder of content on this node.
pub struct Cache {
    dir: PathBuf,
    source: Arc<dyn BlobSource>,
    fetches: Semaphore,
    /// A lock per digest: pods that share content fetch it once.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Cache {
    /// Creates the cache below `state_dir`. No I/O.
    pub fn new(state_dir: &Path, source: Arc<dyn BlobSource>) -> Self {
        let dir = names::blobs_dir(state_dir);
        Self { dir, source, fetches: Semaphore::new(FETCHES), turns: Mutex::default() }
    }

    /// Folder of content that has been ensured.
    pub fn folder(&self, blob: &BlobRef) -> PathBuf {
        self.dir.join(&blob.digest)
    }

    /// Ensures that content is in place, whole and unchanged.
    pub async fn ensure(&self, path: &str, blob: &BlobRef) -> Result<EnsureOutcome, CacheError> {
        let failed = |why: String| CacheError::Disk { path: path.to_owned(), dir: self.dir.clone(), why };
        if !is_digest(&blob.digest) {
            return Err(failed(format!("{:?} is not a digest", blob.digest)));
        }
        let turn = self.turn(&blob.digest);
        let _turn = turn.lock().await;
        let (folder, wanted) = (self.folder(blob), blob.digest.clone());
        let seen = tokio::task::spawn_blocking(move || verify_folder(&folder, &wanted)).await;
        let outcome = match seen.map_err(|error| failed(error.to_string()))? {
            FolderState::Whole => return Ok(EnsureOutcome::Was),
            FolderState::Absent => EnsureOutcome::Fetched,
            FolderState::Changed => EnsureOutcome::Repaired,
        };
        // The semaphore is never closed.
        let _slot = self.fetches.acquire().await;
        fs::create_dir_all(&self.dir).map_err(|error| failed(error.to_string()))?;
        let file = tempfile::tempfile_in(&self.dir).map_err(|error| failed(error.to_string()))?;
        let to = file.try_clone().map_err(|error| failed(error.to_string()))?;
        let fetched = self.source.fetch(&blob.digest, blob.size, to).await;
        fetched.map_err(|why| CacheError::Fetch { path: path.to_owned(), why })?;
        let (dir, wanted) = (self.dir.clone(), blob.digest.clone());
        let placed = tokio::task::spawn_blocking(move || place(file, &dir, &wanted)).await;
        match placed.map_err(|error| failed(error.to_string()))? {
            Ok(true) => Ok(outcome),
            Ok(false) => Err(CacheError::Digest { path: path.to_owned() }),
            Err(why) => Err(failed(why)),
        }
    }

    pub(super) fn turn(&self, digest: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.turns);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(digest.to_owned()).or_default())
    }

    /// Removes content that has not been among `named` for an hour. An entry that can't be removed does not stop
    /// the others; the first error is returned. Blocking.
    pub fn sweep(&self, named: &BTreeSet<String>) -> io::Result<()> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        let mut failed = None;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Err(error) = self.sweep_one(&entry.path(), digest_of(&name), named) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn sweep_one(&self, path: &Path, digest: &str, named: &BTreeSet<String>) -> io::Result<()> {
        let turn = self.turn(digest);
        // Being verified or fetched at this moment, so it is wanted.
        let Ok(_turn) = turn.try_lock() else { return Ok(()) };
        let there = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            there => there?,
        };
        if named.contains(digest) {
            return if there.is_dir() { touch(path) } else { Ok(()) };
        }
        if there.modified()?.elapsed().unwrap_or_default() <= KEPT {
            return Ok(());
        }
        if there.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    }
}

/// Digest in the name of a folder, also of one that was set aside.
fn digest_of(name: &str) -> &str {
    let aside = name.strip_prefix(ASIDE).and_then(|rest| rest.split_once('-'));
    aside.map_or(name, |(digest, _)| digest)
}

enum FolderState {
    Whole,
    Absent,
    Changed,
}

/// Verifies the content of a folder.
fn verify_folder(folder: &Path, wanted: &str) -> FolderState {
    if fs::symlink_metadata(folder).is_err() {
        return FolderState::Absent;
    }
    if is_as_unpacked(folder) && digest(folder).is_ok_and(|found| found == wanted) {
        // Restart its hour.
        let _ = touch(folder);
        return FolderState::Whole;
    }
    tracing::warn!(folder = %folder.display(), "files differ from the repository's; they are fetched again");
    FolderState::Changed
}

fn touch(folder: &Path) -> io::Result<()> {
    File::open(folder)?.set_modified(SystemTime::now())
}

/// Verifies an archive, unpacks it next to its place and moves it there; false if the digest does not match.
fn place(mut file: File, dir: &Path, wanted: &str) -> Result<bool, String> {
    let text = |error: io::Error| error.to_string();
    file.rewind().map_err(text)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer).map_err(text)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    if schema::codec::hex(&hash.finalize()) != wanted {
        return Ok(false);
    }
    file.rewind().map_err(text)?;
    let fresh = tempfile::Builder::new().prefix(".new-").tempdir_in(dir).map_err(text)?;
    unpack(BufReader::new(file), fresh.path()).map_err(|error| error.to_string())?;
    own_folder(fresh.path()).map_err(text)?;
    let at = dir.join(wanted);
    match fs::symlink_metadata(&at) {
        Ok(there) if there.is_dir() => set_aside(&at, dir, wanted).map_err(text)?,
        Ok(_) => fs::remove_file(&at).map_err(text)?,
        Err(_) => {}
    }
    fs::rename(fresh.keep(), &at).map_err(text)?;
    Ok(true)
}

/// Moves a changed folder away intact: running containers have it mounted, and would otherwise find it empty.
/// [`Cache::sweep`] removes it once no pod names its digest.
fn set_aside(at: &Path, dir: &Path, wanted: &str) -> io::Result<()> {
    let aside = tempfile::Builder::new().prefix(&format!("{ASIDE}{wanted}-")).tempdir_in(dir)?.keep();
    // A rename replaces an empty folder.
    fs::rename(at, &aside)?;
    touch(&aside)
}
