//! Connector for HTTP clients and for etcd's.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_openssl::SslStream;
use tower_service::Service;

use super::{Expected, Identity, Protocol, Role, TrustReader, connect};

/// Connector to daemons of the cluster.
///
/// `https://node-web-2@10.0.0.7:7071` is the agent of `web-2` at this address, and nobody else may answer; without a name
/// before the `@`, anyone with the expected role may. `http` is for servers of tests: a connector with a certificate
/// refuses it.
#[derive(Debug, Clone)]
pub struct TrustConnector {
    trust: Option<TrustReader>,
    role: Role,
    patience: Duration,
}

impl TrustConnector {
    /// Creates a connector to servers of a role, with the longest time for connection and handshake together. Without
    /// `trust` it knows only `http`.
    pub fn new(trust: Option<TrustReader>, role: Role, patience: Duration) -> Self {
        Self { trust, role, patience }
    }

    async fn connect(self, uri: Uri) -> io::Result<MaybeTls> {
        let is_tls = uri.scheme_str() == Some("https");
        if !is_tls && self.trust.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{uri} is not encrypted")));
        }
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let host = uri.host().ok_or_else(|| wrong(format!("{uri} has no host")))?;
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        if !is_tls {
            return Ok(MaybeTls::Plain(stream));
        }
        let expected = match named(&uri) {
            Some(name) => Expected::Identity(name.parse().map_err(|error| wrong(format!("{uri}: {error}")))?),
            None => Expected::Role(self.role),
        };
        let trust =
            self.trust.ok_or_else(|| wrong(format!("{uri} needs a certificate, and there is none")))?;
        let tls = connect(stream, &trust.current(), &expected, Protocol::Http1).await?;
        Ok(MaybeTls::Tls(tls))
    }
}

/// Name before the `@`.
fn named(uri: &Uri) -> Option<&str> {
    uri.authority()?.as_str().rsplit_once('@').map(|(name, _)| name)
}

/// Returns the URL of a path, empty or with a leading `/`, at somebody's address.
pub fn url_of(identity: &Identity, address: std::net::SocketAddr, path: &str) -> String {
    format!("https://{identity}@{address}{path}")
}

impl Service<Uri> for TrustConnector {
    type Response = TokioIo<MaybeTls>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<MaybeTls>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let patience = connector.patience;
            match timeout(patience, connector.connect(uri)).await {
                Ok(connected) => connected.map(TokioIo::new),
                Err(_) => {
                    Err(io::Error::new(io::ErrorKind::TimedOut, format!("not connected within {patience:?}")))
                }
            }
        })
    }
}

/// A connection with or without TLS.
#[derive(Debug)]
pub enum MaybeTls {
    /// Not encrypted.
    Plain(TcpStream),
    /// Encrypted.
    Tls(SslStream<TcpStream>),
}

impl Connection for MaybeTls {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for MaybeTls {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for MaybeTls {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
