//! Request handler of the gateway: looks up the route in the table and passes the request to the proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use tokio::sync::watch;

use super::balance::InFlight;
use super::proxy::{Proxy, ProxyResponse, Refusal, Target};
use super::route::{NotFound, Route, Table};
use super::shares::{Destination, Turns};
use crate::converge::shared::FunctionCalls;
use crate::http::body::GuardedBody;
use crate::http::path::normalized;
use crate::http::plain::{PlainTarget, StartedRequest};
use crate::http::server::{Caller, Handler};
use crate::metrics::RequestCounts;

/// Routes by host and path.
#[derive(Debug)]
pub(super) struct Router {
    /// Newest table. A request keeps the table that it began with; a retry of a request that hyper took over uses
    /// the newest.
    pub(super) table: watch::Receiver<Arc<Table>>,
    pub(super) proxy: Proxy,
    pub(super) turns: Turns,
    /// Handles requests for functions behind hosts.
    pub(super) functions: Arc<dyn FunctionCalls>,
    pub(super) requests: RequestCounts,
}

impl Handler for Router {
    type ResponseGuard = InFlight;

    fn plain_target(&self, host: &str, path: &str, caller: &Caller) -> Option<PlainTarget<InFlight>> {
        // A path that is refused takes the long way, which answers it.
        let path = normalized(path).ok()?;
        let table = self.table.borrow();
        let (endpoints, rewritten) = sole_endpoints(&table, host, &path)?;
        self.proxy.plain_target(endpoints, rewritten, caller)
    }

    fn count(&self, status: u16, took: Duration) {
        self.requests.count(status, took);
    }

    async fn handle(
        &self,
        request: Request<Incoming>,
        caller: Caller,
        begun: Option<StartedRequest<InFlight>>,
    ) -> ProxyResponse {
        let table = Arc::clone(&self.table.borrow());
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let answer = self.answer(&table, request, &caller, begun).await;
        answer.unwrap_or_else(|refusal| {
            tracing::debug!(%method, %uri, status = %refusal.status, why = %refusal.why, "request refused");
            refusal.answer()
        })
    }
}

impl Router {
    async fn answer(
        &self,
        table: &Table,
        request: Request<Incoming>,
        caller: &Caller,
        begun: Option<StartedRequest<InFlight>>,
    ) -> Result<ProxyResponse, Refusal> {
        if request.method() == Method::CONNECT {
            let why = "the gateway does not support CONNECT";
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, why));
        }
        let host = host(&request)?;
        let named = host.to_str().map_err(|_| bad_request("the host is not text"))?;
        let uri = request.uri().clone();
        let path = normalized(uri.path()).map_err(|why| bad_request(&why.to_string()))?;
        let path = &*path;
        if begun.is_some() {
            // The first try is under way, whatever a newer table contains; that table decides where a retry may go.
            let (endpoints, rewritten) = sole_endpoints(table, named, path).unwrap_or_default();
            let target = Target { endpoints, path: rewritten.as_deref(), host: &host };
            return self.proxy.forward(request, caller, target, begun).await;
        }
        let route = table.find(named, path).map_err(|what| not_found(what, named, path))?;
        let leads = route.shares.pick(request.headers(), &self.turns);
        let endpoints = match leads.ok_or_else(|| not_found(NotFound::Path, named, path))? {
            Destination::Endpoints(endpoints) => endpoints,
            Destination::Function(id) => {
                let answer = self.functions.call_through_host(request, id, caller).await;
                return Ok(answer.map(|body| GuardedBody::new(body.into_body(), None)));
            }
            Destination::Unavailable(why) => {
                return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why.clone()));
            }
        };
        let rewritten = Route::rewritten(route, path);
        let target = Target { endpoints, path: rewritten.as_deref(), host: &host };
        self.proxy.forward(request, caller, target, None).await
    }
}

/// Returns the endpoints for all requests to this host and normalized path, and the rewritten path if it differs.
fn sole_endpoints<'t>(
    table: &'t Table,
    host: &str,
    path: &str,
) -> Option<(&'t [SocketAddr], Option<String>)> {
    let route = table.find(host, path).ok()?;
    Some((route.shares.sole_endpoints()?, route.rewritten(path)))
}

/// Returns the target host: the authority of an absolute URL takes precedence over the header (RFC 9112 3.2.2), of
/// which there must be at most one.
fn host(request: &Request<Incoming>) -> Result<HeaderValue, Refusal> {
    let mut headers = request.headers().get_all(HOST).into_iter();
    let (host, second) = (headers.next(), headers.next());
    if second.is_some() {
        return Err(bad_request("there is more than one Host header"));
    }
    match (request.uri().authority(), host) {
        (Some(authority), _) => HeaderValue::from_str(authority.as_str())
            .map_err(|_| bad_request("the URL's host is not a valid Host header")),
        (None, Some(host)) => Ok(host.clone()),
        (None, None) => Err(bad_request("there is no Host header; the gateway serves hosts of Dns objects")),
    }
}

fn bad_request(why: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, why)
}

fn not_found(what: NotFound, host: &str, path: &str) -> Refusal {
    match what {
        NotFound::Unknown => {
            let why = "this node does not know any routes yet; it learns them from etcd";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why)
        }
        NotFound::Host => Refusal::new(StatusCode::NOT_FOUND, format!("no Dns object has the host {host}")),
        NotFound::Path => Refusal::new(StatusCode::NOT_FOUND, format!("no path of {host} matches {path}")),
    }
}
