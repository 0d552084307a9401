//! Services, hosts, and whether each node's rules are up to date.

use std::collections::BTreeMap;

use askama::Template;
use serde::Deserialize;

use super::parts::{Page, Part, ROWS_MAX, RenderContext, TemplateHelpers};
use crate::view::{self, NodeRules, RouteView, Selection, ServiceView};

/// Maximum number of endpoints named for each service.
const ENDPOINTS_MAX: usize = 6;
/// Maximum number of nodes shown, those whose rules are not up to date first.
const NODES_MAX: usize = 100;

/// Number of the page of services, from 1.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NetworkQuery {
    page: usize,
}

pub(super) fn page(context: &RenderContext<'_>, query: &NetworkQuery) -> Page {
    let RenderContext { snapshot, now, .. } = *context;
    let all = Selection::default();
    let mut services = view::services(snapshot, &all, now);
    let pages = services.len().div_ceil(ROWS_MAX).max(1);
    let at = query.page.clamp(1, pages);
    services = services.into_iter().skip((at - 1) * ROWS_MAX).take(ROWS_MAX).collect();
    let endpoints = view::endpoints(snapshot, &all, now).into_iter();
    let endpoints = endpoints.map(|of| ((of.namespace, of.name), of.endpoints)).collect();
    let mut hosts = view::routes(snapshot, &all, now);
    let more_hosts = hosts.len().saturating_sub(ROWS_MAX);
    hosts.truncate(ROWS_MAX);
    let mut nodes = view::all_rules(snapshot, now);
    nodes.sort_by_key(|rules| rules.state == view::PROGRAMMED);
    let more_nodes = nodes.len().saturating_sub(NODES_MAX);
    nodes.truncate(NODES_MAX);
    Page {
        title: "Network".to_owned(),
        parts: vec![
            Part::new("services", &ServicesTemplate { services, endpoints, at, pages }),
            Part::new("hosts", &HostsTemplate { hosts, more: more_hosts }),
            Part::new("rules", &RulesTemplate { nodes, more: more_nodes }),
        ],
    }
}

#[derive(Template)]
#[template(path = "services.html")]
struct ServicesTemplate {
    services: Vec<ServiceView>,
    endpoints: BTreeMap<(String, String), Vec<String>>,
    at: usize,
    pages: usize,
}

impl ServicesTemplate {
    fn endpoints_of(&self, service: &ServiceView) -> String {
        let all = self.endpoints.get(&(service.namespace.clone(), service.name.clone()));
        let all = all.map_or(&[][..], Vec::as_slice);
        let named = all.iter().take(ENDPOINTS_MAX).cloned().collect::<Vec<_>>().join(", ");
        match all.len().saturating_sub(ENDPOINTS_MAX) {
            0 => named,
            more => format!("{named} and {more} more"),
        }
    }
}

#[derive(Template)]
#[template(path = "hosts.html")]
struct HostsTemplate {
    hosts: Vec<RouteView>,
    more: usize,
}

#[derive(Template)]
#[template(path = "rules.html")]
struct RulesTemplate {
    nodes: Vec<NodeRules>,
    more: usize,
}

impl RulesTemplate {
    /// Class of the mark of a node's rules; the state of rules that failed is the reason.
    fn mark_of(&self, rules: &NodeRules) -> &'static str {
        match rules.state.as_str() {
            view::PROGRAMMED => "good",
            view::BEHIND | view::NOTHING_YET => "busy",
            _ => "bad",
        }
    }
}
