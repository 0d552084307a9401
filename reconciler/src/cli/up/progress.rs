//! What `up` shows while it runs: each change of what the cluster waits for, once.

use std::fs;
use std::io::IsTerminal as _;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::record::StateDir;

/// Marks, in `run/`, that the repository was healthy once since this `up` began. Its content is the
/// last thing that was waited for, or empty.
pub(super) const HEALTHY_FILE: &str = "healthy";
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

/// Prints changes until `shutdown`.
pub(super) async fn show(api_url: String, state: StateDir, shutdown: CancellationToken) {
    let client = reqwest::Client::new();
    let mut last = WaitState::default();
    let _ = fs::remove_file(state.run_file(HEALTHY_FILE));
    while !shutdown.is_cancelled() {
        if let Some(now) = look(&client, &api_url).await
            && now != last
        {
            println!("{}", line(&now));
            if now.healthy {
                let _ = fs::write(state.run_file(HEALTHY_FILE), b"");
            }
            last = now;
        }
        tokio::select! {
            // Cancel-safe: both are plain waits.
            () = shutdown.cancelled() => {}
            () = sleep(if last.healthy { LOOK_EVERY_HEALTHY } else { LOOK_EVERY }) => {}
        }
    }
}

async fn look(client: &reqwest::Client, api_url: &str) -> Option<WaitState> {
    let answer =
        client.get(format!("{api_url}/v1/wait-state")).timeout(Duration::from_secs(2)).send().await.ok()?;
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
