//! Who may have an object: the present owner keeps it, the error is the newcomer's. Pure.

use std::sync::Arc;

use schema::violation::{Rule, Violation, rules};

use super::super::load::{ManifestFile, Manifests};
use super::{Claim, Live, problem};

/// The claims that lose, and why.
pub(super) fn judge<'a>(
    source: &str,
    rivals: &[Claim<'a>],
    manifests: &Manifests,
) -> Vec<(&'a Arc<str>, Violation)> {
    let owner = rivals[0].live.map(|live| &live.value);
    if let Some(other) =
        owner.map(|object| &object.provenance).filter(|provenance| provenance.source != source)
    {
        let message = format!("source `{}` owns it ({}:{})", other.source, other.file, other.line);
        let help = format!("remove it here, or from source `{}` first", other.source);
        return rivals
            .iter()
            .map(|claim| (claim.file, violation(claim, &rules::OWNED_BY_OTHER_SOURCE, &message, &help)))
            .collect();
    }
    let home = owner.map(|object| object.provenance.file.as_str());
    // Nearly all: nobody else wants it.
    if rivals.len() == 1 && home.is_none_or(|home| home == &**rivals[0].file) {
        return Vec::new();
    }
    // A home that can't be read may still hold the object: nobody takes it over meanwhile.
    if let Some(home) = home.filter(|home| is_unreadable(home, manifests)) {
        let strangers = rivals.iter().filter(|claim| &**claim.file != home);
        let message = format!("the object belongs to {home}, which can't be read at this commit");
        let help = format!("fix {home} first");
        return strangers
            .map(|claim| (claim.file, violation(claim, &rules::OWNER_UNREADABLE, &message, &help)))
            .collect();
    }
    if rivals.len() == 1 {
        return Vec::new();
    }
    let at_home = |claim: &Claim<'_>| home == Some(&**claim.file);
    let Some(winner) = rivals.iter().min_by_key(|claim| (!at_home(claim), claim.file, claim.draft.line))
    else {
        return Vec::new();
    };
    let message = format!("the same object is at {}:{}", winner.file, winner.draft.line);
    let losers = rivals.iter().filter(|claim| !std::ptr::eq(*claim, winner));
    losers
        .map(|claim| {
            (claim.file, violation(claim, &rules::DUPLICATE_OBJECT, &message, "keep one of the two"))
        })
        .collect()
}

/// Files that live objects came from, and that are still there but say nothing any more: truncated
/// or emptied by mistake. Whoever means it removes the file.
pub(super) fn vanished(manifests: &Manifests, absent: &[Live<'_>]) -> Vec<(Arc<str>, Violation)> {
    let mut found = Vec::new();
    for (object, live) in absent {
        let Some(file) = silent_home(&live.value.provenance.file, manifests) else { continue };
        let violation = Violation {
            file: file.to_string(),
            line: 0,
            column: 0,
            severity: rules::MANIFEST_VANISHED.severity,
            rule: rules::MANIFEST_VANISHED.id.to_owned(),
            message: format!("{} held {object} and is no longer a manifest", live.value.provenance.file),
            help: "put it back, or remove the file if the object is to go".to_owned(),
            object: Some(object.to_string()),
        };
        found.push((Arc::clone(file), violation));
    }
    found
}

/// Files that live objects came from, and of which only the beginning is there.
pub(super) fn truncated(manifests: &Manifests, absent: &[Live<'_>]) -> Vec<(Arc<str>, Violation)> {
    let mut found = Vec::new();
    for (object, live) in absent {
        let home = manifests.get_key_value(live.value.provenance.file.as_str());
        // What is wrong in it says more.
        let is_truncated = |file: &ManifestFile| file.is_truncated && !file.has_errors();
        let Some((file, _)) = home.filter(|(_, file)| is_truncated(file)) else { continue };
        let message =
            format!("{object} is missing, and {file} is the beginning of what it was, cut within a document");
        let violation = Violation::of(&rules::FILE_CUT_SHORT, &**file, (0, 0), message)
            .with_help("push the whole file; if it is to end there, add a line to it, for example a comment")
            .about(object);
        found.push((Arc::clone(file), violation));
    }
    found
}

/// The file, or a folder around it, that is there and says nothing.
fn silent_home<'a>(file: &str, manifests: &'a Manifests) -> Option<&'a Arc<str>> {
    let folders = file.match_indices('/').map(|(at, _)| &file[..at]);
    let mut places = std::iter::once(file).chain(folders).filter_map(|path| manifests.get_key_value(path));
    places.find(|(_, manifest)| !manifest.is_manifest).map(|(path, _)| path)
}

fn is_unreadable(file: &str, manifests: &Manifests) -> bool {
    manifests.get(file).is_some_and(|manifest| manifest.has_errors())
}

fn violation(claim: &Claim<'_>, rule: &'static Rule, message: &str, help: &str) -> Violation {
    let message = format!("{}: {message}", claim.draft.reference);
    problem(claim, rule, (claim.draft.line, 1), message, help)
}
