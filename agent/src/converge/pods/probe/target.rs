//! Probe targets: the checks of a container with their actions and timing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::meta::NamespacedName;
use serde::{Deserialize, Serialize};

use super::machine::{ProbeHealth, ProbeKind, Timing};
use crate::worlds::prober::HttpRequest;

/// An action to perform on a container. As JSON it is the label of a container with a preStop hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    Exec(Vec<String>),
    HttpGet(HttpRequest),
    TcpSocket { host: String, port: u16 },
}

impl Action {
    /// True if the action runs in the container and does not use the network.
    pub fn is_exec(&self) -> bool {
        matches!(self, Self::Exec(_))
    }
}

/// A probe that is ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub action: Action,
    pub timing: Timing,
}

/// A start of a container that has probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    pub pod: NamespacedName,
    pub container: String,
    /// Time of the start; `None` if Docker does not report it.
    pub started_at: Option<Timestamp>,
    pub checks: BTreeMap<ProbeKind, Check>,
    pub former: Option<ProbeHealth>,
}

/// Probe targets by Docker id.
pub type Targets = BTreeMap<String, ProbeTarget>;
