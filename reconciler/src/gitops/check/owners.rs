//! Ownership of objects: the present owner keeps an object, the error is the newcomer's. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schema::kinds::{Pods, Resource};
use schema::manifest::ManifestFile;
use schema::meta::{ObjectMeta, ObjectRef, StringMap, matches_service_selector};
use schema::object::Object;
use schema::records::AllowedObjects;
use schema::snapshot::Table;
use schema::violation::{Rule, Violation, field_path, rules};

use super::super::load::Manifests;
use super::after_apply::Scene;
use super::declaration::problem;
use super::{Declaration, LiveObject};

/// A document that names an object, usable or not.
#[derive(Clone, Copy)]
pub(super) struct Rival<'a> {
    file: &'a Arc<str>,
    pub(super) reference: &'a ObjectRef,
    line: u32,
    live: Option<&'a Object>,
}

/// Returns all documents that name objects, by object; those of one object in the order of files.
pub(super) fn rivals<'a>(
    declarations: &[Declaration<'a>],
    manifests: &'a Manifests,
    live: &'a Table<ObjectRef, Object>,
) -> Vec<Rival<'a>> {
    let of_declared = |declared: &Declaration<'a>| Rival {
        file: declared.file,
        reference: &declared.document.reference,
        line: declared.document.line,
        live: declared.live.map(|live| &live.value),
    };
    let broken = manifests.iter().flat_map(|(file, manifest)| {
        manifest.broken.iter().map(move |broken| Rival {
            file,
            reference: &broken.reference,
            line: broken.line,
            live: live.get(&broken.reference).map(|live| &live.value),
        })
    });
    let mut rivals: Vec<Rival<'a>> = declarations.iter().map(of_declared).collect();
    let sorted = rivals.len();
    rivals.extend(broken);
    if rivals.len() > sorted {
        rivals.sort_by_key(|rival| (rival.reference, rival.file, rival.line));
    }
    rivals
}

/// Reports the objects that the reconciler does not allow to the source.
pub(super) fn allowed(scene: &mut Scene<'_>, allow: &AllowedObjects) {
    if *allow == AllowedObjects::default() {
        return;
    }
    for declared in scene.declarations {
        let ObjectRef { kind, namespace, .. } = &declared.document.reference;
        let is_kind = allow.kinds.contains(kind);
        let is_in = allow.namespaces.is_empty() || allow.namespaces.contains(namespace);
        let (field, message) = if !allow.kinds.is_empty() && !is_kind {
            let kinds: Vec<String> = allow.kinds.iter().map(ToString::to_string).collect();
            (&["kind"][..], format!("a {kind}; its `allow.kinds` are {}", kinds.join(", ")))
        } else if kind.is_cluster_scoped() && !allow.namespaces.is_empty() && !is_kind {
            (
                &["kind"][..],
                format!("a {kind}, which is in none of its `allow.namespaces`, and not in its `allow.kinds`"),
            )
        } else if !kind.is_cluster_scoped() && !is_in {
            let namespaces = allow.namespaces.join(", ");
            let field = &["metadata", "namespace"][..];
            (field, format!("namespace `{namespace}`; its `allow.namespaces` are {namespaces}"))
        } else {
            continue;
        };
        let message = format!("Forbidden: source `{}` may not hold {message}", scene.source);
        let help = "move the object to another source, or have the list of --sources changed";
        let place = declared.document.place(&field_path(field));
        scene.add(declared, problem(declared, &rules::NOT_ALLOWED, place, message, help));
    }
}

/// Returns the losers among the rivals for one object, with the reason.
pub(super) fn judge<'a>(
    source: &str,
    rivals: &[Rival<'a>],
    manifests: &Manifests,
) -> Vec<(&'a Arc<str>, Violation)> {
    let owner = rivals[0].live;
    let blame = |losers: &mut dyn Iterator<Item = &Rival<'a>>, rule, message: &str, help: &str| {
        losers.map(|rival| (rival.file, rival.violation(rule, message, help))).collect::<Vec<_>>()
    };
    if let Some(other) =
        owner.map(|object| &object.provenance).filter(|provenance| provenance.source != source)
    {
        let message = format!("source `{}` owns it ({}:{})", other.source, other.file, other.line);
        let help = format!("remove it here, or from source `{}` first", other.source);
        return blame(&mut rivals.iter(), &rules::OWNED_BY_OTHER_SOURCE, &message, &help);
    }
    let home = owner.map(|object| object.provenance.file.as_str());
    // The usual case: a single document, and the object had no other file.
    if rivals.len() == 1 && home.is_none_or(|home| home == &**rivals[0].file) {
        return Vec::new();
    }
    let at_home = |rival: &&Rival<'_>| home == Some(&**rival.file);
    // An unreadable home may still hold the object: no other file takes it over meanwhile.
    let unreadable = home.filter(|home| is_unreadable(home, manifests));
    let mut lost = Vec::new();
    if let Some(home) = unreadable {
        let message = format!("the object belongs to {home}, which can't be read at this commit");
        let help = format!("fix {home} first");
        let mut strangers = rivals.iter().filter(|rival| !at_home(rival));
        lost = blame(&mut strangers, &rules::OWNER_UNREADABLE, &message, &help);
    }
    let mut equals = rivals.iter().filter(|rival| unreadable.is_none() || at_home(rival));
    let Some(winner) = equals.clone().min_by_key(|rival| (!at_home(rival), rival.file, rival.line)) else {
        return lost;
    };
    let message = format!("the same object is at {}:{}", winner.file, winner.line);
    let mut losers = equals.by_ref().filter(|rival| !std::ptr::eq(*rival, winner));
    lost.extend(blame(&mut losers, &rules::DUPLICATE_OBJECT, &message, "keep one of the two"));
    lost
}

/// Finds files that live objects came from and that still exist but hold no manifest any longer: truncated or
/// emptied by mistake. An author who means it removes the file.
pub(super) fn vanished(manifests: &Manifests, absent: &[LiveObject<'_>]) -> Vec<(Arc<str>, Violation)> {
    let mut found = Vec::new();
    for (object, live) in absent {
        let Some(file) = silent_home(&live.value.provenance.file, manifests) else { continue };
        let violation = Violation {
            file: file.to_string(),
            line: 0,
            column: 0,
            severity: rules::MANIFEST_VANISHED.severity,
            rule: rules::MANIFEST_VANISHED.id.to_owned(),
            message: format!("{} contained {object} and is no longer a manifest", live.value.provenance.file),
            help: "restore it, or delete the file to remove the object".to_owned(),
            object: Some(object.to_string()),
        };
        found.push((Arc::clone(file), violation));
    }
    found
}

/// Finds files that live objects came from and of which only the beginning is left.
pub(super) fn truncated(manifests: &Manifests, absent: &[LiveObject<'_>]) -> Vec<(Arc<str>, Violation)> {
    let mut found = Vec::new();
    for (object, live) in absent {
        let home = manifests.get_key_value(live.value.provenance.file.as_str());
        // Errors in the file explain more.
        let is_truncated = |file: &ManifestFile| file.is_truncated && !file.has_errors();
        let Some((file, _)) = home.filter(|(_, file)| is_truncated(file)) else { continue };
        let message =
            format!("{object} is missing, and {file} is its previous version truncated within a document");
        let violation = Violation::new(&rules::FILE_TRUNCATED, &**file, (0, 0), message)
            .with_help("push the whole file; if it should end there, add a line to it, for example a comment")
            .about(object);
        found.push((Arc::clone(file), violation));
    }
    found
}

/// Finds the file, or a folder around it, that exists but holds no manifest.
fn silent_home<'a>(file: &str, manifests: &'a Manifests) -> Option<&'a Arc<str>> {
    let folders = file.match_indices('/').map(|(at, _)| &file[..at]);
    let mut places = std::iter::once(file).chain(folders).filter_map(|path| manifests.get_key_value(path));
    places.find(|(_, manifest)| !manifest.is_manifest).map(|(path, _)| path)
}

fn is_unreadable(file: &str, manifests: &Manifests) -> bool {
    manifests.get(file).is_some_and(|manifest| manifest.has_errors())
}

impl Rival<'_> {
    fn violation(&self, rule: &'static Rule, message: &str, help: &str) -> Violation {
        let message = format!("{}: {message}", self.reference);
        Violation::new(rule, &**self.file, (self.line, 1), message).with_help(help).about(self.reference)
    }
}

// Services whose selector matches nothing: they work, but lead to no pod. Pure.

/// Namespace, label key and label value.
type Pair<'a> = (&'a str, &'a str, &'a str);

/// Warns of selectors that match no pod and no template, in Git or live.
pub(super) fn check(scene: &Scene<'_>) -> Vec<Violation> {
    let selecting: Vec<(&Declaration<'_>, &StringMap)> =
        scene.declarations.iter().filter_map(|declared| Some((declared, selector(declared)?))).collect();
    if selecting.is_empty() {
        return Vec::new();
    }
    // Only labels that some selector uses are indexed: pods are many, services few.
    let mut labelled: BTreeMap<Pair<'_>, Vec<&StringMap>> = BTreeMap::new();
    for (declared, selector) in &selecting {
        let namespace = declared.document.reference.namespace.as_str();
        for (key, value) in *selector {
            labelled.entry((namespace, key, value)).or_default();
        }
    }
    let documents = scene.declarations.iter().map(|declared| &declared.document.object);
    let documents = documents.map(|object| (&object.metadata, &object.resource));
    let live = scene.live.values().map(|live| (&live.value.metadata, &live.value.resource));
    let known = documents.chain(live).filter_map(|(metadata, resource)| pod_labels(metadata, resource));
    for (namespace, labels) in known.chain(labels_of_broken(scene)) {
        for (key, value) in labels {
            if let Some(found) = labelled.get_mut(&(namespace, key.as_str(), value.as_str())) {
                found.push(labels);
            }
        }
    }
    let answers = |(declared, selector): &&(&Declaration<'_>, &StringMap)| {
        let namespace = declared.document.reference.namespace.as_str();
        let candidates = selector
            .iter()
            .filter_map(|(key, value)| labelled.get(&(namespace, key.as_str(), value.as_str())));
        // A pod with all labels has the rarest one.
        let fewest = candidates.min_by_key(|found| found.len());
        fewest.is_some_and(|found| found.iter().any(|labels| matches_service_selector(selector, labels)))
    };
    // A file that can't be read may hold the pods.
    let may_come = |(_, selector): &&(&Declaration<'_>, &StringMap)| {
        let has = |words: &BTreeSet<String>| {
            selector.iter().all(|(key, value)| words.contains(key) && words.contains(value))
        };
        scene.with_errors.iter().any(|(_, manifest)| has(&manifest.words))
    };
    selecting
        .iter()
        .filter(|one| !answers(one) && !may_come(one))
        .map(|(declared, selector)| remark(declared, selector))
        .collect()
}

fn selector<'a>(declared: &Declaration<'a>) -> Option<&'a StringMap> {
    match &declared.document.object.resource {
        Resource::Service(service) => Some(&service.selector).filter(|selector| !selector.is_empty()),
        _ => None,
    }
}

/// Returns namespace and labels of the pods that an object is, or creates.
fn pod_labels<'a>(metadata: &'a ObjectMeta, resource: &'a Resource) -> Option<(&'a str, &'a StringMap)> {
    Some((&metadata.namespace, resource.pod(metadata)?.labels))
}

/// Returns namespace and labels of the pods of documents with errors.
fn labels_of_broken<'a>(scene: &Scene<'a>) -> impl Iterator<Item = (&'a str, &'a StringMap)> {
    let broken = scene.with_errors.iter().flat_map(|(_, manifest)| &manifest.broken);
    let with_pods = broken.filter(|broken| broken.reference.kind.descriptor().pods != Pods::None);
    with_pods.flat_map(|broken| {
        let namespace = broken.reference.namespace.as_str();
        broken.labels.iter().map(move |labels| (namespace, labels))
    })
}

fn remark(declared: &Declaration<'_>, selector: &StringMap) -> Violation {
    let pairs: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let namespace = &declared.document.reference.namespace;
    let message = format!("spec.selector: no pod in namespace {namespace} has {}", pairs.join(","));
    let place = declared.document.place(&field_path(&["spec", "selector"]));
    problem(
        declared,
        &rules::SELECTOR_MATCHES_NOTHING,
        place,
        message,
        "check the labels of pods and templates",
    )
}
