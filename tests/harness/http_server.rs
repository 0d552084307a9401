//! A small HTTP server on loopback for stories: one request per connection, answered by a function that may also hang
//! up without an answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};

use anyhow::{Context, Result, ensure};

use crate::wait::secs;

/// Maximum size of a request; fetches send a few kilobytes.
const BODY_MAX: usize = 8 << 20;

/// A request.
#[derive(Debug)]
pub struct HttpRequest {
    pub method: String,
    /// Path as sent, not decoded.
    pub path: String,
    /// Query without its question mark; empty for none.
    pub query: String,
    /// Headers by their name in lowercase.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

/// The server. It ends when it is dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: String,
    ended: Arc<AtomicBool>,
    accept: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Serves on a free port. If `respond` returns `None`, the connection is closed without an answer.
    pub fn serve(
        respond: impl Fn(&HttpRequest) -> Option<HttpAnswer> + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?.to_string();
        let (ended, respond) = (Arc::new(AtomicBool::new(false)), Arc::new(respond));
        let seen = Arc::clone(&ended);
        let accept = spawn(move || {
            for stream in listener.incoming().flatten() {
                if seen.load(Ordering::SeqCst) {
                    return;
                }
                let respond = Arc::clone(&respond);
                // A broken connection concerns only its client.
                spawn(move || drop(answer(stream, &*respond)));
            }
        });
        Ok(Self { address, ended, accept: Some(accept) })
    }

    /// Address as `127.0.0.1:port`.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
    }
}

fn answer(mut stream: TcpStream, respond: &impl Fn(&HttpRequest) -> Option<HttpAnswer>) -> Result<()> {
    stream.set_read_timeout(Some(secs(10)))?;
    let request = HttpRequest::read(&mut stream)?;
    if let Some(HttpAnswer { status, headers, body }) = respond(&request) {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status} Status\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n");
        stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    }
    Ok(())
}

impl HttpRequest {
    /// Value of a header by its name in lowercase.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn read(stream: &mut (impl Read + Write)) -> Result<Self> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let method = words.next().context("no method")?.to_owned();
        let target = words.next().context("no target")?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Self {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        };
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            request.headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        if request.header("expect").is_some() {
            reader.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        request.body = if request.header("transfer-encoding") == Some("chunked") {
            read_chunks(&mut reader)?
        } else {
            let length = request.header("content-length").map_or(Ok(0), str::parse::<usize>)?;
            read_exactly(&mut reader, length)?
        };
        Ok(request)
    }
}

fn read_chunks(reader: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16).context("broken chunk")?;
        body.extend(read_exactly(reader, size)?);
        ensure!(body.len() <= BODY_MAX, "body too large");
        reader.read_line(&mut line)?;
        if size == 0 {
            return Ok(body);
        }
    }
}

fn read_exactly(reader: &mut impl Read, length: usize) -> Result<Vec<u8>> {
    ensure!(length <= BODY_MAX, "body too large");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(body)
}
