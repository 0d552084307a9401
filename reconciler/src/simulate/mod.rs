//! Simulations: the controllers' own decisions on a recorded load, and the state machine of runs with mocks for
//! functions, offline and in virtual time.

pub mod autoscaler;
pub mod function;
pub mod placements;
mod trace;
pub mod workflow;

pub use trace::TraceError;
