//! A folder or file of the disk to a report: what a push of it would be told, without a cluster.

use std::path::{Path, PathBuf};

use schema::violation::{Violation, rules};
use schema::world::Table;

use super::Report;
use crate::gitops::check::check;
use crate::gitops::folder::{self, FolderError};

/// A report, and where its files are.
#[derive(Debug)]
pub struct Inspection {
    /// What was found.
    pub report: Report,
    /// What the report's paths are relative to.
    pub root: PathBuf,
}

impl Inspection {
    /// The text of a file of the report, for excerpts.
    pub fn text(&self, file: &str) -> Option<String> {
        folder::text(&self.root, file)
    }
}

/// A violation that other files may answer.
fn of_others(violation: &Violation) -> bool {
    [&rules::DANGLING_TARGET, &rules::DEPENDS_ON_QUARANTINED, &rules::SELECTOR_MATCHES_NOTHING]
        .iter()
        .any(|rule| rule.id == violation.rule)
}

/// Reads and checks. Fails only when `path` itself can't be read.
pub fn inspect(path: &Path) -> Result<Inspection, FolderError> {
    let folder = folder::read(path)?;
    // Nothing is live: only what the files say of each other is checked.
    let live = Table::new();
    let checked = check("", &folder.manifests, &live, |_| false);
    let own = folder.manifests.values().flat_map(|file| &file.violations);
    // Of one file alone nobody knows what the others hold.
    let is_known = |violation: &&Violation| !path.is_file() || !of_others(violation);
    let across = checked.quarantined.values().flatten().chain(&checked.remarks).filter(is_known);
    let violations = own.chain(across).chain(&folder.passed_over).cloned();
    let objects = folder.manifests.values().map(|file| file.documents.len()).sum();
    let report = Report::new(violations, objects, checked.manifest_files);
    Ok(Inspection { report, root: folder.root })
}
