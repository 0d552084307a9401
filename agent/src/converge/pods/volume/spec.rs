//! Volumes and paths in them, as the plan names them.

use std::path::{Path, PathBuf};

use schema::files::ContentRef;
use schema::kinds::pod::{HostPathType, KeyToPath};

/// A volume to be made or checked before containers start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumePrep {
    /// A directory of the pod's own.
    EmptyDir {
        path: PathBuf,
        /// A tmpfs of this many bytes; half of the memory when 0.
        tmpfs_bytes: Option<u64>,
        group: Option<u32>,
        /// Nothing in its tmpfs can be executed.
        no_exec: bool,
    },
    /// Something of the node's: `kind` says what must be there, or is made.
    HostPath { path: PathBuf, kind: HostPathType },
    /// Values as files.
    Keyed(KeyedPrep),
}

/// A volume whose files are the values of a secret or an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedPrep {
    pub path: PathBuf,
    pub of: ContentRef,
    /// Which values, and where in the volume; all under their keys when empty.
    pub items: Vec<KeyToPath>,
    /// Mode of files whose item has none.
    pub mode: u32,
    /// It, or a key of `items`, may be absent.
    pub is_optional: bool,
    /// It lies in a tmpfs.
    pub is_secret: bool,
    /// Group that may read them, too.
    pub group: Option<u32>,
}

/// A file of such a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedFile {
    pub value: Vec<u8>,
    /// Its mode, before the group may read it, too.
    pub mode: u32,
}

impl VolumePrep {
    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Self::EmptyDir { path, .. } | Self::HostPath { path, .. } => path,
            Self::Keyed(keyed) => &keyed.path,
        }
    }
}

/// A `subPath`: resolved within the volume and mounted at a place of its own, so that no symbolic
/// link in the volume leads out of it, now or later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPath {
    pub root: PathBuf,
    pub path: String,
    /// Where it is mounted on the node.
    pub target: PathBuf,
    /// A folder is made where nothing is.
    pub create: bool,
}
