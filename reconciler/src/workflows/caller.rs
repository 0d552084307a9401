//! Calls a function for a run, through the gateway of any node, until it is answered.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Method, Request, Response, StatusCode, Url, header};
use schema::control::error_chain;
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::records::NodeDemand;
use schema::snapshot::Snapshot;
use schema::store::reflector::SnapshotReader;
use schema::trust::TrustReader;
use serde_json::Value as Json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::machine::{Call, Event};
use super::records::{PAYLOAD_MAX_BYTES, RunId};
use crate::outgoing::{self, DaemonClient};

/// Timeout for connecting to a node.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// First and longest wait before a call that did not begin is retried.
const RETRY_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Time for which a function may be overloaded or without a replica.
const BUSY_MAX: Duration = Duration::from_secs(600);
/// Largest error body that is read: one with the whole traceback still contains the error's type.
const ERROR_MAX_BYTES: usize = 2 << 20;
/// Header that identifies the call to the function: the same for all retries.
const KEY: &str = "idempotency-key";
/// Header that identifies the call in the function's log.
const ACTIVATION: &str = "x-activation-id";
/// Maximum length of a cause, with its traceback.
const CAUSE_MAX_CHARS: usize = 4 * 1024;
/// Maximum length of an error's name.
const ERROR_MAX_CHARS: usize = 256;

pub(super) struct Caller {
    http: DaemonClient,
    snapshot: SnapshotReader,
    local_nodes: Arc<BTreeSet<String>>,
}

/// Next event of a run, and the activation id if the event is the answer to a call.
pub(super) struct Answer {
    pub(super) event: Event,
    pub(super) activation: Option<String>,
}

impl From<Event> for Answer {
    fn from(event: Event) -> Self {
        Self { event, activation: None }
    }
}

/// Result of one attempt.
enum Attempt {
    Ended(Event),
    /// The call did not begin; it may after `wait`.
    NotBegun {
        why: String,
        wait: Option<Duration>,
        is_busy: bool,
    },
}

impl Caller {
    /// Creates a caller. `trust` is `None` in tests only.
    pub(super) fn new(
        snapshot: SnapshotReader,
        local_nodes: Arc<BTreeSet<String>>,
        trust: Option<TrustReader>,
    ) -> Self {
        Self { http: outgoing::to_nodes(trust, CONNECT_MAX), snapshot, local_nodes }
    }

    /// Makes the call until it is answered. The caller limits the time by dropping the future. Sends the call's id
    /// to `beats` for as long as the function reports that it is alive.
    pub(super) async fn call(&self, run: &RunId, call: &Call, beats: mpsc::Sender<u64>) -> Answer {
        if let Some(refused) = call.rejection() {
            return refused.into();
        }
        if call.heartbeat_seconds.is_none() {
            return self.until_answered(run, call, None).await;
        }
        let expected = Beats::new();
        tokio::select! {
            answer = self.until_answered(run, call, Some(expected.token())) => answer,
            never = expected.forward(self.snapshot.clone(), call.id, beats) => match never {},
        }
    }

    async fn until_answered(&self, run: &RunId, call: &Call, token: Option<&str>) -> Answer {
        let function = match call.function.split_once('/') {
            Some(_) => call.function.clone(),
            None => format!("{}/{}", run.workflow.namespace, call.function),
        };
        let key = format!("{run}/{}", call.step);
        let mut busy_since = None;
        let mut wait = RETRY_WAIT.0;
        // Rotates with steps and with the attempts of a step. Call ids would not do: timers take some of them.
        let mut turn = usize::try_from(call.step + u64::from(call.attempt)).unwrap_or_default();
        loop {
            let (attempt, activation) = match self.gateway(turn) {
                Some(gateway) => self.attempt((&gateway, &function), (&key, token), call).await,
                None => {
                    let why = "no node is ready with a gateway at an address of its own".to_owned();
                    (Attempt::NotBegun { why, wait: None, is_busy: false }, None)
                }
            };
            let (why, asked, is_busy) = match attempt {
                Attempt::Ended(event) => return Answer { event, activation },
                Attempt::NotBegun { why, wait, is_busy } => (why, wait, is_busy),
            };
            busy_since = busy_since.or_else(|| Some(Instant::now())).filter(|_| is_busy);
            if busy_since.is_some_and(|since| since.elapsed() > BUSY_MAX) {
                return failed(call, "Function.Unavailable", &why).into();
            }
            tracing::debug!(%run, function, why, "call repeated");
            sleep(asked.unwrap_or(wait).min(RETRY_WAIT.1)).await;
            wait = (wait * 2).min(RETRY_WAIT.1);
            turn += 1;
        }
    }

    /// Returns the gateway of one of the ready nodes, at an address of that node.
    fn gateway(&self, turn: usize) -> Option<String> {
        let snapshot = self.snapshot.current();
        let ready = snapshot.nodes.iter().filter(|(name, _)| snapshot.node_is_ready(name));
        let all: Vec<String> = ready
            .filter_map(|(name, node)| {
                node.value.server(&node.value.calls, self.local_nodes.contains(name)).ok()
            })
            .collect();
        all.get(turn.checked_rem(all.len())?).cloned()
    }

    /// True if this reconciler knows the function: a gateway may learn of it later, and runs begin immediately.
    fn knows_function(&self, function: &str) -> bool {
        let Some((namespace, name)) = function.split_once('/') else { return false };
        let id = ObjectRef { kind: Kind::Function, namespace: namespace.to_owned(), name: name.to_owned() };
        self.snapshot.current().objects.contains_key(&id)
    }

    async fn attempt(
        &self,
        (gateway, function): (&str, &str),
        (key, token): (&str, Option<&str>),
        call: &Call,
    ) -> (Attempt, Option<String>) {
        let request = match post(&format!("{gateway}/{function}"), key, token, call) {
            Ok(request) => request,
            Err(why) => return (Attempt::Ended(failed(call, "States.Runtime", &why)), None),
        };
        match self.http.send(request).await {
            Ok(response) if response.status() == StatusCode::NOT_FOUND && self.knows_function(function) => {
                let why = format!("{gateway} does not know function {function} yet");
                (Attempt::NotBegun { why, wait: None, is_busy: true }, None)
            }
            Ok(response) => {
                let activation = response.headers().get(ACTIVATION).and_then(|id| id.to_str().ok());
                let activation = activation.map(str::to_owned);
                (answered(call, response).await, activation)
            }
            // The node or its gateway is gone, maybe in the middle of the call: the key identifies the retry.
            Err(error) => (Attempt::NotBegun { why: error_chain(&error), wait: None, is_busy: false }, None),
        }
    }
}

/// Builds the request of a call.
fn post(url: &str, key: &str, token: Option<&str>, call: &Call) -> Result<Request, String> {
    let url = Url::parse(url).map_err(|error| format!("{url}: {error}"))?;
    let mut request = Request::new(Method::POST, url);
    let headers = [(header::CONTENT_TYPE.as_str(), "application/json"), (KEY, key)];
    for (name, value) in headers.into_iter().chain(token.map(|token| (TOKEN, token))) {
        let value = HeaderValue::try_from(value).map_err(|error| format!("{name} {value:?}: {error}"))?;
        request.headers_mut().insert(HeaderName::from_static(name), value);
    }
    *request.body_mut() = Some(call.payload.to_string().into());
    Ok(request)
}

async fn answered(call: &Call, response: Response) -> Attempt {
    let status = response.status();
    let wait =
        response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let most = if status.is_success() { PAYLOAD_MAX_BYTES } else { ERROR_MAX_BYTES };
    let body = match outgoing::body(response, most).await {
        Ok(body) => body,
        Err(error) => return Attempt::NotBegun { why: error_chain(&error), wait: None, is_busy: false },
    };
    if status.is_success() {
        let Some(body) = body else {
            let cause = format!("the answer is larger than {PAYLOAD_MAX_BYTES} bytes");
            return Attempt::Ended(failed(call, "States.DataLimitExceeded", &cause));
        };
        return Attempt::Ended(match serde_json::from_slice(&body) {
            Ok(output) => call.returned(output),
            Err(error) => {
                failed(call, "Function.InvalidResult", &format!("the answer is not valid JSON: {error}"))
            }
        });
    }
    let said: Json = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
    let of = |name: &str| said["error"][name].as_str().unwrap_or_default().to_owned();
    let (kind, message) = (of("type"), of("message"));
    if [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&status) {
        return Attempt::NotBegun { why: message, wait: wait.map(Duration::from_secs), is_busy: true };
    }
    Attempt::Ended(match status {
        StatusCode::GATEWAY_TIMEOUT => failed(call, "States.Timeout", &message),
        StatusCode::PAYLOAD_TOO_LARGE => failed(call, "States.DataLimitExceeded", &message),
        // The function's own errors keep their names.
        StatusCode::INTERNAL_SERVER_ERROR if !kind.is_empty() && !kind.starts_with("States.") => {
            let trace = said["error"]["stackTrace"].as_array().into_iter().flatten().filter_map(Json::as_str);
            let cause: Vec<&str> = [message.as_str()].into_iter().chain(trace).collect();
            failed(call, &kind, &cause.join("\n"))
        }
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => failed(call, "States.Permissions", &message),
        StatusCode::NOT_FOUND => failed(call, "Function.NotFound", &message),
        // InvalidResult, or ReplicaLost.
        StatusCode::BAD_GATEWAY if !kind.is_empty() => failed(call, &format!("Function.{kind}"), &message),
        other => failed(call, "States.TaskFailed", &format!("{other}: {message}")),
    })
}

fn failed(call: &Call, error: &str, cause: &str) -> Event {
    let cause: String = cause.chars().take(CAUSE_MAX_CHARS).collect();
    let error: String = error.chars().take(ERROR_MAX_CHARS).collect();
    call.failed(&error, cause)
}

// Heartbeats of a called function: it sends them to the gateway that forwarded its call, and they arrive in that
// node's `demand/<node>`.

/// Header that identifies the call to the gateway: nobody else can beat for it.
pub(super) const TOKEN: &str = "x-heartbeat-token";
/// Maximum delay of a beat: its node writes `demand/` once a second.
pub(super) const BEAT_DELAY_MAX: Duration = Duration::from_secs(2);

/// Heartbeats of one call.
pub(super) struct Beats {
    token: String,
}

impl Beats {
    /// Creates the heartbeats of a call, with a new token.
    pub(super) fn new() -> Self {
        Self { token: format!("{:032x}", rand::random::<u128>()) }
    }

    /// Returns the token that goes to the gateway.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Sends the call's id whenever new beats have arrived.
    pub(super) async fn forward(
        &self,
        mut snapshot: SnapshotReader,
        call: u64,
        beats: mpsc::Sender<u64>,
    ) -> Infallible {
        let mut known = BTreeMap::new();
        loop {
            snapshot.changed().await;
            let counts = self.counts(&snapshot.current());
            let is_alive = has_risen(&known, &counts);
            known = counts;
            if is_alive {
                // Nobody receives it once the run has ended, and then this future is dropped as well.
                let _ = beats.send(call).await;
            }
        }
    }

    /// Returns the counts of each gateway that forwarded the call.
    fn counts(&self, snapshot: &Snapshot) -> BTreeMap<String, u32> {
        let of_node = |node: &NodeDemand| node.beats.get(&self.token).copied();
        let counts = snapshot.demand.iter();
        counts.filter_map(|(name, node)| Some((name.clone(), of_node(&node.value)?))).collect()
    }
}

/// True if a count has risen. A gateway that is done with the call no longer counts it: that is no beat.
fn has_risen(before: &BTreeMap<String, u32>, now: &BTreeMap<String, u32>) -> bool {
    now.iter().any(|(node, count)| *count > before.get(node).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_count_that_rises_is_a_sign_of_life() {
        let counts = |all: &[(&str, u32)]| all.iter().map(|(node, n)| ((*node).to_owned(), *n)).collect();
        for (before, now, is_alive) in [
            (&[][..], &[("a", 1)][..], true),
            (&[("a", 1)], &[("a", 2)], true),
            (&[("a", 2)], &[("a", 2)], false),
            (&[("a", 2)], &[], false),
            (&[("a", 2), ("b", 1)], &[("b", 1)], false),
            (&[("a", 2)], &[("b", 1)], true),
        ] {
            assert_eq!(has_risen(&counts(before), &counts(now)), is_alive, "{before:?} {now:?}");
        }
    }
}
