//! A listener for HTTP/1.1 with bounds: how many connections there are, how long each may send nothing, how long it lasts.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Between two tries to accept when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What bounds the connections of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Connections at once; more wait to be accepted.
    pub(crate) connections: usize,
    /// Largest head of a request, and largest piece of a body.
    pub(crate) head_bytes: usize,
    /// Longest wait for the head of a request, also of one after another: an idle connection ends then.
    pub(crate) head_wait: Duration,
    /// A connection may have several requests, unless half of the connections are taken.
    pub(crate) keeps_alive: bool,
    /// Longest connection, if there is one.
    pub(crate) lasts: Option<Duration>,
    /// At the end, requests under way have so long.
    pub(crate) drain: Duration,
}

/// Serves the router that is made for each peer until shutdown, and requests under way a little longer.
pub(crate) async fn serve(
    listener: TcpListener,
    bounds: Bounds,
    router: impl Fn(IpAddr) -> Router,
    shutdown: CancellationToken,
) -> Result<(), Infallible> {
    let room = Arc::new(Semaphore::new(bounds.connections));
    loop {
        let accepted = tokio::select! {
            // Cancel-safe: a cancelled token stays so.
            () = shutdown.cancelled() => break,
            // Cancel-safe: a permit or a connection that was not taken is there for the next.
            accepted = async {
                let permit = Arc::clone(&room).acquire_owned().await;
                (permit, listener.accept().await)
            } => accepted,
        };
        let (Ok(permit), accepted) = accepted else { break };
        let Ok((stream, peer)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (router, shutdown) = (router(peer.ip()), shutdown.clone());
        let keeps_alive = bounds.keeps_alive && room.available_permits() >= bounds.connections / 2;
        tokio::spawn(async move {
            let served = connection(stream, router, Bounds { keeps_alive, ..bounds }, &shutdown);
            match bounds.lasts {
                Some(lasts) => drop(timeout(lasts, served).await),
                None => served.await,
            }
            drop(permit);
        });
    }
    let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
    let _ = timeout(bounds.drain, room.acquire_many(all)).await;
    Ok(())
}

async fn connection(stream: TcpStream, router: Router, bounds: Bounds, shutdown: &CancellationToken) {
    // A small answer that is to leave at once.
    let _ = stream.set_nodelay(true);
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_wait)
        .max_buf_size(bounds.head_bytes)
        .keep_alive(bounds.keeps_alive)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = pin!(served);
    let ended = tokio::select! {
        // Neither is dropped before its end.
        ended = served.as_mut() => ended,
        () = shutdown.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::JoinHandle;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        connections: 4,
        head_bytes: 32 * 1024,
        head_wait: Duration::from_secs(60),
        keeps_alive: true,
        lasts: None,
        drain: Duration::from_secs(60),
    };

    struct Serving {
        address: SocketAddr,
        shutdown: CancellationToken,
        ended: JoinHandle<Result<(), Infallible>>,
    }

    async fn serving(bounds: Bounds) -> Serving {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let router = Router::new().route("/", get(|| async { "well" }));
        let ended = tokio::spawn(serve(listener, bounds, move |_| router.clone(), shutdown.clone()));
        Serving { address, shutdown, ended }
    }

    impl Serving {
        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }
    }

    async fn ask(stream: &mut TcpStream) {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    }

    /// What comes until there is the whole answer.
    async fn answer(stream: &mut TcpStream) -> String {
        let mut said = String::new();
        while !said.ends_with("well") {
            let mut piece = [0; 1024];
            let bytes = stream.read(&mut piece).await.unwrap();
            assert!(bytes > 0, "it ended after {said:?}");
            said.push_str(std::str::from_utf8(&piece[..bytes]).unwrap());
        }
        said
    }

    #[tokio::test]
    async fn a_connection_above_the_bound_is_served_once_another_ends() {
        let serving = serving(BOUNDS).await;
        let mut all = Vec::new();
        for _ in 0..BOUNDS.connections {
            let mut stream = serving.connect().await;
            // From half of the room on, an answer is the last one.
            if all.len() < BOUNDS.connections / 2 {
                ask(&mut stream).await;
                assert!(!answer(&mut stream).await.contains("connection: close"), "{}", all.len());
            }
            all.push(stream);
        }
        let mut one_more = serving.connect().await;
        ask(&mut one_more).await;
        let early = timeout(Duration::from_millis(300), one_more.read(&mut [0; 1])).await;
        assert!(early.is_err(), "it was served beside {} others: {early:?}", all.len());
        drop(all.remove(0));
        assert!(answer(&mut one_more).await.contains("connection: close"));
    }

    #[tokio::test]
    async fn a_connection_that_sends_nothing_ends_also_after_an_answer() {
        let serving = serving(Bounds { head_wait: Duration::from_millis(200), ..BOUNDS }).await;
        let (mut silent, mut idle) = (serving.connect().await, serving.connect().await);
        ask(&mut idle).await;
        answer(&mut idle).await;
        for stream in [&mut silent, &mut idle] {
            assert_eq!(stream.read(&mut [0; 64]).await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn an_idle_connection_does_not_hold_up_the_end() {
        let serving = serving(BOUNDS).await;
        let mut idle = serving.connect().await;
        ask(&mut idle).await;
        answer(&mut idle).await;
        serving.shutdown.cancel();
        timeout(Duration::from_secs(10), serving.ended).await.expect("in time").unwrap().unwrap();
        assert_eq!(idle.read(&mut [0; 64]).await.unwrap(), 0);
    }
}
