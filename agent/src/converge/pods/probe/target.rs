//! What is asked of a container, when, and where.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::meta::NamespacedName;
use serde::{Deserialize, Serialize};

use super::machine::{Health, ProbeKind, Timing};
use crate::worlds::prober::HttpRequest;

/// Something to ask of a container. As JSON it is the label of a container with a preStop hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// Runs a command in it.
    Exec(Vec<String>),
    /// Sends a request.
    HttpGet(HttpRequest),
    /// Opens a connection.
    TcpSocket {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
}

/// One probe, ready to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub action: Action,
    /// When.
    pub timing: Timing,
}

/// One start of one container that has probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    /// Namespace and name of its pod.
    pub pod: NamespacedName,
    /// Its name in the pod.
    pub container: String,
    /// When it started; none if Docker could not tell.
    pub started_at: Option<Timestamp>,
    /// Its probes.
    pub checks: BTreeMap<ProbeKind, Check>,
    /// What is known of it, from this agent or the one before.
    pub former: Option<Health>,
}

/// What is to be asked, by Docker's id.
pub type Targets = BTreeMap<String, ProbeTarget>;
