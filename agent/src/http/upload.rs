//! Bodies of requests, and how far they are.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use schema::control::lock;
use tokio::time::Instant;

/// For whom a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// More of the body.
    Client,
    /// Room for more of the body, or the answer.
    Endpoint,
}

/// The body of a request on its way to an endpoint. Unread, it gives itself back for another endpoint.
#[derive(Debug)]
pub struct Upload {
    body: Option<Incoming>,
    read: bool,
    progress: Progress,
}

/// How far an [`Upload`] is, for the task that waits for the answer.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    returned: Option<Incoming>,
    /// Nothing reads it any more.
    ended: bool,
    moved_at: Instant,
    waits_for: WaitsFor,
}

impl Upload {
    /// `body`, and its progress.
    pub(crate) fn new(body: Incoming) -> (Self, Progress) {
        let state =
            State { returned: None, ended: false, moved_at: Instant::now(), waits_for: WaitsFor::Endpoint };
        let progress = Progress(Arc::new(Mutex::new(state)));
        (Self { body: Some(body), read: false, progress: progress.clone() }, progress)
    }
}

impl Progress {
    /// Since when nothing has moved, and for whom it waits.
    pub(crate) fn resting(&self) -> (Instant, WaitsFor) {
        let state = self.state();
        (state.moved_at, state.waits_for)
    }

    /// The body has been read to its end, or nobody reads it any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// The body, if it has come back unread.
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
        // Each change is whole before anything can panic.
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
