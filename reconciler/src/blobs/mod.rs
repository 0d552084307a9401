//! Content of repository volumes and secrets, by digest: kept on this reconciler's disk, served to
//! agents.
//!
//! `store` is the folder, written by whoever syncs; `serve` finds what a live object refers to, and
//! makes it again from the mirror where it is missing, in the order of `turns`; `sweep` removes what nothing refers to any more.
//! Secrets lie here as ciphertext only: nobody but the nodes can read them.

pub mod plan;
mod serve;
mod store;
mod sweep;
mod turns;

pub use serve::{Blobs, BlobsError};
pub use store::BlobStore;
pub use sweep::SweepLoop;
