//! Validation of paths in the manifest repository, as functions and jobs name them.

use crate::violation::{Findings, Path, rules};

/// Maximum length of a path, Linux' PATH_MAX.
const PATH_MAX_BYTES: usize = 4096;

/// Help text for the path of a folder.
const FOLDER: &str =
    "put the folder into this repository and write its path from the root, for example `functions/hello`";

/// Checks that the path of a folder starts at the root of the repository and stays inside.
pub(super) fn check(path: &str, at: &Path<'_>, findings: &mut Findings) {
    check_with(path, FOLDER, at, findings);
}

/// Same as `check`, with a `help` text for paths that are not folders.
pub(super) fn check_with(path: &str, help: &str, at: &Path<'_>, findings: &mut Findings) {
    let why = if path.is_empty() {
        "Required value: the path is empty".to_owned()
    } else if path.len() > PATH_MAX_BYTES {
        format!("Too long: may not be more than {PATH_MAX_BYTES} bytes")
    } else if path.chars().any(char::is_control) {
        "Invalid value: must not contain control characters".to_owned()
    } else if path.starts_with(['/', '~']) || path.contains('\\') || path.contains("://") {
        format!("Invalid value: `{path}`: must be a path within the repository")
    } else if path.split('/').any(|part| part == "..") {
        format!("Invalid value: `{path}`: must not contain '..'")
    } else if path.split('/').any(|part| part == ".git") {
        format!("Invalid value: `{path}`: Git's own files are no content")
    } else {
        return;
    };
    findings.add(&rules::INVALID_PATH, at, why).help(help);
}
