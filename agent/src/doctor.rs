//! (in work)
use crate::args::OutputFormat;
use crate::config::Config;
/// (in work)
pub async fn run(_: &Config, _: ipnet::Ipv4Net, _: OutputFormat) -> anyhow::Result<bool> {
    Ok(true)
}
