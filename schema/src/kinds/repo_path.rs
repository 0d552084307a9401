//! A folder or file of the manifest repository, as functions and jobs name it.

use crate::violation::{Findings, Path, rules};

/// Longest path, as Linux' PATH_MAX.
const PATH_MAX_BYTES: usize = 4096;

/// What to do about the path of a folder.
const FOLDER: &str =
    "put the folder into this repository and write its path from the root, for example `functions/hello`";

/// Checks the path of a folder that starts at the root of the repository and stays in it.
pub(super) fn check(path: &str, at: &Path<'_>, findings: &mut Findings) {
    check_with(path, FOLDER, at, findings);
}

/// The same of another sort of file; `help` says what to do.
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
