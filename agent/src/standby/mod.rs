//! A process that answers names, hosts and calls of functions while no agent runs.
//!
//! It holds the sockets of DNS and of both gateways beside the agent, and waits. When the agent ends it serves them, by what
//! lies on the disk, until the next agent asks for them. They are never closed, so no packet is refused.

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
pub mod serve;
#[cfg(test)]
mod tests;
mod wire;

pub use keeper::keep;
pub use wire::{Role, Sockets};

/// Where the process that serves hands its sockets over, below the agent's directory.
const SOCKET: &str = "standby.sock";

/// Longest wait for the sockets of one that is asked for them.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Where sockets come from and who else is to hold them.
#[derive(Debug, Clone)]
pub struct Handover(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    agent_dir: Option<PathBuf>,
    /// One asks for all, and the others wait for it.
    received: tokio::sync::Mutex<Vec<(Role, OwnedFd)>>,
    /// The process that gave them; it serves until another process waits.
    giver: Mutex<Option<UnixStream>>,
    bound: watch::Sender<Sockets>,
}

impl Handover {
    /// Of an agent with this directory.
    pub fn of(agent_dir: &Path) -> Self {
        Self::with(Some(agent_dir.to_owned()), Vec::new())
    }

    /// Of a process that has been given these and does not ask.
    pub fn given(sockets: Vec<(Role, OwnedFd)>) -> Self {
        Self::with(None, sockets)
    }

    fn with(agent_dir: Option<PathBuf>, received: Vec<(Role, OwnedFd)>) -> Self {
        let (received, giver) = (tokio::sync::Mutex::new(received), Mutex::new(None));
        Self(Arc::new(Inner { agent_dir, received, giver, bound: watch::Sender::new(Sockets::new()) }))
    }

    /// The sockets that are bound to these addresses: those that this process holds already, else those of
    /// a former one, which is asked if need be. All or none; what is bound elsewhere is closed.
    pub async fn take<const N: usize>(&self, wanted: [(Role, SocketAddr); N]) -> Option<[Socket; N]> {
        let mut received = self.0.received.lock().await;
        let mut found = self.take_bound(&wanted);
        if found.is_empty() {
            if let (true, Some(agent_dir)) = (received.is_empty(), self.0.agent_dir.clone()) {
                *received = self.ask(agent_dir).await;
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

    /// Copies of those in use, which are in use no more: the server that had them has ended.
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

    async fn ask(&self, agent_dir: PathBuf) -> Vec<(Role, OwnedFd)> {
        let asked = tokio::task::spawn_blocking(move || ask(&agent_dir)).await;
        match asked.unwrap_or_else(|ended| Err(ended.into())) {
            Ok(Some((sockets, giver))) => {
                tracing::info!(sockets = sockets.len(), "took over from the process that answered meanwhile");
                *self.giver() = Some(giver);
                sockets
            }
            Ok(None) => Vec::new(),
            Err(error) => {
                tracing::warn!(%error, "cannot take over from the process that answers meanwhile");
                Vec::new()
            }
        }
    }

    /// The socket is in use from now on, in place of what had its role.
    pub fn hold(&self, role: Role, socket: OwnedFd) {
        self.0.bound.send_modify(|bound| {
            bound.retain(|(of, _)| *of != role);
            bound.push((role, Arc::new(socket)));
        });
    }

    /// Another process waits with the sockets now: the giver may end.
    fn release_giver(&self) {
        if let Some(giver) = self.giver().take() {
            // One that has ended by itself is no trouble.
            let _ = (&giver).write_all(TAKEN);
        }
    }

    fn giver(&self) -> MutexGuard<'_, Option<UnixStream>> {
        lock(&self.0.giver)
    }
}

/// A copy to hold.
pub fn copy(socket: &impl AsFd) -> io::Result<OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}

/// What the next one says once the giver is not needed any more.
const TAKEN: &[u8] = b"k";

/// The agent's directory, and the path of the socket in it by the directory's own file: that of a long
/// path would be no address.
fn address(agent_dir: &Path) -> io::Result<(File, PathBuf)> {
    let dir = File::open(agent_dir)?;
    let path = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(SOCKET);
    Ok((dir, path))
}

fn connect(agent_dir: &Path) -> io::Result<Option<UnixStream>> {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    let connected = address(agent_dir).and_then(|(_dir, path)| UnixStream::connect(path));
    match connected {
        Ok(stream) => Ok(Some(stream)),
        // The one who listened there was killed, or there never was one.
        Err(error) if [NotFound, ConnectionRefused].contains(&error.kind()) => Ok(None),
        Err(error) => Err(error),
    }
}

type Asked = (Vec<(Role, OwnedFd)>, UnixStream);

/// The sockets of the process that serves them, and itself; none if there is none.
fn ask(agent_dir: &Path) -> io::Result<Option<Asked>> {
    connect(agent_dir)?.map_or(Ok(None), answer)
}

/// What the process at the other end gives; none if it ended before it did.
fn answer(stream: UnixStream) -> io::Result<Option<Asked>> {
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    match wire::receive(&stream) {
        Ok(sockets) => Ok(Some((sockets, stream))),
        // It was killed before it took the connection.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

/// A process serves in the place of an agent.
pub fn is_serving(agent_dir: &Path) -> bool {
    matches!(connect(agent_dir), Ok(Some(_)))
}

/// Ends the process that serves in the place of an agent; true if there was one.
pub fn end(agent_dir: &Path) -> io::Result<bool> {
    let asked = ask(agent_dir)?;
    if let Some((_sockets, giver)) = &asked {
        let mut giver = giver;
        // One that has ended by itself is no trouble.
        let _ = giver.write_all(TAKEN);
        // Until it is gone its files are not all ours to remove.
        let _ = io::Read::read(&mut giver, &mut [0; 1]);
    }
    match std::fs::remove_file(agent_dir.join(SOCKET)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(asked.is_some()),
    }
}
