//! Values of the etcd keys other than desired objects: pods, autoscaling, functions, jobs, nodes, services,
//! sources, settings, events.

mod autoscaling;
mod functions;
mod jobs;
mod nodes;
mod outbox;
mod pods;
mod requests;
mod rollouts;
mod services;
mod sources;
mod trust;
mod workflows;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::content_refs::{BlobRef, Files};
use super::kinds::Health;
use super::kinds::cluster::ClusterSpec;

pub use autoscaling::{AutoscalerRecord, Recommendation, ScaleChange, ScaleRecord};
pub use functions::{
    BuildOrder, CallFailure, CallLimits, CallToken, FunctionDemand, FunctionImage, FunctionRecord,
    NodeDemand, NodeImage, NodeImageState, RegistryCopy, Replica, ReplicaStart, ScalerMemory, ScalerMode,
    ScalerPeak, Trouble,
};
pub use jobs::{FormerJob, JobDependencyState, JobOrder, JobReport, ResultFile, ResultKind, UnfetchedFiles};
pub use nodes::{ContainerUsage, NodeUsage, PodUsage};
pub use nodes::{
    DNS_ADDRESS_OFFSET, DiskSpace, Drain, GATEWAY_ADDRESS_OFFSET, Heartbeat, NodeConditions, NodeRecord,
    NodeVersions, Subnet, TaintAge, Vtep, default_service_cidr, dns_address, gateway_address, socket_of,
};
pub use outbox::{Attempt, Message, MessageState, OutboxEntry, SentMessage};
pub use pods::{Binding, OwnerRef, PodInstance, SettledRecord};
pub use requests::{
    CLI_REQUESTS_MAX, DEFAULT_QUOTA_BYTES, DefragRequest, EtcdMember, EtcdUpkeep, LOGIN_FAULT_REMEDY,
    NO_SPACE, Provider, REQUEST_ID_MAX, RequestAnswer, RequestOutcome, SyncRequest, WEBHOOK_REQUESTS_MAX,
    mib, repair_commands,
};
pub use rollouts::{ROLLOUT_STEPS_MAX, Rollout, RolloutFailure, RolloutProgress, RolloutStep, Template};
pub use services::{
    BackendRecord, BackendTarget, Endpoint, LEFT_OUT_MAX, LeftOutPod, PathRecord, PathTarget,
    ProgrammedRules, RouteRecord, RulesStatus, ServicePortRecord, ServiceRecord,
};
pub use sources::{
    AllowedObjects, ChangeCounts, HeldPrune, PlanRecord, PodSecurityRecord, PodTimeline, Quarantine,
    Revision, SourceError, SourceErrorKind, SourceState, SourceStatus, TIMELINE_PODS_MAX, Timeline, Verdict,
    WaitingObject,
};
pub use trust::{
    AuthorityRecord, EtcdMemberReport, IdentityRecord, JoinRecord, RevokedIdentity, RevokedKey, Roll,
    TrustRecord,
};
pub use workflows::{TriggerRecord, TriggerStart, WorkflowRecord};

// `settings`: the Cluster object as agents need it.

/// Settings of the cluster as agents need them. Written by the settings controller even without a Cluster object,
/// so that absence never means "defaults".
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterSettings {
    /// Generation of the Cluster object; 0 without one.
    pub generation: u64,
    /// Spec of the Cluster object; all defaults without one.
    pub spec: ClusterSpec,
    /// Source of the Cluster object, or without one the first configured source: it owns the secrets that name no
    /// source.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Identity of the cluster, encrypted to its nodes, if the source of the Cluster object has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<BlobRef>,
    /// Secrets with logins that the Cluster object names, by path.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub logins: Files,
}

impl ClusterSettings {
    /// Returns the health of the Cluster object of this generation: healthy once published.
    pub fn health(published: Option<&Self>, generation: u64) -> Health {
        match published {
            Some(settings) if settings.generation == generation => Health::Healthy,
            _ => Health::Progressing { why: "the settings are not in force yet".to_owned() },
        }
    }
}

// `events/…`: events, on a lease of an hour.

/// Event about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Time of the event.
    pub time: Timestamp,
    /// Type: normal or warning.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// Kind of the object: `Pod`, `Node`, `Source`, ….
    pub object_kind: String,
    /// Namespace of the object; empty when it has none.
    #[serde(default)]
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// CamelCase word for the reason: Scheduled, Pulling, Created, Started, Killing, BackOff, ….
    pub reason: String,
    /// Human-readable sentence.
    pub message: String,
    /// Component that reported it: `agent/<node>`, `gitops`, `scheduler`, ….
    pub reporter: String,
}

/// Type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventType {
    /// Expected.
    Normal,
    /// Worth a person's attention.
    Warning,
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with `>=`.
    #[test]
    fn settings_are_well_once_they_are_published() {
        let of = |generation| ClusterSettings { generation, ..ClusterSettings::default() };
        assert_eq!(ClusterSettings::health(Some(&of(2)), 2), Health::Healthy);
        for published in [None, Some(&of(2)), Some(&of(4))] {
            assert!(matches!(ClusterSettings::health(published, 3), Health::Progressing { .. }));
        }
    }
}
