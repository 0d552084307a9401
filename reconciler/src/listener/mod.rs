//! HTTP/1.1 listener with limits on the number of connections, their idle time and their lifetime.

mod stream;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use schema::control::lock;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use self::stream::Caller;
use self::stream::NewConnection;
pub(crate) use self::stream::{Listening, LocalSocket, PublicCertificate};

/// Pause before accepting again when the system has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits on the connections of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Concurrent connections; more wait to be accepted.
    pub(crate) connections: usize,
    /// Concurrent connections per address, and per /64 of IPv6, so that no single client shuts the others out; more are
    /// closed. Loopback, where a proxy may stand for everyone, has all but a quarter of `connections`.
    pub(crate) per_address: usize,
    /// Largest head of a request, and largest chunk of a body.
    pub(crate) head_bytes: usize,
    /// Longest handshake, and longest wait for the head of a request, including that for a further one: an idle
    /// connection is closed then.
    pub(crate) head_wait: Duration,
    /// Set if connections may be kept alive, unless half of the connections are taken.
    pub(crate) keeps_alive: bool,
    /// Longest lifetime of a connection, if limited.
    pub(crate) lasts: Option<Duration>,
    /// Time for requests in progress at shutdown; then their connections are cut.
    pub(crate) drain: Duration,
}

impl Bounds {
    /// Concurrent connections of all loopback addresses together.
    fn loopback(&self) -> usize {
        loopback_share(self.connections)
    }
}

/// Part of an IPv6 address that belongs to one customer, at least: its /64.
const V6_NETWORK: u128 = !(u64::MAX as u128);

/// Share of all loopback addresses together, where a proxy may stand for everyone: all but a quarter.
pub(crate) fn loopback_share(all: usize) -> usize {
    all - all / 4
}

/// Serves until shutdown, and gives requests in progress a little longer. Requests have their [`Peer`]
/// and their [`Caller`].
pub(crate) async fn serve(
    listening: Listening,
    bounds: Bounds,
    router: Router,
    shutdown: CancellationToken,
) -> Result<(), Infallible> {
    let room = Arc::new(Semaphore::new(bounds.connections));
    let held = Arc::<AddressCounts>::default();
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            // Cancel-safe: a cancelled token stays so.
            () = shutdown.cancelled() => break,
            // Cancel-safe: a permit or connection that was not taken stays for the next iteration.
            accepted = async {
                let permit = Arc::clone(&room).acquire_owned().await;
                (permit, listening.next().await)
            } => accepted,
        };
        let (Ok(permit), accepted) = accepted else { break };
        let Ok(accepted) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let peer = accepted.address;
        let most = if peer.is_loopback() { bounds.loopback() } else { bounds.per_address };
        let Some(place) = AddressPlace::of(&held, peer, most) else {
            tracing::debug!(%peer, most, "address holds its share of connections already");
            continue;
        };
        let (router, shutdown) = (router.clone(), shutdown.clone());
        let keeps_alive = bounds.keeps_alive && room.available_permits() >= bounds.connections / 2;
        connections.spawn(async move {
            let served = connection(accepted, router, Bounds { keeps_alive, ..bounds }, &shutdown);
            match bounds.lasts {
                Some(lasts) => drop(timeout(lasts, served).await),
                None => served.await,
            }
            // The permit last: who takes it finds the slot free as well.
            drop((place, permit));
        });
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(bounds.drain, ended).await;
    Ok(())
}

/// Client of a connection, as an extension of its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Number of connections, or of other things, that each address holds.
pub(crate) type AddressCounts = Mutex<HashMap<IpAddr, usize>>;

/// Place of one of them among those of its address.
pub(crate) struct AddressPlace {
    held: Arc<AddressCounts>,
    address: IpAddr,
}

impl AddressPlace {
    /// Takes a place; `None` if the address has `most` already. All loopback addresses are one, and so are those of
    /// an IPv6 network.
    pub(crate) fn of(held: &Arc<AddressCounts>, address: IpAddr, most: usize) -> Option<Self> {
        let address: IpAddr = match address {
            _ if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & V6_NETWORK).into(),
            IpAddr::V4(_) => address,
        };
        let mut all = lock(held);
        let count = all.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(all);
        Some(Self { held: Arc::clone(held), address })
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut all = lock(&self.held);
        if let Some(count) = all.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

async fn connection(accepted: NewConnection, router: Router, bounds: Bounds, shutdown: &CancellationToken) {
    let peer = Peer(accepted.address);
    let greeted = tokio::select! {
        biased;
        // Neither branch loses a request: there is none yet.
        greeted = timeout(bounds.head_wait, accepted.greeted()) => greeted,
        () = shutdown.cancelled() => return,
    };
    let (stream, caller) = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(error)) => {
            tracing::debug!(peer = %peer.0, %error, "connection refused");
            return;
        }
        Err(_) => {
            tracing::debug!(peer = %peer.0, "connection refused: no handshake in time");
            return;
        }
    };
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(caller.clone());
        router.call(request)
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_wait)
        .max_buf_size(bounds.head_bytes)
        .keep_alive(bounds.keeps_alive)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let ended = tokio::select! {
        // Neither branch drops the connection before its end.
        ended = served.as_mut() => ended,
        () = shutdown.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection broke");
    }
}
