//! Addresses of pages, and the stream of a tab: parts of its page that changed, or new lines of its logs.
//!
//! Each event carries the hashes of all parts as its id, or the marks of the last lines, so that a tab that comes back
//! gets only what it lacks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use jiff::Timestamp;
use schema::meta::ObjectRef;
use schema::store::reflector::SnapshotReader;
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};

use super::logs::{Follower, LogAddress};
use super::parts::{Page, Part, RenderContext, hash_list, with_protection};
use super::{comparison, history, network, object, overview, run, tree};
use crate::api::app::{ApiState, App};
use crate::api::error::ApiError;
use crate::api::input::{self, QueryParams};
use crate::api::kinds::workflows::run_id;
use crate::api::objects;
use crate::workflows::RunId;

/// Minimum time between two events of a stream.
const GAP: Duration = Duration::from_millis(250);
/// Minimum time between two reads of the parts that are not in the snapshot.
const READ_GAP: Duration = Duration::from_secs(5);
/// Time after which a page is rendered again even if nothing changed: it shows ages.
const AGES_EVERY: Duration = Duration::from_secs(10);
/// Minimum time between two reads of a run that has not ended.
const RUN_GAP: Duration = Duration::from_secs(2);
/// Minimum time between two renderings, in terms of the time that one takes: large clusters and long runs take a while.
const REST_FACTOR: u32 = 10;
/// Interval of comments on an idle stream: proxies close connections without traffic.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An address of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Overview,
    Tree(tree::TreeQuery),
    Object(ObjectRef),
    Node(String),
    Network(network::NetworkQuery),
    Logs(LogAddress),
    History(history::HistoryQuery),
    Revision(String, u64),
    Run(RunId),
}

impl Address {
    pub(super) fn parse(uri: &Uri) -> Result<Self, ApiError> {
        let path = uri.path().trim_end_matches('/');
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        match segments.as_slice() {
            [] => Ok(Self::Overview),
            ["tree"] => Ok(Self::Tree(query(uri)?)),
            ["object", kind, namespace, name] => {
                objects::object_ref(kind, (*namespace).to_owned(), (*name).to_owned()).map(Self::Object)
            }
            ["nodes", name] => {
                input::name("node", name)?;
                Ok(Self::Node((*name).to_owned()))
            }
            ["network"] => Ok(Self::Network(query(uri)?)),
            ["logs", namespace, pod] => {
                input::name("namespace", namespace)?;
                input::name("pod", pod)?;
                let (namespace, pod) = ((*namespace).to_owned(), (*pod).to_owned());
                Ok(Self::Logs(LogAddress { namespace, pod, query: query(uri)? }))
            }
            ["runs", namespace, workflow, run] => {
                let (workflow, run) = ((*workflow).to_owned(), (*run).to_owned());
                run_id((*namespace).to_owned(), workflow, run).map(Self::Run)
            }
            ["history"] => Ok(Self::History(query(uri)?)),
            ["history", source, sequence] => {
                input::name("source", source)?;
                let number = sequence.parse().map_err(|_| ApiError::no_such_route(path))?;
                Ok(Self::Revision((*source).to_owned(), number))
            }
            _ => Err(ApiError::no_such_route(path)),
        }
    }

    /// Renders the page from the snapshot; those of a log and of a run are empty, because these are not in the snapshot.
    pub(super) fn page(&self, context: &RenderContext<'_>) -> Result<Page, ApiError> {
        match self {
            Self::Overview => Ok(overview::page(context)),
            Self::Tree(query) => tree::page(context, query),
            Self::Object(id) => object::page(context, id),
            Self::Node(name) => overview::node_page(context, name),
            Self::Network(query) => Ok(network::page(context, query)),
            Self::Logs(_) | Self::Run(_) => Ok(Page { title: String::new(), parts: Vec::new() }),
            Self::History(query) => history::page(context, query),
            Self::Revision(source, sequence) => history::revision_page(context, source, *sequence),
        }
    }

    /// Renders the parts that are read from etcd and Git; each waits for a few seconds at most.
    pub(super) async fn read(&self, app: &ApiState, context: &RenderContext<'_>) -> Vec<Part> {
        match self {
            Self::Object(id) => {
                let runs = run::list(app, id, context.now);
                let events = object::events(app, id, context.now);
                let (runs, events, diff) = tokio::join!(runs, events, comparison::diff(app, context, id));
                runs.into_iter().chain([events, diff]).collect()
            }
            Self::Revision(source, sequence) => {
                vec![comparison::plan(app, context, source, *sequence).await]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the address in the navigation that this one belongs to.
    pub(super) fn section(&self) -> &'static str {
        match self {
            Self::Overview | Self::Node(_) => "/",
            Self::Tree(_) | Self::Object(_) | Self::Logs(_) | Self::Run(_) => "/tree",
            Self::Network(_) => "/network",
            Self::History(_) | Self::Revision(..) => "/history",
        }
    }
}

fn query<T: serde::de::DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let parsed = Query::try_from_uri(uri).map(|Query(query)| query);
    parsed.map_err(|rejection| ApiError::bad_request(rejection.body_text(), "follow a link of the page"))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangesQuery {
    /// Path and query of the page.
    of: String,
    /// Hashes of the parts that the tab has, `id:hash,id:hash`, or the marks of its last lines of logs.
    #[serde(default)]
    have: String,
}

struct Tab {
    address: Address,
    app: Arc<ApiState>,
    snapshot: SnapshotReader,
    /// Hashes of the parts that the tab has.
    sent: BTreeMap<String, String>,
    next: Instant,
    /// Earliest time to read the parts again that are not in the snapshot.
    next_read: Instant,
    /// True once the page can't change any more.
    is_final: bool,
    _permit: OwnedSemaphorePermit,
}

pub(super) async fn changes(
    State(app): App,
    headers: HeaderMap,
    QueryParams(query): QueryParams<ChangesQuery>,
) -> Result<Response, ApiError> {
    let bad = || ApiError::bad_request("`of` is not an address of the page", "open a page of this server");
    let uri: Uri = query.of.parse().map_err(|_| bad())?;
    let address = Address::parse(&uri)?;
    let permit = Arc::clone(&app.tabs).try_acquire_owned().map_err(|_| {
        ApiError::unavailable("too many pages are open", "close some of them; the page stays readable")
    })?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()).unwrap_or(&query.have);
    if let Address::Logs(log) = &address {
        let follower = Follower::open(&app, log, last).await?;
        let events = stream::unfold((follower, permit), |(follower, permit)| async move {
            let (event, follower) = follower.event().await?;
            Some((Ok::<_, Infallible>(event), (follower, permit)))
        });
        let stream = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
        return Ok(with_protection(stream.into_response()));
    }
    let sent = last.split(',').filter_map(|part| part.split_once(':'));
    let sent = sent.map(|(id, hash)| (id.to_owned(), hash.to_owned())).collect();
    let snapshot = app.deps.snapshot.clone();
    // The visit has just read the run.
    let rest = if matches!(address, Address::Run(_)) { RUN_GAP } else { Duration::ZERO };
    let (next, next_read) = (Instant::now() + rest, Instant::now() + READ_GAP);
    let tab = Tab { address, app, snapshot, sent, next, next_read, is_final: false, _permit: permit };
    let events = stream::unfold(tab, |tab| async move {
        let (event, tab) = tab.event().await;
        Some((Ok::<_, Infallible>(event), tab))
    });
    let stream = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok(with_protection(stream.into_response()))
}

impl Tab {
    /// Waits until the page differs from what the tab has.
    async fn event(mut self) -> (Event, Self) {
        loop {
            sleep_until(self.next).await;
            self.next = Instant::now() + GAP;
            let began = Instant::now();
            let page = match &self.address {
                // The stream stays open: a closed one would be opened again.
                Address::Run(_) if self.is_final => std::future::pending().await,
                Address::Run(id) => {
                    let (page, is_final) = run::next_page(&self.app, id).await;
                    self.is_final = is_final;
                    self.next = Instant::now() + RUN_GAP;
                    page
                }
                _ => self.render().await,
            };
            // A tab takes a small part of a core, however large the cluster is.
            self.next = self.next.max(Instant::now() + began.elapsed() * REST_FACTOR);
            if let Some(event) = page.and_then(|page| self.changed(&page)) {
                return (event, self);
            }
            if !matches!(self.address, Address::Run(_)) {
                // Either is a reason to render again.
                let _ = timeout(AGES_EVERY, self.snapshot.changed()).await;
            }
        }
    }

    /// Renders the page. `None` until etcd is read, and for an object that is gone: its last page stays, the next visit
    /// says so.
    async fn render(&mut self) -> Option<Page> {
        let snapshot = self.snapshot.current();
        let samples = &self.app.deps.autoscaler_samples;
        let context = RenderContext { snapshot: &snapshot, samples, now: Timestamp::now() };
        let mut page = self.address.page(&context).ok().filter(|_| snapshot.synced)?;
        if self.next_read <= Instant::now() {
            page.parts.extend(self.address.read(&self.app, &context).await);
            self.next_read = Instant::now() + READ_GAP;
        }
        Some(page)
    }

    /// Returns an event with the parts that the tab lacks.
    fn changed(&mut self, page: &Page) -> Option<Event> {
        let now = page.hashes();
        let is_new = |id: &str| self.sent.get(id) != now.get(id);
        let parts = page.parts.iter().filter(|part| is_new(part.id));
        let parts: Vec<_> = parts.map(|part| serde_json::json!({"id": part.id, "html": part.html})).collect();
        self.sent.extend(now);
        if parts.is_empty() {
            return None;
        }
        let data = serde_json::Value::from(parts).to_string();
        Some(Event::default().event("parts").id(hash_list(&self.sent)).data(data))
    }
}
