//! `minik8s run`: asks for a run of a workflow, and waits for its end if told to.

use std::process::ExitCode;
use std::time::Duration;

use schema::kinds::workflow::RunPhase;
use schema::meta::DEFAULT_NAMESPACE;
use serde_json::Value as Json;
use tokio::time::Instant;

use super::given;
use crate::args::RunArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::print::output::{complain, note, write_out};
use crate::view::{RunAccepted, RunBody, RunDetail};

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
    let deadline = Instant::now() + args.timeout;
    let path = ["runs", namespace, name, &accepted.id];
    loop {
        match client.get::<RunDetail>(&path, &[]).await {
            Ok(run) if run.row.phase != RunPhase::Running => return ended(&run),
            Ok(_) => {}
            // The leader has not begun it yet.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        if Instant::now() >= deadline {
            let why =
                format!("run {name}/{} has not ended within {:?}; it goes on", accepted.id, args.timeout);
            return Err(CliError::NotReached(why));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn ended(run: &RunDetail) -> Result<ExitCode, CliError> {
    if let Some(output) = &run.output {
        write_out(&format!("{output}\n"))?;
    }
    if run.row.phase == RunPhase::Succeeded {
        return Ok(ExitCode::SUCCESS);
    }
    let row = &run.row;
    complain(&format!(
        "run {}/{} {:?} in state {}: {} {}",
        row.workflow, row.id, row.phase, row.state, row.error, row.cause
    ));
    Ok(ExitCode::FAILURE)
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
