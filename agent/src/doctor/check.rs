//! Result of a check, and the ranges to check.

use std::fmt;

use serde::Serialize;

/// Ranges that must not overlap with the networks of this machine.
#[derive(Debug, Clone, Copy)]
pub struct Ranges {
    pub cluster: ipnet::Ipv4Net,
    pub service: ipnet::Ipv4Net,
}

/// Severity of a check's result.
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

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub level: Level,
    pub found: String,
    /// Suggested remedy; empty if none is needed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Check {
    pub(super) fn new(
        name: &'static str,
        level: Level,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { name, level, found: found.into(), remedy: remedy.into() }
    }

    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Level::Ok, found, "")
    }

    pub(super) fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Level::Warn, found, remedy)
    }

    pub(super) fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
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
