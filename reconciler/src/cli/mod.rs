//! Subcommands: each queries the reconciler's API, formats the answer and prints it.
//!
//! Depends only on the views. Nothing here can change desired state.

mod calls;
mod client;
mod describe;
mod error;
mod get;
pub(crate) mod kinds;
mod listing;
mod logs;
mod offline;
pub(super) mod output;
mod secrets;
mod server;
mod status;
mod sync;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
mod timeline;
mod top;
mod tree;
mod trust;
mod ui;
pub mod up;
mod wait;

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::config::{DEFAULT_STATE_DIR, ServeArgs, ServeConfig};
use crate::args::{
    Cli, Command, CompletionArgs, EtcdArgs, EtcdCommand, TrustArgs, TrustCommand, VersionArgs,
};
use client::Client;
use offline::{preview, simulate, validate};
use output::{print_error, print_errors, write_lines, write_out};
use server::Server;

pub use error::CliError;

const BY_HAND: &str = "the repository defines what runs, and no command changes it; commit and push the \
                       change, then run 'minik8s wait --for healthy'; 'minik8s plan' previews the change";

/// Runs one command; prints an error as one line on stderr.
pub async fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Up(args) => return exit(Box::pin(up::run(*args)).await),
        Command::Down(args) => return exit(up::down(args).await),
        Command::Serve(args) => return exit(Box::pin(serve(*args)).await),
        // Its exit code 2 means that there are changes, so wrong usage must not end with 2.
        Command::Plan(args) => return code(preview::run(&args).await.map_err(CliError::into_plan_error)),
        Command::FindComment(args) => preview::find_comment(&args),
        Command::Validate(args) => return validate::run(&args),
        Command::Secrets(args) => return exit(secrets::run(&args).await),
        Command::Simulate(args) => return code(simulate::run(&args)),
        Command::Schema(args) => validate::schema(&args),
        Command::Explain(args) => validate::explain(&args),
        Command::Status(args) => status::run(&args).await,
        Command::Get(args) => get::run(&args).await,
        Command::Describe(args) => describe::run(&args).await,
        Command::History(args) => get::history(&args).await,
        Command::Tree(args) => tree::run(&args).await,
        Command::Events(args) => get::events(&args).await,
        Command::Logs(args) => logs::run(&args).await,
        Command::Top(args) => top::run(&args).await,
        Command::Wait(args) => wait::run(&args).await,
        Command::Sync(args) => sync::run(&args).await,
        Command::Etcd(EtcdArgs { command: EtcdCommand::Defrag(args) }) => sync::defrag(&args).await,
        Command::Trust(TrustArgs { command }) => match command {
            TrustCommand::EtcdUsers(args) => up::etcd_users(&args),
            TrustCommand::Rotate(args) => trust::rotate::run(&args).await,
            TrustCommand::EtcdRestarted(args) => trust::rotate::confirm_etcd_restart(&args).await,
            TrustCommand::Remove(args) => trust::remove::run(&args).await,
            TrustCommand::Enable(args) => return exit(up::enable(&args).await),
        },
        Command::Token(args) => trust::token::run(&args).await,
        Command::Node(args) => return exit(Box::pin(trust::node::run(&args)).await),
        Command::Join(args) => return exit(trust::join::run(&args).await),
        Command::User(args) => trust::user::run(&args).await,
        Command::Ui(args) => ui::run(&args).await,
        Command::Invoke(args) => return code(calls::call_function(&args).await),
        Command::Run(args) => return code(calls::start_run(&args).await),
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
            let error = while_starting(error);
            print_error(&error.to_string());
            error.exit_code()
        }
    }
}

/// Says that `minik8s up` may still be starting its reconciler, if one that runs is responsible for it.
fn while_starting(error: CliError) -> CliError {
    let CliError::Reach { server, why } = &error else { return error };
    let state = up::state::StateDir::open(Path::new(DEFAULT_STATE_DIR)).ok();
    let running = state.and_then(|state| match Server::is_default_socket(server) {
        true => state.running(),
        false => state.running_at(server),
    });
    match running {
        Some(pid) => CliError::NotReached(format!(
            "cannot reach the reconciler at {server}: {why}; 'minik8s up' (process {pid}) runs it and may still be \
             starting it: try again in a few seconds, or read {DEFAULT_STATE_DIR}/logs"
        )),
        None => error,
    }
}

fn exit<E: Into<anyhow::Error>>(outcome: Result<ExitCode, E>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        print_error(&format!("{:#}", error.into()));
        ExitCode::FAILURE
    })
}

async fn version(args: &VersionArgs) -> Result<(), CliError> {
    write_out(&format!("client  {}\n", env!("CARGO_PKG_VERSION")))?;
    if args.client {
        return Ok(());
    }
    let client = Client::new(args.server.given())?;
    let server: crate::view::VersionView = client.get(&["version"], &[]).await?;
    write_lines(&format!("server  {} ({} at {})", server.version, server.name, client.server()))
}

fn completion(args: &CompletionArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "minik8s", &mut script);
    write_out(&String::from_utf8_lossy(&script))
}

// `minik8s serve`: turns flags into the configuration and runs the daemon until SIGTERM or Ctrl-C.

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let config = match ServeConfig::try_from(args) {
        Ok(config) => config,
        Err(error) => {
            print_errors(&error.to_string());
            return Ok(ExitCode::from(2));
        }
    };
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Boxed: the daemon is far larger than all other commands, which share its stack.
    let mut daemon = Box::pin(super::daemon::serve(config, shutdown.clone()));
    // Cancel-safe: every arm only waits, and the daemon continues.
    tokio::select! {
        served = &mut daemon => return served.map(|()| ExitCode::SUCCESS),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    shutdown.cancel();
    daemon.await?;
    Ok(ExitCode::SUCCESS)
}
