//! What a change does to what runs, in words. One small function per kind. Pure.
//!
//! Reads an object before and after, decides which effects it has. Order of effects is that of
//! the functions, so the same change always reads the same.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schema::kinds::cluster::{ClusterSpec, DEFAULT_ZONE, Defaults};
use schema::kinds::pod::Protocol;
use schema::kinds::{Kind, Resource};
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::Table;
use schema::violation::OwnedStep;
use serde::{Serialize, Serializer};

use super::{Action, Field};
use crate::gitops::diff::FILES;
use crate::gitops::plan::{Act, Step, StepReason};
use crate::kinds;

pub(super) mod endpoints;
pub(crate) mod other;
pub(crate) mod service;
pub(crate) mod workload;

/// One thing that happens when a change is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Pods that were not there start.
    Start {
        /// How many.
        pods: u32,
        /// Their containers.
        containers: Vec<String>,
    },
    /// Pods are stopped and started anew.
    Restart {
        /// How many.
        pods: u32,
        /// Their containers.
        containers: Vec<String>,
        /// Fields that cause it.
        because: Vec<String>,
    },
    /// Pods are stopped for good.
    Stop {
        /// How many.
        pods: u32,
        /// Their containers.
        containers: Vec<String>,
    },
    /// Nothing that runs is touched.
    InPlace,
    /// Only where the object stands in the repository changes.
    Moved,
    /// More or fewer pods.
    Replicas {
        /// Before.
        from: u32,
        /// After.
        to: u32,
    },
    /// A port answers that did not.
    PortOpens(Port),
    /// A port does not answer any more.
    PortCloses(Port),
    /// A name can be looked up that could not.
    NameAppears(String),
    /// A name can't be looked up any more.
    NameVanishes(String),
    /// Other pods are behind the service.
    Selects,
    /// No pod is behind this service any more.
    EndpointsLost {
        /// `namespace/name`.
        service: String,
    },
    /// The kind is only stored so far: none of the other effects happens yet.
    NotRun(Kind),
    /// Anything that is said best as a sentence.
    Says(String),
}

/// A port and where it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Where it is: `host port`, `node port`, `service port`, `192.0.2.1 port`.
    pub place: Cow<'static, str>,
    /// The number.
    pub number: u16,
    /// Protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        match self.number {
            0 => write!(f, "{} (any free)/{protocol}", self.place),
            number => write!(f, "{} {number}/{protocol}", self.place),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Start { pods, containers } => write!(f, "starts {}", many(*pods, containers)),
            Effect::Restart { pods, containers, because } => {
                write!(f, "restarts {}", many(*pods, containers))?;
                if because.is_empty() { Ok(()) } else { write!(f, ", because of {}", because.join(", ")) }
            }
            Effect::Stop { pods, containers } => write!(f, "stops {}", many(*pods, containers)),
            Effect::InPlace => f.write_str("changed in place, nothing restarts"),
            Effect::Moved => f.write_str("nothing runs differently"),
            Effect::Replicas { from, to } if to > from => {
                write!(f, "replicas {from} -> {to}: {} more", plural(to - from, "pod"))
            }
            Effect::Replicas { from, to } => {
                write!(f, "replicas {from} -> {to}: {} fewer", plural(from - to, "pod"))
            }
            Effect::PortOpens(port) => write!(f, "opens {port}"),
            Effect::PortCloses(port) => write!(f, "closes {port}"),
            Effect::NameAppears(name) => write!(f, "name appears: {name}"),
            Effect::NameVanishes(name) => write!(f, "name vanishes: {name}"),
            Effect::Selects => f.write_str("other pods may be behind it"),
            Effect::EndpointsLost { service } => {
                write!(f, "service {service} loses its last endpoint: nothing answers there")
            }
            Effect::NotRun(kind) => {
                write!(f, "not yet: this version stores a {kind} and does not run it")
            }
            Effect::Says(text) => f.write_str(text),
        }
    }
}

impl Serialize for Effect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn plural(count: u32, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

fn many(pods: u32, containers: &[String]) -> String {
    let word = if containers.len() == 1 { "container" } else { "containers" };
    format!("{} ({word} {})", plural(pods, "pod"), containers.join(", "))
}

/// Live objects, and what of them the plan changes.
pub(super) struct SnapshotBuilder<'a> {
    live: &'a Table<ObjectRef, Object>,
    changed: BTreeMap<&'a ObjectRef, Option<&'a Object>>,
    /// The Cluster object once all is applied.
    cluster: Option<&'a ClusterSpec>,
}

impl<'a> SnapshotBuilder<'a> {
    pub(super) fn new(live: &'a Table<ObjectRef, Object>, steps: &'a [Step]) -> Self {
        let changed = steps.iter().map(|step| {
            let after = match &step.act {
                Act::Create(object) | Act::Update(object) | Act::Replace(object) => Some(&**object),
                Act::Delete => None,
            };
            (&step.object, after)
        });
        let mut builder = Self { live, changed: changed.collect(), cluster: None };
        let cluster = builder.after().find_map(|(_, object)| match &object.resource {
            Resource::Cluster(cluster) => Some(&**cluster),
            _ => None,
        });
        builder.cluster = cluster;
        builder
    }

    /// What workloads get that name nothing of their own.
    pub(super) fn defaults(&self) -> Defaults {
        self.cluster.map(|cluster| cluster.defaults.clone()).unwrap_or_default()
    }

    pub(super) fn before(&self, object: &ObjectRef) -> Option<&'a Object> {
        self.live.get(object).map(|live| &live.value)
    }

    fn now(&self, object: &ObjectRef) -> Option<&'a Object> {
        match self.changed.get(object) {
            Some(changed) => *changed,
            None => self.before(object),
        }
    }

    /// Every object once the plan is carried out.
    pub(super) fn after(&self) -> impl Iterator<Item = (&'a ObjectRef, &'a Object)> {
        let kept = self.live.iter().filter(|(object, _)| !self.changed.contains_key(*object));
        let kept = kept.map(|(object, live)| (object, &live.value));
        let changed = self.changed.iter().filter_map(|(object, after)| Some((*object, (*after)?)));
        kept.chain(changed)
    }
}

/// One kind's function: the object, before, after, the fields that differ.
pub(crate) struct Case<'a> {
    object: &'a ObjectRef,
    before: Option<&'a Resource>,
    after: Option<&'a Resource>,
    fields: &'a [Field],
    action: Action,
    /// The zone of the cluster's own names.
    zone: &'a str,
}

impl<'a> Case<'a> {
    /// Before and after as the spec that `of` takes out of a resource.
    fn specs<S>(&self, of: impl Fn(&'a Resource) -> Option<&'a S>) -> (Option<&'a S>, Option<&'a S>) {
        (self.before.and_then(&of), self.after.and_then(&of))
    }

    /// Files of the repository that its pods need differ.
    fn files_differ(&self) -> bool {
        self.fields.iter().any(is_file)
    }

    /// Fields of the spec that differ, the first few.
    fn because(&self) -> Vec<String> {
        const NAMED_MAX: usize = 5;
        let is_cause = |field: &&Field| field.path.starts_with("spec") || is_file(field);
        let spec = self.fields.iter().filter(is_cause);
        let mut named: Vec<String> = spec.clone().take(NAMED_MAX).map(|field| field.path.clone()).collect();
        let more = spec.count().saturating_sub(NAMED_MAX);
        if more > 0 {
            named.push(format!("{more} more"));
        }
        named
    }
}

/// A file of the repository that a volume or secret names.
fn is_file(field: &Field) -> bool {
    matches!(field.steps.first(), Some(OwnedStep::Field(name)) if name == FILES)
}

/// The effects of one step, but for those that only all steps together have.
pub(super) fn of(builder: &SnapshotBuilder<'_>, step: &Step, fields: &[Field]) -> Vec<Effect> {
    if matches!(step.why, StepReason::Moved { .. }) {
        return vec![Effect::Moved];
    }
    let (before, after) = (builder.before(&step.object), builder.now(&step.object));
    let case = Case {
        object: &step.object,
        before: before.map(|object| &object.resource),
        after: after.map(|object| &object.resource),
        fields,
        action: Action::of(&step.act),
        zone: builder.cluster.map_or(DEFAULT_ZONE, |cluster| &cluster.dns.zone),
    };
    let mut effects = (kinds::of(step.object.kind).effects)(&case);
    if effects.is_empty() && case.action == Action::Update {
        effects.push(Effect::InPlace);
    }
    if !step.object.kind.is_run() {
        effects.push(Effect::NotRun(step.object.kind));
    }
    effects
}

/// What is only in `after` appears, what is only in `before` goes: first those that go.
fn appear_and_go<T: Ord>(
    before: impl IntoIterator<Item = T>,
    after: impl IntoIterator<Item = T>,
    goes: fn(T) -> Effect,
    appears: fn(T) -> Effect,
) -> Vec<Effect> {
    let before: std::collections::BTreeSet<T> = before.into_iter().collect();
    let mut after: std::collections::BTreeSet<T> = after.into_iter().collect();
    let mut effects = Vec::new();
    for item in before {
        if !after.remove(&item) {
            effects.push(goes(item));
        }
    }
    effects.extend(after.into_iter().map(appears));
    effects
}
