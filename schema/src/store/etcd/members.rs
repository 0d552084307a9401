//! Members of etcd: their size and alarms, the acts that make room, and the change of members.
//!
//! None of these writes a value, so they need no fence: a second or late one changes nothing that is read.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions, MemberAddOptions};
use tokio::time::timeout;

use super::watch::{is_compacted, request_error};
use super::{EtcdStore, REQUEST_TIMEOUT, within};
use crate::records::EtcdMember;
use crate::store::StoreError;

/// Longest wait for a compaction, which deletes the old values of up to ten minutes.
const COMPACTION_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a defragmentation, which copies the member's whole file: up to 8 GiB. Less than a run of a loop may
/// last.
const DEFRAGMENTATION_MAX: Duration = Duration::from_secs(240);

/// Entry of the list of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedMember {
    /// Id in hex.
    pub id: String,
    /// Name; empty before its first start.
    pub name: String,
    /// Addresses for clients, as the member publishes them.
    pub client_urls: Vec<String>,
    /// Addresses for other members.
    pub peer_urls: Vec<String>,
    /// Set if it follows without a vote.
    pub is_learner: bool,
}

/// Alarm of a member, `NOSPACE` or `CORRUPT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberAlarm {
    /// Id of the member in hex.
    pub member: String,
    /// Name of the alarm.
    pub alarm: String,
}

impl EtcdStore {
    /// Reads the status of the connected member, without name, address and alarms, and the alarms of all members.
    /// Costs etcd no write and no read of its file. The quota is known from etcd 3.6 on.
    ///
    /// # Errors
    /// The member does not answer.
    pub async fn member_status(&self) -> Result<(EtcdMember, Vec<MemberAlarm>), StoreError> {
        let mut client = self.client.maintenance_client();
        let status = within("a request for its status", REQUEST_TIMEOUT, client.status()).await?;
        let (id, revision) = status.header().map_or((0, 0), |header| (header.member_id(), header.revision()));
        let bytes = |size: i64| u64::try_from(size).unwrap_or(0);
        let alarms = status.errors().iter().filter_map(|text| alarm_in(text)).collect();
        let member = EtcdMember {
            id: hex(id),
            version: status.version().to_owned(),
            size_bytes: bytes(status.db_size()),
            in_use_bytes: bytes(status.raft_used_db_size()),
            quota_bytes: Some(bytes(status.db_size_quota())).filter(|quota| *quota > 0),
            revision,
            is_leader: status.leader() == id,
            ..EtcdMember::default()
        };
        Ok((member, alarms))
    }

    /// Lists the members.
    ///
    /// # Errors
    /// The member does not answer, or the user may not list them.
    pub async fn listed_members(&self) -> Result<Vec<ListedMember>, StoreError> {
        let mut client = self.client.cluster_client();
        let list = within("a list of members", REQUEST_TIMEOUT, client.member_list()).await?;
        let member = |member: &etcd_client::Member| ListedMember {
            id: hex(member.id()),
            name: member.name().to_owned(),
            client_urls: member.client_urls().to_vec(),
            peer_urls: member.peer_urls().to_vec(),
            is_learner: member.is_learner(),
        };
        Ok(list.members().iter().map(member).collect())
    }

    /// Compacts the history up to `revision`, in all members, and waits until the old values are deleted here. An
    /// earlier compaction beyond it is no error.
    ///
    /// # Errors
    /// The member does not answer, or has no such revision yet.
    pub async fn compact(&self, revision: i64) -> Result<(), StoreError> {
        let act = "a compaction";
        let options = CompactionOptions::new().with_physical();
        let mut client = self.kv.clone();
        match timeout(COMPACTION_MAX, client.compact(revision, Some(options))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if is_compacted(&error) => Ok(()),
            Ok(Err(error)) => Err(request_error(act, &error)),
            Err(_) => Err(StoreError::Timeout { act, after: COMPACTION_MAX }),
        }
    }

    /// Defragments the connected member, which answers no request meanwhile.
    ///
    /// # Errors
    /// The member does not answer, or the user is not root.
    pub async fn defragment(&self) -> Result<(), StoreError> {
        let mut client = self.client.maintenance_client();
        within("a defragmentation", DEFRAGMENTATION_MAX, client.defragment()).await.map(drop)
    }

    /// Takes back the alarm of a member whose file had reached the quota.
    ///
    /// # Errors
    /// The member does not answer, or the user is not root.
    pub async fn disarm_no_space(&self, member: &str) -> Result<(), StoreError> {
        let act = "the end of an alarm";
        let id = parsed(act, member)?;
        let mut options = AlarmOptions::new();
        options.with_member(id);
        let mut client = self.client.maintenance_client();
        let disarmed = client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options));
        within(act, REQUEST_TIMEOUT, disarmed).await.map(drop)
    }

    /// Adds a member that follows without a vote until it is promoted; returns its id.
    ///
    /// # Errors
    /// The member does not answer, the user is not root, or there is another learner.
    pub async fn add_learner(&self, peer_url: &str) -> Result<String, StoreError> {
        let mut client = self.client.cluster_client();
        let options = MemberAddOptions::new().with_is_learner();
        let added = within(
            "a new member",
            REQUEST_TIMEOUT,
            client.member_add(vec![peer_url.to_owned()], Some(options)),
        )
        .await?;
        Ok(added.member().map_or_else(String::new, |member| hex(member.id())))
    }

    /// Gives a learner its vote. With authentication on, only the leader does it (etcd-io/etcd#20757).
    ///
    /// # Errors
    /// The member does not answer, does not lead, or the learner has not caught up yet.
    pub async fn promote(&self, member: &str) -> Result<(), StoreError> {
        let act = "the promotion of a member";
        let mut client = self.client.cluster_client();
        within(act, REQUEST_TIMEOUT, client.member_promote(parsed(act, member)?)).await.map(drop)
    }

    /// Removes a member.
    ///
    /// # Errors
    /// The member does not answer, the user is not root, or the rest would have no majority.
    pub async fn remove_member(&self, member: &str) -> Result<(), StoreError> {
        let act = "the removal of a member";
        let mut client = self.client.cluster_client();
        within(act, REQUEST_TIMEOUT, client.member_remove(parsed(act, member)?)).await.map(drop)
    }

    /// Changes the addresses of a member for the others.
    ///
    /// # Errors
    /// The member does not answer, or the user is not root.
    pub async fn update_member(&self, member: &str, peer_url: &str) -> Result<(), StoreError> {
        let act = "the new address of a member";
        let mut client = self.client.cluster_client();
        within(act, REQUEST_TIMEOUT, client.member_update(parsed(act, member)?, vec![peer_url.to_owned()]))
            .await
            .map(drop)
    }
}

/// Reads the id of a member in hex.
fn parsed(act: &'static str, member: &str) -> Result<u64, StoreError> {
    u64::from_str_radix(member, 16)
        .map_err(|_| StoreError::Request { act, message: format!("`{member}` is not the id of a member") })
}

fn hex(id: u64) -> String {
    format!("{id:x}")
}

/// Finds the alarm in an error of a status: etcd writes `memberID:12428976124636271536 alarm:NOSPACE`.
fn alarm_in(text: &str) -> Option<MemberAlarm> {
    let mut words = text.split_whitespace();
    let member: u64 = words.next()?.strip_prefix("memberID:")?.parse().ok()?;
    let alarm = words.next()?.strip_prefix("alarm:").filter(|alarm| !alarm.is_empty())?;
    Some(MemberAlarm { member: hex(member), alarm: alarm.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_names_its_member() {
        let found = alarm_in("memberID:12428976124636271536 alarm:NOSPACE ").unwrap();
        assert_eq!((found.member.as_str(), found.alarm.as_str()), ("ac7c97ef0ec193b0", "NOSPACE"));
        assert_eq!(alarm_in("etcdserver: no leader"), None);
        assert_eq!(alarm_in("memberID:7 alarm:"), None);
    }
}
