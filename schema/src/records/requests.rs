//! `requests/<id>`, of webhooks and `minik8s sync`, and `answers/<id>`; `etcd/defrag` and `etcd/upkeep`.
//!
//! The reconciler that receives a request records it; the leader answers once it has checked the repository after
//! that. These keys are on leases.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codec::is_default;

/// Most webhook requests kept; older ones are removed with the next write.
pub const WEBHOOK_REQUESTS_MAX: usize = 1_000;

/// Most requests of `minik8s sync` kept, separate from those of webhooks: their senders can ask often, and must not
/// push out the records that distinguish a replayed webhook from a new one.
pub const CLI_REQUESTS_MAX: usize = 50;

/// Longest id of a request, in bytes.
pub const REQUEST_ID_MAX: usize = 128;

/// Sender of a sync request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// GitHub.
    GitHub,
    /// GitLab.
    GitLab,
    /// Gitea.
    Gitea,
    /// Forgejo.
    Forgejo,
    /// Gogs.
    Gogs,
    /// Any sender that signs with `X-Signature`.
    Generic,
    /// `minik8s sync`.
    Cli,
}

impl Provider {
    /// Returns the name used in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Provider::GitHub => "github",
            Provider::GitLab => "gitlab",
            Provider::Gitea => "gitea",
            Provider::Forgejo => "forgejo",
            Provider::Gogs => "gogs",
            Provider::Generic => "generic",
            Provider::Cli => "cli",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request to check a repository.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncRequest {
    /// Id, as in the key.
    pub id: String,
    /// Sender.
    pub provider: Provider,
    /// Reported event, in the provider's word: `push`.
    pub event: String,
    /// Name of the source.
    pub source: String,
    /// Repository that it names.
    pub repository: Option<String>,
    /// Branch or tag that it names, in full: `refs/heads/main`.
    pub reference: Option<String>,
    /// Commit that it names. A hint: the commit found in the repository is applied.
    pub commit_hint: Option<String>,
    /// Time of the first delivery.
    pub received_at: Timestamp,
    /// Time of the last repetition, if it was repeated.
    pub repeated_at: Option<Timestamp>,
    /// Number of repetitions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repeats: u32,
    /// Address of the sender.
    pub peer: String,
    /// SHA-256 of the body in hex; empty without a body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// Name of the reconciler that received it last.
    pub by: String,
    /// Decision made on receipt.
    pub outcome: RequestOutcome,
}

impl SyncRequest {
    /// Returns the time of the last delivery.
    pub fn last_at(&self) -> Timestamp {
        self.repeated_at.unwrap_or(self.received_at)
    }
}

/// Decision made on receipt of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum RequestOutcome {
    /// The source is checked.
    Accepted,
    /// Nothing that the source follows.
    Ignored {
        /// Reason why it was ignored.
        why: String,
    },
}

/// Result of the check of the repository after the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestAnswer {
    /// Revision of the request that it answers. A repeated request waits again.
    pub request_revision: i64,
    /// Time at which the check was done.
    pub at: Timestamp,
    /// Commit applied since; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

// `etcd/defrag` and `etcd/upkeep`, and what members of etcd report about themselves.

/// Name of the alarm under which etcd refuses writes: a member's file has reached the quota.
pub const NO_SPACE: &str = "NOSPACE";
/// Quota of an etcd that is given none.
pub const DEFAULT_QUOTA_BYTES: u64 = 2 << 30;
/// Share of the quota from which on a member is nearly full, in percent.
const NEARLY_FULL_PERCENT: u64 = 80;
/// Smallest file for which unused space matters.
const FILE_MIN_BYTES: u64 = 16 << 20;

/// Upkeep of etcd by the leader.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdUpkeep {
    /// True if the leader compacts and defragments this etcd.
    pub is_on: bool,
    /// Smallest quota of a member; `None` if it is unknown.
    pub quota_bytes: Option<u64>,
    /// Time of the last compaction.
    pub compacted_at: Option<Timestamp>,
    /// Revision up to which the history is compacted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compacted_revision: i64,
    /// Time at which a member was last defragmented.
    pub defragmented_at: Option<Timestamp>,
    /// Revision of the last request that was carried out; 0 before the first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub answered: i64,
}

/// Request to defragment etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DefragRequest {
    /// Time of the request.
    pub requested_at: Timestamp,
    /// Name of the reconciler that received it.
    pub by: String,
}

/// A member of etcd, as it reports about itself.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdMember {
    /// Id in hex, as etcdctl prints it; empty if the member has never answered.
    pub id: String,
    /// Name given to the member; empty if unknown.
    pub name: String,
    /// Address at which it answered last.
    pub endpoint: String,
    /// Version of etcd.
    pub version: String,
    /// Size of its file, which only a defragmentation makes smaller.
    pub size_bytes: u64,
    /// Part of the file in use.
    pub in_use_bytes: u64,
    /// Size of the file at which etcd refuses writes; `None` if it is unknown.
    pub quota_bytes: Option<u64>,
    /// Newest revision.
    pub revision: i64,
    /// True for the leader of etcd.
    pub is_leader: bool,
    /// Alarms of this member: `NOSPACE`, `CORRUPT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<String>,
    /// Reason why it did not answer; the other values are then those of its last answer.
    pub error: Option<String>,
}

impl EtcdMember {
    /// Returns the member's name, else its address.
    pub fn label(&self) -> &str {
        if self.name.is_empty() { &self.endpoint } else { &self.name }
    }

    /// True if etcd refuses writes because of this member.
    pub fn is_full(&self) -> bool {
        self.alarms.iter().any(|alarm| alarm == NO_SPACE)
    }

    /// Returns what is wrong with the logins of this version of etcd, as a sentence without a full stop.
    pub fn login_fault(&self) -> Option<String> {
        let version: Vec<u32> =
            self.version.split(['.', '-', '+']).map_while(|number| number.parse().ok()).collect();
        let &[major, minor, patch, ..] = version.as_slice() else { return None };
        let version = (major, minor, patch);
        let is_faulty = version < (3, 4, 22) || ((3, 5, 0)..(3, 5, 6)).contains(&version);
        is_faulty.then(|| {
            format!("etcd {} may refuse its users after a restart (etcd-io/etcd#14355, #14571)", self.version)
        })
    }

    /// Unused bytes of the file.
    pub fn free_bytes(&self) -> u64 {
        self.size_bytes.saturating_sub(self.in_use_bytes)
    }

    /// Returns these bytes as a share of the quota, in percent; `None` if the quota is unknown.
    pub fn share_of_quota(&self, bytes: u64) -> Option<u64> {
        let quota = u128::from(self.quota_bytes.filter(|quota| *quota > 0)?);
        Some(u64::try_from(u128::from(bytes) * 100 / quota).unwrap_or(u64::MAX))
    }

    /// True from 80 % of the quota on.
    pub fn is_nearly_full(&self) -> bool {
        self.share_of_quota(self.size_bytes).is_some_and(|share| share >= NEARLY_FULL_PERCENT)
    }

    /// True if at least half of a file of some size is unused, or a nearly full one would no longer be so.
    pub fn is_worth_defragmenting(&self) -> bool {
        let is_half_free = self.size_bytes >= FILE_MIN_BYTES && self.free_bytes() >= self.size_bytes / 2;
        let shrinks = self.free_bytes() >= self.size_bytes / 8;
        let in_use = self.share_of_quota(self.in_use_bytes);
        is_half_free
            || self.is_nearly_full() && shrinks && in_use.is_some_and(|share| share < NEARLY_FULL_PERCENT)
    }

    /// Returns the size of the file as a sentence without a full stop: `1638 MiB of its quota of 2048 MiB (80 %)`.
    pub fn usage(&self) -> String {
        let size = mib(self.size_bytes);
        match (self.quota_bytes, self.share_of_quota(self.size_bytes)) {
            (Some(quota), Some(share)) => format!("{size} of its quota of {} ({share} %)", mib(quota)),
            _ => format!("{size}, and its quota is unknown"),
        }
    }
}

/// Remedy for [`EtcdMember::login_fault`].
pub const LOGIN_FAULT_REMEDY: &str = "upgrade it to 3.4.22, 3.5.6 or later";

/// Returns bytes as `12 MiB`, rounded up so that little is not nothing.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Returns the commands that make room in etcd, for an administrator.
pub fn repair_commands(endpoints: &[String], revision: i64) -> String {
    let etcdctl = format!("etcdctl --endpoints={}", endpoints.join(","));
    format!("{etcdctl} compact {revision} && {etcdctl} defrag && {etcdctl} alarm disarm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_as_it_was_written_and_older_ones_need_no_new_fields() {
        let text = r#"{"id":"d1","provider":"github","event":"push","source":"main","receivedAt":"2026-01-02T03:04:05Z","peer":"192.0.2.1","by":"r0","outcome":{"state":"accepted"}}"#;
        let request: SyncRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.outcome, RequestOutcome::Accepted);
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
    }

    #[test]
    fn a_provider_is_written_as_it_is_shown() {
        for provider in [Provider::GitHub, Provider::GitLab, Provider::Forgejo, Provider::Cli] {
            assert_eq!(serde_json::to_string(&provider).unwrap(), format!("\"{provider}\""));
        }
    }

    const MIB: u64 = 1 << 20;

    fn member(size: u64, in_use: u64, quota: Option<u64>) -> EtcdMember {
        EtcdMember {
            size_bytes: size * MIB,
            in_use_bytes: in_use * MIB,
            quota_bytes: quota.map(|quota| quota * MIB),
            ..EtcdMember::default()
        }
    }

    #[test]
    fn a_file_is_defragmented_for_half_of_it_or_to_leave_the_warning_behind() {
        for (size, in_use, quota, nearly_full, worth) in [
            (15, 0, Some(2048), false, false),
            (16, 8, Some(2048), false, true),
            (16, 9, Some(2048), false, false),
            (100, 50, None, false, true),
            (1638, 1500, Some(2048), false, false),
            (1639, 1300, Some(2048), true, true),
            (1639, 1500, Some(2048), true, false),
            (2048, 1700, Some(2048), true, false),
        ] {
            let member = member(size, in_use, quota);
            let found = (member.is_nearly_full(), member.is_worth_defragmenting());
            assert_eq!(found, (nearly_full, worth), "{size} {in_use} {quota:?}");
        }
    }

    #[test]
    fn versions_of_etcd_whose_logins_fail_are_known() {
        for (version, is_faulty) in [
            ("3.3.27", true),
            ("3.4.21", true),
            ("3.4.22", false),
            ("3.4.23", false),
            ("3.5.0", true),
            ("3.5.5+git", true),
            ("3.5.6", false),
            ("3.5.16-rc.1", false),
            ("3.6.0-alpha.0", false),
            ("4.0.0", false),
            ("", false),
            ("unknown", false),
        ] {
            let member = EtcdMember { version: version.to_owned(), ..EtcdMember::default() };
            assert_eq!(member.login_fault().is_some(), is_faulty, "{version}");
        }
    }

    #[test]
    fn a_size_is_said_with_its_quota_if_there_is_one() {
        assert_eq!(member(1639, 0, Some(2048)).usage(), "1639 MiB of its quota of 2048 MiB (80 %)");
        assert_eq!(member(3, 0, None).usage(), "3 MiB, and its quota is unknown");
        assert_eq!(mib(1), "1 MiB");
    }
}
