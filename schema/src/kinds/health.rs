//! How well an object is: one word for all kinds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How well an object is, with the reason where it is not simply well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Health {
    /// It does what its manifest says.
    Healthy,
    /// It is on its way, or waits for something.
    Progressing {
        /// What it waits for.
        why: String,
    },
    /// It does not, and won't without help.
    Degraded {
        /// What is wrong.
        why: String,
    },
    /// No node or controller reports on it.
    Unknown {
        /// Why not.
        why: String,
    },
}

impl Health {
    /// Why the object is not simply well.
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
