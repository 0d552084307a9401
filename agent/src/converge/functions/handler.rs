//! `POST /<ns>/<name>` calls a function, `GET /<ns>/<name>` returns its state.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body as _, Incoming};
use hyper::header::{ALLOW, CONTENT_LENGTH, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use jiff::Timestamp;
use schema::meta::NamespacedName;
use schema::names::HostNames;
use schema::records::{FunctionRecord, Subnet};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::answer::{CallError, CallResponse, TIMINGS, json_answer};
use super::beats::{self, HeartbeatSlot};
use super::call::{self, CONNECT_MAX, Call, IDEMPOTENCY_KEY, is_object};
use super::call_queue::Calls;
use super::caller_policy::{PodAddresses, Rights, Tokens, rights};
use super::phases::{Phases, error_in};
use super::window::Rates;
use crate::catalog::Catalog;
use crate::converge::shared::FunctionCalls;
use crate::desired::StateOrigin;
use crate::files::PodFiles;
use crate::http::body::{Answer, Budget, Room};
use crate::http::outgoing::{self, LazyClient};
use crate::http::path::normalized;
use crate::http::plain::StartedRequest;
use crate::http::routes;
use crate::http::server::{Caller, Channel, Handler};

/// Longest time for a whole body, besides waits for room: a slow trickle holds the room of its bytes.
const BODY_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the next byte of a body: as long as a head may take.
const NEXT_BYTE_MAX: Duration = Duration::from_secs(10);
/// Idle time after which a connection to a replica is closed: less than the 3 s for which the Python shim answers
/// after SIGTERM, and than the 5 s after which common servers close an idle one.
const KEPT_MAX: Duration = Duration::from_secs(2);
/// Error type of a function that does not exist, or not for this caller.
const NOT_FOUND: &str = "NotFound";
/// Request header that asks for the durations of the phases.
const WANTS_TIMINGS: &str = "x-timings";

/// Memory for bodies and answers of all calls: a quarter, the share of a client, holds the largest body that a
/// function may allow.
const BUDGET_BYTES: u64 = 256 << 20;

/// Request handler for callers of functions.
#[derive(Debug, Clone)]
pub struct Functions {
    catalog: watch::Receiver<Arc<Catalog>>,
    known: watch::Receiver<PodAddresses>,
    calls: Calls,
    client: Arc<LazyClient>,
    tokens: Tokens,
    rates: Rates,
    budget: Budget,
    hosts: Arc<HostNames>,
    /// Address of the gateway; `None` if heartbeats are not reported.
    listen: Option<SocketAddr>,
    /// Set if waiting calls are reported, so that a replica may be started.
    follows: bool,
}

impl Handler for Functions {
    type ResponseGuard = ();

    async fn handle(
        &self,
        request: Request<Incoming>,
        caller: Caller,
        _: Option<StartedRequest<()>>,
    ) -> CallResponse {
        let activation = activation_id();
        let answer = self.answer(request, &caller, &activation).await;
        answer.unwrap_or_else(|refused| refused.answer(&activation))
    }
}

#[async_trait]
impl FunctionCalls for Functions {
    async fn call_through_host(
        &self,
        mut request: Request<Incoming>,
        id: &NamespacedName,
        caller: &Caller,
    ) -> CallResponse {
        // Workflow runs do not call through hosts, and a proxy on the node would pass as any caller.
        request.headers_mut().remove(beats::TOKEN);
        let activation = activation_id();
        let called = async {
            let catalog = Arc::clone(&self.catalog.borrow());
            let record = record(&catalog, id)?;
            let is_foreign = is_for_foreign_page(&request, None);
            self.may_call((record, id), caller, request.headers(), is_foreign).await?;
            Ok(self.call((request, caller), (record, &catalog), id, &activation).await)
        };
        called.await.unwrap_or_else(|refused: CallError| refused.answer(&activation))
    }
}

fn client() -> reqwest::Client {
    outgoing::to_functions(CONNECT_MAX, 64, KEPT_MAX)
}

fn activation_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

impl Functions {
    pub(super) fn new(
        catalog: watch::Receiver<Arc<Catalog>>,
        known: watch::Receiver<PodAddresses>,
        calls: Calls,
        files: Option<Arc<PodFiles>>,
    ) -> Self {
        let client = Arc::new(LazyClient::new(client));
        let (tokens, rates, budget) = (Tokens::new(files), Rates::default(), Budget::new(BUDGET_BYTES));
        let hosts = Arc::default();
        Self { catalog, known, calls, client, tokens, rates, budget, hosts, listen: None, follows: true }
    }

    /// Accepts pages loaded from this gateway under these names, besides its addresses.
    pub fn addressed_as(self, hosts: HostNames) -> Self {
        Self { hosts: Arc::new(hosts), ..self }
    }

    /// Creates the client if any function exists, so that no caller waits for it.
    pub(super) fn prepare(&self) {
        if !self.catalog.borrow().functions.is_empty() {
            LazyLock::force(&self.client);
        }
    }

    /// Accepts heartbeats at this address.
    pub(super) fn listening(self, listen: SocketAddr) -> Self {
        Self { listen: Some(listen), ..self }
    }

    #[cfg(test)]
    pub(super) fn with_budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// Creates a handler without a loop that follows changes: sleeping functions are not woken.
    pub fn from_last_known(catalog: watch::Receiver<Arc<Catalog>>, own: Option<&Subnet>) -> Self {
        let newest = Arc::clone(&catalog.borrow());
        let calls = Calls::new(Timestamp::now());
        calls.follow(newest.functions.iter().map(|(id, found)| (id, &found.value)));
        // The sender is dropped: the addresses stay as they are.
        let (_, known) = watch::channel(PodAddresses::from_catalog(&newest, own));
        Self { follows: false, ..Self::new(catalog, known, calls, None) }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        caller: &Caller,
        activation: &str,
    ) -> Result<CallResponse, CallError> {
        if caller.channel == Channel::Tls(None) {
            let message =
                "calls over TLS need a certificate of a node, a reconciler or a user of this cluster";
            return Err(CallError::new(StatusCode::UNAUTHORIZED, "CertificateMissing", message));
        }
        let path = normalized(request.uri().path())
            .map_err(|why| CallError::new(StatusCode::BAD_REQUEST, "BadPath", why.to_string()))?;
        if self.rights(caller).sends_heartbeats
            && let Some(answer) = self.calls.beats.answer(request.method(), &path, activation)
        {
            return Ok(answer);
        }
        let catalog = Arc::clone(&self.catalog.borrow());
        let Some(id) = parse_path(&path) else {
            let message = "the path is not /<namespace>/<function>";
            return Err(CallError::new(StatusCode::NOT_FOUND, NOT_FOUND, message));
        };
        let is_hidden = |refused: &CallError| refused.kind == NOT_FOUND && !self.rights(caller).calls_all;
        let record = record(&catalog, &id).map_err(|refused| match is_hidden(&refused) {
            true => self.refuse_stranger(&id, caller),
            false => refused,
        })?;
        let is_foreign = is_for_foreign_page(&request, Some(&*self.hosts));
        self.may_call((record, &id), caller, request.headers(), is_foreign).await?;
        match *request.method() {
            Method::POST => Ok(self.call((request, caller), (record, &catalog), &id, activation).await),
            Method::GET => Ok(self.state(record, caller, &id, activation)),
            _ => {
                let message = "POST calls the function, GET returns its state";
                let refused = CallError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
                let mut answer = refused.answer(activation);
                answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST"));
                Ok(answer)
            }
        }
    }

    fn rights(&self, caller: &Caller) -> Rights {
        rights(caller, &self.known.borrow())
    }

    /// True if the function has no token and the caller may not call every function: build logs and crash tracebacks are
    /// not for such callers.
    fn is_stranger(&self, record: &FunctionRecord, caller: &Caller) -> bool {
        record.token.is_none() && !self.rights(caller).calls_all
    }

    /// Decides on a caller. `is_foreign`: a browser sent the call for a page from elsewhere, so neither address nor
    /// certificate says who calls.
    async fn may_call(
        &self,
        (record, id): (&FunctionRecord, &NamespacedName),
        caller: &Caller,
        headers: &HeaderMap,
        is_foreign: bool,
    ) -> Result<(), CallError> {
        let is_known = self.rights(caller).calls_all;
        if record.calls.public || (is_known && !is_foreign) {
            return Ok(());
        }
        if let Some(token) = &record.token {
            return self.tokens.check(id, token, headers).await;
        }
        if !is_known {
            return Err(self.refuse_stranger(id, caller));
        }
        let message = format!(
            "function {id} is not public, and the request names another host, as for a page in a browser; set `public: true` \
             in its manifest to let every page call it, or call it from a program at an address of the gateway"
        );
        Err(CallError::new(StatusCode::FORBIDDEN, "ForeignOrigin", message))
    }

    /// Creates the response for a stranger, the same whether or not there is such a function.
    fn refuse_stranger(&self, id: &NamespacedName, caller: &Caller) -> CallError {
        let address = address_of(caller);
        let message = format!(
            "there is no function {id} that {address} may call: it is neither this node nor a pod of this cluster, shows no \
             certificate, and may call only functions with `public: true` or with `auth` and its token"
        );
        CallError::new(StatusCode::NOT_FOUND, NOT_FOUND, message)
    }

    /// Accepts heartbeats of a call whose caller gave a token: a reconciler, or a program of this node, as in a cluster of
    /// one machine.
    pub(super) fn register_heartbeats(
        &self,
        token: &str,
        caller: &Caller,
    ) -> Result<HeartbeatSlot, CallError> {
        if !self.rights(caller).awaits_heartbeats {
            let message = format!(
                "{} may not send {}: only this node may, and nodes and reconcilers over TLS with their certificates",
                address_of(caller),
                beats::TOKEN
            );
            return Err(CallError::new(StatusCode::FORBIDDEN, "HeartbeatsForbidden", message));
        }
        let bridge = self.known.borrow().bridge;
        let at = self.listen.zip(bridge).map(|(listen, bridge)| (bridge, listen.port()).into());
        self.calls.beats.register(token, at)
    }

    async fn call(
        &self,
        (request, caller): (Request<Incoming>, &Caller),
        (record, catalog): (&FunctionRecord, &Catalog),
        id: &NamespacedName,
        activation: &str,
    ) -> CallResponse {
        let began = Instant::now();
        let wants_timings = request.headers().contains_key(WANTS_TIMINGS);
        let called = self.perform((request, caller), (record, catalog), id, activation).await;
        let called = called.map_err(|refused| match self.is_stranger(record, caller) {
            true => refused.without_details(id),
            false => refused,
        });
        let (status, phases) = match &called {
            Ok((answered, phases)) => (answered.status, phases.clone()),
            Err(refused) => (refused.status, Phases::default()),
        };
        let handled = called.as_ref().ok().and_then(|(answered, _)| answered.handled_micros);
        let phases = phases.ended(handled.map(Duration::from_micros), began.elapsed());
        self.calls.count(id, status, &phases);
        if status.is_server_error() {
            let (kind, message) = match &called {
                Ok((answered, _)) => error_in(&answered.body),
                Err(refused) => (refused.kind.to_owned(), refused.message.clone()),
            };
            self.calls.note_failure(id, (&kind, &message));
        }
        let mut answer = match called {
            Ok((answered, _)) => json_answer(status, Answer::whole(answered.body, answered.room), activation),
            Err(refused) => refused.answer(activation),
        };
        if wants_timings && let Ok(value) = HeaderValue::from_str(&phases.header()) {
            answer.headers_mut().insert(TIMINGS, value);
        }
        answer
    }

    async fn perform(
        &self,
        (request, caller): (Request<Incoming>, &Caller),
        (record, catalog): (&FunctionRecord, &Catalog),
        id: &NamespacedName,
        activation: &str,
    ) -> Result<(call::ReplicaAnswer, Phases), CallError> {
        if let Some(most) = catalog.settings.spec.functions.calls_per_minute {
            let counted = self.rates.count(&id.namespace, most, Instant::now());
            counted.map_err(|seconds| CallError::rate_limited(&id.namespace, most, seconds))?;
        }
        if record.replicas.is_empty() && !self.follows {
            let message = "the function is asleep and wakes once this node's agent runs again";
            return Err(CallError::retryable("NoReplica", message));
        }
        let key = request.headers().get(IDEMPOTENCY_KEY).cloned();
        let token = beats::token(request.headers()).map(str::to_owned);
        let payer = (!caller.is_node).then(|| address_of(caller));
        let (body, room) = read(request, payer, record.calls.request_body_bytes, &self.budget).await?;
        // Only now: a caller that sends its body slowly must not take the place of others' heartbeats.
        let beats = token.map(|token| self.register_heartbeats(&token, caller)).transpose()?;
        let heartbeat = beats.as_ref().map(|expected| expected.url.clone());
        let (calls, client, budget) = (&self.calls, &self.client, &self.budget);
        let limits = &record.calls;
        let call = Call { calls, client, id, limits, activation, key, heartbeat, body, room, budget, payer };
        let entered = Timestamp::now();
        let answered = call.run().await?;
        let start = self.catalog.borrow().functions.get(id).and_then(|found| {
            let mut replicas = found.value.replicas.iter();
            replicas.find(|replica| SocketAddr::from(replica.address) == answered.replica)?.start
        });
        let phases = Phases::new(entered, answered.queued, start);
        Ok((answered, phases))
    }

    fn state(
        &self,
        record: &FunctionRecord,
        caller: &Caller,
        id: &NamespacedName,
        activation: &str,
    ) -> CallResponse {
        let details = (!self.is_stranger(record, caller)).then_some(record);
        let (waiting, in_flight, since_began) = self.calls.state(id);
        let state = match (&record.replicas[..], record.wanted) {
            ([_, ..], _) => "Ready",
            ([], 0) => "Asleep",
            ([], _) => "Starting",
        };
        let body = json!({
            "function": id.to_string(),
            "state": state,
            "replicas": record.replicas.len(),
            "wanted": record.wanted,
            "image": details.and_then(FunctionRecord::image),
            "trouble": details.and_then(|record| record.trouble.as_ref()),
            "here": {
                "waiting": waiting,
                "inFlight": in_flight,
                "since": self.calls.began(),
                "calls": since_began,
            },
        });
        json_answer(StatusCode::OK, Answer::words(body.to_string()), activation)
    }
}

fn record<'c>(catalog: &'c Catalog, id: &NamespacedName) -> Result<&'c FunctionRecord, CallError> {
    match catalog.functions.get(id) {
        Some(found) => Ok(&found.value),
        None if catalog.known_from == StateOrigin::Unknown => {
            Err(CallError::retryable("NotKnownYet", "this node does not know any functions yet"))
        }
        None => {
            let message = format!("there is no function {id}");
            Err(CallError::new(StatusCode::NOT_FOUND, NOT_FOUND, message))
        }
    }
}

/// True if a browser may have sent the request for a page that was not loaded from here. `names`: those of the gateway
/// besides its addresses; `None` for a host of a Dns object, which has the name that the request was routed by.
fn is_for_foreign_page(request: &Request<Incoming>, names: Option<&HostNames>) -> bool {
    let origin = routes::origin_of(request.headers(), request.uri());
    // A page whose name was pointed here names no origin in a GET, only its own host.
    let is_read = names.is_some() && request.method() == Method::GET;
    if origin.origin.is_none() && !is_read {
        return false;
    }
    let routed = || origin.hosts.iter().map(|host| String::from_utf8_lossy(host).into_owned());
    let checked = match names {
        Some(names) => names.check(&origin),
        None => HostNames::new(routed()).check(&origin),
    };
    checked.is_err()
}

fn address_of(caller: &Caller) -> IpAddr {
    match caller.address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(caller.address, IpAddr::V4),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Parses `/<ns>/<name>`.
fn parse_path(path: &str) -> Option<NamespacedName> {
    let (namespace, name) = path.strip_prefix('/')?.split_once('/')?;
    let name = name.strip_suffix('/').unwrap_or(name);
    let is_name = |text: &str| !text.is_empty() && !text.contains('/');
    (is_name(namespace) && is_name(name)).then(|| NamespacedName::new(namespace, name))
}

/// Reads the body, which must be a JSON object, and takes room for its bytes as they arrive; an empty body counts as
/// `{}`.
async fn read(
    request: Request<Incoming>,
    payer: Option<IpAddr>,
    most: u64,
    budget: &Budget,
) -> Result<(Bytes, Room), CallError> {
    let too_large = || {
        let message = format!("the body has more than {most} bytes");
        CallError::new(StatusCode::PAYLOAD_TOO_LARGE, "BodyTooLarge", message)
    };
    let length =
        request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let mut body = pin!(request.into_body());
    let (mut read, mut room) = (BytesMut::new(), Room::default());
    let mut until = Instant::now() + BODY_MAX;
    loop {
        let next_until = until.min(Instant::now() + NEXT_BYTE_MAX);
        let frame = timeout_at(next_until, std::future::poll_fn(|cx| body.as_mut().poll_frame(cx))).await;
        let late = |_| {
            let message = match next_until < until {
                true => format!("no byte of the body arrived for {} s", NEXT_BYTE_MAX.as_secs()),
                false => format!("the body did not arrive within {} s", BODY_MAX.as_secs()),
            };
            CallError::new(StatusCode::REQUEST_TIMEOUT, "BodyLate", message)
        };
        let Some(frame) = frame.map_err(late)? else { break };
        let broken = |_| CallError::new(StatusCode::BAD_REQUEST, "BodyBroken", "the body ended early");
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        let bytes = (read.len() + data.len()) as u64;
        if bytes > most {
            return Err(too_large());
        }
        let asked = Instant::now();
        if !budget.extend(&mut room, payer, bytes).await {
            return Err(CallError::gateway_full(StatusCode::SERVICE_UNAVAILABLE, bytes));
        }
        // Waiting for others is not the client's time.
        until += asked.elapsed();
        read.extend_from_slice(&data);
    }
    if read.is_empty() {
        return Ok((Bytes::from_static(b"{}"), room));
    }
    let body = read.freeze();
    match is_object(&body).await {
        true => Ok((body, room)),
        false => Err(CallError::new(StatusCode::BAD_REQUEST, "NotAnObject", "the body is not a JSON object")),
    }
}
