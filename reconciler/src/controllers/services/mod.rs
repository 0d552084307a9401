//! The services controller: allocates addresses and node ports, selects endpoints, resolves hosts and paths.
//!
//! Reads objects, pods, bindings, pod status and heartbeats; writes `services/` and `routes/`.

mod hosts;
use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod allocate;
mod endpoints;
mod plan;
#[cfg(test)]
mod tests;

pub use allocate::RESERVED_ADDRESSES;

pub struct Services;

impl Controller for Services {
    const NAME: &'static str = "services";

    fn plan(seen: &Observed, _now: Timestamp) -> Writes {
        plan::plan(seen)
    }
}
