//! `POST /<ns>/<name>` calls a function, `GET /<ns>/<name>` says how it is.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body as _, Incoming};
use hyper::header::{ALLOW, CONTENT_LENGTH, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use jiff::Timestamp;
use schema::meta::NamespacedName;
use schema::records::{FunctionRecord, Subnet};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::answer::{Answered, Refused, TIMINGS, json_answer};
use super::beats;
use super::book::Calls;
use super::call::{CONNECT_MAX, Call, IDEMPOTENCY_KEY, is_object};
use super::rates::Rates;
use super::token::Tokens;
use super::who::Known;
use crate::catalog::Catalog;
use crate::converge::control_plane::ControlPlane;
use crate::converge::function_calls::FunctionCalls;
use crate::desired::Source;
use crate::files::PodFiles;
use crate::http::server::{Caller, Handler};

/// Time for the next part of a body.
const BODY_RESTS_MAX: Duration = Duration::from_secs(30);
/// A request header that asks for the timings of the phases.
const WANTS_TIMINGS: &str = "x-timings";

/// Answers callers of functions.
#[derive(Debug, Clone)]
pub struct Functions {
    catalog: watch::Receiver<Arc<Catalog>>,
    known: watch::Receiver<Known>,
    calls: Calls,
    client: reqwest::Client,
    tokens: Tokens,
    rates: Rates,
    /// Where the gateway listens; none if nobody hears of beats.
    listen: Option<SocketAddr>,
    /// Someone hears of calls that wait, and may start a replica.
    wakes: bool,
}

impl Handler for Functions {
    type Held = ();

    async fn handle(&self, request: Request<Incoming>, caller: Caller) -> Answered {
        let activation = activation_id();
        let answer = self.answer(request, &caller, &activation).await;
        answer.unwrap_or_else(|refused| refused.answer(&activation))
    }
}

#[async_trait]
impl FunctionCalls for Functions {
    async fn call_through_host(
        &self,
        request: Request<Incoming>,
        id: &NamespacedName,
        caller: &Caller,
    ) -> Answered {
        let activation = activation_id();
        let called = async {
            let catalog = Arc::clone(&self.catalog.borrow());
            let record = record(&catalog, id)?;
            self.may_call(record, caller, id, request.headers()).await?;
            self.call(request, (record, &catalog), id, &activation).await
        };
        called.await.unwrap_or_else(|refused| refused.answer(&activation))
    }
}

fn activation_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

impl Functions {
    pub(super) fn new(
        catalog: watch::Receiver<Arc<Catalog>>,
        known: watch::Receiver<Known>,
        calls: Calls,
        files: Option<Arc<PodFiles>>,
    ) -> Self {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_MAX)
            .pool_max_idle_per_host(64)
            // Less than the 5 s after which common servers close an idle connection.
            .pool_idle_timeout(Duration::from_secs(4))
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build();
        // Only TLS or a resolver of the system can fail to load, and neither is used.
        let client = client.unwrap_or_default();
        let (tokens, rates) = (Tokens::new(files), Rates::default());
        Self { catalog, known, calls, client, tokens, rates, listen: None, wakes: true }
    }

    /// Takes the beats of calls at this address.
    pub(super) fn listening(self, listen: SocketAddr) -> Self {
        Self { listen: Some(listen), ..self }
    }

    /// Without a loop that follows changes: functions that sleep are not woken.
    pub fn of_last_known(catalog: watch::Receiver<Arc<Catalog>>, own: Option<&Subnet>) -> Self {
        let newest = Arc::clone(&catalog.borrow());
        let calls = Calls::new(Timestamp::UNIX_EPOCH);
        calls.follow(newest.functions.iter().map(|(id, found)| (id, &found.value)));
        // Nobody sends: what is known stays.
        let (_, known) = watch::channel(Known::of(&newest, own, &ControlPlane::default()));
        Self { wakes: false, ..Self::new(catalog, known, calls, None) }
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        caller: &Caller,
        activation: &str,
    ) -> Result<Answered, Refused> {
        // Nobody outside fills what is reported of beats.
        if !self.is_of_cluster(caller) {
            request.headers_mut().remove(beats::TOKEN);
        }
        if let Some(answer) = self.calls.beats.answer(request.method(), request.uri().path(), activation) {
            return Ok(answer);
        }
        let catalog = Arc::clone(&self.catalog.borrow());
        let Some(id) = named(request.uri().path()) else {
            let message = "the path is not /<namespace>/<function>";
            return Err(Refused::new(StatusCode::NOT_FOUND, "NotFound", message));
        };
        let record = record(&catalog, &id)?;
        self.may_call(record, caller, &id, request.headers()).await?;
        match *request.method() {
            Method::POST => self.call(request, (record, &catalog), &id, activation).await,
            Method::GET => Ok(self.state(record, &id, activation)),
            _ => {
                let message = "POST calls the function, GET says how it is";
                let refused = Refused::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
                let mut answer = refused.answer(activation);
                answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST"));
                Ok(answer)
            }
        }
    }

    fn is_of_cluster(&self, caller: &Caller) -> bool {
        caller.is_node || self.known.borrow().has(address_of(caller))
    }

    async fn may_call(
        &self,
        record: &FunctionRecord,
        caller: &Caller,
        id: &NamespacedName,
        headers: &HeaderMap,
    ) -> Result<(), Refused> {
        if record.calls.public || self.is_of_cluster(caller) {
            return Ok(());
        }
        let address = address_of(caller);
        if let Some(token) = &record.token {
            return self.tokens.check(id, token, headers).await;
        }
        let message = format!(
            "{address} is neither a pod nor a node of this cluster, and function {id} is not public; set `public: true` \
             in its manifest to let everyone call it, or `auth` to let those with a token"
        );
        Err(Refused::new(StatusCode::FORBIDDEN, "Forbidden", message))
    }

    async fn call(
        &self,
        request: Request<Incoming>,
        (record, catalog): (&FunctionRecord, &Catalog),
        id: &NamespacedName,
        activation: &str,
    ) -> Result<Answered, Refused> {
        let began = Instant::now();
        if let Some(most) = catalog.settings.spec.functions.calls_per_minute {
            let counted = self.rates.count(&id.namespace, most, began);
            counted.map_err(|seconds| Refused::too_many(&id.namespace, most, seconds))?;
        }
        if record.replicas.is_empty() && !self.wakes {
            let message = "it sleeps, and is woken once this node's agent runs again";
            return Err(Refused::later("NoReplica", message));
        }
        let wants_timings = request.headers().contains_key(WANTS_TIMINGS);
        let key = request.headers().get(IDEMPOTENCY_KEY).cloned();
        let beats = match self.listen {
            Some(listen) => self.calls.beats.expect(request.headers(), catalog, listen)?,
            None => None,
        };
        let heartbeat = beats.as_ref().map(|expected| expected.url.clone());
        let body = read(request, record.calls.request_body_bytes).await?;
        let (calls, client) = (&self.calls, &self.client);
        let call = Call { calls, client, id, limits: &record.calls, activation, key, heartbeat, body };
        let answered = call.run().await?;
        let mut answer = json_answer(answered.status, answered.body, activation);
        if wants_timings {
            let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
            let handled = Duration::from_micros(answered.handled_micros.unwrap_or_default());
            let (queued, total) = (millis(answered.queued), millis(began.elapsed()));
            let text =
                format!("queued;dur={queued:.3}, handled;dur={:.3}, total;dur={total:.3}", millis(handled));
            if let Ok(value) = HeaderValue::from_str(&text) {
                answer.headers_mut().insert(TIMINGS, value);
            }
        }
        Ok(answer)
    }

    fn state(&self, record: &FunctionRecord, id: &NamespacedName, activation: &str) -> Answered {
        let (waiting, in_flight) = self.calls.state(id);
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
            "image": record.image(),
            "trouble": record.trouble,
            "here": {"waiting": waiting, "inFlight": in_flight},
        });
        json_answer(StatusCode::OK, body.to_string().into(), activation)
    }
}

fn record<'c>(catalog: &'c Catalog, id: &NamespacedName) -> Result<&'c FunctionRecord, Refused> {
    match catalog.functions.get(id) {
        Some(found) => Ok(&found.value),
        None if catalog.source == Source::Unknown => {
            Err(Refused::later("NotKnownYet", "this node does not know any functions yet"))
        }
        None => {
            let message = format!("there is no function {id}");
            Err(Refused::new(StatusCode::NOT_FOUND, "NotFound", message))
        }
    }
}

fn address_of(caller: &Caller) -> IpAddr {
    match caller.address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(caller.address, IpAddr::V4),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// `/<ns>/<name>`.
fn named(path: &str) -> Option<NamespacedName> {
    let (namespace, name) = path.strip_prefix('/')?.split_once('/')?;
    let name = name.strip_suffix('/').unwrap_or(name);
    let is_name = |text: &str| !text.is_empty() && !text.contains('/');
    (is_name(namespace) && is_name(name)).then(|| NamespacedName::new(namespace, name))
}

/// The body, which is a JSON object; nothing counts as `{}`.
async fn read(request: Request<Incoming>, most: u64) -> Result<Bytes, Refused> {
    let too_large = || {
        let message = format!("the body has more than {most} bytes");
        Refused::new(StatusCode::PAYLOAD_TOO_LARGE, "BodyTooLarge", message)
    };
    let length =
        request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let mut body = pin!(request.into_body());
    let mut read = BytesMut::new();
    loop {
        let frame = timeout(BODY_RESTS_MAX, std::future::poll_fn(|cx| body.as_mut().poll_frame(cx))).await;
        let late =
            |_| Refused::new(StatusCode::REQUEST_TIMEOUT, "BodyLate", "the rest of the body did not come");
        let Some(frame) = frame.map_err(late)? else { break };
        let broken = |_| Refused::new(StatusCode::BAD_REQUEST, "BodyBroken", "the body ended early");
        if let Ok(data) = frame.map_err(broken)?.into_data() {
            if (read.len() + data.len()) as u64 > most {
                return Err(too_large());
            }
            read.extend_from_slice(&data);
        }
    }
    if read.is_empty() {
        return Ok(Bytes::from_static(b"{}"));
    }
    let body = read.freeze();
    match is_object(&body) {
        true => Ok(body),
        false => Err(Refused::new(StatusCode::BAD_REQUEST, "NotAnObject", "the body is no JSON object")),
    }
}
