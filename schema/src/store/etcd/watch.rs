//! Watches etcd as a stream of whole revisions.
//!
//! A watch ends by itself when etcd cancels it, when the connection breaks, and when etcd stays silent although
//! asked for a sign of life: no watch stays open on a dead connection.

use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Error, EventType, WatchClient, WatchOptions, WatchResponse, WatchStream};
use futures::stream;
use futures::stream::{BoxStream, StreamExt as _};
use tokio::time::timeout;

use crate::errors::{error_chain, with_causes};
use crate::store::{KeyValue, StoreError, WatchBatch, WatchEvent};

/// Silence after which etcd is asked for a sign of life.
const QUIET: Duration = Duration::from_secs(10);
/// Longest wait for the sign of life.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// Most bytes of one message joined from fragments. etcd takes 1.5 MB per transaction and sends a
/// slow watcher up to 1,000 revisions at once; beyond this bound a new list is cheaper.
const JOINED_MAX_BYTES: usize = 256 * 1024 * 1024;

/// Opens a watch and waits for etcd's confirmation.
pub(super) async fn open(
    mut client: WatchClient,
    prefix: &str,
    from_revision: i64,
) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError> {
    let options = WatchOptions::new().with_prefix().with_start_revision(from_revision.max(1)).with_fragment();
    let watch =
        client.watch(prefix, Some(options)).await.map_err(|error| request_error("a watch", &error))?;
    let mut running =
        RunningWatch { watch, prefix: prefix.to_owned(), from_revision, joined: Vec::new(), joined_bytes: 0 };
    loop {
        let answer = running.watch.message().await.map_err(|error| request_error("a watch", &error))?;
        let Some(answer) = answer else { return Err(running.ended()) };
        if answer.created() && !answer.canceled() {
            break;
        }
        running.check_refusal(&answer)?;
    }
    // A failed watch is over: the state becomes `None`.
    let batches = stream::unfold(Some(running), |running| async move {
        let mut running = running?;
        match running.next().await {
            Ok(batch) => Some((Ok(batch), Some(running))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(batches.boxed())
}

struct RunningWatch {
    watch: WatchStream,
    prefix: String,
    from_revision: i64,
    /// Fragments of the message that is not complete yet.
    joined: Vec<WatchEvent>,
    joined_bytes: usize,
}

impl RunningWatch {
    /// Returns the next batch with events in it.
    async fn next(&mut self) -> Result<WatchBatch, StoreError> {
        loop {
            let answer = self.message().await?;
            self.check_refusal(&answer)?;
            for event in answer.events() {
                self.take(event);
            }
            if self.joined_bytes > JOINED_MAX_BYTES {
                return Err(self.ended());
            }
            if answer.0.fragment || self.joined.is_empty() {
                continue;
            }
            self.joined_bytes = 0;
            let events = std::mem::take(&mut self.joined);
            let newest = events.iter().map(mod_revision).max().unwrap_or_default();
            return Ok(WatchBatch { events, revision: newest });
        }
    }

    /// Returns the next message; requests one when etcd is quiet for long.
    async fn message(&mut self) -> Result<WatchResponse, StoreError> {
        // Dropping `message()` on the timeout loses nothing: bytes already read stay in the stream.
        let answer = match timeout(QUIET, self.watch.message()).await {
            Ok(answer) => answer,
            Err(_) => {
                let asked = timeout(SIGN_OF_LIFE, self.watch.request_progress()).await;
                if !matches!(asked, Ok(Ok(()))) {
                    return Err(self.ended());
                }
                timeout(SIGN_OF_LIFE, self.watch.message()).await.map_err(|_| self.ended())?
            }
        };
        match answer {
            Ok(Some(answer)) => Ok(answer),
            // The connection is gone, or etcd closed the stream: list again in either case.
            Ok(None) | Err(_) => Err(self.ended()),
        }
    }

    fn check_refusal(&self, answer: &WatchResponse) -> Result<(), StoreError> {
        if answer.compact_revision() > 0 {
            return Err(StoreError::Compacted(self.from_revision));
        }
        if answer.canceled() { Err(self.ended()) } else { Ok(()) }
    }

    fn take(&mut self, event: &etcd_client::Event) {
        let Some(kv) = event.kv() else { return };
        let kv = key_value(kv.clone());
        self.joined_bytes += kv.key.len() + kv.value.len();
        self.joined.push(match event.event_type() {
            EventType::Put => WatchEvent::Put(kv),
            EventType::Delete => WatchEvent::Delete { key: kv.key, mod_revision: kv.mod_revision },
        });
    }

    fn ended(&self) -> StoreError {
        StoreError::WatchEnded(self.prefix.clone())
    }
}

fn mod_revision(event: &WatchEvent) -> i64 {
    match event {
        WatchEvent::Put(kv) => kv.mod_revision,
        WatchEvent::Delete { mod_revision, .. } => *mod_revision,
    }
}

pub(super) fn key_value(found: etcd_client::KeyValue) -> KeyValue {
    let (create_revision, mod_revision) = (found.create_revision(), found.mod_revision());
    let (key, value) = found.into_key_value();
    KeyValue { key: text(key), value: Bytes::from(value), create_revision, mod_revision }
}

/// Decodes a key. Our own keys are ASCII; a foreign key below our root must not end a list.
fn text(key: Vec<u8>) -> String {
    String::from_utf8(key).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

// Translates etcd's errors into our own: the only place that inspects them.

/// True if the requested revision is compacted. The text is etcd's `ErrCompacted`; the code alone (`OutOfRange`)
/// also means "in the future".
pub(super) fn is_compacted(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("has been compacted"))
}

/// True if the lease does not exist (any longer). A keep-alive reports it as an answer, other calls as a status.
pub(super) fn is_lease_not_found(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => status.message().contains("lease not found"),
        Error::LeaseKeepAliveError(message) => message.contains("lease not found"),
        _ => false,
    }
}

/// True if no member was reached, or the member has no leader at the moment.
pub(super) fn is_unavailable(error: &Error) -> bool {
    match error {
        // By the number (14): the type lives in a crate that we do not depend on.
        Error::GRpcStatus(status) => i32::from(status.code()) == 14,
        Error::TransportError(_) => true,
        _ => false,
    }
}

/// True if etcd does not recognize the client: the token or the password is no longer valid, or authentication was
/// switched on after the connection was made.
pub(super) fn is_unauthenticated(error: &Error) -> bool {
    let words = ["invalid auth token", "authentication failed", "user name is empty"];
    matches!(error, Error::GRpcStatus(status) if words.iter().any(|word| status.message().contains(word)))
}

/// True if etcd's authentication is off: no login is possible or needed.
pub(super) fn is_auth_off(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("authentication is not enabled"))
}

/// Converts the error of a refused or lost request.
pub(super) fn request_error(act: &'static str, error: &Error) -> StoreError {
    let message = message_of(error);
    if is_unauthenticated(error) {
        return StoreError::Unauthenticated { act, message };
    }
    StoreError::Request { act, message }
}

/// Formats an error in one line, with its causes: gRPC's own text is often only "transport error".
pub(super) fn message_of(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => with_causes(status.message().to_owned(), status),
        Error::TransportError(error) => error_chain(error),
        other => other.to_string(),
    }
}
