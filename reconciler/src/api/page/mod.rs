//! The page: the cluster in a browser.
//!
//! Rendered here from `view/`, events and runs in etcd, logs of nodes and comparisons of commits. Readable without its
//! script, and kept up to date by one stream for each tab ([`changes`]), which sends the parts that changed, or new lines
//! of logs. It is read-only.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use jiff::Timestamp;

use super::app::{ApiState, App};
use super::error::ApiError;
use super::kinds::results::percent_encode;

mod ansi;
mod changes;
mod chart;
mod comparison;
mod graph;
mod history;
mod job;
mod logs;
mod network;
mod object;
mod object_facts;
mod object_state;
mod overview;
mod parts;
mod run;
mod tree;

use changes::Address;
use parts::{Page, Part, RenderContext, TemplateHelpers, hash_list, with_protection};

const CSS: &str = include_str!("../../../assets/page.css");
const SCRIPT: &str = include_str!("../../../assets/page.js");
const ICON: &str = include_str!("../../../assets/icon.svg");

/// Routes of the page.
pub(super) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/", get(page))
        .route("/tree", get(page))
        .route("/object/{kind}/{namespace}/{name}", get(page))
        .route("/nodes/{name}", get(page))
        .route("/network", get(page))
        .route("/logs/{namespace}/{pod}", get(page))
        .route("/runs/{namespace}/{workflow}/{run}", get(page))
        .route("/history", get(page))
        .route("/history/{source}/{sequence}", get(page))
        .route("/changes", get(changes::changes))
        .route("/assets/page.css", asset("text/css; charset=utf-8", CSS))
        .route("/assets/page.js", asset("text/javascript; charset=utf-8", SCRIPT))
        .route("/assets/icon.svg", asset("image/svg+xml", ICON))
        .fallback(missing)
}

/// Answers an address that has no route: browsers get a page, others JSON.
async fn missing(app: App, headers: HeaderMap, uri: Uri) -> Response {
    let accepted = headers.get(header::ACCEPT).and_then(|types| types.to_str().ok()).unwrap_or_default();
    match accepted.contains("text/html") {
        true => page(app, uri).await,
        false => ApiError::no_such_route(uri.path()).into_response(),
    }
}

fn asset(kind: &'static str, text: &'static str) -> MethodRouter<Arc<ApiState>> {
    get(move || async move {
        // The name does not change with the content, so a browser asks each time.
        let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")];
        with_protection((headers, text).into_response())
    })
}

async fn page(State(app): App, uri: Uri) -> Response {
    let (status, html) = match render(&app, &uri).await {
        Ok(html) => (StatusCode::OK, html),
        Err(error) => {
            let parts =
                vec![Part::new("error", &ErrorTemplate { error: error.to_string(), help: error.help() })];
            let page = Page { title: error.status().to_string(), parts };
            (error.status(), shell(&app, String::new(), ("", String::new()), &page))
        }
    };
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    with_protection((status, headers, html).into_response())
}

async fn render(app: &ApiState, uri: &Uri) -> Result<String, ApiError> {
    let address = Address::parse(uri)?;
    let (snapshot, now) = (app.snapshot()?, Timestamp::now());
    let (page, have) = match &address {
        Address::Logs(log) => logs::page(app, &snapshot, log).await?,
        Address::Run(id) => {
            let (page, _) = run::page(app, id).await?;
            let have = hash_list(&page.hashes());
            (page, have)
        }
        other => {
            let context = RenderContext { snapshot: &snapshot, samples: &app.deps.autoscaler_samples, now };
            let mut page = other.page(&context)?;
            let read = other.read(app, &context).await;
            // What a commit changed is above its timeline; the rest is below.
            let at = if matches!(other, Address::Revision(..)) { 1 } else { page.parts.len() };
            page.parts.splice(at..at, read);
            let have = hash_list(&page.hashes());
            (page, have)
        }
    };
    let path = uri.path_and_query().map_or("/", |address| address.as_str());
    let changes = match &address {
        Address::Logs(log) if log.is_previous() => String::new(),
        _ => format!("/changes?of={}", percent_encode(path)),
    };
    Ok(shell(app, changes, (address.section(), have), &page))
}

/// Renders the whole document. `changes` is the address of its stream; empty for a document that does not change.
fn shell(app: &ApiState, changes: String, (section, have): (&'static str, String), page: &Page) -> String {
    let template = ShellTemplate {
        title: &page.title,
        navigation: [("/", "Overview"), ("/tree", "Tree"), ("/network", "Network"), ("/history", "History")],
        section,
        changes,
        have,
        parts: &page.parts,
        reconciler: &app.deps.identity,
        version: &app.deps.version,
    };
    template.render().unwrap_or_default()
}

#[derive(Template)]
#[template(path = "shell.html")]
struct ShellTemplate<'a> {
    title: &'a str,
    navigation: [(&'static str, &'static str); 4],
    section: &'static str,
    changes: String,
    have: String,
    parts: &'a [Part],
    reconciler: &'a str,
    version: &'a str,
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorTemplate {
    error: String,
    help: String,
}
