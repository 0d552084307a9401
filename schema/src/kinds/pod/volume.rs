//! Volumes of a pod, their mounts in containers, and the downward API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::meta::StringMap;
use crate::quantity::{Divisor, Memory};

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
    /// Fields of the pod itself as files, read-only. Files of a running container never change: a changed label or
    /// annotation that is in one replaces the pod.
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<DownwardApiVolume>,
    /// Files of several sources in one directory, read-only.
    pub projected: Option<ProjectedVolume>,
}

impl Volume {
    /// True if the volume names a source of its files.
    pub(super) fn has_source(&self) -> bool {
        let Self { name: _, empty_dir, host_path, repo, secret, config_map, downward_api, projected } = self;
        let keyed = secret.is_some() || config_map.is_some();
        let has_files = keyed || downward_api.is_some() || projected.is_some();
        empty_dir.is_some() || host_path.is_some() || repo.is_some() || has_files
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
    /// Keys to include, with their paths in the volume; if empty, every key under its own name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
    /// Mode of the files, octal (`0640`) or decimal (`416`); defaults to `0400`, where Kubernetes has `0644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "file-mode"))]
    pub default_mode: Option<u32>,
    /// Allows the file of the secret to be missing from the repository, and the secret to lack the keys of `items`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// Mode of a secret's files unless the volume sets one: for their owner alone.
pub(super) const SECRET_MODE: u32 = 0o400;

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

/// Files of several sources in one directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ProjectedVolume {
    /// Sources of the files. Of two sources without `items` that have the same key, the later one wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<ProjectedSource>,
    /// Mode of the files, those of secrets included, octal (`0640`) or decimal (`416`).
    #[serde(default = "readable")]
    #[schemars(extend("format" = "file-mode"))]
    pub default_mode: u32,
}

/// A source of a projected volume; exactly one field must be set.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ProjectedSource {
    /// Keys of a secret as files.
    pub secret: Option<SecretProjection>,
    /// Keys of a ConfigMap as files.
    pub config_map: Option<ConfigMapProjection>,
    /// Fields of the pod itself as files.
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<DownwardApiProjection>,
}

/// Keys of a secret as files of a projected volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SecretProjection {
    /// Name of the secret.
    pub name: String,
    /// Keys to include, with their paths in the volume; if empty, every key under its own name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
    /// Allows the file of the secret to be missing from the repository, and the secret to lack the keys of `items`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// Keys of a ConfigMap as files of a projected volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConfigMapProjection {
    /// Name of the ConfigMap.
    pub name: String,
    /// Keys to include, with their paths in the volume; if empty, every key under its own name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
    /// Allows the ConfigMap and the keys of `items` to be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
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
    /// Path within the volume, in which `$(NAME)` of a variable of the container is expanded; not together with
    /// `subPath`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path_expr: Option<String>,
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

// The downward API: fields of the pod and amounts of its containers' resources, as files and as variables.

/// A field of the pod itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct FieldRef {
    /// `metadata.name`, `metadata.namespace`, `metadata.uid`, `metadata.labels['k']`,
    /// `metadata.annotations['k']`, `spec.nodeName`, `status.podIP` or `status.hostIP`; in a volume also
    /// `metadata.labels` or `metadata.annotations`.
    pub field_path: String,
}

impl FieldRef {
    /// Returns labels or annotations, one of them or all; `None` for another field. A missing one is empty.
    pub fn of_metadata(&self, labels: &StringMap, annotations: &StringMap) -> Option<String> {
        let maps = [("metadata.labels", labels), ("metadata.annotations", annotations)];
        maps.into_iter().find_map(|(field, map)| match self.field_path.strip_prefix(field)? {
            "" => Some(lines(map)),
            key => Some(map.get(key.strip_prefix("['")?.strip_suffix("']")?).cloned().unwrap_or_default()),
        })
    }
}

/// Formats a map as Kubernetes does (`FormatMap` in pkg/fieldpath/fieldpath.go).
fn lines(map: &StringMap) -> String {
    let lines: Vec<String> = map.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

/// Quotes a text as Go's `%q` does.
fn quoted(text: &str) -> String {
    // The first character of a text is escaped in more cases.
    let is_printable = |c: char| c == '\'' || format!("x{c}").escape_debug().nth(1) == Some(c);
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let escaped = match c {
            '"' | '\\' => format!("\\{c}"),
            '\u{7}' => "\\a".to_owned(),
            '\u{8}' => "\\b".to_owned(),
            '\t' => "\\t".to_owned(),
            '\n' => "\\n".to_owned(),
            '\u{b}' => "\\v".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            '\r' => "\\r".to_owned(),
            c if is_printable(c) => c.to_string(),
            '\0'..' ' | '\u{7f}' => format!("\\x{:02x}", u32::from(c)),
            '\0'..'\u{10000}' => format!("\\u{:04x}", u32::from(c)),
            c => format!("\\U{:08x}", u32::from(c)),
        };
        quoted.push_str(&escaped);
    }
    quoted + "\""
}

/// An amount of a container's resources, in whole units of `divisor`, rounded up.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ResourceFieldRef {
    /// Name of the container; defaults to the one with the variable, and is required in a volume.
    pub container_name: Option<String>,
    /// Resource. A limit that is not set is what the node has for pods, and a request 0.
    pub resource: ContainerResource,
    /// Unit of the value: `1` or `1m` for CPU; `1`, `1k` to `1E` or `1Ki` to `1Ei` for memory.
    pub divisor: Option<Divisor>,
}

/// A request or a limit of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerResource {
    /// CPU limit, in cores.
    #[serde(rename = "limits.cpu")]
    LimitsCpu,
    /// Memory limit, in bytes.
    #[serde(rename = "limits.memory")]
    LimitsMemory,
    /// Requested CPU, in cores.
    #[serde(rename = "requests.cpu")]
    RequestsCpu,
    /// Requested memory, in bytes.
    #[serde(rename = "requests.memory")]
    RequestsMemory,
}

impl ContainerResource {
    /// Returns the resource as manifests spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LimitsCpu => "limits.cpu",
            Self::LimitsMemory => "limits.memory",
            Self::RequestsCpu => "requests.cpu",
            Self::RequestsMemory => "requests.memory",
        }
    }
}

/// Fields of the pod itself as files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DownwardApiVolume {
    /// Files of the volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<DownwardApiFile>,
    /// Mode of the files, octal (`0640`) or decimal (`416`).
    #[serde(default = "readable")]
    #[schemars(extend("format" = "file-mode"))]
    pub default_mode: u32,
}

/// A file with a field of the pod, or with an amount of a container's resources; exactly one must be set.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DownwardApiFile {
    /// Path of the file in the volume.
    pub path: String,
    /// A field of the pod. `metadata.labels` and `metadata.annotations` are all of them, one `KEY="VALUE"` a line.
    pub field_ref: Option<FieldRef>,
    /// An amount of the resources of the container `containerName`.
    pub resource_field_ref: Option<ResourceFieldRef>,
    /// Mode of the file; defaults to the volume's `defaultMode`.
    #[schemars(extend("format" = "file-mode"))]
    pub mode: Option<u32>,
}

/// Fields of the pod itself as files of a projected volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct DownwardApiProjection {
    /// Files of the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<DownwardApiFile>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of `TestExtractFieldPathAsString` in pkg/fieldpath/fieldpath_test.go of Kubernetes, and escapes as Go
    /// prints them.
    #[test]
    fn labels_and_annotations_are_formatted_as_in_kubernetes() {
        let index = "spec.pod.beta.kubernetes.io/statefulset-index";
        for (path, key, value, text) in [
            ("metadata.labels", "key", "value", Some(r#"key="value""#)),
            ("metadata.labels", "key", "value\n", Some(r#"key="value\n""#)),
            ("metadata.annotations", "builder", "john-doe", Some(r#"builder="john-doe""#)),
            ("metadata.annotations['spec.pod.beta.kubernetes.io/statefulset-index']", index, "1", Some("1")),
            ("metadata.annotations['Www.k8s.io/test']", "Www.k8s.io/test", "1", Some("1")),
            ("metadata.labels['key']", "key", "a\n\"b\"", Some("a\n\"b\"")),
            ("metadata.labels['other']", "key", "value", Some("")),
            ("metadata.whoops", "key", "value", None),
            ("metadata.labels[key]", "key", "value", None),
            ("metadata.labels", "k", "\"\\'\t\r\u{7}\u{8}\u{b}\u{c}", Some(r#"k="\"\\'\t\r\a\b\v\f""#)),
            (
                "metadata.labels",
                "k",
                "\0\u{1b}\u{7f}\u{a0}\u{200b}\u{e0001}",
                Some(r#"k="\x00\x1b\x7f\u00a0\u200b\U000e0001""#),
            ),
            ("metadata.labels", "k", "grün e\u{301} 世 🚀", Some("k=\"grün e\u{301} 世 🚀\"")),
        ] {
            let map = StringMap::from([(key.to_owned(), value.to_owned())]);
            let none = StringMap::new();
            let (labels, annotations) = if path.contains("label") { (&map, &none) } else { (&none, &map) };
            let field = FieldRef { field_path: path.to_owned() };
            assert_eq!(field.of_metadata(labels, annotations).as_deref(), text, "{path} {value:?}");
        }
        let all = ["b", "a"].map(|key| (key.to_owned(), key.to_owned())).into();
        assert_eq!(lines(&all), "a=\"a\"\nb=\"b\"");
    }
}
