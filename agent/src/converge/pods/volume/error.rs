//! Why a volume could not be made, checked or removed.

use std::io;
use std::path::PathBuf;

/// A volume could not be made, checked or removed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A folder or file could not be made.
    #[error("cannot make {path}: {source}")]
    Make {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something could not be mounted.
    #[error("cannot mount {path}: {source}")]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `items` name the same keys again and again.
    #[error("the files of {path} come to more than {most} MiB; name fewer keys in items")]
    TooLarge {
        /// Of which volume.
        path: PathBuf,
        /// MiB.
        most: usize,
    },
    /// The host path is not what its type says.
    #[error("hostPath {path} is not {wanted}; create it on the node or change its type")]
    NotThere {
        /// Which.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
    },
    /// The path leads out of its volume, or can't be opened.
    #[error("subPath {path} cannot be used: {source}; it must stay within its volume")]
    SubPath {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A mount could not be taken away.
    #[error("{path} is still mounted, so its folder is not removed")]
    StillMounted {
        /// Which.
        path: PathBuf,
    },
    /// A folder could not be removed.
    #[error("cannot remove {path}: {source}")]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}
