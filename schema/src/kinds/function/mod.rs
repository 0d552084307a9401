//! Function: a folder of the repository that answers calls.
//!
//! The contract of Python functions is that of Apache OpenWhisk (`main(params) -> dict`), and scaling is that of
//! Knative (KPA). Missing fields are taken from the Cluster object; see [`FunctionSpec::with_defaults`].

mod descriptor;
mod pod;
mod runtime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::cluster::FunctionDefaults;
use super::pod::{EnvVar, ResourceRequirements, SecretKeyRef};
use super::trigger::Trigger;
use crate::codec::content_hash;
use crate::content_refs::{BlobRef, Files, find_path};
use crate::quantity::Memory;

pub use pod::{FUNCTION_LABEL, PORT};
pub use runtime::{DOCKERFILE, FunctionFolder, MAIN_FILES, detect_runtime, handler_fault, is_python_file};

/// Default concurrent calls of one replica: calls of OpenWhisk do not overlap either.
pub const DEFAULT_CONCURRENCY: u32 = 1;
/// Default percentage of `concurrency` at which replicas are added, as in Knative.
pub const DEFAULT_TARGET_UTILIZATION_PERCENTAGE: u32 = 70;
/// Default number of calls that may wait for a replica. Knative queues 10,000; with bodies of 1 MiB that exceeds
/// the memory of small nodes.
pub const DEFAULT_QUEUE_LENGTH: u32 = 1_000;
/// Default number of seconds that a call may wait for its first replica.
pub const DEFAULT_COLD_START_TIMEOUT_SECONDS: u32 = 60;
/// Default maximum body of calls and answers: OpenWhisk's 1 MB.
pub const DEFAULT_BODY_LIMIT: Memory = Memory { bytes: 1 << 20 };
/// Default name of the entry point.
pub const DEFAULT_HANDLER: &str = "main";

/// Desired state of a function.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct FunctionSpec {
    /// Folder of the repository, from its root, with `main.py` or `func.py` (and optionally `requirements.txt`), or
    /// with a `Dockerfile`. A change of its content rebuilds the image. Either this or `image`.
    pub source: Option<String>,
    /// Image that serves the HTTP contract of functions on port 8080, instead of `source`.
    pub image: Option<String>,
    /// Method of building an image from the folder. By default a `Dockerfile` in the folder takes precedence over
    /// `main.py`, and `main.py` over `func.py`.
    pub runtime: Option<Runtime>,
    /// Python function that handles calls, `name` or `module.name`; defaults to `main` of `main.py` or `func.py`.
    /// Not with the runtime `dockerfile`.
    pub handler: Option<String>,
    /// Environment variables; later ones of the same name override earlier ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Requested resources and limits of one replica. Missing amounts are taken from the Cluster's
    /// `functions.resources`: limits of 500m CPU and 256Mi memory, and requests of 50m and 64Mi.
    #[serde(skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// Seconds after which a call is ended and answered with 504, at most 600. Defaults to the Cluster's
    /// `functions.timeoutSeconds`: 60.
    #[schemars(range(min = 1, max = 600))]
    pub timeout_seconds: Option<u32>,
    /// Seconds that a call may wait for a replica to start before it is answered with 503.
    #[schemars(range(min = 1, max = 600))]
    pub cold_start_timeout_seconds: u32,
    /// Concurrent calls of one replica, at most 1000 (Knative's `containerConcurrency`).
    #[schemars(range(min = 1, max = 1000))]
    pub concurrency: u32,
    /// Percentage of `concurrency` in use from which replicas are added.
    #[schemars(range(min = 1, max = 100))]
    pub target_utilization_percentage: u32,
    /// Maximum number of calls that wait for a replica, at most 10000; further calls are answered with 503.
    #[schemars(range(max = 10000))]
    pub queue_length: u32,
    /// Minimum number of replicas, even without calls.
    #[schemars(range(max = 1000))]
    pub min_scale: u32,
    /// Maximum number of replicas, at most 1000. Defaults to the Cluster's `functions.maxScale`: 10.
    #[schemars(range(min = 1, max = 1000))]
    pub max_scale: Option<u32>,
    /// Seconds without a call after which the last replica stops, if `minScale` is 0; at most 86400. Defaults to
    /// the Cluster's `functions.scaleToZeroAfterSeconds`: 30.
    #[schemars(range(min = 1, max = 86400))]
    pub scale_to_zero_after_seconds: Option<u32>,
    /// Maximum body of a call, at most 64Mi; a larger one is answered with 413.
    pub request_body_limit: Memory,
    /// Maximum answer, at most 64Mi; a larger one is replaced by 502.
    pub response_body_limit: Memory,
    /// Allows calls from anyone who reaches a node. Otherwise only pods and nodes of the cluster may call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
    /// Allows calls from outside of the cluster's pods and nodes with `Authorization: Bearer TOKEN`. Not together
    /// with `public`.
    pub auth: Option<FunctionAuth>,
    /// Confinement of replicas on their nodes; strict by default.
    pub sandbox: Sandbox,
    /// Triggers that call the function. Each call is a run of `function:NAME`, which `minik8s get runs` shows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Trigger>,
}

/// Method of building an image from a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// `main.py` or `func.py` on Minik8s' Python base, with `requirements.txt` installed.
    Python,
    /// The folder's `Dockerfile`; the container serves the HTTP contract on port 8080.
    Dockerfile,
}

impl Default for FunctionSpec {
    fn default() -> Self {
        Self {
            source: None,
            image: None,
            runtime: None,
            handler: None,
            env: Vec::new(),
            resources: ResourceRequirements::default(),
            timeout_seconds: None,
            cold_start_timeout_seconds: DEFAULT_COLD_START_TIMEOUT_SECONDS,
            concurrency: DEFAULT_CONCURRENCY,
            target_utilization_percentage: DEFAULT_TARGET_UTILIZATION_PERCENTAGE,
            queue_length: DEFAULT_QUEUE_LENGTH,
            min_scale: 0,
            max_scale: None,
            scale_to_zero_after_seconds: None,
            request_body_limit: DEFAULT_BODY_LIMIT,
            response_body_limit: DEFAULT_BODY_LIMIT,
            public: false,
            auth: None,
            sandbox: Sandbox::default(),
            triggers: Vec::new(),
        }
    }
}

impl FunctionSpec {
    /// Returns the spec with missing fields taken from the Cluster object: every field that has a default is set.
    /// Not part of the stored object, so that a change of the Cluster reaches all functions.
    pub fn with_defaults(&self, cluster: &FunctionDefaults) -> Self {
        let mut effective = self.clone();
        effective.resources = self.resources.or(&cluster.resources);
        effective.timeout_seconds.get_or_insert(cluster.timeout_seconds);
        effective.max_scale.get_or_insert(cluster.max_scale.max(self.min_scale));
        effective.scale_to_zero_after_seconds.get_or_insert(cluster.scale_to_zero_after_seconds);
        effective
    }
}

impl FunctionSpec {
    /// True if the image must be rebuilt for `after`.
    pub fn is_rebuilt_by(&self, after: &Self) -> bool {
        (&self.source, &self.runtime) != (&after.source, &after.runtime)
    }
}

// Authentication of callers from outside of the cluster.

/// Token authentication for callers from outside of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct FunctionAuth {
    /// Source of the token.
    pub token_from: TokenSource,
}

/// Source of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct TokenSource {
    /// Key of a secret that is encrypted for every node that accepts calls.
    pub secret_key_ref: SecretKeyRef,
}

// Confinement of function replicas on their nodes.

/// Confinement of replicas; strict by default. Not configurable: no capabilities, no new privileges, no host
/// network, `/tmp` without executables and devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct Sandbox {
    /// User id of the process; not 0, which is root.
    #[schemars(range(min = 1, max = 2147483647))]
    pub run_as_user: u32,
    /// Makes the root file system read-only, except for `/tmp`.
    pub read_only_root_filesystem: bool,
    /// Size of `/tmp`, which is in memory and counts toward the memory limit.
    pub tmp_size_limit: Memory,
    /// Maximum number of processes and threads.
    #[schemars(range(min = 8, max = 32768))]
    pub pids_limit: u32,
    /// Maximum number of open files.
    #[schemars(range(min = 64, max = 1048576))]
    pub open_files_limit: u32,
}

impl Default for Sandbox {
    /// User and sizes are those of distroless images, Knative's secure pod defaults and OpenWhisk; the pids limit
    /// is stricter (OpenWhisk: 1024).
    fn default() -> Self {
        Self {
            run_as_user: 65532,
            read_only_root_filesystem: true,
            tmp_size_limit: Memory { bytes: 64 << 20 },
            pids_limit: 256,
            open_files_limit: 1024,
        }
    }
}

// Build state of a function's image.

/// Build state of the image for the desired source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum ImageState {
    /// No node has started a build.
    #[default]
    Waiting,
    /// A node builds the image.
    Building {
        /// Name of the node.
        node: String,
    },
    /// The image exists.
    Ready,
    /// The build failed; the previous source keeps answering calls.
    Failed {
        /// End of the build output.
        why: String,
    },
}

// Names of function images, derived from their content, so that equal sources are built once.

/// Prefix of the names of function images that nodes build. Not a registry: `.local` is never contacted.
pub const IMAGE_PREFIX: &str = "minik8s.local/function:";

/// Version of the content that is added to each image besides the source: a new number rebuilds every image. A test
/// of the agent enforces the change.
pub const RUNTIME_VERSION: u32 = 6;

/// Prefix of the names of all images that nodes build.
const LOCAL_PREFIX: &str = "minik8s.local/";
/// Repository in a registry, below its address.
const REGISTRY_REPOSITORY: &str = "function";

/// Number of hex digits of the hash.
const HASH_DIGITS: usize = 32;

/// Returns the name of the image that is built from the function's source, and the source.
pub fn built_image<'f>(
    function: &FunctionSpec,
    files: &'f Files,
    cluster: &FunctionDefaults,
) -> Option<(String, &'f BlobRef)> {
    let (_, source) = find_path(files, function.source.as_ref()?)?;
    let of = (RUNTIME_VERSION, &function.runtime, &cluster.python_base, &source.digest);
    let mut hash = content_hash(&of);
    hash.truncate(HASH_DIGITS);
    Some((format!("{IMAGE_PREFIX}{hash}"), source))
}

/// Returns the hash in the name of an image that a node built.
pub fn image_hash(reference: &str) -> Option<&str> {
    reference.strip_prefix(IMAGE_PREFIX).filter(|hash| is_hash(hash))
}

fn is_hash(text: &str) -> bool {
    text.len() == HASH_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Returns the name that an image built by a node has in the registry at `address`.
pub fn registry_image(address: &str, hash: &str) -> String {
    format!("{}/{REGISTRY_REPOSITORY}:{hash}", address.trim_end_matches('/'))
}

/// Splits such a name, in any registry, into its repository and hash.
pub fn split_registry_image(reference: &str) -> Option<(&str, &str)> {
    let (repository, hash) = reference.rsplit_once(':')?;
    let (address, name) = repository.rsplit_once('/')?;
    (name == REGISTRY_REPOSITORY && format!("{address}/") != LOCAL_PREFIX && is_hash(hash))
        .then_some((repository, hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Cpu;

    #[test]
    fn what_a_function_leaves_open_is_the_clusters() {
        let mut function = FunctionSpec { min_scale: 20, ..FunctionSpec::default() };
        function.resources.limits.memory = Some(Memory { bytes: 64 << 20 });
        let effective = function.with_defaults(&FunctionDefaults::default());
        assert_eq!((effective.timeout_seconds, effective.scale_to_zero_after_seconds), (Some(60), Some(30)));
        assert_eq!(effective.max_scale, Some(20), "never below minScale");
        assert_eq!(effective.resources.limits.cpu, Some(Cpu { millis: 500 }));
        assert_eq!(effective.resources.limits.memory, Some(Memory { bytes: 64 << 20 }));
        assert!(effective.resources.requests.memory <= effective.resources.limits.memory);
        assert_eq!(effective.with_defaults(&FunctionDefaults::default()), effective);
    }
}

#[cfg(test)]
mod image_tests {
    use std::collections::BTreeSet;

    use super::Runtime;
    use super::*;
    use crate::content_refs::BlobKind;

    // Seen red without the base in the hash.
    #[test]
    fn another_source_runtime_or_base_is_another_image_and_nothing_else_is() {
        let image = |digit: &str, function: &FunctionSpec, cluster: &FunctionDefaults| {
            let (digest, texts, source) = (digit.repeat(64), Vec::new(), String::new());
            let blob = BlobRef { digest, size: 1, kind: BlobKind::Folder, texts, source };
            let files = [("functions/hello".to_owned(), blob)].into();
            built_image(function, &files, cluster).unwrap().0
        };
        let source = Some("functions/hello".to_owned());
        let (function, cluster) =
            (FunctionSpec { source, ..FunctionSpec::default() }, FunctionDefaults::default());
        let docker = FunctionSpec { runtime: Some(Runtime::Dockerfile), ..function.clone() };
        let on = |base: &str| FunctionDefaults { python_base: Some(base.to_owned()), ..cluster.clone() };
        let first = image("a", &function, &cluster);
        let others = [
            image("b", &function, &cluster),
            image("a", &docker, &cluster),
            image("a", &function, &on("base:1")),
            image("a", &function, &on("base:2")),
        ];
        assert_eq!(others.iter().chain([&first]).collect::<BTreeSet<_>>().len(), 5, "{others:?}");
        assert!(others.iter().all(|name| image_hash(name).is_some()), "{others:?}");
        let slower = FunctionSpec { timeout_seconds: Some(600), ..function };
        let index = Some("https://index.lan/simple".to_owned());
        let elsewhere = FunctionDefaults { package_index: index, ..cluster };
        assert_eq!(image("a", &slower, &elsewhere), first);
    }
}
