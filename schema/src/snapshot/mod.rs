//! The snapshot: an immutable copy of etcd, decoded. Controllers and views read nothing else.

mod budgets;
pub mod health;
mod nodes;
mod rows;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use serde::de::DeserializeOwned;

use crate::codec::decode;
use crate::keys::{Key, key_table};
use crate::kinds::Resource;
use crate::kinds::cluster::{ClusterSpec, cluster_reference};
use crate::kinds::pod::{PodStatus, pool};
use crate::meta::{NamespacedName, ObjectRef};
use crate::object::Object;
use crate::records::{
    AuthorityRecord, AutoscalerRecord, Binding, BuildOrder, ClusterSettings, DefragRequest, EtcdUpkeep,
    FunctionRecord, Heartbeat, IdentityRecord, JobOrder, JobReport, NodeConditions, NodeDemand, NodeImage,
    NodeRecord, NodeUsage, OutboxEntry, PodInstance, ProgrammedRules, RequestAnswer, RequestOutcome,
    Revision, RevokedIdentity, Rollout, RouteRecord, RulesStatus, ScaleRecord, ServiceRecord, SettledRecord,
    SourceStatus, Subnet, SyncRequest, Template, TriggerRecord, TrustRecord, WorkflowRecord,
};

pub use budgets::{BudgetStatus, Evictions, RefusedEviction};
pub use nodes::elapsed_seconds;
pub use nodes::{AwayNodes, BoundPod, is_most_away, most_nodes_away};

/// A decoded value with the revisions that guards refer to.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionedValue<T> {
    /// Decoded value.
    pub value: T,
    /// Revision at which the key appeared.
    pub create_revision: i64,
    /// Revision of the key's last write.
    pub mod_revision: i64,
}

/// A map that clones in constant time.
pub type Table<K, V> = OrdMap<K, Arc<VersionedValue<V>>>;

macro_rules! define_snapshot {
    (
        unwatched { $($unwatched:tt)* }
        watched { $(
            $variant:ident $(($($field:ident: $type:ty),+))?, $prefix:ident, $pattern:literal => $holds:literal,
            $writer:expr, $reader:literal, $agents:ident; $table:ident: $record:ty, $planned:ident;
        )* }
    ) => {
        /// A snapshot. Cloning is cheap; maps share what did not change.
        #[derive(Debug, Clone, Default, PartialEq)]
        #[allow(unused_parens, reason = "a key of one field")]
        pub struct Snapshot {
            /// Newest revision of etcd that is in here.
            pub revision: i64,
            /// True once every watched prefix has been listed. No loop plans before.
            pub synced: bool,
            $(#[doc = concat!("`", $pattern, "`: ", $holds, ".")] pub $table: Table<($($($type),+)?), $record>,)*
            /// Keys whose value could not be decoded, and why: one bad value hides no other.
            pub malformed: OrdMap<String, Arc<str>>,
            /// Nodes to which each pod is bound; derived from `bindings`, see [`Snapshot::binding_of`].
            pub bound: BoundIndex,
        }

        impl Snapshot {
            fn set(&mut self, key: Key, change: &Change) -> Result<(), String> {
                match key {
                    $(Key::$variant $(($($field),+))? => set(&mut self.$table, ($($($field),+)?), change),)*
                    _ => Ok(()),
                }
            }

            /// True if a plan made of `other` is valid for this snapshot, too: they differ only in tables whose few
            /// readers watch them by name (usage, requests). May return false although they are equal.
            pub fn is_same_for_plans(&self, other: &Self) -> bool {
                use WakeScope::*;
                self.synced == other.synced
                    && self.malformed == other.malformed
                    $(&& ($planned == ByName || self.$table.ptr_eq(&other.$table)))*
            }
        }
    };
}
key_table!(define_snapshot);

/// Loops that a change of a table wakes.
#[derive(PartialEq)]
enum WakeScope {
    Plans,
    ByName,
}

/// Nodes to which each pod is bound: [`Snapshot::bindings`] inverted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BoundIndex {
    by_pod: OrdSet<(NamespacedName, String)>,
}

/// A change to a snapshot.
#[derive(Debug, Clone)]
pub enum Change {
    /// The key has this value now.
    Put {
        /// Full key.
        key: String,
        /// Value.
        value: Bytes,
        /// Revision at which the key appeared.
        create_revision: i64,
        /// Revision of this write.
        mod_revision: i64,
    },
    /// The key is gone.
    Delete {
        /// Full key.
        key: String,
    },
}

impl Snapshot {
    /// Applies a change. Skips foreign keys, and keys without a table.
    pub fn apply(&mut self, change: &Change) {
        let text = match change {
            Change::Put { key, .. } | Change::Delete { key } => key,
        };
        self.malformed.remove(text);
        let Ok(key) = text.parse::<Key>() else { return };
        let outcome = match key {
            Key::Object(id) => set_as(&mut self.objects, id, change, |mut object: Object| {
                object.resource = pool::share(&object.hash, object.resource);
                object
            }),
            Key::Pod(id) => set_as(&mut self.pods, id, change, with_shared_spec),
            Key::Template(workload, hash) => {
                set_as(&mut self.templates, (workload, hash.clone()), change, |mut template: Template| {
                    template.spec = pool::share_pod(&hash, template.spec);
                    template
                })
            }
            Key::Binding(node, pod) => {
                let id = (node, pod);
                let outcome = set_as(&mut self.bindings, id.clone(), change, |mut binding: Binding| {
                    binding.pod = with_shared_spec(binding.pod);
                    binding
                });
                self.bound.follow(&self.bindings, id);
                outcome
            }
            key => self.set(key, change),
        };
        if let Err(why) = outcome {
            self.malformed.insert(text.clone(), why.into());
        }
    }

    /// Puts a value at a key, as if written at `revision`.
    #[cfg(any(test, feature = "testing"))]
    pub fn put<T: serde::Serialize>(&mut self, key: &Key, value: &T, revision: i64) {
        let value = crate::codec::encode(value).expect("a record of this crate fits under its key").into();
        let key = key.to_string();
        self.apply(&Change::Put { key, value, create_revision: revision, mod_revision: revision });
        self.revision = self.revision.max(revision);
    }

    /// Returns the answer to the latest version of a request; `None` while it waits for one.
    pub fn answer_to(&self, request: &str) -> Option<&RequestAnswer> {
        let revision = self.requests.get(request)?.mod_revision;
        let answer = &self.answers.get(request)?.value;
        (answer.request_revision == revision).then_some(answer)
    }

    /// Iterates over the requests that wait for an answer, by id.
    pub fn waiting_requests(&self) -> impl Iterator<Item = (&String, &Arc<VersionedValue<SyncRequest>>)> {
        self.requests.iter().filter(|(id, request)| {
            request.value.outcome == RequestOutcome::Accepted && self.answer_to(id).is_none()
        })
    }

    /// Iterates over the revisions of a source, oldest first.
    pub fn revisions_of<'a>(
        &'a self,
        source: &str,
    ) -> impl DoubleEndedIterator<Item = &'a Revision> + use<'a> {
        let all = (source.to_owned(), 0)..=(source.to_owned(), u64::MAX);
        self.revisions.range(all).map(|(_, revision)| &revision.value)
    }

    /// Returns the Cluster object, if there is one.
    pub fn cluster_object(&self) -> Option<&Arc<VersionedValue<Object>>> {
        self.objects.get(&cluster_reference())
    }

    /// Returns the settings of the Cluster object, or the defaults.
    pub fn cluster(&self) -> Arc<ClusterSpec> {
        static DEFAULTS: LazyLock<Arc<ClusterSpec>> = LazyLock::new(Arc::default);
        match self.cluster_object().map(|object| &object.value.resource) {
            Some(Resource::Cluster(spec)) => Arc::clone(spec),
            _ => Arc::clone(&DEFAULTS),
        }
    }

    /// True if the node has a heartbeat: its lease has not expired.
    pub fn node_is_ready(&self, node: &str) -> bool {
        self.heartbeats.contains_key(node)
    }

    /// Returns the binding of a pod, on whichever node; the first by node name if it is bound twice.
    pub fn binding_of(&self, pod: &NamespacedName) -> Option<&Arc<VersionedValue<Binding>>> {
        if self.bound.by_pod.len() != self.bindings.len() {
            // A test has edited the table of bindings directly.
            return self.bindings.iter().find(|((_, bound), _)| bound == pod).map(|(_, binding)| binding);
        }
        // The first entry that is not before the pod's own. If it belongs to another pod, this one has none, and
        // the lookup in the table fails.
        let first = (pod.clone(), String::new());
        let (_, node) = self.bound.by_pod.range(first..).next()?;
        self.bindings.get(&(node.clone(), pod.clone()))
    }

    /// Iterates over the bindings of a node, by pod.
    pub fn bindings_of<'a>(
        &'a self,
        node: &'a str,
    ) -> impl Iterator<Item = (&'a NamespacedName, &'a Arc<VersionedValue<Binding>>)> {
        below(&self.bindings, node)
    }

    /// Iterates over the pod statuses that a node reports, by pod.
    pub fn pod_status_of<'a>(
        &'a self,
        node: &'a str,
    ) -> impl Iterator<Item = (&'a NamespacedName, &'a Arc<VersionedValue<PodStatus>>)> {
        below(&self.pod_status, node)
    }
}

impl BoundIndex {
    /// Updates the index after a change of the binding.
    fn follow(
        &mut self,
        bindings: &Table<(String, NamespacedName), Binding>,
        (node, pod): (String, NamespacedName),
    ) {
        let id = (node, pod);
        let there = bindings.contains_key(&id);
        let entry = (id.1, id.0);
        if there {
            self.by_pod.insert(entry);
        } else {
            self.by_pod.remove(&entry);
        }
    }
}

/// Iterates over the part of a table whose keys begin with `node`.
fn below<'a, V>(
    table: &'a Table<(String, NamespacedName), V>,
    node: &'a str,
) -> impl Iterator<Item = (&'a NamespacedName, &'a Arc<VersionedValue<V>>)> {
    table
        .range((node.to_owned(), NamespacedName::new("", ""))..)
        .take_while(move |((at, _), _)| at == node)
        .map(|((_, pod), value)| (pod, value))
}

fn with_shared_spec(mut pod: PodInstance) -> PodInstance {
    pod.spec = pool::share_pod(&pod.hash, pod.spec);
    pod
}

fn set<K, V>(table: &mut Table<K, V>, id: K, change: &Change) -> Result<(), String>
where
    K: Ord + Clone,
    V: DeserializeOwned,
{
    set_as(table, id, change, |value| value)
}

fn set_as<K, V>(
    table: &mut Table<K, V>,
    id: K,
    change: &Change,
    kept: impl FnOnce(V) -> V,
) -> Result<(), String>
where
    K: Ord + Clone,
    V: DeserializeOwned,
{
    match change {
        Change::Delete { .. } => {
            table.remove(&id);
        }
        Change::Put { value, create_revision, mod_revision, .. } => match decode(value) {
            Ok(value) => {
                let (create_revision, mod_revision) = (*create_revision, *mod_revision);
                let versioned = VersionedValue { value: kept(value), create_revision, mod_revision };
                table.insert(id, Arc::new(versioned));
            }
            Err(error) => {
                table.remove(&id);
                return Err(error.to_string());
            }
        },
    }
    Ok(())
}

// Nodes and reports of jobs.

impl Snapshot {
    /// Iterates over the orders for a job, each with its node. There are two while the job moves.
    pub fn jobs_of<'a>(
        &'a self,
        job: &'a NamespacedName,
    ) -> impl Iterator<Item = (&'a str, &'a VersionedValue<JobOrder>)> {
        entries_by_node(&self.jobs, job)
    }

    /// Returns the order for a job, with its node.
    pub fn job_of<'a>(&'a self, job: &'a NamespacedName) -> Option<(&'a str, &'a JobOrder)> {
        self.jobs_of(job).next().map(|(node, order)| (node, &order.value))
    }

    /// Iterates over the reports about a job, each with its node.
    pub fn job_reports_of<'a>(
        &'a self,
        job: &'a NamespacedName,
    ) -> impl Iterator<Item = (&'a str, &'a JobReport)> {
        entries_by_node(&self.job_reports, job).map(|(node, report)| (node, &report.value))
    }
}

/// Iterates over a table's entries of this name, each with its node. Skips from node to node instead of visiting
/// all entries: controllers do this for every job in each pass.
pub fn entries_by_node<'a, V>(
    table: &'a Table<(String, NamespacedName), V>,
    name: &'a NamespacedName,
) -> impl Iterator<Item = (&'a str, &'a VersionedValue<V>)> {
    let begin_of = |node: String| (node, NamespacedName::new("", ""));
    let mut next = begin_of(String::new());
    let nodes = std::iter::from_fn(move || {
        let ((node, _), _) = table.range::<_, (String, NamespacedName)>(&next..).next()?;
        // The smallest string greater than `node`.
        next = begin_of(format!("{node}\0"));
        Some(node)
    });
    nodes.filter_map(|node| {
        let (key, found) = table.get_key_value(&(node.clone(), name.clone()))?;
        Some((key.0.as_str(), &**found))
    })
}

#[cfg(test)]
mod tests;
