//! Repository files that pods need: references in manifests, and the digests that represent their content in
//! objects and pods. Pure.
//!
//! The content itself travels by digest (see `archive`): it is in neither etcd nor a plan.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use super::archive::{LIMITS, Limits, link_stays};
use super::kinds::Kind;
use super::kinds::metadata::parse_reference;
use super::meta::{DEFAULT_NAMESPACE, ObjectMeta, ObjectRef};
use super::secrets::format::sops;
pub use super::secrets::format::sops::is_sops;
use super::violation::OwnedStep;

/// Folder of encrypted secrets, below the source's folder or the repository's root.
pub const SECRETS_FOLDER: &str = "secrets";
/// Namespace of secrets for sources of the reconciler, not for pods: `secrets/.sources/NAME.age`.
pub const SOURCES_NAMESPACE: &str = ".sources";
/// Namespace of secrets for targets of notifications, not for pods: `secrets/.notifications/NAME.age`.
pub const NOTIFICATIONS_NAMESPACE: &str = ".notifications";
/// Namespaces of secrets that are encrypted to the reconcilers. No pod can have them.
pub const RECONCILER_NAMESPACES: [&str; 2] = [SOURCES_NAMESPACE, NOTIFICATIONS_NAMESPACE];
/// Suffix of an encrypted secret's file.
pub const SECRET_ENDING: &str = ".age";

/// Suffix of the file next to a secret's that lists its keys, one per line; commits are checked against it.
pub const KEYS_ENDING: &str = ".keys";
/// Folder, below [`SECRETS_FOLDER`], with the cluster's identity.
pub const IDENTITY_FOLDER: &str = ".identity";
/// Path, below [`SECRETS_FOLDER`], of the cluster's identity, encrypted to each node.
pub const IDENTITY_FILE: &str = ".identity/cluster.age";
/// Path, below [`SECRETS_FOLDER`], of that identity's recipient.
pub const IDENTITY_RECIPIENT_FILE: &str = ".identity/cluster.pub";
/// Path, below [`SECRETS_FOLDER`], of the recipients to whom the cluster's identity is encrypted.
pub const RECIPIENTS_FILE: &str = "recipients.txt";

/// References to content, by path from the root of the repository.
pub type Files = BTreeMap<String, BlobRef>;

/// Reference to content by digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlobRef {
    /// SHA-256 of the content's archive, 64 hex digits.
    pub digest: String,
    /// Bytes of the archive.
    pub size: u64,
    /// Type of the content.
    pub kind: BlobKind,
    /// For an object's content: the keys of its texts, which can become variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<String>,
    /// For a secret: the source whose repository holds it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

/// Type of the content at a path of the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BlobKind {
    /// A folder.
    Folder,
    /// A single file.
    File,
    /// The ciphertext of a secret or of the cluster's identity, a single file.
    Secret,
    /// The content of an object, a file per key; see [`object_path`].
    Object,
}

/// Content that a manifest refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ContentRef {
    /// A file or folder by its path from the root of the repository.
    Path(String),
    /// A secret by its name.
    Secret(String),
    /// The content of an object of the same namespace, by its kind and name.
    Object(Kind, String),
    /// The cluster's identity, which decrypts secrets. Only the Cluster object refers to it, and no pod can have it.
    ClusterIdentity,
}

impl ContentRef {
    /// Returns the path or name.
    pub fn name(&self) -> &str {
        match self {
            ContentRef::Path(name) | ContentRef::Secret(name) | ContentRef::Object(_, name) => name,
            ContentRef::ClusterIdentity => IDENTITY_FILE,
        }
    }
}

impl fmt::Display for ContentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ContentRef::Path(path) => f.write_str(path),
            ContentRef::Secret(name) => write!(f, "secret {name}"),
            ContentRef::Object(kind, name) => write!(f, "{kind} {name}"),
            ContentRef::ClusterIdentity => f.write_str("the cluster's identity"),
        }
    }
}

/// A field that refers to a file, a folder, a secret or an object's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentUse {
    /// The field, from the document's root.
    pub field: Vec<OwnedStep>,
    /// The content it refers to.
    pub content: ContentRef,
    /// Set for credentials that a running pod does without: for pulling images, or of callers.
    pub is_login: bool,
    /// True if the content or its keys may be absent.
    pub is_optional: bool,
    /// Keys that it names, each with its field.
    pub keys: Vec<(Vec<OwnedStep>, KeyUse)>,
}

/// Values that a use takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyUse {
    /// A single value as a file.
    File(String),
    /// A single value as a variable.
    Text(String),
    /// Every value as a variable, with this prefix before each key.
    Texts(String),
}

impl ContentUse {
    /// Returns the object whose content it refers to, for an object with this metadata.
    pub fn target(&self, metadata: &ObjectMeta) -> Option<ObjectRef> {
        match &self.content {
            ContentRef::Object(kind, name) => Some(metadata.reference(*kind, name)),
            ContentRef::Path(_) | ContentRef::Secret(_) | ContentRef::ClusterIdentity => None,
        }
    }
}

/// True for 64 hex digits in lower case: nothing that leads elsewhere on a disk or in a URL.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Normalizes a path as in [`Files`]: no `.`, no doubled or trailing `/`; `.` is the whole repository.
pub fn normalize_path(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
}

/// Finds the content of a repository volume: its path in the map and its reference.
pub fn find_path<'f>(files: &'f Files, path: &str) -> Option<(&'f str, &'f BlobRef)> {
    files.get_key_value(&normalize_path(path)).map(|(path, blob)| (path.as_str(), blob))
}

/// Finds the ciphertext of a secret: its path in the map and its reference.
pub fn find_secret<'f>(files: &'f Files, name: &str) -> Option<(&'f str, &'f BlobRef)> {
    let is_it = |path: &str| secret_name(path) == Some(name);
    let found = files.iter().find(|(path, blob)| blob.kind == BlobKind::Secret && is_it(path));
    found.map(|(path, blob)| (path.as_str(), blob))
}

/// Returns the name of the secret in this file, if it is a secret's.
pub fn secret_name(path: &str) -> Option<&str> {
    let mut endings = [SECRET_ENDING].into_iter().chain(sops::ENDINGS);
    // `.sops.yaml` is the configuration of SOPS.
    endings.find_map(|ending| file_name(path).strip_suffix(ending)).filter(|name| !name.is_empty())
}

/// Builds the path of an object's content in the map: the file that declares the object, and the object. No path of
/// a repository has two slashes in a row.
pub fn object_path(file: &str, object: &ObjectRef) -> String {
    format!("{file}//{object}")
}

/// Splits an [`object_path`] into its file and object.
pub fn parse_object_path(path: &str) -> Option<(&str, ObjectRef)> {
    let (file, object) = path.split_once("//")?;
    Some((file, parse_reference(object, DEFAULT_NAMESPACE).ok()?))
}

/// Finds content: its path in the map and its reference.
pub fn find_content<'f>(files: &'f Files, content: &ContentRef) -> Option<(&'f str, &'f BlobRef)> {
    match content {
        ContentRef::Path(path) => find_path(files, path),
        ContentRef::Secret(name) => find_secret(files, name),
        ContentRef::ClusterIdentity => {
            let is_it = |path: &str| path.ends_with(&format!("{SECRETS_FOLDER}/{IDENTITY_FILE}"));
            let found = files.iter().find(|(path, _)| is_it(path));
            found.map(|(path, blob)| (path.as_str(), blob))
        }
        ContentRef::Object(kind, name) => {
            let is_it = |object: ObjectRef| object.kind == *kind && object.name == *name;
            let mut objects = files.iter().filter(|(_, blob)| blob.kind == BlobKind::Object);
            let found = objects.find(|(path, _)| parse_object_path(path).is_some_and(|(_, o)| is_it(o)))?;
            Some((found.0.as_str(), found.1))
        }
    }
}

/// Returns the last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Lists the possible paths of a secret's file, in order of precedence: below the source's folder, then below the
/// repository's root; a namespace's own file before a shared one.
pub fn secret_paths(source_folder: &str, namespace: &str, name: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for base in [source_folder, ""] {
        let base = if base.is_empty() { String::new() } else { format!("{base}/") };
        for below in [format!("{namespace}/{name}"), name.to_owned()] {
            for ending in [SECRET_ENDING].into_iter().chain(sops::ENDINGS) {
                let path = normalize_path(&format!("{base}{SECRETS_FOLDER}/{below}{ending}"));
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
    }
    paths
}

/// Lists the possible paths of the cluster's identity, in order of precedence.
pub fn identity_paths(source_folder: &str) -> Vec<String> {
    let mut bases = vec![source_folder, ""];
    bases.dedup();
    bases.iter().map(|base| normalize_path(&format!("{base}/{SECRETS_FOLDER}/{IDENTITY_FILE}"))).collect()
}

/// True for the folder with the cluster's identity and anything in it: no volume may hold it.
pub fn is_identity_path(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    parts.windows(2).any(|pair| pair == [SECRETS_FOLDER, IDENTITY_FOLDER])
}

/// First bytes of an age file, binary or armored.
const AGE_BEGINNINGS: [&[u8]; 2] = [b"age-encryption.org/", b"-----BEGIN AGE ENCRYPTED FILE-----"];

/// True if the bytes begin like age ciphertext.
pub fn is_ciphertext(bytes: &[u8]) -> bool {
    AGE_BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

/// Most lines of an age file's header: two for each recipient.
const HEADER_LINES_MAX: usize = 2000;
/// Longest header of an age file; a recipient takes about 100 bytes.
const HEADER_BYTES_MAX: usize = 128 * 1024;

/// True if the header of an age file ends within bounds: the age crate rereads it for each of its lines, which
/// takes hours for 1 MiB of them. `binary` is the file without its armor.
pub fn has_bounded_header(binary: &[u8]) -> bool {
    let start = &binary[..binary.len().min(HEADER_BYTES_MAX)];
    start.split(|byte| *byte == b'\n').take(HEADER_LINES_MAX).any(|line| line.starts_with(b"---"))
}

/// True for the pointer that Git LFS leaves in a repository in place of a file.
pub fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.len() < 1024 && bytes.starts_with(b"version https://git-lfs.github.com/spec/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_looked_for_in_its_namespace_first_and_at_the_source_first() {
        assert_eq!(
            secret_paths("clusters/one", "shop", "db").iter().step_by(3).collect::<Vec<_>>(),
            [
                "clusters/one/secrets/shop/db.age",
                "clusters/one/secrets/db.age",
                "secrets/shop/db.age",
                "secrets/db.age"
            ]
        );
        let here = secret_paths("", "shop", "db");
        assert_eq!(
            here[..4],
            [
                "secrets/shop/db.age",
                "secrets/shop/db.sops.yaml",
                "secrets/shop/db.sops.json",
                "secrets/db.age"
            ]
        );
        assert!(here.iter().all(|path| secret_name(path) == Some("db")));
    }

    #[test]
    fn one_path_has_one_spelling() {
        for path in ["config/app", "./config//app/", "config/./app"] {
            assert_eq!(normalize_path(path), "config/app");
        }
        assert_eq!(normalize_path("./"), ".");
    }

    #[test]
    fn a_digest_is_nothing_that_leads_elsewhere() {
        assert!(is_digest(&"0a".repeat(32)));
        for text in ["", "0a", &"0A".repeat(32), &format!("{}/", "0".repeat(63)), &"..".repeat(32)] {
            assert!(!is_digest(text), "{text}");
        }
    }
}
