//! The agent's side: keeps one standby process, supplied with the sockets in use.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::{Handover, Sockets, wire};

/// Delay that combines the binds of DNS and gateway, which follow each other, into one start of the process. At
/// shutdown, the catalog is written within this time.
const SETTLE: Duration = Duration::from_millis(200);

/// Wait before a process that ended by itself is restarted.
const AGAIN: Duration = Duration::from_secs(5);

/// The agent's own program, even if its file was replaced meanwhile.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// A standby process, and the channel whose end makes it start serving.
struct StandbyProcess {
    child: Child,
    _channel: UnixStream,
}

/// Keeps a standby supplied with sockets until `shutdown`, then leaves it running.
pub async fn keep(handover: Handover, shutdown: CancellationToken) {
    let mut bound = handover.0.bound.subscribe();
    let mut waiting: Option<StandbyProcess> = None;
    loop {
        tokio::select! {
            // Cancel-safe: the token stays cancelled.
            () = shutdown.cancelled() => break,
            // Cancel-safe: a change that is not returned is found by the next call.
            changed = bound.changed() => {
                if changed.is_err() {
                    break;
                }
                tokio::time::sleep(SETTLE).await;
                if let Some(mut former) = waiting.take() {
                    // Before its channel closes, which would make it start serving.
                    let _ = former.child.kill().await;
                }
                waiting = renew(&handover, &bound.borrow_and_update().clone());
            }
            // Cancel-safe: the process can be waited for again.
            ended = wait_for_exit(waiting.as_mut()) => {
                tracing::warn!(status = ended, "standby process ended; it is started again");
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

/// Returns the exit status of the process once it ends; never returns if there is none.
async fn wait_for_exit(waiting: Option<&mut StandbyProcess>) -> String {
    let Some(waiting) = waiting else { return std::future::pending().await };
    match waiting.child.wait().await {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

fn renew(handover: &Handover, sockets: &Sockets) -> Option<StandbyProcess> {
    if sockets.is_empty() {
        return None;
    }
    match start(sockets) {
        Ok(waiting) => {
            handover.release_giver();
            Some(waiting)
        }
        Err(error) => {
            tracing::warn!(%error, "standby process not started; names get no answer while no agent runs");
            None
        }
    }
}

/// Starts the process in a separate process group, so that it survives the end of the agent's.
fn start(sockets: &Sockets) -> io::Result<StandbyProcess> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(OWN_PROGRAM);
    let mut arguments = std::env::args_os();
    // Otherwise `ps` would show the link's name.
    command.arg0(arguments.next().unwrap_or_else(|| "minik8s-agent".into()));
    // The same arguments as this process, except for the subcommand.
    let mut has_verb = false;
    while let Some(argument) = arguments.next() {
        let is_word = !has_verb && (argument == "run" || argument == "join");
        has_verb |= is_word;
        // Of `join`: it is spent, and all users of the machine can read command lines.
        if argument == "--token" {
            drop(arguments.next());
        } else if !argument.as_bytes().starts_with(b"--token=") {
            command.arg(if is_word { "standby".into() } else { argument });
        }
    }
    if !has_verb {
        return Err(io::Error::other("this program was not started by 'minik8s-agent run' or 'join'"));
    }
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).process_group(0);
    let child = command.spawn()?;
    wire::send(&ours, sockets)?;
    Ok(StandbyProcess { child, _channel: ours })
}
