//! `pods/<ns>/<name>` and `bindings/<node>/<ns>/<pod>`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::files::Files;
use crate::kinds::Kind;
use crate::kinds::pod::PodSpec;
use crate::meta::{NamespacedName, StringMap};

/// A pod that should exist: written by the workloads controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInstance {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Which incarnation: follows from owner, name and `hash` alone, so that a rebuilt etcd
    /// adopts the pods that run. 32 hex digits.
    pub uid: String,
    /// Hash of the effective spec and of `files`; another hash is another pod.
    pub hash: String,
    /// Labels, changed in place.
    #[serde(default)]
    pub labels: StringMap,
    /// Annotations, changed in place.
    #[serde(default)]
    pub annotations: StringMap,
    /// The object that asked for it.
    pub owner: OwnerRef,
    /// Commit that last changed that object.
    pub commit: String,
    /// What should run.
    pub spec: Arc<PodSpec>,
    /// Files of the repository that it needs, by path.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub files: Files,
}

impl PodInstance {
    /// The workload that a pod's name speaks of, if it is `<workload>-<template hash, 8 digits>-<n>`.
    pub fn workload_in_name(pod: &str) -> Option<&str> {
        let (rest, number) = pod.rsplit_once('-')?;
        let (workload, hash) = rest.rsplit_once('-')?;
        let is_hash = hash.len() == 8 && hash.bytes().all(|digit| digit.is_ascii_hexdigit());
        (is_hash && number.bytes().all(|digit| digit.is_ascii_digit())).then_some(workload)
    }

    /// Git names the pod itself: it owns itself.
    pub fn is_bare(&self) -> bool {
        self.owner.kind == Kind::Pod && self.owner.name == self.name
    }

    /// Namespace and name.
    pub fn reference(&self) -> NamespacedName {
        NamespacedName::new(&self.namespace, &self.name)
    }

    /// The uid of the pod `pod` with this template hash.
    pub fn uid_of(owner: &OwnerRef, pod: &NamespacedName, hash: &str) -> String {
        let mut uid = crate::codec::content_hash(&(owner, pod, hash));
        uid.truncate(32);
        uid
    }
}

/// The object that asked for a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OwnerRef {
    /// Its kind; `Pod` for a bare pod, which owns itself, and for copies of one.
    pub kind: Kind,
    /// Its name, in the pod's namespace.
    pub name: String,
}

/// This etcd holds all that a node should run: written once per node, when every source was applied
/// whole and every pod that fits has a node. Before, a binding that is not there is not a removal: the
/// etcd may have been lost and not be filled from Git again yet. Lies among the bindings, so that
/// a watch on them sees it after them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The commit of each source that had become bindings at that time.
    pub commits: BTreeMap<String, String>,
}

/// A pod given to a node: written by the scheduler, read by that node's agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// The node.
    pub node: String,
    /// The pod in full.
    pub pod: PodInstance,
    /// Why this node, in a sentence.
    pub reason: String,
}
