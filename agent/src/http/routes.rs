//! Serves an axum router over TLS, for the agent's own API.
//!
//! The gateways' server (`server.rs`) shares the acceptor and the clock, but not the rest: its connections stay on
//! one core, can bypass hyper, and end when a client stalls in a response. The API has few requests, some as long as
//! a followed log, and its handlers read files, which must not delay the gateways' cores.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::header::{HOST, ORIGIN};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper::{HeaderMap, Request, Uri};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use schema::names::RequestOrigin;
use schema::trust::{Peer, TrustReader};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::acceptor::{AcceptedConnection, Acceptor, accept_tls};
use super::body::GuardedBody;
use super::patience::{Clock, TimedStream};

/// Returns what a request says of the name that it was sent to and of the page that sent it.
pub(crate) fn origin_of<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> RequestOrigin<'r> {
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    let hosts = headers.get_all(HOST).iter().map(|host| host.as_bytes()).chain(authority).collect();
    RequestOrigin { hosts, origin: headers.get(ORIGIN).map(|value| value.as_bytes()), json: None }
}

/// Limits on the connections of a router.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum number of concurrent connections; one client may hold a quarter of them, the node itself three.
    pub(crate) connections: usize,
    /// Maximum size of a request's head in bytes.
    pub(crate) head_bytes: usize,
    /// Time for the head of a request once its first byte has arrived, and for the first head of a connection together
    /// with its TLS handshake.
    pub(crate) head: Duration,
    /// Longest wait for a further request: an idle connection is closed then.
    pub(crate) idle: Duration,
    /// Time for requests in progress at shutdown; then their connections are cut.
    pub(crate) drain: Duration,
}

/// Extension of each request: its client, if that has shown a certificate.
#[derive(Debug, Clone)]
pub(crate) struct CertifiedClient(pub(crate) Option<Peer>);

/// Serves until shutdown, and gives requests in progress a little longer. `server`: its name in messages.
pub(crate) async fn serve(
    server: &'static str,
    (listener, trust): (TcpListener, TrustReader),
    bounds: Bounds,
    router: Router,
    shutdown: CancellationToken,
) {
    let acceptor = Acceptor::new(server, bounds.connections);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            // Cancel-safe: a cancelled token stays cancelled.
            () = shutdown.cancelled() => break,
            // Cancel-safe by itself.
            accepted = acceptor.accept(&listener) => accepted,
        };
        let (router, trust, shutdown) = (router.clone(), trust.clone(), shutdown.clone());
        connections.spawn(connection(accepted, router, bounds, trust, shutdown));
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(bounds.drain, ended).await;
}

async fn connection(
    accepted: AcceptedConnection,
    router: Router,
    bounds: Bounds,
    trust: TrustReader,
    shutdown: CancellationToken,
) {
    let AcceptedConnection { stream, client, place: _place, .. } = accepted;
    // Best effort: small responses are sent without delay, and a followed log ends with its client's machine.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(bounds.idle));
    let stream = TimedStream::new(stream, bounds.idle);
    let phase = stream.phase();
    let mut clock = Clock::new(phase.clone(), bounds.head, bounds.idle);
    let mut cancelled = pin!(shutdown.cancelled());
    let mut accepting = pin!(accept_tls(stream, trust, client));
    let secured = poll_fn(|cx| match accepting.as_mut().poll(cx) {
        Poll::Pending if cancelled.as_mut().poll(cx).is_ready() => Poll::Ready(None),
        Poll::Pending => clock.poll_timeout(cx).map(|()| None),
        secured => secured,
    });
    let Some((stream, peer)) = secured.await else { return };
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(CertifiedClient(peer.clone()));
        let (turn, response) = (phase.begin(), router.call(request));
        async move { Ok::<_, Infallible>(response.await?.map(|body| GuardedBody::new(body, Some(turn)))) }
    });
    let served = http1::Builder::new()
        // The clock enforces the timeouts.
        .header_read_timeout(None)
        .max_header_size(bounds.head_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let (mut served, mut is_closing) = (pin!(served), false);
    let ended = poll_fn(|cx| {
        if !is_closing && cancelled.as_mut().poll(cx).is_ready() {
            is_closing = true;
            served.as_mut().graceful_shutdown();
        }
        match served.as_mut().poll(cx) {
            Poll::Pending => clock.poll_timeout(cx).map(Ok),
            ended => ended,
        }
    })
    .await;
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::Body;
    use axum::routing::get;
    use bytes::Bytes;
    use schema::trust::MaybeTls;
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::testing::TestAuthority;

    const BOUNDS: Bounds = Bounds {
        connections: 4,
        head_bytes: 8 * 1024,
        head: Duration::from_secs(60),
        idle: Duration::from_secs(60),
        drain: Duration::from_millis(200),
    };

    /// A server, and what its clients need.
    struct Bed {
        address: SocketAddr,
        authority: TestAuthority,
        shutdown: CancellationToken,
        ended: JoinHandle<()>,
    }

    async fn serving(bounds: Bounds) -> Bed {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let endless = || async {
            let first = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"first"))]);
            Body::from_stream(futures::StreamExt::chain(first, futures::stream::pending()))
        };
        let router = Router::new().route("/", get(|| async { "well" })).route("/log", get(endless));
        let authority = TestAuthority::new();
        let listening = (listener, authority.reader("node-n1"));
        let ended = tokio::spawn(serve("the test", listening, bounds, router, shutdown.clone()));
        Bed { address, authority, shutdown, ended }
    }

    /// Sends a request and reads until the response contains `wanted`.
    async fn ask(bed: &Bed, path: &str, wanted: &str) -> MaybeTls {
        let mut stream = bed.authority.connect("reconciler-r1", bed.address).await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut said = String::new();
        while !said.contains(wanted) {
            let mut piece = [0; 1024];
            let bytes = stream.read(&mut piece).await.unwrap();
            assert!(bytes > 0, "it ended after {said:?}");
            said.push_str(std::str::from_utf8(&piece[..bytes]).unwrap());
        }
        stream
    }

    #[tokio::test]
    async fn a_connection_without_a_request_ends_and_a_followed_log_does_not() {
        // Long enough for a handshake on a busy machine.
        let soon = Duration::from_secs(1);
        let bed = serving(Bounds { head: soon, idle: soon, ..BOUNDS }).await;
        let mut log = ask(&bed, "/log", "first").await;
        let mut idle = ask(&bed, "/", "well").await;
        let mut silent = TcpStream::connect(bed.address).await.unwrap();
        // Cut without the end of TLS.
        assert_eq!(idle.read(&mut [0; 64]).await.unwrap_or_default(), 0);
        assert_eq!(silent.read(&mut [0; 64]).await.unwrap(), 0);
        let more = timeout(Duration::from_millis(300), log.read(&mut [0; 64])).await;
        assert!(more.is_err(), "the log ended: {more:?}");
    }

    // Seen red with one time for heads and for the pause between requests.
    #[tokio::test]
    async fn half_a_head_ends_its_connection_though_an_idle_one_may_rest() {
        let head = Duration::from_secs(1);
        let bed = serving(Bounds { head, idle: Duration::from_secs(3600), ..BOUNDS }).await;
        async fn ends(mut client: impl AsyncRead + Unpin) -> usize {
            let mut piece = [0; 64];
            let read = client.read(&mut piece);
            timeout(Duration::from_secs(10), read).await.expect("in time").unwrap_or_default()
        }
        let mut hello = TcpStream::connect(bed.address).await.unwrap();
        // The beginning of a record with a handshake of 512 bytes.
        hello.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        assert_eq!(ends(hello).await, 0, "half a handshake");
        let mut half = bed.authority.connect("reconciler-r1", bed.address).await;
        half.write_all(b"GET / HTTP/1.1\r\nho").await.unwrap();
        assert_eq!(ends(half).await, 0, "a first head");
        let mut idle = ask(&bed, "/", "well").await;
        let early = timeout(Duration::from_millis(1500), idle.read(&mut [0; 64])).await;
        assert!(early.is_err(), "an idle connection ended: {early:?}");
        idle.write_all(b"GET / HT").await.unwrap();
        assert_eq!(ends(idle).await, 0, "a later head");
    }

    #[tokio::test]
    async fn a_followed_log_holds_up_the_end_for_no_longer_than_the_drain() {
        let bed = serving(BOUNDS).await;
        let mut log = ask(&bed, "/log", "first").await;
        bed.shutdown.cancel();
        timeout(Duration::from_secs(10), bed.ended).await.expect("in time").unwrap();
        let rest = log.read(&mut [0; 64]).await;
        assert!(rest.is_err() || rest.is_ok_and(|bytes| bytes == 0));
    }

    #[tokio::test]
    async fn a_connection_above_the_bound_is_served_once_another_ends() {
        let bed = serving(Bounds { connections: 1, ..BOUNDS }).await;
        let log = ask(&bed, "/log", "first").await;
        let early = timeout(Duration::from_millis(300), ask(&bed, "/", "well")).await;
        assert!(early.is_err(), "it was served beside another");
        drop(log);
        timeout(Duration::from_secs(10), ask(&bed, "/", "well")).await.expect("in time");
    }
}
