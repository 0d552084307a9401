//! Volumes and paths in them, as the plan names them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use schema::content_refs::ContentRef;
use schema::kinds::pod::{HostPathType, KeyToPath};

/// A volume to create or check before containers start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumePrep {
    /// A directory that belongs to the pod.
    EmptyDir {
        path: PathBuf,
        /// Size of its tmpfs in bytes; 0 means half of the memory. `None` for a directory on disk.
        tmpfs_bytes: Option<u64>,
        group: Option<u32>,
        /// True if nothing in the tmpfs can be executed.
        no_exec: bool,
    },
    /// A path on the node: `kind` says what must exist, or is created.
    HostPath {
        path: PathBuf,
        kind: HostPathType,
        /// Set where the cluster or the node limits hostPath volumes.
        bounds: Option<HostPathBounds>,
    },
    /// Files that are written for the pod.
    Files(FilesVolumeSpec),
}

/// A volume whose files are values of secrets and objects, and fields of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesVolumeSpec {
    pub path: PathBuf,
    /// Sources of the files; later ones win.
    pub sources: Vec<FilesSource>,
    /// Mode of files whose item has none.
    pub mode: u32,
    /// True if a source is a secret: the volume is in a tmpfs.
    pub is_secret: bool,
    /// Group that may read the files, too.
    pub group: Option<u32>,
}

/// Source of the files of a [`FilesVolumeSpec`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilesSource {
    /// Values of a secret or an object.
    Values {
        of: ContentRef,
        /// Selected keys and their paths in the volume; empty means all values, under their keys.
        items: Vec<KeyToPath>,
        /// True if the secret or object, or a key of `items`, may be absent.
        is_optional: bool,
    },
    /// Files by their paths in the volume, or the reason why one has no content.
    Fields(Result<BTreeMap<String, VolumeFile>, String>),
}

/// A file of a [`FilesVolumeSpec`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    pub value: Vec<u8>,
    /// Mode before read access for the group is added.
    pub mode: u32,
}

impl VolumePrep {
    pub fn path(&self) -> &Path {
        match self {
            Self::EmptyDir { path, .. } | Self::HostPath { path, .. } => path,
            Self::Files(files) => &files.path,
        }
    }
}

/// Part of the node that a hostPath may show: a symbolic link that leads elsewhere is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPathBounds {
    /// Set where podSecurity.allowHostPaths limits the path.
    pub allowed: Option<AllowedDirectory>,
    /// Directories of podSecurity.forbidHostPaths.
    pub forbidden: Vec<String>,
}

/// A directory that a hostPath may not leave, and the path from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedDirectory {
    pub directory: PathBuf,
    /// Path from there to a directory that the path may not leave either: the cluster and the node allow different ones.
    pub narrower: Option<String>,
    /// Path from the narrowest directory; empty for `directory` itself.
    pub path: String,
}

impl AllowedDirectory {
    /// Returns the narrowest directory that the path may not leave.
    pub fn narrowest(&self) -> PathBuf {
        self.narrower.iter().fold(self.directory.clone(), |outer, inner| outer.join(inner))
    }
}

/// A path resolved within its volume and mounted at a path of its own, so that no symbolic link in the volume leads out
/// of it, now or later: a `subPath`, or the whole of a hostPath with bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPath {
    pub root: PathBuf,
    /// Bounds of `root`, if it is a hostPath.
    pub bounds: Option<HostPathBounds>,
    /// Empty for the whole volume, and as long as `expression` is not expanded.
    pub path: String,
    /// The `subPathExpr` of which `path` is the expansion.
    pub expression: Option<String>,
    /// Mount point on the node.
    pub target: PathBuf,
    /// True if a missing path is created as a folder.
    pub create: bool,
}

impl SubPath {
    /// Returns the path as the manifest has it: a variable in it may be a secret.
    pub fn as_written(&self) -> &str {
        self.expression.as_ref().unwrap_or(&self.path)
    }
}

// Errors of creating, checking and removing volumes.

/// Error of creating, checking or removing a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("cannot create {path}: {source}")]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot mount {path}: {source}")]
    Mount { path: PathBuf, source: io::Error },
    /// `items` name the same keys repeatedly, or there are many sources.
    #[error("the files of {path} exceed {most} MiB; name fewer keys in items")]
    TooLarge {
        path: PathBuf,
        /// Limit in MiB.
        most: usize,
    },
    /// A key of `items` that must exist.
    #[error("references non-existent {} key: {key} of {of}", if matches!(of, ContentRef::Secret(_)) { "secret" } else { "config" })]
    NoKey { of: ContentRef, key: String },
    #[error("{0}")]
    NoField(String),
    #[error("hostPath {path} is not {wanted}; create it on the node or change its type")]
    NotThere { path: PathBuf, wanted: &'static str },
    /// The path leads out of its bounds, or can't be opened.
    #[error(
        "hostPath {path} cannot be used: {source}; podSecurity.allowHostPaths limits it to {directory}, and symbolic links must be relative and stay there"
    )]
    OutOfBounds { path: PathBuf, directory: PathBuf, source: io::Error },
    /// The path can't be opened where only forbidden directories are named.
    #[error(
        "hostPath {path} cannot be used: {source}; where podSecurity.forbidHostPaths is set, it may not lead through a process in /proc"
    )]
    Unresolved { path: PathBuf, source: io::Error },
    #[error("hostPath {path} leads to {target}, which podSecurity.forbidHostPaths forbids")]
    Forbidden { path: PathBuf, target: PathBuf },
    /// The path leads out of its volume, or can't be opened.
    #[error("subPath {path} cannot be used: {source}; it must stay within its volume")]
    SubPath { path: String, source: io::Error },
    #[error("{path} is still mounted, so its folder is not removed")]
    StillMounted { path: PathBuf },
    #[error("cannot remove {path}: {source}")]
    Remove { path: PathBuf, source: io::Error },
}
