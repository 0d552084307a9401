//! Tests TCP through the tunnel, and switches its checksum offload.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::offload;
use crate::worlds::netlink::NetlinkError;
use crate::worlds::netlink::namespace::NetworkNamespace;
use crate::worlds::netlink::real::RealNetlink;
use crate::worlds::netlink::socket::ANSWER_MAX;

/// Number of times the first packet of a connection is sent, and the wait for each answer: the kernel itself sends
/// it again only after a second.
const ATTEMPTS: usize = 2;
const ATTEMPT: Duration = Duration::from_millis(400);

pub(super) async fn offload_is_on(netlink: &RealNetlink, tunnel: &str) -> Result<bool, NetlinkError> {
    let name = tunnel.to_owned();
    blocking(netlink, tunnel, "look at the checksum offload of", move |home| offload::is_on(home, &name))
        .await
}

pub(super) async fn set_offload(netlink: &RealNetlink, tunnel: &str, on: bool) -> Result<(), NetlinkError> {
    let name = tunnel.to_owned();
    blocking(netlink, tunnel, "set the checksum offload of", move |home| offload::switch(home, &name, on))
        .await
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
