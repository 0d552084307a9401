//! The cluster on one page.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::kinds::{Health, Kind};
use schema::meta::NamespacedName;
use schema::names::is_in_clear;
use schema::object::Object;
use schema::records::{EtcdMember, LOGIN_FAULT_REMEDY};
use schema::snapshot::Snapshot;
use schema::snapshot::health::health;
use schema::violation::grouped;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::notifications::failing_targets;
use super::pods::index::PodIndex;
use super::pods::row;
use super::sources::{SourceView, sources};
use crate::upkeep::UpkeepState;

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
    /// Objects that need help, by reason: `Kind/namespace/name, Kind/namespace/name and 3 more: why`. Nodes, pods that
    /// are not ready, and what the verdict on a commit says are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
    pub nodes: NodeCounts,
    /// First etcd keys whose values can't be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub malformed: Vec<MalformedKey>,
    /// Number of all such keys.
    #[serde(default)]
    pub malformed_total: u64,
    /// Error if etcd does not answer now; the page is then as old as its revision.
    pub etcd_error: Option<String>,
    /// etcd's members as the answering reconciler sees them, and what is wrong with them and with disks; `None` from an
    /// older reconciler.
    #[serde(default)]
    pub etcd: Option<EtcdView>,
    /// Number of targets of notifications that did not accept their last message.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failing_targets: usize,
    /// The last run of the answering reconciler's sync loop; `None` if it does not lead.
    pub last_sync: Option<SyncRun>,
    /// Webhook counters of the answering reconciler; `None` if webhooks are off.
    pub webhooks: Option<HookCounts>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
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

/// etcd and its upkeep.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdView {
    pub members: Vec<EtcdMember>,
    /// Sentences about etcd, about disks that are nearly full, and about trust.
    pub problems: Vec<String>,
    /// Set if the leader compacts and defragments this etcd.
    pub upkeep: bool,
    pub compacted_at: Option<Timestamp>,
    pub defragmented_at: Option<Timestamp>,
    /// Revision of the last request to defragment that was carried out.
    pub answered_revision: i64,
    /// Time at which the answering reconciler last carried out a request.
    pub answered_at: Option<Timestamp>,
}

/// An accepted request to defragment etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefragAccepted {
    pub at: Timestamp,
    /// Revision of the request; 0 if only the answering reconciler knows of it.
    pub revision: i64,
}

/// Builds the view of etcd from its state in memory, from the leader's record, and from the problems of trust.
pub fn etcd(snapshot: &Snapshot, state: &UpkeepState, trust: &[String]) -> EtcdView {
    let record = snapshot.etcd_upkeep.get(&()).map(|record| record.value.clone()).unwrap_or_default();
    let problem = |problem: &crate::upkeep::Problem| match problem.object_kind {
        "Etcd" => problem.message.clone(),
        kind => format!("{} {}: {}", kind.to_lowercase(), problem.name, problem.message),
    };
    EtcdView {
        members: state.members.clone(),
        problems: state
            .problems
            .iter()
            .map(problem)
            .chain(trust.iter().cloned())
            .chain(state.members.iter().flat_map(door_problems))
            .collect(),
        upkeep: state.is_on,
        compacted_at: record.compacted_at,
        defragmented_at: record.defragmented_at,
        answered_revision: record.answered,
        answered_at: state.answered_at,
    }
}

/// Returns what is wrong with how a member admits its clients.
fn door_problems(member: &EtcdMember) -> impl Iterator<Item = String> {
    let label = member.label();
    let fault = member.login_fault().map(|fault| format!("member {label}: {fault}; {LOGIN_FAULT_REMEDY}"));
    let open = is_in_clear(&member.endpoint).then(|| {
        format!(
            "member {label} answers in clear at {}: give it certificates (docs/operations.md, \"Upgrading a cluster \
             without certificates\")",
            member.endpoint
        )
    });
    fault.into_iter().chain(open)
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
    /// Pods that are not ready, by reason: `namespace/name, namespace/name and 3 more: status: why`.
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
    let sources = sources(snapshot, now);
    ClusterStatus {
        revision: snapshot.revision,
        synced: snapshot.synced,
        leader,
        degraded: degraded(snapshot, &sources),
        sources,
        pods: pod_counts(snapshot, now),
        malformed_total: snapshot.malformed.len() as u64,
        nodes: node_counts(snapshot),
        malformed: malformed
            .map(|(key, why)| MalformedKey { key: key.clone(), why: why.to_string() })
            .collect(),
        etcd_error: None,
        etcd: None,
        failing_targets: failing_targets(snapshot),
        last_sync: None,
        webhooks: None,
    }
}

fn pod_counts(snapshot: &Snapshot, now: Timestamp) -> PodCounts {
    let index = PodIndex::new(snapshot);
    let (mut counts, mut waiting) = (PodCounts::default(), Vec::new());
    for pod in index.pods() {
        let row = row(&index, pod, now);
        counts.total += 1;
        *counts.by_status.entry(row.status.clone()).or_default() += 1;
        if row.is_ready || row.status == "Completed" {
            counts.ready += 1;
        } else {
            waiting.push((pod.to_string(), format!("{}: {}", row.status, row.why)));
        }
    }
    counts.waiting = grouped(waiting, NAMED_MAX);
    counts
}

/// Finds objects that need help. A rollout that was given up has left pods that are all ready.
fn degraded(snapshot: &Snapshot, sources: &[SourceView]) -> Vec<String> {
    let is_in_verdict = |object: &str, why: &str| {
        let names = |verdict: &str| {
            [": ", ", ", " and "].iter().any(|end| verdict.contains(&format!("{object}{end}")))
        };
        sources.iter().any(|source| source.verdict_why.contains(why) && names(&source.verdict_why))
    };
    let objects = snapshot.objects.values().map(|object| &object.value);
    let reasons = objects.filter_map(|object| {
        let is_listed = match object.kind() {
            Kind::Node => true,
            // Its copies may be what is wrong.
            Kind::Pod => !pod_is_ready(snapshot, object),
            _ => false,
        };
        match health(snapshot, object) {
            Health::Degraded { why } if !is_listed => Some((object.reference().to_string(), why)),
            _ => None,
        }
    });
    grouped(reasons.filter(|(object, why)| !is_in_verdict(object, why)), NAMED_MAX)
}

/// True if the pod of a Pod object is ready itself, whatever its copies are.
fn pod_is_ready(snapshot: &Snapshot, object: &Object) -> bool {
    let pod = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    let node = snapshot.binding_of(&pod).map(|binding| binding.value.node.clone());
    let status = node.and_then(|node| snapshot.pod_status.get(&(node, pod)));
    status.is_some_and(|status| status.value.is_ready())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_lose_logins_or_answer_in_clear_are_named() {
        let member = |name: &str, version: &str, endpoint: &str| EtcdMember {
            name: name.to_owned(),
            version: version.to_owned(),
            endpoint: endpoint.to_owned(),
            ..EtcdMember::default()
        };
        let members = vec![
            member("good", "3.5.6", "https://10.0.0.1:2379"),
            member("here", "3.4.23", "http://127.0.0.1:2379"),
            member("old", "3.5.5", "https://10.0.0.2:2379"),
            member("open", "3.6.0", "http://10.0.0.3:2379"),
        ];
        let state = UpkeepState { members, ..UpkeepState::default() };
        let view = etcd(&Snapshot::default(), &state, &["of trust".to_owned()]);
        let [trust, old, open] = view.problems.as_slice() else { panic!("{:?}", view.problems) };
        assert_eq!(trust, "of trust");
        assert!(old.starts_with("member old: etcd 3.5.5 ") && old.ends_with(LOGIN_FAULT_REMEDY), "{old}");
        assert!(open.starts_with("member open answers in clear at http://10.0.0.3:2379: "), "{open}");
    }
}
