//! The agent's side: one process that waits, with the sockets that are in use now.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Sockets, wire};

/// DNS and gateway bind one after the other: one process is started for both.
const SETTLE: Duration = Duration::from_millis(200);

/// The wait before one that ended by itself is started again.
const AGAIN: Duration = Duration::from_secs(5);

/// The agent's own program, also when its file was replaced meanwhile.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Keeps such a process, with the newest sockets, until `shutdown`: then it goes on alone.
pub async fn keep(mut bound: watch::Receiver<Sockets>, shutdown: CancellationToken) {
    let keep = async {
        loop {
            tokio::time::sleep(SETTLE).await;
            let sockets = bound.borrow_and_update().clone();
            if !one(&sockets, &mut bound).await {
                // The writer ended; whoever watches over it ends the process.
                std::future::pending::<()>().await;
            }
        }
    };
    // Cancel-safe: what is dropped is our end of the channel, which tells the process to begin.
    let _: Option<()> = shutdown.run_until_cancelled(keep).await;
}

/// One process, until there are other sockets or it ends; false at the end of the writer.
async fn one(sockets: &Sockets, bound: &mut watch::Receiver<Sockets>) -> bool {
    if sockets.is_empty() {
        return bound.changed().await.is_ok();
    }
    let (mut child, _channel) = match start(sockets) {
        Ok(started) => started,
        Err(error) => {
            tracing::warn!(%error, "nobody would answer names in the agent's place: no process can be started");
            return tokio::time::timeout(AGAIN, bound.changed()).await.is_ok_and(|changed| changed.is_ok());
        }
    };
    tokio::select! {
        // Cancel-safe: a change that is not returned is seen by the next call.
        changed = bound.changed() => {
            // Before the channel closes, which would make it begin.
            let _ = child.kill().await;
            changed.is_ok()
        }
        // Cancel-safe: the process can be waited for again.
        ended = child.wait() => {
            tracing::warn!(?ended, "the process that waits in the agent's place ended; it is started again");
            tokio::time::sleep(AGAIN).await;
            true
        }
    }
}

/// Starts it in a group of its own: what ends the agent's does not end it.
fn start(sockets: &Sockets) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(OWN_PROGRAM);
    // As this process was started, but for the word that says what to do.
    let mut is_told = false;
    for argument in std::env::args_os().skip(1) {
        let is_word = !is_told && argument == "run";
        is_told |= is_word;
        command.arg(if is_word { "standby".into() } else { argument });
    }
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).process_group(0);
    let child = command.spawn()?;
    wire::send(&ours, sockets)?;
    Ok((child, ours))
}
