//! Connections before HTTP: over TCP, with or without TLS, or over a Unix socket; and the callers at their other ends.

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist};
use openssl::pkey::PKey;
use openssl::ssl::{SslContext, SslMethod, SslMode, SslVersion};
use schema::control::lock;
use schema::trust::{TrustReader, accept, accept_public, chain_from_pem};
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

/// Age from which on a file that changes once more has another time of its change.
const SETTLED: Duration = Duration::from_secs(2);

/// PEM file with a certificate, those between it and its authority, and its key. Read again once it has changed, so
/// that it can be renewed in place.
#[derive(Debug, Clone)]
pub(crate) struct PublicCertificate {
    file: PathBuf,
    newest: Arc<Mutex<Option<(FileVersion, SslContext)>>>,
}

/// Version of a file: its inode, its size, and the time of its last change.
type FileVersion = (u64, u64, SystemTime);

impl PublicCertificate {
    /// Names the file.
    pub(crate) fn new(file: PathBuf) -> Self {
        Self { file, newest: Arc::default() }
    }

    /// Returns the content of the file for new connections.
    ///
    /// # Errors
    /// It cannot be read, is encrypted, lacks certificate or key, or these do not belong together.
    pub(crate) fn context(&self) -> io::Result<SslContext> {
        let found = fs::metadata(&self.file)?;
        let modified = found.modified()?;
        let version = (found.ino(), found.len(), modified);
        let mut newest = lock(&self.newest);
        match &*newest {
            Some((known, context)) if *known == version => return Ok(context.clone()),
            _ => {}
        }
        let context = self.read()?;
        let is_settled = modified.elapsed().is_ok_and(|age| age > SETTLED);
        *newest = is_settled.then(|| (version, context.clone()));
        Ok(context)
    }

    fn read(&self) -> io::Result<SslContext> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        let pem = fs::read(&self.file)?;
        let mut chain = chain_from_pem(&pem).map_err(|error| wrong(&error.to_string()))?.into_iter();
        // An empty passphrase: OpenSSL would ask for one on the terminal.
        let key = PKey::private_key_from_pem_callback(&pem, |_| Ok(0))?;
        let own = chain.next().ok_or_else(|| wrong("it has no certificate"))?;
        let mut builder = SslContext::builder(SslMethod::tls_server())?;
        builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        // As in OpenSSL's own acceptors: hyper goes on with a write from a buffer that may have moved. An idle
        // connection keeps no buffers.
        builder.set_mode(
            SslMode::ACCEPT_MOVING_WRITE_BUFFER | SslMode::ENABLE_PARTIAL_WRITE | SslMode::RELEASE_BUFFERS,
        );
        builder.set_certificate(&own)?;
        chain.try_for_each(|between| builder.add_extra_chain_cert(between))?;
        builder.set_private_key(&key)?;
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
    /// Does the handshake, and identifies the caller. Whoever awaits it bounds the time.
    ///
    /// # Errors
    /// Nobody who may connect.
    pub(super) async fn greeted(self) -> io::Result<(Box<dyn Stream>, Caller)> {
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
