//! Time limits of functions, as far as their manifests are available.

use std::collections::BTreeMap;
use std::sync::Arc;

use schema::kinds::Resource;
use schema::kinds::cluster::FunctionDefaults;
use schema::kinds::function::FunctionSpec;
use schema::kinds::workflow::WorkflowSpec;
use schema::manifest::Document;
use schema::meta::ObjectRef;

/// Time limits of functions in seconds, by namespace and name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionLimits(BTreeMap<(String, String), u32>);

impl FunctionLimits {
    /// Collects the limits of the Functions in `documents`, with the defaults of the Cluster among them.
    pub fn of<'a>(documents: impl Iterator<Item = &'a Document>) -> Self {
        let (mut functions, mut defaults) = (Vec::new(), FunctionDefaults::default());
        for document in documents {
            match &document.object.resource {
                Resource::Function(function) => functions.push((&document.reference, function)),
                Resource::Cluster(cluster) => defaults = cluster.functions.clone(),
                _ => {}
            }
        }
        let limit = |(reference, function): (&ObjectRef, &Arc<FunctionSpec>)| {
            let key = (reference.namespace.clone(), reference.name.clone());
            Some((key, function.with_defaults(&defaults).timeout_seconds?))
        };
        Self(functions.into_iter().filter_map(limit).collect())
    }

    /// The limit of the function that a Task of this namespace names.
    pub(super) fn seconds(&self, function: &str, namespace: &str) -> Option<u32> {
        let (namespace, name) = function.split_once('/').unwrap_or((namespace, function));
        self.0.get(&(namespace.to_owned(), name.to_owned())).copied()
    }

    /// True if the limits of all functions that the workflow calls are known.
    pub fn know_all(&self, spec: &WorkflowSpec, namespace: &str) -> bool {
        spec.functions().into_iter().all(|(_, function)| self.seconds(function, namespace).is_some())
    }
}
