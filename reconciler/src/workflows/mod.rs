//! Runs of workflows: each is a journal of its events, and a task of the leader that executes it.
//!
//! [`machine`] is pure: the state of a run follows from its journal. [`WorkflowsLoop`] begins, resumes and ends
//! runs; a task for each run writes an entry before acting on it, and calls the functions. Writes `/minik8s-runs/`,
//! `workflows/` and `triggers/`.

mod act;
mod active_runs;
mod batches;
mod caller;
mod journal;
pub mod machine;
mod plan;
mod records;
mod request;
mod task;
#[cfg(test)]
mod tests;
mod triggers;
mod workflows_loop;
pub use journal::{JournalError, LoadedJournal};
pub use journal::{kept_run, newest_runs, run_head};
pub use records::{Entry, Origin, RunHead, RunId};
pub use request::{BYTES_PER_MINUTE, BYTES_PER_MINUTE_MIN};
pub use request::{NewRun, RequestError, RequestQueue, RunRequestOutcome, request_run};
pub use workflows_loop::{WorkflowsDeps, WorkflowsLoop};
