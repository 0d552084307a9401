//! How connections to endpoints are made.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How connections are made and kept.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Connect timeout.
    pub connect: Duration,
    /// Time without a packet after which the kernel asks whether the endpoint's machine is there.
    pub keepalive: Duration,
    /// Time without an acknowledgement after which the connection is given up; none: the kernel's, which is long.
    pub gone: Option<Duration>,
    /// Bodies of requests are small: each is copied behind its head, so that one write sends both.
    pub copies_bodies: bool,
    /// Idle connections that are kept for each endpoint.
    pub spare: usize,
    pub spare_for: Duration,
}

/// A connection as the options want it.
pub(super) async fn connect(to: SocketAddr, options: &Options) -> io::Result<TcpStream> {
    let connect = options.connect;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {connect:?}"));
    let stream = timeout(connect, TcpStream::connect(to)).await.map_err(late)??;
    // Without these it works, too, only slower, or it takes longer to see that the endpoint's machine is gone.
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(&stream);
    let mut keepalive = TcpKeepalive::new().with_time(options.keepalive);
    if let Some(gone) = options.gone {
        // More than one question within the time: one may be lost.
        keepalive = keepalive.with_interval(gone / 5);
        let _ = socket.set_tcp_user_timeout(Some(gone));
    }
    let _ = socket.set_tcp_keepalive(&keepalive);
    Ok(stream)
}
