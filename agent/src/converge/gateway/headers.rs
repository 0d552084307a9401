//! Header rewriting of a proxy, for requests and responses. Pure.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};

use crate::http::plain::is_about_clients;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Headers that apply to one connection only, besides those that `Connection` names (RFC 9110 7.6.1 and the older
/// RFC 2616 13.5.1). `Trailer` is not among them, as trailers are passed on.
pub(super) const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Client of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client<'a> {
    /// Address of the client, as a header value.
    pub(super) address: &'a HeaderValue,
    /// Set if the client runs on the node itself: its claims about its own clients are trusted.
    pub(super) is_node: bool,
}

/// Returns the headers of our request to an endpoint, made from the client's. `host` is the host that the client
/// requested.
pub(super) fn to_endpoint(headers: &HeaderMap, host: &HeaderValue, client: &Client<'_>) -> HeaderMap {
    let chunked = headers.contains_key(TRANSFER_ENCODING);
    let named = named_by_connection(headers);
    let is_ours = |name: &HeaderName| {
        // Only a client on the node is trusted about its clients.
        (!client.is_node && is_about_clients(name.as_str()))
            // hyper asked the client to continue before the endpoint reads this.
            || [HOST, EXPECT, FORWARDED_FOR, REAL_IP].contains(name)
            || (chunked && name == CONTENT_LENGTH)
    };
    let mut sent = HeaderMap::with_capacity(headers.len() + ADDED);
    sent.insert(HOST, host.clone());
    for (name, value) in headers {
        if !is_ours(name) && !HOP_BY_HOP.contains(name) && !named.contains(name) {
            sent.append(name.clone(), value.clone());
        }
    }
    if chunked {
        // hyper sends the body of a GET only if this header announces one.
        sent.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers")) {
        sent.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade(headers) {
        sent.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        sent.insert(UPGRADE, protocol);
    }
    let believed =
        headers.get_all(FORWARDED_FOR).iter().filter(|_| client.is_node && !named.contains(&FORWARDED_FOR));
    forwarded(&mut sent, host, (believed, client.address));
    sent
}

/// Maximum number of headers that we add.
const ADDED: usize = 5;

/// Appends the client's address to those from a proxy on the node, which may terminate TLS. Its other forwarding
/// headers stay.
fn forwarded<'a>(
    headers: &mut HeaderMap,
    host: &HeaderValue,
    (believed, client): (impl Iterator<Item = &'a HeaderValue>, &HeaderValue),
) {
    let mut chain = Vec::new();
    for value in believed {
        chain.extend_from_slice(value.as_bytes());
        chain.extend_from_slice(b", ");
    }
    if chain.is_empty() {
        headers.insert(FORWARDED_FOR, client.clone());
    } else {
        chain.extend_from_slice(client.as_bytes());
        if let Ok(chain) = HeaderValue::from_maybe_shared(Bytes::from(chain)) {
            headers.insert(FORWARDED_FOR, chain);
        }
    }
    headers.insert(REAL_IP, client.clone());
    headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    headers.entry(FORWARDED_HOST).or_insert_with(|| host.clone());
}

/// Rewrites the headers of an endpoint's response for the client. A response that switches protocols keeps its
/// upgrade headers.
pub(super) fn to_client(headers: &mut HeaderMap, switches: bool) {
    let protocol = headers.get(UPGRADE).filter(|_| switches).cloned();
    remove_hop_by_hop(headers);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// Returns the protocol to which the client wants to switch. HTTP/2 in clear text is not offered: through such a
/// connection requests would pass that no route has checked.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let asked = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let to_http2 = tokens(headers, &UPGRADE).any(|token| token.eq_ignore_ascii_case("h2c"));
    (asked && !to_http2).then(|| protocol.clone())
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in named_by_connection(headers).iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Returns the headers that apply to this connection only, as `Connection` names them.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    tokens(headers, &CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        // The client must not remove the length of the body or the host.
        .filter(|name| *name != CONTENT_LENGTH && *name != HOST)
        .collect()
}

/// Returns the comma-separated words of all headers with that name.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn sent(lines: &[(&str, &str)]) -> Vec<String> {
        sent_by(true, lines)
    }

    fn sent_by(is_node: bool, lines: &[(&str, &str)]) -> Vec<String> {
        let client = Client { address: &HeaderValue::from_static("192.0.2.7"), is_node };
        let headers = to_endpoint(&headers(lines), &HeaderValue::from_static("shop.example"), &client);
        let mut text: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        text.sort();
        text
    }

    const OURS: [&str; 5] = [
        "host: shop.example",
        "x-forwarded-for: 192.0.2.7",
        "x-forwarded-host: shop.example",
        "x-forwarded-proto: http",
        "x-real-ip: 192.0.2.7",
    ];

    // Seen red without `named` and with one name less in HOP_BY_HOP.
    #[test]
    fn what_holds_for_one_connection_only_is_not_passed_on() {
        let lines = [
            ("connection", "close, X-Secret"),
            ("connection", "X-Other, X-Forwarded-For, Host"),
            ("x-secret", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic eA=="),
            ("te", "gzip"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("host", "other.example"),
        ];
        assert_eq!(sent(&lines), OURS);
    }

    // Seen red with `insert` of the client's address alone, and of proto and host always.
    #[test]
    fn each_proxy_adds_what_it_sees() {
        let lines = [
            ("x-forwarded-for", "198.51.100.1"),
            ("x-forwarded-for", "198.51.100.2"),
            ("x-forwarded-proto", "https"),
            ("x-real-ip", "198.51.100.9"),
        ];
        let wanted = [
            "host: shop.example",
            "x-forwarded-for: 198.51.100.1, 198.51.100.2, 192.0.2.7",
            "x-forwarded-host: shop.example",
            "x-forwarded-proto: https",
            "x-real-ip: 192.0.2.7",
        ];
        assert_eq!(sent(&lines), wanted);
    }

    // Seen red without the test for `is_node`, with three names instead of `is_about_clients`, and without its `_`.
    #[test]
    fn what_a_pod_says_of_its_own_clients_is_not_believed() {
        let lines = [
            ("x-forwarded-for", "198.51.100.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-port", "443"),
            ("x-forwarded-prefix", "/admin"),
            ("forwarded", "for=198.51.100.1;proto=https;host=evil.example"),
            ("x_forwarded_for", "198.51.100.1"),
            ("x-real_ip", "198.51.100.1"),
        ];
        assert_eq!(sent_by(false, &lines), OURS);
        let kept = sent(&[("forwarded", "for=198.51.100.1"), ("x-forwarded-port", "443")]);
        assert!(kept.iter().any(|line| line == "forwarded: for=198.51.100.1"), "{kept:?}");
        assert!(kept.iter().any(|line| line == "x-forwarded-port: 443"), "{kept:?}");
    }

    // Seen red without the test for h2c.
    #[test]
    fn a_switch_of_protocols_is_passed_on_but_none_to_http2() {
        let ask = |protocol| sent(&[("connection", "keep-alive, Upgrade"), ("upgrade", protocol)]);
        assert!(ask("websocket").contains(&"upgrade: websocket".to_owned()));
        assert!(ask("websocket").contains(&"connection: upgrade".to_owned()));
        assert_eq!(ask("h2c"), OURS);
        assert_eq!(sent(&[("upgrade", "websocket")]), OURS, "it was not asked for");
    }

    #[test]
    fn a_chunked_body_stays_one_and_trailers_are_asked_for() {
        let sent = sent(&[("transfer-encoding", "chunked"), ("content-length", "5"), ("te", "trailers")]);
        assert!(sent.contains(&"transfer-encoding: chunked".to_owned()), "{sent:?}");
        assert!(sent.contains(&"te: trailers".to_owned()), "{sent:?}");
        assert!(!sent.iter().any(|line| line.starts_with("content-length")), "{sent:?}");
    }

    #[test]
    fn a_response_loses_the_same() {
        let lines = [("connection", "x-hop"), ("x-hop", "1"), ("keep-alive", "timeout=5"), ("etag", "e")];
        let mut plain = headers(&lines);
        to_client(&mut plain, false);
        assert_eq!(plain, headers(&[("etag", "e")]));
        let mut switching = headers(&[("connection", "Upgrade"), ("upgrade", "websocket")]);
        to_client(&mut switching, true);
        assert_eq!(switching, headers(&[("connection", "upgrade"), ("upgrade", "websocket")]));
    }
}
