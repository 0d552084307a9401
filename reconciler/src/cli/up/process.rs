//! Ends processes.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

/// Time between SIGTERM and SIGKILL.
pub(super) const END_WITHIN: Duration = Duration::from_secs(20);

/// Ends a process that is not a child: sends the signal, waits up to [`END_WITHIN`], then sends SIGKILL.
pub(crate) async fn end_process(pid: i32, signal: Signal) {
    let process = Pid::from_raw(pid);
    let _ = kill(process, signal);
    let deadline = Instant::now() + END_WITHIN;
    while is_alive(pid) {
        if Instant::now() >= deadline {
            let _ = kill(process, Signal::SIGKILL);
            return;
        }
        // There is no event for the end of a process that is not a child.
        sleep(Duration::from_millis(50)).await;
    }
}

/// True if the process exists and has not ended (a zombie has).
fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}
