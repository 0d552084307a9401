//! State that etcd alone held, kept in case etcd is lost: rollouts with their last good templates, scales, job
//! orders, identities, and the nodes of pods. Every reconciler keeps it on disk; a new etcd is filled from it and from Git.
//! Pure.
//!
//! A file may be older than the loss if its reconciler was down meanwhile. So nothing of it counts for a workload
//! of which a node runs a pod that the file should know, and what was removed from Git since is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::codec::encode;
use schema::keys::Key;
use schema::kinds::cluster::cluster_reference;
use schema::kinds::{Kind, Pods, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::{
    AutoscalerRecord, IdentityRecord, JobOrder, PodInstance, PodSecurityRecord, Rollout, ScaleRecord,
    SourceStatus, Template, TriggerRecord, WorkflowRecord,
};
use schema::snapshot::{Change, Snapshot, Table, entries_by_node};
use schema::trust::Identity;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Allowed difference of clocks: a pod that started this long after the file was written was created after it,
/// because changes are written within a second.
const CLOCK_SKEW_MAX: SignedDuration = SignedDuration::from_secs(60);

/// Returns the kinds whose pods are named after their object.
pub(super) fn workload_kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.descriptor().pods != Pods::None)
}

/// State of etcd when it was last complete. Empty while etcd is complete.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LastKnown {
    /// Time at which etcd was complete.
    at: Timestamp,
    /// Manifests, as named by Git, of the workloads and autoscalers that have records.
    places: BTreeMap<ObjectRef, ManifestLocation>,
    rollouts: Table<ObjectRef, Rollout>,
    templates: Table<(ObjectRef, String), Template>,
    scales: Table<ObjectRef, ScaleRecord>,
    autoscalers: Table<NamespacedName, AutoscalerRecord>,
    workflows: Table<NamespacedName, WorkflowRecord>,
    jobs: Table<(String, NamespacedName), JobOrder>,
    triggers: Table<(ObjectRef, String), TriggerRecord>,
    identities: Table<String, IdentityRecord>,
    pods: BTreeMap<NamespacedName, LastPod>,
    /// Restrictions on pods, which a commit that finds an empty etcd must meet.
    pod_security: Vec<PodSecurityRecord>,
}

/// Last known place of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastPod {
    /// Incarnation of the pod.
    pub uid: String,
    /// Node that ran the pod.
    pub node: String,
}

/// Location of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ManifestLocation {
    source: String,
    file: String,
}

/// Form of [`LastKnown`] on disk.
#[derive(Serialize, Deserialize)]
pub struct LastKnownFile {
    /// Time of writing.
    #[serde(default)]
    at: Timestamp,
    /// Manifests, by the key of the object.
    #[serde(default)]
    places: BTreeMap<String, ManifestLocation>,
    /// Values, by their key in etcd.
    records: BTreeMap<String, Value>,
    /// Pods, by `namespace/name`.
    pods: BTreeMap<String, LastPod>,
    /// Restrictions on pods.
    #[serde(default)]
    pod_security: Vec<PodSecurityRecord>,
}

impl LastKnown {
    /// Extracts the state to keep from a snapshot. `None` while etcd is not known to be complete: it may have lost
    /// what is kept.
    pub fn from_snapshot(snapshot: &Snapshot, now: Timestamp) -> Option<Self> {
        let scalers = snapshot.autoscalers.keys().map(|id| reference(Kind::HorizontalPodAutoscaler, id));
        let placed = snapshot.rollouts.keys().chain(snapshot.scales.keys()).cloned().chain(scalers);
        let placed = placed.chain([cluster_reference()]);
        let placed = placed.filter_map(|of| {
            let provenance = &snapshot.objects.get(&of)?.value.provenance;
            let place = ManifestLocation { source: provenance.source.clone(), file: provenance.file.clone() };
            Some((of, place))
        });
        let pods = snapshot.bindings.iter().map(|((node, pod), binding)| {
            let (uid, node) = (binding.value.pod.uid.clone(), node.clone());
            (pod.clone(), LastPod { uid, node })
        });
        (!snapshot.settled.is_empty()).then(|| Self {
            at: now,
            places: placed.collect(),
            pods: pods.collect(),
            pod_security: pod_security_records(&snapshot.objects, source_statuses(snapshot)),
            ..Self::tables(snapshot)
        })
    }

    fn tables(snapshot: &Snapshot) -> Self {
        Self {
            rollouts: snapshot.rollouts.clone(),
            templates: snapshot.templates.clone(),
            scales: snapshot.scales.clone(),
            autoscalers: snapshot.autoscalers.clone(),
            workflows: snapshot.workflows.clone(),
            jobs: snapshot.jobs.clone(),
            triggers: snapshot.triggers.clone(),
            identities: snapshot.identities.clone(),
            ..Self::default()
        }
    }

    /// True if both snapshots have the same state to keep. May be false although they have.
    pub fn is_same(before: &Snapshot, now: &Snapshot) -> bool {
        before.settled.is_empty() == now.settled.is_empty()
            && before.rollouts.ptr_eq(&now.rollouts)
            && before.templates.ptr_eq(&now.templates)
            && before.scales.ptr_eq(&now.scales)
            && before.autoscalers.ptr_eq(&now.autoscalers)
            && before.workflows.ptr_eq(&now.workflows)
            && before.jobs.ptr_eq(&now.jobs)
            && before.triggers.ptr_eq(&now.triggers)
            && before.identities.ptr_eq(&now.identities)
            && before.bindings.ptr_eq(&now.bindings)
            && Self::is_same_pod_security(before, now)
    }

    fn is_same_pod_security(before: &Snapshot, now: &Snapshot) -> bool {
        let records = |of: &Snapshot| pod_security_records(&of.objects, source_statuses(of));
        before.objects.ptr_eq(&now.objects) && before.sources.ptr_eq(&now.sources)
            || records(before) == records(now)
    }

    /// True if nothing of what runs is known, or etcd is complete.
    pub fn is_empty(&self) -> bool {
        let Self { at, places, pod_security, identities, .. } = self.clone();
        *self == Self { at, places, pod_security, identities, ..Self::default() }
    }

    /// Drops outdated entries: those of a workload of which a node runs a pod that is younger than this state and
    /// missing from it. A pod that started after its node registered belongs to the etcd that is being filled.
    pub fn without_outdated(self: &Arc<Self>, snapshot: &Snapshot) -> Arc<Self> {
        if self.is_empty() {
            return Arc::clone(self);
        }
        let younger = self.at.checked_add(CLOCK_SKEW_MAX).unwrap_or(Timestamp::MAX);
        let unknown = snapshot.pod_status.iter().filter(|((node, pod), status)| {
            let status = &status.value;
            let runs = !status.has_ended() && !status.is_terminating();
            let registered = snapshot.nodes.get(node).map_or(Timestamp::MAX, |node| node.value.registered_at);
            runs && status.start_time.is_some_and(|start| start > younger && start < registered)
                && !snapshot.settled.contains_key(node)
                && self.node_of(pod, &status.uid).is_none()
        });
        let outdated: BTreeSet<(&str, &str)> = unknown
            .filter_map(|((_, pod), _)| Some((&*pod.namespace, PodInstance::workload_in_name(&pod.name)?)))
            .collect();
        if outdated.is_empty() {
            return Arc::clone(self);
        }
        Arc::new(self.without(|of| outdated.contains(&(&*of.namespace, &*of.name))))
    }

    /// Returns the state without the objects that Git no longer names; `None` if there are none to drop. An object
    /// may be created again under the same name, and has nothing to do with the former one.
    pub fn without_deleted(&self, snapshot: &Snapshot) -> Option<Self> {
        // Absence means nothing for what could not be applied yet, and an object may have moved to another source.
        let is_whole = |source: &SourceStatus| {
            source.applied_commit.is_some() && source.waiting_total == 0 && source.held_prune.is_none()
        };
        let is_broken = |source: &SourceStatus, place: &ManifestLocation| {
            source.quarantined.iter().any(|file| source.name != place.source || file.file == place.file)
        };
        let is_deleted = |(of, place): &(&ObjectRef, &ManifestLocation)| {
            let mut sources = snapshot.sources.values().map(|source| &source.value);
            snapshot.sources.contains_key(&place.source)
                && sources.all(|source| is_whole(source) && !is_broken(source, place))
                && !snapshot.objects.contains_key(*of)
        };
        let deleted: BTreeSet<&ObjectRef> = self.places.iter().filter(is_deleted).map(|(of, _)| of).collect();
        (!deleted.is_empty()).then(|| self.without(|of| deleted.contains(of)))
    }

    /// Returns a copy without the entries of these workloads and autoscalers.
    fn without(&self, is_left_out: impl Fn(&ObjectRef) -> bool) -> Self {
        let mut left = self.clone();
        left.places.retain(|of, _| !is_left_out(of));
        if is_left_out(&cluster_reference()) {
            left.pod_security.clear();
        }
        keep(&mut left.rollouts, |of, _| !is_left_out(of));
        keep(&mut left.templates, |(of, _), _| !is_left_out(of));
        keep(&mut left.scales, |of, _| !is_left_out(of));
        keep(&mut left.autoscalers, |id, record| {
            !is_left_out(&record.target) && !is_left_out(&reference(Kind::HorizontalPodAutoscaler, id))
        });
        left.pods.retain(|pod, _| {
            let workload = PodInstance::workload_in_name(&pod.name);
            let workload = workload.map(|name| NamespacedName::new(&pod.namespace, name));
            !workload.is_some_and(|id| workload_kinds().any(|kind| is_left_out(&reference(kind, &id))))
        });
        left
    }

    pub fn rollout(&self, workload: &ObjectRef) -> Option<&Rollout> {
        self.rollouts.get(workload).map(|record| &record.value)
    }

    pub fn template(&self, workload: &ObjectRef, hash: &str) -> Option<&Template> {
        self.templates.get(&(workload.clone(), hash.to_owned())).map(|record| &record.value)
    }

    /// Returns the number of pods that a workload was scaled to.
    pub fn replicas(&self, workload: &ObjectRef) -> Option<u32> {
        self.scales.get(workload).map(|record| record.value.replicas)
    }

    pub fn autoscaler(&self, id: &NamespacedName) -> Option<&AutoscalerRecord> {
        self.autoscalers.get(id).map(|record| &record.value)
    }

    pub fn workflow(&self, id: &NamespacedName) -> Option<&WorkflowRecord> {
        self.workflows.get(id).map(|record| &record.value)
    }

    /// Returns the order of a job, and the node that had it.
    pub fn job<'a>(&'a self, id: &'a NamespacedName) -> Option<(&'a str, &'a JobOrder)> {
        entries_by_node(&self.jobs, id).next().map(|(node, order)| (node, &order.value))
    }

    pub fn trigger(&self, object: &ObjectRef, name: &str) -> Option<&TriggerRecord> {
        self.triggers.get(&(object.clone(), name.to_owned())).map(|record| &record.value)
    }

    /// Returns the identities that an etcd which was lost does not know any more. One that was removed since, or whose node
    /// Git declares gone, is not among them.
    pub fn lost_identities(&self, snapshot: &Snapshot) -> Vec<(&str, &IdentityRecord)> {
        if !snapshot.settled.is_empty() {
            return Vec::new();
        }
        let is_gone = |name: &str| {
            let identity = name.parse::<Identity>().ok();
            identity.as_ref().and_then(Identity::node).is_some_and(|node| snapshot.is_gone(node))
        };
        let lost = self.identities.iter().filter(|(name, _)| {
            let is_known = snapshot.identities.contains_key(*name) || snapshot.revoked.contains_key(*name);
            !is_known && !is_gone(name)
        });
        lost.map(|(name, record)| (name.as_str(), &record.value)).collect()
    }

    /// Returns the node that ran this incarnation of a pod.
    pub fn node_of(&self, pod: &NamespacedName, uid: &str) -> Option<&str> {
        self.pods.get(pod).filter(|pod| pod.uid == uid).map(|pod| pod.node.as_str())
    }

    /// Returns the restrictions on pods.
    pub fn pod_security(&self) -> &[PodSecurityRecord] {
        &self.pod_security
    }

    /// Returns the pods that a workload created, going by their names.
    pub fn pods_of<'a>(
        &'a self,
        workload: &'a ObjectRef,
    ) -> impl Iterator<Item = (&'a NamespacedName, &'a LastPod)> {
        let first = NamespacedName::new(&workload.namespace, &workload.name);
        let below = self.pods.range(first..);
        below
            .take_while(|(pod, _)| {
                pod.namespace == workload.namespace && pod.name.starts_with(&workload.name)
            })
            .filter(|(pod, _)| PodInstance::workload_in_name(&pod.name) == Some(workload.name.as_str()))
    }

    /// Converts the state to its form on disk.
    pub fn to_disk(&self) -> LastKnownFile {
        let mut records = BTreeMap::new();
        add(&mut records, &self.rollouts, |of| Key::Rollout(of.clone()));
        add(&mut records, &self.templates, |(of, hash)| Key::Template(of.clone(), hash.clone()));
        add(&mut records, &self.scales, |of| Key::Scale(of.clone()));
        add(&mut records, &self.autoscalers, |id| Key::Autoscaler(id.clone()));
        add(&mut records, &self.workflows, |id| Key::Workflow(id.clone()));
        add(&mut records, &self.jobs, |(node, id)| Key::Job(node.clone(), id.clone()));
        add(&mut records, &self.triggers, |(of, trigger)| Key::Trigger(of.clone(), trigger.clone()));
        add(&mut records, &self.identities, |identity| Key::Identity(identity.clone()));
        let pods = self.pods.iter().map(|(pod, last)| (pod.to_string(), last.clone()));
        let places =
            self.places.iter().map(|(of, place)| (Key::Object(of.clone()).to_string(), place.clone()));
        let pod_security = self.pod_security.clone();
        LastKnownFile { at: self.at, places: places.collect(), records, pods: pods.collect(), pod_security }
    }

    /// Restores the state from disk, skipping what can't be read.
    pub fn from_disk(disk: &LastKnownFile) -> Self {
        let mut snapshot = Snapshot::default();
        for (key, value) in &disk.records {
            let Ok(value) = encode(value) else { continue };
            let (key, value) = (key.clone(), value.into());
            snapshot.apply(&Change::Put { key, value, create_revision: 0, mod_revision: 0 });
        }
        let pods = disk.pods.iter().filter_map(|(name, pod)| {
            let (namespace, name) = name.split_once('/')?;
            Some((NamespacedName::new(namespace, name), pod.clone()))
        });
        let places = disk.places.iter().filter_map(|(key, place)| match key.parse() {
            Ok(Key::Object(of)) => Some((of, place.clone())),
            _ => None,
        });
        let pod_security = disk.pod_security.clone();
        Self {
            at: disk.at,
            places: places.collect(),
            pods: pods.collect(),
            pod_security,
            ..Self::tables(&snapshot)
        }
    }
}

/// Returns the restrictions on pods of the Cluster object, and those that the sources' newest commits replaced.
pub(crate) fn pod_security_records<'a>(
    objects: &Table<ObjectRef, Object>,
    sources: impl Iterator<Item = &'a SourceStatus>,
) -> Vec<PodSecurityRecord> {
    let applied = objects.get(&cluster_reference()).and_then(|live| match &live.value.resource {
        Resource::Cluster(cluster) => Some(PodSecurityRecord {
            policy: cluster.pod_security.clone(),
            since: live.value.provenance.commit.clone(),
            until: None,
        }),
        _ => None,
    });
    sources.flat_map(|source| &source.replaced_pod_security).cloned().chain(applied).collect()
}

fn source_statuses(snapshot: &Snapshot) -> impl Iterator<Item = &SourceStatus> {
    snapshot.sources.values().map(|source| &source.value)
}

fn reference(kind: Kind, id: &NamespacedName) -> ObjectRef {
    ObjectRef { kind, namespace: id.namespace.clone(), name: id.name.clone() }
}

fn keep<K: Ord + Clone, V>(table: &mut Table<K, V>, is_kept: impl Fn(&K, &V) -> bool) {
    let kept = table.iter().filter(|(key, record)| is_kept(key, &record.value));
    *table = kept.map(|(key, record)| (key.clone(), Arc::clone(record))).collect();
}

fn add<K: Ord, V: Serialize>(
    records: &mut BTreeMap<String, Value>,
    table: &Table<K, V>,
    key_of: impl Fn(&K) -> Key,
) {
    for (key, record) in table {
        if let Ok(value) = serde_json::to_value(&record.value) {
            records.insert(key_of(key).to_string(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use schema::kinds::metadata::GONE_ANNOTATION;
    use schema::kinds::node::NodeSpec;
    use schema::records::{RevokedIdentity, SettledRecord};
    use schema::testing::{SnapshotBuilder, at, object_of};

    use super::*;

    fn with_identity(builder: SnapshotBuilder, name: &str) -> SnapshotBuilder {
        let record = IdentityRecord {
            key: format!("sha256:{name}"),
            serials: BTreeMap::new(),
            issuer: "d1".to_owned(),
            not_after: at(100),
            joined_at: at(0),
            recipient: None,
            api: None,
            authorities: Vec::new(),
            etcd_member: None,
            confirmed_roll: None,
        };
        builder.put(&Key::Identity(name.to_owned()), &record)
    }

    #[test]
    fn identities_that_were_removed_or_are_gone_are_not_lost() {
        let names = ["node-known", "node-gone", "node-removed", "node-n1", "reconciler-gone", "user-ada"];
        let settled = SnapshotBuilder::new().put(&Key::Settled("n1".to_owned()), &SettledRecord::default());
        let before = names.into_iter().fold(settled, with_identity).snapshot;
        let kept = LastKnown::from_snapshot(&before, at(0)).unwrap();
        let kept = LastKnown::from_disk(&kept.to_disk());
        assert!(kept.lost_identities(&before).is_empty(), "this etcd is complete");

        let mut gone = object_of("gone", NodeSpec::default());
        gone.metadata.annotations.insert(GONE_ANNOTATION.into(), "true".into());
        let revoked = Key::RevokedIdentity("node-removed".to_owned());
        let now = SnapshotBuilder::new().object(&gone).put(&revoked, &RevokedIdentity::default());
        let now = with_identity(now, "node-known").snapshot;
        let lost: Vec<&str> = kept.lost_identities(&now).into_iter().map(|(name, _)| name).collect();
        assert_eq!(lost, ["node-n1", "reconciler-gone", "user-ada"]);
    }
}
