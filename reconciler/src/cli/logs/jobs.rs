//! `minik8s logs job/NAME`: from the login host while it runs, and afterwards from the node that keeps it.

use std::time::Duration;

use futures::StreamExt as _;

use super::printing::{broken_off, print_as_it_comes};
use crate::args::LogsArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::print::output::{note, write_bytes};
use crate::view::JobDetail;

/// Between two questions for more of what a job writes: each is a command on the login host.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(client: &Client, args: &LogsArgs, name: &str) -> Result<(), CliError> {
    if args.tail.is_some() || args.since.is_some() || args.timestamps || args.previous {
        let why = "the output of a job is printed as a whole; leave out --tail, --since, --timestamps and -p";
        return Err(CliError::Usage(why.to_owned()));
    }
    let path = ["jobs", args.namespace.as_str(), name, "output"];
    let stderr = args.stderr.then_some(("stderr", "true"));
    if args.follow {
        return follow(client, &path, stderr).await;
    }
    let query: Vec<_> = stderr.into_iter().collect();
    let answer = client.stream(&path, &query).await?;
    print_as_it_comes(client, answer).await
}

/// Asks for what came since, until the job has ended and all of it was printed.
async fn follow(client: &Client, path: &[&str; 4], stderr: Option<(&str, &str)>) -> Result<(), CliError> {
    let mut from: u64 = 0;
    let mut told = String::new();
    loop {
        // Before its output: what it wrote last is then in the answer.
        let job: JobDetail = client.get(&path[..3], &[]).await?;
        let has_ended = job.report.is_some_and(|report| report.status.phase.is_final());
        let at = from.to_string();
        let query: Vec<_> = stderr.into_iter().chain([("from", at.as_str())]).collect();
        let before = from;
        // Before a node has the job there is nothing to ask for.
        if job.row.node.is_some() {
            let mut chunks = client.stream(path, &query).await?.bytes_stream();
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.map_err(|error| broken_off(client, &error))?;
                from += chunk.len() as u64;
                write_bytes(&chunk)?;
            }
        }
        if has_ended {
            note(&format!("minik8s: the job has ended: {}", job.row.phase));
            return Ok(());
        }
        if from > before {
            continue;
        }
        if from == 0 && told != job.row.phase {
            note(&format!("minik8s: no output yet: the job is {}", job.row.phase));
            told = job.row.phase;
        }
        tokio::time::sleep(FOLLOW_EVERY).await;
    }
}
