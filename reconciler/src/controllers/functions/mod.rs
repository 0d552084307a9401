//! The functions controller: assigns image builds, decides on replicas, and publishes what gateways need to know.
//!
//! Reads Function objects, the images and pods that nodes report and the calls that gateways report; writes
//! `functions/`, `work/<node>/builds/` and the `scale/` of functions. The workloads controller creates the pods.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod builds;
pub mod decider;
mod plan;
mod replicas;
pub(crate) mod scaling;
#[cfg(test)]
mod tests;

pub(super) use scaling::ReportTimes;

#[derive(Debug)]
pub struct Functions;

impl Controller for Functions {
    const NAME: &'static str = "functions";

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        plan::plan(&seen.snapshot, &seen.last_known, &seen.demand_read_at, now)
    }
}
