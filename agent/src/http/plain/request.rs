//! A plain request, a GET without a body, for one host: parsed, and written for an endpoint. Pure.
//!
//! Anything not plain beyond doubt is left to hyper. A plain request has no header that gives it a body, so it ends
//! where its head ends.

/// Head of a plain request.
#[derive(Debug)]
pub(super) struct PlainRequest<'b> {
    /// Path and query.
    target: &'b str,
    /// Value of the only Host header.
    pub(super) host: &'b str,
    headers: &'b [Header<'b>],
    /// Length of the head in bytes.
    pub(super) length: usize,
}

/// Client of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'a> {
    pub(crate) address: &'a [u8],
    /// Set if the client runs on the node: its claims about its own clients are trusted.
    pub(crate) is_node: bool,
}

impl<'b> PlainRequest<'b> {
    /// Parses the bytes that a client has sent so far.
    pub(super) fn parse(
        sent: &'b [u8],
        space: &'b mut [Header<'b>; HEADERS_MAX],
        client: Client<'_>,
    ) -> Head<Self> {
        let mut request = httparse::Request::new(space);
        let length = match request.parse(sent) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Head::Partial,
            Err(_) => return Head::Unusual,
        };
        let (Some("GET"), Some(target), Some(1)) = (request.method, request.path, request.version) else {
            return Head::Unusual;
        };
        let headers: &'b [Header<'b>] = request.headers;
        let mut hosts = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return Head::Unusual };
        let is_unusual = |header: &Header<'_>| fate(header, client) == HeaderAction::Unusual;
        match std::str::from_utf8(host.value) {
            Ok(host) if is_host(host) && is_target(target) && !headers.iter().any(is_unusual) => {
                Head::Plain(Self { target, host, headers, length })
            }
            _ => Head::Unusual,
        }
    }

    /// Returns the path without the query.
    pub(super) fn path(&self) -> &'b str {
        self.target.split_once('?').map_or(self.target, |(path, _)| path)
    }

    /// Appends the head for the endpoint to `out`, with `path` in place of the request's if given. Its headers are
    /// the same as `converge/gateway/headers.rs` gives other requests. False if that path is not plain.
    pub(super) fn write(&self, path: Option<&str>, client: Client<'_>, out: &mut Vec<u8>) -> bool {
        if !path.is_none_or(is_target) {
            return false;
        }
        out.extend_from_slice(b"GET ");
        out.extend_from_slice(path.unwrap_or(self.path()).as_bytes());
        out.extend_from_slice(&self.target.as_bytes()[self.path().len()..]);
        out.extend_from_slice(b" HTTP/1.1\r\n");
        put(out, "host", self.host.as_bytes());
        for header in self.headers.iter().filter(|header| fate(header, client) == HeaderAction::Pass) {
            put(out, header.name, header.value);
        }
        put(out, "x-forwarded-for", client.address);
        put(out, "x-real-ip", client.address);
        put(out, "x-forwarded-proto", b"http");
        put(out, "x-forwarded-host", self.host.as_bytes());
        out.extend_from_slice(b"\r\n");
        true
    }
}

fn fate(header: &Header<'_>, client: Client<'_>) -> HeaderAction {
    let is = |name: &str| header.name.eq_ignore_ascii_case(name);
    match header.name.len() {
        4 if is("host") => HeaderAction::Drop,
        6 if is("expect") => HeaderAction::Unusual,
        9 if is("x-real-ip") => HeaderAction::Drop,
        14 if is("content-length") => HeaderAction::Unusual,
        9 | 12.. if is_about_clients(header.name) => {
            // hyper's code path appends the client's address to the trusted ones.
            if client.is_node { HeaderAction::Unusual } else { HeaderAction::Drop }
        }
        _ => hop_by_hop(header),
    }
}

/// True for a header in which a proxy describes its client: `Forwarded`, `X-Real-IP` and `X-Forwarded-*`. Servers in
/// the manner of CGI read `_` as `-`, so it counts as one.
pub(crate) fn is_about_clients(name: &str) -> bool {
    let begins_with = |wanted: &str| {
        let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
        name.bytes().map(dashed).take(wanted.len()).eq(wanted.bytes())
    };
    match name.len() {
        9 => begins_with("forwarded") || begins_with("x-real-ip"),
        12.. => begins_with("x-forwarded-"),
        _ => false,
    }
}

/// True for a name or an IPv4 address, with or without a port.
fn is_host(host: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b".-:_".contains(&byte);
    !host.is_empty() && host.bytes().all(is_usual)
}

/// True for a path, with or without a query, of the characters that RFC 3986 allows there.
fn is_target(target: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/?".contains(&byte);
    target.starts_with('/') && target.bytes().all(is_usual)
}

// Common parts of the heads of plain requests and responses.

/// Maximum number of headers in a plain head; heads with more go to hyper.
pub(super) const HEADERS_MAX: usize = 64;
/// Space for httparse's headers.
pub(super) const NO_HEADERS: [Header<'static>; HEADERS_MAX] = [httparse::EMPTY_HEADER; HEADERS_MAX];

pub(super) use httparse::Header;

/// Result of parsing a head.
#[derive(Debug)]
pub(super) enum Head<T> {
    /// The head is incomplete.
    Partial,
    /// hyper must handle the message.
    Unusual,
    Plain(T),
}

/// Treatment of a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderAction {
    Pass,
    /// The header is replaced, or applies to this connection only.
    Drop,
    /// The header changes the meaning of the message or the way it must be passed on.
    Unusual,
}

/// Returns the treatment of hop-by-hop headers (the list is in `converge/gateway/headers.rs`).
pub(super) fn hop_by_hop(header: &Header<'_>) -> HeaderAction {
    let is = |name: &str| header.name.eq_ignore_ascii_case(name);
    // By length first, as most headers are none of these.
    match header.name.len() {
        2 if is("te") => HeaderAction::Unusual,
        7 if is("trailer") || is("upgrade") => HeaderAction::Unusual,
        10 if is("keep-alive") => HeaderAction::Drop,
        10 if is("connection") && header.value.eq_ignore_ascii_case(b"keep-alive") => HeaderAction::Drop,
        10 if is("connection") => HeaderAction::Unusual,
        16 if is("proxy-connection") => HeaderAction::Unusual,
        17 if is("transfer-encoding") => HeaderAction::Unusual,
        18 if is("proxy-authenticate") => HeaderAction::Unusual,
        19 if is("proxy-authorization") => HeaderAction::Unusual,
        _ => HeaderAction::Pass,
    }
}

/// Appends a header line.
pub(super) fn put(to: &mut Vec<u8>, name: &str, value: &[u8]) {
    to.extend_from_slice(name.as_bytes());
    to.extend_from_slice(b": ");
    to.extend_from_slice(value);
    to.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::NO_HEADERS;
    use super::*;

    /// Returns the head sent to an endpoint, or the reason why there is none.
    fn sent(head: &str, is_node: bool) -> Result<String, &'static str> {
        let client = Client { address: b"192.0.2.7", is_node };
        let mut space = NO_HEADERS;
        match PlainRequest::parse(head.as_bytes(), &mut space, client) {
            Head::Partial => Err("partial"),
            Head::Unusual => Err("unusual"),
            Head::Plain(request) => {
                let mut out = Vec::new();
                assert!(request.write(None, client, &mut out));
                Ok(String::from_utf8(out).unwrap())
            }
        }
    }

    fn with(lines: &str) -> String {
        format!("GET /a?b=c HTTP/1.1\r\nHost: shop.example\r\n{lines}\r\n")
    }

    const ADDED: &str = "x-forwarded-for: 192.0.2.7\r\nx-real-ip: 192.0.2.7\r\nx-forwarded-proto: http\r\n\
                         x-forwarded-host: shop.example\r\n";

    #[test]
    fn an_endpoint_gets_the_head_with_what_a_proxy_adds_and_without_what_holds_for_one_connection() {
        let lines = "Accept: */*\r\nConnection: Keep-Alive\r\nKeep-Alive: timeout=5\r\nX-Real-IP: 198.51.100.9\r\nCookie: a=b\r\n";
        let wanted =
            format!("GET /a?b=c HTTP/1.1\r\nhost: shop.example\r\nAccept: */*\r\nCookie: a=b\r\n{ADDED}\r\n");
        assert_eq!(sent(&with(lines), true).as_ref(), Ok(&wanted));
        let claims = format!(
            "{lines}X-Forwarded-For: 1.2.3.4\r\nx-forwarded-proto: https\r\nX-Forwarded-Host: evil\r\n\
             Forwarded: for=1.2.3.4\r\nX-Forwarded-Port: 443\r\nX_Forwarded_For: 1.2.3.4\r\nX_REAL_IP: 1.2.3.4\r\n"
        );
        assert_eq!(sent(&with(&claims), false).as_ref(), Ok(&wanted), "a pod is not believed");
        assert_eq!(sent(&with(&claims), true), Err("unusual"), "a proxy on the node is");
    }

    #[test]
    fn another_path_keeps_the_query() {
        let (head, mut space, mut out) = (with(""), NO_HEADERS, Vec::new());
        let client = Client { address: b"192.0.2.7", is_node: true };
        let Head::Plain(request) = PlainRequest::parse(head.as_bytes(), &mut space, client) else { panic!() };
        assert_eq!((request.path(), request.length), ("/a", head.len()));
        assert!(request.write(Some("/other"), client, &mut out));
        assert!(out.starts_with(b"GET /other?b=c HTTP/1.1\r\n"));
        assert!(!request.write(Some("/<other>"), client, &mut out), "hyper refuses it");
    }

    // Each was seen red without the line that detects it.
    #[test]
    fn whatever_may_have_a_body_or_another_meaning_is_not_plain() {
        let headers = [
            "Content-Length: 0",
            "content-length: 5",
            "Transfer-Encoding: chunked",
            "TE: trailers",
            "Trailer: x",
            "Upgrade: websocket",
            "Expect: 100-continue",
            "Connection: close",
            "Connection: keep-alive, x-secret",
            "Proxy-Connection: keep-alive",
            "Proxy-Authorization: Basic eA==",
            "Proxy-Authenticate: Basic",
            "Host: other.example",
            "Bad Name: x",
            " folded",
        ];
        for header in headers {
            assert_eq!(sent(&with(&format!("{header}\r\n")), true), Err("unusual"), "{header}");
        }
        let heads = [
            "POST / HTTP/1.1\r\nHost: a\r\n\r\n",
            "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
            "get / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: \r\n\r\n",
            "GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /#a HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /\u{e4} HTTP/1.1\r\nHost: a\r\n\r\n",
            "\u{1}GET",
        ];
        for head in heads {
            assert_eq!(sent(head, true), Err("unusual"), "{head}");
        }
        let many = "a: b\r\n".repeat(HEADERS_MAX);
        assert_eq!(sent(&with(&many), true), Err("unusual"));
    }

    #[test]
    fn a_head_is_partial_until_its_empty_line() {
        let whole = with("Accept: */*\r\n");
        for end in 0..whole.len() {
            assert_eq!(sent(&whole[..end], true), Err("partial"), "{end}");
        }
        assert!(
            sent(&format!("{whole}GET / HTTP/1.1\r\n"), true).is_ok(),
            "what follows is the next request"
        );
    }
}
