//! HTTP without our own client: one request per connection, which is TCP, TLS or a Unix socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use openssl::nid::Nid;
use openssl::ssl::{SslConnector, SslFiletype, SslMethod, SslStream, SslVersion};
use schema::trust::{TrustDir, store_of};

const LIMIT: Duration = Duration::from_secs(5);
/// Beginning of an address that is a Unix socket.
const UNIX: &str = "unix:";

/// Sends a GET; returns status code and body. An address is `address:port` or `unix:path`.
pub fn http_get(address: &str, path: &str) -> Result<(u16, String)> {
    request(address, &get(address, path))
}

/// Sends a POST without a body; returns status code and body.
pub fn http_post(address: &str, path: &str) -> Result<(u16, String)> {
    let host = host(address);
    let head = format!("POST {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\n");
    request(address, &format!("{head}Content-Length: 0\r\n\r\n"))
}

/// Sends a POST with headers and a body; returns status code and body.
pub fn http_post_body(
    address: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<(u16, String)> {
    request(address, &post(address, path, headers, body))
}

/// Like [`http_get`], over TLS as somebody.
pub fn tls_get(address: &str, path: &str, pki: &TrustDir) -> Result<(u16, String)> {
    tls_request(address, &get(address, path), pki)
}

/// Like [`http_post_body`], over TLS as somebody.
pub fn tls_post_body(address: &str, path: &str, pki: &TrustDir, body: &str) -> Result<(u16, String)> {
    tls_request(address, &post(address, path, &[("Content-Type", "application/json")], body), pki)
}

/// Sends a GET over TLS as nobody, without a certificate; returns status code and body. `pki` names the authorities.
pub fn anonymous_get(address: &str, path: &str, pki: &TrustDir) -> Result<(u16, String)> {
    exchange(tls_connect_as_nobody(connected(address)?, pki)?, &get(address, path))
}

/// Posts JSON over TLS as nobody, without a certificate; returns status code and body. `pki` names the authorities.
pub fn anonymous_post(address: &str, path: &str, pki: &TrustDir, body: &str) -> Result<(u16, String)> {
    let text = post(address, path, &[("Content-Type", "application/json")], body);
    exchange(tls_connect_as_nobody(connected(address)?, pki)?, &text)
}

/// A TLS connection without a certificate that is kept for many requests.
#[derive(Debug)]
pub struct KeptConnection {
    stream: BufReader<SslStream<TcpStream>>,
    host: String,
}

impl KeptConnection {
    /// Connects. `pki` names the authorities.
    pub fn open(address: &str, pki: &TrustDir) -> Result<Self> {
        let stream = tls_connect_as_nobody(connected(address)?, pki)?;
        Ok(Self { stream: BufReader::new(stream), host: address.to_owned() })
    }

    /// Posts JSON; returns status code and body.
    pub fn post(&mut self, path: &str, body: &str) -> Result<(u16, String)> {
        let (host, length) = (&self.host, body.len());
        let head = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n");
        let text = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(text.as_bytes())?;
        let (mut code, mut length) = (None::<u16>, 0_usize);
        loop {
            let mut line = String::new();
            ensure!(self.stream.read_line(&mut line)? > 0, "the connection was closed");
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            match line.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse()?;
                }
                None => code = line.split_whitespace().nth(1).map(str::parse).transpose()?,
                Some(_) => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((code.context("no status code")?, String::from_utf8(body)?))
    }
}

/// Name of the authority that signed the certificate which a server shows to somebody.
pub fn served_issuer(address: &str, pki: &TrustDir) -> Result<String> {
    let stream = tls_connect(connected(address)?, pki).with_context(|| address.to_owned())?;
    let certificate = stream.ssl().peer_certificate().context("the server shows no certificate")?;
    let name = certificate.issuer_name().entries_by_nid(Nid::COMMONNAME).next();
    Ok(name.context("an issuer without a name")?.data().to_string()?)
}

/// Opens a TLS connection as somebody. The server must be of the same cluster, whatever its name and its address.
pub fn tls_connect(stream: TcpStream, pki: &TrustDir) -> Result<SslStream<TcpStream>> {
    handshake(stream, pki, true)
}

/// Like [`tls_connect`], without a certificate.
pub fn tls_connect_as_nobody(stream: TcpStream, pki: &TrustDir) -> Result<SslStream<TcpStream>> {
    handshake(stream, pki, false)
}

fn handshake(stream: TcpStream, pki: &TrustDir, is_known: bool) -> Result<SslStream<TcpStream>> {
    // The request follows the end of the handshake, which the other side does not acknowledge at once.
    stream.set_nodelay(true)?;
    let mut connector = SslConnector::builder(SslMethod::tls_client())?;
    connector.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    connector.set_cert_store(store_of(&pki.authorities()?)?);
    if is_known {
        connector.set_certificate_file(pki.certificate_file(), SslFiletype::PEM)?;
        connector.set_private_key_file(pki.key_file(), SslFiletype::PEM)?;
    }
    let mut configuration = connector.build().configure()?;
    configuration.set_verify_hostname(false);
    configuration.set_use_server_name_indication(false);
    Ok(configuration.connect("minik8s", stream)?)
}

/// Sends a GET through a Unix socket, such as Docker's; returns status code and body.
pub(crate) fn unix_get(socket: &Path, path: &str, limit: Duration) -> Result<(u16, String)> {
    unix_request(socket, &format!("GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n"), limit)
        .with_context(|| path.to_owned())
}

/// Value of the header `Host` for an address.
fn host(address: &str) -> &str {
    if address.starts_with(UNIX) { "localhost" } else { address }
}

fn get(address: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", host(address))
}

fn post(address: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let (host, length) = (host(address), body.len());
    format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Sends a complete request text; returns status code and body.
fn request(address: &str, text: &str) -> Result<(u16, String)> {
    match address.strip_prefix(UNIX) {
        Some(path) => unix_request(Path::new(path), text, LIMIT),
        None => exchange(connected(address)?, text).with_context(|| address.to_owned()),
    }
}

fn tls_request(address: &str, text: &str, pki: &TrustDir) -> Result<(u16, String)> {
    let stream = tls_connect(connected(address)?, pki).with_context(|| address.to_owned())?;
    exchange(stream, text).with_context(|| address.to_owned())
}

fn unix_request(socket: &Path, text: &str, limit: Duration) -> Result<(u16, String)> {
    let stream = UnixStream::connect(socket).with_context(|| format!("cannot connect to {socket:?}"))?;
    stream.set_read_timeout(Some(limit))?;
    exchange(stream, text).with_context(|| format!("{socket:?}"))
}

fn connected(address: &str) -> Result<TcpStream> {
    let socket: SocketAddr = address.parse().with_context(|| format!("{address} is not an address"))?;
    let stream =
        TcpStream::connect_timeout(&socket, LIMIT).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn exchange(mut stream: impl Read + Write, text: &str) -> Result<(u16, String)> {
    stream.write_all(text.as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).context("no answer")?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("it said {text:?}"))?;
    let code = head.split_whitespace().nth(1).context("no status code")?.parse()?;
    Ok((code, body.to_owned()))
}
