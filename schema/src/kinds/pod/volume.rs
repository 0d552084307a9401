//! Volumes of a pod, and their mounts in containers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::quantity::Memory;

/// A volume: a name and one source; an empty `emptyDir` without a source.
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
    /// Keys of a secret as files.
    pub secret: Option<SecretVolume>,
    /// Keys of a ConfigMap as files, read-only. Files of a running container never change: a changed ConfigMap
    /// replaces the pod.
    pub config_map: Option<ConfigMapVolume>,
}

impl Volume {
    /// True if the volume names a source of its files.
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
    /// Storage medium: disk or memory.
    pub medium: Option<StorageMedium>,
    /// Maximum size; enforced for `Memory`, informational for disk.
    pub size_limit: Option<Memory>,
}

/// Storage medium of an emptyDir.
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
    /// Type that must exist at the path or is created; not checked if absent.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<HostPathType>,
}

/// Type of a hostPath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HostPathType {
    /// Anything; not checked.
    #[serde(rename = "")]
    Unset,
    /// A directory, created if missing.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A file, created if missing.
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

/// Keys of a secret as files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SecretVolume {
    /// Name of the secret.
    pub secret_name: String,
}

/// Keys of a ConfigMap as files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConfigMapVolume {
    /// Name of the ConfigMap.
    pub name: String,
    /// Keys to include, with their paths in the volume; if empty, every key under its own name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
    /// Mode of the files, octal (`0640`) or decimal (`416`).
    #[serde(default = "readable")]
    #[schemars(extend("format" = "file-mode"))]
    pub default_mode: u32,
    /// Allows the ConfigMap and the keys of `items` to be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

fn readable() -> u32 {
    0o644
}

/// A key and the file of a volume that holds its value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct KeyToPath {
    /// Key of the value.
    pub key: String,
    /// Path of the file in the volume.
    pub path: String,
    /// Mode of the file; defaults to the volume's `defaultMode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "file-mode"))]
    pub mode: Option<u32>,
}

/// Mount of a volume in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct VolumeMount {
    /// Name of the volume.
    pub name: String,
    /// Absolute path in the container.
    pub mount_path: String,
    /// Path within the volume; defaults to its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// Mounts the volume read-only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Mounts within the volume that appear later on the other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_propagation: Option<MountPropagation>,
}

/// Mounts within a volume that appear later on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MountPropagation {
    /// None; the default.
    None,
    /// Mounts of the node appear in the container.
    HostToContainer,
    /// Mounts of the node appear in the container, and those of the container, which must be privileged, on the
    /// node.
    Bidirectional,
}
