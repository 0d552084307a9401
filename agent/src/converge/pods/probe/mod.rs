//! Probes: whether a container is started, ready and alive, and what that means for it.
//!
//! `render.rs` says what to ask (pure), `machine.rs` what the answers mean (pure), `runner.rs` asks,
//! `book.rs` keeps what is known on the node's disk.

pub mod book;
pub mod machine;
pub mod perform;
pub mod render;
pub mod runner;
pub mod target;

#[cfg(test)]
mod tests;
