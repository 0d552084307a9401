//! The jobs controller: which node sees to which Slurm job.
//!
//! Reads Job objects and what nodes report of jobs; writes `work/<node>/jobs/`. A job that Git no longer has is ordered
//! to be deleted, and its order goes once its node says that Slurm and the login host are rid of it.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod plan;
#[cfg(test)]
mod tests;

/// The controller.
#[derive(Debug)]
pub struct Jobs;

impl Controller for Jobs {
    const NAME: &'static str = "jobs";

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        plan::plan(&seen.snapshot, &seen.last_known, now)
    }
}
