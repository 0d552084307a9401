//! Whether TCP gets through the tunnel, and who computes its checksums.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use async_trait::async_trait;

use super::namespace::NetworkNamespace;
use super::real::RealNetlink;
use super::socket::ANSWER_MAX;
use super::tunnel::is_ours;
use super::{NetlinkError, offload};

/// The first packet of a connection is sent so often, and an answer is waited for so long each time. The
/// kernel itself sends it again after a second only.
const ATTEMPTS: usize = 3;
const ATTEMPT: Duration = Duration::from_millis(400);

/// A tunnel, and who computes the checksums of what leaves by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offload {
    /// The link's number: one that is made anew has another.
    pub index: u32,
    /// They are left to the card, or to nobody where both ends are on one machine.
    pub is_on: bool,
}

/// Who computes the checksums of a tunnel.
#[async_trait]
pub trait Checksums: Send + Sync + 'static {
    /// The tunnel's, if it is there and this instance's. Off where the kernel can't be asked, before 5.7.
    async fn offload_of(&self, tunnel: &str) -> Result<Option<Offload>, NetlinkError>;
    /// Leaves them to others, or lets the kernel compute them.
    async fn set_offload(&self, tunnel: &str, on: bool) -> Result<(), NetlinkError>;
    /// Somebody answers TCP there within about a second: a refusal is an answer.
    async fn answers(&self, at: SocketAddr) -> bool;
}

#[async_trait]
impl Checksums for RealNetlink {
    async fn offload_of(&self, tunnel: &str) -> Result<Option<Offload>, NetlinkError> {
        let Some(link) = self.socket.link(tunnel).await?.filter(is_ours) else { return Ok(None) };
        let name = tunnel.to_owned();
        let is_on = blocking(self, tunnel, "look at the checksum offload of", move |home| {
            offload::is_on(home, &name)
        });
        Ok(Some(Offload { index: link.index, is_on: is_on.await? }))
    }

    async fn set_offload(&self, tunnel: &str, on: bool) -> Result<(), NetlinkError> {
        let name = tunnel.to_owned();
        blocking(self, tunnel, "set the checksum offload of", move |home| offload::switch(home, &name, on))
            .await
    }

    async fn answers(&self, at: SocketAddr) -> bool {
        let Ok(home) = self.home.try_clone() else { return false };
        let knock = move || home.run(|| Ok((0..ATTEMPTS).any(|_| answers_once(at))));
        matches!(tokio::task::spawn_blocking(knock).await, Ok(Ok(true)))
    }
}

fn answers_once(at: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&at, ATTEMPT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

/// On a thread that may block, as entering the namespace does, and not for ever.
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
