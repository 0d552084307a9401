//! The containers of a pod: what becomes of one (`machine.rs`) and of all (`needs.rs`), how a manifest becomes
//! one (`render.rs`, `env.rs`), and how one is made, started and stopped.

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
