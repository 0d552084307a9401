//! Deletes the keys of nodes that Git declares gone, with the annotation `minik8s.io/gone: "true"`. Never writes
//! them, and deletes them only while no agent of that name beats. The scheduler deletes their bindings.

use std::sync::Arc;

use schema::keys::Key;
use schema::kinds::Kind;
use schema::snapshot::{Snapshot, Versioned};

use crate::controllers::Writes;
use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;

/// True if Git declares the node gone and it has no heartbeat.
pub(super) fn has_left(snapshot: &Snapshot, node: &str) -> bool {
    snapshot.is_gone(node) && !snapshot.node_is_ready(node)
}

/// Plans the deletions for nodes that are gone, and for nodes that left by themselves.
pub(super) fn plan(snapshot: &Snapshot, out: &mut Writes) {
    let named = snapshot.objects.keys().filter(|object| object.kind == Kind::Node);
    for node in named.map(|object| &object.name).filter(|node| snapshot.is_gone(node)) {
        if snapshot.node_is_ready(node) {
            out.note(Note::about_node(node, NoteKind::GoneButAlive));
        } else {
            delete(snapshot, node, out);
        }
    }
    for (node, conditions) in &snapshot.node_conditions {
        if !snapshot.nodes.contains_key(node) && !snapshot.is_gone(node) && !snapshot.node_is_ready(node) {
            out.delete(Key::NodeConditions(node.clone()), conditions.mod_revision, Reason::NodeLeft);
        }
    }
}

fn delete(snapshot: &Snapshot, node: &String, out: &mut Writes) {
    let mut delete = |key: Key, at: Option<i64>| {
        if let Some(revision) = at {
            out.delete(key, revision, Reason::NodeGone);
        }
    };
    // The record first, so that nothing more is placed on the node.
    delete(Key::Node(node.clone()), revision(snapshot.nodes.get(node)));
    delete(Key::NodeConditions(node.clone()), revision(snapshot.node_conditions.get(node)));
    delete(Key::Usage(node.clone()), revision(snapshot.usage.get(node)));
    delete(Key::Demand(node.clone()), revision(snapshot.demand.get(node)));
    let images = snapshot.node_images.range((node.clone(), String::new())..);
    for ((_, image), status) in images.take_while(|((on, _), _)| on == node) {
        delete(Key::NodeImage(node.clone(), image.clone()), Some(status.mod_revision));
    }
    delete(Key::Rules(node.clone()), revision(snapshot.rules.get(node)));
    let jobs = snapshot.job_reports.iter().filter(|((at, _), _)| at == node);
    for ((_, job), report) in jobs {
        let key = Key::JobReport(node.clone(), job.clone());
        delete(key, Some(report.mod_revision));
    }
    for (pod, status) in snapshot.pod_status_of(node) {
        delete(Key::PodStatus(node.clone(), pod.clone()), Some(status.mod_revision));
    }
    // The range last: it stays while a pod is bound to the node.
    if snapshot.bindings_of(node).next().is_none() {
        delete(Key::Subnet(node.clone()), revision(snapshot.subnets.get(node)));
    }
}

fn revision<T>(present: Option<&Arc<Versioned<T>>>) -> Option<i64> {
    present.map(|present| present.mod_revision)
}
