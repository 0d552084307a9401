//! Containers of a pod: the decision on one (`machine.rs`) and on all (`needs.rs`), rendering from a manifest
//! (`render.rs`, `env.rs`), creation, start and stop.

pub mod act;
pub mod adopt;
pub mod env;
pub mod machine;
pub mod needs;
pub mod redact;
pub mod render;
pub mod rendered;
pub mod stop;
#[cfg(test)]
mod tests;
