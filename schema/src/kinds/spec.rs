//! What each kind says of itself, in one file of its folder: `kinds/<kind>/descriptor.rs`.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::content::{Content, Values};
use super::exclusive::ExclusiveUse;
use super::names::NameForm;
use super::pod::PodSpec;
use super::reference::Reference;
use crate::files::ContentUse;
use crate::manifest::dialects::Notes;
use crate::manifest::parse::node::Node;
use crate::meta::{ObjectMeta, StringMap};
use crate::violation::{Findings, OwnedStep, Path};

/// What all objects of a kind have in common.
#[derive(Debug)]
pub struct Descriptor {
    /// `pods`.
    pub plural: &'static str,
    /// Other names on a command line, the shortest first, as in kubectl where it has the kind.
    pub short_names: &'static [&'static str],
    /// The `apiVersion`, as Kubernetes spells it where it has the kind.
    pub api_version: &'static str,
    /// Where the fields of its spec stand in a manifest.
    pub fields: Fields,
    /// Whether its objects belong to namespaces. Others lie under [`crate::meta::DEFAULT_NAMESPACE`].
    pub is_namespaced: bool,
    /// Whether an object that does not become healthy fails the commit that changed it. Machines come and go, and no
    /// commit is to blame.
    pub fails_commits: bool,
    /// Whether only another commit mends an object that has failed. Others may be well once another object is.
    pub fails_for_good: bool,
    /// Whether it has pods that bear its name.
    pub pods_bear_its_name: bool,
    /// Whether its replicas have the object's own labels, so that other labels make others of them.
    pub labels_are_of_replicas: bool,
    /// How its objects may be called.
    pub names: NameForm,
    /// Spellings of older systems.
    pub(crate) older: Older,
}

/// Where the fields of a kind's spec stand in a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fields {
    /// Under `spec`.
    InSpec,
    /// Beside `metadata`, as those of Kubernetes' ConfigMap.
    AtTop,
}

/// Spellings of older systems that are still read.
#[derive(Debug)]
pub(crate) struct Older {
    /// Words for the kind.
    pub(crate) words: &'static [&'static str],
    /// `apiVersion`s.
    pub(crate) api_versions: &'static [&'static str],
    /// `apiVersion` may be missing.
    pub(crate) may_lack_api_version: bool,
    /// Rewrites a document, a mapping with today's word for the kind, into today's spelling.
    pub(crate) rewrite: fn(&mut Node, &mut Notes<'_>),
}

impl Older {
    /// Of a kind that Kubernetes does not have.
    pub(crate) const fn of_own_kind(rewrite: fn(&mut Node, &mut Notes<'_>)) -> Self {
        Self { words: &[], api_versions: OWN_OLDER_API_VERSIONS, may_lack_api_version: true, rewrite }
    }
}

/// `apiVersion` of the kinds that Kubernetes does not have.
pub const OWN_API_VERSION: &str = "minik8s.io/v1";

/// Older `apiVersion`s of the kinds that Kubernetes does not have. They may also have none.
pub(super) const OWN_OLDER_API_VERSIONS: &[&str] =
    &["v1", "app/v1", "apps/v1", "autoscaling/v1", "autoscaling/v2", "batch/v1", "minik8s/v1", "/api/v1"];

/// The pod that an object is, or makes more of.
#[derive(Debug, Clone, Copy)]
pub struct PodOf<'a> {
    /// Its spec.
    pub spec: &'a PodSpec,
    /// Where that stands in the manifest.
    pub at: &'static [&'static str],
    /// Its labels.
    pub labels: &'a StringMap,
    /// How many of it there are to be, on each node that fits if `is_per_node`.
    pub count: u32,
    /// It is one of each node.
    pub is_per_node: bool,
}

/// What an object has to do with others.
pub struct Links<S> {
    /// The objects that it names, but for `dependsOn`.
    pub references: for<'a> fn(&'a S, &ObjectMeta) -> Vec<Reference<'a>>,
    /// What it has, or would have, that only one object of the cluster can have; [`super::Resource::exclusives`] adds the
    /// host ports of its pod.
    pub exclusives: fn(&S, &ObjectMeta) -> Vec<ExclusiveUse>,
    /// The files of the repository and the secrets that it names; [`super::Resource::files`] adds those of its
    /// pod.
    pub files: fn(&S) -> Vec<ContentUse>,
    /// Paths from the document's root whose line and column other checks across objects need;
    /// [`super::Resource::further_places`] adds those of its pod's host ports.
    pub further_places: fn(&S) -> Vec<Vec<OwnedStep>>,
    /// Its values that are too big for etcd, if the kind has such.
    pub content: Option<ContentOf<S>>,
    /// The pod that the object is, or makes more of.
    pub pod: for<'a> fn(&'a S, &'a ObjectMeta) -> Option<PodOf<'a>>,
}

impl<S> Links<S> {
    /// Of a kind whose objects have to do with no others.
    pub const NONE: Self = Self {
        references: |_, _| Vec::new(),
        exclusives: |_, _| Vec::new(),
        files: |_| Vec::new(),
        further_places: |_| Vec::new(),
        content: None,
        pod: |_, _| None,
    };
}

/// Content of a kind's objects. What uses it is made anew when it changes.
pub struct ContentOf<S> {
    /// The values, of a spec as it is written.
    pub written: fn(&S) -> Values,
    /// What stands for them, of a spec after its defaults, and whether it must stay as it is while it is used.
    pub kept: fn(&S) -> Option<(&Content, bool)>,
}

/// The spec of one kind. No item has a default: the compiler asks each new kind for all of them. The loader does the
/// same with all of them: schema walk, serde, `validate`, `fill_defaults`.
pub trait KindSpec: Serialize + DeserializeOwned + JsonSchema + PartialEq {
    /// What all its objects have in common.
    const DESCRIPTOR: Descriptor;

    /// What its objects have to do with others.
    const LINKS: Links<Self>;

    /// Checks the spec as it is written, before the defaults, at the path `at` (`spec`).
    fn validate(&self, at: &Path<'_>, findings: &mut Findings);

    /// Fills in what follows from other fields. Doing it twice changes nothing.
    fn fill_defaults(&mut self);

    /// What runs of it is stopped and started anew as `after` says; else it goes on.
    fn is_replaced_by(&self, after: &Self) -> bool;
}
