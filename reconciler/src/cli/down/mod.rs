//! `minik8s down`: not in this branch; its flags and its run come with the piece that starts the daemons.

use std::process::ExitCode;

/// Flags of `down`.
#[derive(Debug, clap::Args)]
pub struct DownArgs {}

/// Says that it is missing.
pub async fn run(_args: DownArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("'down' is not part of this build; run 'minik8s-agent reset' on each node")
}
