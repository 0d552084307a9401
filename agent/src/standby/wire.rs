//! Transfer of open sockets between processes, with one byte for the role of each.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Role of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    DnsUdp,
    DnsTcp,
    Gateway,
    Functions,
    /// Functions gateway at the address of the pods' bridge.
    PodFunctions,
}

/// Sockets that two processes hold.
pub type Sockets = Vec<(Role, Arc<OwnedFd>)>;

/// Maximum number of sockets: one per role.
const MOST: usize = 5;

impl Role {
    fn byte(self) -> u8 {
        match self {
            Self::DnsUdp => b'u',
            Self::DnsTcp => b't',
            Self::Gateway => b'g',
            Self::Functions => b'f',
            Self::PodFunctions => b'p',
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::DnsUdp, Self::DnsTcp, Self::Gateway, Self::Functions, Self::PodFunctions]
            .into_iter()
            .find(|role| role.byte() == byte)
    }
}

/// Sends all in one message.
pub(crate) fn send(to: &impl AsFd, sockets: &Sockets) -> io::Result<()> {
    let bytes: Vec<u8> = sockets.iter().map(|(role, _)| role.byte()).collect();
    let files: Vec<BorrowedFd<'_>> = sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::Error::other("more sockets than there are kinds of them"));
    }
    sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the sockets; empty if the other end was closed first.
pub(crate) fn receive(from: &impl AsFd) -> io::Result<Vec<(Role, OwnedFd)>> {
    let mut bytes = [0; MOST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    // Any extra sockets from a newer version are closed.
    let roles = bytes.iter().take(got.bytes).map(|byte| Role::from_byte(*byte));
    Ok(roles.zip(files).filter_map(|(role, file)| Some((role?, file))).collect())
}
