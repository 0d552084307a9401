//! Git as a source: a bare mirror per source, read by blob id and never checked out.
//!
//! Everything here blocks; only `transport::remote` bounds a call in time. No credential leaves
//! `transport::credentials`: errors and logs carry the address without it.

mod changes;
mod commit;
mod commit_status;
mod config;
pub mod content;
mod error;
mod mirror;
mod signatures;
#[cfg(test)]
mod tests;
mod transport;
mod tree;
#[cfg(test)]
mod tree_tests;
mod walk;
mod work_tree;

pub use changes::{Changes, changes_since};
pub use commit::{CommitMeta, Relation, commit_meta, plan_trailer, relation};
pub use commit_status::{CommitStatus, CommitStatusFields, Forge};
pub(crate) use config::host_and_port;
pub use config::{Credentials, Reference, SealedCredentials, SignaturePolicy, SourceConfig, identity_file};
pub use content::DEPTH_MAX;
pub use error::{GitError, LocalFault, ReadError};
pub use mirror::Mirror;
pub use signatures::{FirstSeen, check_keys};
pub use transport::credentials::status_token;
pub use transport::proxy::Transfer;
pub use transport::remote::Remote;
pub use transport::sealed::{CredentialsError, SealedNamespace};
pub use tree::{
    BLOB_BYTES_MAX, IGNORE_LINK, IGNORE_TOO_LARGE, Listing, SkippedEntry, blob, blob_at, changed_below, list,
};
pub use walk::{FILE_NAME as IGNORE_FILE, IgnoreRules, PathPatterns, SourceEntryKind, ignore_text};
pub use work_tree::{WorkTree, regular_bytes};
