//! Resolves the files and secrets that manifests name to references to their content. Blocking.
//!
//! Reads a commit (or, for `minik8s validate`, the disk), decides nothing: missing or unmountable content becomes a
//! violation of the document that names it, which keeps that file from being applied.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use git2::{ObjectType, Oid, Repository};
use schema::content_refs::{
    BlobKind, BlobRef, ContentRef, ContentUse, Files, KEYS_ENDING, KeyUse, LIMITS, SECRET_ENDING,
    identity_paths, is_lfs_pointer, is_sops, normalize_path, secret_paths,
};
use schema::dockerfile::{self, Fault};
use schema::kinds::Resource;
use schema::kinds::function::Runtime;
use schema::object::Object;
use schema::secrets::format::sops::SopsFile;
use schema::violation::{Violation, rules};

use crate::blobs::BlobStore;
use crate::git::content::{self, ContentEntry, ContentError, check_ciphertext};
use crate::git::{self, BLOB_BYTES_MAX};
use crate::gitops::load::Manifests;
use crate::gitops::load::contents::too_large;
use schema::manifest::{Document, ManifestFile};

/// Hashes of the last commit's paths: unchanged content is not hashed again. Holds no more than the commit names.
pub(in crate::gitops) type HashedContent = BTreeMap<(ContentEntry, String, bool), BlobRef>;

/// Source of files: a commit or the disk.
pub(in crate::gitops) trait ContentSource {
    /// Returns a reference to the content of `path`, where content is hashed; an error that is not the commit's
    /// fault ends everything.
    fn find_blob(&mut self, path: &str, is_secret: bool) -> Result<Option<BlobRef>, ContentError>;

    /// Reads the file at `path`; `None` for a folder, or for a file too large to be a manifest.
    fn document(&mut self, path: &str) -> Result<Option<Vec<u8>>, ContentError>;

    /// Reads a short text at `path`; `None` if there is no such file.
    fn text(&self, path: &str) -> Option<String>;
}

/// Limit on a secret's list of keys, and on a SOPS file.
const KEYS_BYTES_MAX: u64 = LIMITS.secret_bytes;

/// Files of a commit.
pub(in crate::gitops) struct InCommit<'a> {
    pub(in crate::gitops) repository: &'a Repository,
    pub(in crate::gitops) commit: Oid,
    /// `None` if content is only hashed.
    pub(in crate::gitops) store: Option<&'a BlobStore>,
    /// Hashes of the last commit.
    pub(in crate::gitops) before: &'a HashedContent,
    /// Hashes of this commit.
    pub(in crate::gitops) now: HashedContent,
    /// First reason why some content could not be stored.
    pub(in crate::gitops) unkept: Option<String>,
}

impl ContentSource for InCommit<'_> {
    fn find_blob(&mut self, path: &str, is_secret: bool) -> Result<Option<BlobRef>, ContentError> {
        let found = content::find(self.repository, self.commit, path)?;
        let key = (found, path.to_owned(), is_secret);
        let known = self.before.get(&key).filter(|blob| self.store.is_none_or(|store| store.has(blob)));
        let blob = match (known, self.store) {
            (Some(known), _) => known.clone(),
            (None, Some(store)) => match store.make(self.repository, found, path, is_secret) {
                // A full disk must not keep everything else of the commit from being applied. The content is built
                // when an agent asks for it.
                Err(error @ ContentError::Write { .. }) => {
                    self.unkept.get_or_insert_with(|| error.to_string());
                    self.hashed(found, path, is_secret)?
                }
                made => made?,
            },
            (None, None) => self.hashed(found, path, is_secret)?,
        };
        self.now.insert(key, blob.clone());
        Ok(Some(blob))
    }

    fn document(&mut self, path: &str) -> Result<Option<Vec<u8>>, ContentError> {
        let found = content::find(self.repository, self.commit, path)?;
        let is_file = self.repository.find_object(found.id, None)?.kind() == Some(ObjectType::Blob);
        if is_file { Ok(git::blob(self.repository, found.id)?) } else { Ok(None) }
    }

    fn text(&self, path: &str) -> Option<String> {
        let found = content::find(self.repository, self.commit, path).ok()?;
        let (size, _) = self.repository.odb().ok()?.read_header(found.id).ok()?;
        let blob = (size as u64 <= KEYS_BYTES_MAX).then(|| self.repository.find_blob(found.id).ok())??;
        String::from_utf8(blob.content().to_vec()).ok()
    }
}

impl InCommit<'_> {
    fn hashed(&self, found: ContentEntry, path: &str, is_secret: bool) -> Result<BlobRef, ContentError> {
        let (made, kind) = content::archive(self.repository, found, path, is_secret, io::sink())?;
        Ok(BlobRef { digest: made.digest, size: made.size, kind, texts: Vec::new(), source: String::new() })
    }
}

/// Files of a folder on disk, as a commit of it would hold them; nothing is hashed.
pub(in crate::gitops) struct OnDisk<'a, K: Fn(&str) -> bool> {
    pub(in crate::gitops) root: &'a Path,
    /// True for a path that Git keeps out of commits.
    pub(in crate::gitops) is_kept_out: K,
}

impl<K: Fn(&str) -> bool> ContentSource for OnDisk<'_, K> {
    fn find_blob(&mut self, path: &str, is_secret: bool) -> Result<Option<BlobRef>, ContentError> {
        let absent = || ContentError::Absent(path.to_owned());
        if path.contains('\0') || path.split('/').any(|part| part == "..") {
            return Err(absent());
        }
        let mut at = self.root.to_owned();
        let unread = |source| ContentError::Unreadable { path: path.to_owned(), source };
        for part in path.split('/').filter(|part| *part != ".") {
            at.push(part);
            let kind = fs::symlink_metadata(&at).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => absent(),
                _ => unread(error),
            })?;
            let kind = kind.file_type();
            // The target of a link is not in the commit, so the path does not exist.
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
        // No commit holds a pipe or device, and opening one may block forever.
        if !at.is_file() {
            return Err(absent());
        }
        let mut beginning = Vec::new();
        let enough = if is_secret { LIMITS.secret_bytes } else { 1024 };
        fs::File::open(&at).map_err(unread)?.take(enough).read_to_end(&mut beginning).map_err(unread)?;
        let size = fs::metadata(&at).map_err(unread)?.len();
        if is_secret {
            if size > LIMITS.secret_bytes {
                let why = format!("a secret has at most {} KiB", LIMITS.secret_bytes / 1024);
                return Err(ContentError::TooMuch { path: path.to_owned(), why });
            }
            check_ciphertext(path, &beginning)?;
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

    fn document(&mut self, path: &str) -> Result<Option<Vec<u8>>, ContentError> {
        self.find_blob(path, false)?;
        let at = self.root.join(path);
        let is_fit =
            fs::metadata(&at).is_ok_and(|meta| meta.is_file() && meta.len() <= BLOB_BYTES_MAX as u64);
        let read = is_fit.then(|| fs::read(&at)).transpose();
        read.map_err(|source| ContentError::Unreadable { path: path.to_owned(), source })
    }

    fn text(&self, path: &str) -> Option<String> {
        // Called only for paths next to those that `look` found, so no folder of the path is a link.
        self.is_file(path).then(|| fs::read_to_string(self.root.join(path)).ok())?
    }
}

impl<K: Fn(&str) -> bool> OnDisk<'_, K> {
    fn is_file(&self, path: &str) -> bool {
        let meta = fs::symlink_metadata(self.root.join(path));
        meta.is_ok_and(|meta| meta.is_file() && meta.len() <= KEYS_BYTES_MAX) && !(self.is_kept_out)(path)
    }
}

/// Reason why there is no content to use.
#[derive(Clone)]
struct Refusal {
    message: String,
    help: String,
    /// Set if nothing has this name, which an optional use tolerates.
    is_absent: bool,
}

/// Content that a manifest names and the commit holds.
#[derive(Clone, Default)]
struct NamedContent {
    /// Path and reference; `None` where nothing is hashed.
    found: Option<(String, BlobRef)>,
    /// Keys of a secret and the file that lists them, if there is one.
    keys: Option<(String, BTreeSet<String>)>,
}

/// Content, or the reason why there is none.
type ResolvedContent = Result<NamedContent, Refusal>;

/// Folder that may hold the secrets, in addition to the root of the repository.
#[derive(Clone, Copy)]
pub(in crate::gitops) enum SourceFolder<'a> {
    /// The source's folder.
    Is(&'a str),
    /// Unknown: any of the folders around a manifest may be the source's.
    AroundManifest,
}

impl SourceFolder<'_> {
    /// Returns the folders that may hold a manifest's secrets.
    fn folders_for(self, manifest: &str) -> Vec<String> {
        match self {
            SourceFolder::Is(folder) => vec![folder.to_owned()],
            SourceFolder::AroundManifest => {
                let around = Path::new(manifest).ancestors().skip(1);
                around.map(|folder| folder.to_string_lossy().into_owned()).collect()
            }
        }
    }
}

/// Returns the manifests with the content that they name. Fails only for reasons outside the commit.
pub(in crate::gitops) fn resolve(
    manifests: &Manifests,
    source: &str,
    folder: SourceFolder<'_>,
    lookup: &mut impl ContentSource,
) -> Result<Manifests, ContentError> {
    let mut resolved = manifests.clone();
    let mut known: BTreeMap<(Vec<String>, String, ContentRef), ResolvedContent> = BTreeMap::new();
    for (name, file) in manifests {
        let uses = || file.documents.iter().map(|draft| draft.object.resource.files());
        // The usual case: an empty list costs nothing.
        if uses().all(|uses| uses.is_empty()) {
            continue;
        }
        let by_document: Vec<Vec<ContentUse>> = uses().collect();
        let mut file = ManifestFile::clone(file);
        let folders = folder.folders_for(name);
        for (draft, uses) in file.documents.iter_mut().zip(by_document) {
            let mut files = Files::new();
            let mut reported = BTreeSet::new();
            for used in uses {
                let key = (folders.clone(), draft.reference.namespace.clone(), used.content.clone());
                let granted = match known.get(&key) {
                    Some(granted) => granted.clone(),
                    None => resolve_content(&key, lookup)?,
                };
                match &granted {
                    Ok(content) => {
                        if let Some((path, blob)) = &content.found {
                            add(&mut files, path, blob, source);
                        }
                        file.violations.extend(unlisted_keys(name, draft, &used, content));
                    }
                    Err(refusal) if refusal.is_absent && used.is_optional => {}
                    Err(refusal) => {
                        if reported.insert(used.content.clone()) {
                            file.violations.push(violation(name, draft, &used, refusal));
                        }
                    }
                }
                known.insert(key, granted);
            }
            if reported.is_empty() {
                file.violations.extend(dockerfile_faults(draft, lookup));
            }
            if !files.is_empty() {
                draft.hash = Object::hash_of(&draft.object.resource, &files);
                draft.files = files;
                file.violations.extend(too_large(name, draft));
            }
        }
        resolved.insert(Arc::clone(name), Arc::new(file));
    }
    Ok(resolved)
}

/// Reports what a build of the function's Dockerfile would refuse.
fn dockerfile_faults(draft: &Document, lookup: &impl ContentSource) -> Vec<Violation> {
    let Resource::Function(spec) = &draft.object.resource else { return Vec::new() };
    let Some(source) = spec.source.as_deref().filter(|_| spec.runtime != Some(Runtime::Python)) else {
        return Vec::new();
    };
    let path = normalize_path(&format!("{source}/Dockerfile"));
    let Some(Err(faults)) = lookup.text(&path).map(|text| dockerfile::parse(&text)) else {
        return Vec::new();
    };
    let violation = |Fault { line, message, help }: Fault| {
        let found = Violation::new(&rules::DOCKERFILE, path.as_str(), (line, 1), message);
        found.with_help(help).about(&draft.reference)
    };
    faults.into_iter().map(violation).collect()
}

/// Adds a file. A file used both as a secret and as a plain file is a secret: its content is the same.
fn add(files: &mut Files, path: &str, blob: &BlobRef, source: &str) {
    let known = files.entry(path.to_owned()).or_insert_with(|| blob.clone());
    if blob.kind == BlobKind::Secret {
        known.kind = BlobKind::Secret;
        source.clone_into(&mut known.source);
    }
}

/// Reports keys of a secret that are used but missing from the list next to it.
fn unlisted_keys(file: &str, draft: &Document, used: &ContentUse, content: &NamedContent) -> Vec<Violation> {
    let Some((list, keys)) = &content.keys else { return Vec::new() };
    let wanted = used.keys.iter().filter_map(|(at, key)| match key {
        KeyUse::File(key) | KeyUse::Text(key) if !used.is_optional && !keys.contains(key) => Some((at, key)),
        _ => None,
    });
    let missing = wanted.map(|(at, key)| {
        let known = keys.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = format!("{}: {} has no key `{key}`", crate::gitops::diff::dotted(at), used.content);
        let help = match is_sops(list) {
            true => format!("{list} has {known}; 'sops edit' adds a key"),
            false => format!("{list} lists {known}; 'minik8s secrets edit' adds a key and lists it"),
        };
        let mut violation =
            Violation::new(&rules::SECRET_KEY, file, draft.place(at), message).with_help(help);
        violation.object = Some(draft.reference.to_string());
        violation
    });
    missing.collect()
}

/// Returns the keys of a secret: in clear text in a SOPS file, else from the list next to it.
fn listed_keys(path: &str, lookup: &impl ContentSource) -> Option<(String, BTreeSet<String>)> {
    if is_sops(path) {
        let sealed = SopsFile::parse(lookup.text(path)?.as_bytes()).ok()?;
        return Some((path.to_owned(), sealed.keys().map(str::to_owned).collect()));
    }
    let list = format!("{}{KEYS_ENDING}", path.strip_suffix(SECRET_ENDING)?);
    let text = lookup.text(&list)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Some((list, lines.map(str::to_owned).collect()))
}

fn resolve_content(
    (folders, namespace, named): &(Vec<String>, String, ContentRef),
    lookup: &mut impl ContentSource,
) -> Result<ResolvedContent, ContentError> {
    let (paths, is_secret) = match named {
        ContentRef::Path(path) => (vec![path.clone()], false),
        ContentRef::Secret(name) => {
            (folders.iter().flat_map(|folder| secret_paths(folder, namespace, name)).collect(), true)
        }
        ContentRef::ClusterIdentity => {
            (folders.iter().flat_map(|folder| identity_paths(folder)).collect::<Vec<_>>(), true)
        }
        // `contents` resolves objects, because it also knows the live ones.
        ContentRef::Object(..) => return Ok(Ok(NamedContent::default())),
    };
    for path in &paths {
        match lookup.find_blob(path, is_secret) {
            Ok(found) => {
                let is_keyed = matches!(named, ContentRef::Secret(_));
                let keys = is_keyed.then(|| listed_keys(path, lookup)).flatten();
                return Ok(Ok(NamedContent { found: found.map(|blob| (path.clone(), blob)), keys }));
            }
            Err(ContentError::Absent(_)) => {}
            Err(error) if error.is_ours() => return Err(error),
            Err(error) => {
                let help = error.help().to_owned();
                return Ok(Err(Refusal { message: error.to_string(), help, is_absent: false }));
            }
        }
    }
    Ok(Err(match named {
        // A cluster may have no identity.
        ContentRef::ClusterIdentity => return Ok(Ok(NamedContent::default())),
        ContentRef::Path(_) | ContentRef::Object(..) => {
            let error = ContentError::Absent(named.to_string());
            Refusal { message: error.to_string(), help: error.help().to_owned(), is_absent: true }
        }
        ContentRef::Secret(name) => Refusal {
            message: format!("there is no encrypted file of secret {name} in the repository"),
            help: format!(
                "create it with 'minik8s secrets seal {name} -n {namespace} --from FILE' and commit it as {}",
                places(folders, namespace, name)
            ),
            is_absent: true,
        },
    }))
}

/// Lists the places for a missing secret, in words.
fn places(folders: &[String], namespace: &str, name: &str) -> String {
    let of = |folder: &str| {
        let paths = secret_paths(folder, namespace, name).into_iter().filter(|path| !is_sops(path));
        paths.collect::<Vec<_>>().join(", or as ")
    };
    match folders {
        [folder] => of(folder),
        _ => format!("{}, here or below the source's --path", of("")),
    }
}

fn violation(file: &str, draft: &Document, used: &ContentUse, refusal: &Refusal) -> Violation {
    let rule = match used.content {
        ContentRef::Path(_) | ContentRef::Object(..) => &rules::REPO_FILE,
        ContentRef::Secret(_) | ContentRef::ClusterIdentity => &rules::SECRET_FILE,
    };
    let message = format!("{}: {}", crate::gitops::diff::dotted(&used.field), refusal.message);
    let mut violation =
        Violation::new(rule, file, draft.place(&used.field), message).with_help(refusal.help.clone());
    violation.object = Some(draft.reference.to_string());
    violation
}
