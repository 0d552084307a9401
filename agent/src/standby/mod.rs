//! A process that answers DNS, hosts and function calls while no agent runs.
//!
//! It holds the sockets of DNS and of both gateways in addition to the agent, and waits. When the agent ends it
//! serves them from the state on disk, until the next agent requests them. They are never closed, so no packet is
//! refused.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use schema::control::lock;
use socket2::{SockAddr, Socket};
use tokio::sync::watch;

mod keeper;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub use keeper::keep;
pub use wire::{Role, Sockets};

/// Socket in the agent's directory on which the serving process hands over its sockets.
pub(crate) const SOCKET: &str = "standby.sock";

/// Longest wait for the sockets after a request.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Source of inherited sockets, and registry of the sockets to share.
#[derive(Debug, Clone)]
pub struct Handover(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    agent_dir: Option<PathBuf>,
    /// Received sockets; the first caller requests all, and the others wait for it.
    received: tokio::sync::Mutex<Vec<(Role, OwnedFd)>>,
    /// The process that gave the sockets; it serves until another process waits.
    giver: Mutex<Option<UnixStream>>,
    bound: watch::Sender<Sockets>,
}

impl Handover {
    /// Creates the handover of an agent with this directory.
    pub fn for_agent(agent_dir: &Path) -> Self {
        Self::with(Some(agent_dir.to_owned()), Vec::new())
    }

    /// Creates the handover of a process that was given these sockets and does not request any.
    pub fn from_sockets(sockets: Vec<(Role, OwnedFd)>) -> Self {
        Self::with(None, sockets)
    }

    fn with(agent_dir: Option<PathBuf>, received: Vec<(Role, OwnedFd)>) -> Self {
        let (received, giver) = (tokio::sync::Mutex::new(received), Mutex::new(None));
        Self(Arc::new(Inner { agent_dir, received, giver, bound: watch::Sender::new(Sockets::new()) }))
    }

    /// Takes the sockets bound to these addresses: those that this process already holds, else those of a former
    /// process, from which they are requested if necessary. All or none; sockets bound elsewhere are closed.
    pub async fn take<const N: usize>(&self, wanted: [(Role, SocketAddr); N]) -> Option<[Socket; N]> {
        let mut received = self.0.received.lock().await;
        let mut found = self.take_bound(&wanted);
        if found.is_empty() {
            if let (true, Some(agent_dir)) = (received.is_empty(), self.0.agent_dir.clone()) {
                *received = self.request_sockets(agent_dir).await;
            }
            let (mine, others) =
                received.drain(..).partition(|(of, _)| wanted.iter().any(|(role, _)| role == of));
            *received = others;
            found = mine;
        }
        let mut socket = |(role, at): (Role, SocketAddr)| {
            let index = found.iter().position(|(of, _)| *of == role)?;
            let socket = Socket::from(found.swap_remove(index).1);
            let is_there = socket.local_addr().is_ok_and(|bound| bound == SockAddr::from(at));
            (is_there && socket.set_nonblocking(true).is_ok()).then_some(socket)
        };
        let all: Vec<Socket> = wanted.into_iter().map_while(&mut socket).collect();
        all.try_into().ok()
    }

    /// Returns copies of the sockets in use and removes them from use: their server has ended.
    fn take_bound(&self, wanted: &[(Role, SocketAddr)]) -> Vec<(Role, OwnedFd)> {
        let is_wanted = |role: Role| wanted.iter().any(|(of, _)| *of == role);
        let mut found = Vec::new();
        self.0.bound.send_if_modified(|bound| {
            for (role, socket) in bound.iter().filter(|(role, _)| is_wanted(*role)) {
                found.extend(socket.try_clone().map(|socket| (*role, socket)));
            }
            let before = bound.len();
            bound.retain(|(role, _)| !is_wanted(*role));
            bound.len() < before
        });
        found
    }

    async fn request_sockets(&self, agent_dir: PathBuf) -> Vec<(Role, OwnedFd)> {
        let asked = tokio::task::spawn_blocking(move || request_sockets_blocking(&agent_dir)).await;
        match asked.unwrap_or_else(|ended| Err(ended.into())) {
            Ok(Some((sockets, giver))) => {
                tracing::info!(sockets = sockets.len(), "sockets taken over from the standby process");
                *self.giver() = Some(giver);
                sockets
            }
            Ok(None) => Vec::new(),
            Err(error) => {
                tracing::warn!(%error, "sockets not taken over from the standby process");
                Vec::new()
            }
        }
    }

    /// Registers a socket as in use, in place of the former one with its role.
    pub fn hold(&self, role: Role, socket: OwnedFd) {
        self.0.bound.send_modify(|bound| {
            bound.retain(|(of, _)| *of != role);
            bound.push((role, Arc::new(socket)));
        });
    }

    /// Lets the giver end: another process now waits with the sockets.
    fn release_giver(&self) {
        if let Some(giver) = self.giver().take() {
            // Ignore a giver that has already ended by itself.
            let _ = (&giver).write_all(TAKEN);
        }
    }

    fn giver(&self) -> MutexGuard<'_, Option<UnixStream>> {
        lock(&self.0.giver)
    }
}

/// Duplicates a socket for holding.
pub fn copy(socket: &impl AsFd) -> io::Result<OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}

/// Message of the next process when the giver is no longer needed.
const TAKEN: &[u8] = b"k";

/// Returns the agent's directory, and the path of the socket in it through the directory's file descriptor: a long
/// path would not fit a socket address.
pub(crate) fn address(agent_dir: &Path) -> io::Result<(File, PathBuf)> {
    let dir = File::open(agent_dir)?;
    let path = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(SOCKET);
    Ok((dir, path))
}

fn connect(agent_dir: &Path) -> io::Result<Option<UnixStream>> {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    let connected = address(agent_dir).and_then(|(_dir, path)| UnixStream::connect(path));
    match connected {
        Ok(stream) => Ok(Some(stream)),
        // The listener was killed, or never existed.
        Err(error) if [NotFound, ConnectionRefused].contains(&error.kind()) => Ok(None),
        Err(error) => Err(error),
    }
}

type ReceivedSockets = (Vec<(Role, OwnedFd)>, UnixStream);

/// Requests the sockets from the process that serves them; `None` if there is none.
fn request_sockets_blocking(agent_dir: &Path) -> io::Result<Option<ReceivedSockets>> {
    connect(agent_dir)?.map_or(Ok(None), receive_sockets)
}

/// Receives the sockets from the process at the other end; `None` if it ended before sending them.
fn receive_sockets(stream: UnixStream) -> io::Result<Option<ReceivedSockets>> {
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    match wire::receive(&stream) {
        Ok(sockets) => Ok(Some((sockets, stream))),
        // The process was killed before it accepted the connection.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if a process serves in place of an agent.
pub fn is_serving(agent_dir: &Path) -> bool {
    matches!(connect(agent_dir), Ok(Some(_)))
}

/// Ends the process that serves in place of an agent; true if there was one.
pub fn end(agent_dir: &Path) -> io::Result<bool> {
    let asked = request_sockets_blocking(agent_dir)?;
    if let Some((_sockets, giver)) = &asked {
        let mut giver = giver;
        // Ignore a process that has already ended by itself.
        let _ = giver.write_all(TAKEN);
        // Wait until it is gone: before that, not all of its files are ours to remove.
        let _ = io::Read::read(&mut giver, &mut [0; 1]);
    }
    match std::fs::remove_file(agent_dir.join(SOCKET)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(asked.is_some()),
    }
}
