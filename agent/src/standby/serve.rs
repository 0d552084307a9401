//! `minik8s-agent standby`: waits for the agent that started it to end, serves in its place, and hands
//! over to the next one.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use schema::control::shutdown::Tasks;
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{ANSWER_MAX, Handover, SOCKET, Sockets, wire};
use crate::catalog::CatalogDisk;
use crate::config::Config;
use crate::daemon::{self, Known};
use crate::desired::DesiredStore;
use crate::worlds::netlink::RealNetlink;

/// How often it is looked whether the node still has an agent's directory: without one nobody would
/// ever end this process.
const LOOK: Duration = Duration::from_millis(500);

/// Waits, serves, hands over.
///
/// # Errors
/// One line: not started by an agent, or what it serves by can't be read.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let sockets = tokio::task::spawn_blocking(wait).await?.context("cannot wait for the agent's end")?;
    if sockets.is_empty() {
        bail!("standby is started by the agent itself; start 'minik8s-agent run'");
    }
    tracing::warn!("the agent ended; names and hosts are answered by what it knew last, until the next one");
    let held = sockets
        .iter()
        .map(|(role, socket)| Ok((*role, Arc::new(socket.try_clone()?))))
        .collect::<io::Result<Sockets>>()?;
    let path = config.machine.agent_dir().join(SOCKET);
    let _ = std::fs::remove_file(&path);
    let mut tasks = Tasks::new();
    let desired = DesiredStore::open(&config.machine.state_dir, &config.node)?;
    let (_subnets, subnet) = watch::channel(desired.current().subnet.clone());
    let (_, known) = CatalogDisk::open(&config.machine.agent_dir());
    let (_catalogs, catalog) = watch::channel(Arc::new(known.unwrap_or_default()));
    let handover = Handover::given(sockets);
    let netlink = Arc::new(RealNetlink::open(&config.machine.instance)?);
    let known = Known { subnet, catalog, handover };
    let _pods = daemon::wire_dns(&config, netlink, &known, &mut tasks);
    daemon::wire_gateway(&config.node, known, &mut tasks);
    tasks.spawn_critical("next agent", end_with_next(path, held, tasks.token()));
    tasks.run_until_signal().await?;
    Ok(())
}

/// Takes the sockets and waits until the agent's end of the channel is closed.
fn wait() -> io::Result<Vec<(super::Role, std::os::fd::OwnedFd)>> {
    let mut channel = io::stdin();
    let sockets = wire::receive(&channel)?;
    let mut nothing = [0; 1];
    // Nothing is ever said.
    while !sockets.is_empty() && channel.read(&mut nothing)? > 0 {}
    Ok(sockets)
}

/// Gives the next agent the sockets, or ends with the agent's directory.
async fn end_with_next(path: PathBuf, held: Sockets, token: CancellationToken) -> io::Result<()> {
    while !token.is_cancelled() {
        let listener = UnixListener::bind(&path)?;
        let stream = tokio::select! {
            // Cancel-safe: a connection that is not returned stays in the kernel's queue.
            accepted = listener.accept() => accepted?.0,
            // Cancel-safe: nothing is held across the wait.
            () = vanished(&path) => {
                tracing::info!("the agent's directory is gone, and so is this process");
                break;
            }
            // Cancel-safe: the token stays cancelled.
            () = token.cancelled() => break,
        };
        // Before the answer: the next one's own process may listen here right after.
        drop(listener);
        let _ = std::fs::remove_file(&path);
        match tokio::time::timeout(ANSWER_MAX, give(stream, &held))
            .await
            .unwrap_or_else(|late| Err(late.into()))
        {
            Ok(()) => break,
            Err(error) => tracing::warn!(%error, "an agent asked for the sockets and did not take them"),
        }
    }
    // Both serve for a moment: no packet waits for the end of one.
    token.cancel();
    Ok(())
}

/// They are the other's once it says so: one that ends before leaves them to us.
async fn give(mut stream: UnixStream, held: &Sockets) -> io::Result<()> {
    wire::send(&stream, held)?;
    let mut taken = [0; 1];
    stream.read_exact(&mut taken).await.map(drop)
}

async fn vanished(path: &Path) {
    while path.symlink_metadata().is_ok() {
        tokio::time::sleep(LOOK).await;
    }
}
