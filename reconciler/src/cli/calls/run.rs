//! `minik8s run`: asks for a run of a workflow, and waits for its end if told to.

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
    match tokio::time::timeout(args.timeout, wait(&client, &path)).await {
        Ok(ended) => ended,
        Err(_) => Err(CliError::NotReached(format!(
            "run {name}/{} has not ended within {:?}; it goes on",
            accepted.id, args.timeout
        ))),
    }
}

/// Until the run has ended. A reconciler that is away, or has lost etcd, is asked again.
async fn wait(client: &Client, path: &[&str]) -> Result<ExitCode, CliError> {
    let summary = [path, &["summary"]].concat();
    let row = until_answered(client, &summary, |row: &RunView| row.phase != RunPhase::Running).await?;
    if row.phase != RunPhase::Succeeded {
        let RunView { workflow, id, phase, state, error, cause, .. } = &row;
        complain(&format!("run {workflow}/{id} {phase:?} in state {state}: {error} {cause}"));
        return Ok(ExitCode::FAILURE);
    }
    let run = until_answered(client, path, |_: &RunDetail| true).await?;
    write_out(&format!("{}\n", run.output.unwrap_or_default()))?;
    Ok(ExitCode::SUCCESS)
}

async fn until_answered<T: DeserializeOwned>(
    client: &Client,
    path: &[&str],
    is_it: impl Fn(&T) -> bool,
) -> Result<T, CliError> {
    loop {
        match client.get::<T>(path, &[]).await {
            Ok(answer) if is_it(&answer) => return Ok(answer),
            Ok(_) => {}
            // The leader has not begun it yet.
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
