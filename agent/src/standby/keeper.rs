//! The agent's side: one process that waits, with the sockets that are in use now.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::{Handover, Sockets, wire};

/// DNS and gateway bind one after the other: one process is started for both. At the end the catalog is
/// written within this.
const SETTLE: Duration = Duration::from_millis(200);

/// The wait before one that ended by itself is started again.
const AGAIN: Duration = Duration::from_secs(5);

/// The agent's own program, also when its file was replaced meanwhile.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The process that waits, and the channel whose end makes it begin.
struct Waiting {
    child: Child,
    _channel: UnixStream,
}

/// Keeps such a process, with the newest sockets, until `shutdown`: then it goes on alone.
pub async fn keep(handover: Handover, shutdown: CancellationToken) {
    let mut bound = handover.0.bound.subscribe();
    let mut waiting: Option<Waiting> = None;
    loop {
        tokio::select! {
            // Cancel-safe: the token stays cancelled.
            () = shutdown.cancelled() => break,
            // Cancel-safe: a change that is not returned is seen by the next call.
            changed = bound.changed() => {
                if changed.is_err() {
                    break;
                }
                tokio::time::sleep(SETTLE).await;
                if let Some(mut former) = waiting.take() {
                    // Before its channel closes, which would make it begin.
                    let _ = former.child.kill().await;
                }
                waiting = renew(&handover, &bound.borrow_and_update().clone());
            }
            // Cancel-safe: the process can be waited for again.
            ended = ended(waiting.as_mut()) => {
                tracing::warn!(%ended, "the process that waits in the agent's place ended; it is started again");
                // Cancel-safe: the token stays cancelled.
                if shutdown.run_until_cancelled(tokio::time::sleep(AGAIN)).await.is_none() {
                    break;
                }
                waiting = renew(&handover, &bound.borrow_and_update().clone());
            }
        }
    }
    if waiting.is_none() {
        waiting = renew(&handover, &bound.borrow().clone());
    }
    tokio::time::sleep(SETTLE).await;
    drop(waiting);
}

/// What the process ended with; for ever if there is none.
async fn ended(waiting: Option<&mut Waiting>) -> String {
    let Some(waiting) = waiting else { return std::future::pending().await };
    match waiting.child.wait().await {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

fn renew(handover: &Handover, sockets: &Sockets) -> Option<Waiting> {
    if sockets.is_empty() {
        return None;
    }
    match start(sockets) {
        Ok(waiting) => {
            handover.release_giver();
            Some(waiting)
        }
        Err(error) => {
            tracing::warn!(%error, "no process can be started to answer names while no agent runs");
            None
        }
    }
}

/// Starts it in a group of its own: what ends the agent's does not end it.
fn start(sockets: &Sockets) -> io::Result<Waiting> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(OWN_PROGRAM);
    let mut arguments = std::env::args_os();
    // Else `ps` shows the link's name.
    command.arg0(arguments.next().unwrap_or_else(|| "minik8s-agent".into()));
    // As this process was started, but for the word that says what to do.
    let mut has_verb = false;
    for argument in arguments {
        let is_word = !has_verb && argument == "run";
        has_verb |= is_word;
        command.arg(if is_word { "standby".into() } else { argument });
    }
    if !has_verb {
        return Err(io::Error::other("this program was not started by 'minik8s-agent run'"));
    }
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).process_group(0);
    let child = command.spawn()?;
    wire::send(&ours, sockets)?;
    Ok(Waiting { child, _channel: ours })
}
