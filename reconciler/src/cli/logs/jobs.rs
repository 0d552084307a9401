//! `minik8s logs job/NAME`: output from the login host while the job runs, later from the node that keeps it.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use reqwest::Response;

use crate::args::LogsArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::output::{note, write_bytes};
use crate::view::{JobDetail, root_cause};

/// Interval between polls for more output: each is a command on the login host.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);
/// Longest time to retry a lost connection: as long as a reconciler takes to restart.
const LOST_MAX: Duration = Duration::from_secs(120);

pub(super) async fn run(client: &Client, args: &LogsArgs, name: &str) -> Result<(), CliError> {
    let is_cut = args.tail.is_some() || args.since.is_some() || args.grep.is_some();
    if is_cut || args.timestamps || args.previous {
        let why = "the output of a job is printed as a whole; leave out --tail, --since, --grep, --timestamps and \
                   -p";
        return Err(CliError::Usage(why.to_owned()));
    }
    let path = ["jobs", args.namespace.as_str(), name, "output"];
    let stderr = args.stderr.then_some(("stderr", "true"));
    if args.follow {
        return follow(client, &path, stderr).await;
    }
    let query: Vec<_> = stderr.into_iter().collect();
    let answer = client.stream(&path, &query).await?;
    print_stream(client, answer).await
}

/// Polls for new output until the job has ended and all of it is printed. Reconnects after a lost connection and
/// continues with the next byte.
async fn follow(client: &Client, path: &[&str; 4], stderr: Option<(&str, &str)>) -> Result<(), CliError> {
    let mut shown = FollowProgress::default();
    let mut lost: Option<Instant> = None;
    loop {
        let before = shown.from;
        match follow_once(client, path, stderr, &mut shown).await {
            Ok(true) => return Ok(()),
            Ok(false) => lost = None,
            Err(error) if shown.is_begun && is_retryable(&error) => {
                if lost.is_none() {
                    note(&format!("minik8s: {error}; retrying for {LOST_MAX:?}"));
                }
                if lost.get_or_insert_with(Instant::now).elapsed() > LOST_MAX {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        if shown.from == before {
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    }
}

/// Progress of printing the output.
#[derive(Default)]
struct FollowProgress {
    from: u64,
    /// Set once the server has answered.
    is_begun: bool,
    phase: String,
}

/// Prints new output. Returns true if the job had already ended, so that the output is complete.
async fn follow_once(
    client: &Client,
    path: &[&str; 4],
    stderr: Option<(&str, &str)>,
    shown: &mut FollowProgress,
) -> Result<bool, CliError> {
    // Fetched before the output, so that the output of an ended job is complete.
    let job: JobDetail = client.get(&path[..3], &[]).await?;
    shown.is_begun = true;
    let has_ended = job.report.is_some_and(|report| report.status.phase.is_final());
    let at = shown.from.to_string();
    let query: Vec<_> = stderr.into_iter().chain([("from", at.as_str())]).collect();
    // A job without a node has no output yet.
    if job.row.node.is_some() {
        let mut chunks = client.stream(path, &query).await?.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| interrupted_error(client, &error))?;
            shown.from += chunk.len() as u64;
            write_bytes(&chunk)?;
        }
    }
    if has_ended {
        note(&format!("minik8s: the job has ended: {}", job.row.phase));
    } else if shown.from == 0 && shown.phase != job.row.phase {
        note(&format!("minik8s: no output yet: the job is {}", job.row.phase));
        shown.phase = job.row.phase;
    }
    Ok(has_ended)
}

/// True if a retry may help: no answer, or a server that got no answer itself.
fn is_retryable(error: &CliError) -> bool {
    match error {
        CliError::Reach { .. } | CliError::ReadAnswer { .. } => true,
        CliError::Refused { status, .. } => *status >= 500,
        _ => false,
    }
}

// Prints a streamed response.

pub(super) async fn print_stream(client: &Client, answer: Response) -> Result<(), CliError> {
    let mut chunks = answer.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        write_bytes(&chunk.map_err(|error| interrupted_error(client, &error))?)?;
    }
    Ok(())
}

pub(super) fn interrupted_error(client: &Client, error: &reqwest::Error) -> CliError {
    client.unreachable(format!("the log was cut off: {}", root_cause(error)))
}
