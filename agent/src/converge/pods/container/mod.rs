//! Containers of a pod: the decision on one (`machine.rs`) and on all (`needs.rs`), rendering from a manifest
//! (`render.rs`, `env.rs`), creation, start and stop.

pub mod act;
pub mod env;
pub mod machine;
pub mod needs;
pub mod render;
pub mod rendered;
#[cfg(test)]
mod tests;
