//! `pods/<ns>/<name>` and `bindings/<node>/<ns>/<pod>`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::content_refs::Files;
use crate::kinds::Kind;
use crate::kinds::pod::PodSpec;
use crate::meta::{NamespacedName, StringMap};

/// A pod that should exist. Written by the workloads controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInstance {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Incarnation: derived from owner, name and `hash` alone, so that a rebuilt etcd adopts the running pods. 32
    /// hex digits.
    pub uid: String,
    /// Hash of the effective spec and of `files`; another hash means another pod.
    pub hash: String,
    /// Labels, changed in place.
    #[serde(default)]
    pub labels: StringMap,
    /// Annotations, changed in place.
    #[serde(default)]
    pub annotations: StringMap,
    /// Object that asked for the pod.
    pub owner: OwnerRef,
    /// Commit that last changed the owner.
    pub commit: String,
    /// Desired spec.
    pub spec: Arc<PodSpec>,
    /// Files of the repository that the pod needs, by path.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
}

impl PodInstance {
    /// Returns the workload in a pod's name of the form `<workload>-<template hash, 8 digits>-<n>`.
    pub fn workload_in_name(pod: &str) -> Option<&str> {
        let (rest, number) = pod.rsplit_once('-')?;
        let (workload, hash) = rest.rsplit_once('-')?;
        let is_hash = hash.len() == 8 && hash.bytes().all(|digit| digit.is_ascii_hexdigit());
        (is_hash && number.bytes().all(|digit| digit.is_ascii_digit())).then_some(workload)
    }

    /// True if Git declares the pod itself: it owns itself.
    pub fn is_bare(&self) -> bool {
        self.owner.kind == Kind::Pod && self.owner.name == self.name
    }

    /// Returns namespace and name.
    pub fn reference(&self) -> NamespacedName {
        NamespacedName::new(&self.namespace, &self.name)
    }

    /// Returns the uid of the pod `pod` with this template hash.
    pub fn uid_of(owner: &OwnerRef, pod: &NamespacedName, hash: &str) -> String {
        let mut uid = crate::codec::content_hash(&(owner, pod, hash));
        uid.truncate(32);
        uid
    }
}

/// Object that asked for a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OwnerRef {
    /// Kind of the owner; `Pod` for a bare pod, which owns itself, and for copies of one.
    pub kind: Kind,
    /// Name of the owner, in the pod's namespace.
    pub name: String,
}

/// Marks that this etcd holds everything a node should run: written once per node, when every source was applied in
/// full and every pod that fits has a node. Before that, a missing binding is not a removal: etcd may have been
/// lost and not yet refilled from Git. Stored among the bindings, so that a watch on them delivers it after them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledRecord {
    /// Commit of each source that had become bindings at that time.
    pub commits: BTreeMap<String, String>,
}

/// A pod given to a node. Written by the scheduler, read by that node's agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// The node.
    pub node: String,
    /// The pod in full.
    pub pod: PodInstance,
    /// Reason for this node, in a sentence.
    pub reason: String,
}
