//! `minik8s ui`: a proxy on loopback, through which a browser reaches the page without a certificate of its own.
//!
//! Reads the key in the URL or in a cookie; passes everything else to the reconciler as it is.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::uri::Uri;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Version, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::rand::rand_bytes;
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::error::CliError;
use super::output::{note, write_lines};
use crate::args::UiArgs;
use crate::listener::{self, Bounds, Listening};
use crate::outgoing;
use crate::trust::admits_or_removes;
use crate::view::VersionView;

/// Bytes of the key.
const KEY_BYTES: usize = 32;
/// Limits on the browser's connections.
const BOUNDS: Bounds = Bounds {
    connections: 256,
    per_address: 256,
    head_bytes: 64 * 1024,
    head_wait: Duration::from_secs(60),
    keeps_alive: true,
    lasts: None,
    // Open pages never end by themselves.
    drain: Duration::from_millis(200),
};
/// Headers of one connection only (RFC 9110, 7.6.1).
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

pub(super) async fn run(args: &UiArgs) -> Result<(), CliError> {
    if !args.listen.ip().is_loopback() {
        let why = "the page would be there for the whole network; give a loopback address";
        return Err(CliError::Usage(format!("--listen {}: {why}", args.listen)));
    }
    let client = Client::new(args.server.given())?;
    let _: VersionView = client.get(&["version"], &[]).await?;
    let failed = |error: std::io::Error| {
        CliError::NotReached(format!("cannot listen on {}: {error}; choose another --listen", args.listen))
    };
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let key = PageKey::new(address.port()).map_err(|error| CliError::NotReached(error.to_string()))?;
    write_lines(&format!("{}\n", outgoing::url(address, &key.entrance())))?;
    note("open this in a browser of this machine; Ctrl-C ends it");

    let router = Router::new().fallback(pass).with_state(Arc::new(Proxy { client, key }));
    let shutdown = CancellationToken::new();
    let listening = Listening::Tcp(listener, None);
    let mut serving = pin!(listener::serve(listening, BOUNDS, router, shutdown.clone()));
    tokio::select! {
        // Neither branch drops the server before its end.
        _ = serving.as_mut() => return Ok(()),
        _ = tokio::signal::ctrl_c() => shutdown.cancel(),
    }
    let _ = serving.await;
    Ok(())
}

struct Proxy {
    client: Client,
    key: PageKey,
}

/// Key that keeps out other users and other pages, which reach loopback as well.
struct PageKey {
    key: String,
    /// Name of the cookie. It has the port, because browsers send cookies to all ports of a host.
    cookie: String,
}

/// Decision on a request.
#[derive(Debug, PartialEq, Eq)]
enum Access {
    /// The key is in the URL: the browser gets the cookie.
    SetCookie,
    Pass,
    Refuse,
    /// The key is right, but only commands may request this: the socket would allow a browser too much.
    CommandsOnly,
}

impl PageKey {
    fn new(port: u16) -> Result<Self, openssl::error::ErrorStack> {
        let mut key = [0; KEY_BYTES];
        rand_bytes(&mut key)?;
        Ok(Self { key: URL_SAFE_NO_PAD.encode(key), cookie: format!("minik8s-ui-{port}") })
    }

    /// Path and query by which a browser gets in.
    fn entrance(&self) -> String {
        format!("/?key={}", self.key)
    }

    fn is_key(&self, shown: &[u8]) -> bool {
        self.key.as_bytes().ct_eq(shown).into()
    }

    fn access(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Access {
        let in_url = uri.query().and_then(|query| query.strip_prefix("key="));
        if method == Method::GET && uri.path() == "/" && in_url.is_some_and(|key| self.is_key(key.as_bytes()))
        {
            return Access::SetCookie;
        }
        let cookies =
            headers.get_all(header::COOKIE).iter().flat_map(|line| line.as_bytes().split(|c| *c == b';'));
        let mut named = cookies.filter_map(|cookie| {
            cookie.trim_ascii().strip_prefix(self.cookie.as_bytes())?.strip_prefix(b"=")
        });
        match named.any(|key| self.is_key(key)) {
            true if admits_or_removes(uri.path()) => Access::CommandsOnly,
            true => Access::Pass,
            false => Access::Refuse,
        }
    }

    /// Answer that gives the cookie, and leads to the page without the key in its URL.
    fn set_cookie(&self) -> Response {
        let cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/", self.cookie, self.key);
        let headers = [
            (header::SET_COOKIE, cookie.as_str()),
            (header::LOCATION, "/"),
            (header::CACHE_CONTROL, "no-store"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        (StatusCode::SEE_OTHER, headers).into_response()
    }
}

async fn pass(State(proxy): State<Arc<Proxy>>, request: Request) -> Response {
    match proxy.key.access(request.method(), request.uri(), request.headers()) {
        Access::SetCookie => return proxy.key.set_cookie(),
        Access::Refuse => {
            return (StatusCode::FORBIDDEN, "open the URL that 'minik8s ui' has printed\n").into_response();
        }
        Access::CommandsOnly => {
            let why = "only commands may admit and remove others, and rotate the authority\n";
            return (StatusCode::FORBIDDEN, why).into_response();
        }
        Access::Pass => {}
    }
    match proxy.client.forward(outward(request)).await {
        Ok(answer) => {
            let (mut parts, body) = answer.into_parts();
            drop_hop_by_hop(&mut parts.headers);
            Response::from_parts(parts, Body::new(body))
        }
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response(),
    }
}

/// Request for the reconciler: all but what concerns this connection and this proxy.
fn outward(request: Request) -> hyper::Request<reqwest::Body> {
    let (mut parts, body) = request.into_parts();
    drop_hop_by_hop(&mut parts.headers);
    // The key, and cookies of other servers on this host.
    parts.headers.remove(header::COOKIE);
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    let body = match body.is_end_stream() {
        true => reqwest::Body::default(),
        false => reqwest::Body::wrap_stream(body.into_data_stream()),
    };
    hyper::Request::from_parts(parts, body)
}

fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let lists = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let listed: Vec<HeaderName> =
        lists.flat_map(|names| names.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in listed {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    fn access(page: &PageKey, method: &Method, uri: &str, cookie: Option<&str>) -> Access {
        let mut headers = HeaderMap::new();
        if let Some(cookie) = cookie {
            headers.insert(header::COOKIE, cookie.parse().unwrap());
        }
        page.access(method, &uri.parse().unwrap(), &headers)
    }

    #[test]
    fn only_a_browser_with_the_key_gets_in() {
        let page = PageKey::new(8080).unwrap();
        let (key, cookie) = (&page.key, format!("minik8s-ui-8080={}", page.key));
        assert_eq!(access(&page, &Method::GET, &page.entrance(), None), Access::SetCookie);
        assert_eq!(access(&page, &Method::POST, &page.entrance(), None), Access::Refuse);
        assert_eq!(access(&page, &Method::GET, "/?key=", None), Access::Refuse);
        assert_eq!(access(&page, &Method::GET, &format!("/?key={key}x"), None), Access::Refuse);
        assert_eq!(access(&page, &Method::GET, "/pods", None), Access::Refuse);
        assert_eq!(access(&page, &Method::POST, "/v1/sync", Some(&cookie)), Access::Pass);
        assert_eq!(access(&page, &Method::GET, "/", Some(&format!("a=b; {cookie}; c=d"))), Access::Pass);
        for wrong in
            [format!("minik8s-ui-8081={key}"), format!("{cookie}x"), format!("x{cookie}"), "a".to_owned()]
        {
            assert_eq!(access(&page, &Method::GET, "/", Some(&wrong)), Access::Refuse, "{wrong}");
        }
        assert_ne!(PageKey::new(8080).unwrap().key, page.key);
        for local in ["/v1/tokens", "/v1/users?a=b", "/v1/trust/rotate", "/v1/identities/user-ada/remove"] {
            assert_eq!(access(&page, &Method::POST, local, Some(&cookie)), Access::CommandsOnly, "{local}");
            assert_eq!(access(&page, &Method::POST, local, None), Access::Refuse, "{local}");
        }
    }

    #[test]
    fn headers_of_one_connection_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Own"),
            ("x-own", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("host", "127.0.0.1:8080"),
            ("origin", "http://127.0.0.1:8080"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        drop_hop_by_hop(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["host", "origin"]);
    }

    /// Address of a proxy before a server that repeats a request's head and then streams its body, and a browser's cookie.
    async fn proxied() -> (std::net::SocketAddr, String) {
        let repeat = |request: Request| async move {
            let headers = request.headers();
            let text = |name: HeaderName| headers.get(name).map_or("-", |value| value.to_str().unwrap());
            let head = format!(
                "{} {} host={} cookie={} length={}\n",
                request.method(),
                request.uri(),
                text(header::HOST),
                text(header::COOKIE),
                text(header::CONTENT_LENGTH)
            );
            let head = futures::stream::iter([Ok::<axum::body::Bytes, axum::Error>(head.into())]);
            Body::from_stream(head.chain(request.into_body().into_data_stream()))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(repeat)).await });
        let client = Client::new(Some(&server.to_string())).unwrap();
        let page = PageKey::new(1).unwrap();
        let cookie = format!("{}={}", page.cookie, page.key);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(pass).with_state(Arc::new(Proxy { client, key: page }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (address, cookie)
    }

    async fn read_until(stream: &mut TcpStream, end: &str) -> String {
        let mut text = String::new();
        while !text.contains(end) {
            let mut part = [0; 1024];
            let bytes = stream.read(&mut part).await.unwrap();
            assert!(bytes > 0, "it ended after {text:?}");
            text.push_str(std::str::from_utf8(&part[..bytes]).unwrap());
        }
        text
    }

    #[tokio::test]
    async fn a_request_with_the_cookie_is_passed_on_and_both_bodies_are_streamed() {
        let (address, cookie) = proxied().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "PATCH /v1/x?y=1 HTTP/1.1\r\nhost: localhost:7\r\ncookie: {cookie}\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = read_until(&mut stream, "length=-\n").await;
        assert!(answer.contains("PATCH /v1/x?y=1 host=localhost:7 cookie=- length=-"), "{answer}");
        // The answer goes on before the request has ended.
        for word in ["first", "second"] {
            stream.write_all(format!("{:x}\r\n{word}\r\n", word.len()).as_bytes()).await.unwrap();
            read_until(&mut stream, word).await;
        }
    }

    #[tokio::test]
    async fn a_length_stays_known_and_a_stranger_is_refused() {
        let (address, cookie) = proxied().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head =
            format!("POST / HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\ncontent-length: 3\r\n\r\nabc");
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = read_until(&mut stream, "abc").await;
        assert!(answer.contains("POST / host=localhost cookie=- length=3"), "{answer}");
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /v1/pods HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
}
