//! Objects, filtered and paged by the server.

use askama::Template;
use schema::kinds::{Health, Kind};
use schema::violation::plural;
use serde::Deserialize;

use super::parts::{Page, Part, ROWS_MAX, RenderContext, TemplateHelpers};
use crate::api::error::ApiError;
use crate::api::input;
use crate::api::kinds::results::percent_encode;
use crate::view::{self, ObjectSummary, Selection};

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
    let is_shown = |health: &Health| match query.health.as_str() {
        "" => true,
        "unhealthy" => *health != Health::Healthy,
        wanted => health.to_string().eq_ignore_ascii_case(wanted),
    };
    let found = view::summaries(context.snapshot, &selection, is_shown);
    let count = plural(found.len(), "object");
    let pages = found.len().div_ceil(ROWS_MAX).max(1);
    let at = query.page.clamp(1, pages);
    let rows = found.into_iter().skip((at - 1) * ROWS_MAX).take(ROWS_MAX).collect();
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
    rows: Vec<ObjectSummary>,
    /// Number of all matching objects, with the noun.
    count: String,
    at: usize,
    pages: usize,
    query: TreeQuery,
}

impl ObjectsTemplate {
    /// Address of another page of the list.
    fn address(&self, page: usize) -> String {
        let TreeQuery { source, kind, namespace, label, health, .. } = &self.query;
        let fields = [
            ("source", source),
            ("kind", kind),
            ("namespace", namespace),
            ("label", label),
            ("health", health),
        ];
        let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
        let given = given.map(|(name, value)| format!("{name}={}&", percent_encode(value)));
        format!("/tree?{}page={page}", given.collect::<String>())
    }
}
