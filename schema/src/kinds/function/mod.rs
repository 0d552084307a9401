//! Function: a folder of the repository that answers calls.
//!
//! The contract of Python functions is that of Apache OpenWhisk (`main(params) -> dict`), and scaling is that of
//! Knative (KPA). Missing fields are taken from the Cluster object; see [`FunctionSpec::with_defaults`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod auth;
mod descriptor;
mod dialect;
mod image;
mod pod;
mod sandbox;
mod status;
mod validate;

pub use auth::{FunctionAuth, TokenSource};
pub use image::{IMAGE_PREFIX, RUNTIME_VERSION, built_image, image_hash, of_registry, registry_image};
pub use pod::{FUNCTION_LABEL, PORT};
pub use sandbox::Sandbox;
pub use status::ImageState;

use super::cluster::FunctionDefaults;
use super::pod::{EnvVar, ResourceRequirements};
use super::trigger::Trigger;
use crate::quantity::Memory;

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
