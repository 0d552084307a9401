//! The services controller: allocates addresses and node ports, selects endpoints, resolves hosts and paths. Reads
//! objects, pods, bindings, pod status and heartbeats; writes `services/` and `routes/`.
//!
//! The rules controller, which runs whenever a node reports its rules: reads these and heartbeats, writes
//! `programmed`.

mod hosts;
use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod allocate;
mod endpoints;
mod plan;
#[cfg(test)]
mod programmed_tests;
#[cfg(test)]
mod tests;

pub use allocate::RESERVED_ADDRESSES;

pub struct Services;

impl Controller for Services {
    const NAME: &'static str = "services";

    fn plan(seen: &Observed, now: Timestamp) -> Writes {
        plan::plan(seen, now)
    }
}

/// Controller of the key `programmed`.
pub struct Rules;

impl Controller for Rules {
    const NAME: &'static str = "rules";

    fn plan(seen: &Observed, _now: Timestamp) -> Writes {
        plan::plan_programmed(&seen.snapshot)
    }
}
