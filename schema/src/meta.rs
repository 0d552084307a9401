//! Names, labels and references: what every object has besides its spec.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::Kind;

/// The namespace of objects whose manifest names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Labels and annotations: ordered, so that hashes and diffs are stable.
pub type StringMap = BTreeMap<String, String>;

/// Standard object metadata, the part of Kubernetes' `ObjectMeta` that a person writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ObjectMeta {
    /// Name, unique within kind and namespace.
    pub name: String,
    /// Namespace; `default` when the manifest names none.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// Identifying pairs that selectors match on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: StringMap,
    /// Non-identifying pairs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: StringMap,
    /// Objects that must be healthy before this one is applied: `Kind/name` in the same namespace, or
    /// `Kind/namespace/name`. Removals go the other way round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
}

impl ObjectMeta {
    /// Returns a reference to an object of the same namespace.
    pub fn reference(&self, kind: Kind, name: &str) -> ObjectRef {
        let namespace = if kind.is_cluster_scoped() { DEFAULT_NAMESPACE } else { &self.namespace };
        ObjectRef { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// True if every pair of a Service's selector is among `labels`. An empty selector matches nothing.
pub fn matches_service_selector(selector: &StringMap, labels: &StringMap) -> bool {
    !selector.is_empty() && matches_node_selector(selector, labels)
}

/// True if every pair of a `nodeSelector` is among `labels`. An empty selector matches everything.
pub fn matches_node_selector(selector: &StringMap, labels: &StringMap) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn default_namespace() -> String {
    DEFAULT_NAMESPACE.to_owned()
}

/// Reference to an object: kind, namespace and name. Orders by kind, then namespace, then name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectRef {
    /// The kind.
    pub kind: Kind,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for ObjectRef {
    /// Formats as `Kind/namespace/name`; `Kind/name` for cluster-scoped kinds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind.is_cluster_scoped() {
            return write!(f, "{}/{}", self.kind, self.name);
        }
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
    }
}

/// Reference by namespace and name, such as a pod's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespacedName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl NamespacedName {
    /// Creates a reference from its two parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns the reference to the object of this kind.
    pub fn of_kind(&self, kind: Kind) -> ObjectRef {
        ObjectRef { kind, namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
