//! Older ReplicaSet manifests: `ImagePullPolicy`, selectors without `matchLabels` or without anything. Kubernetes' Deployment
//! and ReplicationController.

use super::DEPLOYMENT_DEADLINE_SECONDS;
use crate::document::edit::{below, entry, items_mut, mapping, plain, put, rename, take};
use crate::kinds::Kind;
use crate::kinds::kind::{DEPLOYMENT, REPLICATION_CONTROLLER};
use crate::manifest::dialects::{Mark, Node, Notes, Value};

pub(super) fn rewrite(document: &mut Node, notes: &mut Notes<'_>) {
    rewrite_workload(document, notes);
}

/// Older versions of workloads, in which Kubernetes took a missing selector from the labels of the template.
const VERSIONS_WITH_DEFAULT_SELECTOR: [&str; 2] = ["extensions/v1beta1", "apps/v1beta1"];

/// Rewrites the older spellings that workloads of every kind share.
pub(in crate::kinds) fn rewrite_workload(document: &mut Node, notes: &mut Notes<'_>) {
    let version = document.entry("apiVersion").and_then(|entry| entry.value.text());
    let may_lack_selector = version.is_some_and(|version| VERSIONS_WITH_DEFAULT_SELECTOR.contains(&version));
    let Some(spec) = below(document, &["spec"]) else { return };
    if let Some(mark) = flat_selector(spec) {
        notes.older(mark, "selector with labels", "selector.matchLabels");
    }
    if may_lack_selector && default_selector(spec) {
        notes.older(spec.first_mark(), "no selector", "selector with the labels of the template");
    }
    for field in ["initContainers", "containers"] {
        let list = below(spec, &["template", "spec", field]).and_then(items_mut);
        for container in list.into_iter().flatten() {
            if let Some(mark) = rename(container, "ImagePullPolicy", "imagePullPolicy") {
                notes.older(mark, "ImagePullPolicy", "imagePullPolicy");
            }
        }
    }
}

/// Rewrites the kinds of Kubernetes that are read as a replica set.
pub(crate) fn rewrite_kind(document: &mut Node, notes: &mut Notes<'_>) {
    let Some(kind) = below(document, &["kind"]) else { return };
    let mark = kind.mark;
    let Value::Scalar { text, .. } = &mut kind.value else { return };
    let Some(word) = [DEPLOYMENT, REPLICATION_CONTROLLER].into_iter().find(|word| word == text) else {
        return;
    };
    Kind::ReplicaSet.as_str().clone_into(text);
    notes.kind_word = Some(word);
    if word == DEPLOYMENT {
        deployment(document);
    } else {
        let message = "a ReplicationController is read as a ReplicaSet: a changed template replaces its pods, where \
                       Kubernetes would only use it for new ones";
        notes.remark(mark, message);
        replication_controller(document);
    }
}

/// Gives a Deployment its longer deadline: Minik8s rolls out templates itself.
fn deployment(document: &mut Node) {
    let Some(spec) = below(document, &["spec"]) else { return };
    let mark = spec.first_mark();
    put(spec, entry("progressDeadlineSeconds", mark, plain(mark, DEPLOYMENT_DEADLINE_SECONDS)));
}

/// Gives a ReplicationController the version and the selector of a ReplicaSet. Labels alone, and a missing selector, are
/// no older spellings there.
fn replication_controller(document: &mut Node) {
    if let Some(Node { value: Value::Scalar { text, .. }, .. }) = below(document, &["apiVersion"])
        && text == "v1"
    {
        Kind::ReplicaSet.api_version().clone_into(text);
    }
    if let Some(spec) = below(document, &["spec"]) {
        flat_selector(spec);
        default_selector(spec);
    }
}

/// Rewrites `selector: {app: web}` as `selector: {matchLabels: {app: web}}`. Returns the place of the first label.
fn flat_selector(spec: &mut Node) -> Option<Mark> {
    let selector = below(spec, &["selector"])?;
    let entries = selector.entries().filter(|entries| !entries.is_empty())?;
    let is_pair =
        |one: &crate::manifest::dialects::Entry| one.value.text().is_some() && !one.key.starts_with("match");
    if !entries.iter().all(is_pair) {
        return None;
    }
    let mark = selector.first_mark();
    let labels = std::mem::replace(selector, Node { mark: selector.mark, value: Value::Mapping(Vec::new()) });
    selector.value = Value::Mapping(vec![entry("matchLabels", mark, labels)]);
    Some(mark)
}

/// Fills in a missing or empty selector with the labels of the template. Returns false if there is nothing to do, or
/// the template has no labels.
fn default_selector(spec: &mut Node) -> bool {
    let is_empty = |selector: &Node| selector.is_null() || selector.entries().is_some_and(<[_]>::is_empty);
    if spec.entry("selector").is_some_and(|selector| !is_empty(&selector.value)) {
        return false;
    }
    let labels = below(spec, &["template", "metadata", "labels"]).filter(|labels| !is_empty(labels));
    let Some(labels) = labels.cloned() else { return false };
    take(spec, "selector");
    let mark = labels.first_mark();
    put(spec, entry("selector", mark, mapping(mark, [("matchLabels", labels)])));
    true
}
