//! Volumes of pods: their description (`spec.rs`), rendering from a manifest (`render.rs`, pure), creation on the
//! node and removal.

pub mod act;
pub mod folders;
pub mod prepare;
pub mod render;
pub mod spec;
pub mod sub_path;
#[cfg(test)]
mod tests;
