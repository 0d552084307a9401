//! A process that answers names and hosts while no agent runs.
//!
//! The sockets of DNS and gateway are held by two: the agent, which serves them, and a process that it
//! starts, which waits. When the agent ends, however that is, the other serves them by what lies on the
//! disk; they were never closed, so what came in between waits in them. The next agent asks for them and
//! goes on. Connections of the former agent's gateway end with it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use socket2::{SockAddr, Socket};
use tokio::sync::watch;

mod keeper;
pub mod serve;
#[cfg(test)]
mod tests;
mod wire;

pub use keeper::keep;

/// Where the process that serves hands its sockets over, below the agent's directory.
const SOCKET: &str = "standby.sock";

/// Longest wait for one that is asked for its sockets.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Names by UDP.
    DnsUdp,
    /// Names by TCP.
    DnsTcp,
    /// Hosts of Dns objects.
    Gateway,
}

/// Sockets that two processes hold.
pub type Sockets = Vec<(Role, Arc<OwnedFd>)>;

/// Where sockets come from and who else is to hold them.
#[derive(Debug, Clone)]
pub struct Handover(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Whom to ask.
    path: Option<PathBuf>,
    received: Mutex<Vec<(Role, OwnedFd)>>,
    bound: watch::Sender<Sockets>,
}

impl Handover {
    /// Of an agent with this directory.
    pub fn of(agent_dir: &Path) -> Self {
        Self::with(Some(agent_dir.join(SOCKET)), Vec::new())
    }

    /// Of a process that has been given these and asks nobody.
    pub fn given(sockets: Vec<(Role, OwnedFd)>) -> Self {
        Self::with(None, sockets)
    }

    fn with(path: Option<PathBuf>, received: Vec<(Role, OwnedFd)>) -> Self {
        let bound = watch::Sender::new(Sockets::new());
        Self(Arc::new(Inner { path, received: Mutex::new(received), bound }))
    }

    /// The sockets that are bound now.
    pub fn bound(&self) -> watch::Receiver<Sockets> {
        self.0.bound.subscribe()
    }

    /// The socket of a former process that is bound to this address; asks for it if need be. One that is
    /// bound elsewhere is closed.
    pub async fn take(&self, role: Role, at: SocketAddr) -> Option<Socket> {
        if let Some(path) = self.0.path.clone().filter(|_| self.lock().is_empty()) {
            let asked = tokio::task::spawn_blocking(move || ask(&path)).await;
            match asked.unwrap_or_else(|ended| Err(ended.into())) {
                Ok(sockets) if sockets.is_empty() => {}
                Ok(sockets) => {
                    tracing::info!(
                        sockets = sockets.len(),
                        "took over from the process that answered meanwhile"
                    );
                    self.lock().extend(sockets);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take over from the process that answers meanwhile");
                }
            }
        }
        let mut received = self.lock();
        let at = SockAddr::from(at);
        let index = received.iter().position(|(of, _)| *of == role)?;
        let (_, socket) = received.swap_remove(index);
        let socket = Socket::from(socket);
        socket.local_addr().is_ok_and(|bound| bound == at).then_some(socket)
    }

    /// The socket is in use from now on, in place of what had its role.
    pub fn hold(&self, role: Role, socket: &impl AsFd) {
        match socket.as_fd().try_clone_to_owned() {
            Ok(socket) => self.0.bound.send_modify(|bound| {
                bound.retain(|(of, _)| *of != role);
                bound.push((role, Arc::new(socket)));
            }),
            Err(error) => tracing::warn!(%error, ?role, "nobody answers in the agent's place should it end"),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Role, OwnedFd)>> {
        self.0.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sockets of the process that serves them; none if there is none.
fn ask(path: &Path) -> io::Result<Vec<(Role, OwnedFd)>> {
    let stream = match std::os::unix::net::UnixStream::connect(path) {
        Ok(stream) => stream,
        // The one who listened there was killed, or there never was one.
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&error.kind()) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let sockets = wire::receive(&stream)?;
    // Now they are ours.
    (&stream).write_all(b"k")?;
    Ok(sockets)
}

/// Ends the process that serves in the place of an agent; true if there was one.
///
/// # Errors
/// It can't be asked.
pub fn end(agent_dir: &Path) -> io::Result<bool> {
    let path = agent_dir.join(SOCKET);
    let sockets = ask(&path)?;
    let left = fs::remove_file(&path);
    match left {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(!sockets.is_empty()),
    }
}
