//! Views of the snapshot for people. Pure. The API sends the structs as JSON, and the CLI parses the same structs.

use serde::{Deserialize, Serialize};

mod age;
mod autoscalers;
mod events;
mod functions;
mod jobs;
mod nodes;
mod objects;
mod pods;
mod problem;
mod requests;
mod selector;
mod services;
mod sources;
mod status;
#[cfg(test)]
pub(crate) mod testing;
mod usage;
mod wait;
mod workflows;

pub use age::{age, human_duration};
pub use autoscalers::{AutoscalerDetail, AutoscalerView, autoscaler, autoscalers};
pub use events::{EventGroup, EventView, event_groups, event_view, event_views};
pub use functions::{FunctionDetail, FunctionRevision, FunctionView, function, functions};
pub use jobs::{JobDetail, JobView, job, jobs};
pub use nodes::{NodeDetail, NodeView, node, nodes};
pub use objects::{
    ObjectDetail, ObjectView, Selection, StoredObject, WorkloadView, object, objects, stored_objects,
};
pub use pods::{PodDetail, PodView, pod, pods};
pub use problem::{Problem, root_cause};
pub use requests::{RequestView, request, requests};
pub use selector::Selector;
pub use services::{
    EndpointView, EndpointsView, NodeRules, RouteView, ServiceDetail, ServiceView, endpoints, routes,
    service, services,
};
pub use sources::{RevisionView, SourceView, history, sources};
pub use status::{
    ClusterStatus, HookCounts, LeaderView, MalformedKey, NodeCounts, PodCounts, SyncAccepted, SyncRun,
    VersionView, cluster_status,
};
pub use usage::{NodeUsageView, PodUsageView, ResourceUsage, node_usage, pod_usage};
pub use wait::{WaitState, wait_state};
pub use workflows::{
    RunAccepted, RunBody, RunCall, RunDetail, RunPage, RunView, TriggerView, WorkflowDetail, WorkflowView,
    duration, mermaid, run, run_detail, triggers, workflow, workflows,
};

/// A list as the API sends it and `-o json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct List<T> {
    pub items: Vec<T>,
}

/// The first 7 digits of a commit, as Git shortens it.
pub fn short(commit: &str) -> &str {
    commit.get(..7).unwrap_or(commit)
}

/// Page type of a kind's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindPage {
    Pod,
    Node,
    Service,
    Host,
    Workload,
    Autoscaler,
    Function,
    Workflow,
    Job,
    /// Any object, with its definition from Git.
    Object,
}
