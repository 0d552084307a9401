//! Sources with their objects and what runs for these: filtered, sorted and paged by the server.

use std::cmp::Reverse;

use askama::Template;
use schema::kinds::{Health, Kind};
use schema::meta::ObjectRef;
use schema::violation::plural;
use serde::Deserialize;

use super::object::nested_list;
use super::parts::{Page, Part, ROWS_MAX, RenderContext, TemplateHelpers};
use crate::api::error::ApiError;
use crate::api::input;
use crate::api::kinds::results::percent_encode;
use crate::view::{self, ObjectSummary, Selection, TreeNode};

/// Maximum number of pods below all rows of a page, and below one.
const PODS_MAX: usize = 200;
const OBJECT_PODS_MAX: usize = 10;

/// Filter of the list, and its page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TreeQuery {
    source: String,
    kind: String,
    namespace: String,
    label: String,
    /// Healthy, Progressing, Degraded, Unknown, or `unhealthy` for all but the first.
    health: String,
    /// `name`, `health`, `pods` or `file`; empty for the order of the tree: by source.
    sort: String,
    /// Number of the page, from 1.
    page: usize,
}

pub(super) fn page(context: &RenderContext<'_>, query: &TreeQuery) -> Result<Page, ApiError> {
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let (source, namespace) = (given(&query.source), given(&query.namespace));
    input::optional_name("source", source.as_deref())?;
    input::optional_name("namespace", namespace.as_deref())?;
    let kind = match query.kind.as_str() {
        "" => None,
        kind => Some(crate::api::objects::parse_kind(kind)?),
    };
    let healths = ["", "unhealthy", "healthy", "progressing", "degraded", "unknown"];
    if !healths.contains(&query.health.to_lowercase().as_str()) {
        let message = format!("health={}: not a health", query.health);
        return Err(ApiError::bad_request(message, "healthy, progressing, degraded, unknown or unhealthy"));
    }
    let labels = input::selector(given(&query.label).as_deref())?;
    let selection = Selection { source: source.as_deref(), kind, namespace: namespace.as_deref(), labels };
    let wanted = query.health.to_lowercase();
    let is_shown = |health: &Health| match wanted.as_str() {
        "" => true,
        "unhealthy" => *health != Health::Healthy,
        wanted => health.to_string().eq_ignore_ascii_case(wanted),
    };
    let mut found = view::summaries(context.snapshot, &selection, is_shown);
    sort(&mut found, &query.sort)?;
    let count = plural(found.len(), "object");
    let pages = found.len().div_ceil(ROWS_MAX).max(1);
    let at = query.page.clamp(1, pages);
    let rows = found.into_iter().skip((at - 1) * ROWS_MAX).take(ROWS_MAX);
    let rows = with_branches(context, rows.collect());
    let sources = context.snapshot.sources.keys().cloned().collect();
    Ok(Page {
        title: "Tree".to_owned(),
        parts: vec![
            // Not replaced while someone types: it depends on the address and the sources alone.
            Part::new("filter", &FilterTemplate { query: query.clone(), sources, kinds: &Kind::ALL }),
            Part::new("objects", &ObjectsTemplate { rows, count, at, pages, query: query.clone() }),
        ],
    })
}

/// Sorts the objects as the address says.
fn sort(found: &mut [ObjectSummary], by: &str) -> Result<(), ApiError> {
    match by {
        "" => found.sort_by(|a, b| a.source.cmp(&b.source)),
        "name" => found.sort_by(|a, b| a.reference.name.cmp(&b.reference.name)),
        "health" => found.sort_by_key(ObjectSummary::urgency),
        "pods" => found.sort_by_key(|object| Reverse(object.pods)),
        "file" => found.sort_by(|a, b| a.file.cmp(&b.file)),
        other => {
            let message = format!("sort={other}: the list has no such order");
            return Err(ApiError::bad_request(message, "name, health, pods or file"));
        }
    }
    Ok(())
}

/// Returns the objects, each with what runs for it.
fn with_branches(context: &RenderContext<'_>, objects: Vec<ObjectSummary>) -> Vec<(ObjectSummary, TreeNode)> {
    let ids: Vec<ObjectRef> = objects.iter().map(|object| object.reference.clone()).collect();
    let with_pods = objects.iter().filter(|object| object.pods > 0).count();
    let pods_max = (PODS_MAX / with_pods.max(1)).clamp(1, OBJECT_PODS_MAX);
    let branches = view::branches(context.snapshot, &ids, pods_max, context.now);
    objects.into_iter().zip(branches).collect()
}

#[derive(Template)]
#[template(path = "filter.html")]
struct FilterTemplate<'a> {
    query: TreeQuery,
    sources: Vec<String>,
    kinds: &'a [Kind],
}

#[derive(Template)]
#[template(path = "objects.html")]
struct ObjectsTemplate {
    rows: Vec<(ObjectSummary, TreeNode)>,
    /// Number of all matching objects, with the noun.
    count: String,
    at: usize,
    pages: usize,
    query: TreeQuery,
}

impl ObjectsTemplate {
    /// True for the first row of a source, in the order of the tree.
    fn begins_source(&self, at: &usize) -> bool {
        let before = at.checked_sub(1).map(|before| &self.rows[before].0.source);
        self.query.sort.is_empty() && before != Some(&self.rows[*at].0.source)
    }

    /// Number of pods and runs below a row, with the noun.
    fn below(&self, row: &ObjectSummary, node: &TreeNode) -> String {
        match row.pods {
            0 => plural(node.children.len(), "run"),
            pods => plural(pods, "pod"),
        }
    }

    /// Nodes below a row, as nested lists.
    fn list(&self, row: &ObjectSummary, node: &TreeNode) -> String {
        nested_list(node.children.clone(), &row.id)
    }

    /// Address of the first page of the list in another order.
    fn sorted(&self, sort: &str) -> String {
        self.address_of(sort, 1)
    }

    /// Address of another page of the list.
    fn address(&self, page: usize) -> String {
        self.address_of(&self.query.sort, page)
    }

    fn address_of(&self, sort: &str, page: usize) -> String {
        let TreeQuery { source, kind, namespace, label, health, .. } = &self.query;
        let fields = [
            ("source", source),
            ("kind", kind),
            ("namespace", namespace),
            ("label", label),
            ("health", health),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name, value.as_str())).chain([("sort", sort)]);
        let given = fields.filter(|(_, value)| !value.is_empty());
        let given = given.map(|(name, value)| format!("{name}={}&", percent_encode(value)));
        format!("/tree?{}page={page}", given.collect::<String>())
    }
}
