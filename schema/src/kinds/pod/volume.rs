//! Volumes of a pod and where containers see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::quantity::Memory;

/// A volume: a name and one source; an empty `emptyDir` when none.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Volume {
    /// Name, unique in the pod.
    pub name: String,
    /// A directory that lives as long as the pod.
    pub empty_dir: Option<EmptyDirVolume>,
    /// A file or directory of the node.
    pub host_path: Option<HostPathVolume>,
    /// A file or folder of the manifest repository at the synced commit, read-only.
    pub repo: Option<RepoVolume>,
    /// A secret's keys as files.
    pub secret: Option<SecretVolume>,
    /// A ConfigMap's keys as files, read-only. They never change below a running container: a changed ConfigMap is
    /// another pod.
    pub config_map: Option<ConfigMapVolume>,
}

impl Volume {
    /// Whether it names where its files come from.
    pub(super) fn has_source(&self) -> bool {
        let Self { name: _, empty_dir, host_path, repo, secret, config_map } = self;
        let keyed = secret.is_some() || config_map.is_some();
        empty_dir.is_some() || host_path.is_some() || repo.is_some() || keyed
    }
}

/// A directory that lives as long as the pod.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct EmptyDirVolume {
    /// On disk, or in memory.
    pub medium: Option<StorageMedium>,
    /// The most it may hold; enforced for `Memory`, shown for disk.
    pub size_limit: Option<Memory>,
}

/// What an emptyDir lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StorageMedium {
    /// The node's disk; written `""` in Kubernetes.
    #[serde(rename = "")]
    Disk,
    /// A tmpfs.
    Memory,
}

/// A file or directory of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct HostPathVolume {
    /// Absolute path on the node.
    pub path: String,
    /// What must be there, or is made; unchecked when none.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<HostPathType>,
}

/// What must be at a hostPath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HostPathType {
    /// Anything; not checked.
    #[serde(rename = "")]
    Unset,
    /// A directory, made if nothing is there.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A file, made if nothing is there.
    FileOrCreate,
    /// A file.
    File,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A file or folder of the manifest repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct RepoVolume {
    /// Path from the root of the repository.
    pub path: String,
}

/// A secret's keys as files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SecretVolume {
    /// The secret's name.
    pub secret_name: String,
}

/// A ConfigMap's keys as files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConfigMapVolume {
    /// The ConfigMap's name.
    pub name: String,
    /// Which keys, and where in the volume; all under their own names when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
    /// Mode of the files, octal (`0640`) or decimal (`416`).
    #[serde(default = "readable")]
    #[schemars(extend("format" = "file-mode"))]
    pub default_mode: u32,
    /// The ConfigMap, and the keys of `items`, need not be there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

fn readable() -> u32 {
    0o644
}

/// A value as a file of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct KeyToPath {
    /// The value's key.
    pub key: String,
    /// Path of its file in the volume.
    pub path: String,
    /// Mode of the file; the volume's `defaultMode` when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "file-mode"))]
    pub mode: Option<u32>,
}

/// Where a container sees a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct VolumeMount {
    /// Name of the volume.
    pub name: String,
    /// Absolute path in the container.
    pub mount_path: String,
    /// Path within the volume; its root when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// The container can't write there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}
