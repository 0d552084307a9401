//! (in work)
use crate::config::MachineConfig;
/// (in work)
pub async fn run(_: &MachineConfig) -> anyhow::Result<()> {
    Ok(())
}
