//! `minik8s serve`: turns flags into the configuration and runs the daemon until SIGTERM or Ctrl-C.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::print::output::complain_each;
use crate::config::{ServeArgs, ServeConfig};

pub(super) async fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let config = match ServeConfig::try_from(args) {
        Ok(config) => config,
        Err(error) => {
            complain_each(&error.to_string());
            return Ok(ExitCode::from(2));
        }
    };
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Boxed: the daemon is far larger than all other commands, which share its stack.
    let mut daemon = Box::pin(crate::daemon::serve(config, shutdown.clone()));
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
