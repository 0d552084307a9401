//! The first page (sources, unhealthy objects, nodes, latest commits), and the page of one node.

use askama::Template;
use schema::quantity::{Cpu, Memory};
use schema::violation::plural;

use super::object_state;
use super::parts::{Page, Part, RenderContext, TemplateHelpers, meter};
use crate::api::error::ApiError;
use crate::view::{self, NodeDetail, NodeView, ObjectSummary, PodView, RevisionView, SourceView, short};

/// Maximum number of unhealthy objects shown; the tree lists all.
const NAMED_MAX: usize = 30;
/// Maximum number of nodes shown.
const NODES_MAX: usize = 60;
/// Maximum number of commits shown.
const COMMITS_MAX: usize = 8;
/// Maximum number of pods of a node shown, those that are not ready first.
const PODS_MAX: usize = 200;

pub(super) fn page(context: &RenderContext<'_>) -> Page {
    let RenderContext { snapshot, now, .. } = *context;
    let mut unhealthy = view::unhealthy(snapshot);
    let left = unhealthy.len().saturating_sub(NAMED_MAX);
    unhealthy.truncate(NAMED_MAX);
    let failing = view::failing_targets(snapshot);
    let outbox = (failing > 0).then(|| {
        let what = "did not accept the last message; see 'minik8s get notifications'";
        format!("{} of notifications {what}", plural(failing, "target"))
    });
    let mut nodes = view::nodes(snapshot, now);
    let (all, ready) = (nodes.len(), nodes.iter().filter(|node| node.is_ready).count());
    nodes.sort_by_key(|node| node.is_ready);
    nodes.truncate(NODES_MAX);
    let more_nodes = all - nodes.len();
    let nodes = nodes.into_iter().map(|node| {
        let used = view::used_of(snapshot, &node.name);
        (node, used)
    });
    let nodes = nodes.collect();
    let sources = view::sources(snapshot, now);
    let mut commits = view::history(snapshot, None, now);
    commits.truncate(COMMITS_MAX);
    Page {
        title: "Overview".to_owned(),
        parts: vec![
            Part::new("sources", &SourcesTemplate { sources }),
            Part::new("unhealthy", &UnhealthyTemplate { unhealthy, left, outbox }),
            Part::new("nodes", &NodesTemplate { left: more_nodes, nodes, all, ready }),
            Part::new("commits", &CommitsTemplate { commits }),
        ],
    }
}

#[derive(Template)]
#[template(path = "sources.html")]
struct SourcesTemplate {
    sources: Vec<SourceView>,
}

#[derive(Template)]
#[template(path = "unhealthy.html")]
struct UnhealthyTemplate {
    unhealthy: Vec<ObjectSummary>,
    left: usize,
    /// Line about targets of notifications, if some did not accept a message.
    outbox: Option<String>,
}

#[derive(Template)]
#[template(path = "nodes.html")]
struct NodesTemplate {
    /// Nodes, each with the CPU and memory in use.
    nodes: Vec<(NodeView, Option<(Cpu, Memory)>)>,
    left: usize,
    all: usize,
    ready: usize,
}

impl NodesTemplate {
    fn cpu(&self, node: &NodeView, used: &Option<(Cpu, Memory)>) -> String {
        let (requested, all) = (node.cpu_requested, node.cpu);
        let used = used.map(|(cpu, _)| format!(", {cpu} used")).unwrap_or_default();
        meter(requested.millis, all.millis, &format!("{all} CPUs: {requested} requested{used}"))
    }

    fn memory(&self, node: &NodeView, used: &Option<(Cpu, Memory)>) -> String {
        let (requested, all) = (node.memory_requested, node.memory);
        let used = used.map(|(_, memory)| format!(", {} used", memory.readable())).unwrap_or_default();
        let text = format!("{} memory: {} requested{used}", all.readable(), requested.readable());
        meter(requested.bytes, all.bytes, &text)
    }

    fn pods(&self, node: &NodeView) -> String {
        meter(node.pods, node.max_pods.into(), &format!("{} of {} pods", node.pods, node.max_pods))
    }
}

#[derive(Template)]
#[template(path = "commits.html")]
struct CommitsTemplate {
    commits: Vec<RevisionView>,
}

/// Renders the page of one node, with its pods.
pub(super) fn node_page(context: &RenderContext<'_>, name: &str) -> Result<Page, ApiError> {
    let detail = view::node(context.snapshot, name, context.now);
    let mut detail = detail
        .ok_or_else(|| ApiError::not_found(format!("there is no node {name}"), "see 'minik8s get nodes'"))?;
    let mut pods = std::mem::take(&mut detail.pod_list);
    let all = pods.len();
    let conditions = object_state::conditions(std::mem::take(&mut detail.conditions), context.now);
    pods.sort_by_key(|pod| pod.is_ready);
    pods.truncate(PODS_MAX);
    Ok(Page {
        title: format!("Node {name}"),
        parts: vec![
            Part::new("node", &NodeTemplate { detail }),
            conditions,
            Part::new("pods", &NodePodsTemplate { pods, all }),
        ],
    })
}

#[derive(Template)]
#[template(path = "node.html")]
struct NodeTemplate {
    detail: NodeDetail,
}

#[derive(Template)]
#[template(path = "node_pods.html")]
struct NodePodsTemplate {
    pods: Vec<PodView>,
    all: usize,
}
