//! The kinds of objects, a folder each. Every kind describes itself in its `descriptor.rs`; the list below
//! generates the enums and the dispatch over kinds.

pub mod autoscaler;
use std::sync::Arc;

use serde::Serialize;

use content::Content;
use exclusive::ExclusiveUse;
use pod::content_uses;
use reference::Reference;

use super::content_refs::ContentUse;
use crate::meta::ObjectMeta;
use crate::violation::OwnedStep;

/// Calls the macro `$make` with every kind and its spec, in the order in which objects are applied.
macro_rules! kinds {
    ($make:ident) => {
        $make! {
            /// Cluster-wide settings; at most one object.
            Cluster cluster::ClusterSpec,
            /// Labels, taints and cordon for a node that an agent registered.
            Node node::NodeSpec,
            /// Text values and files for pods, separate from their images.
            ConfigMap config_map::ConfigMapSpec,
            /// A Python or container function.
            Function function::FunctionSpec,
            /// A stable address in front of pods.
            Service service::ServiceSpec,
            /// A group of containers on one node.
            Pod pod::PodSpec,
            /// A number of identical pods.
            ReplicaSet replica_set::ReplicaSetSpec,
            /// A pod on every eligible node.
            DaemonSet daemon_set::DaemonSetSpec,
            /// Scales a workload by its resource usage.
            HorizontalPodAutoscaler autoscaler::HorizontalPodAutoscalerSpec,
            /// Pods that a drain must leave running.
            PodDisruptionBudget disruption_budget::PodDisruptionBudgetSpec,
            /// A host whose paths lead to services and functions.
            Dns dns::DnsSpec,
            /// A state machine over functions.
            Workflow workflow::WorkflowSpec,
            /// A Slurm job.
            Job job::JobSpec,
        }
    };
}

pub mod cluster;
pub mod config_map;
pub mod content;
pub mod daemon_set;
pub mod disruption_budget;
pub mod dns;
pub mod exclusive;
pub mod function;
pub mod health;
pub mod job;
mod kind;
pub mod links;
pub mod metadata;
pub mod node;
pub mod pod;
pub mod reference;
pub mod replica_set;
pub mod service;
mod spec;
pub mod trigger;
pub mod workflow;

pub use super::names::NameForm;
pub use health::Health;
pub(crate) use kind::{DEPLOYMENT, REPLICATION_CONTROLLER};
pub use kind::{Kind, UnknownKind};
pub(crate) use spec::OlderSpellings;
pub use spec::{ContentLink, Descriptor, FieldPlacement, KindSpec, Links, OWN_API_VERSION, ObjectPod, Pods};
use trigger::Trigger;

macro_rules! define_resource {
    ($($(#[$doc:meta])* $kind:ident $module:ident::$spec:ident,)*) => {
        impl Kind {
            /// Returns the properties that all objects of the kind share.
            pub fn descriptor(self) -> &'static Descriptor {
                match self {
                    $(Kind::$kind => const { <$module::$spec as KindSpec>::DESCRIPTOR.checked() },)*
                }
            }

            /// Calls `visitor` with the spec type of this kind.
            pub(crate) fn visit<V: SpecVisitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Kind::$kind => visitor.visit::<$module::$spec>(|spec| Resource::$kind(Arc::new(spec))),)*
                }
            }
        }

        /// A kind with its spec, serialized as the two fields `kind` and `spec`. Specs are behind [`Arc`], so that
        /// the largest spec does not make every value large.
        #[derive(Debug, Clone, Serialize)]
        #[serde(tag = "kind", content = "spec")]
        pub enum Resource {
            $($(#[$doc])* $kind(Arc<$module::$spec>),)*
        }

        impl PartialEq for Resource {
            /// Specs in the same allocation, as equal pods have, are equal without a comparison.
            fn eq(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Resource::$kind(one), Resource::$kind(other)) => {
                        Arc::ptr_eq(one, other) || one == other
                    })*
                    _ => false,
                }
            }
        }

        impl Resource {
            /// Returns the kind.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Resource::$kind(_) => Kind::$kind,)*
                }
            }

            /// True if everything that runs for this object must be stopped and restarted for `after`; see
            /// [`KindSpec::is_replaced_by`].
            pub fn is_replaced_by(&self, after: &Self) -> bool {
                match (self, after) {
                    $((Resource::$kind(before), Resource::$kind(after)) => before.is_replaced_by(after),)*
                    _ => false,
                }
            }

            /// See [`Links::references`].
            pub fn references(&self, metadata: &ObjectMeta) -> Vec<Reference<'_>> {
                match self {
                    $(Resource::$kind(spec) => ($module::$spec::LINKS.references)(spec, metadata),)*
                }
            }

            /// See [`Links::exclusives`]; adds the host ports of the object's pods, unless their number is 0.
            pub fn exclusives(&self, metadata: &ObjectMeta) -> Vec<ExclusiveUse> {
                let own = match self {
                    $(Resource::$kind(spec) => ($module::$spec::LINKS.exclusives)(spec, metadata),)*
                };
                let pod = self.pod(metadata).filter(|pod| pod.count > 0);
                let ports = pod.map(|pod| exclusive::host_ports(pod.spec, pod.at));
                own.into_iter().chain(ports.into_iter().flatten()).collect()
            }

            /// See [`Links::files`]; adds those of the object's pods.
            pub fn files(&self) -> Vec<ContentUse> {
                let own = match self {
                    $(Resource::$kind(spec) => ($module::$spec::LINKS.files)(spec),)*
                };
                let metadata = ObjectMeta::default();
                let of_pod = self.pod(&metadata).map(|pod| content_uses::content_uses(pod.spec, pod.at));
                own.into_iter().chain(of_pod.into_iter().flatten()).collect()
            }

            /// See [`ContentLink::stored`].
            pub fn content(&self) -> Option<(&Content, bool)> {
                match self {
                    $(Resource::$kind(spec) => ($module::$spec::LINKS.content?.stored)(spec),)*
                }
            }

            /// See [`Links::extra_position_paths`]; adds those of the host ports of the object's pods.
            pub fn extra_position_paths(&self) -> Vec<Vec<OwnedStep>> {
                let own = match self {
                    $(Resource::$kind(spec) => ($module::$spec::LINKS.extra_position_paths)(spec),)*
                };
                let metadata = ObjectMeta::default();
                let ports = self.pod(&metadata).map(|pod| pod.spec.host_ports(pod.at));
                own.into_iter().chain(ports.into_iter().flatten().map(|port| port.path)).collect()
            }

            /// See [`KindSpec::deadline_seconds`].
            pub fn deadline_seconds(&self, default: u32) -> u32 {
                match self {
                    $(Resource::$kind(spec) => spec.deadline_seconds(default),)*
                }
            }

            /// See [`KindSpec::triggers`].
            pub fn triggers(&self) -> &[Trigger] {
                match self {
                    $(Resource::$kind(spec) => KindSpec::triggers(&**spec),)*
                }
            }

            /// See [`Links::pod`].
            pub fn pod<'a>(&'a self, metadata: &'a ObjectMeta) -> Option<ObjectPod<'a>> {
                match self {
                    $(Resource::$kind(spec) => ($module::$spec::LINKS.pod)(spec, metadata),)*
                }
            }
        }

        $(
            impl From<$module::$spec> for Resource {
                fn from(spec: $module::$spec) -> Self {
                    Resource::$kind(Arc::new(spec))
                }
            }
        )*
    };
}

kinds!(define_resource);

/// An operation on the spec type of a kind.
pub(crate) trait SpecVisitor {
    /// Result of the operation.
    type Output;

    /// Runs the operation for `S`. `resource` wraps a spec in a resource.
    fn visit<S: KindSpec>(self, resource: fn(S) -> Resource) -> Self::Output;
}

impl Resource {
    /// Reads the `spec` of a kind. Specs are read from JSON values only, because each further deserializer would be
    /// compiled for every type of every kind.
    ///
    /// # Errors
    /// Fails if the value is not a spec of this kind.
    pub fn from_json(kind: Kind, spec: serde_json::Value) -> Result<Self, serde_json::Error> {
        struct SpecReader(serde_json::Value);
        impl SpecVisitor for SpecReader {
            type Output = Result<Resource, serde_json::Error>;

            fn visit<S: KindSpec>(self, resource: fn(S) -> Resource) -> Self::Output {
                serde_json::from_value(self.0).map(resource)
            }
        }
        kind.visit(SpecReader(spec))
    }
}

impl Kind {
    /// Returns the `apiVersion` of objects of this kind.
    pub fn api_version(self) -> &'static str {
        self.descriptor().api_version
    }

    /// True if objects of this kind belong to no namespace; they are stored under [`crate::meta::DEFAULT_NAMESPACE`].
    pub fn is_cluster_scoped(self) -> bool {
        !self.descriptor().is_namespaced
    }

    /// Returns the names of this kind on a command line, the plural first.
    pub fn names(self) -> impl Iterator<Item = String> {
        let Descriptor { plural, short_names, .. } = self.descriptor();
        let full = [(*plural).to_owned(), self.as_str().to_ascii_lowercase()];
        full.into_iter().chain(short_names.iter().map(|name| (*name).to_owned()))
    }

    /// Returns the name that is quickest to type.
    pub fn short_name(self) -> String {
        self.descriptor()
            .short_names
            .first()
            .map_or_else(|| self.as_str().to_ascii_lowercase(), |name| (*name).to_owned())
    }

    /// Returns the kind that older manifests call `word`.
    pub(crate) fn from_older_word(word: &str) -> Option<Self> {
        Kind::ALL.into_iter().find(|kind| kind.descriptor().older.words.contains(&word))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_kinds_share_a_name_and_older_words_are_not_todays() {
        let mut names = BTreeSet::new();
        for kind in Kind::ALL {
            for name in kind.names().collect::<BTreeSet<_>>() {
                assert!(names.insert(name.clone()), "{name} is {kind} and another kind");
            }
            let Descriptor { api_version, older, .. } = kind.descriptor();
            assert!(!older.api_versions.contains(api_version), "{kind}");
            assert!(older.words.iter().all(|word| word.parse::<Kind>().is_err()), "{kind}");
        }
    }
}
