//! Addresses of pages, and the stream of a tab: parts of its page that changed, or new lines of its log.
//!
//! Each event carries the hashes of all parts as its id, or the mark of the last line, so that a tab that comes back
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
use super::parts::{Page, RenderContext, hash_list, with_protection};
use super::{history, network, object, overview, tree};
use crate::api::app::App;
use crate::api::error::ApiError;
use crate::api::input::{self, QueryParams};
use crate::api::objects;

/// Minimum time between two events of a stream.
const GAP: Duration = Duration::from_millis(250);
/// Time after which a page is rendered again even if nothing changed: it shows ages.
const AGES_EVERY: Duration = Duration::from_secs(10);
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
            ["history"] => Ok(Self::History(query(uri)?)),
            ["history", source, sequence] => {
                input::name("source", source)?;
                let number = sequence.parse().map_err(|_| ApiError::no_such_route(path))?;
                Ok(Self::Revision((*source).to_owned(), number))
            }
            _ => Err(ApiError::no_such_route(path)),
        }
    }

    /// Renders the page from the snapshot; that of a log is empty, because its lines are not in the snapshot.
    pub(super) fn page(&self, context: &RenderContext<'_>) -> Result<Page, ApiError> {
        match self {
            Self::Overview => Ok(overview::page(context)),
            Self::Tree(query) => tree::page(context, query),
            Self::Object(id) => object::page(context, id),
            Self::Node(name) => overview::node_page(context, name),
            Self::Network(query) => Ok(network::page(context, query)),
            Self::Logs(_) => Ok(Page { title: String::new(), parts: Vec::new() }),
            Self::History(query) => history::page(context, query),
            Self::Revision(source, sequence) => history::revision_page(context, source, *sequence),
        }
    }

    /// Returns the address in the navigation that this one belongs to.
    pub(super) fn section(&self) -> &'static str {
        match self {
            Self::Overview | Self::Node(_) => "/",
            Self::Tree(_) | Self::Object(_) | Self::Logs(_) => "/tree",
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
    /// Hashes of the parts that the tab has, `id:hash,id:hash`, or the mark of its last line of a log.
    #[serde(default)]
    have: String,
}

struct Tab {
    address: Address,
    snapshot: SnapshotReader,
    /// Hashes of the parts that the tab has.
    sent: BTreeMap<String, String>,
    next: Instant,
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
    let tab = Tab { address, snapshot, sent, next: Instant::now(), _permit: permit };
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
            if let Some(event) = self.render().and_then(|page| self.changed(&page)) {
                return (event, self);
            }
            // Either is a reason to render again.
            let _ = timeout(AGES_EVERY, self.snapshot.changed()).await;
        }
    }

    /// Renders the page. `None` until etcd is read, and for an object that is gone: its last page stays, the next visit
    /// says so.
    fn render(&self) -> Option<Page> {
        let snapshot = self.snapshot.current();
        let context = RenderContext { snapshot: &snapshot, now: Timestamp::now() };
        self.address.page(&context).ok().filter(|_| snapshot.synced)
    }

    /// Returns an event with the parts that the tab lacks.
    fn changed(&mut self, page: &Page) -> Option<Event> {
        let now = page.hashes();
        let is_new = |id: &str| self.sent.get(id) != now.get(id);
        let parts = page.parts.iter().filter(|part| is_new(part.id));
        let parts: Vec<_> = parts.map(|part| serde_json::json!({"id": part.id, "html": part.html})).collect();
        self.sent = now;
        if parts.is_empty() {
            return None;
        }
        let data = serde_json::Value::from(parts).to_string();
        Some(Event::default().event("parts").id(hash_list(&self.sent)).data(data))
    }
}
