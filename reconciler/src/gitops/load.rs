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

/// Files are parsed as soon as so much of them is in memory: 10,000 pods are half of it, and a
/// repository may hold gigabytes of JSON that is no manifest.
const BATCH_MIN_BYTES: usize = 16 * 1024 * 1024;

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
    let count = changed.len();
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    for (path, id) in changed {
        let blob = git::blob(repository, id)?;
        batch_bytes += blob.as_ref().map_or(0, Vec::len);
        batch.push((path, blob));
        if batch_bytes >= BATCH_MIN_BYTES {
            manifests.extend(parse_all(&batch));
            batch.clear();
            batch_bytes = 0;
        }
    }
    manifests.extend(parse_all(&batch));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_several_batches_are_all_parsed_and_one_too_large_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::init_bare(dir.path()).unwrap();
        let blob = |bytes: usize| repository.blob(&vec![b'#'; bytes]).unwrap();
        let mut now = OrdMap::new();
        for number in 0..12 {
            now.insert(Arc::from(format!("data{number}.yaml")), blob(3 * 1024 * 1024 + number));
        }
        now.insert(Arc::from("huge.yaml"), blob(5 * 1024 * 1024));
        let (manifests, count) = update(&repository, &OrdMap::new(), &now, &Manifests::new()).unwrap();
        assert_eq!((manifests.len(), count), (13, 13));
        assert_eq!(manifests["huge.yaml"].violations[0].rule, "file-too-large");
        assert_eq!(manifests["data0.yaml"].violations[0].rule, "too-large");
    }
}
