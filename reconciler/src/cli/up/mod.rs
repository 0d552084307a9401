//! `minik8s up`: not in this branch; its flags and its run come with the piece that starts the daemons.

use std::process::ExitCode;

/// Flags of `up`.
#[derive(Debug, clap::Args)]
pub struct UpArgs {}

/// Says that it is missing.
pub async fn run(_args: UpArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("'up' is not part of this build; run 'minik8s serve' and 'minik8s-agent run' by themselves")
}
