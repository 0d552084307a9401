//! Files of a manifest repository that pods need: which ones a manifest names, and what stands for
//! their content in objects and pods. Pure.
//!
//! The content itself travels by digest (see `archive`): it is in neither etcd nor a plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::kinds::Resource;
use crate::kinds::pod::PodSpec;
use crate::violation::OwnedStep;

/// How much one mounted file or folder may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files and links.
    pub entries: usize,
    /// Bytes of a secret's ciphertext: as Kubernetes bounds a secret.
    pub secret_bytes: u64,
}

/// The bounds of every repository volume. Configuration is small; what is larger belongs in an image
/// or on a disk.
pub const LIMITS: Limits = Limits { bytes: 64 * 1024 * 1024, entries: 10_000, secret_bytes: 1024 * 1024 };

/// The folder of encrypted secrets, below the source's folder or the repository's root.
pub const SECRETS_FOLDER: &str = "secrets";
/// The ending of an encrypted secret's file.
pub const SECRET_ENDING: &str = ".age";

/// What stands for content: by its path from the root of the repository.
pub type Files = BTreeMap<String, BlobRef>;

/// Content by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlobRef {
    /// SHA-256 of its archive, 64 hex digits.
    pub digest: String,
    /// Bytes of its archive.
    pub size: u64,
    /// What it is.
    pub kind: BlobKind,
}

/// What a path of the repository is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BlobKind {
    /// A folder.
    Folder,
    /// One file.
    File,
    /// The ciphertext of a secret, one file.
    Secret,
}

/// What a manifest names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Wanted {
    /// A file or folder by its path from the root of the repository.
    Path(String),
    /// A secret by its name.
    Secret(String),
}

/// One field that names a file, folder or secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The field, from the document's root.
    pub at: Vec<OwnedStep>,
    /// What it names.
    pub wanted: Wanted,
    /// For pulling images only: what a running pod does without.
    pub is_login: bool,
}

/// `64 hex digits`: nothing that leads elsewhere on a disk or in a URL.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A path as the map of files has it: no `.`, no doubled or closing `/`; `.` is the whole repository.
pub fn normal_path(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
}

/// Content of a repository volume: its path in the map, and what stands for it.
pub fn of_path<'f>(files: &'f Files, path: &str) -> Option<(&'f str, &'f BlobRef)> {
    files.get_key_value(&normal_path(path)).map(|(path, blob)| (path.as_str(), blob))
}

/// The ciphertext of a secret: its path in the map, and what stands for it.
pub fn of_secret<'f>(files: &'f Files, name: &str) -> Option<(&'f str, &'f BlobRef)> {
    let is_it = |path: &str| file_name(path).strip_suffix(SECRET_ENDING) == Some(name);
    let found = files.iter().find(|(path, blob)| blob.kind == BlobKind::Secret && is_it(path));
    found.map(|(path, blob)| (path.as_str(), blob))
}

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Where the file of a secret may be, the first that is there counts: below the source's folder, then
/// below the root of the repository; a namespace's own before one for all.
pub fn secret_paths(source_folder: &str, namespace: &str, name: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for base in [source_folder, ""] {
        let base = if base.is_empty() { String::new() } else { format!("{base}/") };
        for below in [format!("{namespace}/{name}"), name.to_owned()] {
            let path = normal_path(&format!("{base}{SECRETS_FOLDER}/{below}{SECRET_ENDING}"));
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    paths
}

/// Every field of a pod that names a file or secret. The pod's spec stands below `above`.
pub fn of_pod(pod: &PodSpec, above: &[&str]) -> Vec<Wish> {
    let field = |name: &str| OwnedStep::Field(name.to_owned());
    let place = |steps: &[OwnedStep]| -> Vec<OwnedStep> {
        above.iter().map(|name| field(name)).chain(steps.iter().cloned()).collect()
    };
    let mut found = Vec::new();
    for (index, volume) in pod.volumes.iter().enumerate() {
        let volumes = [field("volumes"), OwnedStep::Index(index)];
        let below = |rest: [&str; 2]| place(&[volumes.as_slice(), &rest.map(&field)].concat());
        if let Some(repo) = &volume.repo {
            let wanted = Wanted::Path(normal_path(&repo.path));
            found.push(Wish { at: below(["repo", "path"]), wanted, is_login: false });
        }
        if let Some(secret) = &volume.secret {
            let wanted = Wanted::Secret(secret.secret_name.clone());
            found.push(Wish { at: below(["secret", "secretName"]), wanted, is_login: false });
        }
    }
    for (list, containers) in [("initContainers", &pod.init_containers), ("containers", &pod.containers)] {
        for (index, container) in containers.iter().enumerate() {
            for (number, variable) in container.env.iter().enumerate() {
                let source = variable.value_from.as_ref();
                let Some(secret) = source.and_then(|source| source.secret_key_ref.as_ref()) else { continue };
                let variable = [field(list), OwnedStep::Index(index), field("env"), OwnedStep::Index(number)];
                let rest = ["valueFrom", "secretKeyRef", "name"].map(&field);
                let at = place(&[variable.as_slice(), &rest].concat());
                found.push(Wish { at, wanted: Wanted::Secret(secret.name.clone()), is_login: false });
            }
        }
    }
    for (index, secret) in pod.image_pull_secrets.iter().enumerate() {
        let at = place(&[field("imagePullSecrets"), OwnedStep::Index(index), field("name")]);
        found.push(Wish { at, wanted: Wanted::Secret(secret.name.clone()), is_login: true });
    }
    found
}

/// The content that running pods depend on, by what names it: not by where it lies, so that a secret
/// may move, and without registry logins, which only the next pull needs.
pub fn in_hash<'f>(resource: &Resource, files: &'f Files) -> Vec<(Wanted, &'f str, bool)> {
    if files.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<_> = resource
        .files()
        .into_iter()
        .filter(|wish| !wish.is_login)
        .filter_map(|wish| {
            let (_, blob) = match &wish.wanted {
                Wanted::Path(path) => of_path(files, path),
                Wanted::Secret(name) => of_secret(files, name),
            }?;
            // A file is mounted otherwise than a folder with this file alone.
            Some((wish.wanted, blob.digest.as_str(), blob.kind == BlobKind::Folder))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// A symbolic link at `path` of a folder leads to something in that folder, whatever else is in it:
/// it first goes up, at most to the folder, and then only down. So a way through several such links
/// stays inside, too.
pub fn link_stays(path: &str, target: &str) -> bool {
    let mut depth = path.split('/').count() - 1;
    let mut goes_down = false;
    if target.is_empty() || target.starts_with('/') || target.contains('\0') {
        return false;
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if goes_down || depth == 0 => return false,
            ".." => depth -= 1,
            _ => goes_down = true,
        }
    }
    true
}

/// What begins an age file, binary or as text.
const AGE_BEGINNINGS: [&[u8]; 2] = [b"age-encryption.org/", b"-----BEGIN AGE ENCRYPTED FILE-----"];

/// The bytes are ciphertext of age, as far as their beginning tells.
pub fn is_ciphertext(bytes: &[u8]) -> bool {
    AGE_BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

/// What Git LFS leaves in a repository in the place of a file.
pub fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.len() < 1024 && bytes.starts_with(b"version https://git-lfs.github.com/spec/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_looked_for_in_its_namespace_first_and_at_the_source_first() {
        assert_eq!(
            secret_paths("clusters/one", "shop", "db"),
            [
                "clusters/one/secrets/shop/db.age",
                "clusters/one/secrets/db.age",
                "secrets/shop/db.age",
                "secrets/db.age"
            ]
        );
        assert_eq!(secret_paths("", "shop", "db"), ["secrets/shop/db.age", "secrets/db.age"]);
    }

    #[test]
    fn links_that_leave_their_folder_are_told_from_those_that_stay() {
        for (path, target) in [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d/e"), ("a", "./b//c")] {
            assert!(link_stays(path, target), "{path} -> {target}");
        }
        for (path, target) in [
            ("a", "../b"),
            ("a/b", "../../c"),
            ("a", "/etc/passwd"),
            ("a", ""),
            // Through another link `..` may lead elsewhere than it reads.
            ("a/b/c", "d/../../e"),
        ] {
            assert!(!link_stays(path, target), "{path} -> {target}");
        }
    }

    #[test]
    fn one_path_has_one_spelling() {
        for path in ["config/app", "./config//app/", "config/./app"] {
            assert_eq!(normal_path(path), "config/app");
        }
        assert_eq!(normal_path("./"), ".");
    }

    #[test]
    fn a_digest_is_nothing_that_leads_elsewhere() {
        assert!(is_digest(&"0a".repeat(32)));
        for text in ["", "0a", &"0A".repeat(32), &format!("{}/", "0".repeat(63)), &"..".repeat(32)] {
            assert!(!is_digest(text), "{text}");
        }
    }
}
