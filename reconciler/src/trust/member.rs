//! The member of etcd on this machine, as one of several: it is added as a learner before its first start, and gets its
//! vote once it has caught up.
//!
//! [`plan`] decides on what the other members list; [`prepare`] and [`promote`] carry it out.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use jiff::Timestamp;
use schema::codec::decode;
use schema::control::{DiskRecord, Fsync};
use schema::keys::{Key, prefix};
use schema::records::{RevokedIdentity, TrustRecord};
use schema::store::etcd::{Access, EtcdStore, ListedMember};
use schema::store::{Store as _, StoreError};
use schema::trust::{Certificate, bundle_from_pem};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::revocation::in_force;
use super::setup::{RefusedSerials, pki_dir, write_first_refusals};
use crate::outgoing;

/// Name of the member on the machine where the cluster began.
pub(crate) const FIRST_MEMBER: &str = "minik8s";
/// Longest wait for the members of the cluster.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for another learner's promotion, and for the own one: a new member copies all of etcd first.
pub(crate) const CATCH_UP_MAX: Duration = Duration::from_secs(300);
/// Longest wait for etcd to change its members: it refuses until all have been connected for 5 s, and so for a moment after
/// each new one.
const REFUSED_MAX: Duration = Duration::from_secs(30);
/// Longest wait for one member that is taken for lost.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pause between attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Part in the cluster's etcd that this machine was given when its reconciler joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EtcdMembership {
    /// Name of the member.
    pub(crate) name: String,
    /// Address of this machine for the others; `None` if it has no member of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
    /// Client addresses of members that were there before.
    pub(crate) join: Vec<String>,
    /// Value of `--initial-cluster`; `None` until it was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) initial_cluster: Option<String>,
    /// Number of the newest roll when it was added. It has no part in that: it begins with its list of authorities, and
    /// holds no watch of before.
    #[serde(default)]
    pub(crate) rolled: u64,
}

/// Next act towards a membership.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Adds the member as a learner.
    AddLearner,
    /// Waits for another learner: etcd has one at a time.
    WaitForLearner { name: String },
    /// Removes a member with this name and address that has lost its data, unless it answers at these addresses.
    RemoveLost { id: String, client_urls: Vec<String> },
    /// Another member has this address.
    AddressTaken { name: String },
    /// Start, with this `--initial-cluster`.
    Start { initial_cluster: String },
}

/// Decides on the first start of the member at `peer_url`, which has no data yet.
fn plan(members: &[ListedMember], name: &str, peer_url: &str) -> Step {
    let own = members.iter().find(|member| member.peer_urls.iter().any(|url| url == peer_url));
    match own {
        // Only a member that has started has a name.
        Some(own) if own.name == name => {
            Step::RemoveLost { id: own.id.clone(), client_urls: own.client_urls.clone() }
        }
        Some(other) if !other.name.is_empty() => Step::AddressTaken { name: other.name.clone() },
        Some(_) => {
            let named = |member: &ListedMember| {
                let name = if member.name.is_empty() { name } else { &member.name };
                member.peer_urls.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>()
            };
            Step::Start { initial_cluster: members.iter().flat_map(named).collect::<Vec<_>>().join(",") }
        }
        None => match members.iter().find(|member| member.is_learner) {
            Some(learner) => Step::WaitForLearner { name: learner.name.clone() },
            None => Step::AddLearner,
        },
    }
}

impl EtcdMembership {
    /// File of the membership below a state directory.
    fn record(state_dir: &Path) -> DiskRecord {
        DiskRecord::new(file(state_dir)).fsync(Fsync::All)
    }

    /// Reads the membership; `None` if the cluster began on this machine.
    pub(crate) fn load(state_dir: &Path) -> Result<Option<Self>> {
        let file = file(state_dir);
        Self::record(state_dir).read().with_context(|| format!("cannot read {}", file.display()))
    }

    /// Writes the membership.
    pub(crate) fn save(&self, state_dir: &Path) -> Result<()> {
        let file = file(state_dir);
        Self::record(state_dir).write(self).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Address of the member for the others, whose port follows that for clients.
    fn peer_url(&self, client_port: u16) -> String {
        let host = self.address.as_deref().unwrap_or("127.0.0.1");
        outgoing::tls_url(host, client_port.saturating_add(1))
    }

    /// Returns true if a member answers at one of these addresses.
    async fn answers(&self, client_urls: Vec<String>, state_dir: &Path) -> bool {
        let access = Access { endpoints: client_urls, ..self.access(state_dir) };
        if access.endpoints.is_empty() {
            return false;
        }
        let found = Box::pin(EtcdStore::connect(&access, ANSWER_MAX)).await;
        !matches!(found, Err(StoreError::Connect { .. }))
    }

    fn access(&self, state_dir: &Path) -> Access {
        Access::anonymous(&self.join).with_tls(Some(pki_dir(state_dir).tls_files()))
    }
}

/// Returns the name of this machine's member, that under which it joined or that of the first, and the roll when it joined.
pub(super) fn own_member(state_dir: &Path) -> Result<(String, u64)> {
    let joined = EtcdMembership::load(state_dir)?.filter(|joined| joined.initial_cluster.is_some());
    Ok(joined.map_or_else(|| (FIRST_MEMBER.to_owned(), 0), |joined| (joined.name, joined.rolled)))
}

fn taken(name: &str, peer_url: &str) -> anyhow::Error {
    anyhow!(
        "the member {name} of etcd has the address {peer_url} already: stop it if it is on this machine, or let this machine \
         join with its own --address"
    )
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("reconciler/etcd-member.json")
}

/// Adds the member before its first start, and records with which members it starts.
///
/// # Errors
/// No member answers, or another learner does not catch up in time.
pub(crate) async fn prepare(
    state_dir: &Path,
    mut own: EtcdMembership,
    client_port: u16,
) -> Result<EtcdMembership> {
    if own.initial_cluster.is_some() && state_dir.join("etcd/member").is_dir() {
        return Ok(own);
    }
    let peer_url = own.peer_url(client_port);
    let store = connect(&own, state_dir).await?;
    let deadline = Instant::now() + CATCH_UP_MAX;
    let mut patience = Patience::default();
    loop {
        let step = store.listed_members().await.map(|members| plan(&members, &own.name, &peer_url));
        let changed = match step {
            Err(error) => Err(error),
            Ok(Step::AddLearner) => store.add_learner(&peer_url).await.map(drop),
            Ok(Step::RemoveLost { id, client_urls }) => {
                if own.answers(client_urls, state_dir).await {
                    return Err(taken(&own.name, &peer_url));
                }
                store.remove_member(&id).await
            }
            Ok(Step::AddressTaken { name }) => return Err(taken(&name, &peer_url)),
            Ok(Step::Start { initial_cluster }) => {
                // It must not let in whom the other members refuse, not even for a moment.
                let refused = revoked_certificates(&store).await?;
                write_first_refusals(state_dir, &refused, Timestamp::now())?;
                own.rolled = roll_at_start(&store, state_dir).await?;
                own.initial_cluster = Some(initial_cluster);
                own.save(state_dir)?;
                return Ok(own);
            }
            Ok(Step::WaitForLearner { name }) if Instant::now() > deadline => {
                bail!(
                    "member {name} of etcd has not caught up within {CATCH_UP_MAX:?}, and etcd takes one new member at a time"
                )
            }
            Ok(Step::WaitForLearner { .. }) => {
                sleep(RETRY_PAUSE).await;
                Ok(())
            }
        };
        patience.with(changed).await.context(
            "etcd takes no new member while one does not answer: start that, or remove its reconciler for good ('minik8s \
             trust remove reconciler-NAME' on another machine)",
        )?;
    }
}

/// Reads which certificates of revoked keys are in force.
async fn revoked_certificates(store: &EtcdStore) -> Result<RefusedSerials> {
    let (rows, now) = (store.list(prefix::REVOKED).await?.items, Timestamp::now());
    let mut refused = RefusedSerials::new();
    for row in rows {
        let row: RevokedIdentity = decode(&row.value).with_context(|| format!("cannot read {}", row.key))?;
        refused.extend(in_force(&row.serials, now));
    }
    Ok(refused)
}

/// Returns the number of the newest roll, in which a member that starts now has no part; 0 if it lacks an authority.
async fn roll_at_start(store: &EtcdStore, state_dir: &Path) -> Result<u64> {
    let Some(found) = store.get(&Key::Trust.to_string()).await? else { return Ok(0) };
    let record: TrustRecord = decode(&found.value).context("cannot read what the cluster trusts")?;
    let digests = |all: Vec<Certificate>| all.iter().map(Certificate::digest).collect::<Result<Vec<_>, _>>();
    let own = digests(pki_dir(state_dir).authorities()?)?;
    let wanted = digests(bundle_from_pem(&record.authorities.concat())?)?;
    let has_all = wanted.iter().all(|authority| own.contains(authority));
    Ok(record.roll.filter(|_| has_all).map_or(0, |roll| roll.number))
}

/// Patience with an etcd whose members change: it refuses requests for a moment, for example while it elects a leader.
#[derive(Debug, Default)]
struct Patience {
    refused_since: Option<Instant>,
}

impl Patience {
    /// Pauses after an error that may pass.
    async fn with(&mut self, outcome: Result<(), StoreError>) -> Result<(), StoreError> {
        let Err(error) = outcome else {
            self.refused_since = None;
            return Ok(());
        };
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        let may_pass = matches!(
            error,
            StoreError::Unavailable { .. } | StoreError::Request { .. } | StoreError::Timeout { .. }
        );
        if !may_pass || since.elapsed() > REFUSED_MAX {
            return Err(error);
        }
        sleep(RETRY_PAUSE).await;
        Ok(())
    }
}

/// Waits until the started member has its vote.
///
/// # Errors
/// It has not caught up in time.
pub(crate) async fn promote(state_dir: &Path, own: &EtcdMembership, client_port: u16) -> Result<()> {
    let peer_url = own.peer_url(client_port);
    let store = connect(own, state_dir).await?;
    let deadline = Instant::now() + CATCH_UP_MAX;
    let mut patience = Patience::default();
    loop {
        let members = match store.listed_members().await {
            Ok(members) => members,
            Err(error) => {
                patience.with(Err(error)).await?;
                continue;
            }
        };
        let found = members.iter().find(|member| member.peer_urls.contains(&peer_url));
        let found = found.with_context(|| format!("etcd has no member at {peer_url}; was it removed?"))?;
        if !found.is_learner {
            return Ok(());
        }
        let why = match at_leader(&members, own, state_dir, &found.id).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if Instant::now() > deadline {
            bail!("this machine's member of etcd has not caught up within {CATCH_UP_MAX:?}: {why}");
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Tells the others the address of a running member, if they know another one: that of a former version without TLS, or
/// of a machine that has moved.
///
/// # Errors
/// The member does not answer, or the others do not.
pub(crate) async fn publish_address(access: &Access, peer_url: &str) -> Result<()> {
    let store = Box::pin(EtcdStore::connect(access, CONNECT_MAX)).await?;
    let (own, _) = store.member_status().await?;
    let members = store.listed_members().await?;
    match members.iter().find(|member| member.id == own.id) {
        Some(found) if found.peer_urls != [peer_url] => Ok(store.update_member(&own.id, peer_url).await?),
        _ => Ok(()),
    }
}

async fn at_leader(
    members: &[ListedMember],
    own: &EtcdMembership,
    state_dir: &Path,
    id: &str,
) -> Result<(), StoreError> {
    let mut why =
        StoreError::Request { act: "the promotion of a member", message: "no member leads".to_owned() };
    for member in members.iter().filter(|member| !member.is_learner && !member.client_urls.is_empty()) {
        let access = Access { endpoints: member.client_urls.clone(), ..own.access(state_dir) };
        let store = match Box::pin(EtcdStore::connect(&access, Duration::from_secs(2))).await {
            Ok(store) => store,
            Err(error) => {
                why = error;
                continue;
            }
        };
        if store.member_status().await.is_ok_and(|(status, _)| status.is_leader) {
            return store.promote(id).await;
        }
    }
    Err(why)
}

async fn connect(own: &EtcdMembership, state_dir: &Path) -> Result<EtcdStore> {
    let access = own.access(state_dir);
    let store = Box::pin(EtcdStore::connect(&access, CONNECT_MAX)).await;
    store.context("cannot reach the members of etcd that this machine joins")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "https://10.0.0.2:7080";

    fn member(name: &str, address: &str, is_learner: bool) -> ListedMember {
        ListedMember {
            id: format!("id-of-{address}"),
            name: name.to_owned(),
            client_urls: Vec::new(),
            peer_urls: vec![format!("https://{address}:7080")],
            is_learner,
        }
    }

    #[test]
    fn a_new_member_is_added_once_no_other_one_is_learning() {
        let first = member("minik8s", "10.0.0.1", false);
        assert_eq!(plan(std::slice::from_ref(&first), "r2", OWN), Step::AddLearner);
        let other = member("r3", "10.0.0.3", true);
        assert_eq!(plan(&[first, other], "r2", OWN), Step::WaitForLearner { name: "r3".to_owned() });
    }

    #[test]
    fn an_added_member_starts_with_all_others() {
        let members = [member("minik8s", "10.0.0.1", false), member("", "10.0.0.2", true)];
        let initial_cluster = "minik8s=https://10.0.0.1:7080,r2=https://10.0.0.2:7080".to_owned();
        assert_eq!(plan(&members, "r2", OWN), Step::Start { initial_cluster });
    }

    // Would fail by starting it under its former id: etcd refuses a member that has lost what it voted for.
    #[test]
    fn a_member_that_has_lost_its_data_is_replaced() {
        let members = [member("minik8s", "10.0.0.1", false), member("r2", "10.0.0.2", false)];
        let lost = Step::RemoveLost { id: "id-of-10.0.0.2".to_owned(), client_urls: Vec::new() };
        assert_eq!(plan(&members, "r2", OWN), lost);
    }

    // Would fail by a healthy member that is removed because somebody mistyped an address.
    #[test]
    fn a_member_of_another_name_is_never_replaced() {
        let members = [member("minik8s", "10.0.0.1", false), member("r3", "10.0.0.2", false)];
        assert_eq!(plan(&members, "r2", OWN), Step::AddressTaken { name: "r3".to_owned() });
    }

    #[test]
    fn an_ipv6_address_is_in_brackets() {
        let own = EtcdMembership {
            name: "r2".into(),
            address: Some("fd00::2".into()),
            join: Vec::new(),
            initial_cluster: None,
            rolled: 0,
        };
        assert_eq!(own.peer_url(7079), "https://[fd00::2]:7080");
    }
}
