//! Plain HTTP without our own client: one request per TCP connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

const LIMIT: Duration = Duration::from_secs(5);

/// Sends a GET; returns status code and body.
pub fn http_get(address: &str, path: &str) -> Result<(u16, String)> {
    request(address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n"))
}

/// Sends a POST without a body; returns status code and body.
pub fn http_post(address: &str, path: &str) -> Result<(u16, String)> {
    let head = format!("POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    request(address, &format!("{head}Content-Length: 0\r\n\r\n"))
}

/// Sends a POST with headers and a body; returns status code and body.
pub fn http_post_body(
    address: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<(u16, String)> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}");
    request(address, &format!("{head}Content-Length: {length}\r\n\r\n{body}"))
}

/// Sends a GET through a Unix socket, such as Docker's; returns status code and body.
pub(crate) fn unix_get(socket: &Path, path: &str, limit: Duration) -> Result<(u16, String)> {
    let stream = UnixStream::connect(socket).with_context(|| format!("cannot connect to {socket:?}"))?;
    stream.set_read_timeout(Some(limit))?;
    exchange(stream, &format!("GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n"))
        .with_context(|| format!("{socket:?} {path}"))
}

/// Sends a complete request text; returns status code and body.
pub(crate) fn request(address: &str, head: &str) -> Result<(u16, String)> {
    let socket: SocketAddr = address.parse().with_context(|| format!("{address} is not an address"))?;
    let stream =
        TcpStream::connect_timeout(&socket, LIMIT).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(LIMIT))?;
    exchange(stream, head).with_context(|| address.to_owned())
}

fn exchange(mut stream: impl Read + Write, head: &str) -> Result<(u16, String)> {
    stream.write_all(head.as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).context("no answer")?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("it said {text:?}"))?;
    let code = head.split_whitespace().nth(1).context("no status code")?.parse()?;
    Ok((code, body.to_owned()))
}
