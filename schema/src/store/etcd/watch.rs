//! Watches of etcd, all on one stream: to etcd a stream costs some fifty times as much as a watch.
//!
//! A watch ends alone when etcd cancels it and when its reader falls far behind. All end when the connection breaks,
//! and when etcd stays silent although asked for a sign of life: no watch stays open on a dead connection.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Error, EventType, WatchClient, WatchOptions, WatchResponse, WatchStream};
use futures::stream;
use futures::stream::{BoxStream, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::errors::{error_chain, with_causes};
use crate::keys::Key;
use crate::mutex::lock;
use crate::store::{KeyValue, StoreError, WatchBatch, WatchEvent};

/// Silence after which etcd is asked for a sign of life.
const QUIET: Duration = Duration::from_secs(10);
/// Longest wait for the sign of life, and for the answer to any request.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// Most bytes of one message joined from fragments. etcd takes 1.5 MB per transaction and sends a
/// slow watcher up to 1,000 revisions at once; beyond this bound a new list is cheaper.
const JOINED_MAX_BYTES: usize = 256 * 1024 * 1024;
/// Most bytes that wait for the reader of a watch, unless a single message has more. The stream never waits for a
/// reader, because the other watches would wait, too; beyond this bound the reader lists again.
const QUEUED_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Watches of a client.
pub(super) struct Watches {
    client: WatchClient,
    streams: Arc<Mutex<Streams>>,
}

#[derive(Default)]
struct Streams {
    /// Requests to the newest stream; closed once that opens no more watches.
    newest: Option<mpsc::UnboundedSender<WatchRequest>>,
    /// Task of each stream.
    tasks: JoinSet<()>,
}

impl Watches {
    pub(super) fn new(client: WatchClient) -> Self {
        Self { client, streams: Arc::default() }
    }

    /// Opens a watch and waits for etcd's confirmation.
    pub(super) async fn open(
        &self,
        prefix: &str,
        from_revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchBatch, StoreError>>, StoreError> {
        let (answer, opened) = oneshot::channel();
        self.request(WatchRequest { prefix: prefix.to_owned(), from_revision: from_revision.max(1), answer });
        // Without an answer, the stream has ended.
        let reader = opened.await.unwrap_or_else(|_| Err(StoreError::WatchEnded(prefix.to_owned())))?;
        // A watch outlives its client: it keeps the tasks running. A failed watch is over: it becomes `None`.
        let state = (Some(reader), Arc::clone(&self.streams));
        let batches = stream::unfold(state, |(reader, streams)| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(batch) => Some((Ok(batch), (Some(reader), streams))),
                Err(error) => Some((Err(error), (None, streams))),
            }
        });
        Ok(batches.boxed())
    }

    /// Passes the request to the newest stream, or begins a stream with it.
    fn request(&self, opening: WatchRequest) {
        let mut streams = lock(&self.streams);
        let unsent = match &streams.newest {
            Some(newest) => newest.send(opening).err().map(|closed| closed.0),
            None => Some(opening),
        };
        let Some(first) = unsent else { return };
        while streams.tasks.try_join_next().is_some() {}
        let (newest, openings) = mpsc::unbounded_channel();
        streams.newest = Some(newest);
        streams.tasks.spawn(serve(self.client.clone(), first, openings));
    }
}

/// Request for a watch.
struct WatchRequest {
    prefix: String,
    from_revision: i64,
    answer: oneshot::Sender<Result<WatchReader, StoreError>>,
}

/// Reading end of a watch. Dropping it cancels the watch.
struct WatchReader {
    id: i64,
    prefix: String,
    batches: mpsc::UnboundedReceiver<Result<WatchBatch, StoreError>>,
    queued_bytes: Arc<AtomicUsize>,
    ends: mpsc::UnboundedSender<i64>,
}

impl WatchReader {
    async fn next(&mut self) -> Result<WatchBatch, StoreError> {
        let batch = self.batches.recv().await;
        let batch = batch.unwrap_or_else(|| Err(StoreError::WatchEnded(self.prefix.clone())))?;
        self.queued_bytes.fetch_sub(bytes_of(&batch.events), Ordering::Relaxed);
        Ok(batch)
    }
}

impl Drop for WatchReader {
    fn drop(&mut self) {
        // The stream may have ended before.
        let _ = self.ends.send(self.id);
    }
}

/// Next action on a stream.
enum Step {
    /// Requests a watch, or without one a sign of life.
    Request(Option<WatchRequest>),
    /// Cancels a watch, if there is one to cancel.
    Cancel(Option<i64>),
}

/// Opens a stream with its first watch, and serves its watches until it has none or breaks.
async fn serve(
    mut client: WatchClient,
    first: WatchRequest,
    openings: mpsc::UnboundedReceiver<WatchRequest>,
) {
    let (ends, ended) = mpsc::unbounded_channel();
    let mut state = StreamState::new(ends);
    let (key, options) = state.request(Some(first));
    let served = match in_time(client.watch(key, Some(options))).await {
        Ok(stream) => follow(stream, &mut state, openings, ended).await,
        Err(why) => Err(why),
    };
    if let Err(why) = served {
        state.fail(why);
    }
}

async fn follow(
    stream: WatchStream,
    state: &mut StreamState,
    mut openings: mpsc::UnboundedReceiver<WatchRequest>,
    mut ended: mpsc::UnboundedReceiver<i64>,
) -> Result<(), StoreError> {
    let (mut requests, mut answers) = stream.split();
    let mut silent_at = Instant::now() + SIGN_OF_LIFE;
    loop {
        if state.is_refused || state.is_idle() {
            // The next request begins a new stream; those sent before are served here.
            openings.close();
        }
        let step = if state.is_idle() {
            let Some(opening) = openings.recv().await else { return Ok(()) };
            Step::Request(Some(opening))
        } else {
            tokio::select! {
                // Cancel-safe: `recv` of a channel loses nothing when dropped.
                Some(opening) = openings.recv() => Step::Request(Some(opening)),
                // Cancel-safe, too.
                Some(id) = ended.recv() => Step::Cancel(state.end(id)),
                // Cancel-safe: bytes already read stay in the stream.
                answer = timeout_at(silent_at, answers.message()) => match answer {
                    Ok(Ok(Some(answer))) => {
                        silent_at = Instant::now() + QUIET;
                        Step::Cancel(state.take(Answer::from(&answer)))
                    }
                    Ok(Ok(None)) => return Ok(()),
                    Ok(Err(error)) => return Err(request_error("a watch", &error)),
                    Err(_) if state.awaits_answer() => return Err(no_answer()),
                    Err(_) => Step::Request(None),
                },
            }
        };
        match step {
            Step::Request(opening) => {
                // Further requests do not extend the wait for the answer to the first.
                if !state.awaits_answer() {
                    silent_at = Instant::now() + SIGN_OF_LIFE;
                }
                let (key, options) = state.request(opening);
                in_time(requests.watch(key, Some(options))).await?;
            }
            Step::Cancel(Some(id)) => in_time(requests.cancel(id)).await?,
            Step::Cancel(None) => {}
        }
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    let said = timeout(SIGN_OF_LIFE, call).await.map_err(|_| no_answer())?;
    said.map_err(|error| request_error("a watch", &error))
}

fn no_answer() -> StoreError {
    StoreError::Timeout { act: "a watch", after: SIGN_OF_LIFE }
}

/// Answer of etcd on a stream.
enum Answer {
    /// The oldest request has its watch, with this id.
    Opened(i64),
    /// The oldest request gets no watch.
    Refused { is_compacted: bool },
    /// The watch gets nothing more.
    Ended { id: i64, is_compacted: bool },
    /// Events of a watch; a fragment is continued by the next answer for the watch.
    Events { id: i64, events: Vec<WatchEvent>, is_fragment: bool },
}

impl From<&WatchResponse> for Answer {
    fn from(answer: &WatchResponse) -> Self {
        let (id, is_compacted) = (answer.watch_id(), answer.compact_revision() > 0);
        match (answer.created(), answer.canceled() || is_compacted) {
            (true, true) => Answer::Refused { is_compacted },
            (true, false) => Answer::Opened(id),
            (false, true) => Answer::Ended { id, is_compacted },
            (false, false) => {
                let events = answer.events().iter().filter_map(watch_event).collect();
                Answer::Events { id, events, is_fragment: answer.0.fragment }
            }
        }
    }
}

/// The watches of one stream: finds the request or the watch of each answer. Without I/O.
struct StreamState {
    /// Requests without an answer, in the order in which etcd answers them; `None` for a sign of life.
    requested: VecDeque<Option<WatchRequest>>,
    running: BTreeMap<i64, RunningWatch>,
    /// Newest id of a request. Never used twice: etcd 3.4 answers the refusal of a watch with its id, and sends no
    /// more events of that id.
    last_id: i64,
    /// True once etcd has refused a watch. The user's token is that of the stream's beginning, and may have expired.
    is_refused: bool,
    ends: mpsc::UnboundedSender<i64>,
}

struct RunningWatch {
    from_revision: i64,
    /// Fragments of the message that is not complete yet.
    joined: Vec<WatchEvent>,
    joined_bytes: usize,
    queued_bytes: Arc<AtomicUsize>,
    batches: mpsc::UnboundedSender<Result<WatchBatch, StoreError>>,
}

impl StreamState {
    /// Creates a stream without watches. Readers report their end to `ends`.
    fn new(ends: mpsc::UnboundedSender<i64>) -> Self {
        let (requested, running) = (VecDeque::new(), BTreeMap::new());
        Self { requested, running, last_id: 0, is_refused: false, ends }
    }

    /// True if nobody has or wants a watch.
    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.requested.iter().all(Option::is_none)
    }

    fn awaits_answer(&self) -> bool {
        !self.requested.is_empty()
    }

    /// Returns the request to send for a watch, or for a sign of life. That is a watch as well, and canceled as soon
    /// as etcd confirms it: etcd answers this in any state, but newer versions answer a request for progress only
    /// while all watches are in sync.
    fn request(&mut self, opening: Option<WatchRequest>) -> (String, WatchOptions) {
        self.last_id += 1;
        let options = WatchOptions::new().with_watch_id(self.last_id);
        let request = match &opening {
            Some(WatchRequest { prefix, from_revision, .. }) => {
                (prefix.clone(), options.with_prefix().with_start_revision(*from_revision).with_fragment())
            }
            // A key that everyone may read.
            None => (Key::Leader.to_string(), options),
        };
        self.requested.push_back(opening);
        request
    }

    /// Takes an answer. Returns the id of the watch to cancel, if any.
    fn take(&mut self, answer: Answer) -> Option<i64> {
        match answer {
            Answer::Opened(id) => self.opened(id),
            Answer::Refused { is_compacted } => {
                self.refused(is_compacted);
                None
            }
            Answer::Ended { id, is_compacted } => {
                let watch = self.running.remove(&id)?;
                if is_compacted {
                    let _ = watch.batches.send(Err(StoreError::Compacted(watch.from_revision)));
                }
                // etcd keeps its part of a watch that ended for a compaction.
                is_compacted.then_some(id)
            }
            Answer::Events { id, events, is_fragment } => {
                // Events may arrive after the end of their watch.
                if self.running.get_mut(&id)?.enqueue(events, is_fragment) { None } else { self.end(id) }
            }
        }
    }

    fn opened(&mut self, id: i64) -> Option<i64> {
        let Some(WatchRequest { prefix, from_revision, answer }) = self.requested.pop_front().flatten()
        else {
            return Some(id);
        };
        let ((sender, batches), queued_bytes) = (mpsc::unbounded_channel(), Arc::default());
        let watch = RunningWatch {
            from_revision,
            joined: Vec::new(),
            joined_bytes: 0,
            queued_bytes: Arc::clone(&queued_bytes),
            batches: sender,
        };
        self.running.insert(id, watch);
        let reader = WatchReader { id, prefix, batches, queued_bytes, ends: self.ends.clone() };
        // If nobody waits any more, the reader is dropped, which ends the watch.
        let _ = answer.send(Ok(reader));
        None
    }

    fn refused(&mut self, is_compacted: bool) {
        self.is_refused |= !is_compacted;
        if let Some(WatchRequest { prefix, from_revision, answer }) = self.requested.pop_front().flatten() {
            let compacted = is_compacted.then_some(StoreError::Compacted(from_revision));
            let _ = answer.send(Err(compacted.unwrap_or(StoreError::WatchEnded(prefix))));
        }
    }

    /// Ends a watch. Returns its id to cancel, unless it has ended before.
    fn end(&mut self, id: i64) -> Option<i64> {
        self.running.remove(&id).map(|_| id)
    }

    /// Ends all watches; the oldest request gets the reason.
    fn fail(self, why: StoreError) {
        if let Some(opening) = self.requested.into_iter().flatten().next() {
            let _ = opening.answer.send(Err(why));
        }
    }
}

impl RunningWatch {
    /// Joins fragments and queues whole messages for the reader. Returns false if they are too many.
    fn enqueue(&mut self, events: Vec<WatchEvent>, is_fragment: bool) -> bool {
        self.joined_bytes += bytes_of(&events);
        self.joined.extend(events);
        if self.joined_bytes > JOINED_MAX_BYTES {
            return false;
        }
        if is_fragment || self.joined.is_empty() {
            return true;
        }
        let (events, bytes) = (mem::take(&mut self.joined), mem::take(&mut self.joined_bytes));
        let queued = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        if queued > 0 && queued + bytes > QUEUED_MAX_BYTES {
            return false;
        }
        let revision = events.iter().map(mod_revision).max().unwrap_or_default();
        // A reader that is gone reports its end.
        let _ = self.batches.send(Ok(WatchBatch { events, revision }));
        true
    }
}

fn watch_event(event: &etcd_client::Event) -> Option<WatchEvent> {
    let kv = key_value(event.kv()?.clone());
    Some(match event.event_type() {
        EventType::Put => WatchEvent::Put(kv),
        EventType::Delete => WatchEvent::Delete { key: kv.key, mod_revision: kv.mod_revision },
    })
}

/// Returns the memory that events take, in bytes.
fn bytes_of(events: &[WatchEvent]) -> usize {
    let content = |event: &WatchEvent| match event {
        WatchEvent::Put(kv) => kv.key.len() + kv.value.len(),
        WatchEvent::Delete { key, .. } => key.len(),
    };
    size_of_val(events) + events.iter().map(content).sum::<usize>()
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

/// True if the client's user may not do this, or there is no such user.
pub(super) fn is_denied(error: &Error) -> bool {
    // By the number (7), as above.
    matches!(error, Error::GRpcStatus(status) if i32::from(status.code()) == 7)
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
    if is_denied(error) {
        return StoreError::Denied { act, message };
    }
    if is_unavailable(error) {
        return StoreError::Unavailable { act, message };
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

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
