//! `minik8s-agent doctor`: checks that this machine can run an agent. One line per check, with a remedy.
//!
//! Reads the machine, Docker, etcd and the kernel; changes nothing (kernel features are tried in a temporary
//! network namespace). `judge.rs` evaluates the findings.

use std::io::{self, ErrorKind, Write as _};

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
    let text = match output {
        OutputFormat::Text => {
            checks.iter().map(|check| format!("{}\n", visible(&check.to_string()))).collect()
        }
        OutputFormat::Json => serde_json::to_string_pretty(&checks)? + "\n",
    };
    // A reader like 'head' may have gone.
    if let Err(error) = io::stdout().write_all(text.as_bytes())
        && error.kind() != ErrorKind::BrokenPipe
    {
        return Err(error.into());
    }
    Ok(checks.iter().all(|check| check.level != Level::Fail))
}
