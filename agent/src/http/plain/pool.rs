//! Connections to endpoints for plain requests.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::Duration;

use schema::control::lock;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::http::client::{Options, Spares, connect};

/// Time for which requests to an endpoint go through hyper after one of its responses was late, failed or not
/// plain: hyper keeps the connection handed over, so each attempt costs a new one.
const AVOIDED: Duration = Duration::from_secs(1);

/// Connections of one core.
#[derive(Debug, Clone)]
pub(crate) struct PlainPool(Arc<PoolInner>);

#[derive(Debug)]
struct PoolInner {
    options: Options,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    spares: Spares<TcpStream>,
    avoided: HashMap<SocketAddr, Instant>,
}

impl PlainPool {
    /// Creates an empty pool.
    pub(crate) fn new(options: Options) -> Self {
        let spares = Spares::new(options.spare, options.spare_for);
        Self(Arc::new(PoolInner { options, state: Mutex::new(State { spares, avoided: HashMap::new() }) }))
    }

    /// True if none of these endpoints recently gave a response that was not plain. Excluding only the affected
    /// endpoint would send it less than its share.
    pub(crate) fn are_all_plain(&self, endpoints: &[SocketAddr]) -> bool {
        let avoided = &mut self.state().avoided;
        if !avoided.is_empty() {
            avoided.retain(|_, since| since.elapsed() < AVOIDED);
        }
        avoided.is_empty() || !endpoints.iter().any(|to| avoided.contains_key(to))
    }

    /// Closes idle connections to endpoints that are not in `wanted`.
    pub(crate) fn retain(&self, wanted: &BTreeSet<SocketAddr>) {
        self.state().spares.retain(wanted);
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn sweep(&self) {
        self.state().spares.sweep();
    }

    /// Records a response of this endpoint that was not plain.
    pub(super) fn avoid(&self, to: SocketAddr) {
        self.state().avoided.insert(to, Instant::now());
    }

    /// Returns a kept connection, else a new one.
    pub(super) async fn link(&self, to: SocketAddr) -> io::Result<TcpStream> {
        loop {
            let Some(mut kept) = self.take(to) else { return connect(to, &self.0.options).await };
            if is_silent(&mut kept) {
                return Ok(kept);
            }
        }
    }

    /// Keeps a connection that has no further bytes.
    pub(super) fn keep(&self, to: SocketAddr, mut link: TcpStream) {
        if is_silent(&mut link) {
            self.state().spares.keep(to, link);
        }
    }

    fn take(&self, to: SocketAddr) -> Option<TcpStream> {
        self.state().spares.take(to)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete before anything can panic.
        lock(&self.0.state)
    }
}

/// True if, as far as the runtime knows, the endpoint has neither sent more nor closed. Also clears the waker, so
/// that an idle connection wakes no task.
fn is_silent(link: &mut TcpStream) -> bool {
    let mut byte = [0];
    let mut context = Context::from_waker(Waker::noop());
    Pin::new(link).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
}
