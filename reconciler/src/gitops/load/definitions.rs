//! State machines that workflows name by `definitionPath`: read from the commit, or the disk, in addition to the
//! manifest.

use std::collections::BTreeMap;
use std::sync::Arc;

use schema::kinds::Resource;
use schema::manifest::{BrokenDocument, Document, ManifestFile, fill_in_definition};
use schema::violation::{Violation, field_path, rules};

use super::Manifests;
use super::files::ContentSource;
use crate::git::content::ContentError;

/// Returns the manifests with the state machines that they name. An error in one keeps the file of its workflow
/// from being applied, and is reported at its place in the state machine's own file. Fails only for reasons outside
/// the commit.
pub(in crate::gitops) fn with_definitions(
    manifests: &Manifests,
    lookup: &mut impl ContentSource,
) -> Result<Manifests, ContentError> {
    let mut resolved = manifests.clone();
    let mut known: BTreeMap<String, Result<Vec<u8>, (String, String)>> = BTreeMap::new();
    for (name, file) in manifests {
        // The usual case.
        if file.documents.iter().all(|document| path_of(document).is_none()) {
            continue;
        }
        let mut file = ManifestFile::clone(file);
        let mut documents = Vec::new();
        for mut document in std::mem::take(&mut file.documents) {
            let Some(path) = path_of(&document).map(str::to_owned) else {
                documents.push(document);
                continue;
            };
            let text = match known.get(&path) {
                Some(text) => text.clone(),
                None => read(&path, lookup)?,
            };
            let wrong = match &text {
                Ok(bytes) => fill_in_definition(&mut document, &path, bytes),
                Err((message, help)) => vec![violation(name, &document, message, help)],
            };
            known.insert(path, text);
            let is_whole = wrong.iter().all(|violation| !violation.is_error());
            file.violations.extend(wrong);
            if is_whole {
                documents.push(document);
            } else {
                let Document { reference, line, .. } = document;
                file.broken.push(BrokenDocument { reference, line, labels: Vec::new() });
            }
        }
        file.documents = documents;
        resolved.insert(Arc::clone(name), Arc::new(file));
    }
    Ok(resolved)
}

fn path_of(document: &Document) -> Option<&str> {
    match &document.object.resource {
        Resource::Workflow(spec) => spec.definition_path.as_deref(),
        _ => None,
    }
}

/// Reads a definition; the inner error is a message and a remedy.
fn read(
    path: &str,
    lookup: &mut impl ContentSource,
) -> Result<Result<Vec<u8>, (String, String)>, ContentError> {
    match lookup.document(path) {
        Ok(Some(bytes)) => Ok(Ok(bytes)),
        Ok(None) => {
            let message = format!("{path} is a folder, or too large for a state machine");
            Ok(Err((message, "name a file in the Amazon States Language, as JSON or YAML".to_owned())))
        }
        Err(error) if error.is_ours() => Err(error),
        Err(error) => Ok(Err((error.to_string(), error.help().to_owned()))),
    }
}

fn violation(file: &str, document: &Document, message: &str, help: &str) -> Violation {
    let place = document.place(&field_path(&["spec", "definitionPath"]));
    let message = format!("spec.definitionPath: {message}");
    let mut violation = Violation::new(&rules::REPO_FILE, file, place, message).with_help(help);
    violation.object = Some(document.reference.to_string());
    violation
}
