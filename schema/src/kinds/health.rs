//! Health of an object: one type for all kinds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Health of an object, with the reason unless healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Health {
    /// The object does what its manifest says.
    Healthy,
    /// The object is converging, or waits for something.
    Progressing {
        /// Reason for the wait.
        why: String,
    },
    /// The object does not do what its manifest says and won't without help.
    Degraded {
        /// Description of the problem.
        why: String,
    },
    /// No node or controller reports on the object.
    Unknown {
        /// Reason for the missing report.
        why: String,
    },
}

impl Health {
    /// Returns the reason unless the object is healthy.
    pub fn why(&self) -> Option<&str> {
        match self {
            Health::Healthy => None,
            Health::Progressing { why } | Health::Degraded { why } | Health::Unknown { why } => Some(why),
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Health::Healthy => "Healthy",
            Health::Progressing { .. } => "Progressing",
            Health::Degraded { .. } => "Degraded",
            Health::Unknown { .. } => "Unknown",
        })
    }
}
