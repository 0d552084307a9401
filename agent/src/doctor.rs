//! `minik8s-agent doctor`: can this machine run an agent? One line per check, with what to do.
//!
//! Reads the machine, Docker, etcd and the kernel; changes nothing (kernel features are tried in a
//! network namespace that vanishes with the check). What is judged is decided in `judge.rs`.

use crate::args::OutputFormat;
use crate::config::Config;

mod check;
mod judge;
mod network_judge;
mod network_probe;
#[cfg(test)]
mod network_tests;
mod probe;
mod rules;
#[cfg(test)]
mod tests;

pub use check::{Check, Level, Ranges};

/// Checks and prints; true if no check failed.
pub async fn run(config: &Config, ranges: Ranges, output: OutputFormat) -> anyhow::Result<bool> {
    let seen = probe::look(config, ranges).await;
    let checks = judge::judge(config, ranges, &seen);
    match output {
        OutputFormat::Text => checks.iter().for_each(|check| println!("{check}")),
        OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&checks)?),
    }
    Ok(checks.iter().all(|check| check.level != Level::Fail))
}
