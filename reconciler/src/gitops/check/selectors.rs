//! Services whose selector matches nothing: they work, but lead to no pod. Pure.

use std::collections::BTreeMap;

use schema::kinds::Resource;
use schema::meta::{ObjectMeta, StringMap, matches_service_selector};
use schema::violation::{Violation, field_path, rules};

use super::declaration::{Declaration, problem};
use super::scene::Scene;

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
    for (namespace, labels) in
        documents.chain(live).filter_map(|(metadata, resource)| of_pods(metadata, resource))
    {
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
    selecting
        .iter()
        .filter(|one| !answers(one))
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
fn of_pods<'a>(metadata: &'a ObjectMeta, resource: &'a Resource) -> Option<(&'a str, &'a StringMap)> {
    Some((&metadata.namespace, resource.pod(metadata)?.labels))
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
