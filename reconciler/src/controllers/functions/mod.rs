//! Functions: how many replicas one should have, by the calls that are in it.
//!
//! Nothing here knows a snapshot, so `minik8s simulate function` decides with the same code in virtual time.

pub mod bounds;
pub mod decider;
pub mod windows;
