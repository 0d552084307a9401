//! The settings controller: publishes the Cluster object where agents may read it.
//!
//! Reads the Cluster object; writes `settings`.

use jiff::Timestamp;

use super::{Controller, Observed, Writes};

mod plan;

pub struct ClusterSettings;

impl Controller for ClusterSettings {
    const NAME: &'static str = "settings";

    fn plan(seen: &Observed, _now: Timestamp) -> Writes {
        plan::plan(seen)
    }
}
