//! Progress output of `up`: prints each change of the pending work once.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use schema::control::{DiskRecord, Fsync};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::record::StateDir;
use crate::cli::client::Client;
use crate::view::{ClusterStatus, WaitState};

const LOOK_EVERY: Duration = Duration::from_millis(300);
const LOOK_EVERY_HEALTHY: Duration = Duration::from_secs(3);

/// Prints a line. Ignores a closed stdout, because the daemons must keep running.
pub(super) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints changes until it is cancelled.
pub(super) async fn show(api_url: String, state: StateDir) {
    let Ok(client) = Client::new(&api_url) else { return };
    unmark(&state);
    let (mut last, mut looked) = (WaitState::default(), false);
    loop {
        if let Ok(now) = client.get::<WaitState>(&["wait-state"], &[]).await {
            mark(&state, &now, looked);
            if now != last {
                say(&line(&now));
                last = now;
            }
        }
        // A failure before the first sync is that of an earlier run. Queried after the wait state, so that the next
        // wait state is newer than the sync.
        if !looked {
            let status = client.get::<ClusterStatus>(&["status"], &[]).await.ok();
            looked = status.and_then(|status| status.last_sync).is_some_and(|run| run.error.is_none());
        }
        sleep(if last.healthy { LOOK_EVERY_HEALTHY } else { LOOK_EVERY }).await;
    }
}

/// State of the repository since this `up` began.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Marked {
    /// Was healthy once.
    Healthy,
    /// Can't become healthy without a change, with the reason.
    Failed(String),
}

fn mark_file(state: &StateDir) -> DiskRecord {
    DiskRecord::new(state.run_file("progress.json")).fsync(Fsync::None)
}

/// Reads the mark of the `up` in the background.
pub(super) fn marked(state: &StateDir) -> Option<Marked> {
    mark_file(state).read().ok().flatten()
}

/// Removes the mark of an earlier `up`.
pub(super) fn unmark(state: &StateDir) {
    let _ = mark_file(state).remove();
}

fn mark(state: &StateDir, now: &WaitState, looked: bool) {
    let mark = match now {
        WaitState { healthy: true, .. } => Some(Marked::Healthy),
        WaitState { failed: true, why, .. } if looked => Some(Marked::Failed(why.clone())),
        _ => None,
    };
    match (marked(state), mark) {
        (Some(Marked::Healthy), _) => {}
        (_, Some(mark)) => drop(mark_file(state).write(&mark)),
        (_, None) => unmark(state),
    }
}

fn line(state: &WaitState) -> String {
    match state {
        WaitState { healthy: true, .. } => {
            let hint = match std::io::stdout().is_terminal() {
                true => "; Ctrl-C ends the daemons and leaves the pods",
                false => "",
            };
            format!("healthy     everything the repository asks for runs{hint}")
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
        assert_eq!(marked(&state), None, "it may be that of an earlier run");
        mark(&state, &failed(), true);
        assert_eq!(marked(&state), Some(Marked::Failed("source main: quarantined".to_owned())));
        mark(&state, &WaitState { synced: true, ..WaitState::default() }, true);
        assert_eq!(marked(&state), None);
        mark(&state, &WaitState { healthy: true, ..WaitState::default() }, true);
        assert_eq!(marked(&state), Some(Marked::Healthy));
        unmark(&state);
        assert_eq!(marked(&state), None);
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
            while marked(&state).is_none() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let both = async {
            tokio::select! {
                () = show(url, state.clone()) => {}
                () = seen => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
        assert_eq!(marked(&state), Some(Marked::Failed("it can't be".to_owned())));
    }
}
