//! `minik8s run`: requests a run of a workflow, and with `--wait` waits for its end.

use std::process::ExitCode;
use std::time::Duration;

use schema::kinds::workflow::RunPhase;
use schema::meta::DEFAULT_NAMESPACE;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::given;
use crate::args::RunArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::print::output::{complain, note, write_out};
use crate::view::{RunAccepted, RunBody, RunDetail, RunView};

const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(in crate::cli) async fn run(args: &RunArgs) -> Result<ExitCode, CliError> {
    let client = Client::new(&args.server.server)?;
    let input = input(args)?;
    let (namespace, name) = match args.workflow.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => (args.namespace.selected().unwrap_or(DEFAULT_NAMESPACE), args.workflow.as_str()),
    };
    let asked = RunBody { input, id: args.id.clone() };
    let accepted: RunAccepted = client.post_json(&["workflows", namespace, name, "runs"], &asked).await?;
    if !accepted.is_new {
        note(&format!("minik8s: run {} was asked for before; this is the same one", accepted.id));
    }
    if !args.wait {
        write_out(&format!("{}\n", accepted.id))?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = ["runs", namespace, name, &accepted.id];
    let mut has_begun = false;
    let ended = tokio::time::timeout(args.timeout, wait(&client, &path, &mut has_begun)).await;
    ended.unwrap_or_else(|_| {
        let (id, after) = (&accepted.id, args.timeout);
        Err(CliError::NotReached(if has_begun {
            format!("run {name}/{id} has not ended within {after:?}; it goes on")
        } else {
            format!(
                "run {name}/{id} was not seen to begin within {after:?}; see whether runs wait with 'minik8s get workflows'"
            )
        }))
    })
}

/// Waits until the run has ended. Retries while the reconciler is unreachable or has lost etcd.
async fn wait(client: &Client, path: &[&str], has_begun: &mut bool) -> Result<ExitCode, CliError> {
    let summary = [path, &["summary"]].concat();
    let row =
        until_answered(client, &summary, has_begun, |row: &RunView| row.phase != RunPhase::Running).await?;
    if row.phase != RunPhase::Succeeded {
        let RunView { workflow, id, phase, state, error, cause, .. } = &row;
        complain(&format!("run {workflow}/{id} {phase:?} in state {state}: {error} {cause}"));
        return Ok(ExitCode::FAILURE);
    }
    let run = until_answered(client, path, has_begun, |_: &RunDetail| true).await?;
    write_out(&format!("{}\n", run.output.unwrap_or_default()))?;
    Ok(ExitCode::SUCCESS)
}

async fn until_answered<T: DeserializeOwned>(
    client: &Client,
    path: &[&str],
    has_begun: &mut bool,
    is_it: impl Fn(&T) -> bool,
) -> Result<T, CliError> {
    loop {
        match client.get::<T>(path, &[]).await {
            Ok(answer) if is_it(&answer) => {
                *has_begun = true;
                return Ok(answer);
            }
            Ok(_) => *has_begun = true,
            Err(error) if error.is_not_found() && *has_begun => {
                let run = path[1..4].join("/");
                return Err(CliError::NotReached(format!(
                    "run {run} is no longer kept: how it ended is not known; see the workflow's \
                     ttlSecondsAfterFinished and runsHistoryLimit"
                )));
            }
            // The leader has not started the run yet.
            Err(error) if error.is_not_found() || error.may_pass() => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn input(args: &RunArgs) -> Result<Option<Json>, CliError> {
    let text = match given(args.data.as_ref(), args.file.as_deref())? {
        Some(text) => text,
        None => return Ok(None),
    };
    let wrong =
        |error| CliError::Usage(format!("not valid JSON: {error}; write an input such as {{\"n\": 1}}"));
    serde_json::from_str(&text).map(Some).map_err(wrong)
}
