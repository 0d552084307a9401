//! Subcommands: each queries the reconciler's API, formats the answer and prints it.
//!
//! Depends only on the views. Nothing here can change desired state.

use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Cli, Command, CompletionArgs, VersionArgs};

mod calls;
mod client;
mod describe;
mod error;
mod events;
mod get;
mod logs;
mod offline;
pub(crate) mod print;
mod secrets;
mod serve;
mod status;
mod sync;
#[cfg(test)]
mod tests;
mod top;
pub mod up;
mod wait;

pub use error::CliError;

use client::Client;
use offline::{explain, preview, simulate, validate};
use print::output::{complain, write_out};

const BY_HAND: &str = "what runs is what the repository says, and no command changes it; commit the change and \
                       push it, then 'minik8s wait --for healthy'; 'minik8s plan' shows beforehand what it would do";

/// Runs one command; prints an error as one line on stderr.
pub async fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Up(args) => return exit(up::run(*args).await),
        Command::Down(args) => return exit(up::down::run(args).await),
        Command::Serve(args) => return exit(Box::pin(serve::run(*args)).await),
        // Its exit code 2 means that there are changes, so wrong usage must not end with 2.
        Command::Plan(args) => return code(preview::run(&args).await.map_err(CliError::without_usage)),
        Command::FindComment(args) => preview::find_comment(&args),
        Command::Validate(args) => return validate::run(&args),
        Command::Secrets(args) => return exit(secrets::run(&args).await),
        Command::Simulate(args) => return code(simulate::run(&args)),
        Command::Schema(args) => explain::schema(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Status(args) => status::run(&args).await,
        Command::Get(args) => get::run(&args).await,
        Command::Describe(args) => describe::run(&args).await,
        Command::History(args) => get::history(&args).await,
        Command::Events(args) => events::run(&args).await,
        Command::Logs(args) => logs::run(&args).await,
        Command::Top(args) => top::run(&args).await,
        Command::Wait(args) => wait::run(&args).await,
        Command::Sync(args) => sync::run(&args).await,
        Command::Invoke(args) => return code(calls::invoke::run(&args).await),
        Command::Run(args) => return code(calls::run::run(&args).await),
        Command::Results(args) => logs::results::run(&args).await,
        Command::Apply(_) => Err(CliError::Usage(BY_HAND.to_owned())),
        Command::Version(args) => version(&args).await,
        Command::Completion(args) => completion(&args),
    };
    code(outcome.map(|()| ExitCode::SUCCESS))
}

/// Converts an outcome to the exit code; prints an error as one line on stderr.
fn code(outcome: Result<ExitCode, CliError>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        // The reader went away: `minik8s get pods | head -1` is no failure.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            error.exit_code()
        }
    }
}

fn exit<E: Into<anyhow::Error>>(outcome: Result<ExitCode, E>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        complain(&format!("{:#}", error.into()));
        ExitCode::FAILURE
    })
}

async fn version(args: &VersionArgs) -> Result<(), CliError> {
    write_out(&format!("client  {}\n", env!("CARGO_PKG_VERSION")))?;
    if args.client {
        return Ok(());
    }
    let client = Client::new(&args.server.server)?;
    let server: crate::view::VersionView = client.get(&["version"], &[]).await?;
    write_out(&format!("server  {} ({} at {})\n", server.version, server.name, client.server()))
}

fn completion(args: &CompletionArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "minik8s", &mut script);
    write_out(&String::from_utf8_lossy(&script))
}
