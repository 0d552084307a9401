//! Decides which pods should exist. Reads `objects/`, `pods/`, bindings and status; writes `pods/`, `rollouts/` and
//! `templates/`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schema::keys::Key;
use schema::kinds::{Kind, Pods, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::snapshot::Snapshot;

use super::bare::{UnreadableKeys, bare_pod};
use super::daemon_set::DaemonSetPlan;
use super::owned::{PodTraces, PodsByOwner};
use super::replica_set::{DeadlineClock, WorkloadPlan};
use super::workload::Workload;
use crate::controllers::note::{Note, NoteKind};
use crate::controllers::reason::Reason;
use crate::controllers::writes::Writes;
use crate::last_known::LastKnown;

/// Returns the writes. `waits_until` is the time until which pods wait for the nodes that ran them before etcd was
/// lost; `None` once it has passed.
pub fn plan(
    snapshot: &Snapshot,
    last_known: &LastKnown,
    waits_until: Option<Timestamp>,
    now: Timestamp,
) -> Writes {
    let waits_until = waits_until.filter(|_| snapshot.settled.is_empty());
    let clock = waits_until.map_or(DeadlineClock::Runs, DeadlineClock::WaitsForNodes);
    let unreadable = UnreadableKeys::of(snapshot);
    let mut out = Writes::default();
    // Removals first: what they free is available to the others.
    let (pods, names) = (PodsByOwner::of(snapshot), PodTraces::of(snapshot));
    remove_orphans(snapshot, &pods, &unreadable, &mut out);
    // Few pods have copies: spare the many others the lookup of their number.
    let kept = snapshot.scales.keys().chain(snapshot.rollouts.keys()).cloned();
    let kept = kept.chain(pods.all().map(|(owner, _)| owner));
    let mut copied: BTreeSet<ObjectRef> = kept.filter(|of| of.kind == Kind::Pod).collect();
    // Both are sorted by namespace and name, and a key has the name of its value.
    let mut by_name = snapshot.pods.iter().peekable();
    for (reference, object) in &snapshot.objects {
        let object = &object.value;
        match (object.kind().descriptor().pods, &object.resource) {
            (Pods::Single, Resource::Pod(spec)) => {
                let name = name_of(reference);
                while by_name.next_if(|(pod, _)| name_of_pod(pod) < name).is_some() {}
                let present = by_name.peek().filter(|(pod, _)| name_of_pod(pod) == name).copied();
                bare_pod(snapshot, &unreadable, (object, spec), present, &mut out);
            }
            (Pods::Replicas, _) => {
                if unreadable.workloads.contains(reference) {
                    continue;
                }
                let scale = scale(snapshot, last_known, reference);
                // A function has no workload before its first image is built.
                let Some(workload) = Workload::for_scaled(snapshot, last_known, object, scale) else {
                    continue;
                };
                let pods = pods.pods(reference);
                WorkloadPlan { snapshot, last_known, workload, pods, names: &names, now, clock }
                    .plan(&mut out);
            }
            (Pods::PerNode, Resource::DaemonSet(spec)) => {
                if unreadable.workloads.contains(reference) {
                    continue;
                }
                let pods = pods.pods(reference);
                DaemonSetPlan { snapshot, last_known, object, spec, pods, names: &names, now, clock }
                    .plan(&mut out);
            }
            (_, Resource::HorizontalPodAutoscaler(spec)) => {
                let target = spec.target(&object.metadata);
                copied.extend(Some(target).filter(|target| target.kind == Kind::Pod));
            }
            (Pods::None | Pods::Single | Pods::PerNode, _) => {}
        }
    }
    for reference in copied.difference(&unreadable.workloads) {
        let Some(object) = snapshot.objects.get(reference).map(|object| &object.value) else { continue };
        let scale = scale(snapshot, last_known, reference);
        let Some(workload) = Workload::for_copies(snapshot, object, scale) else { continue };
        let pods = pods.pods(reference);
        if workload.desired == 0 && pods.is_empty() {
            if snapshot.rollouts.contains_key(reference) {
                remove_records(snapshot, |of| of == reference, &mut out);
            }
            continue;
        }
        WorkloadPlan { snapshot, last_known, workload, pods, names: &names, now, clock }.plan(&mut out);
    }
    for key in &unreadable.keys {
        out.note(Note::about_key(key, NoteKind::Unreadable { key: key.to_string() }));
    }
    out
}

/// Returns the number of pods that an autoscaler set for a workload, even if etcd has lost it.
fn scale(snapshot: &Snapshot, last_known: &LastKnown, workload: &ObjectRef) -> Option<u32> {
    let scale = snapshot.scales.get(workload).map(|scale| scale.value.replicas);
    let is_scaled = || {
        workload.kind == Kind::Function
            || snapshot.objects.values().any(|object| scales(&object.value, workload))
    };
    scale.or_else(|| last_known.replicas(workload).filter(|_| is_scaled()))
}

/// True if the object is an autoscaler of the workload.
fn scales(object: &Object, workload: &ObjectRef) -> bool {
    match &object.resource {
        Resource::HorizontalPodAutoscaler(scaler) => scaler.target(&object.metadata) == *workload,
        _ => false,
    }
}

fn name_of_pod(pod: &NamespacedName) -> (&str, &str) {
    (&pod.namespace, &pod.name)
}

fn name_of(object: &ObjectRef) -> (&str, &str) {
    (&object.namespace, &object.name)
}

/// Removes pods and records whose object is gone.
fn remove_orphans(
    snapshot: &Snapshot,
    pods: &PodsByOwner<'_>,
    unreadable: &UnreadableKeys,
    out: &mut Writes,
) {
    let is_gone =
        |object: &ObjectRef| !snapshot.objects.contains_key(object) && !unreadable.objects.contains(object);
    for (_, pods) in pods.all().filter(|(owner, _)| is_gone(owner)) {
        for pod in pods {
            out.delete(Key::Pod(pod.pod().reference()), pod.record.mod_revision, Reason::OwnerGone);
        }
    }
    // Usually thousands, sorted like their objects: walking both side by side avoids lookups.
    let of_pods = |object: &&ObjectRef| object.kind == Kind::Pod;
    let mut objects = snapshot.objects.keys().filter(of_pods).peekable();
    for (id, pod) in snapshot.pods.iter().filter(|(_, pod)| pod.value.is_bare()) {
        while objects.next_if(|object| name_of(object) < name_of_pod(id)).is_some() {}
        if objects.peek().is_some_and(|object| name_of(object) == name_of_pod(id)) {
            continue;
        }
        let (namespace, name) = (id.namespace.clone(), id.name.clone());
        if is_gone(&ObjectRef { kind: Kind::Pod, namespace, name }) {
            out.delete(Key::Pod(id.clone()), pod.mod_revision, Reason::OwnerGone);
        }
    }
    remove_records(snapshot, is_gone, out);
}

/// Removes the records of workloads that no longer have pods.
fn remove_records(snapshot: &Snapshot, is_over: impl Fn(&ObjectRef) -> bool, out: &mut Writes) {
    for ((workload, hash), template) in snapshot.templates.iter().filter(|((of, _), _)| is_over(of)) {
        let key = Key::Template(workload.clone(), hash.clone());
        out.delete(key, template.mod_revision, Reason::RecordOrphaned);
    }
    // The rollout last: while it exists, the rest is searched for.
    for (workload, rollout) in snapshot.rollouts.iter().filter(|(workload, _)| is_over(workload)) {
        out.delete(Key::Rollout(workload.clone()), rollout.mod_revision, Reason::RecordOrphaned);
    }
}
