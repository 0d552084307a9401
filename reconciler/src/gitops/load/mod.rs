//! Parses the files of a commit; a file whose blob did not change is not parsed again.
//!
//! Reads blobs, decides nothing: errors in a file travel with it as its violations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use git2::{Oid, Repository};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use schema::manifest::{
    DraftObject, KUSTOMIZATION_NAMES, Layout, ManifestFile, load_file, load_file_with_layout,
};
use schema::violation::{Violation, rules};

pub mod contents;
pub(super) mod definitions;
pub mod files;
pub mod folder;
pub(crate) mod python;
pub mod spread;
pub mod truncated;

use crate::git::{self, ReadError};
use spread::spread;

/// Size at which a batch of files ends, which bounds their memory: 10,000 pods are half of it, and a repository may
/// hold gigabytes of JSON that is no manifest.
const BATCH_MIN_BYTES: usize = 16 * 1024 * 1024;

/// Limits on what is kept of a commit in memory.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Documents of all files.
    documents: usize,
    /// Errors and notes of all files.
    violations: usize,
}

const LIMITS: Limits = Limits { documents: 100_000, violations: 250_000 };

/// Parsed files by path. Clones share unchanged files.
pub type Manifests = OrdMap<Arc<str>, Arc<ManifestFile>>;

/// Adds the entries that a commit's listing skipped as files without documents: an object whose file became a link,
/// or whose folder became a submodule, is not known to be gone. `before` are the notes already in `manifests`.
pub fn with_passed_over(mut manifests: Manifests, before: &[Violation], now: &[Violation]) -> Manifests {
    let still: BTreeSet<&Violation> = now.iter().collect();
    for note in before.iter().filter(|note| !still.contains(note)) {
        if manifests.get(&*note.file).is_some_and(|file| file.violations == [(*note).clone()]) {
            manifests.remove(&*note.file);
        }
    }
    for note in now {
        if !manifests.contains_key(&*note.file) {
            let file = ManifestFile { violations: vec![note.clone()], ..ManifestFile::default() };
            manifests.insert(Arc::from(&*note.file), Arc::new(file));
        }
    }
    manifests
}

/// Puts the files that a kustomization would change into quarantine, each with the error of that kustomization and no
/// other: what it makes of them is not known, and alone they may lack what it adds. Their objects stay as they are.
pub fn with_kustomizations(manifests: &Manifests) -> Manifests {
    let changing = manifests.iter().filter(|(_, file)| file.kustomization.is_some() && file.has_errors());
    let mut seen: BTreeSet<&Arc<str>> = changing.clone().map(|(path, _)| path).collect();
    let own_error = |file: &ManifestFile| -> Vec<Violation> {
        let found = file.violations.iter().filter(|violation| violation.rule == rules::KUSTOMIZATION.id);
        found.cloned().collect()
    };
    let mut queue: Vec<_> = changing.map(|(path, file)| (path, file, own_error(file))).collect();
    let mut held = manifests.clone();
    // Each file and each kustomization once, however many refer to it.
    while let Some((path, file, why)) = queue.pop() {
        let names = file.kustomization.iter().flat_map(|named| &named.files);
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let is_unread = file.kustomization.as_ref().is_some_and(|named| named.is_unread);
        let below = manifests.keys().filter(|path| is_unread && is_below(path, folder));
        for named in names.map(|name| &**name).chain(below.map(|path| &**path)) {
            let in_folder = KUSTOMIZATION_NAMES.map(|name| format!("{named}/{name}"));
            let in_folder = in_folder.iter().map(|path| path.trim_start_matches('/'));
            let found =
                std::iter::once(named).chain(in_folder).find_map(|path| manifests.get_key_value(path));
            match found.filter(|(path, _)| seen.insert(path)) {
                Some((path, file)) if file.kustomization.is_some() => queue.push((path, file, why.clone())),
                Some((path, file)) if file.is_manifest => {
                    let words = words(file);
                    let file = ManifestFile {
                        violations: why.clone(),
                        words,
                        is_manifest: true,
                        ..ManifestFile::default()
                    };
                    held.insert(Arc::clone(path), Arc::new(file));
                }
                _ => {}
            }
        }
    }
    held
}

/// True for a file in or below a folder; the top folder is empty.
fn is_below(path: &str, folder: &str) -> bool {
    folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns the names and labels in a file: its objects themselves are unknown.
fn words(file: &ManifestFile) -> BTreeSet<String> {
    let of_pods = file.documents.iter().filter_map(|document| {
        let DraftObject { metadata, resource, .. } = &*document.object;
        Some(resource.pod(metadata)?.labels)
    });
    let labels = of_pods.chain(file.broken.iter().flat_map(|broken| &broken.labels)).flatten();
    let labels = labels.flat_map(|(key, value)| [key, value]);
    let broken = file.broken.iter().map(|broken| &broken.reference);
    let objects = file.documents.iter().map(|document| &document.reference).chain(broken);
    let names = objects.map(|object| &object.name);
    names.chain(labels).chain(&file.words).cloned().collect()
}

/// Blob ids by path.
type Blobs = OrdMap<Arc<str>, Oid>;

/// Updates `parsed` from `before` to `now`. Also returns the number of parsed files.
pub fn update(
    repository: &Repository,
    before: &Blobs,
    now: &Blobs,
    parsed: &Manifests,
) -> Result<(Manifests, usize), ReadError> {
    update_within(repository, (before, now), parsed, LIMITS, None)
}

/// Positions of the fields of files, by path.
pub type Layouts = BTreeMap<Arc<str>, Layout>;

/// Works like [`update`], and keeps the positions of fields for the first `most` bytes of parsed files.
pub fn update_with_layouts(
    repository: &Repository,
    before: &Blobs,
    now: &Blobs,
    parsed: &Manifests,
    most: usize,
) -> Result<(Manifests, Layouts), ReadError> {
    let mut room = LayoutBudget { bytes: most, layouts: Layouts::new() };
    let (manifests, _) = update_within(repository, (before, now), parsed, LIMITS, Some(&mut room))?;
    Ok((manifests, room.layouts))
}

/// Budget for layouts.
struct LayoutBudget {
    /// Bytes of text that may still be kept as layouts.
    bytes: usize,
    layouts: Layouts,
}

impl LayoutBudget {
    /// Reserves room for a file of this size; returns true if its layout is kept.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.unwrap_or(self.bytes);
        left.is_some()
    }
}

fn update_within(
    repository: &Repository,
    (before, now): (&Blobs, &Blobs),
    parsed: &Manifests,
    limits: Limits,
    mut room: Option<&mut LayoutBudget>,
) -> Result<(Manifests, usize), ReadError> {
    let mut manifests = parsed.clone();
    let mut changed = Vec::new();
    for item in before.diff(now) {
        match item {
            DiffItem::Add(path, id) | DiffItem::Update { new: (path, id), .. } => {
                manifests.remove(path);
                changed.push((Arc::clone(path), *id));
            }
            DiffItem::Remove(path, _) => {
                manifests.remove(path);
            }
        }
    }
    let count = changed.len();
    // A blob may appear under many paths, so the limit applies to what is kept, not to what is fetched.
    let mut kept = KeptTotals::default();
    kept.count(manifests.values(), limits)?;
    let mut changed = changed.into_iter();
    while changed.len() > 0 {
        let files = read_batch(repository, &mut changed, room.as_deref_mut())?;
        kept.add(&mut manifests, files, limits)?;
    }
    Ok((manifests, count))
}

/// Totals of what is kept already.
#[derive(Default)]
struct KeptTotals {
    documents: usize,
    violations: usize,
}

impl KeptTotals {
    fn add(&mut self, to: &mut Manifests, files: Vec<ParsedFile>, limits: Limits) -> Result<(), ReadError> {
        self.count(files.iter().map(|(_, file)| file), limits)?;
        to.extend(files);
        Ok(())
    }

    fn count<'a>(
        &mut self,
        files: impl Iterator<Item = &'a Arc<ManifestFile>>,
        limits: Limits,
    ) -> Result<(), ReadError> {
        for file in files {
            self.documents += file.documents.len();
            self.violations += file.violations.len();
        }
        if self.documents > limits.documents {
            return Err(ReadError::TooMuch { what: "objects", most: limits.documents });
        }
        if self.violations > limits.violations {
            return Err(ReadError::TooMuch { what: "errors and notes", most: limits.violations });
        }
        Ok(())
    }
}

/// A parsed file and its path.
type ParsedFile = (Arc<str>, Arc<ManifestFile>);

/// A file and its bytes; `None` if it is too large.
pub(super) type Blob = (Arc<str>, Option<Vec<u8>>);

/// Reads the next batch of files, while other threads parse those read before.
fn read_batch(
    repository: &Repository,
    files: &mut std::vec::IntoIter<(Arc<str>, Oid)>,
    mut room: Option<&mut LayoutBudget>,
) -> Result<Vec<ParsedFile>, ReadError> {
    let (mut bytes, mut failed) = (0, None);
    let expected = files.len();
    let feed = std::iter::from_fn(|| {
        let (path, id) = if bytes < BATCH_MIN_BYTES { files.next()? } else { return None };
        let blob = git::blob(repository, id).map_err(|error| failed = Some(error)).ok()?;
        let size = blob.as_ref().map_or(0, Vec::len);
        bytes += size;
        let keeps = room.as_deref_mut().is_some_and(|room| room.take(size));
        Some(((path, blob), keeps))
    });
    let read = spread(expected, feed, |(blob, keeps): (Blob, bool)| match &blob {
        (path, Some(bytes)) if keeps => {
            let (loaded, layout) = load_file_with_layout(path, bytes);
            ((Arc::clone(path), Arc::new(loaded)), Some(layout))
        }
        blob => (parse_one(blob), None),
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    let keep = |(file, layout): (ParsedFile, Option<Layout>)| {
        if let (Some(room), Some(layout)) = (room.as_deref_mut(), layout) {
            room.layouts.insert(Arc::clone(&file.0), layout);
        }
        file
    };
    Ok(read.into_iter().map(keep).collect())
}

/// Parses on all cores if worthwhile.
pub(super) fn parse_all(files: &[Blob]) -> Vec<ParsedFile> {
    spread(files.len(), files.iter(), parse_one)
}

fn parse_one((path, bytes): &Blob) -> ParsedFile {
    let file = bytes.as_ref().map_or_else(|| too_large(path), |bytes| load_file(path, bytes));
    (Arc::clone(path), Arc::new(file))
}

/// Substitute for a file that was not read: nothing of its size is a manifest.
pub(super) fn too_large(path: &str) -> ManifestFile {
    let message = "the file is too large to be a manifest";
    let violation = Violation::new(&rules::FILE_TOO_LARGE, path, (0, 0), message)
        .with_help("split it, or list it in .minik8signore");
    ManifestFile { violations: vec![violation], is_manifest: true, ..ManifestFile::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_several_batches_are_all_parsed_and_one_too_large_is_reported() {
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

    // Seen red with each file loaded whatever its kustomization says.
    #[test]
    fn what_a_kustomization_would_change_is_held_with_one_finding() {
        let pod = |name: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}-x}}}}\nspec: {{containers: [{{name: a, image: b}}]}}\n"
            )
        };
        let changing =
            "resources: [../base, web.yaml, ../gone]\npatches: [{path: patch.yaml}]\nnamespace: shop\n";
        let files = [
            ("base/kustomization.yaml", "resources: [pod.yaml, ../common]\n".to_owned()),
            ("base/pod.yaml", pod("pod")),
            ("base/unlisted.yaml", pod("unlisted")),
            ("common/Kustomization", "resources: [../base, service.yaml]\n".to_owned()),
            ("common/service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: service}\n".to_owned()),
            ("dev/kustomization.yaml", changing.to_owned()),
            (
                "dev/patch.yaml",
                "apiVersion: v1\nkind: Pod\nmetadata: {name: pod}\nspec: {nodeName: a}\n".to_owned(),
            ),
            ("dev/web.yaml", pod("web")),
            ("lists/kustomization.yaml", "resources: [pod.yaml]\n".to_owned()),
            ("lists/pod.yaml", pod("listed")),
            ("prod/kustomization.yaml", changing.to_owned()),
            ("prod/web.yaml", pod("web")),
        ];
        let load =
            |(path, text): &(&str, String)| (Arc::from(*path), Arc::new(load_file(path, text.as_bytes())));
        let manifests: Manifests = files.iter().map(load).collect();
        let held = with_kustomizations(&manifests);
        let (mut errors, mut objects) = (BTreeMap::new(), Vec::new());
        for (path, file) in &held {
            let of_file = file.violations.iter().filter(|violation| violation.is_error());
            errors.extend(
                of_file.map(|violation| (&**path, format!("{}: {}", violation.file, violation.rule))),
            );
            objects.extend(file.documents.iter().map(|document| document.reference.name.as_str()));
        }
        let (dev, prod) = ("dev/kustomization.yaml: kustomization", "prod/kustomization.yaml: kustomization");
        let wanted = [
            ("base/pod.yaml", prod),
            ("common/service.yaml", prod),
            ("dev/kustomization.yaml", dev),
            ("dev/patch.yaml", dev),
            ("dev/web.yaml", dev),
            ("prod/kustomization.yaml", prod),
            ("prod/web.yaml", prod),
        ];
        let wanted = wanted.map(|(path, error)| (path, error.to_owned()));
        assert_eq!(errors, BTreeMap::from(wanted));
        assert_eq!(objects, ["unlisted", "listed"]);
        for word in ["pod", "app", "pod-x"] {
            assert!(held["base/pod.yaml"].words.contains(word), "{word}");
        }
    }

    // Seen red with the failure dropped.
    #[test]
    fn a_file_that_cannot_be_read_fails_all_and_is_not_taken_for_absent() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::init_bare(dir.path()).unwrap();
        let blob = repository.blob(b"# nothing").unwrap();
        let mut now: OrdMap<Arc<str>, Oid> =
            (0..300).map(|number| (Arc::from(format!("{number:03}.yaml")), blob)).collect();
        assert_eq!(update(&repository, &OrdMap::new(), &now, &Manifests::new()).unwrap().1, 300);
        now.insert(Arc::from("150.yaml"), Oid::from_bytes(&[7; 20]).unwrap());
        let read = update(&repository, &OrdMap::new(), &now, &Manifests::new());
        assert!(matches!(read, Err(ReadError::Git(_))), "{read:?}");
    }

    #[test]
    fn one_blob_under_many_paths_is_bounded_by_what_it_makes() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::init_bare(dir.path()).unwrap();
        let pod =
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n";
        let (pod, broken) =
            (repository.blob(pod.as_bytes()).unwrap(), repository.blob(b"kind: Pdo\n").unwrap());
        let files = |id: Oid, count: usize| -> OrdMap<Arc<str>, Oid> {
            (0..count).map(|n| (Arc::from(format!("{n:03}.yaml")), id)).collect()
        };
        let limits = Limits { documents: 10, violations: 10 };
        let (none, nothing) = (OrdMap::new(), Manifests::new());
        for id in [pod, broken] {
            let read = |before, now, parsed| update_within(&repository, (before, now), parsed, limits, None);
            let ten = files(id, 10);
            let (parsed, _) = read(&none, &ten, &nothing).unwrap();
            // Newly parsed files replace earlier ones.
            assert_eq!(read(&ten, &ten, &parsed).unwrap().1, 0);
            let eleven = files(id, 11);
            for (before, parsed) in [(&none, &nothing), (&ten, &parsed)] {
                assert!(matches!(read(before, &eleven, parsed), Err(ReadError::TooMuch { most: 10, .. })));
            }
        }
    }
}
