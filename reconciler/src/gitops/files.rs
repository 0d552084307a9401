//! From the files and secrets that manifests name to what stands for their content. Blocking.
//!
//! Reads a commit (or, for `minik8s validate`, the disk), decides nothing: what is missing or can't be
//! mounted becomes a violation of the document that names it, and so keeps that file from being applied.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use git2::{Oid, Repository};
use schema::files::{
    BlobKind, BlobRef, Files, LIMITS, Wanted, Wish, is_ciphertext, is_lfs_pointer, secret_paths, wishes,
};
use schema::object::Object;
use schema::violation::{Violation, rules};

use super::load::{Draft, ManifestFile, Manifests};
use crate::blobs::BlobStore;
use crate::git::content::{self, ContentError, Found};

/// What the last commit's paths came to: what did not change is not hashed again. Holds no more than
/// the commit names.
pub(super) type Known = BTreeMap<(Found, String, bool), BlobRef>;

/// Where files are looked for.
pub(super) trait Lookup {
    /// What stands for the content of `path`, if it is asked for; an error that is not the commit's
    /// ends all.
    fn look(&mut self, path: &str, is_secret: bool) -> Result<Option<BlobRef>, ContentError>;
}

/// A commit.
pub(super) struct InCommit<'a> {
    pub(super) repository: &'a Repository,
    pub(super) commit: Oid,
    /// None: content is only hashed.
    pub(super) store: Option<&'a BlobStore>,
    /// Of the last commit.
    pub(super) before: &'a Known,
    /// Of this one.
    pub(super) now: Known,
}

impl Lookup for InCommit<'_> {
    fn look(&mut self, path: &str, is_secret: bool) -> Result<Option<BlobRef>, ContentError> {
        let found = content::find(self.repository, self.commit, path)?;
        let key = (found, path.to_owned(), is_secret);
        let known = self.before.get(&key).filter(|blob| self.store.is_none_or(|store| store.has(blob)));
        let blob = match (known, self.store) {
            (Some(known), _) => known.clone(),
            (None, Some(store)) => store.make(self.repository, found, path, is_secret)?,
            (None, None) => {
                let made = content::archive(self.repository, found, path, is_secret, io::sink())?;
                BlobRef { digest: made.0.digest, size: made.0.size, kind: made.1 }
            }
        };
        self.now.insert(key, blob.clone());
        Ok(Some(blob))
    }
}

/// A folder of the disk, as a commit of it would be; nothing is hashed.
pub(super) struct OnDisk<'a, K: Fn(&str) -> bool> {
    pub(super) root: &'a Path,
    /// Git keeps it out of commits.
    pub(super) is_kept_out: K,
}

impl<K: Fn(&str) -> bool> Lookup for OnDisk<'_, K> {
    fn look(&mut self, path: &str, is_secret: bool) -> Result<Option<BlobRef>, ContentError> {
        let absent = || ContentError::Absent(path.to_owned());
        if path.contains('\0') || path.split('/').any(|part| part == "..") {
            return Err(absent());
        }
        let mut at = self.root.to_owned();
        for part in path.split('/').filter(|part| *part != ".") {
            at.push(part);
            let kind = fs::symlink_metadata(&at).map_err(|_| absent())?.file_type();
            // What lies behind a link is not in the commit, so the path is not there.
            if kind.is_symlink() {
                let is_last = at == self.root.join(path);
                return Err(if is_last { ContentError::IsLink(path.to_owned()) } else { absent() });
            }
        }
        if (self.is_kept_out)(path) {
            return Err(absent());
        }
        if at.is_dir() {
            return if is_secret { Err(ContentError::NoFile(path.to_owned())) } else { Ok(None) };
        }
        let mut beginning = Vec::new();
        let unread = |source| ContentError::Write { path: path.to_owned(), source };
        fs::File::open(&at).map_err(unread)?.take(1024).read_to_end(&mut beginning).map_err(unread)?;
        let size = fs::metadata(&at).map_err(unread)?.len();
        if is_secret && !is_ciphertext(&beginning) {
            return Err(ContentError::Plain(path.to_owned()));
        }
        if size == beginning.len() as u64 && is_lfs_pointer(&beginning) {
            return Err(ContentError::Lfs(path.to_owned()));
        }
        if size > LIMITS.bytes {
            let why = format!("it holds more than {} MiB", LIMITS.bytes / 1024 / 1024);
            return Err(ContentError::TooMuch { path: path.to_owned(), why });
        }
        Ok(None)
    }
}

/// Why a wish can't be granted.
#[derive(Clone)]
struct Refusal {
    message: String,
    help: String,
}

/// Outcome of one wish: path and content, or why there is none.
type Granted = Result<Option<(String, BlobRef)>, Refusal>;

/// The same manifests with the content of what they name. `folder` is the source's. Fails only for
/// what is not the commit's fault.
pub(super) fn resolve(
    manifests: &Manifests,
    folder: &str,
    lookup: &mut impl Lookup,
) -> Result<Manifests, ContentError> {
    let mut resolved = manifests.clone();
    let mut known: BTreeMap<(String, Wanted), Granted> = BTreeMap::new();
    for (name, file) in manifests {
        let wanted: Vec<Vec<Wish>> =
            file.documents.iter().map(|draft| wishes(&draft.object.resource)).collect();
        if wanted.iter().all(Vec::is_empty) {
            continue;
        }
        let mut file = ManifestFile::clone(file);
        for (draft, wanted) in file.documents.iter_mut().zip(wanted) {
            let mut files = Files::new();
            let mut told = BTreeSet::new();
            for wish in wanted {
                let key = (draft.reference.namespace.clone(), wish.wanted.clone());
                let granted = match known.get(&key) {
                    Some(granted) => granted.clone(),
                    None => grant(&key, folder, lookup)?,
                };
                match &granted {
                    Ok(None) => {}
                    Ok(Some((path, blob))) => add(&mut files, path, blob),
                    Err(refusal) => {
                        if told.insert(wish.wanted.clone()) {
                            file.violations.push(violation(name, draft, &wish, refusal));
                        }
                    }
                }
                known.insert(key, granted);
            }
            if !files.is_empty() {
                draft.hash = Object::hash_of(&draft.object.resource, &files);
                draft.files = files;
            }
        }
        resolved.insert(Arc::clone(name), Arc::new(file));
    }
    Ok(resolved)
}

/// A file that is a secret and mounted as it is, too, is a secret: its content is the same.
fn add(files: &mut Files, path: &str, blob: &BlobRef) {
    let known = files.entry(path.to_owned()).or_insert_with(|| blob.clone());
    if blob.kind == BlobKind::Secret {
        known.kind = BlobKind::Secret;
    }
}

fn grant(
    (namespace, wanted): &(String, Wanted),
    folder: &str,
    lookup: &mut impl Lookup,
) -> Result<Granted, ContentError> {
    let (paths, is_secret) = match wanted {
        Wanted::Path(path) => (vec![path.clone()], false),
        Wanted::Secret(name) => (secret_paths(folder, namespace, name), true),
    };
    for path in &paths {
        match lookup.look(path, is_secret) {
            Ok(found) => return Ok(Ok(found.map(|blob| (path.clone(), blob)))),
            Err(ContentError::Absent(_)) => {}
            Err(error) if error.is_ours() => return Err(error),
            Err(error) => {
                return Ok(Err(Refusal { message: error.to_string(), help: error.help().to_owned() }));
            }
        }
    }
    Ok(Err(match wanted {
        Wanted::Path(path) => {
            let error = ContentError::Absent(path.clone());
            Refusal { message: error.to_string(), help: error.help().to_owned() }
        }
        Wanted::Secret(name) => Refusal {
            message: format!("there is no encrypted file of secret {name} in the repository"),
            help: format!("commit it as {}, encrypted with `age -r RECIPIENT`", paths.join(", or as ")),
        },
    }))
}

fn violation(file: &str, draft: &Draft, wish: &Wish, refusal: &Refusal) -> Violation {
    let rule = match wish.wanted {
        Wanted::Path(_) => &rules::REPO_FILE,
        Wanted::Secret(_) => &rules::SECRET_FILE,
    };
    let message = format!("{}: {}", super::diff::dotted(&wish.at), refusal.message);
    let mut violation =
        Violation::of(rule, file, draft.place(&wish.at), message).with_help(refusal.help.clone());
    violation.object = Some(draft.reference.to_string());
    violation
}
