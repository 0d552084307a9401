//! What etcd alone knew, for when it is lost: rollouts with their last good templates, scaled numbers, orders of jobs, and
//! where pods ran. Every reconciler keeps it on its disk; an etcd that begins anew is filled from it and from Git. Pure.

use std::collections::BTreeMap;

use schema::codec::encode;
use schema::keys::Key;
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{
    AutoscalerRecord, JobOrder, PodInstance, Rollout, ScaleRecord, Template, TriggerRecord, WorkflowRecord,
};
use schema::snapshot::{Change, Snapshot, Table, Versioned};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What etcd held when it was last whole. Empty while it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LastKnown {
    rollouts: Table<ObjectRef, Rollout>,
    templates: Table<(ObjectRef, String), Template>,
    scales: Table<ObjectRef, ScaleRecord>,
    autoscalers: Table<NamespacedName, AutoscalerRecord>,
    workflows: Table<NamespacedName, WorkflowRecord>,
    jobs: Table<(String, NamespacedName), JobOrder>,
    triggers: Table<(ObjectRef, String), TriggerRecord>,
    pods: BTreeMap<NamespacedName, LastPod>,
}

/// A pod as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastPod {
    /// Which incarnation.
    pub uid: String,
    /// The node that ran it.
    pub node: String,
}

/// As it lies on the disk.
#[derive(Serialize, Deserialize)]
pub struct OnDisk {
    /// Values by their key in etcd.
    records: BTreeMap<String, Value>,
    /// By `namespace/name`.
    pods: BTreeMap<String, LastPod>,
}

impl LastKnown {
    /// What this snapshot knows. None while etcd is not known to be whole: it may have lost what is kept.
    pub fn of(snapshot: &Snapshot) -> Option<Self> {
        let pods = snapshot.bindings.iter().map(|((node, pod), binding)| {
            let (uid, node) = (binding.value.pod.uid.clone(), node.clone());
            (pod.clone(), LastPod { uid, node })
        });
        (!snapshot.settled.is_empty()).then(|| Self {
            rollouts: snapshot.rollouts.clone(),
            templates: snapshot.templates.clone(),
            scales: snapshot.scales.clone(),
            autoscalers: snapshot.autoscalers.clone(),
            workflows: snapshot.workflows.clone(),
            jobs: snapshot.jobs.clone(),
            triggers: snapshot.triggers.clone(),
            pods: pods.collect(),
        })
    }

    /// Both snapshots have the same to keep. May say no although they have.
    pub fn is_same(before: &Snapshot, now: &Snapshot) -> bool {
        before.settled.is_empty() == now.settled.is_empty()
            && before.rollouts.ptr_eq(&now.rollouts)
            && before.templates.ptr_eq(&now.templates)
            && before.scales.ptr_eq(&now.scales)
            && before.autoscalers.ptr_eq(&now.autoscalers)
            && before.workflows.ptr_eq(&now.workflows)
            && before.jobs.ptr_eq(&now.jobs)
            && before.triggers.ptr_eq(&now.triggers)
            && before.bindings.ptr_eq(&now.bindings)
    }

    /// Nothing is known, or etcd is whole.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The rollout of a workload.
    pub fn rollout(&self, workload: &ObjectRef) -> Option<&Rollout> {
        self.rollouts.get(workload).map(|record| &record.value)
    }

    /// A template of a workload, by its hash.
    pub fn template(&self, workload: &ObjectRef, hash: &str) -> Option<&Template> {
        self.templates.get(&(workload.clone(), hash.to_owned())).map(|record| &record.value)
    }

    /// To how many pods a workload was scaled.
    pub fn replicas(&self, workload: &ObjectRef) -> Option<u32> {
        self.scales.get(workload).map(|record| record.value.replicas)
    }

    /// What an autoscaler remembers.
    pub fn autoscaler(&self, id: &NamespacedName) -> Option<&AutoscalerRecord> {
        self.autoscalers.get(id).map(|record| &record.value)
    }

    /// What ran of a workflow.
    pub fn workflow(&self, id: &NamespacedName) -> Option<&WorkflowRecord> {
        self.workflows.get(id).map(|record| &record.value)
    }

    /// The node that saw to a job, and its order.
    pub fn job(&self, id: &NamespacedName) -> Option<(&str, &JobOrder)> {
        let found = self.jobs.iter().find(|((_, job), _)| job == id);
        found.map(|((node, _), order)| (node.as_str(), &order.value))
    }

    /// What a trigger of an object did.
    pub fn trigger(&self, object: &ObjectRef, name: &str) -> Option<&TriggerRecord> {
        self.triggers.get(&(object.clone(), name.to_owned())).map(|record| &record.value)
    }

    /// The node that ran this incarnation of a pod.
    pub fn node_of(&self, pod: &NamespacedName, uid: &str) -> Option<&str> {
        self.pods.get(pod).filter(|pod| pod.uid == uid).map(|pod| pod.node.as_str())
    }

    /// Pods by whose name a workload made them.
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

    /// The form on the disk.
    pub fn to_disk(&self) -> OnDisk {
        let mut records = BTreeMap::new();
        for (workload, record) in &self.rollouts {
            add(&mut records, &Key::Rollout(workload.clone()), record);
        }
        for ((workload, hash), record) in &self.templates {
            add(&mut records, &Key::Template(workload.clone(), hash.clone()), record);
        }
        for (workload, record) in &self.scales {
            add(&mut records, &Key::Scale(workload.clone()), record);
        }
        for (id, record) in &self.autoscalers {
            add(&mut records, &Key::Autoscaler(id.clone()), record);
        }
        for (id, record) in &self.workflows {
            add(&mut records, &Key::Workflow(id.clone()), record);
        }
        for ((node, id), record) in &self.jobs {
            add(&mut records, &Key::Job(node.clone(), id.clone()), record);
        }
        for ((object, trigger), record) in &self.triggers {
            add(&mut records, &Key::Trigger(object.clone(), trigger.clone()), record);
        }
        let pods = self.pods.iter().map(|(pod, last)| (pod.to_string(), last.clone()));
        OnDisk { records, pods: pods.collect() }
    }

    /// Read from the disk; what can't be read of it is left out.
    pub fn from_disk(disk: &OnDisk) -> Self {
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
        Self {
            pods: pods.collect(),
            rollouts: snapshot.rollouts,
            templates: snapshot.templates,
            scales: snapshot.scales,
            autoscalers: snapshot.autoscalers,
            workflows: snapshot.workflows,
            jobs: snapshot.jobs,
            triggers: snapshot.triggers,
        }
    }
}

fn add<T: Serialize>(records: &mut BTreeMap<String, Value>, key: &Key, record: &Versioned<T>) {
    if let Ok(value) = serde_json::to_value(&record.value) {
        records.insert(key.to_string(), value);
    }
}
