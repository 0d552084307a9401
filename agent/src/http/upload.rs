//! Request bodies, and their progress.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use schema::control::lock;
use tokio::time::Instant;

/// Side that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// The client must send more of the body.
    Client,
    /// The endpoint must accept more of the body, or respond.
    Endpoint,
}

/// Request body on its way to an endpoint. If unread, it is returned for use with another endpoint.
#[derive(Debug)]
pub struct Upload {
    body: Option<Incoming>,
    read: bool,
    progress: Progress,
}

/// Progress of an [`Upload`], for the task that waits for the response.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    returned: Option<Incoming>,
    /// Set when nothing reads the body any more.
    ended: bool,
    moved_at: Instant,
    waits_for: WaitsFor,
}

impl Upload {
    /// Creates an upload of `body`, and its progress.
    pub(crate) fn new(body: Incoming) -> (Self, Progress) {
        let state =
            State { returned: None, ended: false, moved_at: Instant::now(), waits_for: WaitsFor::Endpoint };
        let progress = Progress(Arc::new(Mutex::new(state)));
        (Self { body: Some(body), read: false, progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// Returns the time since which nothing has moved, and the side that the upload waits for.
    pub(crate) fn resting(&self) -> (Instant, WaitsFor) {
        let state = self.state();
        (state.moved_at, state.waits_for)
    }

    /// True once the body has been read to its end, or is no longer being read.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// Returns the body, if it has come back unread.
    pub(crate) fn take_back(&self) -> Option<Upload> {
        let mut state = self.state();
        let body = state.returned.take()?;
        state.ended = false;
        drop(state);
        Some(Upload { body: Some(body), read: false, progress: self.clone() })
    }

    fn moved(&self) {
        let mut state = self.state();
        state.moved_at = Instant::now();
        state.waits_for = WaitsFor::Endpoint;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete before anything can panic.
        lock(&self.0)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.read = true;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        match &polled {
            Poll::Ready(_) => self.progress.moved(),
            Poll::Pending => self.progress.state().waits_for = WaitsFor::Client,
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut state = self.progress.state();
        state.ended = true;
        if !self.read {
            state.returned = self.body.take();
        }
    }
}
