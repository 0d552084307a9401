//! Content that objects use from others: each use becomes a digest in the document that uses it. Pure.
//!
//! Reads parsed files and the live objects, decides the `files` of a document, whether the keys that it names
//! exist, and whether content may change. `links` decides whether the object itself exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schema::content_refs::{BlobKind, BlobRef, ContentUse, KeyUse, object_path};
use schema::kinds::content::Content;
use schema::manifest::limits::OBJECT_MAX_BYTES;
use schema::manifest::{Document, ManifestFile};
use schema::meta::ObjectRef;
use schema::names::is_env_name;
use schema::object::Object;
use schema::snapshot::Table;
use schema::violation::{Rule, Severity, Violation, rules};

use super::Manifests;
use crate::gitops::diff::dotted;
use crate::gitops::prune::is_protected;

/// Inputs of the search for content.
struct ContentScope<'a> {
    source: &'a str,
    manifests: &'a Manifests,
    live: &'a Table<ObjectRef, Object>,
    /// Documents with content, and their files.
    written: BTreeMap<&'a ObjectRef, (&'a Arc<str>, &'a Document)>,
    /// Set if every file can be read, so objects without a document will be removed.
    is_whole: bool,
}

/// Returns the manifests with the content that their documents use, and warnings about it. Errors go into the
/// manifests.
pub(crate) fn with_contents(
    source: &str,
    manifests: &Manifests,
    live: &Table<ObjectRef, Object>,
) -> (Manifests, Vec<Violation>) {
    let mut scope = ContentScope { source, manifests, live, written: BTreeMap::new(), is_whole: true };
    for (file, manifest) in manifests {
        scope.is_whole &= !manifest.has_errors();
        let contents = manifest.documents.iter().filter(|one| one.object.resource.content().is_some());
        scope.written.extend(contents.map(|document| (&document.reference, (file, document))));
    }
    let (mut resolved, mut remarks) = (manifests.clone(), Vec::new());
    let mut used = BTreeSet::new();
    for (name, file) in manifests {
        let uses: Vec<Vec<(ContentUse, ObjectRef)>> = file.documents.iter().map(uses).collect();
        if uses.iter().any(|uses| !uses.is_empty()) {
            let mut file = ManifestFile::clone(file);
            for (at, uses) in uses.into_iter().enumerate() {
                let found = scope.resolve(name, &mut file.documents[at], &uses).into_iter();
                let (errors, warnings): (Vec<_>, Vec<_>) =
                    found.partition(|one| one.severity == Severity::Error);
                file.violations.extend(errors);
                remarks.extend(warnings);
                used.extend(uses.into_iter().map(|(_, target)| target));
            }
            resolved.insert(Arc::clone(name), Arc::new(file));
        }
    }
    for (name, violation) in scope.frozen(used) {
        let mut file = ManifestFile::clone(&resolved[name]);
        file.violations.push(violation);
        resolved.insert(Arc::clone(name), Arc::new(file));
    }
    (resolved, remarks)
}

/// Lists the content of other objects that a document uses.
fn uses(document: &Document) -> Vec<(ContentUse, ObjectRef)> {
    let uses = document.object.resource.files().into_iter();
    let targets = uses.filter_map(|used| {
        let target = used.target(&document.object.metadata)?;
        Some((used, target))
    });
    targets.collect()
}

impl<'a> ContentScope<'a> {
    /// Finds the content that an object will have, and its file.
    fn find(&self, target: &ObjectRef, is_optional: bool) -> Option<(&Content, &str)> {
        if let Some((file, document)) = self.written.get(target) {
            return Some((document.object.resource.content()?.0, file));
        }
        let live = &self.live.get(target)?.value;
        let goes = live.provenance.source == self.source && self.is_whole && !is_protected(&live.metadata);
        // The check of links reports a required object that goes.
        let found = Some((live.resource.content()?.0, live.provenance.file.as_str()));
        found.filter(|_| !(goes && is_optional))
    }

    /// Adds the content that a document uses to its files, and returns violations for what can't be used.
    fn resolve(
        &self,
        file: &str,
        document: &mut Document,
        uses: &[(ContentUse, ObjectRef)],
    ) -> Vec<Violation> {
        let mut problems = Vec::new();
        for (used, target) in uses {
            let Some((content, home)) = self.find(target, used.is_optional) else { continue };
            let blob = BlobRef {
                digest: content.digest.clone(),
                size: content.size,
                kind: BlobKind::Object,
                texts: texts(content, uses.iter().filter(|(_, other)| other == target)),
                source: String::new(),
            };
            document.files.insert(object_path(home, target), blob);
            for (place, key) in &used.keys {
                problems.extend(unusable_reason(key, used, target, content).map(|(rule, message, help)| {
                    let message = format!("{}: {message}", dotted(place));
                    violation(rule, file, document, place, message).with_help(help)
                }));
            }
        }
        if !uses.is_empty() {
            let object = &document.object;
            document.hash = Object::hash_of(&object.metadata, &object.resource, &document.files);
            problems.extend(too_large(file, document));
        }
        problems
    }

    /// Finds changes of immutable content in use, by the files that would make them.
    fn frozen(&self, mut used: BTreeSet<ObjectRef>) -> Vec<(&'a Arc<str>, Violation)> {
        let changed = |(_, document): &&(&Arc<str>, &Document)| {
            let kept = self.live.get(&document.reference).and_then(|live| live.value.resource.content());
            kept.is_some_and(|kept| kept.1 && document.object.resource.content() != Some(kept))
        };
        let changed: Vec<_> = self.written.values().filter(changed).collect();
        if !changed.is_empty() {
            let documents = self.manifests.values().flat_map(|file| &file.documents);
            let documented: BTreeSet<_> = documents.map(|document| &document.reference).collect();
            // Objects of other sources, and own ones that stay because a file can't be read.
            let stays = |live: &Object| live.provenance.source != self.source || !self.is_whole;
            let others = self.live.iter().filter(|(id, live)| !documented.contains(id) && stays(&live.value));
            used.extend(others.flat_map(|(_, live)| {
                let (metadata, files) = (&live.value.metadata, live.value.resource.files());
                files.into_iter().filter_map(|one| one.target(metadata)).collect::<Vec<_>>()
            }));
        }
        let in_use = changed.into_iter().filter(|(_, document)| used.contains(&document.reference));
        let complain = |(file, document): &(&'a Arc<str>, &Document)| {
            let message = format!("{} is immutable and in use: its content can't change", document.reference);
            let found = violation(&rules::IMMUTABLE, file, document, &[], message);
            (*file, found.with_help("give the new content a new name, and reference that name"))
        };
        in_use.map(complain).collect()
    }
}

/// Returns the keys that become variables, among those that the uses of one object name: they are stored in each
/// user's record.
fn texts<'w>(content: &Content, uses: impl Iterator<Item = &'w (ContentUse, ObjectRef)>) -> Vec<String> {
    let mut texts = BTreeSet::new();
    for (_, key) in uses.flat_map(|(used, _)| &used.keys) {
        match key {
            KeyUse::Texts(_) => texts.extend(content.data.keys()),
            KeyUse::Text(key) => texts.extend(content.data.get_key_value(key).map(|(key, _)| key)),
            KeyUse::File(_) => {}
        }
    }
    texts.into_iter().cloned().collect()
}

/// Reports an object that does not fit under one key, with all references to the content that it uses.
pub(super) fn too_large(file: &str, document: &Document) -> Option<Violation> {
    let written = (&document.object.metadata, &document.object.resource, &document.files);
    let bytes = serde_json::to_vec(&written).map_or(usize::MAX, |json| json.len());
    (bytes > OBJECT_MAX_BYTES).then(|| {
        let message = format!(
            "the object has {bytes} bytes as JSON, including the paths and keys of the content it uses; \
             the limit is {OBJECT_MAX_BYTES}"
        );
        let help = "mount a ConfigMap as a volume instead of envFrom, or one folder instead of many files";
        violation(&rules::TOO_LARGE, file, document, &[], message).with_help(help)
    })
}

/// Explains why the content can't satisfy a use; `None` if it can.
fn unusable_reason(
    key: &KeyUse,
    used: &ContentUse,
    target: &ObjectRef,
    content: &Content,
) -> Option<(&'static Rule, String, String)> {
    let known = || {
        let keys: Vec<&str> =
            content.data.keys().chain(content.binary_data.keys()).map(String::as_str).collect();
        if keys.is_empty() { "it is empty".to_owned() } else { format!("its keys: {}", keys.join(", ")) }
    };
    match key {
        KeyUse::File(key) if !used.is_optional && !content.has_key(key) => {
            Some((&rules::DANGLING_TARGET, format!("{target} has no key `{key}`"), known()))
        }
        KeyUse::Text(key) if content.binary_data.contains_key(key) => {
            let message = format!("key `{key}` of {target} is binary, so it can't be a variable");
            Some((&rules::DANGLING_TARGET, message, "mount it as a file".to_owned()))
        }
        KeyUse::Text(key) if !used.is_optional && !content.has_key(key) => {
            Some((&rules::DANGLING_TARGET, format!("{target} has no key `{key}`"), known()))
        }
        KeyUse::Texts(prefix) => {
            let names = content.data.keys().map(|key| format!("{prefix}{key}"));
            let skipped: Vec<String> = names.filter(|name| !is_env_name(name)).collect();
            (!skipped.is_empty()).then(|| {
                let message = format!("not valid as variable names, so left out: {}", skipped.join(", "));
                (&rules::SKIPPED_KEY, message, "rename the keys, or mount them as files".to_owned())
            })
        }
        KeyUse::File(_) | KeyUse::Text(_) => None,
    }
}

fn violation(
    rule: &'static Rule,
    file: &str,
    document: &Document,
    place: &[schema::violation::OwnedStep],
    message: String,
) -> Violation {
    let mut violation = Violation::new(rule, file, document.place(place), message);
    violation.object = Some(document.reference.to_string());
    violation
}
