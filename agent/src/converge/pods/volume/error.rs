//! Errors of creating, checking and removing volumes.

use std::io;
use std::path::PathBuf;

/// Error of creating, checking or removing a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("cannot make {path}: {source}")]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot mount {path}: {source}")]
    Mount { path: PathBuf, source: io::Error },
    /// `items` name the same keys repeatedly.
    #[error("the files of {path} come to more than {most} MiB; name fewer keys in items")]
    TooLarge {
        path: PathBuf,
        /// Limit in MiB.
        most: usize,
    },
    #[error("hostPath {path} is not {wanted}; create it on the node or change its type")]
    NotThere { path: PathBuf, wanted: &'static str },
    /// The path leads out of its volume, or can't be opened.
    #[error("subPath {path} cannot be used: {source}; it must stay within its volume")]
    SubPath { path: String, source: io::Error },
    #[error("{path} is still mounted, so its folder is not removed")]
    StillMounted { path: PathBuf },
    #[error("cannot remove {path}: {source}")]
    Remove { path: PathBuf, source: io::Error },
}
