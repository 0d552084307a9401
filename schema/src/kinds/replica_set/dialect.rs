//! Older ReplicaSet manifests: `ImagePullPolicy`, selectors without `matchLabels`.

use super::DEPLOYMENT_DEADLINE_SECONDS;
use crate::document::edit::{below, entry, items_mut, plain, put, rename};
use crate::kinds::Kind;
use crate::kinds::kind::DEPLOYMENT;
use crate::manifest::dialects::{Node, Notes, Value};

pub(super) fn rewrite(document: &mut Node, notes: &mut Notes<'_>) {
    rewrite_workload(document, notes);
}

/// Rewrites the older spellings that workloads of every kind share.
pub(in crate::kinds) fn rewrite_workload(document: &mut Node, notes: &mut Notes<'_>) {
    let Some(spec) = below(document, &["spec"]) else { return };
    flat_selector(spec, notes);
    for field in ["initContainers", "containers"] {
        let list = below(spec, &["template", "spec", field]).and_then(items_mut);
        for container in list.into_iter().flatten() {
            if let Some(mark) = rename(container, "ImagePullPolicy", "imagePullPolicy") {
                notes.older(mark, "ImagePullPolicy", "imagePullPolicy");
            }
        }
    }
}

/// Rewrites a Kubernetes Deployment as a replica set with a longer deadline: Minik8s rolls out templates itself.
pub(crate) fn rewrite_deployment(document: &mut Node) {
    let Some(kind) = below(document, &["kind"]) else { return };
    let Value::Scalar { text, .. } = &mut kind.value else { return };
    if text != DEPLOYMENT {
        return;
    }
    Kind::ReplicaSet.as_str().clone_into(text);
    let Some(spec) = below(document, &["spec"]) else { return };
    let mark = spec.first_mark();
    put(spec, entry("progressDeadlineSeconds", mark, plain(mark, DEPLOYMENT_DEADLINE_SECONDS)));
}

/// Rewrites `selector: {app: web}` as `selector: {matchLabels: {app: web}}`.
fn flat_selector(spec: &mut Node, notes: &mut Notes<'_>) {
    let Some(selector) = below(spec, &["selector"]) else { return };
    let Some(entries) = selector.entries().filter(|entries| !entries.is_empty()) else { return };
    let is_pair =
        |one: &crate::manifest::dialects::Entry| one.value.text().is_some() && !one.key.starts_with("match");
    if !entries.iter().all(is_pair) {
        return;
    }
    let mark = selector.first_mark();
    let labels = std::mem::replace(selector, Node { mark: selector.mark, value: Value::Mapping(Vec::new()) });
    selector.value = Value::Mapping(vec![entry("matchLabels", mark, labels)]);
    notes.older(mark, "selector with labels", "selector.matchLabels");
}
