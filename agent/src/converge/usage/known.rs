//! What the usage loop remembers from one look to the next.

use jiff::Timestamp;
use tokio::time::Instant;

use super::plan::Volumes;
use crate::worlds::cgroups::Place;

/// What does not change while a container runs.
#[derive(Debug, Clone)]
pub(super) struct KnownContainer {
    pub(super) place: Place,
    pub(super) started_at: Option<Timestamp>,
}

/// What is remembered of a pod's volumes.
#[derive(Debug, Clone)]
pub(super) struct Walked {
    pub(super) at: Instant,
    pub(super) volumes: Volumes,
}
