//! What the heads of plain requests and plain answers have in common.

/// Headers that a plain head may have; heads with more go to hyper, which takes 100.
pub(super) const HEADERS_MAX: usize = 64;
/// Where httparse puts the headers of a head.
pub(super) const NO_HEADERS: [Header<'static>; HEADERS_MAX] = [httparse::EMPTY_HEADER; HEADERS_MAX];

pub(super) use httparse::Header;

/// What has come so far.
#[derive(Debug)]
pub(super) enum Head<T> {
    /// The head is not whole.
    Partial,
    /// For hyper.
    Unusual,
    Plain(T),
}

/// What becomes of a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Pass,
    /// It is replaced, or holds for this connection only.
    Drop,
    /// It changes what the message is, or how it must be passed on.
    Unusual,
}

/// What becomes of a header that holds for one connection only (`converge/gateway/headers.rs` has the list).
pub(super) fn hop_by_hop(header: &Header<'_>) -> Fate {
    let is = |name: &str| header.name.eq_ignore_ascii_case(name);
    // By length, as most headers are none of these.
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

/// Adds a line of a head.
pub(super) fn put(to: &mut Vec<u8>, name: &str, value: &[u8]) {
    to.extend_from_slice(name.as_bytes());
    to.extend_from_slice(b": ");
    to.extend_from_slice(value);
    to.extend_from_slice(b"\r\n");
}
