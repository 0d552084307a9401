//! Single netlink requests that rtnetlink lacks: one message with its attributes, and the answer.

use std::io;

use rtnetlink::sys::{Socket, SocketAddr};

/// Length of `nlmsghdr`, without and with the four bytes that generic netlink and netfilter append.
const HEADER: usize = 16;
const HEADERS: usize = 20;
/// `NLM_F_REQUEST`, without and with `NLM_F_ACK`.
pub(crate) const REQUEST: u16 = 1;
pub(crate) const REQUEST_ACK: u16 = 5;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// Mask of an attribute's kind without its flags.
const KIND: u16 = 0x3fff;

/// Sends a request and returns the first answer. The kernel answers synchronously, within microseconds.
pub(crate) fn send_request(
    protocol: isize,
    kind: u16,
    flags: u16,
    head: [u8; 4],
    attributes: &[u8],
) -> io::Result<Vec<u8>> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    let length = u32::try_from(HEADERS + attributes.len()).map_err(io::Error::other)?;
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    // Sequence number and sender are 0.
    request.resize(HEADER, 0);
    request.extend(head);
    request.extend(attributes);
    socket.send(&request, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    if half(&answer, 4) == Some(ERROR) {
        let number = answer.get(HEADER..HEADERS).and_then(|bytes| bytes.try_into().ok());
        // The kernel's error numbers are negative; zero is success.
        match number.map_or(0, i32::from_ne_bytes) {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error.saturating_neg())),
        }
    }
    Ok(answer)
}

/// Content of the first attribute of this kind in an answer.
pub(crate) fn find_in(answer: &[u8], kind: u16) -> Option<&[u8]> {
    find(answer.get(HEADERS..)?, kind)
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Iterates over the kinds and contents of attributes.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(half(bytes, 0)?), half(bytes, 2)? & KIND);
        // An attribute shorter than its own header would loop forever.
        let content = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(of, _)| *of == kind).map(|(_, content)| content)
}

pub(crate) fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + content.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
