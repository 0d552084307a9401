//! What the controllers would have done: their own decisions on a recorded load, offline and in virtual time.

pub mod function;
pub mod hpa;
pub mod placements;
mod trace;

pub use trace::TraceError;
