//! (in work) The wiring.

use tokio_util::sync::CancellationToken;

use crate::config::ServeConfig;

/// Runs until `shutdown`.
pub async fn serve(_config: ServeConfig, _shutdown: CancellationToken) -> anyhow::Result<()> {
    Ok(())
}
