//! Connections to etcd: to any of its members, in clear or with TLS.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use etcd_client::Channel;
use http::Uri;
use hyper_util::rt::TokioIo;
use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{ConnectConfiguration, SslConnector, SslMethod, SslVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_openssl::SslStream;
use tonic::transport::Endpoint;
use tower_service::Service;

use super::access::Access;
use crate::errors::error_chain;
use crate::trust::{Certificate, Credentials, Expected, KeyPair, MaybeTls, Role, TlsFiles, TrustError};
use crate::trust::{Protocol, bundle_from_pem, connect};

/// HTTP/2 pings on a connection with open streams; etcd closes connections that ping more often
/// than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(6);
/// Time after which an unanswered ping means that the connection is dead.
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest wait for one TCP connection with its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the first answer of one of several members: a [`super::LazyStore`] has the patience for two that
/// accept connections and hang. After a round without success it is [`CONNECT_TIMEOUT`], because the network may be slow.
pub(super) const PROBE_MAX: Duration = Duration::from_millis(700);

/// Turn of the members, kept over attempts to connect: a member that accepts connections and hangs holds up only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemberTurn {
    /// Number of the member that is next, modulo their number.
    pub(super) number: usize,
    /// Number of members in a row that were of no use.
    failed: usize,
}

impl MemberTurn {
    /// Returns the turn of the first member for this client: clients spread over the members, unless they prefer one.
    pub(super) fn first(access: &Access) -> Self {
        let spreads = access.endpoints.len() > 1 && !access.prefers_first;
        Self { number: if spreads { rand::random_range(0..1024) } else { 0 }, failed: 0 }
    }

    /// Returns the turn of the next member after one that was of no use.
    pub(super) fn next(self) -> Self {
        Self { number: self.number.wrapping_add(1), failed: self.failed.saturating_add(1) }
    }

    /// Returns the turn after an answer: the same member's.
    pub(super) fn answered(self) -> Self {
        Self { failed: 0, ..self }
    }

    /// Returns the longest wait for the first answer of a member, one of several.
    pub(super) fn probe_max(self, members: usize) -> Duration {
        if self.failed < members { PROBE_MAX } else { CONNECT_TIMEOUT }
    }
}

/// Dials the members in turn, beginning with the one that answered last. The TLS files are read for each connection,
/// so that a renewed certificate is used by the next one.
#[derive(Clone)]
struct Dialer {
    members: Arc<[Uri]>,
    tls: Option<TlsFiles>,
    next: Arc<AtomicUsize>,
}

/// Returns a channel to one member at a time: that number `first` (modulo their number), or the next one that can be
/// reached.
///
/// # Errors
/// An endpoint is no URL.
pub(super) fn channel(access: &Access, first: usize) -> Result<Channel, String> {
    let members: Result<Vec<Uri>, String> = access.endpoints.iter().map(|text| uri(text)).collect();
    let members: Arc<[Uri]> = members?.into();
    if members.is_empty() {
        return Err("no address of etcd".to_owned());
    }
    let next = Arc::new(AtomicUsize::new(first % members.len()));
    let dialer = Dialer { members, tls: access.tls.clone(), next };
    // The dialer knows the members; this only gives the requests a host.
    let endpoint = Endpoint::from_static("http://etcd")
        // etcd closes connections that ping without an open stream.
        .keep_alive_while_idle(false)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    Ok(Channel::Tonic(endpoint.connect_with_connector_lazy(dialer)))
}

fn uri(text: &str) -> Result<Uri, String> {
    let wrong = |why: &str| format!("{text}: {why}");
    let uri: Uri = text.parse().map_err(|error: http::uri::InvalidUri| wrong(&error.to_string()))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(uri),
        _ => Err(wrong("no URL of etcd, as http://127.0.0.1:2379")),
    }
}

impl Dialer {
    async fn dial(self) -> io::Result<TokioIo<MaybeTls>> {
        let first = self.next.load(Ordering::Relaxed);
        let mut why = io::Error::other("no address of etcd");
        for turn in 0..self.members.len() {
            let number = (first + turn) % self.members.len();
            match timeout(CONNECT_TIMEOUT, connected(&self.members[number], self.tls.as_ref())).await {
                Ok(Ok(stream)) => {
                    self.next.store(number, Ordering::Relaxed);
                    return Ok(TokioIo::new(stream));
                }
                Ok(Err(error)) => why = error,
                Err(_) => {
                    let said = format!("{}: no answer", self.members[number]);
                    why = io::Error::new(io::ErrorKind::TimedOut, said);
                }
            }
        }
        Err(why)
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<MaybeTls>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<MaybeTls>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().dial())
    }
}

/// Beginning of a client's side of HTTP/2, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Returns true if a member that can be reached refuses this client's certificate: with TLS 1.3 it says so only after the
/// client takes the connection for made. A client of etcd sees no more than connections that end.
pub async fn refuses_certificate(access: &Access) -> bool {
    for member in access.endpoints.iter().filter_map(|text| uri(text).ok()) {
        let Ok(Ok(stream)) = timeout(CONNECT_TIMEOUT, connected(&member, access.tls.as_ref())).await else {
            continue;
        };
        let MaybeTls::Tls(mut stream) = stream else { return false };
        let answers = async {
            stream.write_all(PREFACE).await?;
            stream.read_u8().await
        };
        if let Ok(answered) = timeout(CONNECT_TIMEOUT, answers).await {
            return answered.is_err();
        }
    }
    false
}

async fn connected(member: &Uri, tls: Option<&TlsFiles>) -> io::Result<MaybeTls> {
    let host = member.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, member.port_u16().unwrap_or(2379))).await?;
    stream.set_nodelay(true)?;
    if member.scheme_str() != Some("https") {
        return Ok(MaybeTls::Plain(stream));
    }
    let Some(files) = tls else {
        return Err(io::Error::other(format!("{member} needs certificates, and none are configured")));
    };
    if files.is_own {
        let credentials = credentials(files).map_err(io::Error::other)?;
        return Ok(MaybeTls::Tls(
            connect(stream, &credentials, &Expected::Role(Role::Etcd), Protocol::Http2).await?,
        ));
    }
    let configuration = configuration(files).map_err(io::Error::other)?;
    let ssl = configuration.into_ssl(host).map_err(io::Error::other)?;
    let mut tls = SslStream::new(ssl, stream).map_err(io::Error::other)?;
    Pin::new(&mut tls).connect().await.map_err(|error| io::Error::other(error_chain(&error)))?;
    Ok(MaybeTls::Tls(tls))
}

/// Reads the files of the cluster's own authority.
fn credentials(files: &TlsFiles) -> Result<Credentials, TrustError> {
    let key = KeyPair::from_pem(&TlsFiles::read(&files.key)?)?;
    let certificate = Certificate::from_pem(&TlsFiles::read(&files.certificate)?)?;
    Credentials::new(
        &key,
        certificate,
        bundle_from_pem(&TlsFiles::read(&files.authorities)?)?,
        Default::default(),
    )
}

/// Reads files of another authority, whose servers are known by their addresses.
fn configuration(files: &TlsFiles) -> Result<ConnectConfiguration, String> {
    let setup = |error: ErrorStack| format!("cannot set up TLS: {}", error_chain(&error));
    let mut builder = SslConnector::builder(SslMethod::tls_client()).map_err(setup)?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_2)).map_err(setup)?;
    let trusted = TlsFiles::read(&files.authorities).and_then(|pem| bundle_from_pem(&pem));
    let trusted =
        trusted.and_then(|trusted| crate::trust::store_of(&trusted)).map_err(|error| error.to_string())?;
    builder.set_cert_store(trusted);
    builder.set_certificate_chain_file(&files.certificate).map_err(failed(&files.certificate))?;
    let key = TlsFiles::read(&files.key).map_err(|error| error.to_string())?;
    // Without a passphrase OpenSSL would ask for one on the terminal.
    let key = PKey::private_key_from_pem_callback(key.as_bytes(), |_| Ok(0)).map_err(failed(&files.key))?;
    builder.set_private_key(&key).map_err(failed(&files.key))?;
    // etcd speaks HTTP/2 only.
    builder.set_alpn_protos(b"\x02h2").map_err(setup)?;
    builder.build().configure().map_err(setup)
}

fn failed(file: &Path) -> impl Fn(ErrorStack) -> String {
    move |error| format!("{}: {}", file.display(), error_chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_little_time_until_each_has_had_its_turn() {
        let access = Access { prefers_first: true, ..Access::anonymous(&["a".to_owned(), "b".to_owned()]) };
        let first = MemberTurn::first(&access);
        assert_eq!((first.number, first.probe_max(2)), (0, PROBE_MAX));
        let round = first.next().next();
        assert_eq!((first.next().probe_max(2), round.probe_max(2)), (PROBE_MAX, CONNECT_TIMEOUT));
        assert_eq!(round.answered(), MemberTurn { number: 2, failed: 0 });
    }
}
