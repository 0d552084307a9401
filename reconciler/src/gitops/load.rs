//! Files of a commit to parsed documents; a file whose blob did not change is not parsed again.
//!
//! Reads blobs, decides nothing: what is wrong in a file rides along as its violations.

use std::sync::Arc;
use std::thread;

use git2::{Oid, Repository};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use schema::manifest::{DraftObject, load_file};
use schema::meta::ObjectRef;
use schema::violation::{Severity, Violation};

use crate::git;

/// Parsed files by path. Clones share what did not change.
pub type Manifests = OrdMap<Arc<str>, Arc<ManifestFile>>;

/// One file, parsed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ManifestFile {
    /// Objects that could be read, in order.
    pub documents: Vec<Draft>,
    /// What is wrong or noteworthy in it.
    pub violations: Vec<Violation>,
    /// Some document has a `kind`: the file means to be a manifest.
    pub is_manifest: bool,
}

/// One object as a file says it.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// Kind, namespace, name.
    pub reference: ObjectRef,
    /// What it says.
    pub object: Arc<DraftObject>,
    /// The hash of its resource.
    pub hash: String,
    /// 1-based line of the document's first key.
    pub line: u32,
}

impl ManifestFile {
    /// The file can't be applied.
    pub fn has_errors(&self) -> bool {
        self.violations.iter().any(|violation| violation.severity == Severity::Error)
    }
}

/// Parses one file.
pub fn parse(path: &str, bytes: &[u8]) -> ManifestFile {
    let loaded = load_file(path, bytes);
    let documents = loaded.documents.into_iter().map(|document| {
        let object = document.object;
        Draft {
            reference: object.reference(),
            hash: object.hash(),
            object: Arc::new(object),
            line: document.line,
        }
    });
    ManifestFile {
        documents: documents.collect(),
        violations: loaded.violations,
        is_manifest: loaded.is_manifest,
    }
}

/// Brings `parsed`, which belongs to `before`, up to `now`. Returns how many files were parsed.
pub fn update(
    repository: &Repository,
    before: &OrdMap<Arc<str>, Oid>,
    now: &OrdMap<Arc<str>, Oid>,
    parsed: &Manifests,
) -> Result<(Manifests, usize), git2::Error> {
    let mut manifests = parsed.clone();
    let mut changed = Vec::new();
    for item in before.diff(now) {
        match item {
            DiffItem::Add(path, id) | DiffItem::Update { new: (path, id), .. } => {
                changed.push((Arc::clone(path), *id));
            }
            DiffItem::Remove(path, _) => {
                manifests.remove(path);
            }
        }
    }
    let files = changed.into_iter().map(|(path, id)| git::blob(repository, id).map(|bytes| (path, bytes)));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let count = files.len();
    manifests.extend(parse_all(&files));
    Ok((manifests, count))
}

type Blob = (Arc<str>, Option<Vec<u8>>);

/// Parses on all cores when that pays.
fn parse_all(files: &[Blob]) -> Vec<(Arc<str>, Arc<ManifestFile>)> {
    const PER_THREAD_MIN: usize = 64;
    const THREADS_MAX: usize = 8;
    let parse_one = |(path, bytes): &Blob| {
        let file = bytes.as_ref().map_or_else(|| too_large(path), |bytes| parse(path, bytes));
        (Arc::clone(path), Arc::new(file))
    };
    let cores = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let threads = cores.min(files.len() / PER_THREAD_MIN).max(1);
    if threads == 1 {
        return files.iter().map(parse_one).collect();
    }
    let chunks: Vec<&[Blob]> = files.chunks(files.len().div_ceil(threads)).collect();
    thread::scope(|scope| {
        let run = |chunk: &'_ [Blob]| chunk.iter().map(parse_one).collect::<Vec<_>>();
        let workers: Vec<_> = chunks.into_iter().map(|chunk| scope.spawn(move || run(chunk))).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("the loader does not panic")).collect()
    })
}

fn too_large(path: &str) -> ManifestFile {
    let violation = Violation {
        file: path.to_owned(),
        line: 0,
        column: 0,
        severity: Severity::Error,
        rule: "file-too-large".to_owned(),
        message: "the file is too large to be a manifest".to_owned(),
        help: "split it, or list it in .minik8signore".to_owned(),
        object: None,
    };
    ManifestFile { documents: Vec::new(), violations: vec![violation], is_manifest: true }
}
