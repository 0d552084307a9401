//! Connections before HTTP: over TCP, with or without TLS, or over a Unix socket; and the callers at their other ends.

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist};
use openssl::ssl::{SslContext, SslFiletype, SslMethod, SslVersion};
use schema::trust::{TrustReader, accept, accept_public};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::spawn_blocking;

/// Address of a listener, with what its connections begin with.
pub(crate) enum Listening {
    /// TCP: with a reader, TLS in which a caller may show a certificate of the cluster; else plain.
    Tcp(TcpListener, Option<TrustReader>),
    /// TCP with TLS for callers that do not know the cluster's authority.
    Public(TcpListener, PublicCertificate),
    /// Unix socket for users of this machine.
    Unix(LocalSocket),
}

/// Caller of a request, as its connection shows it: an extension of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// A user of this machine, through the Unix socket.
    Local {
        /// User id.
        uid: u32,
    },
    /// Somebody with a certificate of the cluster.
    Certified(schema::trust::Peer),
    /// Anyone else.
    Anonymous,
}

impl Caller {
    /// Returns the name of the node; `None` for others.
    pub(crate) fn node(&self) -> Option<&str> {
        match self {
            Self::Certified(peer) => peer.identity.node(),
            Self::Local { .. } | Self::Anonymous => None,
        }
    }
}

/// PEM file with a certificate, those between it and its authority, and its key. Read for each connection, so that it
/// can be renewed in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicCertificate(PathBuf);

impl PublicCertificate {
    /// Names the file.
    pub(crate) fn new(file: PathBuf) -> Self {
        Self(file)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, lacks certificate or key, or these do not belong together.
    pub(crate) fn context(&self) -> io::Result<SslContext> {
        // OpenSSL's own error for a missing file has several lines.
        fs::File::open(&self.0)?;
        let mut builder = SslContext::builder(SslMethod::tls_server())?;
        builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        builder.set_certificate_chain_file(&self.0)?;
        builder.set_private_key_file(&self.0, SslFiletype::PEM)?;
        builder.check_private_key()?;
        Ok(builder.build())
    }
}

/// Unix socket for root, the user of this process, and the members of a group. Its file is removed at the end.
pub(crate) struct LocalSocket {
    // First, because the file goes while nobody else can have taken its place.
    _file: SocketFile,
    listener: UnixListener,
    users: SocketUsers,
}

/// File of a socket, removed when dropped.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl LocalSocket {
    /// Takes over a socket that is bound to `path`.
    pub(crate) fn new(listener: UnixListener, path: PathBuf, group: Option<Gid>) -> Self {
        Self { _file: SocketFile(path), listener, users: SocketUsers { own: geteuid(), group } }
    }
}

/// Users that a socket is for, beside root.
#[derive(Debug, Clone, Copy)]
struct SocketUsers {
    own: Uid,
    group: Option<Gid>,
}

impl SocketUsers {
    fn include(self, uid: Uid, gid: Gid) -> bool {
        uid.is_root() || uid == self.own || self.group == Some(gid)
    }

    /// Reads the groups of a user, which may take long.
    fn include_member(self, uid: Uid) -> bool {
        let groups = || {
            let user = User::from_uid(uid).ok()??;
            getgrouplist(&CString::new(user.name).ok()?, user.gid).ok()
        };
        self.group.is_some_and(|group| groups().is_some_and(|all| all.contains(&group)))
    }
}

/// Stream of bytes of a connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Accepted connection before its handshake.
pub(super) struct NewConnection {
    /// Address of the other end; loopback for a Unix socket.
    pub(super) address: IpAddr,
    link: Link,
}

enum Link {
    Plain(TcpStream),
    Certified(TcpStream, TrustReader),
    Public(TcpStream, PublicCertificate),
    Unix(UnixStream, SocketUsers),
}

impl Listening {
    /// Accepts the next connection. Cancel-safe.
    pub(super) async fn next(&self) -> io::Result<NewConnection> {
        let listener = match self {
            Self::Tcp(listener, _) | Self::Public(listener, _) => listener,
            Self::Unix(socket) => {
                let (stream, _) = socket.listener.accept().await?;
                let link = Link::Unix(stream, socket.users);
                return Ok(NewConnection { address: Ipv4Addr::LOCALHOST.into(), link });
            }
        };
        let (stream, peer) = listener.accept().await?;
        // Send small responses without delay.
        let _ = stream.set_nodelay(true);
        let link = match self {
            Self::Tcp(_, Some(trust)) => Link::Certified(stream, trust.clone()),
            Self::Public(_, certificate) => Link::Public(stream, certificate.clone()),
            _ => Link::Plain(stream),
        };
        // IPv4 clients of a dual-stack listener appear as `::ffff:192.0.2.1`.
        Ok(NewConnection { address: peer.ip().to_canonical(), link })
    }
}

impl NewConnection {
    /// Learns who is at the other end. The caller bounds the time.
    ///
    /// # Errors
    /// Nobody who may connect.
    pub(super) async fn handshake(self) -> io::Result<(Box<dyn Stream>, Caller)> {
        match self.link {
            Link::Plain(stream) => Ok((Box::new(stream), Caller::Anonymous)),
            Link::Certified(stream, trust) => {
                let (stream, peer) = accept(stream, &trust.current()).await?;
                Ok((Box::new(stream), peer.map_or(Caller::Anonymous, Caller::Certified)))
            }
            Link::Public(stream, certificate) => {
                let stream = accept_public(stream, &certificate.context()?).await?;
                Ok((Box::new(stream), Caller::Anonymous))
            }
            Link::Unix(stream, users) => {
                let peer = stream.peer_cred()?;
                let (uid, gid) = (Uid::from_raw(peer.uid()), Gid::from_raw(peer.gid()));
                let is_user = users.include(uid, gid)
                    || spawn_blocking(move || users.include_member(uid))
                        .await
                        .is_ok_and(|is_member| is_member);
                match is_user {
                    true => Ok((Box::new(stream), Caller::Local { uid: uid.as_raw() })),
                    false => Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        format!("user {uid} is no user of this socket"),
                    )),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_for_root_its_own_user_and_the_members_of_its_group() {
        let users = |group| SocketUsers { own: Uid::from_raw(1_000), group };
        let other = (Uid::from_raw(1_001), Gid::from_raw(1_001));
        let closed = users(None);
        assert!(closed.include(Uid::from_raw(0), other.1) && closed.include(Uid::from_raw(1_000), other.1));
        assert!(!closed.include(other.0, other.1) && !closed.include_member(other.0));
        assert!(users(Some(other.1)).include(other.0, other.1));
        // Root is in root's group, and nobody knows the user with the largest id.
        let of_root = users(Some(Gid::from_raw(0)));
        assert!(of_root.include_member(Uid::from_raw(0)));
        assert!(!of_root.include_member(Uid::from_raw(u32::MAX - 1)));
    }

    #[test]
    fn a_file_without_certificate_and_key_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(PublicCertificate::new(file.path().to_owned()).context().is_err());
        let error = PublicCertificate::new("/nowhere/tls.pem".into()).context().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
