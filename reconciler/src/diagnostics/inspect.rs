//! Checks folders and files on disk as a push of them would be checked, without a cluster.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use schema::kinds::Resource;
use schema::manifest::{Document, ManifestFile, load_definition};
use schema::snapshot::Table;
use schema::violation::{Violation, rules};

use super::Report;
use super::report::CaseCounts;
use crate::gitops::check::{CommitLimits, Documents, finish, fit, warn_of_addresses};
use crate::gitops::load::contents::with_contents;
use crate::gitops::load::folder::{self, Folder, FolderError};
use crate::gitops::load::python;
use crate::simulate::workflow::{FunctionLimits, cases};

/// A report, and the root of its files.
#[derive(Debug)]
pub struct Inspection {
    pub report: Report,
    pub root: PathBuf,
    /// Named files that hold no manifest.
    pub not_manifests: Vec<String>,
}

impl Inspection {
    pub fn text(&self, file: &str) -> Option<String> {
        folder::text(&self.root, file)
    }
}

/// Runs the test cases of each workflow, in `<workflow>.tests.yaml` of the same folder.
fn workflow_tests(folder: &Folder) -> (Vec<Violation>, CaseCounts) {
    let (mut violations, mut counts) = (Vec::new(), CaseCounts::default());
    let limits = FunctionLimits::from_documents(folder.manifests.values().flat_map(|file| &file.documents));
    let of_repository = OnceCell::new();
    for (file, loaded) in &folder.manifests {
        for document in &loaded.documents {
            let Resource::Workflow(spec) = &document.object.resource else { continue };
            let reference = &document.reference;
            let tests = cases::file_beside(file, &reference.name);
            let Some(text) = folder.text(&tests) else { continue };
            let is_enough = !text.contains("afterSeconds") || limits.cover_all(spec, &reference.namespace);
            let limits = match is_enough {
                true => &limits,
                false => of_repository.get_or_init(|| limits_around(&folder.root).unwrap_or_default()),
            };
            for case in cases::check(&text, reference, spec, limits) {
                if case.is_case() {
                    counts.add(case.failure.is_none());
                }
                violations.extend(case.violations(&tests, reference));
            }
        }
    }
    (violations, counts)
}

/// Time limits of the functions whose manifests are in the repository around a file or folder.
pub fn limits_around(path: &Path) -> Option<FunctionLimits> {
    let folder = folder::read_all(&[folder::repository_around(&path.canonicalize().ok()?)?]).ok()?;
    Some(FunctionLimits::from_documents(folder.manifests.values().flat_map(|file| &file.documents)))
}

/// Reads the file again with its neighbors in the repository, if a workflow in it refers to a definition by name.
pub fn with_definitions(file: &Path, loaded: ManifestFile) -> ManifestFile {
    let is_undefined = |document: &Document| match &document.object.resource {
        Resource::Workflow(spec) => spec.is_undefined(),
        _ => false,
    };
    if !loaded.documents.iter().any(is_undefined) {
        return loaded;
    }
    // Other mistakes in the file were found already.
    let read = folder::read_all(&[file]).ok();
    let beside = read.and_then(|folder| folder.manifests.values().next().map(|file| (**file).clone()));
    beside.unwrap_or(loaded)
}

/// Reads and checks single files whose documents without a `kind` are state machines.
pub fn inspect_definitions(paths: &[impl AsRef<Path>]) -> Result<Inspection, FolderError> {
    let (mut violations, mut objects, mut not_manifests) = (Vec::new(), 0, Vec::new());
    for path in paths {
        let path = path.as_ref();
        let file = path.display().to_string();
        let loaded = load_definition(&file, &folder::read_file(path)?);
        if !loaded.is_manifest {
            not_manifests.push(file);
        }
        objects += loaded.documents.len();
        violations.extend(loaded.violations);
    }
    let report = Report::new(violations, objects, paths.len());
    Ok(Inspection { report, root: PathBuf::new(), not_manifests })
}

/// True for a violation that other files may resolve.
fn depends_on_other_files(violation: &Violation) -> bool {
    [&rules::DANGLING_TARGET, &rules::DEPENDS_ON_QUARANTINED, &rules::SELECTOR_MATCHES_NOTHING]
        .iter()
        .any(|rule| rule.id == violation.rule)
}

/// Reads and checks all of `paths` together. Fails only if one of them can't be read.
pub fn inspect(paths: &[impl AsRef<Path>]) -> Result<Inspection, FolderError> {
    let folder = folder::read_all(paths)?;
    // Nothing is live: check the files only against each other.
    let live = Table::new();
    let (resolved, remarks) = with_contents("", &folder.manifests, &live);
    let documents = Documents::from_manifests("", &resolved, &live);
    let checked = finish(&documents, fit(&documents, "", &live, &CommitLimits::default(), ""));
    let own = resolved.values().flat_map(|file| &file.violations).chain(&remarks);
    // Single files don't tell the content of other files.
    let only_files = paths.iter().all(|path| path.as_ref().is_file());
    let is_known = |violation: &&Violation| !only_files || !depends_on_other_files(violation);
    let across = checked.quarantined.values().flatten().chain(&checked.remarks).filter(is_known);
    let addresses = warn_of_addresses(&folder.manifests, None);
    let (tests, cases) = workflow_tests(&folder);
    let files = folder.manifests.iter().map(|(file, loaded)| (&**file, &**loaded));
    let strays = match only_files {
        true => Vec::new(),
        false => cases::unused(files, |file| folder.text(file)),
    };
    let code = python::check(&folder.manifests, |file| folder.text(file));
    let beside = addresses.iter().chain(&tests).chain(&strays).chain(&code).chain(&folder.passed_over);
    let violations = own.chain(across).chain(beside).cloned();
    let objects = folder.manifests.values().map(|file| file.documents.len()).sum();
    let report = Report { cases, ..Report::new(violations, objects, documents.manifest_files) };
    let Folder { root, manifests, named, .. } = folder;
    let is_none = |file: &String| {
        manifests.get(file.as_str()).is_some_and(|file| !file.is_manifest && file.violations.is_empty())
    };
    Ok(Inspection { report, root, not_manifests: named.into_iter().filter(is_none).collect() })
}
