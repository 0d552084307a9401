//! `functions/<ns>/<name>`, `work/<node>/builds/<image>`, `status/<node>/images/<image>` and `demand/<node>`.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;
use crate::files::{BlobRef, Files, of_secret};
use crate::kinds::Health;
use crate::kinds::function::{FunctionSpec, ImageState, Runtime};
use crate::meta::NamespacedName;

/// A function as every gateway needs it: written by the functions controller.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionRecord {
    /// Hash of the object that it is of.
    pub hash: String,
    /// Its images: that of the object as it is first, then those of versions that still run.
    pub images: Vec<FunctionImage>,
    /// When the first of them became ready; none while it is not.
    pub image_ready_at: Option<Timestamp>,
    /// Replicas that there are to be.
    pub wanted: u32,
    /// Replicas that take calls, sorted by pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<Replica>,
    /// Why replicas do not become ready, while that is so.
    pub trouble: Option<Trouble>,
    /// A version of it has run well, and can again.
    #[serde(default)]
    pub has_good: bool,
    /// The bounds of its calls.
    pub calls: CallLimits,
    /// What callers from outside show; none: none of them may call, unless it is public.
    pub token: Option<CallToken>,
    /// When `wanted` last changed.
    pub scaled_at: Option<Timestamp>,
    /// What the decisions on `wanted` remember.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scaler: ScalerMemory,
    /// When there last was a call, to a few seconds: counts where gateways forgot.
    pub last_active: Option<Timestamp>,
}

/// Why replicas do not become ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// One CamelCase word.
    pub reason: String,
    /// A sentence for a person; of Python code that can't be loaded, its traceback.
    pub message: String,
}

impl FunctionRecord {
    /// The image of the object as it is.
    pub fn image(&self) -> Option<&FunctionImage> {
        self.images.first()
    }

    /// How well the function is, its rollout aside. Asleep, without a replica and without a call, it is well.
    pub fn health(&self) -> Health {
        match self.image().map_or(&ImageState::Waiting, |image| &image.state) {
            ImageState::Failed { why } => {
                Health::Degraded { why: format!("the image can't be built: {why}") }
            }
            ImageState::Waiting => Health::Progressing { why: "the image is to be built".to_owned() },
            ImageState::Building { node } => {
                Health::Progressing { why: format!("node {node} builds the image") }
            }
            // With fewer than the calls ask for, the others wait a little longer.
            ImageState::Ready if self.replicas.is_empty() && self.wanted > 0 => {
                Health::Progressing { why: format!("none of {} replicas is ready", self.wanted) }
            }
            ImageState::Ready => Health::Healthy,
        }
    }
}

/// An image that was, or is to be, built from a function's source.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionImage {
    /// What pods name: [`crate::kinds::function::IMAGE_PREFIX`] and a hash, or the manifest's `image`.
    pub reference: String,
    /// Its id, as Docker computes it from its content; none before it is built.
    pub id: Option<String>,
    /// How far it is.
    pub state: ImageState,
    /// Nodes that have it and give it to others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Whether the cluster's registry has it; none without one, and before that is known.
    pub registry: Option<RegistryCopy>,
}

/// What became of an image on its way to the cluster's registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum RegistryCopy {
    /// It is there.
    Pushed {
        /// `address/function@sha256:…`.
        digest: String,
    },
    /// It can't be pushed; it is tried again later. Nodes take it from each other.
    Failed {
        /// What Docker or the registry said, and what to do.
        why: String,
    },
}

/// What decisions on the number of replicas leave behind: a leader that takes over goes on with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalerMemory {
    /// How it decides.
    #[serde(default)]
    pub mode: ScalerMode,
    /// Decisions that `scale_down_delay` may still hold up, the oldest and largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peaks: Vec<ScalerPeak>,
}

/// How a decider decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ScalerMode {
    /// It never has.
    #[default]
    Unseen,
    /// By the stable window.
    Stable,
    /// By the larger of both windows, and never downwards.
    #[serde(rename_all = "camelCase")]
    Panic {
        /// When the threshold was last reached.
        surged_at: Timestamp,
        /// The most replicas that it wanted since it began.
        most: u32,
    },
}

/// The largest decision of some ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalerPeak {
    /// Which tick, since 1970.
    pub tick: i64,
    /// Replicas.
    pub replicas: u32,
}

impl ScalerMemory {
    /// Of a decider that is made while this many replicas are ready. With more than one it begins in panic: what it
    /// does not remember must take none of them.
    pub fn at_first(ready: u32, now: Timestamp) -> Self {
        let mode =
            if ready > 1 { ScalerMode::Panic { surged_at: now, most: ready } } else { ScalerMode::Stable };
        Self { mode, peaks: Vec::new() }
    }

    /// Whether it decides in panic.
    pub fn is_panic(&self) -> bool {
        matches!(self.mode, ScalerMode::Panic { .. })
    }
}

/// One replica of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// Its pod, in the function's namespace.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// Where it takes calls.
    pub address: SocketAddrV4,
    /// How it came to be, by its node's clock; none: not in one go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<ReplicaStart>,
}

/// The phases of a replica's start: when each ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStart {
    /// Its node had it.
    pub scheduled: Timestamp,
    /// Its network was there.
    pub created: Timestamp,
    /// Its program ran.
    pub started: Timestamp,
    /// Its code was loaded: it takes calls.
    pub imported: Timestamp,
}

/// The bounds of calls, with the Cluster's defaults filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallLimits {
    /// Seconds that a call may run.
    pub timeout_seconds: u32,
    /// Seconds that a call may wait for a replica to start.
    pub cold_start_timeout_seconds: u32,
    /// Calls that one replica runs at once.
    pub concurrency: u32,
    /// Calls that may wait for a replica.
    pub queue_length: u32,
    /// Largest body in bytes.
    pub request_body_bytes: u64,
    /// Largest answer in bytes.
    pub response_body_bytes: u64,
    /// Anyone may call it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}

impl CallLimits {
    /// Those of a function, of a spec after [`FunctionSpec::with_defaults`].
    pub fn of(function: &FunctionSpec) -> Self {
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

/// Where the token of callers from outside is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallToken {
    /// Name of the secret.
    pub secret: String,
    /// The key in it.
    pub key: String,
    /// Its ciphertext, by its path.
    pub files: Files,
}

impl CallToken {
    /// That of a function whose object names these files.
    pub fn of(function: &FunctionSpec, files: &Files) -> Option<Self> {
        let key = &function.auth.as_ref()?.token_from.secret_key_ref;
        let found = of_secret(files, &key.name).map(|(path, blob)| (path.to_owned(), blob.clone()));
        Some(Self { secret: key.name.clone(), key: key.key.clone(), files: found.into_iter().collect() })
    }
}

/// An image to be built by a node: written by the functions controller.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildOrder {
    /// What the image is to be called.
    pub reference: String,
    /// A function that needs it.
    pub function: NamespacedName,
    /// Folder of the repository, for messages.
    pub path: String,
    /// The folder's content.
    pub source: BlobRef,
    /// How the folder becomes an image; none: what it holds decides.
    pub runtime: Option<Runtime>,
    /// The image that Python functions are built on; none: the one that nodes make themselves.
    pub base: Option<String>,
    /// Where Python packages come from; none: pip's default.
    pub package_index: Option<String>,
}

/// How far a node is with an image: written by its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeImage {
    /// What it is called.
    pub reference: String,
    /// How far it is.
    pub state: NodeImageState,
    /// What this node knows of it in the cluster's registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistryCopy>,
}

/// How far a node is with an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum NodeImageState {
    /// It is being built.
    Building,
    /// It is here.
    Ready {
        /// Its id, as Docker computes it from its content.
        id: String,
        /// Bytes on disk, layers shared with others included.
        size: u64,
    },
    /// It can't be built; it is tried again later.
    Failed {
        /// The end of what the build said.
        why: String,
        /// When.
        at: Timestamp,
        /// How often it failed.
        attempts: u32,
    },
}

/// The calls of functions through one node's gateway: written by its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDemand {
    /// Since when the gateway counts: what was before it does not know.
    pub since: Timestamp,
    /// By `namespace/name`; functions without a call in the last window are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub functions: BTreeMap<String, FunctionDemand>,
    /// How many signs of life calls under way have given, by the token that their caller gave them. Only of those that
    /// gave some.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub beats: BTreeMap<String, u32>,
    /// The newest failures of calls, by function as `namespace/name`, the newest first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, Vec<CallFailure>>,
}

/// Calls of a function that failed alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallFailure {
    /// The type of the error, such as `ValueError`, `Timeout` or `ReplicaLost`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it says, or the beginning of that.
    pub message: String,
    /// How many there were since the gateway began.
    pub count: u64,
    /// When the last one was.
    pub last: Timestamp,
}

/// The calls of one function through one node's gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionDemand {
    /// Calls that wait for a replica.
    pub waiting: u32,
    /// Calls at a replica.
    pub in_flight: u32,
    /// Thousandths of a call, waiting or at a replica: the mean over the last 60 s.
    pub stable_milli: u64,
    /// The same over the last 6 s.
    pub panic_milli: u64,
    /// Calls answered per second, in thousandths: the mean over the last 60 s.
    #[serde(default)]
    pub answered_milli: u64,
    /// Mean time of these calls at the gateway, in microseconds.
    #[serde(default)]
    pub mean_micros: u64,
    /// When the last call ended; none while there are some.
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
