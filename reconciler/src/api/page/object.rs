//! The page of one object: origin, state, what runs for it, spec and events.

use std::collections::BTreeSet;
use std::time::Duration;

use askama::Template;
use jiff::Timestamp;
use schema::control::lock;
use schema::kinds::links::references;
use schema::kinds::{Kind, Pods};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::EventType;
use tokio::time::timeout;

use super::chart;
use super::job;
use super::object_facts;
use super::object_state;
use super::parts::{Page, Part, RenderContext, TemplateHelpers, cut};
use crate::api::app::ApiState;
use crate::api::error::ApiError;
use crate::api::kinds::results::{escape_html, percent_encode};
use crate::api::objects::{EventQuery, not_found, read};
use crate::view::{self, EventView, ObjectDetail, TreeNode};

/// Number of events shown, the newest.
const EVENTS_MAX: usize = 50;
/// Longest wait for events: without etcd, the page shows the rest.
const EVENTS_WAIT: Duration = Duration::from_secs(2);
/// Longest spec or status that is shown, in bytes.
const YAML_MAX: usize = 64 * 1024;

pub(super) fn page(context: &RenderContext<'_>, id: &ObjectRef) -> Result<Page, ApiError> {
    let RenderContext { snapshot, now, .. } = *context;
    let detail = view::object(snapshot, id, now);
    let tree = view::subtree(snapshot, id, now);
    // A pod of a workload has no object of its own.
    if detail.is_none() && tree.is_none() {
        return Err(not_found(id));
    }
    let quarantine = view::quarantine(snapshot, id);
    let uses = snapshot.objects.get(id).map(|found| {
        let fields = references(&found.value.metadata, &found.value.resource);
        let targets: BTreeSet<String> = fields.iter().map(|field| field.target.to_string()).collect();
        targets.into_iter().collect()
    });
    let name = NamespacedName::new(&id.namespace, &id.name);
    let pod = (id.kind == Kind::Pod).then(|| view::pod(snapshot, &name, Vec::new(), now)).flatten();
    let status = match id.kind {
        Kind::Pod => pod.as_ref().map(yaml).unwrap_or_default(),
        _ => {
            detail.as_ref().map(|it| yaml(&it.row.status)).filter(|text| text != "null\n").unwrap_or_default()
        }
    };
    let spec = detail.as_ref().map(|it| yaml(&it.spec)).unwrap_or_default();
    let mut parts = Vec::new();
    if let Some(detail) = detail {
        let uses: Vec<String> = uses.unwrap_or_default();
        parts.push(Part::new("object", &ObjectTemplate { detail, quarantine, uses }));
    }
    parts.extend(object_facts::part(context, id, pod.as_ref()));
    if id.kind == Kind::HorizontalPodAutoscaler {
        let history = lock(context.samples).history(&name, now);
        parts.push(chart::part(history.as_ref()));
    }
    if id.kind.descriptor().pods != Pods::None {
        parts.push(object_state::rollout(view::rollout(snapshot, id), now));
    }
    parts.push(object_state::conditions(view::conditions(snapshot, id), now));
    // The object itself is at the top of the page already.
    let tree = tree.filter(|root| !root.children.is_empty());
    parts.push(Part::new("runs", &RunsTemplate { tree: tree.into_iter().collect() }));
    parts.extend(job::parts(context, id));
    parts.push(Part::new("texts", &TextsTemplate { spec, status }));
    Ok(Page { title: id.to_string(), parts })
}

/// Returns the part with the events about the object, newest first; empty if etcd does not answer.
pub(super) async fn events(app: &ApiState, id: &ObjectRef, now: Timestamp) -> Part {
    let about = EventQuery::for_object(id.kind, &NamespacedName::new(&id.namespace, &id.name));
    let found = timeout(EVENTS_WAIT, read(app, &about, now)).await;
    let mut events = found.ok().and_then(Result::ok).unwrap_or_default();
    events.reverse();
    events.truncate(EVENTS_MAX);
    Part::new("events", &EventsTemplate { events })
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsTemplate {
    events: Vec<EventView>,
}

impl EventsTemplate {
    fn is_warning(&self, event: &EventView) -> bool {
        event.event.kind == EventType::Warning
    }
}

/// Formats a value, shortened if it is long.
fn yaml(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    cut(serde_yaml::to_string(&value).unwrap_or_default(), YAML_MAX, "minik8s get -o yaml")
}

#[derive(Template)]
#[template(path = "object.html")]
struct ObjectTemplate {
    detail: ObjectDetail,
    quarantine: Vec<String>,
    uses: Vec<String>,
}

/// Renders nodes of the tree as nested lists; `parent` is the object that they are below, if the page names it already.
pub(super) fn nested_list(nodes: Vec<TreeNode>, parent: &str) -> String {
    RunsTemplate { tree: nodes }.list(parent)
}

#[derive(Template)]
#[template(path = "runs.html")]
struct RunsTemplate {
    tree: Vec<TreeNode>,
}

impl RunsTemplate {
    /// The nodes as nested lists.
    fn list(&self, parent: &str) -> String {
        fn add(template: &RunsTemplate, nodes: &[TreeNode], parent: &str, out: &mut String) {
            out.push_str("<ul class=\"tree\">");
            for node in nodes {
                let name = escape_html(&template.text(&node.id));
                let container = node.id.strip_prefix("container/").zip(parent.strip_prefix("Pod/"));
                let run = node.id.strip_prefix("run/").zip(parent.strip_prefix("Workflow/"));
                let link = match (container, run) {
                    (Some((container, pod)), _) => {
                        format!("/logs/{pod}?container={}", percent_encode(container))
                    }
                    (None, Some((run, workflow))) => format!("/runs/{workflow}/{}", percent_encode(run)),
                    (None, None) => template.link(&node.id),
                };
                let name = if link.is_empty() {
                    name
                } else {
                    format!("<a href=\"{}\">{name}</a>", escape_html(&link))
                };
                out.push_str(&format!(
                    "<li><span class=\"row\">{name} <span class=\"state {}\">{}</span> <span class=\"quiet\">{}</span></span>",
                    template.mark(&node.state),
                    escape_html(&template.text(&node.state)),
                    escape_html(&template.text(&node.note))
                ));
                if !node.children.is_empty() {
                    add(template, &node.children, &node.id, out);
                }
                if node.more > 0 {
                    out.push_str(&format!("<p class=\"quiet\">and {} more</p>", node.more));
                }
                out.push_str("</li>");
            }
            out.push_str("</ul>");
        }
        let mut out = String::new();
        add(self, &self.tree, parent, &mut out);
        out
    }
}

#[derive(Template)]
#[template(path = "texts.html")]
struct TextsTemplate {
    spec: String,
    status: String,
}
