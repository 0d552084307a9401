//! `minik8s-agent doctor`: can this machine run an agent? One line per check, with what to do.
//!
//! Reads the machine, Docker, etcd and the kernel; changes nothing (kernel features are tried in a
//! network namespace that vanishes with the check). What is judged is decided in `judge.rs`.

use std::fmt;

use serde::Serialize;

use crate::args::OutputFormat;
use crate::config::Config;

mod judge;
mod network_judge;
mod network_probe;
#[cfg(test)]
mod network_tests;
mod probe;
mod rules;
#[cfg(test)]
mod tests;

/// Ranges that must meet nothing of this machine.
#[derive(Debug, Clone, Copy)]
pub struct Ranges {
    pub cluster: ipnet::Ipv4Net,
    pub service: ipnet::Ipv4Net,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    Warn,
    Fail,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        })
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub level: Level,
    pub found: String,
    /// What to do; empty if nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Check {
    fn new(name: &'static str, level: Level, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, level, found: found.into(), remedy: remedy.into() }
    }

    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Level::Ok, found, "")
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Level::Warn, found, remedy)
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Level::Fail, found, remedy)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:4}  {:<16} {}", self.level, self.name, self.found)?;
        match self.remedy.is_empty() {
            true => Ok(()),
            false => write!(f, "; {}", self.remedy),
        }
    }
}

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
