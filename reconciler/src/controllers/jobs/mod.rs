//! The jobs controller: assigns each Slurm job to a node.
//!
//! Reads Job objects and the nodes' job reports; writes `work/<node>/jobs/`. The order of a job that is no longer
//! in Git is marked as deleting, and deleted once its node reports that Slurm and the login host are clean.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod plan;
#[cfg(test)]
mod tests;

#[derive(Debug)]
pub struct Jobs;

impl Controller for Jobs {
    const NAME: &'static str = "jobs";

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        plan::plan(&seen.snapshot, &seen.last_known, now)
    }
}
