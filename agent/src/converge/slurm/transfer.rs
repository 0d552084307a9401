//! File transfer to and from a login host.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use schema::codec::hex;
use schema::content_refs::{BlobKind, find_path};
use schema::records::{ResultFile, ResultKind, UnfetchedFiles};
use sha2::{Digest as _, Sha256};

use super::act::{ASK_MAX, PoolCacheUse, StepError, Worker, place, shortened};
use super::answers::listing;
use super::commands::{self, RemoteJob};
use super::machine::{JobRecord, StepResult};

/// Longest time for an upload of 64 MiB, and for fetching one file.
const UPLOAD_MAX: Duration = Duration::from_secs(600);
const FETCH_MAX: Duration = Duration::from_secs(300);
/// Maximum bytes of one result and of all results, and their maximum number: they are listed in etcd.
const RESULT_MAX_BYTES: u64 = 16 << 20;
const RESULTS_MAX_BYTES: u64 = 256 << 20;
const RESULTS_MAX: usize = 150;
/// Maximum number of unfetched results that are named: a report is in etcd too.
const UNFETCHED_MAX: usize = 20;

impl Worker {
    pub(super) async fn upload(&self, record: &JobRecord) -> Result<StepResult, StepError> {
        self.check_pool(record, PoolCacheUse::Cached).await?;
        let order = &record.order;
        let folder = match &order.spec.files {
            None => None,
            Some(path) => {
                let found = find_path(&order.files, path).filter(|(_, blob)| blob.kind == BlobKind::Folder);
                let (path, blob) =
                    found.ok_or_else(|| format!("{path} is not a folder of the repository"))?;
                self.files.ensure(path, blob).await.map_err(|error| error.to_string())?;
                Some(self.files.folder(blob))
            }
        };
        let _permit = self.transfers.acquire().await.map_err(|error| error.to_string())?;
        let archive = tokio::task::spawn_blocking(move || archive(folder)).await;
        let archive = archive.map_err(|error| error.to_string())?;
        let archive = Bytes::from(archive.map_err(|error| format!("cannot read the job's folder: {error}"))?);
        let name = record.slurm_name();
        let text = commands::upload(&place(record, &name), &hex(&Sha256::digest(&archive)));
        let output = self.run(record, text, archive, (UPLOAD_MAX, 0)).await?;
        if output.code == 0 {
            Ok(StepResult::Uploaded)
        } else {
            Err(StepError::from_output("cannot upload the job", &output))
        }
    }

    pub(super) async fn fetch(&self, record: &JobRecord) -> Result<StepResult, StepError> {
        let name = record.slurm_name();
        let place = place(record, &name);
        let listed = self.query(record, commands::list(&place, record.facts.id), ASK_MAX).await?;
        // A folder that somebody removed has no results: the job has ended nevertheless. If its parent is missing,
        // the disk may not be mounted now.
        if ![0, commands::EXIT_NO_FOLDER].contains(&listed.code) {
            return Err(StepError::from_output("cannot list the results", &listed));
        }
        let mut results: Vec<ResultFile> = Vec::new();
        let mut left = RESULTS_MAX_BYTES;
        let (files, more) = listing(&listed.stdout);
        let mut unfetched = UnfetchedFiles { count: more, paths: Vec::new() };
        let mut named = BTreeSet::new();
        for (kind, size, path) in files {
            if !named.insert(path.clone()) {
                continue;
            }
            if results.len() == RESULTS_MAX || left == 0 && size > 0 {
                unfetched.count += 1;
                if unfetched.paths.len() < UNFETCHED_MAX {
                    unfetched.paths.push(path);
                }
                continue;
            }
            let max = RESULT_MAX_BYTES.min(left);
            let result = self.fetch_one(record, &place, (kind, size, path), max).await?;
            left -= result.size.min(max);
            results.push(result);
        }
        Ok(StepResult::Fetched(results, unfetched))
    }

    /// Fetches a file. An unreadable file is recorded, and does not block the job.
    async fn fetch_one(
        &self,
        record: &JobRecord,
        place: &RemoteJob<'_>,
        (kind, size, path): (ResultKind, u64, String),
        max: u64,
    ) -> Result<ResultFile, StepError> {
        let _permit = self.transfers.acquire().await.map_err(|error| error.to_string())?;
        let text = commands::read(place, &path, max);
        let output = self.run(record, text, Bytes::new(), (FETCH_MAX, max)).await?;
        let mut result = ResultFile {
            path,
            size,
            digest: String::new(),
            kind,
            is_truncated: false,
            unreadable: String::new(),
        };
        if output.code != 0 {
            result.unreadable = match output.stderr.trim() {
                "" => format!("exit code {}", output.code),
                said => shortened(said),
            };
            return Ok(result);
        }
        let (book, id, bytes) = (self.book.clone(), record.id.clone(), output.stdout);
        result.is_truncated = size > bytes.len() as u64;
        let kept = tokio::task::spawn_blocking(move || book.keep(&id, &bytes)).await;
        let kept = kept.map_err(|error| error.to_string())?;
        result.digest = kept.map_err(|error| format!("cannot store {}: {error}", result.path))?;
        Ok(result)
    }

    /// Returns a job's output so far: at most `max` bytes, from this byte on or at the end.
    pub(super) async fn written(
        &self,
        record: &JobRecord,
        stderr: bool,
        (from, max): (Option<u64>, u64),
    ) -> Result<Vec<u8>, String> {
        let name = record.slurm_name();
        let place = place(record, &name);
        let text = commands::written(&place, record.facts.id, stderr, (from, max));
        let output = self.run(record, text, Bytes::new(), (ASK_MAX, 4 * max)).await;
        match output.map_err(|failed| failed.why)? {
            output if output.code == 0 => Ok(output.stdout),
            output => Err(StepError::from_output("cannot read its output", &output).why),
        }
    }
}

/// Packs the folder of the job.
fn archive(folder: Option<PathBuf>) -> io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    // Not followed: a link that leads out of the folder stays a link.
    builder.follow_symlinks(false);
    builder.mode(tar::HeaderMode::Deterministic);
    if let Some(folder) = folder {
        builder.append_dir_all("", folder)?;
    }
    builder.into_inner()
}
