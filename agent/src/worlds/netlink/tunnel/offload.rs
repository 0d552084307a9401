//! Who computes the checksums of what leaves by a link: ethtool's family of generic netlink.
//!
//! A computer or a card that computes none for what is within a tunnel, though it says so, loses all TCP
//! between nodes (flannel#1279, kubernetes#88986). The kernel is always right, at three quarters of the
//! tunnel's throughput (12.5 to 3.1 Gbit/s, iperf3 between two namespaces, Linux 6.18).

use std::io;

use nix::errno::Errno;
use rtnetlink::sys::protocols::NETLINK_GENERIC;
use rtnetlink::sys::{Socket, SocketAddr};

use crate::worlds::netlink::namespace::NetworkNamespace;

/// What `ethtool -K LINK tx-checksum-ip-generic off` names.
const FEATURE: &str = "tx-checksum-ip-generic";

/// Length of `nlmsghdr`, and of it with `genlmsghdr`.
const HEADER: usize = 16;
const HEADERS: usize = 20;
/// `NLM_F_REQUEST`, and with `NLM_F_ACK`.
const REQUEST: u16 = 1;
const REQUEST_ACK: u16 = 5;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLA_F_NESTED`, and what is left of a kind without flags.
const NESTED: u16 = 0x8000;
const KIND: u16 = 0x3fff;

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME` (linux/genetlink.h).
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// `ETHTOOL_MSG_FEATURES_GET`, `_SET` and `ETHTOOL_A_…` (linux/ethtool_netlink.h).
const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
const FEATURES_HEADER: u16 = 1;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const HEADER_NAME: u16 = 2;
const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// The link leaves checksums to the hardware, or to nobody. False where the kernel can't be asked: before
/// 5.6 it has no such family, before 5.7 the family knows nothing of features.
pub(super) fn is_on(home: &NetworkNamespace, link: &str) -> io::Result<bool> {
    let request = nested(FEATURES_HEADER, &text(HEADER_NAME, link));
    let Some(answer) = home.run(|| ethtool(FEATURES_GET, REQUEST, &request))? else { return Ok(false) };
    let active = find(answer.get(HEADERS..).unwrap_or_default(), FEATURES_ACTIVE);
    let bits = active.and_then(|active| find(active, BITS)).unwrap_or_default();
    // Those that are on are listed.
    let name = |(kind, bit)| if kind == BIT { find(bit, BIT_NAME) } else { None };
    let is_it = |name: &[u8]| name.strip_suffix(&[0]) == Some(FEATURE.as_bytes());
    Ok(attributes(bits).filter_map(name).any(is_it))
}

/// The kernel leaves the checksums of the link to others, or computes them, if it does what it is told.
pub(super) fn switch(home: &NetworkNamespace, link: &str, on: bool) -> io::Result<()> {
    let value = if on { attribute(BIT_VALUE, &[]) } else { Vec::new() };
    let bit = [text(BIT_NAME, FEATURE), value].concat();
    let wanted = nested(FEATURES_WANTED, &nested(BITS, &nested(BIT, &bit)));
    let request = [nested(FEATURES_HEADER, &text(HEADER_NAME, link)), wanted].concat();
    home.run(|| ethtool(FEATURES_SET, REQUEST_ACK, &request)).map(drop)
}

/// The kernel's answer; none if it has no such family or command.
fn ethtool(command: u8, flags: u16, attributes: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let answer = if_known(ask(CONTROL, GET_FAMILY, REQUEST, &text(FAMILY_NAME, "ethtool")))?;
    let id = answer.as_ref().and_then(|answer| find(answer.get(HEADERS..).unwrap_or_default(), FAMILY_ID));
    let Some(family) = id.and_then(|id| half(id, 0)) else { return Ok(None) };
    if_known(ask(family, command, flags, attributes))
}

/// None where the kernel does not know what it was asked for: the family, or the command of it.
fn if_known<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    let unknown = [Errno::ENOENT as i32, Errno::EOPNOTSUPP as i32];
    match answer {
        Err(error) if error.raw_os_error().is_some_and(|number| unknown.contains(&number)) => Ok(None),
        other => other.map(Some),
    }
}

/// One request and the first answer. The kernel answers while it is asked: this takes microseconds.
fn ask(family: u16, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<u8>> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    let length = u32::try_from(HEADERS + attributes.len()).map_err(io::Error::other)?;
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(family.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    // Sequence and sender are 0; then command, version, two bytes without a meaning.
    request.resize(HEADER, 0);
    request.extend([command, 1, 0, 0]);
    request.extend(attributes);
    socket.send(&request, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    if half(&answer, 4) == Some(ERROR) {
        let number = answer.get(HEADER..HEADERS).and_then(|bytes| bytes.try_into().ok());
        // The kernel counts its errors downwards from zero, which is none.
        match number.map_or(0, i32::from_ne_bytes) {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error.saturating_neg())),
        }
    }
    Ok(answer)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Kinds and contents.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(half(bytes, 0)?), half(bytes, 2)? & KIND);
        // One shorter than its own head would never end.
        let content = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(of, _)| *of == kind).map(|(_, content)| content)
}

fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + content.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, content: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, content)
}

fn text(kind: u16, content: &str) -> Vec<u8> {
    attribute(kind, &[content.as_bytes(), &[0]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestNamespace;

    #[tokio::test]
    async fn who_computes_the_tunnels_checksums_is_seen_and_set_on_it_alone() {
        let node = TestNamespace::new();
        node.run("ip", &["link", "add", "ours", "type", "vxlan", "id", "1", "dstport", "8472"]);
        node.run("ip", &["link", "add", "theirs", "type", "vxlan", "id", "9", "dstport", "4789"]);
        let home = NetworkNamespace::at(&node.path()).unwrap();
        assert!(is_on(&home, "ours").unwrap(), "as the kernel makes them");
        for on in [false, false, true, true] {
            switch(&home, "ours", on).unwrap();
            assert_eq!(is_on(&home, "ours").unwrap(), on);
            assert!(is_on(&home, "theirs").unwrap(), "another's stays so");
        }
        let error = is_on(&home, "nobody").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ENODEV as i32));
    }

    #[test]
    fn a_kernel_that_knows_nothing_of_features_is_no_failure() {
        let refused = |number: Errno| if_known::<()>(Err(io::Error::from_raw_os_error(number as i32)));
        assert_eq!(refused(Errno::ENOENT).unwrap(), None, "before 5.6");
        assert_eq!(refused(Errno::EOPNOTSUPP).unwrap(), None, "before 5.7");
        assert!(refused(Errno::EPERM).is_err());
        assert_eq!(if_known(Ok(1)).unwrap(), Some(1));
    }

    #[test]
    fn a_broken_answer_ends() {
        assert_eq!(attributes(&[0, 0, 1, 0, 9]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0, 9]).count(), 0);
        assert_eq!(attributes(&text(1, "abcd")).collect::<Vec<_>>(), [(1, &b"abcd\0"[..])]);
    }
}
