//! Output and results of jobs, for the agent's API.

use std::path::PathBuf;

use schema::meta::NamespacedName;
use schema::records::{ResultFile, ResultKind};

use super::act::Worker;
use super::machine::JobState;

/// Maximum bytes of a running job's output per request.
const WRITTEN_MAX_BYTES: u64 = 1 << 20;

/// Reads files of ended jobs from this node, and output of running jobs from their login hosts.
#[derive(Clone)]
pub struct JobFiles {
    worker: Option<Worker>,
}

impl JobFiles {
    pub(super) fn of(worker: Worker) -> Self {
        Self { worker: Some(worker) }
    }

    /// Creates the files of a node that runs no jobs.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { worker: None }
    }

    /// Returns the path of a stored file.
    pub fn result(&self, id: &NamespacedName, digest: &str) -> Option<PathBuf> {
        self.worker.as_ref()?.book.result(id, digest)
    }

    /// Returns the output of a job: all of it, or from a byte on. The error gives the reason why there is none.
    pub async fn output(
        &self,
        id: &NamespacedName,
        stderr: bool,
        from: Option<u64>,
    ) -> Result<Vec<Piece>, String> {
        let none = || format!("this node does not run job {id}");
        let worker = self.worker.as_ref().ok_or_else(none)?;
        let record = match worker.book.read_one(id) {
            // Followers wait.
            None if from.is_some() => return Ok(Vec::new()),
            record => record.ok_or_else(none)?,
        };
        if stderr && record.order.spec.error_file.is_none() {
            return Err("standard error goes where standard output goes: the job has no errorFile".to_owned());
        }
        if from.is_some() && record.order.spec.array.is_some() {
            return Err("the tasks of an array write files of their own, which can't be followed".to_owned());
        }
        match record.state {
            JobState::Ended(_) => {
                let kind = if stderr { ResultKind::Stderr } else { ResultKind::Stdout };
                let files: Vec<&ResultFile> =
                    record.results.iter().filter(|file| file.kind == kind).collect();
                let several = files.len() > 1;
                let pieces = files.into_iter().map(|file| worker.kept(id, file, several, from.unwrap_or(0)));
                Ok(pieces.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
            }
            JobState::Submitted | JobState::Fetching | JobState::Lost => {
                let written = worker.written(&record, stderr, (from, WRITTEN_MAX_BYTES)).await?;
                Ok(vec![Piece::Bytes(written)])
            }
            _ if from.is_some() => Ok(Vec::new()),
            _ => Err(format!("job {id} has not been submitted yet")),
        }
    }
}

impl Worker {
    /// Returns a stored file from a byte on, with notes about it.
    fn kept(
        &self,
        id: &NamespacedName,
        file: &ResultFile,
        several: bool,
        from: u64,
    ) -> Result<Vec<Piece>, String> {
        let ResultFile { path, size, .. } = file;
        let said = |text: String| Piece::Bytes(text.into_bytes());
        let mut pieces = Vec::new();
        if several {
            pieces.push(said(format!("==> {path} <==\n")));
        }
        if !file.unreadable.is_empty() {
            pieces.push(said(format!("[{path} could not be read: {}]\n", file.unreadable)));
            return Ok(pieces);
        }
        let kept = self.book.result(id, &file.digest);
        let kept = kept.ok_or_else(|| format!("{path} is no longer on this node"))?;
        pieces.push(Piece::File { path: kept, from });
        if file.is_truncated {
            pieces.push(said(format!("\n[{path} has {size} bytes; only its beginning is kept]\n")));
        }
        Ok(pieces)
    }
}

/// Part of an answer, streamed: a job's output may exceed the memory.
#[derive(Debug)]
pub enum Piece {
    Bytes(Vec<u8>),
    /// The file's content from this byte on.
    File {
        path: PathBuf,
        from: u64,
    },
}
