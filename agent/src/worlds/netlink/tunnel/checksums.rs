//! Tests TCP through the tunnel, and switches its checksum offload.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::errno::Errno;
use rtnetlink::sys::protocols::NETLINK_GENERIC;

use crate::worlds::netlink::NetlinkError;
use crate::worlds::netlink::namespace::NetworkNamespace;
use crate::worlds::netlink::raw::{
    REQUEST, REQUEST_ACK, attribute, attributes, find, find_in, half, send_request,
};
use crate::worlds::netlink::real::RealNetlink;
use crate::worlds::netlink::socket::ANSWER_MAX;

/// Number of times the first packet of a connection is sent, and the wait for each answer: the kernel itself sends
/// it again only after a second.
const ATTEMPTS: usize = 2;
const ATTEMPT: Duration = Duration::from_millis(400);

pub(super) async fn offload_is_on(netlink: &RealNetlink, tunnel: &str) -> Result<bool, NetlinkError> {
    let name = tunnel.to_owned();
    blocking(netlink, tunnel, "read the checksum offload of", move |home| is_on(home, &name)).await
}

pub(super) async fn set_offload(netlink: &RealNetlink, tunnel: &str, on: bool) -> Result<(), NetlinkError> {
    let name = tunnel.to_owned();
    blocking(netlink, tunnel, "set the checksum offload of", move |home| switch(home, &name, on)).await
}

pub(super) async fn answers(netlink: &RealNetlink, at: SocketAddr) -> bool {
    let Ok(home) = netlink.home.try_clone() else { return false };
    let knock = move || home.run(|| Ok((0..ATTEMPTS).any(|_| answers_once(at))));
    matches!(tokio::task::spawn_blocking(knock).await, Ok(Ok(true)))
}

fn answers_once(at: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&at, ATTEMPT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

/// Runs `work` with a time limit on a blocking thread, since entering the namespace blocks.
async fn blocking<T: Send + 'static>(
    netlink: &RealNetlink,
    link: &str,
    act: &'static str,
    work: impl FnOnce(&NetworkNamespace) -> io::Result<T> + Send + 'static,
) -> Result<T, NetlinkError> {
    let refused =
        |error: io::Error| NetlinkError::Request { act, link: link.to_owned(), message: error.to_string() };
    let home = netlink.home.try_clone().map_err(refused)?;
    let work = tokio::task::spawn_blocking(move || work(&home));
    match tokio::time::timeout(ANSWER_MAX, work).await {
        Ok(done) => done.map_err(|error| refused(error.into()))?.map_err(refused),
        Err(_) => Err(NetlinkError::Timeout { act, link: link.to_owned(), seconds: ANSWER_MAX.as_secs() }),
    }
}

// Checksum offload of a link, through the ethtool family of generic netlink.
//
// A machine or card that claims to compute checksums for packets inside a tunnel but does not loses all TCP
// between nodes (flannel#1279, kubernetes#88986). The kernel is always right, at the cost of three quarters of the
// tunnel's throughput (12.5 to 3.1 Gbit/s, iperf3 between two namespaces, Linux 6.18).

/// The feature in `ethtool -K LINK tx-checksum-ip-generic off`.
const FEATURE: &str = "tx-checksum-ip-generic";

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;

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

/// True if the link leaves checksums to the hardware. False on kernels that can't be asked: before 5.6 there is no
/// such family, before 5.7 it has no features.
pub(super) fn is_on(home: &NetworkNamespace, link: &str) -> io::Result<bool> {
    let request = nested(FEATURES_HEADER, &text(HEADER_NAME, link));
    let Some(answer) = home.run(|| ethtool(FEATURES_GET, REQUEST, &request))? else { return Ok(false) };
    let active = find_in(&answer, FEATURES_ACTIVE);
    let bits = active.and_then(|active| find(active, BITS)).unwrap_or_default();
    // Only enabled features are listed.
    let name = |(kind, bit)| if kind == BIT { find(bit, BIT_NAME) } else { None };
    let is_it = |name: &[u8]| name.strip_suffix(&[0]) == Some(FEATURE.as_bytes());
    Ok(attributes(bits).filter_map(name).any(is_it))
}

/// Leaves the checksums of the link to others, or lets the kernel compute them.
pub(super) fn switch(home: &NetworkNamespace, link: &str, on: bool) -> io::Result<()> {
    let value = if on { attribute(BIT_VALUE, &[]) } else { Vec::new() };
    let bit = [text(BIT_NAME, FEATURE), value].concat();
    let wanted = nested(FEATURES_WANTED, &nested(BITS, &nested(BIT, &bit)));
    let request = [nested(FEATURES_HEADER, &text(HEADER_NAME, link)), wanted].concat();
    home.run(|| ethtool(FEATURES_SET, REQUEST_ACK, &request)).map(drop)
}

/// Returns the kernel's answer; `None` if it lacks the family or command.
fn ethtool(command: u8, flags: u16, attributes: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let generic = |family, command, flags, attributes: &[u8]| {
        // Command, version, two reserved bytes.
        if_known(send_request(NETLINK_GENERIC, family, flags, [command, 1, 0, 0], attributes))
    };
    let answer = generic(CONTROL, GET_FAMILY, REQUEST, &text(FAMILY_NAME, "ethtool"))?;
    let id = answer.as_ref().and_then(|answer| find_in(answer, FAMILY_ID));
    let Some(family) = id.and_then(|id| half(id, 0)) else { return Ok(None) };
    generic(family, command, flags, attributes)
}

/// Maps the error of an unknown family or command to `None`.
fn if_known<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    let unknown = [Errno::ENOENT as i32, Errno::EOPNOTSUPP as i32];
    match answer {
        Err(error) if error.raw_os_error().is_some_and(|number| unknown.contains(&number)) => Ok(None),
        other => other.map(Some),
    }
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
