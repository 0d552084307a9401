//! Heartbeats of calls under way: `POST /_/heartbeats/<token>`, with the token that the caller gave to the call.
//!
//! The caller, a reconciler, draws a random token, and only the replica that runs the call receives it, with a URL at the
//! bridge of the node, which pods of other nodes reach through the tunnel. The count of heartbeats for each token travels
//! in `demand/<node>`. Pure; [`Beats`] is its lock.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, StatusCode};
use schema::control::lock;
use serde_json::json;
use tokio::sync::watch;

use super::answer::{CallError, CallResponse, json_answer};
use crate::http::body::Answer;
use crate::http::outgoing;

/// Request header from the caller: a random token of 32 hex digits.
pub(super) const TOKEN: &str = "x-heartbeat-token";
/// Request header to the replica: the URL for its heartbeats.
pub(super) const URL: &str = "x-heartbeat-url";
/// Path of heartbeats. No function has this path: a namespace begins with a letter or digit.
const PATH: &str = "/_/heartbeats/";
/// Maximum number of concurrent calls with heartbeats: their counts are reported in one etcd value.
const CALLS_MAX: usize = 800;
/// Length of a token in hex digits.
const TOKEN_CHARS: usize = 32;

/// Heartbeat counts, shared by all calls of the node.
#[derive(Debug, Clone)]
pub(super) struct Beats {
    by_token: Arc<Mutex<BTreeMap<String, u32>>>,
    /// Signals that a heartbeat arrived and should be reported soon.
    changed: watch::Sender<()>,
}

/// A call whose heartbeats are accepted, until dropped.
#[derive(Debug)]
pub(super) struct HeartbeatSlot {
    beats: Beats,
    token: String,
    /// URL to which the function sends heartbeats.
    pub(super) url: HeaderValue,
}

impl Drop for HeartbeatSlot {
    fn drop(&mut self) {
        lock(&self.beats.by_token).remove(&self.token);
    }
}

impl Beats {
    pub(super) fn new(changed: watch::Sender<()>) -> Self {
        Self { by_token: Arc::default(), changed }
    }

    /// Accepts heartbeats with this token until the returned value is dropped. `at`: address of this gateway for pods,
    /// `None` if it accepts no heartbeats.
    pub(super) fn register(&self, token: &str, at: Option<SocketAddr>) -> Result<HeartbeatSlot, CallError> {
        let url = at.map(|at| outgoing::url(at, &format!("{PATH}{token}")));
        let Some(url) = url.and_then(|url| HeaderValue::try_from(url).ok()) else {
            // Without a URL the function could not send heartbeats, and its caller would give it up: another
            // gateway may accept the call.
            let message = "this node cannot accept heartbeats: its agent is not running, or has no range of pod addresses yet";
            return Err(CallError::retryable("NoHeartbeats", message));
        };
        let mut by_token = lock(&self.by_token);
        if by_token.contains_key(token) {
            let message = "a call with this heartbeat token is under way already";
            return Err(CallError::retryable("HeartbeatTokenInUse", message));
        }
        if by_token.len() >= CALLS_MAX {
            let message = format!("{CALLS_MAX} calls through this node already send heartbeats");
            return Err(CallError::retryable("TooManyHeartbeats", message));
        }
        by_token.insert(token.to_owned(), 0);
        Ok(HeartbeatSlot { beats: self.clone(), token: token.to_owned(), url })
    }

    /// Returns the response to a heartbeat request; `None` for other requests.
    pub(super) fn answer(&self, method: &Method, path: &str, activation: &str) -> Option<CallResponse> {
        let token = path.strip_prefix(PATH)?;
        if *method != Method::POST {
            let message = "use POST to send a heartbeat";
            let refused = CallError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
            return Some(refused.answer(activation));
        }
        let is_known =
            lock(&self.by_token).get_mut(token).map(|beats| *beats = beats.saturating_add(1)).is_some();
        if !is_known {
            let message = "no call with this token is under way here: it has ended, or its caller has gone";
            return Some(CallError::new(StatusCode::NOT_FOUND, "NoSuchCall", message).answer(activation));
        }
        self.changed.send_replace(());
        Some(json_answer(StatusCode::OK, Answer::words(json!({}).to_string()), activation))
    }

    /// Returns the number of heartbeats of each call that sent any.
    pub(super) fn counts(&self) -> BTreeMap<String, u32> {
        let beats = lock(&self.by_token);
        beats.iter().filter(|(_, beats)| **beats > 0).map(|(token, beats)| (token.clone(), *beats)).collect()
    }
}

/// Returns the token in the caller's headers.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    headers.get(TOKEN)?.to_str().ok().filter(|token| is_token(token))
}

fn is_token(text: &str) -> bool {
    text.len() == TOKEN_CHARS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_token_is_32_hex_digits() {
        let given = |token: &str| {
            HeaderMap::from_iter([(TOKEN.parse().unwrap(), HeaderValue::from_str(token).unwrap())])
        };
        for other in ["", "abc", &OURS[..31], &format!("{OURS}0"), &OURS.replace('0', "/")] {
            assert_eq!(token(&given(other)), None, "{other}");
        }
        assert_eq!((token(&HeaderMap::new()), token(&given(OURS))), (None, Some(OURS)));
    }

    // Seen red with a token accepted twice.
    #[test]
    fn only_a_call_under_way_that_was_given_a_token_beats() {
        let beats = Beats::new(watch::Sender::new(()));
        let post = |path: &str| beats.answer(&Method::POST, path, "a").map(|answer| answer.status().as_u16());
        let at = Some("10.244.0.1:8081".parse().unwrap());
        let expect = |token: &str| beats.register(token, at);
        let refused = |refused: CallError| (refused.status.as_u16(), refused.kind);
        assert_eq!(refused(beats.register(OURS, None).unwrap_err()), (503, "NoHeartbeats"));

        let path = format!("/_/heartbeats/{OURS}");
        assert_eq!(post(&path), Some(404));
        let expected = expect(OURS).unwrap();
        assert_eq!(expected.url, format!("http://10.244.0.1:8081{path}"));
        assert!(beats.counts().is_empty());
        assert_eq!((post(&path), post(&path), post("/default/add")), (Some(200), Some(200), None));
        assert_eq!(beats.answer(&Method::GET, &path, "a").unwrap().status().as_u16(), 405);
        assert_eq!(beats.counts(), BTreeMap::from([(OURS.to_owned(), 2)]));
        assert_eq!(refused(expect(OURS).unwrap_err()), (503, "HeartbeatTokenInUse"));
        assert_eq!(post(&path), Some(200), "the refused one did not end the first");
        drop(expected);
        assert_eq!((post(&path), beats.counts().len()), (Some(404), 0));

        let many: Vec<_> = (0..CALLS_MAX).map(|number| expect(&format!("{number:032x}")).unwrap()).collect();
        assert_eq!(refused(expect(OURS).unwrap_err()), (503, "TooManyHeartbeats"));
        drop(many);
        assert!(expect(OURS).is_ok());
    }
}
