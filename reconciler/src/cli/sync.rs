//! `minik8s sync`: asks for a look at the repository now, and waits for it if told to.

use std::time::Duration;

use tokio::time::Instant;

use super::client::Client;
use super::error::CliError;
use super::output::write_out;
use super::wait;
use crate::args::{Goal, SyncArgs};
use crate::view::{ClusterStatus, SourceView, SyncAccepted, short};

/// Between two questions.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn run(args: &SyncArgs) -> Result<(), CliError> {
    let client = Client::new(&args.server.server)?;
    let accepted: SyncAccepted = client.post(&["sync"]).await?;
    if !args.wait {
        return write_out("the reconciler looks at the repository now\n");
    }
    let deadline = Instant::now() + args.timeout;
    let status = loop {
        let status: ClusterStatus = client.get(&["status"], &[]).await?;
        match &status.last_sync {
            Some(run) if run.started_at >= accepted.at => {
                if let Some(error) = &run.error {
                    return Err(CliError::NotReached(format!("the sync failed: {error}")));
                }
                break status;
            }
            Some(_) => {}
            // Another reconciler leads, or this one tells nothing of its runs: the state must do.
            None => {
                let left = deadline.saturating_duration_since(Instant::now());
                wait::until(&client, Goal::Synced, None, left).await?;
                break client.get(&["status"], &[]).await?;
            }
        }
        if Instant::now() >= deadline {
            let seconds = args.timeout.as_secs_f64();
            return Err(CliError::NotReached(format!("the sync did not end within {seconds}s")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    status.sources.iter().try_for_each(|source| write_out(&line(source)))?;
    match status.sources.iter().find_map(|source| source.status.error.as_ref()) {
        Some(error) => Err(CliError::NotReached(error.message.clone())),
        None => Ok(()),
    }
}

fn line(source: &SourceView) -> String {
    let name = &source.status.name;
    match &source.status.applied_commit {
        Some(commit) => format!("source {name}: {:?} at commit {}\n", source.status.state, short(commit)),
        None => format!("source {name}: no commit is applied yet\n"),
    }
}
