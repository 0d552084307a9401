//! `minik8s-agent doctor`: checks that this machine can run an agent. One line per check, with a remedy.
//!
//! Reads the machine, Docker, etcd and the kernel; changes nothing (kernel features are tried in a temporary
//! network namespace). `judge.rs` evaluates the findings.

use schema::violation::visible;

use crate::args::OutputFormat;
use crate::config::Config;

mod check;
mod judge;
mod network_judge;
mod network_probe;
#[cfg(test)]
mod network_tests;
mod probe;
#[cfg(test)]
mod tests;

pub use check::{Check, Level, Ranges};

/// Runs and prints the checks; true if none failed.
pub async fn run(config: &Config, ranges: Ranges, output: OutputFormat) -> anyhow::Result<bool> {
    let seen = probe::gather(config, ranges).await;
    let checks = judge::judge(config, ranges, &seen);
    match output {
        OutputFormat::Text => checks.iter().for_each(|check| println!("{}", visible(&check.to_string()))),
        OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&checks)?),
    }
    Ok(checks.iter().all(|check| check.level != Level::Fail))
}
