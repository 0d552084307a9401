//! Git over HTTP or HTTPS with a token, as a forge serves it: `git http-backend` behind a little
//! HTTP code, so that a story can revoke the token or redirect the client.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::ssl::SslAcceptor;

use crate::http_server::HttpRequest;
use crate::tls;
use crate::wait::secs;
use schema::control::lock;

/// A server of every repository below one folder.
#[derive(Debug)]
pub struct GitHttp {
    port: u16,
    shared: Arc<Shared>,
    accept: Option<JoinHandle<()>>,
}

struct Shared {
    root: PathBuf,
    token: Mutex<String>,
    ended: AtomicBool,
    polls: AtomicUsize,
    tls: Option<SslAcceptor>,
    redirect: Mutex<Option<String>>,
    /// Received `Authorization` headers.
    shown: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("root", &self.root).finish_non_exhaustive()
    }
}

impl GitHttp {
    /// Serves the repositories below `root` on a loopback port to clients with `token` as password.
    pub fn serve(root: &Path, port: u16, token: &str) -> Result<Self> {
        Self::start(root, port, token, None)
    }

    /// Like `serve`, over TLS, with a certificate for `localhost` and 127.0.0.1 from the CA at
    /// [`GitHttp::ca_file`].
    pub fn serve_tls(root: &Path, port: u16, token: &str) -> Result<Self> {
        let acceptor = tls::acceptor(&ca_file(root))?;
        Self::start(root, port, token, Some(acceptor))
    }

    fn start(root: &Path, port: u16, token: &str, tls: Option<SslAcceptor>) -> Result<Self> {
        let listener =
            TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("port {port} is taken"))?;
        let shared = Arc::new(Shared {
            root: root.to_owned(),
            token: Mutex::new(token.to_owned()),
            ended: AtomicBool::new(false),
            polls: AtomicUsize::new(0),
            tls,
            redirect: Mutex::default(),
            shown: Mutex::default(),
        });
        let seen = Arc::clone(&shared);
        let accept = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if seen.ended.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&seen);
                if let Ok(stream) = stream {
                    std::thread::spawn(move || answer(&shared, stream));
                }
            }
        });
        Ok(Self { port, shared, accept: Some(accept) })
    }

    /// URL of a repository below the root.
    pub fn url(&self, repository: &str) -> String {
        let scheme = if self.shared.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}/{repository}", self.port)
    }

    /// Certificate of the CA that signed the server's.
    pub fn ca_file(&self) -> PathBuf {
        ca_file(&self.shared.root)
    }

    /// Redirects every request to `base` from now on; `None` ends that.
    pub fn redirect(&self, base: Option<&str>) {
        *lock(&self.shared.redirect) = base.map(str::to_owned);
    }

    /// Number of requests with a login.
    pub fn logins(&self) -> usize {
        lock(&self.shared.shown).len()
    }

    /// Number of valid requests for the list of branches.
    pub fn polls(&self) -> usize {
        self.shared.polls.load(Ordering::SeqCst)
    }

    /// Replaces the valid token.
    pub fn set_token(&self, token: &str) {
        token.clone_into(&mut lock(&self.shared.token));
    }
}

impl Drop for GitHttp {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
    }
}

fn ca_file(root: &Path) -> PathBuf {
    root.join("ca.pem")
}

/// Answers one request; errors of a broken one concern only its client.
fn answer(shared: &Shared, stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(secs(10)));
    match &shared.tls {
        None => answer_on(shared, stream),
        Some(tls) => {
            // A client that rejects the certificate is gone.
            if let Ok(mut stream) = tls.accept(stream) {
                answer_on(shared, &mut stream);
                let _ = stream.shutdown();
            }
        }
    }
}

fn answer_on(shared: &Shared, mut stream: impl Read + Write) {
    let response = match HttpRequest::read(&mut stream).and_then(|request| respond(shared, &request)) {
        Ok(response) => response,
        Err(error) => format!("HTTP/1.1 500 Error\r\nConnection: close\r\n\r\n{error:#}").into_bytes(),
    };
    let _ = stream.write_all(&response);
}

fn respond(shared: &Shared, request: &HttpRequest) -> Result<Vec<u8>> {
    if let Some(login) = request.header("authorization") {
        lock(&shared.shown).push(login.to_owned());
    }
    let redirect = lock(&shared.redirect).clone();
    if let Some(base) = redirect {
        let to = format!("{base}{}?{}", request.path, request.query);
        let head = format!("HTTP/1.1 301 Moved Permanently\r\nLocation: {to}\r\n");
        return Ok(format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n").into_bytes());
    }
    let token = lock(&shared.token).clone();
    if password(request).as_deref() != Some(token.as_str()) {
        let head = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"git\"\r\n";
        return Ok(format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n").into_bytes());
    }
    if request.path.ends_with("/info/refs") {
        shared.polls.fetch_add(1, Ordering::SeqCst);
    }
    let output = backend(&shared.root, request)?;
    let split = output.windows(4).position(|four| four == b"\r\n\r\n").context("no CGI header")?;
    let (head, body) = (String::from_utf8_lossy(&output[..split]), &output[split + 4..]);
    let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
    let mut response = format!("HTTP/1.1 {status}\r\n");
    for line in head.lines().filter(|line| !line.starts_with("Status: ")) {
        response += &format!("{line}\r\n");
    }
    response += &format!("Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let mut response = response.into_bytes();
    response.extend(body);
    Ok(response)
}

/// Password of basic authentication, or a bearer token.
fn password(request: &HttpRequest) -> Option<String> {
    let value = request.header("authorization")?;
    if let Some(token) = value.strip_prefix("Bearer ") {
        return Some(token.to_owned());
    }
    let pair = String::from_utf8(STANDARD.decode(value.strip_prefix("Basic ")?).ok()?).ok()?;
    pair.split_once(':').map(|(_, password)| password.to_owned())
}

fn backend(root: &Path, request: &HttpRequest) -> Result<Vec<u8>> {
    let mut command = Command::new("git");
    command
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", &request.path)
        .env("QUERY_STRING", &request.query)
        .env("REQUEST_METHOD", &request.method)
        .env("CONTENT_LENGTH", request.body.len().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    for (name, variable) in [
        ("content-type", "CONTENT_TYPE"),
        ("content-encoding", "HTTP_CONTENT_ENCODING"),
        ("git-protocol", "HTTP_GIT_PROTOCOL"),
    ] {
        if let Some(value) = request.header(name) {
            command.env(variable, value);
        }
    }
    let mut child = command.spawn().context("git http-backend does not start")?;
    // Both bodies are small, so writing before reading can't block.
    child.stdin.take().context("no stdin")?.write_all(&request.body)?;
    Ok(child.wait_with_output()?.stdout)
}
