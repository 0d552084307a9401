//! Accepts connections for HTTP: the only file of this crate that does. TLS of clients begins here, that to other daemons
//! in `outgoing.rs`.

use std::future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use schema::trust::{self, Peer, TrustReader};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clients::{Clients, ConnectionGuard};

/// Pause after an accept that failed for want of open files or memory, so that others can end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection's place among all, and among those of its client.
#[derive(Debug)]
pub struct ConnectionPlace {
    // Released first: who takes the place among all finds the client's own free as well.
    _of_client: Option<ConnectionGuard>,
    _among_all: OwnedSemaphorePermit,
}

impl ConnectionPlace {
    /// Creates a place, released when dropped.
    pub fn new(among_all: OwnedSemaphorePermit, of_client: Option<ConnectionGuard>) -> Self {
        Self { _of_client: of_client, _among_all: among_all }
    }
}

/// An accepted connection.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    pub(super) stream: TcpStream,
    pub(super) client: IpAddr,
    /// Set if the client is on the node itself.
    pub(super) is_node: bool,
    pub(super) place: ConnectionPlace,
}

/// Bounds the connections of a server, and each client's share of them.
#[derive(Debug)]
pub(super) struct Acceptor {
    /// Name of the server, for clients and the log.
    server: &'static str,
    places: Arc<Semaphore>,
    clients: Clients,
    /// Connections of the node itself, from whichever of its addresses.
    own: Clients,
}

impl Acceptor {
    /// Creates an acceptor for at most so many concurrent connections; further ones wait in the kernel's queue.
    pub(super) fn new(server: &'static str, connections: usize) -> Self {
        let (clients, own) = (Clients::sharing(connections), Clients::on_node(connections));
        Self { server, places: Arc::new(Semaphore::new(connections)), clients, own }
    }

    /// Accepts the next connection, once there is a place for it. Clients that hold their share get a 503.
    ///
    /// Cancel-safe: a connection that is not returned stays in the kernel's queue, and an unused place is released.
    pub(super) async fn accept(&self, listener: &TcpListener) -> AcceptedConnection {
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return future::pending().await;
            };
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, server = %self.server, "connection not accepted; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // IPv4 clients of a dual-stack listener appear as `::ffff:192.0.2.1`.
            let client = address.ip().to_canonical();
            // For connections to one of its own addresses, the node uses that address as the source.
            let own = stream.local_addr().is_ok_and(|local| local.ip().to_canonical() == client);
            let is_node = own || client.is_loopback();
            let (clients, counted) = match is_node {
                true => (&self.own, Ipv4Addr::LOCALHOST.into()),
                false => (&self.clients, client),
            };
            let Some(held) = clients.admit(counted) else {
                self.refuse(&stream, client, clients.limit());
                continue;
            };
            let place = ConnectionPlace::new(place, Some(held));
            return AcceptedConnection { stream, client, is_node, place };
        }
    }

    /// Sends a 503 before the connection is closed, without waiting for the client, which may never send anything.
    fn refuse(&self, stream: &TcpStream, client: IpAddr, most: usize) {
        let server = self.server;
        tracing::debug!(%client, most, "client holds its share of connections already");
        let why = format!("connection limit reached: {client} already has {most} connections to {server}\n");
        let length = why.len();
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{why}"
        );
        // Read the request, or the kernel would reset the connection before the client reads the response.
        let mut request = [0; 4096];
        // Bounded: a client that sends without end would keep others from being accepted.
        for _ in 0..REFUSED_READS {
            if !stream.try_read(&mut request).is_ok_and(|length| length == request.len()) {
                break;
            }
        }
        // The response fits the empty queue of a new connection; a client that misses it gets the end of the
        // connection.
        let _ = stream.try_write(answer.as_bytes());
    }
}

/// Maximum number of reads of a refused client's request, 4 KiB each: as much as a head may have by default.
const REFUSED_READS: usize = 16;

/// Carries out the server's part of a TLS handshake: returns the encrypted stream, and its client if that has shown a
/// certificate. `None` if it failed, as for a certificate of another authority. The caller bounds the time.
pub(super) async fn accept_tls<S>(
    stream: S,
    trust: TrustReader,
    client: IpAddr,
) -> Option<(impl AsyncRead + AsyncWrite + Unpin + Send + 'static, Option<Peer>)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let credentials = trust.current();
    match trust::accept(stream, &credentials).await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::debug!(%client, %error, "TLS connection refused");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    // Would fail with connections of the node itself not counted.
    #[tokio::test]
    async fn the_node_itself_leaves_one_clients_share_to_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, acceptor) = (listener.local_addr().unwrap(), Acceptor::new("the test", 4));
        let (mut clients, mut accepted) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.unwrap());
            accepted.push(acceptor.accept(&listener).await);
        }
        let mut fourth = TcpStream::connect(address).await.unwrap();
        let mut said = String::new();
        tokio::select! {
            _ = acceptor.accept(&listener) => panic!("it was accepted beside three others"),
            read = fourth.read_to_string(&mut said) => drop(read.unwrap()),
        }
        assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("already has 3 connections"), "{said}");
        drop(accepted.pop());
        let _again = TcpStream::connect(address).await.unwrap();
        assert!(acceptor.accept(&listener).await.is_node);
    }
}
