//! Views of the snapshot for people. Pure. The API sends the structs as JSON, and the CLI parses the same structs.

mod age;
mod autoscalers;
mod events;
mod functions;
mod jobs;
mod metrics;
mod nodes;
mod notifications;
mod objects;
mod pods;
mod requests;
mod rows;
mod selector;
mod services;
mod sources;
mod status;
#[cfg(test)]
pub(crate) mod testing;
mod timeline;
mod tree;
mod usage;
mod wait;
mod workflows;

use std::error::Error;

use serde::{Deserialize, Serialize};

pub use age::{age, human_duration};
pub use autoscalers::{
    AutoscalerDetail, AutoscalerHistory, AutoscalerSamples, AutoscalerView, SampleChart, SampleLine,
    SamplePoint, Unit, autoscaler, autoscalers,
};
pub use events::{EventGroup, EventView, event_groups, event_view, event_views};
pub use functions::{FunctionDetail, FunctionRevision, FunctionView, function, functions};
pub use jobs::{JobDetail, JobView, job, jobs};
pub use metrics::{OwnState, own_families, own_infos, state_families, state_infos};
pub use nodes::{NodeDetail, NodeView, node, nodes};
pub use notifications::{NotificationView, failing_targets, notifications};
pub use objects::{
    BudgetView, ObjectDetail, ObjectSummary, ObjectView, RolloutStage, RolloutState, RolloutView, Selection,
    StageState, StoredObject, TemplatePods, TemplateRole, WorkloadView, conditions, object, objects, rollout,
    stored_objects, summaries, unhealthy,
};
pub use pods::{PodDetail, PodView, pod, pods};
pub use requests::{RequestView, request, requests};
pub use selector::Selector;
pub use services::{
    BEHIND, EndpointView, EndpointsView, NOTHING_YET, NodeRules, PROGRAMMED, RouteView, ServiceDetail,
    ServiceView, all_rules, endpoints, routes, service, services,
};
pub use sources::{RevisionView, SourceView, changes, history, quarantine, sources};
pub use status::{
    ClusterStatus, DefragAccepted, EtcdView, HookCounts, LeaderView, MalformedKey, NodeCounts, PodCounts,
    SyncAccepted, SyncRun, VersionView, cluster_status, etcd,
};
pub use timeline::{StepView, TimelineView, seconds, timeline};
pub use tree::{TreeNode, branches, is_well, subtree, tree};
pub use usage::{NodeUsageView, PodUsageView, ResourceUsage, node_usage, pod_usage, used_of};
pub use wait::{WaitState, wait_state};
pub use workflows::{
    Graph, GraphEdge, GraphNode, GridPoint, RunAccepted, RunBody, RunCall, RunDetail, RunPage, RunView,
    TriggerView, WorkflowDetail, WorkflowView, duration, graph, mermaid, run, run_detail, run_path, triggers,
    workflow, workflows,
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

// Errors as the API sends them and the CLI prints them.

/// Body of an error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub error: String,
    #[serde(default)]
    pub help: String,
}

/// The innermost cause, as a part of a sentence: `connection refused`.
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let text = schema::control::root_cause(error).to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    match letters.next() {
        // A capital before a lowercase letter begins a sentence; other capitals begin a name.
        Some(first) if letters.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_cause_is_said_without_numbers_and_capitals() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(root_cause(&refused), "connection refused");
        assert_eq!(root_cause(&std::io::Error::other("EOF in mid-frame")), "EOF in mid-frame");
    }
}
