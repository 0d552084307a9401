//! What jobs wrote and left, for the agent's API.

use std::path::PathBuf;

use schema::meta::NamespacedName;
use schema::records::{ResultFile, ResultKind};

use super::act::Worker;
use super::machine::State;

/// Bytes of what a running job has written that are shown.
const WRITTEN_MAX_BYTES: u64 = 1 << 20;

/// Reads what this node keeps of jobs, and of those that run what their login hosts have.
#[derive(Clone)]
pub struct JobFiles {
    worker: Option<Worker>,
}

impl JobFiles {
    pub(super) fn of(worker: Worker) -> Self {
        Self { worker: Some(worker) }
    }

    /// Of a node that sees to no jobs.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { worker: None }
    }

    /// A kept file.
    pub fn result(&self, id: &NamespacedName, digest: &str) -> Option<PathBuf> {
        self.worker.as_ref()?.book.result(id, digest)
    }

    /// What a job wrote. The error says why there is nothing.
    pub async fn output(&self, id: &NamespacedName, stderr: bool) -> Result<Vec<u8>, String> {
        let none = || format!("this node does not see to job {id}");
        let worker = self.worker.as_ref().ok_or_else(none)?;
        let record = worker.book.read_one(id).ok_or_else(none)?;
        if stderr && record.order.spec.error_file.is_none() {
            return Err("standard error goes where standard output goes: the job has no errorFile".to_owned());
        }
        match record.state {
            State::Ended(_) => {
                let kind = if stderr { ResultKind::Stderr } else { ResultKind::Stdout };
                let files: Vec<&ResultFile> =
                    record.results.iter().filter(|file| file.kind == kind).collect();
                let mut output = Vec::new();
                for file in &files {
                    if files.len() > 1 {
                        output.extend(format!("==> {} <==\n", file.path).into_bytes());
                    }
                    let kept = worker.book.result(id, &file.digest);
                    let kept = kept.ok_or_else(|| format!("{} is not on this node any more", file.path))?;
                    output.extend(std::fs::read(kept).map_err(|error| error.to_string())?);
                    if file.is_truncated {
                        output.extend(
                            format!(
                                "\n[{} has {} bytes; only its beginning is kept]\n",
                                file.path, file.size
                            )
                            .into_bytes(),
                        );
                    }
                }
                Ok(output)
            }
            State::Submitted | State::Fetching | State::Lost => {
                worker.written(&record, stderr, WRITTEN_MAX_BYTES).await
            }
            _ => Err(format!("job {id} has not been submitted yet")),
        }
    }
}
