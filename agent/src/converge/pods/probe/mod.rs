//! Probes and postStart hooks: whether a container is started, ready and alive, and the consequences.
//!
//! `render.rs` renders the checks (pure), `machine.rs` interprets the results (pure), `runner.rs` runs the checks,
//! `health_store.rs` keeps the health on the node's disk.

pub mod health_store;
pub mod machine;
pub mod perform;
pub mod render;
pub mod runner;

#[cfg(test)]
mod tests;
