//! Common parts of simulations: reading a manifest and a trace, printing a report.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use schema::kinds::Resource;
use schema::manifest::{ManifestFile, load_file};
use schema::meta::ObjectRef;
use schema::violation::Severity;
use serde::Serialize;

use crate::args::SimulateFormat;
use crate::cli::error::CliError;
use crate::cli::output::{json, note, print_errors, write_out};
use crate::simulate::TraceError;

/// Largest file that is read.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Longest bar of a chart.
const BAR_MAX: u64 = 20;

/// Kind that a command expects in FILE.
pub(super) struct ExpectedKind {
    /// Name in manifests.
    pub(super) kind: &'static str,
    /// Plural for messages.
    pub(super) plural: &'static str,
    /// Name for `minik8s explain`.
    pub(super) explain: &'static str,
}

/// Reads the single object of a kind from a file. If the file has errors, prints them and returns `None`.
pub(super) fn manifest<T>(
    file: &Path,
    asked: &ExpectedKind,
    of_kind: impl Fn(&Resource) -> Option<Arc<T>>,
) -> Result<Option<Arc<T>>, CliError> {
    Ok(object(file, asked, load_file, of_kind)?.map(|(_, spec)| spec))
}

/// Reads the single object of a kind from a file with `load`. If the file has errors, prints them and returns `None`.
pub(super) fn object<T>(
    file: &Path,
    asked: &ExpectedKind,
    load: impl Fn(&str, &[u8]) -> ManifestFile,
    of_kind: impl Fn(&Resource) -> Option<Arc<T>>,
) -> Result<Option<(ObjectRef, Arc<T>)>, CliError> {
    let text = read(file)?;
    let shown = file.display().to_string();
    let loaded = load(&shown, text.as_bytes());
    if loaded.has_errors() {
        let errors = loaded.violations.iter().filter(|violation| violation.severity == Severity::Error);
        errors.for_each(|violation| print_errors(&violation.to_string()));
        return Ok(None);
    }
    for violation in &loaded.violations {
        note(&violation.to_string());
    }
    let found = loaded.documents.iter();
    let found = found.filter_map(|document| Some((&document.reference, of_kind(&document.object.resource)?)));
    let found: Vec<_> = found.collect();
    let ExpectedKind { kind, plural: several, explain } = asked;
    match found.as_slice() {
        [(reference, spec)] => Ok(Some(((*reference).clone(), Arc::clone(spec)))),
        [] => Err(CliError::Usage(format!(
            "{shown} contains no {kind}; name a file that does, see 'minik8s explain {explain}'"
        ))),
        all => {
            let names: Vec<String> = all.iter().map(|(reference, _)| reference.to_string()).collect();
            let names = names.join(", ");
            Err(CliError::Usage(format!("{shown} contains several {several}: {names}; keep only one")))
        }
    }
}

/// Evaluates a trace. Errors name the file of the trace.
pub(super) fn trace<T>(file: &Path, follow: impl Fn(&str) -> Result<T, TraceError>) -> Result<T, CliError> {
    follow(&read(file)?).map_err(|error| CliError::Usage(format!("{}: {error}", file.display())))
}

pub(super) fn print<T: Serialize>(
    format: SimulateFormat,
    report: &T,
    text: impl Fn(&T) -> String,
) -> Result<ExitCode, CliError> {
    write_out(&match format {
        SimulateFormat::Json => json(report)?,
        SimulateFormat::Text => text(report),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a text file.
pub(super) fn read(path: &Path) -> Result<String, CliError> {
    let usage = |why: String| CliError::Usage(format!("{}: {why}", path.display()));
    let unreadable = |error: std::io::Error| usage(format!("{error}; name a readable file"));
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(usage("it is a folder; name a file".to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(usage(format!("it is larger than {} MiB; make it shorter", BYTES_MAX >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| usage("it is not text in UTF-8; name a text file".to_owned()))
}

/// A bar proportional to `value` out of `most`; every positive value gets at least one mark.
pub(super) fn bar(mark: char, value: u64, most: u64) -> String {
    let length = (u128::from(value) * u128::from(BAR_MAX)).div_ceil(u128::from(most.max(1)));
    std::iter::repeat_n(mark, usize::try_from(length).unwrap_or_default()).collect()
}
