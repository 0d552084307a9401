//! Cluster-wide defaults of functions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::kinds::pod::{LocalReference, ResourceList, ResourceRequirements};
use crate::quantity::{Cpu, Memory};

/// Defaults for functions that do not set these fields.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct FunctionDefaults {
    /// Requested resources and limits of one replica.
    pub resources: ResourceRequirements,
    /// Maximum duration of a call in seconds.
    #[schemars(range(min = 1, max = 600))]
    pub timeout_seconds: u32,
    /// Maximum number of replicas of one function.
    #[schemars(range(min = 1, max = 1000))]
    pub max_scale: u32,
    /// Seconds without a call after which the last replica stops.
    #[schemars(range(min = 1, max = 86400))]
    pub scale_to_zero_after_seconds: u32,
    /// Maximum number of calls per minute to all functions of one namespace on one node; further calls are answered
    /// with 429. Unlimited if absent.
    #[schemars(range(min = 1))]
    pub calls_per_minute: Option<u32>,
    /// Base image of Python functions, with `python3`, and `pip` for functions with packages. By default nodes
    /// build one from packages of their Debian or Ubuntu.
    pub python_base: Option<String>,
    /// Registries, as `host`, `host:port` or either with a path, from which builds may pull the images that a
    /// `Dockerfile` names, in addition to the cluster's own. If empty, those whose names resolve to public addresses
    /// only. Images that are on the node already are always allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<String>,
    /// URL of the index that `pip` installs packages from if a function has no `wheels` folder; defaults to pip's
    /// own. Without user and password, which belong in `packageIndexLogin`.
    pub package_index: Option<String>,
    /// Secret with the keys `username` and `password` for the package index.
    pub package_index_login: Option<LocalReference>,
}

impl Default for FunctionDefaults {
    /// Timeout and memory of OpenWhisk (60 s, 256 MB); Knative waits at most 30 s before it scales to zero. Ten
    /// replicas fit on one small node, because they mostly use little of their limits.
    fn default() -> Self {
        let of = |millis, mib: u64| ResourceList {
            cpu: Some(Cpu { millis }),
            memory: Some(Memory { bytes: mib << 20 }),
            gpus: None,
        };
        Self {
            resources: ResourceRequirements { requests: of(50, 64), limits: of(500, 256) },
            timeout_seconds: 60,
            max_scale: 10,
            scale_to_zero_after_seconds: 30,
            calls_per_minute: None,
            python_base: None,
            registries: Vec::new(),
            package_index: None,
            package_index_login: None,
        }
    }
}
