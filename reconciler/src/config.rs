//! (in work) What `serve` is told.

/// Flags of `serve`.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {}

/// Flags, checked.
#[derive(Debug)]
pub struct ServeConfig;

impl TryFrom<ServeArgs> for ServeConfig {
    type Error = anyhow::Error;

    fn try_from(_args: ServeArgs) -> Result<Self, anyhow::Error> {
        anyhow::bail!("'serve' is not part of this build")
    }
}
