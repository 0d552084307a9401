//! What functions get that name nothing of their own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::kinds::pod::{LocalReference, ResourceList, ResourceRequirements};
use crate::quantity::{Cpu, Memory};

/// What functions get that name nothing of their own.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct FunctionDefaults {
    /// What one replica needs and may use.
    pub resources: ResourceRequirements,
    /// Seconds that a call may run.
    #[schemars(range(min = 1, max = 600))]
    pub timeout_seconds: u32,
    /// Most replicas of one function.
    #[schemars(range(min = 1, max = 1000))]
    pub max_scale: u32,
    /// Seconds without a call after which the last replica ends.
    #[schemars(range(min = 1, max = 86400))]
    pub scale_to_zero_after_seconds: u32,
    /// Most calls per minute to all functions of one namespace on one node; more are answered with 429.
    /// No bound when none.
    #[schemars(range(min = 1))]
    pub calls_per_minute: Option<u32>,
    /// The image that Python functions are built on: with `python3`, and `pip` for functions with packages. By default
    /// nodes make one from packages of their Debian or Ubuntu.
    pub python_base: Option<String>,
    /// URL of the index that `pip` installs packages from, where a function has no `wheels` folder; pip's default when
    /// none. Without user and password: those are in `packageIndexLogin`.
    pub package_index: Option<String>,
    /// Secret with the keys `username` and `password` for that index.
    pub package_index_login: Option<LocalReference>,
}

impl Default for FunctionDefaults {
    /// Timeout and memory are OpenWhisk's (60 s, 256 MB); Knative waits 30 s at most before zero. Ten
    /// replicas are what one small node holds, as most of the time they use little of what they may.
    fn default() -> Self {
        let of = |millis, mib: u64| ResourceList {
            cpu: Some(Cpu { millis }),
            memory: Some(Memory { bytes: mib << 20 }),
        };
        Self {
            resources: ResourceRequirements { requests: of(50, 64), limits: of(500, 256) },
            timeout_seconds: 60,
            max_scale: 10,
            scale_to_zero_after_seconds: 30,
            calls_per_minute: None,
            python_base: None,
            package_index: None,
            package_index_login: None,
        }
    }
}
