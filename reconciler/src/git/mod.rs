//! Git as a source: a bare mirror per source, read by blob id and never checked out.
//!
//! Everything here blocks; `remote` is the one place that bounds a call in time. Nothing of a
//! credential leaves `credentials`: errors and logs carry the address without them.

mod commit;
mod compact;
mod config;
mod credentials;
mod error;
mod ignored;
mod known_hosts;
mod mirror;
mod remote;
#[cfg(test)]
mod tests;
mod tree;

pub use commit::{CommitMeta, Relation, commit_meta, relation};
pub use config::{Credentials, Reference, SourceConfig};
pub use error::GitError;
pub use mirror::Mirror;
pub use remote::{Remote, Transfer};
pub use tree::{Listing, blob, blob_at, list};
