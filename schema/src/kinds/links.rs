//! References of an object to other objects, with the field that holds each. Pure.

use super::Resource;
use super::metadata::parse_reference;
pub use super::reference::{FieldLocation, Reference};
use crate::content_refs::{BlobKind, ContentRef, Files, find_content};
use crate::meta::{ObjectMeta, ObjectRef};
use crate::violation::OwnedStep;

/// Returns the objects that `metadata.dependsOn` names. Skips malformed items, which validation reports.
pub fn dependencies(metadata: &ObjectMeta) -> impl Iterator<Item = ObjectRef> {
    metadata.depends_on.iter().filter_map(|text| parse_reference(text, &metadata.namespace).ok())
}

/// Returns every reference of an object to another one.
pub fn references<'a>(metadata: &ObjectMeta, resource: &'a Resource) -> Vec<Reference<'a>> {
    let mut found = resource.references(metadata);
    for (index, text) in metadata.depends_on.iter().enumerate() {
        let Ok(target) = parse_reference(text, &metadata.namespace) else { continue };
        found.push(Reference {
            at: FieldLocation::dependency(index),
            target,
            port: None,
            is_optional: false,
        });
    }
    for used in resource.files() {
        let Some(target) = used.target(metadata) else { continue };
        let at = FieldLocation::Steps(used.field);
        found.push(Reference { at, target, port: None, is_optional: used.is_optional });
    }
    found
}

/// Returns the fields whose line and column the cross-object checks need.
pub(crate) fn position_paths(metadata: &ObjectMeta, resource: &Resource) -> Vec<Vec<OwnedStep>> {
    let mut paths: Vec<_> =
        (0..metadata.depends_on.len()).map(|at| FieldLocation::dependency(at).path()).collect();
    paths.extend(resource.extra_position_paths());
    paths.extend(resource.exclusives(metadata).into_iter().map(|used| used.path));
    for reference in resource.references(metadata) {
        paths.push(reference.at.path());
        paths.extend(reference.port.map(|_| reference.port_path()));
    }
    for used in resource.files() {
        paths.push(used.field);
        paths.extend(used.keys.into_iter().map(|(at, _)| at));
    }
    paths
}

/// Returns the content that running pods depend on, identified by the reference to it and not by its location, so
/// that a secret may move. Leaves out registry logins, which only the next pull needs, and the cluster identity,
/// which is encrypted again for each new node.
pub fn hashed_content<'f>(resource: &Resource, files: &'f Files) -> Vec<(ContentRef, &'f str, bool)> {
    if files.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<_> = resource
        .files()
        .into_iter()
        .filter(|used| !used.is_login && used.content != ContentRef::ClusterIdentity)
        .filter_map(|used| {
            let (_, blob) = find_content(files, &used.content)?;
            // A single file is mounted differently from a folder that holds only this file.
            Some((used.content, blob.digest.as_str(), blob.kind == BlobKind::Folder))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}
