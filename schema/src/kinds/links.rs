//! Which objects an object names, and by which field. Pure.

use super::Resource;
use super::metadata::parse_reference;
pub use super::reference::{FieldAt, Reference};
use crate::files::{BlobKind, ContentRef, Files, of_content};
use crate::meta::{ObjectMeta, ObjectRef};
use crate::violation::OwnedStep;

/// The objects that `metadata` says to wait for. Malformed items, which the kind's own check reports, are
/// skipped.
pub fn dependencies(metadata: &ObjectMeta) -> impl Iterator<Item = ObjectRef> {
    metadata.depends_on.iter().filter_map(|text| parse_reference(text, &metadata.namespace).ok())
}

/// Every field of an object that names another one.
pub fn references<'a>(metadata: &ObjectMeta, resource: &'a Resource) -> Vec<Reference<'a>> {
    let mut found = resource.references(metadata);
    for (index, text) in metadata.depends_on.iter().enumerate() {
        let Ok(target) = parse_reference(text, &metadata.namespace) else { continue };
        found.push(Reference { at: FieldAt::dependency(index), target, port: None, is_optional: false });
    }
    for used in resource.files() {
        let Some(target) = used.target(metadata) else { continue };
        let at = FieldAt::Steps(used.at);
        found.push(Reference { at, target, port: None, is_optional: used.is_optional });
    }
    found
}

/// Fields whose line and column the checks across objects need.
pub(crate) fn places(metadata: &ObjectMeta, resource: &Resource) -> Vec<Vec<OwnedStep>> {
    let mut paths: Vec<_> = (0..metadata.depends_on.len()).map(|at| FieldAt::dependency(at).path()).collect();
    paths.extend(resource.further_places());
    paths.extend(resource.exclusives(metadata).into_iter().map(|used| used.path));
    for reference in resource.references(metadata) {
        paths.push(reference.at.path());
        paths.extend(reference.port.map(|_| reference.port_path()));
    }
    for used in resource.files() {
        paths.push(used.at);
        paths.extend(used.keys.into_iter().map(|(at, _)| at));
    }
    paths
}

/// The content that running pods depend on, by what names it: not by where it lies, so that a secret
/// may move, without registry logins, which only the next pull needs, and without the cluster's identity, which is
/// encrypted anew for each new node.
pub fn in_hash<'f>(resource: &Resource, files: &'f Files) -> Vec<(ContentRef, &'f str, bool)> {
    if files.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<_> = resource
        .files()
        .into_iter()
        .filter(|used| !used.is_login && used.what != ContentRef::ClusterIdentity)
        .filter_map(|used| {
            let (_, blob) = of_content(files, &used.what)?;
            // A file is mounted otherwise than a folder with this file alone.
            Some((used.what, blob.digest.as_str(), blob.kind == BlobKind::Folder))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}
