//! Common parts of the heads of plain requests and responses.

/// Maximum number of headers in a plain head; heads with more go to hyper, which accepts 100.
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
pub(super) enum Fate {
    Pass,
    /// The header is replaced, or applies to this connection only.
    Drop,
    /// The header changes the meaning of the message or the way it must be passed on.
    Unusual,
}

/// Returns the treatment of hop-by-hop headers (the list is in `converge/gateway/headers.rs`).
pub(super) fn hop_by_hop(header: &Header<'_>) -> Fate {
    let is = |name: &str| header.name.eq_ignore_ascii_case(name);
    // By length first, as most headers are none of these.
    match header.name.len() {
        2 if is("te") => Fate::Unusual,
        7 if is("trailer") || is("upgrade") => Fate::Unusual,
        10 if is("keep-alive") => Fate::Drop,
        10 if is("connection") && header.value.eq_ignore_ascii_case(b"keep-alive") => Fate::Drop,
        10 if is("connection") => Fate::Unusual,
        16 if is("proxy-connection") => Fate::Unusual,
        17 if is("transfer-encoding") => Fate::Unusual,
        18 if is("proxy-authenticate") => Fate::Unusual,
        19 if is("proxy-authorization") => Fate::Unusual,
        _ => Fate::Pass,
    }
}

/// Appends a header line.
pub(super) fn put(to: &mut Vec<u8>, name: &str, value: &[u8]) {
    to.extend_from_slice(name.as_bytes());
    to.extend_from_slice(b": ");
    to.extend_from_slice(value);
    to.extend_from_slice(b"\r\n");
}
