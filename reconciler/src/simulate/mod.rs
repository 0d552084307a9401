//! What the controllers would have done: their own decisions on a recorded load, offline and in virtual time.

pub mod hpa;
pub mod placements;
