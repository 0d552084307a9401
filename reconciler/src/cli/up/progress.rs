//! What `up` shows while it runs: each change of what the cluster waits for, once.

use std::fs;
use std::io::IsTerminal as _;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::record::StateDir;
use crate::view::SyncRun;

/// Marks, in `run/`, that the repository was healthy once since this `up` began.
const HEALTHY_FILE: &str = "healthy";
/// Marks, in `run/`, that the repository can't become healthy without a change. Its content is why.
const FAILED_FILE: &str = "failed";
/// Time between two looks while something is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// Time between two looks while all is well.
const LOOK_EVERY_HEALTHY: Duration = Duration::from_secs(3);

/// Answer of `/v1/wait-state`.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct WaitState {
    synced: bool,
    healthy: bool,
    failed: bool,
    why: String,
}

/// Of `/v1/status`, whether the repository was looked at.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    last_sync: Option<SyncRun>,
}

/// Prints changes until `shutdown`.
pub(super) async fn show(api_url: String, state: StateDir, shutdown: CancellationToken) {
    let client = reqwest::Client::new();
    let (mut last, mut looked) = (WaitState::default(), false);
    unmark(&state);
    while !shutdown.is_cancelled() {
        let now = get::<WaitState>(&client, &format!("{api_url}/v1/wait-state")).await;
        if let Some(now) = now {
            mark(&state, &now, looked);
            if now != last {
                println!("{}", line(&now));
                last = now;
            }
        }
        // Before the repository was looked at, a failure is that of an earlier run. Asked after the state,
        // so that what the look came to is in the next state.
        if !looked {
            let status = get::<Status>(&client, &format!("{api_url}/v1/status")).await;
            looked = status.and_then(|status| status.last_sync).is_some_and(|run| run.error.is_none());
        }
        tokio::select! {
            // Cancel-safe: both are plain waits.
            () = shutdown.cancelled() => {}
            () = sleep(if last.healthy { LOOK_EVERY_HEALTHY } else { LOOK_EVERY }) => {}
        }
    }
}

/// What the marks say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Marked {
    Nothing,
    Healthy,
    /// It can't become healthy without a change, and why.
    Failed(String),
}

/// What the `up` in the background has marked.
pub(super) fn marked(state: &StateDir) -> Marked {
    if state.run_file(HEALTHY_FILE).exists() {
        return Marked::Healthy;
    }
    fs::read_to_string(state.run_file(FAILED_FILE)).map_or(Marked::Nothing, Marked::Failed)
}

/// Takes the marks of an earlier `up` back.
pub(super) fn unmark(state: &StateDir) {
    for file in [HEALTHY_FILE, FAILED_FILE] {
        let _ = fs::remove_file(state.run_file(file));
    }
}

fn mark(state: &StateDir, now: &WaitState, looked: bool) {
    let failed = state.run_file(FAILED_FILE);
    if now.failed && looked {
        let draft = failed.with_extension("new");
        // Whole at once: who waits for it reads it as soon as it is there.
        let _ = fs::write(&draft, &now.why).and_then(|()| fs::rename(&draft, &failed));
    } else {
        let _ = fs::remove_file(failed);
    }
    if now.healthy {
        let _ = fs::write(state.run_file(HEALTHY_FILE), b"");
    }
}

async fn get<T: DeserializeOwned>(client: &reqwest::Client, url: &str) -> Option<T> {
    let answer = client.get(url).timeout(Duration::from_secs(2)).send().await.ok()?;
    answer.json().await.ok()
}

fn line(state: &WaitState) -> String {
    match state {
        WaitState { healthy: true, .. } => {
            // In the background there is no Ctrl-C.
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
    use serde_json::{Value, json};

    use super::*;

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
        assert_eq!(marked(&state), Marked::Nothing, "it may be that of an earlier run");
        mark(&state, &failed(), true);
        assert_eq!(marked(&state), Marked::Failed("source main: quarantined".to_owned()));
        mark(&state, &WaitState { synced: true, ..WaitState::default() }, true);
        assert_eq!(marked(&state), Marked::Nothing);
        mark(&state, &WaitState { healthy: true, ..WaitState::default() }, true);
        assert_eq!(marked(&state), Marked::Healthy);
        unmark(&state);
        assert_eq!(marked(&state), Marked::Nothing);
    }

    #[tokio::test]
    async fn what_the_api_says_is_marked_for_who_waits() {
        async fn wait_state() -> Json<Value> {
            Json(json!({"synced": true, "healthy": false, "failed": true, "why": "it can't be"}))
        }
        async fn status() -> Json<Value> {
            Json(json!({"lastSync": {"startedAt": "2026-01-01T00:00:00Z", "tookMs": 1}}))
        }
        let router =
            axum::Router::new().route("/v1/wait-state", get(wait_state)).route("/v1/status", get(status));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let (_dir, state) = state_dir();
        let shutdown = CancellationToken::new();
        let shown = tokio::spawn(show(url, state.clone(), shutdown.clone()));
        let seen = async {
            while marked(&state) == Marked::Nothing {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap();
        assert_eq!(marked(&state), Marked::Failed("it can't be".to_owned()));
        shutdown.cancel();
        shown.await.unwrap();
    }
}
