//! `minik8s serve`: flags to configuration to the daemon, until SIGTERM or Ctrl-C.

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
    let asked = shutdown.clone();
    tokio::spawn(async move {
        // Both arms only wait for a signal: nothing is lost when one is dropped.
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        asked.cancel();
    });
    // Boxed: the daemon is far larger than all other commands, which share its stack.
    Box::pin(crate::daemon::serve(config, shutdown)).await?;
    Ok(ExitCode::SUCCESS)
}
