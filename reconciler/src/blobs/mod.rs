//! Content of repository volumes and secrets (as ciphertext), by digest: kept on this reconciler's disk, served to
//! agents, rebuilt from the mirror when missing, removed when nothing refers to it.

mod serve;
mod store;
mod sweep;

pub use serve::{Blobs, BlobsError, is_named_for};
pub use store::BlobStore;
pub use sweep::SweepLoop;
