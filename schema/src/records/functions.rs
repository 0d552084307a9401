//! `functions/<ns>/<name>`, `work/<node>/builds/<image>`, `status/<node>/images/<image>` and `demand/<node>`.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;
use crate::content_refs::{BlobRef, Files, find_secret};
use crate::kinds::Health;
use crate::kinds::function::{FunctionSpec, ImageState, Runtime};
use crate::meta::NamespacedName;

/// A function as every gateway needs it. Written by the functions controller.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionRecord {
    /// Hash of the object that this record describes.
    pub hash: String,
    /// Images: first that of the current object, then those of versions that still run.
    pub images: Vec<FunctionImage>,
    /// Time at which the first image became ready; `None` while it is not.
    pub image_ready_at: Option<Timestamp>,
    /// Desired number of replicas.
    pub wanted: u32,
    /// Replicas that accept calls, sorted by pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<Replica>,
    /// Reason why replicas do not become ready, while they do not.
    pub trouble: Option<Trouble>,
    /// True if a version of the function has run well, and can again.
    #[serde(default)]
    pub has_good: bool,
    /// Limits of calls.
    pub calls: CallLimits,
    /// Token that external callers present; `None` if they may not call, unless the function is public.
    pub token: Option<CallToken>,
    /// Time of the last change of `wanted`.
    pub scaled_at: Option<Timestamp>,
    /// Memory of the scaling decisions on `wanted`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scaler: ScalerMemory,
    /// Time of the last call, to a few seconds; used where gateways have forgotten it.
    pub last_active: Option<Timestamp>,
}

/// Reason why replicas do not become ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// Reason as one CamelCase word.
    pub reason: String,
    /// Human-readable sentence; for Python code that can't be loaded, its traceback.
    pub message: String,
}

impl FunctionRecord {
    /// Returns the image of the current object.
    pub fn image(&self) -> Option<&FunctionImage> {
        self.images.first()
    }

    /// Returns the function's health, apart from its rollout. A sleeping function, without replicas and calls, is
    /// healthy.
    pub fn health(&self) -> Health {
        match self.image().map_or(&ImageState::Waiting, |image| &image.state) {
            ImageState::Failed { why } => {
                Health::Degraded { why: format!("the image can't be built: {why}") }
            }
            ImageState::Waiting => Health::Progressing { why: "the image is not built yet".to_owned() },
            ImageState::Building { node } => {
                Health::Progressing { why: format!("node {node} is building the image") }
            }
            // With fewer replicas than calls ask for, the remaining calls wait a little longer.
            ImageState::Ready if self.replicas.is_empty() && self.wanted > 0 => {
                Health::Progressing { why: format!("none of {} replicas is ready", self.wanted) }
            }
            ImageState::Ready => Health::Healthy,
        }
    }
}

/// An image that was, or will be, built from a function's source.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionImage {
    /// Reference used by pods: [`crate::kinds::function::IMAGE_PREFIX`] and a hash, or the manifest's `image`.
    pub reference: String,
    /// Image id, as Docker computes it from the content; `None` before it is built.
    pub id: Option<String>,
    /// State of the build.
    pub state: ImageState,
    /// Nodes that have the image and serve it to others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Copy in the cluster's registry; `None` without a registry, and before its state is known.
    pub registry: Option<RegistryCopy>,
}

/// Copy of an image in the cluster's registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum RegistryCopy {
    /// The registry has the image.
    Pushed {
        /// Reference of the copy: `address/function@sha256:…`.
        digest: String,
    },
    /// The push failed; it is retried later. Nodes take the image from each other.
    Failed {
        /// Error from Docker or the registry, and advice.
        why: String,
    },
}

/// Memory of the scaling decisions: a leader that takes over continues with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalerMemory {
    /// Mode of the decisions.
    #[serde(default)]
    pub mode: ScalerMode,
    /// Decisions that `scale_down_delay` may still delay, the oldest and largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peaks: Vec<ScalerPeak>,
}

/// Mode of a decider.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ScalerMode {
    /// No decision yet.
    #[default]
    Unseen,
    /// Decides by the stable window.
    Stable,
    /// Decides by the larger of both windows, and never scales down.
    #[serde(rename_all = "camelCase")]
    Panic {
        /// Time at which the threshold was last reached.
        surged_at: Timestamp,
        /// Most replicas wanted since the panic began.
        most: u32,
    },
}

/// Largest decision of some ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalerPeak {
    /// Number of the tick, since 1970.
    pub tick: i64,
    /// Number of replicas.
    pub replicas: u32,
}

impl ScalerMemory {
    /// Creates the memory of a decider that starts while this many replicas are ready. With more than one it begins
    /// in panic: a decider without memory must not remove any.
    pub fn initial(ready: u32, now: Timestamp) -> Self {
        let mode =
            if ready > 1 { ScalerMode::Panic { surged_at: now, most: ready } } else { ScalerMode::Stable };
        Self { mode, peaks: Vec::new() }
    }

    /// True if it decides in panic.
    pub fn is_panic(&self) -> bool {
        matches!(self.mode, ScalerMode::Panic { .. })
    }
}

/// A replica of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// Name of the pod, in the function's namespace.
    pub pod: String,
    /// Name of its node.
    pub node: String,
    /// Address that accepts calls.
    pub address: SocketAddrV4,
    /// Phases of its start, by its node's clock; `None` if it did not start in one go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<ReplicaStart>,
}

/// Times at which the phases of a replica's start ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStart {
    /// Time at which its node received it.
    pub scheduled: Timestamp,
    /// Time at which its network was ready.
    pub created: Timestamp,
    /// Time at which its program started.
    pub started: Timestamp,
    /// Time at which its code was loaded and it began to accept calls.
    pub imported: Timestamp,
}

/// Limits of calls, with the Cluster's defaults filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallLimits {
    /// Most seconds that a call may run.
    pub timeout_seconds: u32,
    /// Most seconds that a call may wait for a replica to start.
    pub cold_start_timeout_seconds: u32,
    /// Calls that a replica runs at once.
    pub concurrency: u32,
    /// Calls that may wait for a replica.
    pub queue_length: u32,
    /// Largest request body in bytes.
    pub request_body_bytes: u64,
    /// Largest response body in bytes.
    pub response_body_bytes: u64,
    /// True if anyone may call it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}

impl CallLimits {
    /// Returns the limits of a function, whose spec has passed [`FunctionSpec::with_defaults`].
    pub fn from_spec(function: &FunctionSpec) -> Self {
        Self {
            timeout_seconds: function.timeout_seconds.unwrap_or_default(),
            cold_start_timeout_seconds: function.cold_start_timeout_seconds,
            concurrency: function.concurrency,
            queue_length: function.queue_length,
            request_body_bytes: function.request_body_limit.bytes,
            response_body_bytes: function.response_body_limit.bytes,
            public: function.public,
        }
    }
}

/// Location of the token of external callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallToken {
    /// Name of the secret.
    pub secret: String,
    /// Key in the secret.
    pub key: String,
    /// Ciphertext of the secret, by path.
    pub files: Files,
}

impl CallToken {
    /// Returns the token of a function whose object names these files.
    pub fn from_spec(function: &FunctionSpec, files: &Files) -> Option<Self> {
        let key = &function.auth.as_ref()?.token_from.secret_key_ref;
        let found = find_secret(files, &key.name).map(|(path, blob)| (path.to_owned(), blob.clone()));
        Some(Self { secret: key.name.clone(), key: key.key.clone(), files: found.into_iter().collect() })
    }
}

/// Order to a node to build an image. Written by the functions controller.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildOrder {
    /// Reference of the image.
    pub reference: String,
    /// Function that needs it.
    pub function: NamespacedName,
    /// Folder in the repository, for messages.
    pub path: String,
    /// Content of the folder.
    pub source: BlobRef,
    /// Runtime of the folder; `None` to detect it from the content.
    pub runtime: Option<Runtime>,
    /// Base image of Python functions; `None` for the one that nodes build themselves.
    pub base: Option<String>,
    /// Index of Python packages; `None` for pip's default.
    pub package_index: Option<String>,
}

/// State of an image on a node. Written by its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeImage {
    /// Reference of the image.
    pub reference: String,
    /// State of the image.
    pub state: NodeImageState,
    /// Copy in the cluster's registry, as far as this node knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistryCopy>,
}

/// State of an image on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum NodeImageState {
    /// The build is running.
    Building,
    /// The image is on the node.
    Ready {
        /// Image id, as Docker computes it from the content.
        id: String,
        /// Bytes on disk, including layers shared with other images.
        size: u64,
    },
    /// The build failed; it is retried later.
    Failed {
        /// End of the build's output.
        why: String,
        /// Time of the failure.
        at: Timestamp,
        /// Number of failed attempts.
        attempts: u32,
    },
}

/// Calls of functions through a node's gateway. Written by its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDemand {
    /// Time of this report by the node's clock, which may differ from others': readers compare the times below with
    /// this one only. `None` from agents that did not report it yet.
    #[serde(default)]
    pub at: Option<Timestamp>,
    /// Time at which the gateway began to count; it knows nothing from before.
    pub since: Timestamp,
    /// Demand by `namespace/name`; functions without a call in the last window are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub functions: BTreeMap<String, FunctionDemand>,
    /// Number of heartbeats from calls in progress, by the token that the caller gave them. Only calls with at
    /// least one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub beats: BTreeMap<String, u32>,
    /// Newest failures of calls, newest first, by function as `namespace/name`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, Vec<CallFailure>>,
}

/// Calls of a function that failed in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallFailure {
    /// Type of the error, such as `ValueError`, `Timeout` or `ReplicaLost`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Message of the error, or its beginning.
    pub message: String,
    /// Number of failures since the gateway started.
    pub count: u64,
    /// Time of the last failure.
    pub last: Timestamp,
}

/// Calls of a function through a node's gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionDemand {
    /// Calls that wait for a replica.
    pub waiting: u32,
    /// Calls at a replica.
    pub in_flight: u32,
    /// Thousandths of a call, waiting or at a replica: the mean over the last 60 s.
    pub stable_milli: u64,
    /// Mean over the last 6 s, likewise.
    pub panic_milli: u64,
    /// Calls answered per second, in thousandths: the mean over the last 60 s.
    #[serde(default)]
    pub answered_milli: u64,
    /// Mean time of answered calls at the gateway, in microseconds.
    #[serde(default)]
    pub mean_micros: u64,
    /// Time at which the last call ended; `None` while calls are waiting or at a replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_sleeps_is_healthy() {
        let with = |state, wanted, ready| {
            let image = FunctionImage {
                reference: String::new(),
                id: None,
                state,
                nodes: Vec::new(),
                registry: None,
            };
            let address = SocketAddrV4::new([10, 244, 0, 2].into(), 8080);
            let replica = Replica { pod: String::new(), node: String::new(), address, start: None };
            let replicas = vec![replica; ready];
            FunctionRecord { images: vec![image], wanted, replicas, ..FunctionRecord::default() }
                .health()
                .to_string()
        };
        assert_eq!(with(ImageState::Ready, 0, 0), "Healthy");
        assert_eq!(with(ImageState::Ready, 2, 1), "Healthy");
        assert_eq!(with(ImageState::Ready, 2, 0), "Progressing");
        assert_eq!(with(ImageState::Building { node: "a".to_owned() }, 0, 0), "Progressing");
        assert_eq!(with(ImageState::Failed { why: "no".to_owned() }, 1, 1), "Degraded");
    }
}
