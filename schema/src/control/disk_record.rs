//! A daemon's own file, mostly JSON. Writes replace it as a whole: a crash leaves either the old file or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Sync that a write waits for, and with it the failures that the write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// No sync: the write survives the end of the process.
    None,
    /// Syncs the content. The write survives a power failure once the caller has called [`sync_folder`], once for
    /// many files.
    Content,
    /// Syncs content and name: the write survives a power failure.
    All,
}

/// A file that is replaced as a whole.
#[derive(Debug, Clone)]
pub struct DiskRecord {
    path: PathBuf,
    fsync: Fsync,
    mode: u32,
}

impl DiskRecord {
    /// Creates a record at `path` that survives a power failure and that only its owner may read: some records hold
    /// an address with a password. No I/O.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), fsync: Fsync::All, mode: 0o600 }
    }

    /// Returns the record with another sync.
    #[must_use]
    pub fn fsync(self, fsync: Fsync) -> Self {
        Self { fsync, ..self }
    }

    /// Returns the record with other permissions, whatever the umask is.
    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the file exists.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Reads the file; `None` if it does not exist. Unknown fields are ignored.
    ///
    /// # Errors
    /// Any I/O error, or `InvalidData` if the file is not the JSON of a `T`.
    pub fn read<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        match fs::read(&self.path) {
            Ok(bytes) => {
                let read = serde_json::from_slice(&bytes);
                read.map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the file; `None` if it does not exist or, with a warning that names `what`, if it can't be read.
    pub fn read_or_warn<T: DeserializeOwned>(&self, what: &str) -> Option<T> {
        let read = self.read();
        let warn =
            |error: &io::Error| tracing::warn!(path = %self.path.display(), what, %error, "file not read");
        read.inspect_err(warn).ok().flatten()
    }

    /// Replaces the content. One writer at a time. Creates the folder if it is missing.
    ///
    /// # Errors
    /// Any I/O error; the old file then stays in place, unless only the sync of the folder failed.
    pub fn write(&self, value: &impl Serialize) -> io::Result<()> {
        self.write_bytes(&serde_json::to_vec(value)?)
    }

    /// Like [`DiskRecord::write`], for a value that is encoded already.
    ///
    /// # Errors
    /// As for [`DiskRecord::write`].
    pub fn write_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes, |draft| fs::rename(draft, &self.path))
    }

    /// Like [`DiskRecord::write_bytes`], but never replaces an existing file.
    ///
    /// # Errors
    /// As for [`DiskRecord::write`], and `AlreadyExists` if the path exists.
    pub fn create_new(&self, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes, |draft| {
            let linked = fs::hard_link(draft, &self.path);
            fs::remove_file(draft)?;
            linked
        })
    }

    /// Writes a draft, which `publish` moves to the record's path.
    fn put(&self, bytes: &[u8], publish: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let draft = self.path.with_extension("tmp");
        // A draft left by a crash would keep its own mode.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.set_permissions(fs::Permissions::from_mode(self.mode))?;
        file.write_all(bytes)?;
        if self.fsync != Fsync::None {
            file.sync_all()?;
        }
        publish(&draft)?;
        if self.fsync == Fsync::All {
            sync_folder(folder)?;
        }
        Ok(())
    }

    /// Removes the file; a missing file is no error.
    ///
    /// # Errors
    /// Any other I/O error.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Syncs a folder, so that the names in it survive a power failure.
///
/// # Errors
/// Any I/O error.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Value = BTreeMap<String, u32>;

    #[test]
    fn a_record_is_what_was_written_last_and_readable_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let record = DiskRecord::new(dir.path().join("new/folder/record.json"));
        assert_eq!(record.read::<Value>().unwrap(), None);
        for number in 0..3 {
            let value = Value::from([("a".to_owned(), number)]);
            record.write(&value).unwrap();
            assert_eq!(record.read::<Value>().unwrap(), Some(value));
        }
        assert_eq!(fs::metadata(record.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(record.path().parent().unwrap()).unwrap().count(), 1, "a draft stays");
        let open = DiskRecord::new(record.path()).mode(0o666);
        open.write(&Value::new()).unwrap();
        assert_eq!(
            fs::metadata(record.path()).unwrap().permissions().mode() & 0o777,
            0o666,
            "whatever the umask"
        );
        record.remove().unwrap();
        record.remove().unwrap();
        assert!(!record.exists());
    }

    // Seen red with a write straight to the file.
    #[test]
    fn a_write_that_fails_leaves_the_former_record() {
        let dir = tempfile::tempdir().unwrap();
        let record = DiskRecord::new(dir.path().join("record.json"));
        let former = Value::from([("a".to_owned(), 1)]);
        record.write(&former).unwrap();
        // Blocks the draft.
        fs::create_dir(dir.path().join("record.tmp")).unwrap();
        record.write(&Value::new()).unwrap_err();
        assert_eq!(record.read::<Value>().unwrap(), Some(former));
    }

    #[test]
    fn a_record_that_must_be_new_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let record = DiskRecord::new(dir.path().join("key.txt"));
        record.create_new(b"first").unwrap();
        assert_eq!(record.create_new(b"second").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(record.path()).unwrap(), b"first");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a draft stays");
    }

    #[test]
    fn what_a_crash_left_of_a_draft_is_no_hindrance_and_garbage_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let record = DiskRecord::new(dir.path().join("record.json")).fsync(Fsync::None);
        fs::write(dir.path().join("record.tmp"), "{\"a\"").unwrap();
        record.write(&Value::new()).unwrap();
        fs::write(record.path(), "{\"a\"").unwrap();
        assert_eq!(record.read::<Value>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(record.read_or_warn::<Value>("the test's record"), None);
    }
}
