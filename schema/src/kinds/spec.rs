//! Self-description of kinds. Each kind implements it in `kinds/<kind>/descriptor.rs`.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::content::{Content, Values};
use super::exclusive::ExclusiveUse;
use super::pod::PodSpec;
use super::reference::Reference;
use super::trigger::Trigger;
use crate::content_refs::ContentUse;
use crate::document::node::Node;
use crate::manifest::dialects::Notes;
use crate::meta::{ObjectMeta, StringMap};
use crate::names::NameForm;
use crate::violation::{Findings, OwnedStep, Path};

/// Properties that all objects of a kind share.
#[derive(Debug)]
pub struct Descriptor {
    /// Plural name, for example `pods`.
    pub plural: &'static str,
    /// Other names on a command line, shortest first, as in kubectl if it has the kind.
    pub short_names: &'static [&'static str],
    /// The `apiVersion`, spelled as in Kubernetes if it has the kind.
    pub api_version: &'static str,
    /// Location of the spec's fields in a manifest.
    pub fields: FieldPlacement,
    /// True if objects belong to namespaces. Others are stored under [`crate::meta::DEFAULT_NAMESPACE`].
    pub is_namespaced: bool,
    /// True if an object that does not become healthy fails the commit that changed it. False for machines, which
    /// come and go without a commit to blame.
    pub fails_commits: bool,
    /// True if only another commit can repair a failed object. Otherwise it may recover when another object does.
    pub failure_is_final: bool,
    /// Pods of an object, which are named after it.
    pub pods: Pods,
    /// True if the status of an object is that of its pods, as in their rollout. False for a kind whose own view has
    /// it.
    pub shows_rollout: bool,
    /// True if replicas carry the object's own labels, so that changed labels replace the replicas.
    pub labels_propagate: bool,
    /// Format of object names.
    pub names: NameForm,
    /// Accepted spellings of older systems.
    pub(crate) older: OlderSpellings,
}

impl Descriptor {
    /// Properties of most kinds. Each kind has its own [`Self::plural`].
    pub const DEFAULT: Self = Self {
        plural: "",
        short_names: &[],
        api_version: OWN_API_VERSION,
        fields: FieldPlacement::InSpec,
        is_namespaced: true,
        fails_commits: true,
        failure_is_final: false,
        pods: Pods::None,
        shows_rollout: false,
        labels_propagate: false,
        names: NameForm::Short,
        older: OlderSpellings::NONE,
    };

    /// Returns the descriptor, whose plural must not be empty; the check runs at compile time.
    pub(super) const fn checked(&'static self) -> &'static Self {
        assert!(!self.plural.is_empty(), "a kind has no plural name");
        self
    }
}

/// Pods that the workloads controller makes for each object of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pods {
    /// No pods.
    None,
    /// The object is a pod. An autoscaler may add copies.
    Single,
    /// A number of equal pods.
    Replicas,
    /// One pod on each eligible node.
    PerNode,
}

/// Location of the fields of a kind's spec in a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldPlacement {
    /// Under `spec`.
    InSpec,
    /// Next to `metadata`, as in a Kubernetes ConfigMap.
    AtTop,
}

/// Spellings of older systems that are still accepted.
#[derive(Debug)]
pub(crate) struct OlderSpellings {
    /// Names of the kind.
    pub(crate) words: &'static [&'static str],
    /// Values of `apiVersion`.
    pub(crate) api_versions: &'static [&'static str],
    /// True if `apiVersion` may be missing.
    pub(crate) may_lack_api_version: bool,
    /// Rewrites a document, a mapping that has the current name of the kind already, into the current spelling.
    pub(crate) rewrite: fn(&mut Node, &mut Notes<'_>),
}

impl OlderSpellings {
    /// Description for a kind without older spellings.
    pub(crate) const NONE: Self =
        Self { words: &[], api_versions: &[], may_lack_api_version: false, rewrite: |_, _| () };

    /// Creates the description for a kind that Kubernetes does not have.
    pub(crate) const fn for_own_kind(rewrite: fn(&mut Node, &mut Notes<'_>)) -> Self {
        Self { words: &[], api_versions: OWN_OLDER_API_VERSIONS, may_lack_api_version: true, rewrite }
    }
}

/// `apiVersion` of the kinds that Kubernetes does not have.
pub const OWN_API_VERSION: &str = "minik8s.io/v1";

/// Older `apiVersion`s of the kinds that Kubernetes does not have. The field may also be missing.
const OWN_OLDER_API_VERSIONS: &[&str] =
    &["v1", "app/v1", "apps/v1", "autoscaling/v1", "autoscaling/v2", "batch/v1", "minik8s/v1", "/api/v1"];

/// Pod that an object is or replicates.
#[derive(Debug, Clone, Copy)]
pub struct ObjectPod<'a> {
    /// Spec of the pod.
    pub spec: &'a PodSpec,
    /// Path of the spec in the manifest.
    pub at: &'static [&'static str],
    /// Labels of the pod.
    pub labels: &'a StringMap,
    /// Desired number of pods; on each eligible node if `is_per_node`.
    pub count: u32,
    /// True if every eligible node has its own pod.
    pub is_per_node: bool,
}

impl ObjectPod<'_> {
    /// Checks what concerns the spec and the labels of the pod together.
    pub(crate) fn validate(&self, findings: &mut Findings) {
        below(&Path::ROOT, self.at, &mut |at| self.spec.validate_spread(self.labels, at, findings));
    }
}

/// Calls `act` with the path of the value under these keys.
fn below(at: &Path<'_>, fields: &[&str], act: &mut dyn FnMut(&Path<'_>)) {
    match fields {
        [] => act(at),
        [first, rest @ ..] => below(&at.field(first), rest, act),
    }
}

/// Links of an object to other objects.
pub struct Links<S> {
    /// Returns the objects that the spec names. `dependsOn` is not part of it.
    pub references: for<'a> fn(&'a S, &ObjectMeta) -> Vec<Reference<'a>>,
    /// Returns the uses, actual or desired, of resources that only one object of the cluster may have;
    /// [`super::Resource::exclusives`] adds the host ports of its pod.
    pub exclusives: fn(&S, &ObjectMeta) -> Vec<ExclusiveUse>,
    /// Returns the repository files and the secrets that the spec names; [`super::Resource::files`] adds those of
    /// its pod.
    pub files: fn(&S) -> Vec<ContentUse>,
    /// Returns the paths from the document's root whose line and column other cross-object checks need;
    /// [`super::Resource::extra_position_paths`] adds those of its pod's host ports.
    pub extra_position_paths: fn(&S) -> Vec<Vec<OwnedStep>>,
    /// Values that are too large for etcd, if the kind has any.
    pub content: Option<ContentLink<S>>,
    /// Returns the pod that the object is or replicates.
    pub pod: for<'a> fn(&'a S, &'a ObjectMeta) -> Option<ObjectPod<'a>>,
}

impl<S> Links<S> {
    /// Links of a kind whose objects have no links.
    pub const NONE: Self = Self {
        references: |_, _| Vec::new(),
        exclusives: |_, _| Vec::new(),
        files: |_| Vec::new(),
        extra_position_paths: |_| Vec::new(),
        content: None,
        pod: |_, _| None,
    };
}

/// Content of a kind's objects. Pods that use it are recreated when it changes.
pub struct ContentLink<S> {
    /// Returns the values of a spec as written.
    pub values: fn(&S) -> Values,
    /// Returns the stored content of a spec after its defaults, and true if it is immutable while in use.
    pub stored: fn(&S) -> Option<(&Content, bool)>,
}

/// The spec of one kind. Only what few kinds have has a default, so that the compiler asks each new kind for the rest.
/// The loader treats every kind alike: schema walk, serde, `validate`, `fill_defaults`.
pub trait KindSpec: Serialize + DeserializeOwned + JsonSchema + PartialEq {
    /// Properties that all objects of the kind share.
    const DESCRIPTOR: Descriptor;

    /// Links of the kind's objects to other objects.
    const LINKS: Links<Self>;

    /// Checks the spec as written, before defaults, at the path `at` (`spec`).
    fn validate(&self, at: &Path<'_>, findings: &mut Findings);

    /// Fills in fields that follow from other fields. Idempotent.
    fn fill_defaults(&mut self);

    /// True if everything that runs for the object must be stopped and restarted for `after`; otherwise it keeps
    /// running.
    fn is_replaced_by(&self, after: &Self) -> bool;

    /// Returns the seconds without progress after which an unhealthy object has failed. `default` is the cluster's.
    fn deadline_seconds(&self, default: u32) -> u32 {
        default
    }

    /// Returns the triggers that start runs of the object.
    fn triggers(&self) -> &[Trigger] {
        &[]
    }
}
