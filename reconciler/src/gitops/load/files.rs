//! Resolves the files and secrets that manifests name to references to their content. Blocking.
//!
//! Reads a commit (or, for `minik8s validate`, the disk), decides nothing: missing or unmountable content becomes a
//! violation of the document that names it, which keeps that file from being applied.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use schema::content_refs::{
    BlobKind, BlobRef, ContentRef, ContentUse, Files, KEYS_ENDING, KeyUse, LIMITS, NOTIFICATIONS_NAMESPACE,
    SECRET_ENDING, SECRETS_FOLDER, identity_paths, is_sops, normalize_path, secret_paths,
};
use schema::dockerfile::{self, Fault};
use schema::kinds::Resource;
use schema::kinds::function::{
    DEFAULT_HANDLER, DOCKERFILE, FunctionFolder, Runtime, detect_runtime, handler_fault, is_python_file,
};
use schema::object::Object;
use schema::secrets::format::sops::SopsFile;
use schema::violation::{Violation, field_path, rules};

use crate::blobs::BlobStore;
use crate::git::content::{self, CommitTree, ContentEntry, ContentError, ContentTree, EntryKind, Found};
use crate::git::{BLOB_BYTES_MAX, WorkTree};
use crate::gitops::load::Manifests;
use crate::gitops::load::contents::too_large;
use schema::manifest::{Document, ManifestFile};

/// Hashes of the last commit's paths: unchanged content is not hashed again. Holds no more than the commit names.
pub(in crate::gitops) type HashedContent = BTreeMap<(ContentEntry, String, bool), BlobRef>;

/// Source of files: a commit or the disk.
pub(in crate::gitops) trait ContentSource {
    type Tree: ContentTree;

    fn tree(&self) -> &Self::Tree;

    /// Returns a reference to the content of `path`; an error that is not the commit's fault ends everything.
    fn find_blob(&mut self, path: &str, is_secret: bool) -> Result<BlobRef, ContentError>;

    /// Reads the file at `path`; `None` for a folder, or for a file too large to be a manifest.
    fn document(&self, path: &str) -> Result<Option<Vec<u8>>, ContentError> {
        content::bytes(self.tree(), path, BLOB_BYTES_MAX as u64)
    }

    /// Reads a short text at `path`; `None` if there is no such file.
    fn text(&self, path: &str) -> Option<String> {
        content::text(self.tree(), path, KEYS_BYTES_MAX)
    }
}

/// Limit on a secret's list of keys, and on a SOPS file.
const KEYS_BYTES_MAX: u64 = LIMITS.secret_bytes;

/// Files of a commit.
pub(in crate::gitops) struct InCommit<'a> {
    pub(in crate::gitops) tree: CommitTree<'a>,
    /// `None` if content is only hashed.
    pub(in crate::gitops) store: Option<&'a BlobStore>,
    /// Hashes of the last commit.
    pub(in crate::gitops) before: &'a HashedContent,
    /// Hashes of this commit.
    pub(in crate::gitops) now: HashedContent,
    /// First reason why some content could not be stored.
    pub(in crate::gitops) unkept: Option<String>,
}

impl<'a> ContentSource for InCommit<'a> {
    type Tree = CommitTree<'a>;

    fn tree(&self) -> &CommitTree<'a> {
        &self.tree
    }

    fn find_blob(&mut self, path: &str, is_secret: bool) -> Result<BlobRef, ContentError> {
        let found = content::find(&self.tree, path)?;
        let key = (found.entry, path.to_owned(), is_secret);
        let known = self.before.get(&key).filter(|blob| self.store.is_none_or(|store| store.has(blob)));
        let hash = || hashed(&self.tree, &found, path, is_secret);
        let blob = match (known, self.store) {
            (Some(known), _) => known.clone(),
            (None, Some(store)) => match store.make(&self.tree, &found, path, is_secret) {
                // A full disk must not keep everything else of the commit from being applied. The content is built
                // when an agent asks for it.
                Err(error @ ContentError::Write { .. }) => {
                    self.unkept.get_or_insert_with(|| error.to_string());
                    hash()?
                }
                made => made?,
            },
            (None, None) => hash()?,
        };
        self.now.insert(key, blob.clone());
        Ok(blob)
    }
}

/// Files of a folder on disk, as a commit of it would hold them.
pub(in crate::gitops) struct OnDisk<'a>(pub(in crate::gitops) &'a WorkTree);

impl ContentSource for OnDisk<'_> {
    type Tree = WorkTree;

    fn tree(&self) -> &WorkTree {
        self.0
    }

    fn find_blob(&mut self, path: &str, is_secret: bool) -> Result<BlobRef, ContentError> {
        let found = content::find(self.0, path)?;
        hashed(self.0, &found, path, is_secret)
    }
}

fn hashed<T: ContentTree>(
    tree: &T,
    found: &Found<T::Entry>,
    path: &str,
    is_secret: bool,
) -> Result<BlobRef, ContentError> {
    let (made, kind) = content::archive(tree, found, path, is_secret, io::sink())?;
    Ok(BlobRef { digest: made.digest, size: made.size, kind, texts: Vec::new(), source: String::new() })
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
    /// Path and reference; `None` for an object's, which `contents` resolves.
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
                file.violations.extend(function_faults(name, draft, lookup));
            }
            file.violations.extend(notification_faults(name, draft, &folders, lookup)?);
            if !files.is_empty() {
                draft.hash = Object::hash_of(&draft.object.metadata, &draft.object.resource, &files);
                draft.files = files;
                file.violations.extend(too_large(name, draft));
            }
        }
        resolved.insert(Arc::clone(name), Arc::new(file));
    }
    Ok(resolved)
}

/// Reports why a function's folder can't be built or run, as far as its files tell.
fn function_faults(file: &str, draft: &Document, lookup: &impl ContentSource) -> Vec<Violation> {
    let Resource::Function(spec) = &draft.object.resource else { return Vec::new() };
    let Some(path) = spec.source.as_deref().map(normalize_path) else { return Vec::new() };
    let folder = FolderIn { tree: lookup.tree(), path: &path };
    let has_python = folder.holds_python();
    let fault = match detect_runtime(&path, spec.runtime, folder.holds(DOCKERFILE), has_python) {
        Ok(Runtime::Dockerfile) => return dockerfile_faults(draft, &folder),
        Ok(Runtime::Python) => {
            let is_typed = spec.handler.as_deref().is_some_and(|handler| handler != DEFAULT_HANDLER);
            let field = if is_typed { "handler" } else { "source" };
            handler_fault(spec, &path, &folder).map(|message| (field, message))
        }
        Err(message) => Some((if spec.runtime.is_some() { "runtime" } else { "source" }, message)),
    };
    let violation = |(field, message): (&str, String)| {
        let place = draft.place(&field_path(&["spec", field]));
        let found = Violation::new(&rules::FUNCTION_SOURCE, file, place, format!("spec.{field}: {message}"));
        found
            .with_help("paths are from the root of the repository; commit what is missing")
            .about(&draft.reference)
    };
    fault.map(violation).into_iter().collect()
}

/// Reports what a build of the function's Dockerfile would refuse.
fn dockerfile_faults<T: ContentTree>(draft: &Document, folder: &FolderIn<'_, T>) -> Vec<Violation> {
    let path = folder.at(DOCKERFILE);
    let Some(Err(faults)) = folder.text(DOCKERFILE).map(|text| dockerfile::parse(&text)) else {
        return Vec::new();
    };
    let violation = |Fault { line, message, help }: Fault| {
        let found = Violation::new(&rules::DOCKERFILE, path.as_str(), (line, 1), message);
        found.with_help(help).about(&draft.reference)
    };
    faults.into_iter().map(violation).collect()
}

/// Reports secrets of notifications that no reconciler could read. A check only: they are not for nodes.
fn notification_faults(
    file: &str,
    draft: &Document,
    folders: &[String],
    lookup: &impl ContentSource,
) -> Result<Vec<Violation>, ContentError> {
    let Resource::Cluster(cluster) = &draft.object.resource else { return Ok(Vec::new()) };
    let mut faults = Vec::new();
    for (field, name) in cluster.notification_secrets() {
        let below = format!("{SECRETS_FOLDER}/{NOTIFICATIONS_NAMESPACE}/{name}{SECRET_ENDING}");
        let check = |folder: &str| {
            let path = normalize_path(&format!("{folder}/{below}"));
            let found = content::find(lookup.tree(), &path)?;
            hashed(lookup.tree(), &found, &path, true).map(drop)
        };
        // In the order in which a reconciler tries them.
        let mut checked = folders.iter().map(String::as_str).chain([""]).map(check);
        let refusal = match checked.find(|checked| !matches!(checked, Err(ContentError::Absent(_)))) {
            Some(Ok(())) => continue,
            Some(Err(error)) if error.is_ours() => return Err(error),
            Some(Err(error)) => {
                Refusal { message: error.to_string(), help: error.help().to_owned(), is_absent: false }
            }
            None => Refusal {
                message: format!("there is no {below} in the repository"),
                help: format!(
                    "create it with 'minik8s secrets seal {name} -n {NOTIFICATIONS_NAMESPACE} --from FILE' and commit \
                     it"
                ),
                is_absent: true,
            },
        };
        let content = ContentRef::Secret(name.to_owned());
        let used = ContentUse { field, content, is_login: false, is_optional: false, keys: Vec::new() };
        faults.push(violation(file, draft, &used, &refusal));
    }
    Ok(faults)
}

/// The folder of a function.
struct FolderIn<'t, T> {
    tree: &'t T,
    path: &'t str,
}

impl<T: ContentTree> FolderIn<'_, T> {
    fn at(&self, below: &str) -> String {
        normalize_path(&format!("{}/{below}", self.path))
    }

    fn holds_python(&self) -> bool {
        let mut left = LIMITS.entries;
        content::find(self.tree, self.path)
            .is_ok_and(|folder| holds_python(self.tree, &folder.entry, &mut left))
    }
}

fn holds_python<T: ContentTree>(tree: &T, folder: &T::Entry, left: &mut usize) -> bool {
    tree.entries(folder).unwrap_or_default().iter().any(|(name, found)| {
        *left = left.saturating_sub(1);
        match found.kind {
            _ if *left == 0 => false,
            EntryKind::Folder => holds_python(tree, &found.entry, left),
            EntryKind::File { .. } | EntryKind::Link => is_python_file(&String::from_utf8_lossy(name)),
            EntryKind::Submodule => false,
        }
    })
}

impl<T: ContentTree> FunctionFolder for FolderIn<'_, T> {
    fn holds(&self, path: &str) -> bool {
        // What a link leads to is seen on the node.
        matches!(content::find(self.tree, &self.at(path)), Ok(_) | Err(ContentError::IsLink(_)))
    }

    fn text(&self, path: &str) -> Option<String> {
        content::text(self.tree, &self.at(path), KEYS_BYTES_MAX)
    }
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
                return Ok(Ok(NamedContent { found: Some((path.clone(), found)), keys }));
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
