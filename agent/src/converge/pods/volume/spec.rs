//! Volumes and paths in them, as the plan names them.

use std::path::{Path, PathBuf};

use schema::kinds::pod::HostPathType;

/// A volume to be made or checked before containers start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumePrep {
    /// A directory of the pod's own.
    EmptyDir {
        /// Where.
        path: PathBuf,
        /// A tmpfs of this many bytes; half of the memory when 0.
        tmpfs_bytes: Option<u64>,
        /// Group that owns it.
        group: Option<u32>,
    },
    /// Something of the node's.
    HostPath {
        /// Where.
        path: PathBuf,
        /// What must be there, or is made.
        kind: HostPathType,
    },
    /// A secret's keys as files in a tmpfs.
    Secret {
        /// Where.
        path: PathBuf,
        /// Its name.
        name: String,
        /// Group that may read them, too.
        group: Option<u32>,
    },
}

impl VolumePrep {
    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Self::EmptyDir { path, .. } | Self::HostPath { path, .. } | Self::Secret { path, .. } => path,
        }
    }
}

/// A `subPath`: resolved within the volume and mounted at a place of its own, so that no symbolic
/// link in the volume leads out of it, now or later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPath {
    /// The volume.
    pub root: PathBuf,
    /// The path in it.
    pub path: String,
    /// Where it is mounted on the node.
    pub target: PathBuf,
    /// A folder is made where nothing is.
    pub create: bool,
}
