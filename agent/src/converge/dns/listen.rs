//! Sockets of the server, and the tasks that serve them.
//!
//! Bound before the address exists (`IP_FREEBIND`): the network loop adds it.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use hickory_server::Server;
use hickory_server::net::runtime::TokioTime;
use hickory_server::net::runtime::iocompat::AsyncIoTokioAsStd;
use hickory_server::net::tcp::TcpStream;
use hickory_server::net::xfer::Protocol as Transport;
use hickory_server::server::{Request, RequestHandler as _, ResponseHandle, TimeoutStream};
use schema::kinds::pod::Protocol;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use super::resolv::PORT;
use super::server::Handler;
use crate::clients::Clients;
use crate::worlds::netlink::Netlink;

/// Maximum number of concurrent connections. Each is an open file, of which an agent may have 1024. One client may
/// hold a quarter of them: further ones are closed immediately.
const CONNECTIONS_MAX: usize = 128;

/// Longest idle time of a connection (RFC 7766 recommends seconds).
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Answers that may wait for one connection to read them.
const ANSWERS_MAX: usize = 16;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Bytes of packets that wait for the server: some thousand questions arrive together when pods start.
const RECEIVE_BUFFER: usize = 4 << 20;

pub(super) struct Sockets {
    pub(super) udp: Socket,
    pub(super) tcp: Socket,
}

/// Binds the UDP and the TCP socket.
pub(super) fn bind_at(at: SocketAddr) -> io::Result<Sockets> {
    let socket = |kind| {
        let socket = Socket::new(Domain::IPV4, kind, None)?;
        socket.set_freebind_v4(true)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        io::Result::Ok(socket)
    };
    let (udp, tcp) = (socket(Type::DGRAM)?, socket(Type::STREAM)?);
    // Up to the machine's limit.
    udp.set_recv_buffer_size(RECEIVE_BUFFER)?;
    udp.bind(&at.into())?;
    tcp.bind(&at.into())?;
    tcp.listen(BACKLOG)?;
    Ok(Sockets { udp, tcp })
}

/// Explains why the port is not available, which process has it, and the remedy.
pub(super) async fn explain(address: Ipv4Addr, error: &io::Error, netlink: &dyn Netlink) -> String {
    let at = format!("cannot serve DNS at {address}:{PORT}: {error}");
    if error.kind() != io::ErrorKind::AddrInUse {
        return at;
    }
    let ports = [Protocol::Udp, Protocol::Tcp].map(|protocol| (protocol, PORT));
    let listeners = netlink.listeners(&BTreeSet::from(ports)).await.unwrap_or_default();
    let process = ports.iter().find_map(|port| listeners.get(port)?.process.clone());
    let who = process.unwrap_or_else(|| "another process".to_owned());
    format!(
        "{at}: {who} listens on port {PORT} of every address; let it listen on its own addresses only (dnsmasq: bind-dynamic and interface=, bind9: listen-on, unbound: interface:) or stop it"
    )
}

/// A running server. Dropping it stops the server.
pub(super) struct Running {
    address: Ipv4Addr,
    servers: [AbortHandle; 2],
    /// Tasks of both servers, aborted on drop.
    _tasks: JoinSet<()>,
}

impl Running {
    pub(super) fn start(address: Ipv4Addr, sockets: Sockets, handler: Handler) -> io::Result<Self> {
        let udp = UdpSocket::from_std(sockets.udp.into())?;
        let tcp = TcpListener::from_std(sockets.tcp.into())?;
        let handler = Arc::new(handler);
        let mut server = Server::new(handler.as_ref().clone());
        server.register_socket(udp);
        let mut tasks = JoinSet::new();
        let udp = tasks.spawn(async move {
            if let Err(error) = server.block_until_done().await {
                tracing::error!(%error, "name server ended; it is started again");
            }
        });
        let tcp = tasks.spawn(serve_tcp(tcp, handler));
        Ok(Self { address, servers: [udp, tcp], _tasks: tasks })
    }

    /// Returns the address of the server; `None` if it has ended.
    pub(super) fn address(&self) -> Option<Ipv4Addr> {
        (!self.servers.iter().any(AbortHandle::is_finished)).then_some(self.address)
    }
}

/// Serves TCP connections, as many as the agent can hold open; Hickory's own loop accepts any number. Dropping the
/// future ends them.
pub(super) async fn serve_tcp(listener: TcpListener, handler: Arc<Handler>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let clients = Clients::sharing(CONNECTIONS_MAX);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of files, or a client that left: the next one may succeed.
                tracing::debug!(%error, "connection for names not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(held) = clients.admit(from.ip()) else {
            tracing::debug!(client = %from.ip(), "client holds its share of connections for names already");
            continue;
        };
        let handler = Arc::clone(&handler);
        connections.spawn(async move {
            serve_connection(stream, from, &handler).await;
            drop((place, held));
        });
    }
}

async fn serve_connection(stream: tokio::net::TcpStream, from: SocketAddr, handler: &Handler) {
    let (stream, answers) =
        TcpStream::from_stream_with_buffer_size(AsyncIoTokioAsStd(stream), from, ANSWERS_MAX);
    let mut questions = TimeoutStream::new(stream, IDLE_MAX);
    while let Some(Ok(question)) = questions.next().await {
        let (bytes, from) = question.into_parts();
        let Ok(request) = Request::from_bytes(bytes, from, Transport::Tcp) else { return };
        let to = ResponseHandle::new(from, answers.clone(), Transport::Tcp);
        handler.handle_request::<_, TokioTime>(&request, to).await;
    }
}
