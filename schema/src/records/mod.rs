//! Values of the etcd keys other than desired objects: pods, autoscaling, functions, jobs, nodes, services,
//! sources, settings, events.

mod autoscaling;
mod events;
mod functions;
mod jobs;
mod nodes;
mod pods;
mod requests;
mod rollouts;
mod services;
mod settings;
mod sources;
mod usage;
mod workflows;

pub use autoscaling::{AutoscalerRecord, Recommendation, ScaleChange, ScaleRecord};
pub use events::{Event, EventType};
pub use functions::{
    BuildOrder, CallFailure, CallLimits, CallToken, FunctionDemand, FunctionImage, FunctionRecord,
    NodeDemand, NodeImage, NodeImageState, RegistryCopy, Replica, ReplicaStart, ScalerMemory, ScalerMode,
    ScalerPeak, Trouble,
};
pub use jobs::{FormerJob, JobDependencyState, JobOrder, JobReport, ResultFile, ResultKind, UnfetchedFiles};
pub use nodes::{
    DNS_ADDRESS_OFFSET, Drain, GATEWAY_ADDRESS_OFFSET, Heartbeat, NodeConditions, NodeRecord, NodeVersions,
    Subnet, TaintAge, Vtep, default_service_cidr, dns_address, gateway_address,
};
pub use pods::{Binding, OwnerRef, PodInstance, Settled};
pub use requests::{
    CLI_REQUESTS_MAX, Provider, REQUEST_ID_MAX, RequestAnswer, RequestOutcome, SyncRequest,
    WEBHOOK_REQUESTS_MAX,
};
pub use rollouts::{ROLLOUT_STEPS_MAX, Rollout, RolloutFailure, RolloutProgress, RolloutStep, Template};
pub use services::{
    BackendRecord, BackendTarget, Endpoint, LEFT_OUT_MAX, LeftOut, PathLeads, PathRecord, RouteRecord,
    RulesStatus, ServicePortRecord, ServiceRecord,
};
pub use settings::ClusterSettings;
pub use sources::{
    ChangeCounts, HeldPrune, PlanRecord, Quarantine, Revision, SourceError, SourceErrorKind, SourceState,
    SourceStatus, Verdict, Waiting,
};
pub use usage::{ContainerUsage, NodeUsage, PodUsage};
pub use workflows::{TriggerRecord, TriggerStart, WorkflowRecord};
