//! A single call: obtains a replica, sends the request, validates the answer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use schema::control::error_chain;
use schema::meta::NamespacedName;
use schema::records::CallLimits;
use tokio::time::{Instant, timeout_at};

use super::answer::{CallError, NOT_RUNNING};
use super::beats;
use super::call_queue::{Admission, Calls, Lease, QueueOutcome};
use crate::http::body::{Budget, Room};
use crate::http::outgoing;

/// Response header of a replica that takes no further call now, or does not serve this function: another replica is
/// tried.
const BUSY: &str = "x-minik8s-busy";
/// Request header that is the same for calls that must take effect once.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Response header with the handler's run time, in microseconds.
const HANDLED: &str = "x-handled-micros";
/// Time beyond the function's own timeout, for the replica to end the call and report it itself.
const TIMEOUT_EXTRA: Duration = Duration::from_secs(2);
/// Longest time to connect to a replica.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(2);
/// First and longest wait after all replicas were busy with calls of other gateways.
const BUSY_WAIT: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// Bytes of an answer beyond the result limit: an error with its traceback.
const ERROR_BYTES: u64 = 256 * 1024;

/// Largest body that is parsed on the serving threads: each MiB blocks other calls for about a millisecond.
const PARSED_HERE_MAX: usize = 128 << 10;

/// A call and its context.
pub(super) struct Call<'c> {
    pub(super) calls: &'c Calls,
    pub(super) client: &'c reqwest::Client,
    pub(super) id: &'c NamespacedName,
    pub(super) limits: &'c CallLimits,
    pub(super) activation: &'c str,
    /// Key that identifies the call to the function across retries; workflow runs set one.
    pub(super) key: Option<HeaderValue>,
    /// URL for the function's heartbeats, if the caller requested them.
    pub(super) heartbeat: Option<HeaderValue>,
    pub(super) body: Bytes,
    /// Memory reservation of the body, until the replica has it.
    pub(super) room: Room,
    pub(super) budget: &'c Budget,
    /// Client whose share of the budget the answer uses; `None` for the node itself.
    pub(super) payer: Option<IpAddr>,
}

/// Response of a replica.
pub(super) struct ReplicaAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    pub(super) room: Room,
    pub(super) replica: SocketAddr,
    /// Time that the call waited for a replica.
    pub(super) queued: Duration,
    /// Run time of the handler, as reported by the replica.
    pub(super) handled_micros: Option<u64>,
}

/// Reason why a replica gave no valid answer.
enum AttemptError {
    NotBegun { address: SocketAddr, is_gone: bool },
    Refused(CallError),
}

/// A place in the queue, given up when dropped.
struct QueueGuard<'c> {
    calls: &'c Calls,
    id: &'c NamespacedName,
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        self.calls.give_up(self.id);
    }
}

impl Call<'_> {
    pub(super) async fn run(mut self) -> Result<ReplicaAnswer, CallError> {
        let began = Instant::now();
        let wait = Duration::from_secs(self.limits.cold_start_timeout_seconds.into());
        let (mut except, mut pause) = (None, BUSY_WAIT.0);
        loop {
            if except.is_some() && began.elapsed() >= wait {
                return Err(self.no_replica_error());
            }
            let held = self.replica((except, pause), began + wait).await?;
            let queued = began.elapsed();
            match self.send(&held).await {
                Ok(answered) => return Ok(ReplicaAnswer { queued, ..answered }),
                Err(AttemptError::Refused(refused)) => return Err(refused),
                Err(AttemptError::NotBegun { address, is_gone }) => {
                    if is_gone {
                        self.calls.shun(self.id, address);
                    }
                    self.calls.mark_full(self.id, address, pause);
                    drop(held);
                    pause = (pause * 2).min(BUSY_WAIT.1);
                    except = Some(address);
                }
            }
        }
    }

    /// Obtains a place at a replica, in turn.
    async fn replica(
        &self,
        (except, pause): (Option<SocketAddr>, Duration),
        until: Instant,
    ) -> Result<Lease, CallError> {
        let wait = match self.calls.enter(self.id, self.limits, except) {
            Admission::At(lease) => return Ok(lease),
            Admission::Full => {
                let most = self.limits.queue_length;
                return Err(CallError::retryable(
                    "QueueFull",
                    format!("the queue is full: {most} calls are waiting"),
                ));
            }
            Admission::Waits(wait) => wait,
        };
        let queued = QueueGuard { calls: self.calls, id: self.id };
        // Declared after `queued` so that it is dropped first, and `queued` finds it closed.
        let mut wait = wait;
        let given = loop {
            // A refused call retries soon: nothing reports that a replica has ended a call of another gateway.
            let look = if except.is_some() { until.min(Instant::now() + pause) } else { until };
            match timeout_at(look, &mut wait).await {
                Err(_) if look < until => self.calls.serve(self.id),
                given => break given,
            }
        };
        let given = match given {
            Ok(given) => given,
            // A replica may have been assigned at this very moment.
            Err(_) => match wait.try_recv() {
                Ok(given) => Ok(given),
                Err(_) => {
                    drop(wait);
                    drop(queued);
                    return Err(self.no_replica_error());
                }
            },
        };
        std::mem::forget(queued);
        match given {
            Ok(QueueOutcome::Replica(lease)) => Ok(lease),
            Ok(QueueOutcome::Gone) => {
                let message = format!("function {} no longer exists", self.id);
                Err(CallError::new(StatusCode::NOT_FOUND, "NotFound", message))
            }
            Ok(QueueOutcome::NoReplica(why)) => {
                Err(CallError::new(StatusCode::INTERNAL_SERVER_ERROR, NOT_RUNNING, why))
            }
            Err(_) => Err(CallError::retryable("NoReplica", "the gateway no longer knows the function")),
        }
    }

    fn no_replica_error(&self) -> CallError {
        let seconds = self.limits.cold_start_timeout_seconds;
        CallError::retryable("NoReplica", format!("no replica took the call within {seconds} s"))
    }

    fn request(&self, address: SocketAddr) -> reqwest::RequestBuilder {
        // A duration, as the clocks of two nodes may differ.
        let timeout_ms = u64::from(self.limits.timeout_seconds) * 1000;
        let request = self
            .client
            .post(outgoing::url(address, "/"))
            .header("content-type", "application/json")
            .header("x-activation-id", self.activation)
            .header("x-function", self.id.to_string())
            .header("x-timeout-ms", timeout_ms.to_string())
            .body(self.body.clone());
        let request = match &self.key {
            Some(key) => request.header(IDEMPOTENCY_KEY, key),
            None => request,
        };
        match &self.heartbeat {
            Some(url) => request.header(beats::URL, url),
            None => request,
        }
    }

    async fn send(&mut self, held: &Lease) -> Result<ReplicaAnswer, AttemptError> {
        let address = held.address();
        let may_run = Duration::from_secs(self.limits.timeout_seconds.into());
        let request = self.request(address);
        let until = Instant::now() + may_run + TIMEOUT_EXTRA;
        let timed_out = || {
            let seconds = self.limits.timeout_seconds;
            let message = format!("the function did not answer within {seconds} s");
            AttemptError::Refused(CallError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message))
        };
        let crashed = |why: String| {
            AttemptError::Refused(CallError::new(
                StatusCode::BAD_GATEWAY,
                "ReplicaLost",
                format!("the replica was lost: {why}"),
            ))
        };
        let response = match timeout_at(until, request.send()).await {
            Err(_) => return Err(timed_out()),
            Ok(Err(error)) if error.is_connect() => {
                return Err(AttemptError::NotBegun { address, is_gone: true });
            }
            Ok(Err(error)) => return Err(crashed(error_chain(&error))),
            Ok(Ok(response)) => response,
        };
        let (status, headers) = (response.status(), response.headers());
        // The address belongs to another function by now, which this node's table does not know yet.
        let is_gone = status == StatusCode::MISDIRECTED_REQUEST;
        if headers.contains_key(BUSY) && (is_gone || status == StatusCode::SERVICE_UNAVAILABLE) {
            return Err(AttemptError::NotBegun { address, is_gone });
        }
        let handled = headers.get(HANDLED).and_then(|value| value.to_str().ok()?.parse().ok());
        let most =
            self.limits.response_body_bytes.saturating_add(if status.is_success() { 0 } else { ERROR_BYTES });
        let too_large = || AttemptError::Refused(invalid(format!("the answer has more than {most} bytes")));
        let length = response.content_length();
        if length.is_some_and(|length| length > most) {
            return Err(too_large());
        }
        // The body is not sent again.
        (self.body, self.room) = Default::default();
        let mut room = Room::default();
        let mut pieces = response.bytes_stream();
        let mut body =
            BytesMut::with_capacity(usize::try_from(length.unwrap_or_default()).unwrap_or_default());
        loop {
            match timeout_at(until, pieces.next()).await {
                Err(_) => return Err(timed_out()),
                Ok(None) => break,
                Ok(Some(Err(error))) => return Err(crashed(error_chain(&error))),
                Ok(Some(Ok(piece))) => {
                    let bytes = (body.len() + piece.len()) as u64;
                    if bytes > most {
                        return Err(too_large());
                    }
                    if !self.budget.extend(&mut room, self.payer, bytes).await {
                        let full = CallError::gateway_full(StatusCode::BAD_GATEWAY, bytes);
                        return Err(AttemptError::Refused(full));
                    }
                    body.extend_from_slice(&piece);
                }
            }
        }
        let (status, body) = validate(status, body.freeze()).await.map_err(AttemptError::Refused)?;
        let (replica, queued) = (address, Duration::ZERO);
        Ok(ReplicaAnswer { status, body, room, replica, queued, handled_micros: handled })
    }
}

fn invalid(message: impl Into<String>) -> CallError {
    CallError::new(StatusCode::BAD_GATEWAY, "InvalidResult", message)
}

/// Validates an answer: a result must be a JSON object; an error must describe itself.
async fn validate(status: StatusCode, body: Bytes) -> Result<(StatusCode, Bytes), CallError> {
    if status.is_success() {
        return match is_object(&body).await {
            true => Ok((StatusCode::OK, body)),
            false => Err(invalid("the function's answer is not a JSON object")),
        };
    }
    let known = [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::INTERNAL_SERVER_ERROR];
    let known = known.contains(&status) || [502, 504].contains(&status.as_u16());
    if known && is_object(&body).await {
        return Ok((status, body));
    }
    let said = String::from_utf8_lossy(&body[..body.len().min(1000)]).into_owned();
    let message = format!("the function answered {status}: {said}");
    Err(CallError::new(StatusCode::INTERNAL_SERVER_ERROR, "FunctionError", message))
}

/// True if the bytes are one JSON object. Large bodies are parsed on a blocking thread.
pub(super) async fn is_object(bytes: &Bytes) -> bool {
    let parse = |bytes: &[u8]| {
        let begins = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        begins && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
    };
    if bytes.len() <= PARSED_HERE_MAX {
        return parse(bytes);
    }
    let bytes = bytes.clone();
    // Fails only when the process ends.
    tokio::task::spawn_blocking(move || parse(&bytes)).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_bodies_are_parsed_beside_the_calls_of_others() {
        let text = |length: usize| Bytes::from(format!("{{\"text\": \"{}\"}}", "x".repeat(length)));
        let turns_during = async |body: Bytes| {
            let (mut turns, parsed) = (0, is_object(&body));
            tokio::pin!(parsed);
            loop {
                tokio::select! {
                    biased;
                    is_object = &mut parsed => break (is_object, turns),
                    () = tokio::task::yield_now() => turns += 1,
                }
            }
        };
        assert_eq!(turns_during(text(1000)).await, (true, 0), "a small one is not worth a thread");
        let (is_object, turns) = turns_during(text(4 << 20)).await;
        assert!(is_object && turns > 0, "{turns}");
        let (cut, _) = turns_during(text(4 << 20).slice(..4 << 20)).await;
        assert!(!cut);
    }
}
