//! The cluster on one page.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::pods::index::PodIndex;
use super::pods::row;
use super::sources::{SourceView, sources};

const NAMED_MAX: usize = 10;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Revision of etcd that the page was built from.
    pub revision: i64,
    /// Set once every prefix of etcd has been read.
    pub synced: bool,
    /// Current leader; `None` between two leaders.
    pub leader: Option<LeaderView>,
    /// Sources with their problems.
    pub sources: Vec<SourceView>,
    pub pods: PodCounts,
    pub nodes: NodeCounts,
    /// First etcd keys whose values can't be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub malformed: Vec<MalformedKey>,
    /// Error if etcd does not answer now; the page is then as old as its revision.
    pub etcd_error: Option<String>,
    /// The last run of the answering reconciler's sync loop; `None` if it does not lead.
    pub last_sync: Option<SyncRun>,
    /// Webhook counters of the answering reconciler; `None` if webhooks are off.
    pub webhooks: Option<HookCounts>,
}

/// Numbers of webhooks by outcome, since the start of the answering reconciler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookCounts {
    pub accepted: u64,
    pub duplicate: u64,
    pub ignored: u64,
    /// Not signed with the secret, or from an address with too many such requests.
    pub refused: u64,
    pub too_large: u64,
    pub busy: u64,
    pub slow: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderView {
    pub id: String,
    pub since: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    pub total: u64,
    /// Pods that are ready or have completed.
    pub ready: u64,
    /// Counts by the status word of `get pods`.
    pub by_status: BTreeMap<String, u64>,
    /// The first pods that are not ready: `namespace/name: status: why`.
    pub waiting: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounts {
    pub total: u64,
    pub ready: u64,
    #[serde(rename = "notReady")]
    pub not_ready: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MalformedKey {
    pub key: String,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncRun {
    pub started_at: Timestamp,
    pub took_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncAccepted {
    pub accepted: bool,
    pub at: Timestamp,
    #[serde(default)]
    pub requests: Vec<String>,
    /// Warning: a request that could not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionView {
    pub version: String,
    pub name: String,
}

/// Builds the page. `leader` is read separately, because it is not part of the snapshot.
pub fn cluster_status(snapshot: &Snapshot, leader: Option<LeaderView>, now: Timestamp) -> ClusterStatus {
    let malformed = snapshot.malformed.iter().take(NAMED_MAX);
    ClusterStatus {
        revision: snapshot.revision,
        synced: snapshot.synced,
        leader,
        sources: sources(snapshot, now),
        pods: pod_counts(snapshot, now),
        nodes: node_counts(snapshot),
        malformed: malformed
            .map(|(key, why)| MalformedKey { key: key.clone(), why: why.to_string() })
            .collect(),
        etcd_error: None,
        last_sync: None,
        webhooks: None,
    }
}

fn pod_counts(snapshot: &Snapshot, now: Timestamp) -> PodCounts {
    let index = PodIndex::new(snapshot);
    let mut counts = PodCounts::default();
    for pod in index.pods() {
        let row = row(&index, pod, now);
        counts.total += 1;
        *counts.by_status.entry(row.status.clone()).or_default() += 1;
        if row.is_ready || row.status == "Completed" {
            counts.ready += 1;
        } else if counts.waiting.len() < NAMED_MAX {
            counts.waiting.push(format!("{pod}: {}: {}", row.status, row.why));
        }
    }
    counts
}

fn node_counts(snapshot: &Snapshot) -> NodeCounts {
    let (ready, silent): (Vec<&String>, Vec<&String>) =
        snapshot.nodes.keys().partition(|name| snapshot.node_is_ready(name));
    NodeCounts {
        total: snapshot.nodes.len() as u64,
        ready: ready.len() as u64,
        not_ready: silent.into_iter().take(NAMED_MAX).cloned().collect(),
    }
}
