//! Volumes of pods: which there are (`spec.rs`), how a manifest becomes them (`render.rs`, pure), and how
//! they come to the node and go.

pub mod act;
pub mod error;
pub mod folders;
pub mod prepare;
pub mod render;
pub mod spec;
pub mod sub_path;
#[cfg(test)]
mod tests;
