//! Runs a command in a container, with limits on time and output. Docker can't end a command: one that takes too
//! long is killed from the host, or such commands would pile up with every check.

use std::time::Duration;

use bollard::Docker;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};
use tokio::time::{Instant, sleep, timeout_at};

use super::error::{READ, within};
use super::{DockerError, EXEC_OUTPUT_MAX, ExecEnd, ExecOutcome};

/// Longest wait for the engine to note the end of a command, which it does a moment after its output ended or after
/// a kill.
const END_NOTED: Duration = Duration::from_secs(2);
/// First interval at which that end is polled; it doubles.
const END_LOOK: Duration = Duration::from_millis(5);

/// Runs `command` in container `id`.
pub(super) async fn exec(
    client: &Docker,
    id: &str,
    command: &[String],
    timeout: Duration,
) -> Result<ExecOutcome, DockerError> {
    let options = CreateExecOptions {
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        cmd: Some(command.to_vec()),
        ..Default::default()
    };
    let made = within("to prepare a command", READ, client.create_exec(id, options)).await;
    let exec = made.map_err(|e| e.for_container(id))?.id;
    let start = StartExecOptions::default();
    let mut output = Vec::new();
    // The time limit starts here: the engine's time to prepare is not the container's fault.
    let deadline = Instant::now() + timeout;
    match within("to run a command", READ, client.start_exec(&exec, Some(start))).await {
        Ok(StartExecResults::Attached { output: mut stream, .. }) => {
            let read = async {
                while let Some(piece) = stream.next().await {
                    let piece = piece?.into_bytes();
                    let room = EXEC_OUTPUT_MAX - output.len();
                    output.extend_from_slice(&piece[..piece.len().min(room)]);
                }
                Ok::<(), bollard::errors::Error>(())
            };
            match timeout_at(deadline, read).await {
                Ok(done) => done.map_err(|e| DockerError::from_client("to return a command's output", &e))?,
                Err(_) => return end_overdue(client, &exec, id, output).await,
            }
        }
        Ok(StartExecResults::Detached) => {}
        // The container has no such program: the command fails, with the shell's code for that.
        Err(DockerError::Refused { status: 400 | 500, message, .. })
            if message.contains("OCI runtime exec") =>
        {
            return Ok(ExecOutcome { end: ExecEnd::Exited(126), output: message });
        }
        Err(other) => return Err(other),
    }
    let end = wait_for_exit_code(client, &exec).await?.map_or(ExecEnd::TimedOut, ExecEnd::Exited);
    Ok(ExecOutcome { end, output: text(&output) })
}

/// Ends a command whose time is up: kills it if it still runs.
async fn end_overdue(
    client: &Docker,
    exec: &str,
    id: &str,
    output: Vec<u8>,
) -> Result<ExecOutcome, DockerError> {
    let output = text(&output);
    let seen = within("to inspect a command", READ, client.inspect_exec(exec)).await?;
    if seen.running == Some(false)
        && let Some(code) = seen.exit_code
    {
        // The command ended in time; a child of it holds the output open.
        return Ok(ExecOutcome { end: ExecEnd::Exited(code), output });
    }
    if let Some(pid) = seen.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1) {
        let id = id.to_owned();
        // Wait for its end, so that the next check does not find it still running.
        let killed = tokio::task::spawn_blocking(move || kill_in(pid, &id)).await;
        if matches!(killed, Ok(true)) {
            let _ = wait_for_exit_code(client, exec).await;
        }
    }
    Ok(ExecOutcome { end: ExecEnd::TimedOut, output })
}

/// Kills the command and its process group, if the process is in the container's cgroup: the pid may have been
/// reused.
fn kill_in(pid: i32, id: &str) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    if !groups.contains(id) {
        tracing::debug!(pid, container_id = id, "command that took too long is gone already");
        return false;
    }
    let process = Pid::from_raw(pid);
    // The runtime makes a command a session leader; its children are in its group.
    if getpgid(Some(process)) == Ok(process) {
        let _ = kill(Pid::from_raw(-pid), Signal::SIGKILL);
    }
    let _ = kill(process, Signal::SIGKILL);
    true
}

/// Waits for the exit code; `None` if the engine has not noted the end within [`END_NOTED`].
async fn wait_for_exit_code(client: &Docker, exec: &str) -> Result<Option<i64>, DockerError> {
    let deadline = Instant::now() + END_NOTED;
    let mut wait = END_LOOK;
    loop {
        let seen = within("to inspect a command", READ, client.inspect_exec(exec)).await?;
        if seen.running == Some(false) && seen.exit_code.is_some() {
            return Ok(seen.exit_code);
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        sleep(wait).await;
        wait *= 2;
    }
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim().to_owned()
}
