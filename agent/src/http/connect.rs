//! Establishes connections to endpoints.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Options for connecting and keeping connections.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Connect timeout.
    pub connect: Duration,
    /// Time without a packet after which the kernel probes the endpoint's machine.
    pub keepalive: Duration,
    /// Time without an acknowledgement after which the connection is given up; `None` for the kernel's default,
    /// which is long.
    pub gone: Option<Duration>,
    /// Set if request bodies are small: each is copied behind its head, so that one write sends both.
    pub copies_bodies: bool,
    /// Maximum number of idle connections kept for each endpoint.
    pub spare: usize,
    pub spare_for: Duration,
}

/// Connects with these options.
pub(super) async fn connect(to: SocketAddr, options: &Options) -> io::Result<TcpStream> {
    let connect = options.connect;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {connect:?}"));
    let stream = timeout(connect, TcpStream::connect(to)).await.map_err(late)??;
    // Best effort: without these options connections are slower, and a dead machine is detected later.
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(&stream);
    let mut keepalive = TcpKeepalive::new().with_time(options.keepalive);
    if let Some(gone) = options.gone {
        // More than one probe within the time: one may be lost.
        keepalive = keepalive.with_interval(gone / 5);
        let _ = socket.set_tcp_user_timeout(Some(gone));
    }
    let _ = socket.set_tcp_keepalive(&keepalive);
    Ok(stream)
}
