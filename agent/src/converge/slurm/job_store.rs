//! This node's job data on disk: `agent/jobs/<namespace>/<name>/` holds the record and, below `results/`, the
//! fetched files by digest. Blocking.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use schema::codec::hex;
use schema::content_refs::{BlobKind, Files, is_digest};
use schema::control::{DiskRecord, Fsync};
use schema::meta::NamespacedName;
use sha2::{Digest as _, Sha256};

use super::machine::JobRecord;

/// Folder of all jobs.
#[derive(Debug, Clone)]
pub struct JobBook {
    folder: PathBuf,
}

impl JobBook {
    /// Creates a book below the agent's folder, without I/O.
    pub fn new(agent_dir: &Path) -> Self {
        Self { folder: agent_dir.join("jobs") }
    }

    fn job_dir(&self, id: &NamespacedName) -> PathBuf {
        self.folder.join(&id.namespace).join(&id.name)
    }

    fn record(&self, id: &NamespacedName) -> DiskRecord {
        DiskRecord::new(self.job_dir(id).join("record.json"))
    }

    /// Reads all records. An unreadable record is left out with a warning: the job is not submitted again, because
    /// Slurm and the login host know it.
    pub fn read(&self) -> BTreeMap<NamespacedName, JobRecord> {
        let mut records = BTreeMap::new();
        for namespace in names(&self.folder) {
            for name in names(&self.folder.join(&namespace)) {
                let id = NamespacedName::new(&namespace, &name);
                if let Some(record) = self.record(&id).read_or_warn::<JobRecord>("the record of a job") {
                    records.insert(id, record);
                }
            }
        }
        records
    }

    /// Reads the record of one job.
    pub fn read_one(&self, id: &NamespacedName) -> Option<JobRecord> {
        self.record(id).read().ok().flatten()
    }

    pub fn write(&self, record: &JobRecord) -> io::Result<()> {
        self.record(&record.id).write(record)
    }

    /// Stores a fetched file; returns its digest.
    pub fn keep(&self, id: &NamespacedName, bytes: &[u8]) -> io::Result<String> {
        let digest = hex(&Sha256::digest(bytes));
        let file = DiskRecord::new(self.job_dir(id).join("results").join(&digest)).fsync(Fsync::Content);
        if !file.exists() {
            file.write_bytes(bytes)?;
        }
        Ok(digest)
    }

    /// Returns the path of a stored file.
    pub fn result(&self, id: &NamespacedName, digest: &str) -> Option<PathBuf> {
        let file = self.job_dir(id).join("results").join(digest);
        (is_digest(digest) && file.is_file()).then_some(file)
    }

    /// Removes results that the record does not name.
    pub fn sweep(&self, record: &JobRecord) {
        let named: BTreeSet<&str> = record.results.iter().map(|result| result.digest.as_str()).collect();
        let folder = self.job_dir(&record.id).join("results");
        for name in names(&folder).into_iter().filter(|name| !named.contains(name.as_str())) {
            let _ = fs::remove_file(folder.join(name));
        }
    }

    /// Removes all data of a job.
    pub fn forget(&self, id: &NamespacedName) -> io::Result<()> {
        match fs::remove_dir_all(self.job_dir(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                let _ = fs::remove_dir(self.folder.join(&id.namespace));
                Ok(())
            }
        }
    }
}

/// Returns the digests of the login secrets of jobs. They may no longer be in Git when a job is removed.
pub(super) fn login_secrets<'r>(records: impl Iterator<Item = &'r JobRecord>) -> BTreeSet<String> {
    let files = records.flat_map(|record| {
        std::iter::once(&record.order.files).chain(record.order.former.iter().map(|former| &former.files))
    });
    let secrets = files.flat_map(Files::values).filter(|blob| blob.kind == BlobKind::Secret);
    secrets.map(|blob| blob.digest.clone()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
