//! The folder of content: one archive per digest. Blocking.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use jiff::Timestamp;
use schema::archive::FinishedArchive;
use schema::codec::hex;
use schema::content_refs::{BlobKind, BlobRef, is_digest};
use schema::control::lock;
use schema::kinds::content::Values;
use sha2::{Digest as _, Sha256};

use crate::git::content::{self, CommitTree, ContentEntry, ContentError, Found};

/// Maximum number of files remembered as verified; beyond it files are read once more.
const VERIFIED_MAX: usize = 10_000;

/// Content in `<state>/reconciler/blobs`.
#[derive(Debug, Clone)]
pub struct BlobStore {
    dir: PathBuf,
    /// Inodes of files whose content matched their digest.
    verified: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl BlobStore {
    /// Creates a store below `state_dir`. No I/O.
    pub fn new(state_dir: &Path) -> Self {
        Self { dir: state_dir.join("reconciler").join("blobs"), verified: Arc::default() }
    }

    /// True if the archive exists with the right size. Its digest is verified when it is opened.
    pub fn has(&self, blob: &BlobRef) -> bool {
        fs::metadata(self.path(&blob.digest)).is_ok_and(|meta| meta.is_file() && meta.len() == blob.size)
    }

    /// Builds and stores the archive of the entry found at `path` of a commit.
    pub fn make(
        &self,
        tree: &CommitTree<'_>,
        found: &Found<ContentEntry>,
        path: &str,
        is_secret: bool,
    ) -> Result<BlobRef, ContentError> {
        self.keep_archive(path, |writer| content::archive(tree, found, path, is_secret, writer))
    }

    /// Builds and stores the archive of an object's values.
    pub fn make_from_values(&self, values: &Values, path: &str) -> Result<BlobRef, ContentError> {
        let failed = |error| content::refused(error, path, path);
        let made = |writer| Ok((values.archive(writer).map_err(failed)?, BlobKind::Object));
        let texts = values.texts.keys().cloned().collect();
        Ok(BlobRef { texts, ..self.keep_archive(path, made)? })
    }

    fn keep_archive(
        &self,
        path: &str,
        make: impl FnOnce(BufWriter<File>) -> Result<(FinishedArchive<BufWriter<File>>, BlobKind), ContentError>,
    ) -> Result<BlobRef, ContentError> {
        let failed = |source: io::Error| ContentError::Write { path: path.to_owned(), source };
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let file = tempfile::Builder::new().prefix(".new-").tempfile_in(&self.dir).map_err(failed)?;
        let (made, kind) = make(BufWriter::new(file.reopen().map_err(failed)?))?;
        let written = made.writer.into_inner().map_err(|error| failed(error.into_error()))?;
        written.sync_data().map_err(failed)?;
        let blob =
            BlobRef { digest: made.digest, size: made.size, kind, texts: Vec::new(), source: String::new() };
        file.persist(self.path(&blob.digest)).map_err(|error| failed(error.error))?;
        Ok(blob)
    }

    /// Opens an archive already verified by this process; `None` for any other.
    pub fn open_verified(&self, blob: &BlobRef) -> io::Result<Option<File>> {
        let Some((file, inode)) = self.open_whole(blob)? else { return Ok(None) };
        Ok((lock(&self.verified).get(&blob.digest) == Some(&inode)).then_some(file))
    }

    /// Opens an archive and verifies its digest. Removes a wrong one.
    pub fn open(&self, blob: &BlobRef) -> io::Result<Option<File>> {
        let Some((mut file, inode)) = self.open_whole(blob)? else { return Ok(None) };
        if lock(&self.verified).get(&blob.digest) == Some(&inode) {
            return Ok(Some(file));
        }
        if digest_of(&mut file)? != blob.digest {
            tracing::warn!(digest = blob.digest, "content on disk changed; it is rebuilt");
            fs::remove_file(self.path(&blob.digest))?;
            return Ok(None);
        }
        file.rewind()?;
        let mut verified = lock(&self.verified);
        if verified.len() >= VERIFIED_MAX {
            verified.clear();
        }
        verified.insert(blob.digest.clone(), inode);
        Ok(Some(file))
    }

    fn open_whole(&self, blob: &BlobRef) -> io::Result<Option<(File, u64)>> {
        match File::open(self.path(&blob.digest)) {
            Ok(file) => {
                let meta = file.metadata()?;
                Ok((meta.len() == blob.size).then(|| (file, meta.ino())))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

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
            // A killed process leaves a file with this prefix, which is removed with the others.
            if is_digest(&name) || name.starts_with(".new-") {
                found.push((name, Timestamp::try_from(modified).unwrap_or(Timestamp::UNIX_EPOCH)));
            }
        }
        Ok(found)
    }

    /// Restarts the hour of an archive.
    pub fn keep(&self, name: &str) -> io::Result<()> {
        File::options().write(true).open(self.dir.join(name))?.set_modified(SystemTime::now())
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.dir.join(name))
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.dir.join(digest)
    }
}

fn digest_of(file: &mut File) -> io::Result<String> {
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&chunk[..read]),
        }
    }
}
