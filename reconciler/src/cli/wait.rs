//! `minik8s wait`: polls until the goal is reached, can't be reached, or the time is over.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::time::Instant;

use super::client::Client;
use super::error::CliError;
use super::output::{note, write_out};
use crate::args::{Goal, WaitArgs};
use crate::view::{WaitState, short};

const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(super) async fn run(args: &WaitArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let reached = until(&client, args.goal, args.commit.as_deref(), args.timeout).await?;
    let commit = reached.commit.as_deref().map(short).unwrap_or_default().to_owned();
    let line = match args.goal {
        Goal::Healthy => format!("commit {commit} is applied and healthy\n"),
        Goal::Synced => format!("commit {commit} is applied\n"),
    };
    write_out(&line)
}

/// Polls until the goal is reached and returns the state.
pub(super) async fn until(
    client: &Client,
    goal: Goal,
    commit: Option<&str>,
    timeout: Duration,
) -> Result<WaitState, CliError> {
    let deadline = Instant::now() + timeout;
    let query: Vec<(&str, &str)> = commit.map(|c| ("commit", c)).into_iter().collect();
    let (word, progress) = match goal {
        Goal::Synced => ("synced", std::io::stderr().is_terminal()),
        Goal::Healthy => ("healthy", std::io::stderr().is_terminal()),
    };
    let mut why = String::new();
    loop {
        let asked = client.get::<WaitState>(&["wait-state"], &query);
        let now = match tokio::time::timeout_at(deadline, asked).await {
            // The answer takes longer than the remaining time: the last known reason stands.
            Err(_) => why.clone(),
            Ok(Ok(state)) if is_reached(&state, goal) => return Ok(state),
            Ok(Ok(state)) => {
                let failed = state.failed;
                let why = unreached_reason(goal, state);
                if failed {
                    return Err(CliError::NotReached(format!("not {word}: {why}")));
                }
                why
            }
            Ok(Err(error)) if error.is_transient() => error.to_string(),
            Ok(Err(error)) => return Err(error),
        };
        if progress && now != why {
            note(&format!("waiting: {now}"));
        }
        why = now;
        if Instant::now() + POLL_INTERVAL >= deadline {
            let seconds = timeout.as_secs_f64();
            return Err(CliError::NotReached(format!("not {word} after {seconds}s: {why}")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn is_reached(state: &WaitState, goal: Goal) -> bool {
    match goal {
        Goal::Synced => state.synced && state.missing.is_none(),
        Goal::Healthy => state.healthy,
    }
}

/// Reason that the goal is not reached; says if the rest of the commit is applied.
fn unreached_reason(goal: Goal, state: WaitState) -> String {
    match (goal, state.missing) {
        (Goal::Synced, Some(missing)) => {
            let commit = state.commit.as_deref().map_or("it", short);
            format!("commit {commit} is applied in part: {missing}")
        }
        _ => state.why,
    }
}
