//! `up --detach`: runs `up` in the background and shows its output until the repository is healthy, or can't
//! become so.

use std::env;
use std::fs::File;
use std::io::{Read, Write as _};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use schema::control::{DiskRecord, Fsync};
use schema::violation::visible;
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::record::UpRecord;
use super::state::StateDir;
use crate::cli::client::Client;
use crate::cli::output::print_error;
use crate::view::{ClusterStatus, WaitState};

const HEALTHY_WITHIN: Duration = Duration::from_secs(180);
/// Interval between looks at the mark of the daemons' progress.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Outcome of `up`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Came up, and was ended by a signal.
    Ended,
    Running,
    /// Runs in the background, but the repository did not become healthy, or can't without a change.
    Unhealthy,
    /// Did not come up; the reason was printed.
    Failed,
}

/// Starts this program again without `--detach`, and returns once the repository is healthy, or
/// can't become so without a change.
pub(super) async fn run(state: &StateDir, record: &UpRecord) -> Result<Outcome> {
    if let Some(pid) = state.running() {
        println!("already running as process {pid} on {}", state.root().display());
        return Ok(Outcome::Running);
    }
    let log = state.log("up");
    let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let err = out.try_clone().with_context(|| format!("cannot write {}", log.display()))?;
    let mut shown = File::open(&log).with_context(|| format!("cannot read {}", log.display()))?;
    remove_mark(state);
    let args: Vec<_> = env::args_os().skip(1).filter(|arg| arg != "--detach").collect();
    let mut child = Command::new(env::current_exe().context("cannot find the path of this program")?)
        .args(args)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()
        .context("cannot start 'minik8s up' in the background")?;
    let deadline = Instant::now() + HEALTHY_WITHIN;
    let sources = format!("{} and {}", record.command("status"), log.display());
    loop {
        let ended = child.try_wait().context("cannot wait for 'minik8s up'")?;
        let marked = read_mark(state);
        show_new(&mut shown)?;
        if let Some(status) = ended {
            return Ok(if status.success() { Outcome::Ended } else { Outcome::Failed });
        }
        if let Some(outcome) = judge(marked, deadline, &sources) {
            return Ok(outcome);
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Shows the progress of daemons that something else runs, until the wait is over. `logs` is where their logs are.
pub(super) async fn until_healthy(record: &UpRecord, state: &StateDir, logs: &str) -> Outcome {
    remove_mark(state);
    // Ends with this function.
    let mut shown = JoinSet::new();
    shown.spawn(show(record.server(), state.clone(), ""));
    let deadline = Instant::now() + HEALTHY_WITHIN;
    let sources = format!("{} and {logs}", record.command("status"));
    loop {
        if let Some(outcome) = judge(read_mark(state), deadline, &sources) {
            return outcome;
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Outcome of the wait if it is over, with the reason on stderr if that is not a good one, and the `sources` that tell
/// more.
fn judge(marked: Option<ProgressMark>, deadline: Instant, sources: &str) -> Option<Outcome> {
    match marked {
        Some(ProgressMark::Healthy) => return Some(Outcome::Running),
        Some(ProgressMark::Failed(why)) => {
            print_error(&format!(
                "{why}; push a commit that fixes it; the daemons keep running in the background: see {sources}"
            ));
            return Some(Outcome::Unhealthy);
        }
        None => {}
    }
    if Instant::now() < deadline {
        return None;
    }
    eprintln!(
        "minik8s: not healthy after {} s; the daemons keep running in the background: see {sources}",
        HEALTHY_WITHIN.as_secs()
    );
    Some(Outcome::Unhealthy)
}

fn show_new(log: &mut File) -> Result<()> {
    let mut text = Vec::new();
    log.read_to_end(&mut text).context("cannot read the log of 'minik8s up'")?;
    std::io::stdout().write_all(&text).context("cannot write to standard output")
}

// Progress output of `up`: prints each change of the pending work once.

const POLL_INTERVAL: Duration = Duration::from_millis(300);
const POLL_INTERVAL_HEALTHY: Duration = Duration::from_secs(3);

/// Prints a line, and further ones below its second column. Ignores a closed stdout, because the daemons must keep
/// running.
pub(super) fn print_line(line: &str) {
    let lines: Vec<_> = line.lines().map(visible).collect();
    let _ = writeln!(std::io::stdout(), "{}", lines.join("\n            "));
}

/// Prints changes until it is cancelled; `hint` ends the line about a healthy repository.
pub(super) async fn show(server: String, state: StateDir, hint: &'static str) {
    let Ok(client) = Client::new(Some(&server)) else { return };
    remove_mark(&state);
    let (mut last, mut looked) = (WaitState::default(), false);
    loop {
        if let Ok(now) = client.get::<WaitState>(&["wait-state"], &[]).await {
            mark(&state, &now, looked);
            if now != last {
                print_line(&line(&now, hint));
                last = now;
            }
        }
        // A failure before the first sync is that of an earlier run. Queried after the wait state, so that the next
        // wait state is newer than the sync.
        if !looked {
            let status = client.get::<ClusterStatus>(&["status"], &[]).await.ok();
            looked = status.and_then(|status| status.last_sync).is_some_and(|run| run.error.is_none());
        }
        sleep(if last.healthy { POLL_INTERVAL_HEALTHY } else { POLL_INTERVAL }).await;
    }
}

/// State of the repository since this `up` began.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ProgressMark {
    /// Was healthy once.
    Healthy,
    /// Can't become healthy without a change, with the reason.
    Failed(String),
}

fn mark_file(state: &StateDir) -> DiskRecord {
    DiskRecord::new(state.run_file("progress.json")).fsync(Fsync::None)
}

/// Reads the mark of the `up` in the background.
pub(super) fn read_mark(state: &StateDir) -> Option<ProgressMark> {
    mark_file(state).read().ok().flatten()
}

/// Removes the mark of an earlier `up`.
pub(super) fn remove_mark(state: &StateDir) {
    let _ = mark_file(state).remove();
}

fn mark(state: &StateDir, now: &WaitState, looked: bool) {
    let mark = match now {
        WaitState { healthy: true, .. } => Some(ProgressMark::Healthy),
        WaitState { failed: true, why, .. } if looked => Some(ProgressMark::Failed(why.clone())),
        _ => None,
    };
    match (read_mark(state), mark) {
        (Some(ProgressMark::Healthy), _) => {}
        (_, Some(mark)) => drop(mark_file(state).write(&mark)),
        (_, None) => remove_mark(state),
    }
}

fn line(state: &WaitState, hint: &str) -> String {
    match state {
        WaitState { healthy: true, .. } => {
            format!("healthy     everything in the repository is running{hint}")
        }
        WaitState { failed: true, why, .. } => format!("failed      {why}"),
        WaitState { synced: true, why, .. } => format!("starting    {why}"),
        WaitState { why, .. } => format!("syncing     {why}"),
    }
}

#[cfg(test)]
mod tests {
    use axum::Json;
    use axum::routing::get;
    use jiff::Timestamp;
    use schema::snapshot::Snapshot;
    use serde_json::{Value, json};

    use super::*;
    use crate::view::{SyncRun, cluster_status};

    fn state_dir() -> (tempfile::TempDir, StateDir) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::create(dir.path()).unwrap();
        (dir, state)
    }

    fn failed() -> WaitState {
        WaitState {
            synced: true,
            failed: true,
            why: "source main: quarantined".to_owned(),
            ..WaitState::default()
        }
    }

    #[test]
    fn a_failure_is_marked_only_once_the_repository_was_looked_at_and_taken_back_when_it_is_mended() {
        let (_dir, state) = state_dir();
        mark(&state, &failed(), false);
        assert_eq!(read_mark(&state), None, "it may be that of an earlier run");
        mark(&state, &failed(), true);
        assert_eq!(read_mark(&state), Some(ProgressMark::Failed("source main: quarantined".to_owned())));
        mark(&state, &WaitState { synced: true, ..WaitState::default() }, true);
        assert_eq!(read_mark(&state), None);
        mark(&state, &WaitState { healthy: true, ..WaitState::default() }, true);
        assert_eq!(read_mark(&state), Some(ProgressMark::Healthy));
        remove_mark(&state);
        assert_eq!(read_mark(&state), None);
    }

    #[tokio::test]
    async fn what_the_api_says_is_marked_for_who_waits() {
        async fn wait_state() -> Json<Value> {
            Json(json!({"synced": true, "healthy": false, "failed": true, "why": "it can't be"}))
        }
        async fn status() -> Json<Value> {
            let now = Timestamp::UNIX_EPOCH;
            let last_sync = Some(SyncRun { started_at: now, took_ms: 1, error: None });
            Json(json!(ClusterStatus { last_sync, ..cluster_status(&Snapshot::default(), None, now) }))
        }
        let router =
            axum::Router::new().route("/v1/wait-state", get(wait_state)).route("/v1/status", get(status));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let (_dir, state) = state_dir();
        let seen = async {
            while read_mark(&state).is_none() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let both = async {
            tokio::select! {
                () = show(url, state.clone(), "") => {}
                () = seen => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
        assert_eq!(read_mark(&state), Some(ProgressMark::Failed("it can't be".to_owned())));
    }
}
