//! What is asked of a container, when, and where.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::meta::NamespacedName;
use serde::{Deserialize, Serialize};

use super::machine::{ProbeHealth, ProbeKind, Timing};
use crate::worlds::prober::HttpRequest;

/// Something to ask of a container. As JSON it is the label of a container with a preStop hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    Exec(Vec<String>),
    HttpGet(HttpRequest),
    TcpSocket { host: String, port: u16 },
}

impl Action {
    /// It runs in the container, and asks nothing over the network.
    pub fn is_exec(&self) -> bool {
        matches!(self, Self::Exec(_))
    }
}

/// One probe, ready to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub action: Action,
    pub timing: Timing,
}

/// One start of one container that has probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    pub pod: NamespacedName,
    pub container: String,
    /// When it started; none if Docker does not say.
    pub started_at: Option<Timestamp>,
    pub checks: BTreeMap<ProbeKind, Check>,
    pub former: Option<ProbeHealth>,
}

/// What is to be asked, by Docker's id.
pub type Targets = BTreeMap<String, ProbeTarget>;
